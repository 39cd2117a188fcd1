"""The bounded quasi-Newton method: minima, work, descent, bounds, units."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, rosen, rosen_der

from polyad.fitting.quasi_newton import QuasiNewton, _Model


def run(evaluate, start, lower, *, tol, most=1000):
    """Iterate until the optimality conditions hold; check what every step promises."""
    method = QuasiNewton(evaluate, lower)
    state = method.begin(start)
    n_iter = 0
    while method.violation(state) > tol and not state.is_final and n_iter < most:
        new = method.step(state)
        assert new.value <= state.value
        assert (new.point >= lower).all()
        state, n_iter = new, n_iter + 1
    return state, n_iter


def scipy_run(evaluate, start, lower, *, tol):
    bounds = [(None if low == -np.inf else low, None) for low in np.broadcast_to(lower, len(start))]
    options = {"ftol": 1e-30, "gtol": tol, "maxiter": 5000, "maxfun": 20000}
    return minimize(evaluate, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


def rosenbrock(x):
    return float(rosen(x)), rosen_der(x)


START = np.tile([1.5, 2.0], 5)


@pytest.mark.parametrize(
    "lower", [-np.inf, -0.5, 0.0, np.array([1.2] + [0.5] * 9), np.array([-np.inf, 1.5] * 5)]
)
def test_rosenbrock(lower):
    state, _ = run(rosenbrock, START, lower, tol=1e-6)
    theirs = scipy_run(rosenbrock, START, lower, tol=1e-6)
    assert state.value == pytest.approx(theirs.fun, rel=1e-9, abs=1e-9)
    assert state.evaluations <= 1.5 * theirs.nfev


def quadratic(seed):
    generator = np.random.default_rng(seed)
    n = int(generator.integers(5, 60))
    A = generator.standard_normal((n, n))
    A = A @ A.T + 10 ** generator.uniform(-3, 0) * np.eye(n)
    b = 5 * generator.standard_normal(n)
    return (lambda x: (float(0.5 * x @ A @ x - b @ x), A @ x - b)), generator.standard_normal(n)


def test_bounded_quadratics_take_no_more_work_than_those_of_scipy():
    ours = iterations = theirs = 0
    for seed in range(10):
        evaluate, start = quadratic(seed)
        state, n_iter = run(evaluate, start, 0.0, tol=1e-6)
        other = scipy_run(evaluate, np.maximum(start, 0), 0.0, tol=1e-6)
        assert state.value == pytest.approx(other.fun, rel=1e-10)
        ours += state.evaluations
        iterations += n_iter
        theirs += other.nfev
    assert ours <= 1.1 * theirs
    assert ours <= 1.1 * iterations


@given(st.integers(-12, 12), st.integers(0, 100))
@settings(max_examples=10)
def test_the_unit_does_not_matter(power, seed):
    """A function of c x, from c x, takes the same steps."""
    unit = 2.0 ** (3 * power)
    evaluate, start = quadratic(seed)

    def scaled(x):
        value, gradient = evaluate(x / unit)
        return value, gradient / unit

    one, other = QuasiNewton(evaluate, 0.0), QuasiNewton(scaled, 0.0)
    state, same = one.begin(start), other.begin(start * unit)
    for _ in range(5):
        state, same = one.step(state), other.step(same)
    np.testing.assert_allclose(same.point / unit, state.point, rtol=1e-6, atol=1e-9)


def test_the_model_is_the_matrix_of_its_formula():
    """The compact form equals B from the BFGS updates, one after another."""
    generator = np.random.default_rng(0)
    A = np.diag(np.arange(1.0, 9.0)) + 0.3
    method = QuasiNewton(lambda x: (float(0.5 * x @ A @ x), A @ x), memory=4)
    state = method.begin(generator.standard_normal(8))
    for _ in range(6):
        state = method.step(state)
    assert len(state.steps) == 4
    s, y = state.steps[-1], state.changes[-1]
    B = np.eye(8) * (y @ y) / (s @ y)
    for s, y in zip(state.steps, state.changes, strict=True):
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (s @ y)
    model = _Model(state)
    vector = generator.standard_normal(8)
    np.testing.assert_allclose(model.times(vector), B @ vector, rtol=1e-9)
    assert model.curvature(vector) == pytest.approx(vector @ B @ vector)
    np.testing.assert_allclose(model.minimum(vector, None), -np.linalg.solve(B, vector), rtol=1e-8)
    free = np.array([True, False] * 4)
    part = -np.linalg.solve(B[np.ix_(free, free)], vector[free])
    np.testing.assert_allclose(model.minimum(vector, free)[free], part, rtol=1e-8)
    assert (model.minimum(vector, free)[~free] == 0).all()


def test_a_step_changes_nothing_that_it_is_given():
    method = QuasiNewton(rosenbrock, 0.0)
    state = method.begin(START)
    for _ in range(5):
        state = method.step(state)
    before = [state.point.copy(), state.gradient.copy(), *map(np.copy, state.steps)]
    one, other = method.step(state), method.step(state)
    assert one.point.tobytes() == other.point.tobytes()
    for left, right in zip(before, [state.point, state.gradient, *state.steps], strict=True):
        assert np.array_equal(left, right)
    # Vectors of earlier steps are shared, not copied.
    assert one.steps[0] is state.steps[0]


def test_values_that_are_not_finite_are_too_far():
    def barrier(x):
        with np.errstate(all="ignore"):
            return float(np.sum(x - np.log(x))), 1 - 1 / x

    state, _ = run(barrier, np.full(3, 1e-3), -np.inf, tol=1e-8)
    np.testing.assert_allclose(state.point, 1, rtol=1e-6)


def test_a_minimum_at_the_start_is_final():
    method = QuasiNewton(lambda x: (float(x @ x), 2 * x), 0.0)
    state = method.begin(np.array([-1.0, 0.0]))
    assert (state.point == 0).all()
    assert method.violation(state) == 0
    after = method.step(state)
    assert after.is_final
    assert method.step(after) is after


def test_a_wrong_gradient_ends_without_a_rise():
    method = QuasiNewton(lambda x: (float(x @ x), -2 * x))
    state = method.begin(np.ones(3))
    for _ in range(4):
        state = method.step(state)
    assert state.is_final
    assert state.value == 3.0
    assert state.evaluations < 50
