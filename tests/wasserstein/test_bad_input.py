"""One clear error before any work starts."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array

from polyad import WassersteinCP
from polyad.exceptions import InvalidInputError, InvalidTypeError
from tests.wasserstein import twin

pytestmark = pytest.mark.filterwarnings("ignore:.*max_iter.*")

X, COSTS = twin.small_data((6, 5, 4))


@pytest.mark.parametrize("sparse", [False, True])
def test_negative_data_is_refused(sparse):
    bad = X.copy()
    bad[3, 1, 2] = -2.5
    with pytest.raises(InvalidInputError, match=r"first -2.5 at \(3, 1, 2\)"):
        WassersteinCP().fit(coo_array(bad) if sparse else bad)


def test_missing_entries_are_refused():
    bad = X.copy()
    bad[0, 1, 2] = np.nan
    with pytest.raises(InvalidInputError, match=r"NaN, first at \(0, 1, 2\)"):
        WassersteinCP().fit(bad)
    with pytest.raises(InvalidInputError, match=r"missing entries, first at \(0, 0, 0\)"):
        WassersteinCP().fit(X, mask=np.arange(X.size).reshape(X.shape) > 0)


def uneven(size):
    return np.triu(np.ones((size, size)), 1)


@pytest.mark.parametrize(
    ("costs", "error", "text"),
    [
        ("cosines", InvalidInputError, "Known names are 'cosine', 'presence'"),
        (["cosine"], InvalidInputError, "costs has 1 entries; the data has 3 modes"),
        ({7: "cosine"}, InvalidInputError, r"entry for mode 7; the data has the modes 0..2"),
        ({"word": "cosine"}, InvalidInputError, "costs has an entry for mode 'word'"),
        ({True: "cosine"}, InvalidInputError, "costs has an entry for mode True"),
        ({-1: "cosine", 2: "random"}, InvalidInputError, "costs names mode 2 twice: -1, 2"),
        (3, InvalidTypeError, "costs is a int. Give a name"),
        ({1: np.zeros((4, 4))}, InvalidInputError, r"mode 1 has the shape \(4, 4\)"),
        ({1: uneven(5)}, InvalidInputError, "mode 1 is not symmetric"),
        ({1: np.ones((5, 5))}, InvalidInputError, "mode 1 is not zero on the diagonal"),
        ({1: np.eye(5) - 1}, InvalidInputError, "mode 1 is negative"),
        ({1: np.full((5, 5), np.nan)}, InvalidInputError, "mode 1 is not finite"),
        ({1: lambda data, mode: "x"}, InvalidTypeError, "no matrix of numbers"),
        (np.zeros((5, 5)), InvalidTypeError, "costs is a ndarray. Give a name"),
    ],
)
def test_bad_costs_are_refused(costs, error, text):
    with pytest.raises(error, match=text):
        WassersteinCP(costs=costs).fit(X)


@pytest.mark.parametrize(
    "parameters",
    [
        *({"epsilon": value} for value in (0.0, -1.0, np.nan, "x")),
        *({"marginal_penalty": value} for value in (0.0, -1.0, 1e300)),
        *({"transport": "fast"}, {"sinkhorn_iter": 0}, {"inner_iter": 0}, {"memory_limit": 0.0}),
    ],
)
def test_bad_parameters_are_refused(parameters):
    with pytest.raises(ValueError, match=next(iter(parameters))):
        WassersteinCP(**parameters).fit(X)


@pytest.mark.parametrize(
    ("init", "text"),
    [
        ("best", "init='best' is not understood"),
        ([np.ones((6, 2)), -np.ones((5, 2)), np.ones((4, 2))], r"negative number -1 at \(0, 0\)"),
    ],
)
def test_bad_starts_are_refused(init, text):
    with pytest.raises(InvalidInputError, match=text):
        WassersteinCP(2, init=init).fit(X)


def test_a_long_mode_is_refused_before_its_cost_is_made():
    long = coo_array(([1.0, 2.0], ([0, 1], [0, 99_999], [1, 2])), shape=(2, 100_000, 3))
    with pytest.raises(InvalidInputError, match=r"memory_limit is 4 GB.*costs=\{1: 'separate'\}"):
        WassersteinCP(1).fit(long)
    WassersteinCP(1, costs={1: "separate"}, random_state=0).fit(long)


def test_factors_that_no_memory_holds_are_refused():
    long = coo_array(([1.0, 2.0], ([0, 1], [0, 1], [1, 2])), shape=(2**40, 2**40, 3))
    with pytest.raises(InvalidInputError, match=r"memory_limit is 4 GB.*fewer components"):
        WassersteinCP(1, costs={1: "separate"}).fit(long)
    with pytest.raises(InvalidInputError, match=r"take .* GB and memory_limit is 1e-06 GB"):
        WassersteinCP(2, memory_limit=1e-6).fit(X)


def test_components_that_are_zero_are_told():
    start = [np.ones((6, 2)), np.ones((5, 2)), np.array([[1.0, 0.0]] * 4)]
    with pytest.warns(UserWarning, match="1 of 2 components are zero"):
        model = WassersteinCP(2, init=start, max_iter=3).fit(X)
    assert [record["dead"] for record in model.history_] == [1] * len(model.history_)


def test_a_frame_is_matched_by_label():
    from polyad import LabelledTensor

    tensor = LabelledTensor(X, modes=["a", "b", "c"], labels=[None, list("vwxyz"), None])
    cost = pd.DataFrame(COSTS[1], index=list("vwxyz"), columns=list("vwxyz"))
    shuffled = cost.loc[list("zxvyw"), list("zxvyw")]
    model = WassersteinCP(2, costs={"b": shuffled}, random_state=0).fit(tensor)
    np.testing.assert_allclose(model.costs_[1], COSTS[1])
    with pytest.raises(InvalidInputError, match="mode 1"):
        WassersteinCP(2, costs={"b": shuffled.iloc[:4, :4]}).fit(tensor)


def test_a_mode_without_a_cost_of_its_own_has_the_default():
    given = WassersteinCP(2, costs={0: None, 1: "random"}, random_state=0, max_iter=2, tol=0.0)
    assert [cost is None for cost in given.fit(X).costs_] == [True, False, False]


def test_a_function_cannot_change_the_data():
    def careless(data, mode):
        data.data *= 2
        return COSTS[mode]

    options = {"random_state": 0, "max_iter": 2, "tol": 0.0}
    sparse = coo_array(X)
    model = WassersteinCP(2, costs={1: careless}, **options).fit(sparse)
    assert model.objective_ == WassersteinCP(2, costs={1: COSTS[1]}, **options).fit(X).objective_
    np.testing.assert_array_equal(sparse.toarray(), X)


def test_data_without_mass_gives_a_zero_model():
    with pytest.warns(UserWarning, match="every entry is zero"):
        model = WassersteinCP(2, random_state=0).fit(np.zeros((4, 3, 3)))
    assert (model.transform(X[:4, :3, :3]) == 0).all()


def test_the_published_steps_have_no_sharpness():
    with pytest.raises(InvalidInputError, match="sharpness=0"):
        WassersteinCP(2, transport="sinkhorn", sharpness=0.5).fit(X)
