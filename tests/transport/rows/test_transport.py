"""The transport of rows: plans, potentials, averages and their derivatives against twins."""

import numpy as np
import pytest

from polyad.core.threads import thread_limit
from polyad.transport.rows import Cost, RowTransport
from tests.transport.rows import twins

COSH = Cost(lambda x, y: np.cosh(2 * (x - y)), lambda x, y: 2 * np.sinh(2 * (x - y)))


def problem(d=3, n=12, m=5, seed=0, zero=False):
    generator = np.random.default_rng(seed)
    x = generator.random((d, n))
    a, b = generator.dirichlet(np.ones(n), size=d), generator.dirichlet(np.ones(m), size=d)
    if zero:
        a[:, 1], b[:, 2] = 0, 0
        a, b = a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)
    return x, np.linspace(0, 1, m)[None], a, b


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("cost", [None, COSH], ids=["squared", "own"])
@pytest.mark.parametrize("zero", [False, True], ids=["positive", "zero"])
def test_averages_are_those_of_the_twin(epsilon, cost, zero):
    x, y, a, b = problem(zero=zero)
    transport = RowTransport(x, y, a, b, epsilon=epsilon, cost=cost)
    solution = transport.solve()
    assert solution.converged.all()
    generator = np.random.default_rng(1)
    q, z = generator.random((3, 5)), generator.random((3, 12))
    T = transport.average_targets(solution.potentials, q)
    S = transport.average_values(solution.potentials, z)
    for row in range(3):
        # A weight of 1e-100 is the limit of none.
        P = twins.plan(
            *(x[row], y[0], np.maximum(a[row], 1e-100), np.maximum(b[row], 1e-100), epsilon),
            cost=None if cost is None else cost.value,
        )
        np.testing.assert_allclose(T[row], P @ q[row] / P.sum(1), rtol=1e-7)
        np.testing.assert_allclose(S[row], P.T @ z[row] / P.sum(0), rtol=1e-7)


@pytest.mark.parametrize("of_targets", [True, False])
@pytest.mark.parametrize("cost", [None, COSH], ids=["squared", "own"])
def test_gradients_are_those_of_differences(of_targets, cost):
    x, y, a, b = problem(d=2, n=7, m=4)
    generator = np.random.default_rng(2)
    numbers = generator.normal(size=(2, 4 if of_targets else 7))
    G = generator.normal(size=(2, 7 if of_targets else 4))

    def solve(x, a, b):
        a, b = a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)
        transport = RowTransport(x, y, a, b, epsilon=0.05, cost=cost)
        return transport, transport.solve(tol=1e-13).potentials

    def function(x, a, b, numbers):
        transport, g = solve(x, a, b)
        average = transport.average_targets if of_targets else transport.average_values
        return (average(g, numbers) * G).sum()

    transport, g = solve(x, a, b)
    pull = transport.pull_targets if of_targets else transport.pull_values
    found = pull(g, numbers, G)
    arguments = (x, a, b, numbers)
    # The weights of the function are divided by their sum.
    by_a = found.a - (a * found.a).sum(1, keepdims=True)
    by_b = found.b - (b * found.b).sum(1, keepdims=True)
    for which, gradient in enumerate((found.x, by_a, by_b, found.numbers)):
        expected = twins.numerical_gradient(function, arguments, which)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("of_targets", [True, False])
def test_gradients_with_zero_weights_are_limits(of_targets):
    x, y, a, b = problem(zero=True)
    generator = np.random.default_rng(3)
    numbers = generator.normal(size=(3, 5 if of_targets else 12))
    G = generator.normal(size=(3, 12 if of_targets else 5))
    found = []
    for least in (0.0, 1e-13):
        shares = [w + least for w in (a, b)]
        shares = [w / w.sum(1, keepdims=True) for w in shares]
        transport = RowTransport(x, y, *shares, epsilon=0.05)
        g = transport.solve(tol=1e-12).potentials
        pull = transport.pull_targets if of_targets else transport.pull_values
        gradients = pull(g, numbers, G)
        found.append(
            [
                gradients.x,
                gradients.a - (a * gradients.a).sum(1, keepdims=True),
                gradients.b - (b * gradients.b).sum(1, keepdims=True),
                gradients.numbers,
            ]
        )
    for exact, limit in zip(*found, strict=True):
        np.testing.assert_allclose(exact, limit, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["normal", "skewed", "tied"])
@pytest.mark.parametrize("weights", ["uniform", "uneven"])
@pytest.mark.parametrize("epsilon", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_hard_problems_are_solved(kind, weights, epsilon):
    generator = np.random.default_rng(4)
    d, n, m = 20, 200, 12
    x = {
        "normal": generator.normal(size=(d, n)),
        "skewed": generator.lognormal(0, 2, size=(d, n)),
        "tied": generator.integers(0, 3, size=(d, n)).astype(float),
    }[kind]
    b = np.ones((1, m)) / m if weights == "uniform" else generator.dirichlet(np.full(m, 0.5), d)
    transport = RowTransport(
        twins.squash(x), np.linspace(0, 1, m)[None], np.ones((1, n)) / n, b, epsilon=epsilon
    )
    solution = transport.solve()
    assert solution.error.max() <= 1e-9
    G = generator.normal(size=(d, n))
    gradients = transport.pull_targets(solution.potentials, np.arange(m)[None], G)
    assert np.isfinite(np.concatenate([gradients.x, gradients.b], axis=1)).all()


def test_rows_that_fail_are_solved_again():
    """One of these rows does not converge when epsilon is lowered by a factor of four at a time."""
    generator = np.random.default_rng(1)
    x = generator.integers(0, 3, size=(60, 256)).astype(float)
    b = generator.dirichlet(np.full(16, 0.5), size=60)
    y, a = np.linspace(0, 1, 16)[None], np.full((1, 256), 1 / 256)
    transport = RowTransport(twins.squash(x), y, a, b, epsilon=1e-5)
    once = transport._solve(None, 1e-9, 500)
    assert not once.converged.all()
    solution = transport.solve()
    assert solution.converged.all()
    fine = once.converged
    np.testing.assert_array_equal(solution.potentials[fine], once.potentials[fine])


@pytest.mark.parametrize("least", [1e-12, 1e-20, 1e-100])
@pytest.mark.parametrize("epsilon", [0.1, 1e-2, 1e-3])
def test_tiny_weights(least, epsilon):
    x, y, a, _ = problem(n=60, m=6)
    b = np.array([[0.4, least, 0.2, 0.4, least, least]])
    solution = RowTransport(x, y, a, b / b.sum(), epsilon=epsilon).solve()
    assert solution.converged.all()


@pytest.mark.parametrize("least", [1e-20, 1e-50, 1e-99])
@pytest.mark.parametrize("epsilon", [1e-2, 1e-3, 1e-4])
def test_traces_are_limits(least, epsilon):
    """Tiny weights get the averages and derivatives of small ones, where these are computed."""
    x, y, a, _ = problem(d=6, n=200, m=3)
    x[3:] = np.round(x[3:])
    small, tiny = ([[0.3, 0.7 - w, w], [0.5, w, 0.5 - w]] for w in (1e-11, least))
    results = []
    for b in (small, tiny):
        transport = RowTransport(x, y, a, np.array(b * 3), epsilon=epsilon)
        solution = transport.solve()
        assert solution.converged.all()
        g = solution.potentials
        pulled = transport.pull_targets(g, y, x)
        results.append(
            (transport.average_targets(g, y), transport.average_values(g, x), pulled.x, pulled.b)
        )
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6 * np.abs(one).max())


def test_a_warm_start_saves_steps():
    x, y, a, b = problem(n=100)
    first = RowTransport(x, y, a, b, epsilon=0.01).solve()
    again = RowTransport(x, y, a, b, epsilon=0.01).solve(start=first.potentials)
    assert again.n_iter.max() == 0
    near = RowTransport(x + 1e-4, y, a, b, epsilon=0.01)
    warm = near.solve(start=first.potentials)
    assert warm.n_iter.max() <= 3
    np.testing.assert_allclose(warm.potentials, near.solve().potentials, atol=1e-8)


def test_a_bad_start_does_no_harm():
    x, y, a, b = problem(n=100)
    transport = RowTransport(x, y, a, b, epsilon=1e-3)
    start = np.random.default_rng(0).normal(size=(3, 5)) * 100
    solution = transport.solve(start=start)
    assert solution.converged.all()
    np.testing.assert_allclose(solution.potentials, transport.solve().potentials, atol=1e-8)


def test_an_error_that_is_too_large_is_told():
    x, y, a, b = problem(n=100)
    solution = RowTransport(x, y, a, b, epsilon=1e-3).solve(max_iter=0)
    assert not solution.converged.any()


def test_numbers_do_not_depend_on_threads():
    x, y, a, b = problem(d=300, n=100, m=8)
    results = []
    for n_jobs in (1, 3):
        with thread_limit(n_jobs):
            transport = RowTransport(x, y, a, b, epsilon=0.01)
            g = transport.solve().potentials
            pulled = transport.pull_targets(g, y, x)
            results.append((g, transport.average_targets(g, y), pulled.x, pulled.b))
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)
