"""Every way to apply a Gibbs kernel is the dense product."""

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy.special import logsumexp

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport import (
    ConvolutionGeometry,
    MatrixGeometry,
    SeparableGeometry,
    convolution,
    graph_cost,
    grid_cost,
    grid_geometry,
    grids,
    separable,
    sinkhorn,
    wasserstein_distance,
)

EPSILONS = (1e-3, 0.02, 1.0, 100.0)


def points(shape, weights=None):
    axes = [np.linspace(0, 1, n) if n > 1 else np.zeros(1) for n in shape]
    grid = np.stack([own.ravel() for own in np.meshgrid(*axes, indexing="ij")], axis=1)
    return grid * (np.ones(len(shape)) if weights is None else weights)


def dense_cost(shape, metric, weights=None):
    """Return the cost of all pairs of points of a grid, from their coordinates."""
    at = points(shape, weights)
    apart = np.abs(at[:, None] - at[None])
    if metric == "cityblock":
        return apart.sum(axis=2)
    squares = (apart**2).sum(axis=2)
    return squares if metric == "sqeuclidean" else np.sqrt(squares)


def products(cost, epsilon, values, logs):
    """Return the two products with the dense kernel."""
    flat, flat_logs = (own.reshape(len(own), -1) for own in (values, logs))
    plain = flat @ np.exp(-cost / epsilon)
    of_logs = logsumexp(flat_logs[:, None, :] - cost / epsilon, axis=2)
    return plain.reshape(values.shape), of_logs.reshape(logs.shape)


def assert_is_dense(geometry, cost, rng):
    values = rng.random((3, *geometry.shape))
    logs = 50 * rng.normal(size=values.shape)
    logs[0, ..., 0] = -np.inf
    plain, of_logs = products(cost, geometry.epsilon, values, logs)
    np.testing.assert_allclose(geometry.cost_matrix(), cost, atol=1e-13)
    np.testing.assert_allclose(geometry.apply(values), plain, rtol=1e-10)
    np.testing.assert_allclose(geometry.log_apply(logs), of_logs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("metric", grids.METRICS)
@pytest.mark.parametrize("shape", [(7,), (6, 5), (4, 1, 3)])
def test_grids(shape, metric, epsilon):
    rng = np.random.default_rng(0)
    weights = [1.0, 0.5, 2.0][: len(shape)]
    cost = dense_cost(shape, metric, weights)
    geometry = grid_geometry(shape, epsilon=epsilon, metric=metric, axis_weights=weights)
    assert_is_dense(geometry, cost, rng)
    if metric == "euclidean" and shape == (6, 5):
        steps = [1.0 / 5, 0.5 / 4]
        large = ConvolutionGeometry(shape, epsilon=epsilon, steps=steps)
        assert_is_dense(large, cost, rng)
        logs = 50 * rng.normal(size=(2, *shape))
        np.testing.assert_allclose(
            large._log_apply(logs), products(cost, epsilon, logs, logs)[1], atol=1e-10
        )


@pytest.mark.parametrize("metric", grids.METRICS)
def test_round_grids_do_not_know_where_they_begin(metric):
    rng = np.random.default_rng(0)
    values = rng.random((2, 6, 5))
    for epsilon, geometry in itertools.product(
        (0.01, 0.3),
        (
            lambda e: grid_geometry((6, 5), epsilon=e, metric=metric, periodic=True),
            lambda e: ConvolutionGeometry((6, 5), epsilon=e, steps=(1 / 6, 1 / 5), periodic=True),
        ),
    ):
        own = geometry(epsilon)
        moved = own.apply(np.roll(values, (2, 3), axis=(1, 2)))
        np.testing.assert_allclose(
            moved, np.roll(own.apply(values), (2, 3), axis=(1, 2)), rtol=1e-9
        )
        assert_is_dense(own, own.cost_matrix(), rng)
    first = grid_geometry((6, 5), epsilon=1.0, metric=metric, periodic=True).cost_matrix()[0]
    assert first[5 * 5] == first[5]  # one step back is as far as one ahead


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("shape", [(9, 8), (6, 40), (7, 4, 5)])
def test_the_direct_sum_and_the_transforms_are_the_dense_product(shape, periodic, monkeypatch):
    values = np.exp(np.random.default_rng(0).uniform(0, 5, (3, *shape)))
    steps = [1 / (n - 1) for n in shape]
    # Direct sums, matrices of frequencies, fast transforms; those of (6, 40) are cut at 0.01.
    for epsilon, allowed, size in itertools.product((0.01, 0.2), (-np.inf, np.inf), (0, 1 << 20)):
        monkeypatch.setattr(convolution, "_FFT_RANGE", allowed)
        monkeypatch.setattr(convolution, "_MATRIX_SIZE", size)
        geometry = ConvolutionGeometry(shape, epsilon=epsilon, steps=steps, periodic=periodic)
        expected, _ = products(geometry.cost_matrix(), epsilon, values, values)
        np.testing.assert_allclose(geometry.apply(values), expected, rtol=1e-10)


def test_the_error_of_transforms_at_the_end_of_their_range():
    """One cell of e**12 times the others, which is as much as transforms are used for."""
    values = np.ones((1, 30, 30))
    values[0, 3, 27] = np.exp(convolution._FFT_RANGE)
    for epsilon in (0.005, 0.02, 0.1):
        geometry = ConvolutionGeometry((30, 30), epsilon=epsilon, steps=(1 / 29, 1 / 29))
        kernel = np.exp(-geometry.cost_matrix() / epsilon)
        expected = (values.reshape(1, -1) @ kernel).reshape(values.shape)
        np.testing.assert_allclose(geometry.apply(values), expected, rtol=1e-10)


def test_terms_that_are_left_out_are_rounding(monkeypatch):
    monkeypatch.setattr(convolution, "_FFT_RANGE", -np.inf)
    geometry = ConvolutionGeometry((40, 5), epsilon=0.01, steps=(1 / 39, 1 / 4))
    assert len(list(geometry._offsets(0.01 * (1 + 37)))) < 40
    values = np.random.default_rng(0).uniform(1, 2, (2, 40, 5))
    expected, _ = products(geometry.cost_matrix(), 0.01, values, values)
    np.testing.assert_allclose(geometry.apply(values), expected, rtol=1e-13)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_filter_of_a_long_line_is_its_matrix(epsilon, monkeypatch):
    monkeypatch.setattr(separable, "_FILTER_POINTS", 10)
    rng = np.random.default_rng(0)
    for shape, metric in (((30,), "euclidean"), ((12, 3), "cityblock")):
        geometry = grid_geometry(shape, epsilon=epsilon, metric=metric)
        assert isinstance(geometry._axes[0], separable._FilterAxis)
        assert_is_dense(geometry, dense_cost(shape, metric), rng)


def test_any_matrix_and_a_graph():
    ring = np.roll(np.eye(8), 1, axis=1)
    cost = graph_cost(ring)
    np.testing.assert_allclose(cost[0], [0, 1, 2, 3, 4, 3, 2, 1])
    assert_is_dense(MatrixGeometry(cost, (4, 2), epsilon=0.5), cost, np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="no way from node 0 to node 2"):
        graph_cost([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    with pytest.raises(InvalidInputError, match="has 6"):
        MatrixGeometry(cost, (3, 2), epsilon=0.5)


def test_choice():
    assert isinstance(grid_geometry((100, 100), epsilon=0.01), SeparableGeometry)
    assert isinstance(grid_geometry((20, 20), epsilon=0.01, metric="euclidean"), MatrixGeometry)
    large = grid_geometry((100, 100), epsilon=0.01, metric="euclidean")
    assert isinstance(large, ConvolutionGeometry)
    assert isinstance(grid_geometry((100, 1), epsilon=0.01, metric="euclidean"), SeparableGeometry)


def test_single_precision():
    geometry = grid_geometry((6, 5), epsilon=0.01)
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(2, 6, 5))
    found = geometry.log_apply(logs.astype(np.float32))
    assert found.dtype == np.float32
    assert not geometry.is_plain(found)
    assert geometry.is_plain(logs)
    np.testing.assert_allclose(found, geometry.log_apply(logs), atol=1e-4)


def test_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(0)
    values = rng.random((2, 9, 8))
    for geometry in (
        grid_geometry((9, 8), epsilon=0.001),
        ConvolutionGeometry((9, 8), epsilon=0.5, steps=(0.1, 0.1)),
        ConvolutionGeometry((9, 8), epsilon=0.01, steps=(0.1, 0.1)),
    ):
        for function in (geometry.apply, geometry.log_apply):
            found = function(torch.asarray(values))
            assert isinstance(found, torch.Tensor)
            np.testing.assert_allclose(found.numpy(), function(values), rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": True}, "epsilon=True"),
        ({"epsilon": 1.0, "metric": "manhattan"}, "metric='manhattan'"),
        ({"epsilon": 1.0, "axis_weights": [1.0]}, "each of 2 axes"),
        ({"epsilon": 1.0, "axis_weights": 3}, "each of 2 axes"),
        ({"epsilon": 1.0, "axis_weights": "ab"}, "each of 2 axes"),
        ({"epsilon": 1.0, "axis_weights": (1.0, np.nan)}, "each of 2 axes"),
        ({"epsilon": 1.0, "axis_weights": (1e308, 1e308), "metric": "cityblock"}, "1e[+]100"),
        ({"epsilon": 1e-13}, "Increase epsilon"),
        ({"epsilon": 1e-320, "metric": "euclidean"}, "Increase epsilon"),
    ],
)
def test_bad_geometries_are_refused(options, told):
    with pytest.raises(InvalidInputError, match=told):
        grid_geometry((4, 3), **options)
    with pytest.raises(InvalidInputError, match="no grid"):
        grid_geometry((), epsilon=1.0)
    with pytest.raises(InvalidInputError, match="last axes must be"):
        grid_geometry((4, 3), epsilon=1.0).apply(np.ones((3, 4)))


@pytest.mark.parametrize("shape", [5, "ab", (4.7, 3), (True, 2), (0, 3), (-2, -2)])
def test_shapes_that_are_no_grids_are_refused(shape):
    for made in (
        lambda: grid_geometry(shape, 1.0),
        lambda: ConvolutionGeometry(shape, epsilon=1.0, steps=(1.0, 1.0)),
        lambda: MatrixGeometry(1.0 - np.eye(4), shape, epsilon=1.0),
    ):
        with pytest.raises(InvalidInputError, match="is no grid"):
            made()


def test_costs_and_steps_that_are_refused():
    cost = 1.0 - np.eye(4)
    for steps in ((1.0,), (-1.0, 1.0), (np.nan, 1.0), 3.0):
        with pytest.raises(InvalidInputError, match="each of 2 axes"):
            ConvolutionGeometry((4, 3), epsilon=1.0, steps=steps)
    with pytest.raises(InvalidInputError, match="each of 1 axes"):
        SeparableGeometry([cost], epsilon=1.0, steps=[1.0, 1.0])
    with pytest.raises(InvalidInputError, match="no grid"):
        SeparableGeometry([], epsilon=1.0)
    with pytest.raises(InvalidTypeError, match="one for each axis"):
        SeparableGeometry(5, epsilon=1.0)
    for largest in (1e13, 1.7e308):
        with pytest.raises(InvalidInputError, match="largest cost"):
            MatrixGeometry(largest * cost, epsilon=1.0)


@pytest.mark.parametrize("epsilon", [0.5, 0.001])
def test_whole_numbers_and_booleans_are_double(epsilon):
    counts = np.random.default_rng(0).integers(0, 3, (2, 4, 3))
    for geometry in (
        grid_geometry((4, 3), epsilon),
        ConvolutionGeometry((4, 3), epsilon=epsilon, steps=(0.3, 0.5)),
    ):
        for function, own in itertools.product(
            (geometry.apply, geometry.log_apply), (counts, counts > 0, counts.astype(np.uint8))
        ):
            found = function(own)
            assert found.dtype == np.float64
            np.testing.assert_array_equal(found, function(own.astype(float)))
            for other in (own.astype(object), own.astype(complex), own.tolist()):
                with pytest.raises(InvalidTypeError, match=r"The array is of|no array"):
                    function(other)
        for function in (geometry.apply, geometry.log_apply):
            assert function(np.ones((0, 4, 3))).shape == (0, 4, 3)
            with pytest.raises(InvalidInputError, match="last axes"):
                function(np.ones(3))


def test_wide_data_has_no_warning():
    values = np.ones((1, 4, 3))
    values[0, :, 0] = 1e-300, 1e300, 1.0, 1.0
    geometry = ConvolutionGeometry((4, 3), epsilon=0.01, steps=(0.3, 0.5))
    assert np.isfinite(geometry.apply(values)).all()


def test_a_geometry_says_what_it_is():
    assert repr(grid_geometry((4, 3), 0.1)) == "SeparableGeometry(shape=(4, 3), epsilon=0.1)"


def test_distances_say_how_to_give_images_and_geometries():
    one, two = np.ones((2, 4, 3))
    with pytest.raises(InvalidInputError, match=r"a\.ravel\(\)"):
        wasserstein_distance(one, two, grid_cost(4, 3))
    geometry = grid_geometry((4, 3), 0.1)
    with pytest.raises(InvalidTypeError, match=r"cost_matrix\(\)"):
        wasserstein_distance(one, two, [geometry, geometry])
    for given, other in ((one, two[:3]), (one.T, two.T), (np.ones(12), np.ones(12))):
        with pytest.raises(InvalidInputError, match="images of that shape"):
            wasserstein_distance(given, other, geometry)
    with pytest.raises(InvalidInputError, match="has its own"):
        wasserstein_distance(one, two, geometry, epsilon=0.1)
    with pytest.raises(InvalidInputError, match="masses of image 0 differ"):
        wasserstein_distance(one, 2 * two, geometry)
    with pytest.raises(InvalidInputError, match="geometry is of"):
        sinkhorn(one.ravel(), two.ravel(), geometry)
    with pytest.raises(InvalidInputError, match="epsilon=None"):
        sinkhorn([1.0], [1.0], [[0.0]])


SKEWED = np.random.default_rng(1).random((12, 12)) * (1 - np.eye(12))


@pytest.mark.parametrize("penalty", [None, 0.7])
@pytest.mark.parametrize(
    "geometry",
    [
        grid_geometry((4, 3), 0.1),
        grid_geometry((4, 3), 0.002),
        ConvolutionGeometry((4, 3), epsilon=0.05, steps=(0.3, 0.5)),
        MatrixGeometry(SKEWED, (4, 3), epsilon=0.05),
    ],
    ids=["squared", "logarithms", "distance", "one-way"],
)
def test_sinkhorn_of_a_geometry_is_that_of_its_matrix(geometry, penalty):
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(12), 2).reshape(2, 4, 3)
    a[1, 1] = b[0, 2] = 0.0
    b *= a.sum() / b.sum()
    options = {"marginal_penalty": penalty, "tol": 1e-10, "max_iter": 50_000}
    found = sinkhorn(a, b, geometry, **options)
    expected = sinkhorn(
        a.ravel(), b.ravel(), geometry.cost_matrix(), epsilon=geometry.epsilon, **options
    )
    assert found.converged
    assert found.plan is None
    assert found.value == pytest.approx(expected.value, abs=1e-9)
    plan = np.exp(
        (found.f.reshape(-1, 1) + found.g.ravel() - geometry.cost_matrix()) / geometry.epsilon - 1
    )
    np.testing.assert_allclose(plan, expected.plan, atol=1e-9)
    if penalty is None:
        stacks = np.stack([a, b, np.zeros_like(a)]), np.stack([b, a, np.zeros_like(a)])
        back = sinkhorn(b, a, geometry, **options).value
        total = wasserstein_distance(*stacks, geometry, tol=1e-10, max_iter=50_000)
        assert total == pytest.approx(found.value + back, abs=1e-9)


def test_costs_of_two_ways():
    """A product from the rows to the columns, and the way back."""
    rng = np.random.default_rng(0)
    axes = [rng.random((n, n)) * (1 - np.eye(n)) for n in (4, 3)]
    for geometry in (
        MatrixGeometry(SKEWED, (4, 3), epsilon=0.05),
        SeparableGeometry(axes, epsilon=0.05),
    ):
        back = geometry.transposed
        np.testing.assert_array_equal(back.cost_matrix(), geometry.cost_matrix().T)
        assert back.shape == geometry.shape
        values, logs = rng.random((2, 4, 3)), rng.normal(size=(2, 4, 3))
        # The dense products of this file are with the columns of a cost.
        plain, of_logs = products(geometry.cost_matrix(), 0.05, values, logs)
        np.testing.assert_allclose(back.apply(values), plain, rtol=1e-12)
        np.testing.assert_allclose(geometry.log_apply(logs), of_logs, atol=1e-12)
    plain_grid = grid_geometry((4, 3), 0.1)
    assert plain_grid.transposed is plain_grid


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_blocks_of_many_small_grids_are_put_together(metric, monkeypatch):
    values = np.random.default_rng(0).random((9, 4, 3))
    geometry = grid_geometry((4, 3), epsilon=0.5, metric=metric)
    whole = geometry.apply(values), geometry.log_apply(values)
    monkeypatch.setattr("polyad.transport.geometry._BLOCK", 24)
    np.testing.assert_allclose(geometry.apply(values), whole[0], rtol=1e-14)
    np.testing.assert_allclose(geometry.log_apply(values), whole[1], rtol=1e-14)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_memory_of_a_large_grid(metric):
    """50 images of 100 x 100 take less than a fiftieth of the dense kernel of 800 MB."""
    values = np.ones((50, 100, 100))
    # What is imported for threads is not counted.
    grid_geometry((4, 4), epsilon=1.0, metric=metric).apply(np.ones((20_000, 4, 4)))
    tracemalloc.start()
    try:
        geometry = grid_geometry((100, 100), epsilon=0.02, metric=metric)
        geometry.apply(values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000**2 * 8 / 50
