"""Gauss-Newton steps of features and samples, against plain twins."""

import numpy as np
import pytest

from polyad.quantile.alternation import AlternatingSolver
from polyad.quantile.kernels import Maps, Steps, differentiate_block, step_block
from polyad.quantile.parameters import pinned_quantiles
from tests.quantile.planted import small
from tests.quantile.test_problem import problem


def transformed(s, gaps, levels, low, high, epsilon):
    """The values of one feature at squashed products, as ``kernels`` says."""
    quantiles = pinned_quantiles(gaps[None], np.array([[low]]), np.array([[high]]))[0][0]
    targets = np.linspace(0, 1, len(levels))
    exponents = levels - (s[:, None] - targets) ** 2 / epsilon
    p = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ quantiles


def test_derivatives_of_transforms_by_differences():
    rng = np.random.default_rng(0)
    n, m, epsilon, low, high = 7, 5, 0.02, -1.0, 3.0
    s, gaps, levels = rng.random(n), rng.normal(size=m - 1), rng.normal(size=m)
    quantiles, parts = pinned_quantiles(gaps[None], np.array([[low]]), np.array([[high]]))
    maps = Maps(
        *(np.zeros(1), np.ones(1), epsilon * levels[None], np.ones((1, m)), quantiles),
        *(np.linspace(0, 1, m), epsilon),
    )
    out = np.empty((1, n)), np.empty((1, n)), np.full((1, 2 + 2 * m - 1, n), np.nan)
    differentiate_block(maps, s[None], parts, out, 2)
    np.testing.assert_allclose(out[0][0], transformed(s, gaps, levels, low, high, epsilon))
    step = 1e-6
    ahead, behind = (
        transformed(s + way, gaps, levels, low, high, epsilon) for way in (step, -step)
    )
    np.testing.assert_allclose(out[1][0], (ahead - behind) / (2 * step), rtol=1e-6)
    for number in range(2 * m - 1):
        moved = [np.concatenate([gaps, levels]) for _ in range(2)]
        moved[0][number] += step
        moved[1][number] -= step
        ahead, behind = (
            transformed(s, own[: m - 1], own[m - 1 :], low, high, epsilon) for own in moved
        )
        by_number = (ahead - behind) / (2 * step)
        np.testing.assert_allclose(out[2][0, 2 + number], by_number, rtol=1e-5, atol=1e-8)


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
