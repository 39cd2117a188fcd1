"""Gauss-Newton steps of features and samples, against plain twins."""

import numpy as np
import pytest

from polyad.quantile.alternation import AlternatingSolver
from polyad.quantile.kernels import Along, Curves, Steps, step_block, transform_block
from polyad.quantile.parameters import pinned_quantiles
from tests.quantile.planted import small
from tests.quantile.test_problem import problem
from tests.quantile.twin import squashed


def transformed(free, scores, shares, ends, epsilon):
    """The values of one feature for its loadings, gaps and levels, as ``kernels`` says."""
    k, m = len(scores), (len(free) - len(scores) + 1) // 2
    quantiles = pinned_quantiles(free[None, k : k + m - 1], *(np.full((1, 1), e) for e in ends))[0]
    s = squashed(np.exp(free[:k]) @ scores, shares)
    exponents = free[k + m - 1 :] - (s[:, None] - np.linspace(0, 1, m)) ** 2 / epsilon
    p = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ quantiles[0]


@pytest.mark.parametrize("kind", ["whole", "missing"])
def test_transforms_and_their_derivatives_by_differences(kind):
    rng = np.random.default_rng(0)
    rows, k, n, m, epsilon, ends = 2, 2, 7, 5, 0.02, (-1.0, 3.0)
    free, scores = rng.normal(size=(rows, k + 2 * m - 1)), rng.random((k, n))
    shares = np.full((1, n), 1 / n)
    if kind == "missing":
        shares = rng.random((rows, n)) * (rng.random((rows, n)) > 0.3)
        shares /= shares.sum(axis=1, keepdims=True)
    loadings = np.exp(free[:, :k])
    gaps, levels = free[:, k : k + m - 1], np.ascontiguousarray(free[:, k + m - 1 :])
    quantiles, parts = pinned_quantiles(gaps, *(np.full((rows, 1), end) for end in ends))
    curves = Curves(levels, quantiles, np.linspace(0, 1, m), epsilon, shares)
    out = tuple(np.full((rows, n), np.nan) for _ in range(3))
    tables = np.full((rows, free.shape[1], n), np.nan)
    transform_block(curves, loadings @ scores, Along(scores, loadings, parts), out, tables)
    bare = tuple(np.empty_like(part) for part in out)
    none = np.empty((0, 0, 0))
    transform_block(curves, loadings @ scores, Along(scores, loadings, parts), bare, none)
    np.testing.assert_array_equal(out, bare)
    step = 1e-6
    for row in range(rows):
        own = scores, shares[row % len(shares)], ends, epsilon
        np.testing.assert_allclose(out[0][row], transformed(free[row], *own))
        for number, move in enumerate(step * np.eye(free.shape[1])):
            change = transformed(free[row] + move, *own) - transformed(free[row] - move, *own)
            np.testing.assert_allclose(
                tables[row, number], change / (2 * step), rtol=1e-5, atol=1e-8
            )
        standard = np.log(1 / squashed(loadings[row] @ scores, own[1]) - 1) * -np.sqrt(3) / np.pi
        np.testing.assert_allclose(out[2][row], standard)


def test_slopes_hold_means_and_deviations():
    """A product of no weight moves nothing but its own value."""
    rng = np.random.default_rng(1)
    w, n, m = rng.random((1, 6)), 6, 4
    shares = np.array([[0.3, 0.3, 0.4, 0.0, 0.0, 0.0]])
    quantiles = np.sort(rng.random((1, m)))
    curves = Curves(rng.normal(size=(1, m)), quantiles, np.linspace(0, 1, m), 0.02, shares)
    along = Along(np.zeros((1, n)), np.zeros((1, 1)), np.zeros((1, m - 1)))
    ends = []
    for way in (0.0, 1e-6, -1e-6):
        out = tuple(np.empty((1, n)) for _ in range(3))
        moved = w + way * (shares == 0.0)
        transform_block(curves, moved, along, out, np.empty((0, 0, 0)))
        ends.append(out)
    slopes = (ends[1][0] - ends[2][0])[0, 3:] / 2e-6
    np.testing.assert_allclose(ends[0][1][0, 3:], slopes, rtol=1e-6)


@pytest.mark.parametrize("size", [4, 7])
def test_steps_solve_the_damped_normal_equations(size):
    rng = np.random.default_rng(size)
    rows, n = 3, 11
    J, by_value, curved = (
        rng.normal(size=(rows, size, n)),
        rng.normal(size=(rows, n)),
        rng.random(n),
    )
    curved = np.tile(curved, (rows, 1))
    by_penalty, penalty = rng.normal(size=(rows, size)), rng.random(size)
    damping, slowness, exponents = rng.random(rows), rng.random(size), rng.integers(0, 2, size)
    steps = Steps(
        *(by_value, curved, by_penalty, penalty, damping, slowness, exponents.astype(float))
    )
    step, promised = np.empty((rows, size)), np.empty(rows)
    step_block(J.copy(), steps, 0.1, step, promised)
    for row in range(rows):
        gradient = J[row] @ by_value[row]
        H = J[row] * curved[row] @ J[row].T + np.diag(penalty + exponents * np.abs(gradient))
        own = np.diag(H).copy()
        H += np.diag(damping[row] * (own + 0.1 * own.max()) + slowness * own)
        gradient += by_penalty[row]
        expected = -np.linalg.solve(H, gradient)
        np.testing.assert_allclose(step[row], expected, rtol=1e-9)
        assert promised[row] == pytest.approx(-0.5 * gradient @ expected)


@pytest.mark.parametrize("kind", ["whole", "missing", "constant"])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_a_step_goes_down_and_its_transports_agree(nonnegative, kind):
    """Weights and potentials read from the plans are those that transports of them have."""
    X = small(n_samples=12, n_features=5)
    X /= X.max(axis=0)
    if kind == "missing":
        X[np.random.default_rng(2).random(X.shape) < 0.2] = np.nan
    if kind == "constant":
        X[:, 1] = 0.5
    objective, free = problem(X, nonnegative=nonnegative)
    solver = AlternatingSolver(objective, "QMF")
    state = solver.init(free, 0)
    values = [state.value]
    for _ in range(6):
        state = solver.step(state)
        values.append(state.value)
    assert (np.diff(values) <= 0).all()
    assert values[-1] < 0.5 * values[0]
    parameters, potentials = solver.transforms(state)
    found = objective.evaluate(parameters, [], with_gradient=False)
    assert found.value == pytest.approx(state.value, rel=1e-6)
    assert found.divergence == pytest.approx(state.divergence, rel=1e-6)
    np.testing.assert_allclose(found.potentials[0], potentials[0], atol=1e-6)
