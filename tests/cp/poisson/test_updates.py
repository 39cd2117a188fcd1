"""The row problems: kernels against their twins, derivatives, zeros that must not stay."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning

from polyad import KruskalTensor, PoissonCP
from polyad.cp.poisson.problem import build_problem
from polyad.cp.poisson.solver import PoissonSolver
from tests.cp.poisson.reference import (
    best_rows,
    divergence,
    gains,
    multiplicative,
    newton_step,
    products,
    row_objectives,
    unfolded,
)


def example(shape=(7, 6, 5), rank=3, seed=0, mean=2.0):
    generator = np.random.default_rng(seed)
    X = generator.poisson(mean, shape).astype(float)
    return X, [generator.uniform(0.1, 1.0, (n, rank)) for n in shape]


def dense(factors):
    return KruskalTensor(np.ones(factors[0].shape[1]), factors).to_dense()


SHAPES = [(7, 6), (7, 6, 5), (5, 4, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sweeps", [1, 7])
def test_multiplicative_update_equals_its_twin(shape, sweeps):
    X, factors = example(shape)
    problem = build_problem(X, "zero")
    for mode in range(len(shape)):
        update = problem.update(factors, mode, "mu", sweeps=sweeps, tol=0.0)
        expected = multiplicative(X, factors, mode, sweeps)
        np.testing.assert_allclose(update.rows, expected, rtol=1e-12)
        assert update.sweeps == sweeps


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_newton_step_equals_its_twin(shape, seed):
    X, factors = example(shape, seed=seed)
    problem = build_problem(X, "zero")
    for mode in range(len(shape)):
        update = problem.update(factors, mode, "pdnr", sweeps=1, tol=0.0)
        pi, data = products(factors, mode), unfolded(X, mode)
        for i in np.flatnonzero(data.sum(axis=1)):
            expected = newton_step(data[i], factors[mode][i], pi)
            np.testing.assert_allclose(update.rows[i], expected, rtol=1e-7, atol=1e-9)


def patchy(seed, shape, rank, part=0.4, noise=1e-3):
    """Return factors with many exact zeros, and counts that mostly follow them."""
    generator = np.random.default_rng(seed)
    factors = [generator.random((n, rank)) * (generator.random((n, rank)) < part) for n in shape]
    return generator.poisson(20 * dense(factors) + noise).astype(float), factors


@given(
    seed=st.integers(0, 10**6),
    n_cells=st.integers(1, 30),
    rank=st.integers(1, 8),
    part=st.sampled_from([0.15, 0.4, 1.0]),
    decades=st.sampled_from([0, 3, 12]),
)
@settings(max_examples=20, deadline=None)
def test_rows_are_at_the_minimum(seed, n_cells, rank, part, decades):
    """Also for components with exact zeros, and for counts beside counts 1e12 times as large."""
    generator = np.random.default_rng(seed)
    columns = generator.random((n_cells, rank)) * (generator.random((n_cells, rank)) < part)
    X = generator.poisson(2.0, (4, n_cells)) * 10.0 ** generator.integers(
        0, decades + 1, (4, n_cells)
    )
    rows = build_problem(X, "zero").solve([np.zeros((4, rank)), columns], 0)
    possible = columns.max(axis=1) > 0
    for x, row in zip(X, rows, strict=True):
        if not x[possible].any():
            assert not row.any()
            continue
        assert (columns @ row)[possible & (x > 0)].all()
        gain = gains(x, row, columns)
        assert gain.max() < 1 + 1e-10
        np.testing.assert_allclose(gain[row > 0], 1, atol=1e-8)
    _, lowest = best_rows(X, [rows, columns], 0, sweeps=500)
    known = np.where(possible, X, 0.0)
    value = row_objectives(known, rows, columns, columns.sum(axis=0))
    assert (value <= lowest + 1e-12 * np.abs(lowest)).all()


@pytest.mark.parametrize(
    ("method", "kind"),
    [("mu", "dense"), ("pdnr", "sparse"), ("pdnr", "holes"), ("mu", "unobserved")],
)
def test_rows_agree_with_thousands_of_em_steps(method, kind):
    """In the final rows of a fit and in transform, to ten digits of the objective."""
    X, _ = patchy(3, (12, 8, 7), 4, 0.3)
    new, _ = patchy(4, (12, 8, 7), 4, 0.3)
    seen = np.random.default_rng(5).random(X.shape) < 0.8 if kind in HOLED else np.ones(X.shape)
    model = PoissonCP(
        3, solver=method, random_state=0, missing="unobserved" if kind == "unobserved" else "zero"
    )
    fitted = model.fit_transform(as_kind(X, seen, kind))
    for data, rows in ((X, fitted), (new, model.transform(as_kind(new, seen, kind)))):
        others = [rows, *model.factors_[1:]]
        slow, lowest = best_rows(data, others, 0, seen)
        pi, mask = products(others, 0), unfolded(seen, 0)
        known = np.where(mask * pi.max(axis=1) > 0, unfolded(data, 0), 0.0)
        np.testing.assert_allclose(row_objectives(known, rows, pi, mask @ pi), lowest, rtol=1e-10)
        # Rows need not be unique, what they say of the counts is.
        model_at, slow_at = ((part @ pi.T)[known > 0] for part in (rows, slow))
        np.testing.assert_allclose(model_at, slow_at, rtol=1e-5)


HOLED = ("holes", "unobserved")


def as_kind(X, seen, kind):
    if kind == "holes":
        return np.where(seen, X, np.nan)
    if kind == "unobserved":
        coords = np.nonzero(seen)
        return coo_array((X[coords], coords), shape=X.shape)
    return coo_array(X) if kind == "sparse" else X


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_the_final_rows_hold_every_count_possible(method):
    X, _ = patchy(0, (60, 50, 40), 5, 0.15)
    model = PoissonCP(5, solver=method, random_state=0).fit(coo_array(X))
    iterations = 1 - model.history_.objective[-1] / build_problem(X, "zero").constant_divergence()
    expected = model.kruskal_.to_dense()
    assert (expected[X > 0] > 0).all()
    assert model.score(X) > iterations - 1e-12
    assert divergence(X, expected) <= model.history_.objective[-1] * (1 + 1e-12)


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_a_row_that_holds_counts_impossible_is_mended(method):
    X, factors = patchy(2, (8, 7, 6), 3)
    factors[0][:] = 0.0
    factors[0][:, 0] = 1.0
    problem = build_problem(X, "zero")
    factors[0] = problem.update(factors, 0, method, sweeps=1, tol=0.0).rows
    possible = products(factors, 0).max(axis=1) > 0
    counted = (unfolded(X, 0) > 0) & possible
    assert ((factors[0] @ products(factors, 0).T)[counted] > 0).all()


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_slices_of_nothing_but_nan_have_rows_of_zero(method):
    """They kept the random numbers of the start."""
    X, _ = example((9, 6, 5))
    X[4], X[:, 2], X[:, :, 3] = np.nan, np.nan, np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = PoissonCP(2, solver=method, random_state=0, max_iter=5).fit(X)
    for mode, row in ((0, 4), (1, 2), (2, 3)):
        assert not model.factors_[mode][row].any()
    assert not model.transform(X)[4].any()


def test_both_methods_reach_the_same_rows():
    X, factors = example(seed=1)
    problem = build_problem(X, "zero")
    slow = problem.update(factors, 1, "mu", sweeps=100_000, tol=1e-12).rows
    fast = problem.update(factors, 1, "pdnr", sweeps=50, tol=1e-12).rows
    np.testing.assert_allclose(fast, slow, atol=1e-6)
    np.testing.assert_allclose(problem.solve(factors, 1), slow, atol=1e-6)


def test_long_rows_are_read_in_chunks():
    X, factors = example((3, 6000), rank=100, mean=3.0)
    problem = build_problem(X, "zero")
    update = problem.update(factors, 0, "mu", sweeps=5, tol=0.0)
    np.testing.assert_allclose(update.rows, multiplicative(X, factors, 0, 5), rtol=1e-11)
    solved = [problem.solve(factors, 0), factors[1]]
    assert problem.violation(solved, 0) < 1e-5 * X.sum()
    assert problem.divergence(solved) == pytest.approx(divergence(X, dense(solved)), rel=1e-12)
    newton = problem.update(factors, 0, "pdnr", sweeps=50, tol=1e-10).rows
    np.testing.assert_allclose(newton, solved[0], rtol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_divergence_equals_its_twin(shape):
    X, factors = example(shape)
    value = build_problem(X, "zero").divergence(factors)
    assert value == pytest.approx(divergence(X, dense(factors)), rel=1e-12)


@pytest.mark.parametrize("method", ["mu", "pdnr"])
@pytest.mark.parametrize("rank", [3, 4, 9])
@pytest.mark.parametrize("shape", [(9, 7), (7, 6, 5), (5, 4, 3, 3)])
def test_the_divergence_of_an_update_equals_its_twin(method, rank, shape):
    """Ranks and rows that fours divide and that they do not; one row counted nothing."""
    X, factors = example(shape, rank=rank)
    X[2] = 0.0
    problem = build_problem(X, "zero")
    for mode in range(len(shape)):
        update = problem.update(factors, mode, method, sweeps=3, tol=0.0, measures=True)
        after = [update.rows if k == mode else factor for k, factor in enumerate(factors)]
        assert update.divergence == pytest.approx(divergence(X, dense(after)), rel=1e-12)
        assert problem.divergence(after) == pytest.approx(update.divergence, rel=1e-12)


@pytest.mark.parametrize("method", ["mu", "pdnr"])
@pytest.mark.parametrize("unit", [1e-12, 1e12])
@pytest.mark.parametrize("tiny", [1e-40, 1e-90, 1e-120, 1e-160])
def test_the_divergence_of_products_that_are_scaled_up(method, unit, tiny):
    """Of 1e-80, as they are; of 1e-180, scaled up; of 1e-240 and denormal ones, at the least."""
    X, factors = example(rank=5)
    factors = [factors[0] * unit, *factors[1:]]
    factors[1][2] *= tiny
    factors[2][3] *= tiny
    X *= unit
    problem = build_problem(X, "zero")
    least = 1e-200 * X.max()
    start = divergence(X, np.maximum(dense(factors), least))
    assert problem.divergence(factors) == pytest.approx(start, rel=1e-11)
    update = problem.update(factors, 0, method, sweeps=3, tol=0.0, measures=True)
    after = [update.rows, *factors[1:]]
    expected = divergence(X, np.maximum(dense(after), least))
    assert update.divergence == pytest.approx(expected, rel=1e-11)
    assert problem.divergence(after) == pytest.approx(expected, rel=1e-11)
    assert expected < start


def test_the_divergence_of_an_update_in_chunks():
    X, factors = example((3, 6000), rank=100, mean=3.0)
    factors[1][::7] *= 1e-60
    update = build_problem(X, "zero").update(factors, 0, "mu", sweeps=2, tol=0.0, measures=True)
    expected = divergence(X, update.rows @ factors[1].T)
    assert update.divergence == pytest.approx(expected, rel=1e-12)


def test_violation_is_that_of_the_numerical_gradient():
    """max |min(B, gradient)| by central differences; columns of the others sum to one."""
    X, factors = example((4, 3, 3), rank=2)
    problem = build_problem(X, "zero")
    factors = [factor / factor.sum(axis=0) for factor in factors]
    for mode in range(3):
        loaded = list(factors)
        loaded[mode] = factors[mode] * np.array([20.0, 30.0])
        gradient = np.empty_like(loaded[mode])
        for place in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                moved = [factor.copy() for factor in loaded]
                moved[mode][place] += sign * 1e-5
                values.append(divergence(X, dense(moved)))
            gradient[place] = (values[0] - values[1]) / 2e-5
        expected = np.abs(np.minimum(loaded[mode], gradient)).max()
        assert problem.violation(loaded, mode) == pytest.approx(expected, rel=1e-6)


def test_violation_vanishes_at_the_minimum():
    X, factors = example()
    X[2] = 0
    problem = build_problem(X, "zero")
    assert problem.violation(factors, 0) > 0.1
    factors[0] = problem.solve(factors, 0)
    assert problem.violation(factors, 0) < 1e-8
    assert not factors[0][2].any()


def solver_of(X, method):
    return PoissonSolver(build_problem(X, "zero"), method=method)


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_inadmissible_zeros_escape(method):
    """Plain multiplicative updates keep a zero for ever; here it is lifted, and f still falls."""
    X, factors = example(mean=20.0)
    factors[1][:, 0] = 0.0
    factors[0][3] = 0.0
    factors[2][1:, 1] = 0.0
    solver = solver_of(X, method)
    state = solver.init(factors)
    values = [solver.objective(state)]
    for _ in range(100):
        state = solver.step(state)
        values.append(solver.objective(state))
    assert (np.diff(values) <= solver.floor).all()
    fair = solver.init(example(mean=20.0)[1])
    for _ in range(100):
        fair = solver.step(fair)
    assert (state.weights > 0).all()
    assert values[-1] == pytest.approx(fair.divergence, rel=0.05)
    assert state.violation < 0.1


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_a_true_zero_stays(method):
    truth = [np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]) for _ in range(3)]
    X = 100 * dense(truth)
    solver = solver_of(X, method)
    state = solver.init([100 * truth[0], *truth[1:]])
    after = solver.step(state)
    for before, now in zip(state.factors, after.factors, strict=True):
        np.testing.assert_allclose(now, before, atol=1e-12)


def test_cells_that_no_component_explains_are_left_out():
    """Counts where all components are zero have an infinite divergence whatever the row is."""
    X, factors = example()
    factors[1][2] = 0.0
    problem = build_problem(X, "zero")
    rows = problem.solve(factors, 0)
    known = X.copy()
    known[:, 2] = 0
    np.testing.assert_allclose(rows, build_problem(known, "zero").solve(factors, 0), atol=1e-7)
    assert np.isfinite(problem.divergence([rows, *factors[1:]]))


@pytest.mark.parametrize("unit", [1e-100, 1e-12, 1e12, 1e100])
def test_nothing_depends_on_the_unit(unit):
    X, factors = example()
    expected = build_problem(X, "zero").solve(factors, 0)
    problem = build_problem(X * unit, "zero")
    np.testing.assert_allclose(problem.solve(factors, 0) / unit, expected, atol=1e-7)
    for method in ("mu", "pdnr"):
        start = [factors[0] * unit, *factors[1:]]
        plain = build_problem(X, "zero").update(factors, 0, method, sweeps=3, tol=0.0).rows
        scaled = problem.update(start, 0, method, sweeps=3, tol=0.0).rows
        np.testing.assert_allclose(scaled / unit, plain, rtol=1e-6, atol=1e-9)


def test_tiny_and_tied_factors():
    X, factors = example(mean=1000.0)
    generator = np.random.default_rng(5)
    for others in ([np.exp(-200 * generator.random(f.shape)) for f in factors], None):
        known = [np.ones_like(f) for f in factors] if others is None else others
        problem = build_problem(X, "zero")
        rows = problem.solve(known, 0)
        assert np.isfinite(rows).all()
        assert problem.violation([rows, *known[1:]], 0) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_observed_cells_only(shape):
    """The divisor of an update is the sum of the products over the observed cells of the row."""
    X, factors = example(shape)
    seen = np.random.default_rng(3).random(shape) < 0.6
    holes = np.where(seen, X, np.nan)
    coords = np.nonzero(seen)
    stored = coo_array((X[coords], coords), shape=shape)
    dense_problem = build_problem(holes, "zero")
    sparse_problem = build_problem(stored, "unobserved")
    for mode in range(len(shape)):
        pi, rows = products(factors, mode), factors[mode]
        data, mask = unfolded(np.where(seen, X, 0), mode), unfolded(seen, mode)
        expected = rows * ((data / (rows @ pi.T)) @ pi) / (mask @ pi)
        for problem in (dense_problem, sparse_problem):
            update = problem.update(factors, mode, "mu", sweeps=1, tol=0.0)
            np.testing.assert_allclose(update.rows, expected, rtol=1e-10)
            solved = list(factors)
            solved[mode] = problem.solve(factors, mode)
            assert problem.violation(solved, mode) < 1e-7
            model = np.where(seen, dense(solved), 0)
            value = divergence(np.where(seen, X, 0), model)
            assert problem.divergence(solved) == pytest.approx(value, rel=1e-10)
