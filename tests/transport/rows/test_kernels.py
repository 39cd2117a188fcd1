"""Kernels against their twins: the plan, the elimination without subtraction, the quadrature."""

import numpy as np
import pytest

import polyad.transport.rows.transport as transport_module
from polyad.core.threads import thread_limit
from polyad.transport.rows import RowTransport
from polyad.transport.rows.kernels import (
    couple,
    eliminate,
    evaluate,
    gibbs,
    squared_table,
    substitute,
)
from polyad.transport.rows.newton import N_BINS, fill_bins
from polyad.transport.rows.quadrature import NODES, count_nodes, gauss_quadrature, reduce_block
from tests.transport.rows import twins

# Parts of kernels run here as they are written: what only a test compiles would take its seconds.


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 2), (9, 5), (20, 12)])
def test_plan_sums_and_couplings(n, m):
    generator = np.random.default_rng(0)
    x, y, g = generator.random(n), np.linspace(0, 1, m), generator.normal(size=m) / 20
    a, b = generator.dirichlet(np.ones(n)), generator.dirichlet(np.ones(m))
    scale, epsilon = np.exp(generator.normal(size=m)), 0.1
    table, K, W = (np.empty((m, n)) for _ in range(3))
    top, shares, columns, couplings = np.empty(n), np.empty(n), np.empty(m), np.zeros((m, m))
    squared_table(x, y, table)
    gibbs(table, np.log(b), np.ones(m), g, 1 / epsilon, K, top)
    np.testing.assert_allclose(K.max(axis=0), 1.0)
    error, value = evaluate(K, scale, a, b, shares, columns)
    couple(K, scale, 1 / np.sqrt(a), shares, W, couplings)

    C = (x[:, None] - y) ** 2
    P = b * scale * np.exp((g - C) / epsilon)
    sums = P.sum(axis=1, keepdims=True)
    P *= a[:, None] / sums
    np.testing.assert_allclose(columns, P.sum(0))
    np.testing.assert_allclose(error, (np.abs(P.sum(0) - b) / b).max())
    start = b * np.exp((g - C) / epsilon)
    expected = b @ np.log(scale) - a @ np.log(sums[:, 0] / start.max(axis=1))
    np.testing.assert_allclose(value, expected)
    upper = np.triu_indices(m, 1)
    np.testing.assert_allclose(couplings[upper], (P.T @ (P / a[:, None]))[upper])


@pytest.mark.parametrize("m", [1, 2, 9])
def test_elimination_solves_laplacians(m):
    generator = np.random.default_rng(1)
    W = np.triu(generator.random((m, m)), 1)
    ground = generator.random(m)
    L = np.diag((W + W.T).sum(1) + ground) - W - W.T
    factor, pivots, unknowns = np.zeros((m, m)), np.empty(m), generator.normal(size=m)
    expected = np.linalg.solve(L, unknowns)
    eliminate(W, ground.copy(), factor, pivots)
    substitute(factor, pivots, unknowns)
    np.testing.assert_allclose(unknowns, expected, rtol=1e-10)


def test_elimination_keeps_weak_couplings():
    """A chain whose links differ by a factor of 1e30: LU would call it singular."""
    weights = np.array([1.0, 1e-30, 1e-10])
    W = np.diag(weights, 1)
    factor, pivots = np.zeros((4, 4)), np.empty(4)
    eliminate(W, np.zeros(4), factor, pivots)
    flow = np.array([1.0, 1e-30, 1e-10])
    unknowns = np.append(flow, 0) - np.append(0, flow)
    substitute(factor, pivots, unknowns)
    np.testing.assert_allclose(unknowns[2] - unknowns[3], 1.0)
    np.testing.assert_allclose(unknowns[0] - unknowns[1], 1.0)


def test_parts_without_links_are_left_alone():
    W = np.zeros((3, 3))
    W[0, 1] = 2.0
    factor, pivots, unknowns = np.zeros((3, 3)), np.empty(3), np.array([1.0, -1.0, 0.0])
    eliminate(W, np.zeros(3), factor, pivots)
    substitute(factor, pivots, unknowns)
    np.testing.assert_allclose(unknowns, [0.5, 0.0, 0.0])


def test_bins_keep_mass_and_mean():
    generator = np.random.default_rng(2)
    x, a = generator.random(500), generator.dirichlet(np.ones(500))
    bins = np.empty((2, N_BINS))
    fill_bins(x, a, x.min(), x.max(), bins)
    np.testing.assert_allclose([bins[1].sum(), bins[1] @ bins[0]], [1.0, a @ x])


@pytest.mark.parametrize("n", [1, 5, NODES, 40, 500])
def test_quadrature_is_exact_for_polynomials(n):
    generator = np.random.default_rng(3)
    x, a = generator.normal(size=n), generator.random(n)
    nodes, masses = np.empty(NODES), np.empty(NODES)
    size = gauss_quadrature(x, a, nodes, masses)
    assert size == min(n, NODES)
    assert (masses[:size] > 0).all()
    t, s = x / np.abs(x).max(), nodes[:size] / np.abs(x).max()
    for degree in range(2 * NODES):
        np.testing.assert_allclose(masses[:size] @ s**degree, a @ t**degree, rtol=1e-9, atol=1e-11)


def test_quadrature_of_few_different_values():
    x = np.repeat([1.0, 2.0, 5.0], 20)
    nodes, masses = np.empty(NODES), np.empty(NODES)
    assert gauss_quadrature(x, np.ones(60), nodes, masses) == 3
    np.testing.assert_allclose(nodes[:3], [1, 2, 5])
    np.testing.assert_allclose(masses[:3], 20)
    assert gauss_quadrature(np.full(60, 2.0), np.ones(60), nodes, masses) == 1


@pytest.mark.parametrize("kind", ["even", "skewed", "two heaps"])
def test_nodes_keep_moments_and_fit_into_their_room(kind):
    generator = np.random.default_rng(4)
    x = {
        "even": generator.random((3, 400)),
        "skewed": generator.random((3, 400)) ** 6,
        "two heaps": generator.integers(0, 2, (3, 400)) + 1e-3 * generator.random((3, 400)),
    }[kind]
    a = generator.random((1, 400))
    a[:, ::7] = 0
    a /= a.sum()
    most = count_nodes(x, 0.01, 0.1)
    nodes, masses = np.full((3, most), np.nan), np.full((3, most), np.nan)
    reduce_block(x, a, 0.01, 0.1, nodes, masses, 0, 3)
    for degree in range(4):
        np.testing.assert_allclose((masses * nodes**degree).sum(1), (a * x**degree).sum(1))


@pytest.mark.parametrize("kind", ["normal", "skewed", "tied"])
@pytest.mark.parametrize("epsilon", [0.1, 0.01, 1e-3, 1e-5])
def test_many_targets_are_solved_as_few_are(kind, epsilon, monkeypatch):
    """Neither quadrature nor sorting changes the solution or the gradients."""
    generator = np.random.default_rng(5)
    x = twins.squash(
        {
            "normal": generator.normal(size=(2, 150)),
            "skewed": generator.lognormal(0, 1, size=(2, 150)),
            "tied": generator.integers(0, 3, size=(2, 150)).astype(float),
        }[kind]
    )
    y, a = np.linspace(0, 1, 260)[None], generator.dirichlet(np.ones(150), 2)
    b = generator.dirichlet(np.ones(260))[None]
    transport = RowTransport(x, y, a, b, epsilon=epsilon)
    if kind == "normal":
        assert (transport._nodes() is not None) == (epsilon >= 0.01)
    G, q = generator.normal(size=(2, 150)), np.sort(generator.normal(size=(1, 260)))
    results = []
    for few in (64, 1000):
        monkeypatch.setattr(transport_module, "_FEW_TARGETS", few)
        solution = transport.solve()
        assert solution.error.max() <= 1e-9
        one = transport.pull_targets(solution.potentials, q, G)
        other = transport.pull_values(solution.potentials, x, np.repeat(q, 2, axis=0))
        T = transport.average_targets(solution.potentials, q)
        results.append((T, one.x, one.a, one.b, one.numbers, other.x, other.a, other.b))
    for reduced, full in zip(*results, strict=True):
        atol = 1e-8 + 1e-6 * np.abs(full).max()
        np.testing.assert_allclose(reduced, full, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("epsilon", [0.1, 1e-4])
def test_few_values_and_many_targets(n, epsilon):
    x = np.random.default_rng(6).random((2, n))
    x[1] = 0.4
    y, a, b = np.linspace(0, 1, 90)[None], np.full((1, n), 1 / n), np.full((1, 90), 1 / 90)
    transport = RowTransport(x, y, a, b, epsilon=epsilon)
    solution = transport.solve()
    assert solution.error.max() <= 1e-9
    np.testing.assert_allclose(transport.average_targets(solution.potentials, y)[1], 0.5)
    gradients = transport.pull_targets(solution.potentials, y, x)
    assert np.isfinite(gradients.x).all()


def test_many_targets_do_not_depend_on_threads():
    x = np.random.default_rng(7).random((40, 100))
    y, a, b = np.linspace(0, 1, 200)[None], np.full((1, 100), 0.01), np.full((1, 200), 0.005)
    results = []
    for n_jobs in (1, 3):
        with thread_limit(n_jobs):
            transport = RowTransport(x, y, a, b, epsilon=0.01)
            g = transport.solve().potentials
            results.append((g, transport.pull_targets(g, y, x).x))
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)
