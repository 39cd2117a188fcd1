"""The rows of samples: minima, independence of each other, all kinds of data."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import coo_array

from polyad import GeneralizedCP
from polyad.core.threads import thread_limit
from polyad.cp.generalized import all_cells, entry_blocks
from polyad.cp.generalized import rows as rows_module
from polyad.cp.generalized.problem import build_problem
from polyad.cp.generalized.rows import solve_rows
from polyad.data.validation import as_tensor_input
from tests.cp.generalized.examples import LOSS, NAMES, TAKES_ZERO, data_for, factors_for

SHAPE = (9, 7, 6)
each_loss = pytest.mark.parametrize("name", NAMES)


def problem_of(data, name, missing="zero"):
    return build_problem(as_tensor_input(data, allow_nan=True), missing, LOSS[name])


def violation(problem, solved, others, ridge=0.0):
    gradient = problem.evaluate([solved, *others])[1][0] + ridge * solved
    held = np.minimum(solved, gradient) if problem.loss.lower == 0 else gradient
    return np.abs(held).max()


def example(name, *, holes):
    X, others = data_for(name, SHAPE), factors_for(name, SHAPE)[1:]
    observed = np.random.default_rng(2).random(SHAPE) < 0.8
    return (np.where(observed, X, np.nan) if holes else X), others


@each_loss
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_rows_are_optimal(name, holes, ridge):
    X, others = example(name, holes=holes)
    problem = problem_of(X, name)
    if name.startswith("bernoulli") and not ridge:
        ridge = 1e-3  # the best odds of a sample may be infinite
    solved = solve_rows(problem, others, ridge)
    size = np.abs(problem.evaluate([np.full_like(solved, 0.1), *others])[1][0]).max()
    assert violation(problem, solved, others, ridge) < 1e-9 * size


@each_loss
def test_nothing_better_is_found_by_scipy(name):
    X, others = example(name, holes=False)
    problem = problem_of(X, name)
    solved = solve_rows(problem, others, 0.05)

    def evaluate(flat):
        own = flat.reshape(solved.shape)
        value, gradients = problem.evaluate([own, *others])
        return value + 0.025 * flat @ flat, (gradients[0] + 0.05 * own).ravel()

    bounds = [(0, None)] * solved.size if problem.loss.lower == 0 else None
    theirs = minimize(
        evaluate,
        np.full(solved.size, 0.3),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 3000, "maxfun": 9000, "ftol": 1e-14},
    )
    assert evaluate(solved.ravel())[0] <= theirs.fun + 1e-7 * abs(theirs.fun)


@each_loss
def test_samples_do_not_see_each_other(name, monkeypatch):
    X, others = example(name, holes=True)
    whole = solve_rows(problem_of(X, name), others, 0.05)
    scale = np.abs(whole).max()
    part = solve_rows(problem_of(X[3:5], name), others, 0.05)
    np.testing.assert_allclose(part, whole[3:5], atol=1e-9 * scale)
    monkeypatch.setattr(rows_module, "_CHUNK", 90)
    monkeypatch.setattr(rows_module, "_PAIRS", 60)
    cut = solve_rows(problem_of(X, name), others, 0.05)
    np.testing.assert_allclose(cut, whole, atol=1e-9 * scale)


@each_loss
def test_sparse_rows_equal_dense_ones(name, monkeypatch):
    X, others = example(name, holes=True)
    observed = ~np.isnan(X)
    stored = coo_array((X[observed], np.nonzero(observed)), shape=SHAPE)
    whole = solve_rows(problem_of(X, name), others, 0.05)
    scale = np.abs(whole).max()
    for pairs, long_row in ((rows_module._PAIRS, 64), (60, 34)):  # some rows have more entries
        monkeypatch.setattr(rows_module, "_PAIRS", pairs)
        monkeypatch.setattr(entry_blocks, "_LONG_ROW", long_row)
        own = solve_rows(problem_of(stored, name, "unobserved"), others, 0.05)
        np.testing.assert_allclose(own, whole, atol=1e-9 * scale)
    if name in TAKES_ZERO:
        full = data_for(name, SHAPE)
        whole = solve_rows(problem_of(full, name), others, 0.05)
        own = solve_rows(problem_of(coo_array(full), name), others, 0.05)
        np.testing.assert_allclose(own, whole, atol=1e-8 * np.abs(whole).max())


@pytest.mark.parametrize("name", ["bernoulli-odds", "huber", "negative-binomial"])
def test_chosen_zeros_stand_for_all(name, monkeypatch):
    shape = (9, 30, 20)
    X, others = data_for(name, shape), factors_for(name, shape)[1:]
    X = np.where(np.random.default_rng(0).random(shape) < 0.05, X, 0.0)
    exact = solve_rows(problem_of(coo_array(X), name), others, 0.05)
    monkeypatch.setattr(rows_module, "_CHOSEN_CELLS", 300)
    rough = solve_rows(problem_of(coo_array(X), name), others, 0.05, exact=False)
    again = solve_rows(problem_of(coo_array(X), name), others, 0.05, exact=False)
    assert np.array_equal(rough, again)
    assert not np.allclose(rough, exact, rtol=1e-6)
    assert np.abs(rough - exact).max() < 0.3 * np.abs(exact).max()


def test_the_choice_of_zeros_has_no_bias(monkeypatch):
    """The mean of many choices is the sum over all cells."""
    loss, others = LOSS["bernoulli-odds"], factors_for("bernoulli-odds", SHAPE)[1:]
    a = np.array([[0.5, 1.0, 2.0]])
    exact = rows_module.zero_term(loss, others, exact=True).evaluate(None, a)
    monkeypatch.setattr(rows_module, "_CHOSEN_CELLS", 20)
    values = []
    for seed in range(300):
        monkeypatch.setattr(rows_module, "_SEED", seed)
        values.append(rows_module.zero_term(loss, others, exact=False).evaluate(None, a).value[0])
    error = np.std(values) / np.sqrt(len(values))
    assert abs(np.mean(values) - exact.value[0]) < 4 * error


# All zeros, with few looks at them.


@pytest.mark.parametrize("name", ["bernoulli-odds", "bernoulli-logit"])
@pytest.mark.parametrize("shape", [(30, 20), (5, 6, 7)])
def test_sums_over_all_cells_equal_the_twin(name, shape, monkeypatch):
    monkeypatch.setattr(all_cells, "_CACHED", 100)  # of which a block has a part of the first side
    loss, others = LOSS[name], factors_for(name, shape)
    a = np.random.default_rng(1).random((4, 3))
    letters = "jkl"[: len(shape)]
    products = np.einsum(",".join(f"{k}r" for k in letters) + f"->{letters}r", *others)
    products = products.reshape(-1, 3)
    model, zero = a @ products.T, np.zeros((4, len(products)))
    cells = all_cells.AllCells(loss, others)
    np.testing.assert_allclose(cells.value(a), loss.value(zero, model).sum(axis=1), rtol=1e-12)
    gradient = loss.derivative(zero, model) @ products
    np.testing.assert_allclose(cells.gradient(a), gradient, rtol=1e-12)
    hessian = np.einsum("nc,cr,cs->nrs", loss.curvature(zero, model), products, products)
    with thread_limit(1):
        single = cells.curved(a)
    np.testing.assert_allclose(single[0], gradient, rtol=1e-4, atol=1e-5 * np.abs(gradient).max())
    np.testing.assert_allclose(single[1], hessian, rtol=1e-4, atol=1e-5 * np.abs(hessian).max())
    with thread_limit(3):
        for found, alone in zip(cells.curved(a), single, strict=True):
            assert found.tobytes() == alone.tobytes()


def few_entries(name, rows=slice(None)):
    shape = (9, 30, 20)
    X, others = data_for(name, shape), factors_for(name, shape)[1:]
    X = np.where(np.random.default_rng(0).random(shape) < 0.05, X, 0.0)
    return problem_of(coo_array(X[rows]), name), others


@pytest.mark.parametrize("name", ["bernoulli-odds", "bernoulli-logit", "huber"])
def test_few_looks_at_all_cells_find_the_minimum(name, monkeypatch):
    problem, others = few_entries(name)
    known = np.full((9, 3), 0.3)  # where several minima may be compared
    slow = solve_rows(problem, others, 0.05, known=known)
    monkeypatch.setattr(rows_module, "_MANY_CELLS", 100)
    monkeypatch.setattr(rows_module, "_FIRST_CELLS", 200)
    assert rows_module._all_cells(problem, others) is not None
    quick = solve_rows(problem, others, 0.05, known=known)
    size = np.abs(slow).max()
    assert np.abs(quick - slow).max() <= all_cells.SETTLED * size
    part = solve_rows(few_entries(name, slice(3, 5))[0], others, 0.05, known=known[3:5])
    np.testing.assert_allclose(part, quick[3:5], atol=1e-9 * size)


def test_rows_that_do_not_move_are_settled():
    problem, others = few_entries("bernoulli-odds")
    cells = all_cells.AllCells(problem.loss, others)
    start = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    found, unsettled = all_cells.settle(cells, start, lambda _zeros, _rows, begun: begun)
    np.testing.assert_array_equal(found, start)
    assert unsettled.size == 0


@pytest.mark.parametrize(("constant", "value"), [("_MOST_LOOKS", 1), ("_TRUSTED", 0.0)])
def test_rows_that_do_not_settle_are_found_by_newton(constant, value, monkeypatch):
    problem, others = few_entries("bernoulli-logit")
    slow = solve_rows(problem, others, 0.05)
    monkeypatch.setattr(rows_module, "_MANY_CELLS", 100)
    monkeypatch.setattr(all_cells, constant, value)
    assert rows_module._all_cells(problem, others) is not None
    np.testing.assert_allclose(
        solve_rows(problem, others, 0.05), slow, atol=1e-9 * np.abs(slow).max()
    )


@pytest.mark.parametrize("name", ["bernoulli-odds", "bernoulli-logit"])
def test_some_cells_do_not_drive_a_sample_of_ones_to_infinity(name, monkeypatch):
    """Where its best coefficients are: Newton's method ends where nothing is gained any more."""
    X = (np.random.default_rng(0).random((4, 30, 20)) < 0.05).astype(float)
    X[1] = 1.0
    problem, others = problem_of(coo_array(X), name), factors_for(name, X.shape)[1:]
    slow = solve_rows(problem, others, 0.0)
    monkeypatch.setattr(rows_module, "_MANY_CELLS", 100)
    monkeypatch.setattr(rows_module, "_FIRST_CELLS", 200)
    quick = solve_rows(problem, others, 0.0)
    assert np.abs(quick).max() <= 1e3 * np.abs(slow).max()
    values = [problem.evaluate([rows, *others])[0] for rows in (slow, quick)]
    assert values[1] == pytest.approx(values[0], rel=1e-7)


FLIGHTS = Path(os.environ.get("POLYAD_DATA", ""), "sparse", "nycflights13.npz")


@pytest.mark.skipif(not FLIGHTS.exists(), reason="POLYAD_DATA has no flights")
@pytest.mark.parametrize("loss", ["bernoulli-odds", "bernoulli-logit"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_features_of_flights_are_those_of_newton(loss, monkeypatch):
    """120,960 cells of a day, of which 900 have a flight."""
    with np.load(FLIGHTS) as file:
        coords, shape = file["coords"].T, (2, *file["shape"][1:].tolist())
    coords = coords[:, coords[0] < 2]
    X = coo_array((np.ones(coords.shape[1]), tuple(coords)), shape=shape)
    model = GeneralizedCP(3, loss=loss, ridge=0.1, max_iter=5, random_state=0)
    features = model.fit_transform(X)
    size = np.abs(features).max()
    assert np.abs(model.transform(X) - features).max() <= 1e-6 * size
    score = model.score(X)
    monkeypatch.setattr(rows_module, "_MANY_CELLS", 10**9)
    assert np.abs(model.transform(X) - features).max() <= all_cells.SETTLED * size
    assert model.score(X) == pytest.approx(score, rel=1e-9)


def test_samples_without_observations_are_zero():
    X, others = example("poisson", holes=False)
    X[4] = np.nan
    solved = solve_rows(problem_of(X, "poisson"), others, 0.0)
    assert (solved[4] == 0).all()
    assert (solved[3] > 0).any()


@each_loss
def test_dead_components_stay_zero(name):
    X, others = example(name, holes=False)
    others = [others[0] * np.array([1.0, 0.0, 1.0]), others[1]]
    solved = solve_rows(problem_of(X, name), others, 1e-3)
    assert (solved[:, 1] == 0).all()
    assert np.isfinite(solved).all()


@pytest.mark.parametrize("count", [1e-9, 1.0, 1e9])
def test_logarithms_of_any_size(count):
    X = np.full((2, 7, 6), count)
    others = [np.ones((7, 1)), np.ones((6, 1))]
    solved = solve_rows(problem_of(X, "poisson-log"), others, 0.0)
    np.testing.assert_allclose(solved, np.log(count), rtol=1e-9, atol=1e-9)


def test_a_better_row_that_is_known_is_kept():
    """Gamma rows may have several minima."""
    X, others = example("gamma", holes=False)
    problem = problem_of(X, "gamma")
    plain = solve_rows(problem, others, 0.0)
    known = solve_rows(problem, others, 0.0, known=plain * 0.5)
    own, other = (problem.evaluate([rows, *others])[0] for rows in (plain, known))
    assert other <= own + 1e-9 * abs(own)


def test_pairs_of_components_are_computed_once_for_all_samples(monkeypatch):
    calls = []
    pairs = rows_module.pairs
    monkeypatch.setattr(rows_module, "pairs", lambda products: calls.append(1) or pairs(products))
    basis = rows_module.Basis(np.random.default_rng(0).random((20, 3)))
    for _ in range(5):
        ((_, products, both),) = basis.blocks()
        assert np.array_equal(both, pairs(products))
    assert len(calls) == 1


def test_a_ridge_on_components_next_to_nothing_leaves_rows_of_zero():
    """The square of their length is no float."""
    others = [np.full((n, 2), 1e-90) for n in (3, 2)]
    X = np.random.default_rng(0).random((4, 3, 2))
    assert (np.abs(solve_rows(problem_of(X, "gaussian"), others, 1.0)) < 1e-50).all()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
def test_sums_of_stored_entries_equal_the_twin(kept, zeros, monkeypatch):
    if not kept:  # neither products nor a block for all entries
        monkeypatch.setattr(rows_module, "_PAIRS", 40)
    monkeypatch.setattr(entry_blocks, "_LONG_ROW", 4)
    generator = np.random.default_rng(0)
    loss, (b, c) = LOSS["bernoulli-odds"], [generator.random((n, 3)) for n in (5, 4)]
    counts = np.array([2, 0, 6, 1, 9])
    starts = np.concatenate([[0], np.cumsum(counts)])
    coords = [generator.integers(0, n, starts[-1]) for n in (5, 4)]
    values = generator.integers(0, 2, starts[-1]).astype(float)
    term = rows_module.zero_term(loss, [b, c], exact=True) if zeros else None
    samples = rows_module.EntrySamples(loss, [b, c], coords, (values, starts), (term, None))
    a = generator.random((5, 3)) + 0.1
    for index in (np.arange(5), np.array([0, 2, 4]), np.array([1])):
        found = samples.evaluate(index, a[index])
        for place, row in enumerate(index):
            own = slice(starts[row], starts[row + 1])
            products = b[coords[0][own]] * c[coords[1][own]]
            cells = [(h, x, 1.0) for h, x in zip(products, values[own], strict=True)]
            if zeros:
                cells += [(h, 0.0, -1.0) for h, _, _ in cells]
                cells += [(one * two, 0.0, 1.0) for one in b for two in c]
            value, gradient, hessian = 0.0, np.zeros(3), np.zeros((3, 3))
            for h, x, sign in cells:
                at = (np.array([x]), np.array([h @ a[row]]))
                value += sign * loss.value(*at)[0]
                gradient += sign * loss.derivative(*at)[0] * h
                hessian += sign * loss.curvature(*at)[0] * np.outer(h, h)
            np.testing.assert_allclose(found.value[place], value, atol=1e-12)
            np.testing.assert_allclose(found.gradient[place], gradient, atol=1e-12)
            np.testing.assert_allclose(found.hessian[place], hessian, atol=1e-11)
