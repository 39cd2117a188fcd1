import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import CP, LabelledTensor, factor_match_score
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError


@pytest.mark.parametrize("container", [np.asarray, coo_array])
@pytest.mark.parametrize("shape", [(60, 9), (60, 9, 8), (60, 5, 4, 3)])
def test_batches_find_planted_components(container, shape):
    X, truth = make_low_rank(shape, 2, noise=0.01, random_state=0)
    model = CP(2, random_state=0)
    for first in range(0, 60, 20):
        model.partial_fit(container(X[first : first + 20]))
    assert model.n_samples_seen_ == 60
    assert model.factors_[0].shape == (60, 2)
    assert model.score(X) > 0.999
    if len(shape) > 2:  # factors of a matrix are unique only up to a rotation
        assert factor_match_score(model.kruskal_, truth) > 0.999


def test_equals_a_fit_of_all_for_clean_data():
    X = make_low_rank((40, 9, 8), 3, random_state=0)[0]
    whole = CP(3, random_state=0, tol=1e-14).fit(X)
    parts = CP(3, random_state=0, tol=1e-14).fit(X[:20])
    parts.partial_fit(X[20:])
    assert factor_match_score(whole.kruskal_, parts.kruskal_, weights=True) > 1 - 1e-6


def test_learns_what_the_first_batch_lacked():
    X, _ = make_low_rank((200, 9, 8), 3, noise=0.05, random_state=0)
    truth = make_low_rank((200, 9, 8), 3, random_state=0)[1]
    first = X[:20] + np.random.default_rng(1).standard_normal((20, 9, 8)) * 2
    model = CP(3, random_state=0).fit(first)
    before = factor_match_score(model.kruskal_, truth, skip_modes=[0])
    for start in range(20, 200, 20):
        model.partial_fit(X[start : start + 20])
    after = factor_match_score(model.kruskal_, truth, skip_modes=[0])
    assert after > before
    assert after > 0.97


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_rows_of_the_last_batch_are_its_transform(ridge):
    X = make_low_rank((40, 9, 8), 3, noise=0.1, random_state=0)[0]
    model = CP(3, random_state=0, ridge=ridge).fit(X[:30])
    model.partial_fit(X[30:])
    rows = (model.factors_[0] * model.weights_)[30:]
    np.testing.assert_allclose(model.transform(X[30:]), rows, rtol=0, atol=1e-9)


def test_missing_entries_are_filled_by_the_model():
    X, truth = make_low_rank((60, 9, 8), 2, noise=0.01, random_state=0)
    holed = X.copy()
    holed[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    model = CP(2, random_state=0).fit(X[:20])
    model.partial_fit(holed[20:40]).partial_fit(holed[40:])
    assert factor_match_score(model.kruskal_, truth) > 0.999


def test_float32_stays():
    X = make_low_rank((40, 9, 8), 2, random_state=0)[0].astype(np.float32)
    model = CP(2, random_state=0).fit(X[:20])
    model.partial_fit(X[20:])
    assert all(factor.dtype == np.float32 for factor in model.factors_)
    assert model.score(X) > 0.999


def test_where_sums_do_not_exist_it_says_so():
    X = make_low_rank((10, 9, 8), 2, random_state=0)[0]
    model = CP(2, missing="unobserved", random_state=0).fit(coo_array(X))
    with pytest.raises(InvalidInputError, match="partial_fit is for complete data"):
        model.partial_fit(coo_array(X))


def test_wrong_shape_is_refused_and_changes_nothing():
    X = make_low_rank((10, 9, 8), 2, random_state=0)[0]
    model = CP(2, random_state=0).fit(X)
    before = [factor.copy() for factor in model.factors_]
    with pytest.raises(InvalidInputError, match="fitted to the size 9"):
        model.partial_fit(X[:, :5])
    assert all(map(np.array_equal, before, model.factors_))


def test_labels_of_another_type_are_refused_and_change_nothing():
    X = make_low_rank((10, 9, 8), 2, random_state=0)[0]
    names = [f"s{k}" for k in range(10)]
    model = CP(2, random_state=0).fit(
        LabelledTensor(X, modes=list("abc"), labels=[names, None, None])
    )
    other = LabelledTensor(X, modes=list("abc"), labels=[np.arange(10), None, None])
    with pytest.raises(InvalidInputError, match="same type"):
        model.partial_fit(other)
    assert model.factors_[0].shape == (10, 2)
    again = LabelledTensor(X, modes=list("abc"), labels=[[*names[:-1], "new"], None, None])
    with pytest.raises(InvalidInputError, match="9 of the new samples have labels of earlier ones"):
        model.partial_fit(again)
    with pytest.raises(InvalidInputError, match="earlier samples have labels"):
        model.partial_fit(X)
    more = LabelledTensor(X, modes=list("abc"), labels=[[f"t{k}" for k in range(10)], None, None])
    model.partial_fit(more)
    assert model.factor_table(0).index.tolist() == [*names, *(f"t{k}" for k in range(10))]


def test_another_rank_is_refused():
    X = make_low_rank((20, 5, 4), 2, noise=0.1, random_state=0)[0]
    model = CP(2, random_state=0).partial_fit(X[:10])
    with pytest.raises(InvalidInputError, match="model of 2 components, but n_components=3"):
        model.set_params(n_components=3).partial_fit(X[10:])
    assert model.n_samples_seen_ == 10
