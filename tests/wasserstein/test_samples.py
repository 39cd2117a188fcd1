"""New samples: projection, score, and what they may depend on."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.optimize import minimize
from scipy.sparse import coo_array
from sklearn.base import clone

import polyad
from polyad import LabelledTensor, WassersteinCP
from polyad.exceptions import InvalidInputError
from polyad.fitting import Status
from polyad.tensor import SparseTensor
from polyad.transport import one_identity_cost
from polyad.wasserstein import solver
from polyad.wasserstein.problem import TransportProblem, TransportSettings
from polyad.wasserstein.solver import SampleRowsSolver, WassersteinSolver
from tests.wasserstein import twin

pytestmark = pytest.mark.filterwarnings("ignore:.*max_iter.*")


@pytest.fixture(scope="module")
def fitted():
    X, _ = twin.small_data((20, 6, 5))
    return X, WassersteinCP(3, random_state=0, max_iter=30).fit(X)


@pytest.mark.parametrize("costs", [None, "cosine", "one-identity"])
def test_transform_is_fit_transform(costs):
    X, _ = twin.small_data()
    model = WassersteinCP(2, costs=costs, random_state=0, max_iter=10)
    features = model.fit_transform(X)
    np.testing.assert_allclose(model.transform(X), features, rtol=1e-9, atol=1e-12)
    # And these are the rows that the fit ended with, at their minimum; features round to zero.
    np.testing.assert_allclose(model.factors_[0] * model.weights_, features, rtol=1e-9, atol=1e-12)


def test_a_sample_of_nothing_among_coupled_ones_is_at_its_minimum_too():
    X, _ = twin.small_data()
    assert (X.sum(axis=(1, 2)) == 0).any()
    model = WassersteinCP(2, costs="cosine", random_state=0).fit(X)
    # The final rows were taken: they are better than those of the last iteration.
    assert model.objective_ < min(model.history_.objective)


def test_separate_samples_do_not_depend_on_each_other(fitted):
    X, model = fitted
    together = model.transform(X)
    alone = np.concatenate([model.transform(sample[None]) for sample in X])
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)


def test_coupled_samples_do():
    X, _ = twin.small_data((20, 6, 5))
    model = WassersteinCP(3, costs="cosine", random_state=0, max_iter=30).fit(X)
    assert np.abs(model.transform(X)[:5] - model.transform(X[:5])).max() > 1e-3


def test_samples_are_solved_for_in_batches_where_memory_is_short(fitted, monkeypatch):
    X, model = fitted
    expected = model.transform(X)
    sizes = []
    original = solver._solve_batch

    def counted(problem, others):
        sizes.append(problem.shape[0])
        return original(problem, others)

    monkeypatch.setattr(solver, "_solve_batch", counted)
    # Of 20 x 6 x 5 cells; the costs and the factors take most of this.
    short = clone(model).set_params(memory_limit=2.27e-5, max_iter=1).fit(coo_array(X))
    short.factors_, short.weights_ = model.factors_, model.weights_
    sizes.clear()
    np.testing.assert_allclose(short.transform(coo_array(X)), expected, rtol=1e-7, atol=1e-12)
    assert len(sizes) > 1
    assert sum(sizes) == len(X)


@pytest.mark.parametrize("sharpness", [0.0, 0.6])
def test_a_row_is_at_the_minimum_of_eq_20(fitted, sharpness, tmp_path):
    X, model = fitted
    if sharpness:
        sharp = clone(model).set_params(sharpness=sharpness).fit(X)
        sharp.save(tmp_path / "model.zip")
        model = polyad.load(tmp_path / "model.zip")
    sample = X[:1]

    def loss(row):
        factors = [np.maximum(row, 0.0)[None], *model.factors_[1:]]
        weights = model.epsilon, model.marginal_penalty, sharpness
        return twin.objective(sample, factors, model.costs_, *weights)

    row = model.transform(sample)[0]
    best = minimize(loss, row, method="L-BFGS-B", bounds=[(0.0, None)] * 3)
    assert loss(row) <= best.fun + 1e-3 * abs(best.fun)


@pytest.mark.parametrize("weights", [(0.05, 1.0), (0.1, 0.03), (0.01, 10.0)])
@pytest.mark.parametrize("couples", [False, True])
def test_the_longer_steps_of_rows_do_not_raise_the_loss(couples, weights):
    X, costs = twin.small_data((8, 6, 5), seed=3)
    given = costs if couples else [None, *costs[1:]]
    problem = TransportProblem(SparseTensor(coo_array(X)), given, TransportSettings(*weights), 1e9)
    solver = SampleRowsSolver(problem)
    state = solver.init(twin.start_for(X))
    loss = [solver.objective(state)]
    for _ in range(12):
        state = solver.step(state)
        loss.append(solver.objective(state))
    assert np.all(np.diff(loss) <= 4 * solver.floor)
    factors = [np.asarray(factor) for factor in state.factors]
    assert loss[-1] == pytest.approx(twin.objective(X, factors, given, *weights), rel=1e-9)


@pytest.mark.parametrize("kind", [WassersteinSolver, SampleRowsSolver])
@pytest.mark.parametrize("n_steps", [None, 25])
def test_only_solved_transports_promise_descent(kind, n_steps):
    X, costs = twin.small_data((4, 3, 3), seed=3)
    settings = TransportSettings(0.1, 1.0, n_steps)
    problem = TransportProblem(SparseTensor(coo_array(X)), costs, settings, 1e9)
    assert kind(problem).promises_descent is (n_steps is None)


def test_an_empty_sample_has_no_features(fitted):
    _, model = fitted
    assert (model.transform(np.zeros((2, 6, 5))) == 0).all()


def test_the_score_is_the_negative_loss_per_sample(fitted):
    X, model = fitted
    rows = model.transform(X)
    loss = twin.objective(
        X, [rows, *model.factors_[1:]], model.costs_, model.epsilon, model.marginal_penalty
    )
    assert model.score(X) == pytest.approx(-loss / len(X), rel=1e-9)


def test_a_matrix_for_other_samples_is_refused():
    X, costs = twin.small_data()
    model = WassersteinCP(2, costs={0: costs[0]}, random_state=0, max_iter=3).fit(X)
    model.transform(X)
    with pytest.raises(InvalidInputError, match="matrix for the 12 samples of the fit"):
        model.transform(X[:4])


def test_labels_go_through():
    X, _ = twin.small_data((5, 4, 3))
    patients = [f"p{k}" for k in range(5)]
    tensor = LabelledTensor(
        X, modes=["patient", "code", "drug"], labels=[patients, list("abcd"), list("xyz")]
    )
    model = WassersteinCP(2, costs={"code": "one-identity"}, random_state=0, max_iter=5)
    model.set_output(transform="pandas")
    assert list(model.fit_transform(tensor).index) == patients
    assert list(model.factor_table("drug").index) == list("xyz")
    np.testing.assert_array_equal(model.costs_[1], 1 - np.eye(4))


def one_everywhere(data, mode):
    return one_identity_cost(data.shape[mode])


def test_a_saved_model_keeps_its_costs(tmp_path):
    X, costs = twin.small_data()
    tensor = LabelledTensor(X, modes=["a", "b", "c"], labels=[None, list("uvwxyz"), None])
    frame = pd.DataFrame(costs[1], index=list("uvwxyz"), columns=list("uvwxyz"))
    table = pl.DataFrame(costs[1], schema=list("uvwxyz"))
    for given in (
        "cosine",
        [costs[0], "cosine", None],
        {"b": frame.iloc[::-1, ::-1]},
        {"b": table, 2: "random"},
        {"b": one_everywhere},
    ):
        model = WassersteinCP(2, costs=given, random_state=0, max_iter=3, tol=0.0).fit(tensor)
        model.save(tmp_path / "model.polyad")
        same = polyad.load(tmp_path / "model.polyad")
        np.testing.assert_array_equal(same.transform(tensor), model.transform(tensor))
        assert same.fit(tensor).history_.objective == model.history_.objective
    # A new fit of other order: labels decide, not positions.
    turned = tensor.align({"b": list("zyxwvu")})
    again = same.set_params(costs={"b": table}).fit(turned)
    np.testing.assert_array_equal(again.costs_[1], costs[1][::-1, ::-1])


def test_a_table_of_costs_of_the_samples_serves_some_of_them():
    X, costs = twin.small_data()
    names = [f"s{number}" for number in range(X.shape[0])]
    frame = pd.DataFrame(costs[0], index=names, columns=names)
    table = pl.DataFrame({"sample": names, **dict(zip(names, costs[0].T, strict=True))})
    modes = ["a", "b", "c"]
    tensor = LabelledTensor(X, modes=modes, labels=[names, None, None])
    some = LabelledTensor(X[:4], modes=modes, labels=[names[:4], None, None])
    features = []
    for given in (frame, table):
        model = WassersteinCP(2, costs={0: given}, random_state=0, max_iter=3, tol=0.0)
        features.append(model.fit(tensor).transform(some))
    np.testing.assert_array_equal(*features)
    with pytest.raises(InvalidInputError, match="is a matrix for the"):
        model.set_params(costs={0: costs[0].tolist()}).transform(some)


def test_a_saved_model_says_that_it_has_no_function(tmp_path):
    X, _ = twin.small_data()
    for given in (one_everywhere, {0: one_everywhere}):
        model = WassersteinCP(2, costs=given, random_state=0, max_iter=3).fit(X)
        model.save(tmp_path / "model.polyad")
        same = polyad.load(tmp_path / "model.polyad")
        with pytest.raises(InvalidInputError, match="gone, as a function is from a model file"):
            same.transform(X)
        same.set_params(costs=given)
        np.testing.assert_array_equal(same.transform(X), model.transform(X))
    WassersteinCP(2, costs={1: one_everywhere}).save(tmp_path / "unfitted.polyad")
    assert polyad.load(tmp_path / "unfitted.polyad").costs == {}


def test_ctrl_c_at_the_end_loses_no_fit(monkeypatch):
    def press_ctrl_c(problem, others):
        raise KeyboardInterrupt

    X, _ = twin.small_data()
    monkeypatch.setattr("polyad.wasserstein.solver.solve_rows", press_ctrl_c)
    with pytest.warns(UserWarning, match="interrupted from the keyboard"):
        model = WassersteinCP(2, random_state=0, tol=1e-3).fit(X)
    assert model.status_ is Status.INTERRUPTED
    assert all(np.isfinite(factor).all() for factor in model.factors_)
    assert model.objective_ == model.history_.objective[-1]
