"""Long rows: nodes in place of values and targets, against the transport that needs none."""

import tracemalloc

import numpy as np
import pytest

from polyad.exceptions import InvalidInputError
from polyad.soft import Cost, soft_rank, soft_sort, vjp
from polyad.transport.rows import LongTransport, RowTransport
from polyad.transport.rows.boxes import Interpolation, gauss_nodes, make_boxes

rng = np.random.default_rng(0)
SPREAD = rng.random(600)
VALUES = {
    "spread": SPREAD,
    "clumps": np.where(np.arange(600) < 200, 0.1, 0.85) + 0.01 * SPREAD,
    "ties": np.floor(8 * SPREAD**3) / 8,
}


@pytest.mark.parametrize("x", VALUES.values(), ids=VALUES)
def test_nodes_give_what_all_points_give(x):
    """Both sides with weights, some of them zero."""
    n, m, epsilon = 600, 650, 0.03
    a, b = rng.random((2, n)), rng.random((1, m))
    a[0, ::7], b[0, ::5] = 0.0, 0.0
    given = {
        "x": np.stack([x, x[::-1] ** 2]),
        "y": np.linspace(0, 1, m)[None],
        "a": a / a.sum(axis=1, keepdims=True),
        "b": b / b.sum(),
    }
    plain, long = RowTransport(**given, epsilon=epsilon), LongTransport(**given, epsilon=epsilon)
    exact, found = plain.solve(tol=1e-12), long.solve()
    assert found.converged.all()
    np.testing.assert_allclose(found.potentials, exact.potentials, atol=1e-10)
    q, z = np.sort(rng.normal(size=(1, m))), rng.normal(size=(2, n))
    for name, numbers, size in (("targets", q, n), ("values", z, m)):
        means = [
            getattr(way, f"average_{name}")(own.potentials, numbers)
            for way, own in ((plain, exact), (long, found))
        ]
        np.testing.assert_allclose(means[1], means[0], atol=1e-9)
        G = rng.normal(size=(2, size))
        first, second = (
            getattr(way, f"pull_{name}")(own.potentials, numbers, G)
            for way, own in ((plain, exact), (long, found))
        )
        for part in ("x", "a", "b", "numbers"):
            exact_part = getattr(first, part)
            scale = np.abs(exact_part).max()
            np.testing.assert_allclose(getattr(second, part), exact_part, atol=1e-7 * scale)


def test_derivatives_of_targets_with_a_gap():
    """Without mass in the middle, values that are close go to targets that are far apart."""
    n = m = 200
    weights = np.where(np.abs(np.arange(m) - m / 2) > 75, 1.0, 0.0)[None]
    rest = {"y": np.linspace(0, 1, m)[None], "a": np.full((1, n), 1 / n)}
    rest |= {"b": weights / weights.sum(), "epsilon": 0.03}
    x, q, (G, way) = SPREAD[None, :n], np.sort(rng.normal(size=(1, m))), rng.normal(size=(2, 1, n))

    def value(x):
        transport = RowTransport(x, **rest)
        return (transport.average_targets(transport.solve(tol=1e-12).potentials, q) * G).sum()

    slope = (value(x + 1e-5 * way) - value(x - 1e-5 * way)) / 2e-5
    for kind in (RowTransport, LongTransport):
        transport = kind(x, **rest)
        by_x = transport.pull_targets(transport.solve().potentials, q, G).x
        np.testing.assert_allclose((by_x * way).sum(), slope, rtol=1e-5)


def test_little_entropy_needs_all_points():
    x = {"x": SPREAD[None], "y": np.linspace(0, 1, 80)[None]}
    even = {"a": np.full((1, 600), 1 / 600), "b": np.full((1, 80), 1 / 80)}
    plain, long = (kind(**x, **even, epsilon=1e-6) for kind in (RowTransport, LongTransport))
    np.testing.assert_allclose(long.solve().potentials, plain.solve().potentials, atol=1e-15)


def test_quadratures_and_interpolation_are_exact_for_polynomials():
    points, weights = np.sort(SPREAD), rng.random(600)
    even = np.full(600, 1 / 600)
    boxes = make_boxes(points, even, points, even, 0.05)
    assert 1 < boxes.starts.size < 20
    nodes, masses = gauss_nodes(boxes, weights)
    assert masses.min() > 0.0
    for degree in (0, 1, 9, 19):
        exact = (weights / weights.sum()) @ points**degree
        np.testing.assert_allclose(masses @ nodes**degree, exact, rtol=1e-12)
    signed = rng.normal(size=600)
    interpolation = Interpolation(boxes)
    for degree in (0, 1, 15):
        found = interpolation.spread(signed)[:, 0] @ interpolation.nodes**degree
        np.testing.assert_allclose(found, signed @ points**degree, atol=1e-10)


def test_a_long_row_takes_memory_for_its_values_alone():
    """With as many targets as values, a table of the plan would be 0.8 GB."""
    n = 10_000
    x = rng.lognormal(size=n)
    tracemalloc.start()
    try:
        ranks, pullback = vjp(soft_rank, x)
        gradient = pullback(ranks / n).x
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.05 * 8 * n**2
    order = np.argsort(x)
    assert (np.diff(ranks[order]) >= -1e-9 * n).all()
    np.testing.assert_allclose(ranks.mean(), (n + 1) / 2, rtol=1e-9)
    way = rng.normal(size=n)
    ahead, behind = (soft_rank(x + step * way) for step in (1e-5, -1e-5))
    slope = (ahead**2 - behind**2).sum() / (4e-5 * n)
    np.testing.assert_allclose(gradient @ way, slope, rtol=1e-6)
    np.testing.assert_allclose(soft_sort(x).mean(), x.mean(), rtol=1e-9)


def test_what_would_need_a_table_is_refused():
    x = np.zeros(20_000) + np.arange(20_000)
    with pytest.raises(InvalidInputError, match=r"Increase epsilon.*n_targets"):
        soft_rank(x, epsilon=1e-9)
    for settings in ({"n_iter": 3}, {"cost": Cost(lambda x, y: (x - y) ** 2, lambda x, y: x - y)}):
        with pytest.raises(InvalidInputError, match=r"400000000 entries.*n_targets"):
            soft_rank(x, **settings)
