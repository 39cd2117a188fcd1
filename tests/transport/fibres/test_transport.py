"""The transport of sparse fibres: closed forms, brute force, properties, hazards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from polyad.core.threads import thread_limit
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport import FibreTransport, SparseFibres, one_identity_cost, sinkhorn
from polyad.transport.fibres.mixed_precision import SINGLE_TOLERANCE
from tests.transport.reference import (
    brute_force,
    dual_value,
    fibres_of,
    published,
    random_problem,
    residual,
    value_of_plan,
)


def solve(cost, X, xhat, rho, penalty, **options):
    transport = FibreTransport(cost, epsilon=1 / rho, marginal_penalty=penalty)
    return transport.solve(fibres_of(X), xhat, **options)


def check_residuals(solution, cost, X, xhat, rho, penalty, bound=2e-10):
    first = 0
    for j in range(X.shape[1]):
        rows = np.flatnonzero(X[:, j])
        if rows.size == 0:
            continue
        log_v = solution.log_v[first : first + rows.size]
        first += rows.size
        size = bound + 1e-14 * np.abs(log_v).max()
        assert residual(log_v, rows, cost, X[:, j], xhat[j], rho, penalty) < size


# Oracles of the paper's problem.


def test_one_position():
    """T = exp((tau log(xhat x) - 1) / (1 + 2 tau))."""
    solution = solve(np.zeros((1, 1)), np.array([[5.0]]), np.array([[2.0]]), 3.0, 0.7)
    assert solution.marginals[0, 0] == pytest.approx(2.0908745875778862, rel=1e-14)
    assert solution.masses[0] == pytest.approx(2.0908745875778862, rel=1e-14)


@pytest.mark.parametrize(
    ("rho", "delta"),
    [
        (10, (1.23030353, 0.93081363)),
        (1000, (1.3137457, 0.96689642)),
    ],
)
def test_two_positions(rho, delta):
    solution = solve(one_identity_cost(2), np.array([[3.0], [0.0]]), np.array([[1.0, 2.0]]), rho, 1)
    np.testing.assert_allclose(solution.marginals[0], delta, rtol=2e-8)


def test_two_positions_almost_without_entropy():
    X, xhat = np.array([[3.0], [0.0]]), np.array([[1.0, 2.0]])
    solution = solve(one_identity_cost(2), X, xhat, 1e9, 1.0)
    m = np.sqrt(3 * (1 + 2 / np.e))
    np.testing.assert_allclose(solution.marginals[0], (3 / m, 6 / (np.e * m)), rtol=1e-8)


@pytest.mark.parametrize("tau", [1e5, 1e7])
def test_a_prohibitive_cost_gives_the_hellinger_distance(tau):
    generator = np.random.default_rng(0)
    x, xhat = generator.gamma(1, size=6), generator.gamma(1, size=6)
    solution = solve(1e3 * one_identity_cost(6), x[:, None], xhat[None], tau, 1.0)
    np.testing.assert_allclose(solution.marginals[0], np.sqrt(xhat * x), rtol=20 / tau)
    distance = np.sum((np.sqrt(xhat) - np.sqrt(x)) ** 2)
    assert solution.values[0] == pytest.approx(distance, abs=200 / tau)


def test_no_cost_compares_the_sums():
    generator = np.random.default_rng(1)
    x, xhat = generator.gamma(1, size=5), generator.gamma(1, size=5)
    solution = solve(np.zeros((5, 5)), x[:, None], xhat[None], 1e6, 2.0)
    distance = 2.0 * (np.sqrt(xhat.sum()) - np.sqrt(x.sum())) ** 2
    assert solution.values[0] == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize(("rho", "penalty"), [(5, 0.3), (20, 1.0), (8, 4.0)])
@pytest.mark.parametrize("n_nonzeros", [1, 2, 4])
def test_against_brute_force_over_the_plan(rho, penalty, n_nonzeros):
    cost, X, xhat = random_problem(4, 3, n_nonzeros, seed=2)
    solution = solve(cost, X, xhat, rho, penalty)
    for j in range(3):
        marginals, value = brute_force(cost, X[:, j], xhat[j], rho, penalty)
        np.testing.assert_allclose(solution.marginals[j], marginals, rtol=2e-5, atol=1e-7)
        # The search over the plan stops a little above the minimum, never below it.
        assert solution.values[j] == pytest.approx(value, rel=1e-6)
        assert solution.values[j] <= value + 1e-12 * abs(value)


@pytest.mark.parametrize("n_nonzeros", [1, 3, 20])
def test_against_the_general_sinkhorn(n_nonzeros):
    cost, X, xhat = random_problem(20, 2, n_nonzeros, seed=3)
    solution = solve(cost, X, xhat, 15.0, 0.5)
    for j in range(2):
        result = sinkhorn(xhat[j], X[:, j], cost, epsilon=1 / 15, marginal_penalty=0.5, tol=1e-12)
        assert result.converged
        np.testing.assert_allclose(solution.marginals[j], result.plan.sum(axis=1), rtol=1e-9)
        assert solution.values[j] == pytest.approx(result.value, rel=1e-10)
        assert solution.masses[j] == pytest.approx(result.plan.sum(), rel=1e-10)


def test_fixed_point_and_values_of_the_spec():
    """Delta = xhat^phi (K V)^(1 - phi), U = (xhat / Delta)^tau, and the value in closed form."""
    rho, penalty = 12.0, 0.8
    cost, X, xhat = random_problem(9, 4, 5, seed=4)
    solution = solve(cost, X, xhat, rho, penalty)
    K, tau = np.exp(-rho * cost - 1), rho * penalty
    V = np.zeros_like(X)
    V.T[X.T > 0] = np.exp(solution.log_v)
    phi = tau / (tau + 1)
    delta = solution.marginals.T
    np.testing.assert_allclose(delta, xhat.T**phi * (K @ V) ** (1 - phi), rtol=1e-9)
    U = (xhat.T / delta) ** tau
    for j in range(4):
        T = U[:, [j]] * K * V[:, j]
        np.testing.assert_allclose(T.sum(axis=1), delta[:, j], rtol=1e-8)
        value = value_of_plan(T, cost, X[:, j], xhat[j], rho, penalty)
        assert solution.values[j] == pytest.approx(value, rel=1e-10)


def test_the_gradient_of_the_value():
    """lam (1 - Delta / xhat), by central differences."""
    cost, X, xhat = random_problem(6, 1, 3, seed=5)
    solution = solve(cost, X, xhat, 10.0, 1.5)
    for i in range(6):
        moved = np.repeat(xhat, 2, axis=0)
        moved[:, i] += (1e-6, -1e-6)
        values = solve(cost, np.repeat(X, 2, axis=1), moved, 10.0, 1.5).values
        gradient = 1.5 * (1 - solution.marginals[0, i] / xhat[0, i])
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(gradient, abs=1e-7)


# The published iteration.


@pytest.mark.parametrize("n_nonzeros", [1, 4])
@pytest.mark.parametrize(("rho", "penalty"), [(20, 1.0), (10, 0.1)])
def test_published_steps(rho, penalty, n_nonzeros):
    cost, X, xhat = random_problem(15, 6, n_nonzeros, seed=6)
    transport = FibreTransport(cost, epsilon=1 / rho, marginal_penalty=penalty)
    for n_steps in (1, 25):
        solution = transport.sinkhorn(fibres_of(X), xhat, n_steps=n_steps)
        U, V, delta = published(cost, X, xhat, rho, penalty, n_steps)
        np.testing.assert_allclose(solution.marginals, delta.T, rtol=1e-10)
        np.testing.assert_allclose(solution.log_v, np.log(V.T[X.T > 0]), rtol=1e-9, atol=1e-9)
        K = np.exp(-rho * cost - 1)
        for j in range(6):
            T = U[:, [j]] * K * V[:, j]
            value = value_of_plan(T, cost, X[:, j], xhat[j], rho, penalty)
            assert solution.values[j] == pytest.approx(value, rel=1e-10)


def test_published_steps_are_far_from_the_solution():
    cost, X, xhat = random_problem(30, 20, 4, seed=7)
    transport = FibreTransport(cost, epsilon=0.01)
    exact = transport.solve(fibres_of(X), xhat)
    published_steps = transport.sinkhorn(fibres_of(X), xhat)
    assert np.all(published_steps.values >= exact.values - 1e-12)
    assert published_steps.residuals.max() > 0.1
    many = transport.sinkhorn(fibres_of(X), xhat, n_steps=20_000)
    np.testing.assert_allclose(many.marginals, exact.marginals, rtol=1e-4)


def test_published_steps_are_finite_where_the_paper_overflows():
    X, xhat = np.array([[3.0], [0.0]]), np.array([[1.0, 2.0]])
    solution = FibreTransport(one_identity_cost(2), epsilon=1e-3).sinkhorn(fibres_of(X), xhat)
    assert np.all(np.isfinite(solution.marginals))


# All of the range.


@pytest.mark.parametrize("rho", [1.0, 20, 200, 1000, 1e4])
@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
def test_the_grid_of_parameters(rho, penalty):
    cost, X, xhat = random_problem(25, 12, [1, 2, 5, 25], seed=8)
    solution = solve(cost, X, xhat, rho, penalty)
    assert solution.n_unsolved == 0
    check_residuals(solution, cost, X, xhat, rho, penalty)
    assert np.all(solution.masses > 0)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_data_of_any_size(scale, dtype):
    cost, X, xhat = random_problem(20, 8, [1, 3, 8], seed=9, scale=scale)
    xhat = xhat.astype(dtype)
    solution = solve(cost, X, xhat, 50.0, 1.0)
    assert solution.n_unsolved == 0
    assert solution.marginals.dtype == dtype
    check_residuals(solution, cost, X, xhat.astype(float), 50.0, 1.0)


@pytest.mark.parametrize(("small", "large"), [(1e-12, 1e12), (1e12, 1e-12)])
@pytest.mark.parametrize("rho", [20, 1e4])
def test_masses_of_different_size(small, large, rho):
    cost, X, xhat = random_problem(15, 8, [1, 2, 4], seed=10)
    solution = solve(cost, X * small, xhat * large, rho, 1.0)
    assert np.all(np.isfinite(solution.marginals))
    assert np.all(solution.marginals > 0)
    assert solution.n_unsolved == 0
    check_residuals(solution, cost, X * small, xhat * large, rho, 1.0, 1e-8)


def test_entries_of_different_size_in_one_fibre():
    generator = np.random.default_rng(11)
    cost, X, xhat = random_problem(15, 10, 5, seed=11)
    X *= 10.0 ** generator.uniform(-12, 12, X.shape)
    xhat *= 10.0 ** generator.uniform(-12, 12, xhat.shape)
    for rho in (10, 300):
        solution = solve(cost, X, xhat, rho, 1.0)
        assert solution.n_unsolved == 0
        check_residuals(solution, cost, X, xhat, rho, 1.0, 1e-9)


@pytest.mark.parametrize("rho", [20, 1000, 1e4])
def test_zeros_in_xhat_and_no_overlap(rho):
    """Mass must come from far away: the paper's form divides zero by zero here."""
    cost = one_identity_cost(6)
    X = np.zeros((6, 4))
    X[:2] = 1.0
    X[2, 1] = 3.0
    xhat = np.zeros((4, 6))
    xhat[:, 3:] = 2.0
    xhat[2] = 0.0
    solution = solve(cost, X, xhat, rho, 1.0)
    assert np.all(np.isfinite(solution.marginals))
    assert np.all(solution.marginals[xhat == 0] == 0)
    assert np.all(solution.marginals[xhat > 0] > 0)
    assert solution.n_unsolved == 0
    assert solution.masses[2] == 0
    assert solution.values[2] == pytest.approx(X[:, 2].sum())
    # Three equal positions send to two equal ones: all six entries of the plan are the same.
    entry = np.exp((-rho - 1 - rho * np.log(3)) / (2 * rho + 1))
    assert solution.masses[0] == pytest.approx(6 * entry, rel=1e-9)


def test_a_cost_beyond_every_exponential():
    """Nothing can be sent: the plan vanishes and all numbers stay finite."""
    cost = 1e6 * one_identity_cost(3)
    X, xhat = np.array([[1.0], [2.0], [0.0]]), np.array([[0.0, 0.0, 5.0]])
    solution = solve(cost, X, xhat, 100.0, 0.1)
    assert np.all(np.isfinite(solution.values))
    np.testing.assert_allclose(solution.marginals, 0.0, atol=1e-300)


def test_empty_fibres_and_full_ones():
    cost, X, xhat = random_problem(70, 3, 70, seed=12)
    X[:, 1] = 0
    solution = solve(cost, X, xhat, 20.0, 1.0)
    assert solution.n_unsolved == 0
    assert np.all(solution.marginals[1] == 0)
    assert solution.values[1] == pytest.approx(xhat[1].sum())
    check_residuals(solution, cost, X, xhat, 20.0, 1.0)


def test_no_fibres_at_all():
    fibres = SparseFibres(np.zeros(1, int), np.zeros(0, int), np.zeros(0), 4)
    solution = FibreTransport(one_identity_cost(4)).solve(fibres, np.zeros((0, 4)))
    assert solution.marginals.shape == (0, 4)


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.floats(0, 3.5),
    st.floats(-1, 1),
    st.floats(-6, 6),
)
def test_random_problems(seed, size, log_rho, log_penalty, log_scale):
    generator = np.random.default_rng(seed)
    n_nonzeros = int(generator.integers(1, size + 1))
    cost, X, xhat = random_problem(size, 2, n_nonzeros, seed)
    X *= 10**log_scale
    rho, penalty = 10**log_rho, 10**log_penalty
    solution = solve(cost, X, xhat, rho, penalty)
    assert solution.n_unsolved == 0
    check_residuals(solution, cost, X, xhat, rho, penalty)
    assert np.all(solution.masses > 0)
    first = 0
    for j in range(2):
        rows = np.flatnonzero(X[:, j])
        log_v = solution.log_v[first : first + rows.size]
        first += rows.size
        size_of_value = penalty * (X[:, j].sum() + xhat[j].sum())
        best = dual_value(log_v, rows, cost, X[:, j], xhat[j], rho, penalty)
        other = dual_value(log_v + 0.1, rows, cost, X[:, j], xhat[j], rho, penalty)
        assert best == pytest.approx(solution.values[j], abs=1e-8 * size_of_value)
        assert other <= solution.values[j] + 1e-8 * size_of_value


# How it is computed.


def test_a_start_at_the_solution_needs_few_evaluations():
    cost, X, xhat = random_problem(40, 30, 6, seed=13)
    for rho in (20.0, 1000.0):
        cold = solve(cost, X, xhat, rho, 1.0)
        warm = solve(cost, X, xhat, rho, 1.0, log_v=cold.log_v)
        np.testing.assert_allclose(warm.marginals, cold.marginals, rtol=1e-9)
        assert warm.evaluations.max() <= 3
        near = solve(cost, X, xhat * 1.01, rho, 1.0, log_v=cold.log_v)
        assert near.n_unsolved == 0
        assert near.evaluations.sum() < solve(cost, X, xhat * 1.01, rho, 1.0).evaluations.sum()


@pytest.mark.parametrize("start", [1e6, -1e6, np.inf, np.nan])
def test_a_useless_start_does_no_harm(start):
    cost, X, xhat = random_problem(12, 5, 4, seed=14)
    log_v = np.zeros(20)
    log_v[::3] = start
    for rho in (20.0, 1000.0):
        cold = solve(cost, X, xhat, rho, 1.0)
        warm = solve(cost, X, xhat, rho, 1.0, log_v=log_v)
        assert warm.n_unsolved == 0
        np.testing.assert_allclose(warm.marginals, cold.marginals, rtol=1e-8)
        assert np.isnan(log_v[0]) == np.isnan(start)


def test_threads_change_nothing():
    cost, X, xhat = random_problem(48, 900, [1, 3, 7, 12], seed=15)
    results = []
    for n_jobs in (1, 2, 3):
        with thread_limit(n_jobs):
            results.append(solve(cost, X, xhat, 20.0, 1.0))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].marginals, other.marginals)
        np.testing.assert_array_equal(results[0].log_v, other.log_v)


def test_the_order_of_fibres_and_positions_changes_nothing():
    cost, X, xhat = random_problem(18, 9, [1, 4], seed=16)
    straight = solve(cost, X, xhat, 30.0, 1.0)
    order = np.random.default_rng(0).permutation(18)
    turned = solve(cost[np.ix_(order, order)], X[order][:, ::-1], xhat[::-1, order], 30.0, 1.0)
    np.testing.assert_allclose(turned.marginals[::-1], straight.marginals[:, order], rtol=1e-8)


@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e12])
def test_single_precision_is_the_solution_that_it_can_hold(unit):
    cost, X, xhat = random_problem(33, 40, [1, 2, 6, 20], seed=17)
    X, xhat = X * unit, xhat * unit
    single = solve(cost, X.astype(np.float32), xhat.astype(np.float32), 20.0, 1.0)
    values = X.astype(np.float32).astype(float)
    double = solve(cost, values, xhat.astype(np.float32).astype(float), 20.0, 1.0)
    assert single.marginals.dtype == np.float32
    assert single.n_fallback == single.n_unsolved == 0
    assert single.residuals.max() <= SINGLE_TOLERANCE
    np.testing.assert_allclose(single.marginals, double.marginals, rtol=5e-6)
    np.testing.assert_allclose(single.masses, double.masses, rtol=2e-6)


def test_single_precision_is_kept_where_steps_in_it_fail():
    """Models this small have no inverse in float32: the careful steps are made in float64."""
    cost, X, xhat = random_problem(20, 12, [2, 5], seed=19)
    tiny = (xhat * 1e-32).astype(np.float32)
    single = solve(cost, X, tiny, 20.0, 1.0)
    double = solve(cost, X, tiny.astype(float), 20.0, 1.0)
    assert single.marginals.dtype == np.float32
    assert single.n_unsolved == 0
    np.testing.assert_array_equal(single.log_v, double.log_v)
    np.testing.assert_array_equal(single.marginals, double.marginals.astype(np.float32))


def test_sparse_input_and_arrays_that_are_not_contiguous():
    cost, X, xhat = random_problem(10, 6, 3, seed=18)
    straight = solve(cost, X, xhat, 20.0, 1.0)
    np.testing.assert_array_equal(
        solve(cost, coo_array(X), np.asfortranarray(xhat), 20.0, 1.0).marginals, straight.marginals
    )


def test_memory_of_the_kernel_matrices():
    assert FibreTransport(one_identity_cost(32)).nbytes == 32 * 32 * 20
    assert FibreTransport(one_identity_cost(32), epsilon=1e-3).nbytes == 32 * 32 * 8


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0, 1], [1.0, 2.0], 3), "end with the number of rows, 2"),
        (([0, 2, 1, 2], [0, 1], [1.0, 2.0], 3), "never fall"),
        (([0, 2], [0, 1], [1.0], 3), "2 rows and 1 values"),
        (([0, 2], [0, 3], [1.0, 2.0], 3), "outside 0..2"),
        (([0, 2], [0, 1], [1.0, 0.0], 3), "nonzero 1 is 0.0"),
        (([0, 2], [0, 1], [1.0, np.nan], 3), "nonzero 1 is nan"),
    ],
)
def test_bad_fibres_are_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        SparseFibres(*map(np.array, arguments[:3]), arguments[3])


def test_fibres_of_floats_are_refused():
    with pytest.raises(InvalidTypeError, match="rows must be a vector of integers"):
        SparseFibres(np.array([0, 1]), np.array([0.5]), np.array([1.0]), 3)


def test_bad_arguments_are_refused():
    cost, X, xhat = random_problem(5, 3, 2)
    transport = FibreTransport(cost)
    fibres = fibres_of(X)
    with pytest.raises(InvalidInputError, match=r"xhat has the shape \(5, 3\)"):
        transport.solve(fibres, xhat.T)
    bad = xhat.copy()
    bad[1, 2] = np.nan
    with pytest.raises(InvalidInputError, match=r"xhat is nan at \(1, 2\)"):
        transport.solve(fibres, bad)
    with pytest.raises(InvalidInputError, match="epsilon='small' must be a finite number"):
        FibreTransport(cost, epsilon="small")
    with pytest.raises(InvalidInputError, match="log_v has the shape"):
        transport.solve(fibres, xhat, log_v=np.zeros(2))
    with pytest.raises(InvalidInputError, match="tol=0"):
        transport.solve(fibres, xhat, tol=0)
    with pytest.raises(InvalidInputError, match="n_steps=0"):
        transport.sinkhorn(fibres, xhat, n_steps=0)
    with pytest.raises(InvalidInputError, match="the cost has 6"):
        FibreTransport(one_identity_cost(6)).solve(fibres, xhat)
    for name in ("epsilon", "marginal_penalty"):
        for value in (0.0, -1.0, np.inf, np.nan):
            with pytest.raises(InvalidInputError, match=name):
                FibreTransport(cost, **{name: value})
    with pytest.raises(InvalidInputError, match="times epsilon"):
        FibreTransport(cost, epsilon=1e-14)


def sharp_value(plan, cost, x, xhat, epsilon, penalty, sharpness):
    """The objective of a plan, by its definition."""
    reference = np.outer(xhat, x / x.sum())
    entropy = plan * (np.log(plan) - sharpness * np.log(reference) - sharpness)
    value = np.sum(cost * plan + epsilon * entropy) + sharpness * epsilon * xhat.sum()
    for sums, wanted in ((plan.sum(axis=1), xhat), (plan.sum(axis=0), x)):
        value += penalty * np.sum(sums * np.log(sums / wanted) - sums + wanted)
    return value


@pytest.mark.parametrize("n_nonzeros", [1, 4])
@pytest.mark.parametrize(("epsilon", "penalty"), [(0.3, 0.3), (0.5, 0.05), (0.004, 1.0)])
@pytest.mark.parametrize("sharpness", [0.25, 1.0])
def test_sharpness_against_dense_sinkhorn(sharpness, epsilon, penalty, n_nonzeros):
    """The last epsilon is for the careful kernel; Sinkhorn's steps are those of the definition."""
    generator = np.random.default_rng(n_nonzeros)
    cost = np.abs(np.subtract.outer(generator.random(7), generator.random(7)))
    cost = (cost + cost.T) / 2
    np.fill_diagonal(cost, 0.0)
    support = np.sort(generator.choice(7, n_nonzeros, replace=False))
    x, xhat = generator.gamma(1.0, 2.0, n_nonzeros), generator.gamma(1.0, 1.0, 7)
    own = cost[:, support]
    logs = -own / epsilon - 1 + sharpness
    logs += sharpness * (np.log(xhat)[:, None] + np.log(x / x.sum()))
    phi, g = penalty / (penalty + epsilon), np.zeros(n_nonzeros)
    for _ in range(20_000):
        f = phi * (np.log(xhat) - np.logaddexp.reduce(logs + g, axis=1))
        last, g = g, phi * (np.log(x) - np.logaddexp.reduce(logs + f[:, None], axis=0))
        if np.abs(g - last).max() < 1e-13:
            break
    plan = np.exp(logs + f[:, None] + g)
    weights = {"epsilon": epsilon, "marginal_penalty": penalty, "sharpness": sharpness}
    fibres = SparseFibres(np.array([0, n_nonzeros]), support, x, 7)
    found = FibreTransport(cost, **weights).solve(fibres, xhat[None])
    # A step of Sinkhorn's contracts by phi^2: what is left is 1 / (1 - phi^2) times the last one.
    np.testing.assert_allclose(found.marginals[0], plan.sum(axis=1), rtol=1e-8)
    value = sharp_value(plan, own, x, xhat, epsilon, penalty, sharpness)
    np.testing.assert_allclose(found.values[0], value, rtol=1e-9, atol=1e-9)
    for _ in range(5):
        other = plan * np.exp(generator.normal(0.0, 0.01, plan.shape))
        assert sharp_value(other, own, x, xhat, epsilon, penalty, sharpness) >= found.values[0]


def test_sharpness_is_a_number_from_zero_to_one():
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        FibreTransport(1 - np.eye(2), sharpness=1.5)
    x = SparseFibres.from_matrix(np.array([[3.0], [0.0]]))
    with pytest.raises(InvalidInputError, match="no sharpness"):
        FibreTransport(1 - np.eye(2), sharpness=0.5).sinkhorn(x, np.array([[1.0, 2.0]]))
