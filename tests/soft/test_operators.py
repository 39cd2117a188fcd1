"""Soft ranks, sorts, quantiles and quantile normalization: oracles, limits, invariances."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from polyad.exceptions import DataWarning
from polyad.soft import Cost, quantile_normalize, soft_quantile, soft_rank, soft_sort, vjp
from tests.transport.rows import twins

X4, Q4 = np.array([0.3, 0.1, 0.9, 0.5]), np.array([10.0, 20.0, 30.0, 40.0])
X5 = np.array([0.3, 0.1, 0.9, 0.5, 0.45])


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [
        (1e-3, [20, 10, 40, 30]),
        # Written with more digits than the note it comes from, whose mean was not yet 25.
        (1e-2, [19.99999999, 10.01270209, 39.99998381, 29.98731411]),
        (1e-1, [20.03040567, 13.67941764, 38.06521351, 28.22496318]),
        (1.0, [23.7833078, 22.18016522, 28.61514056, 25.42138642]),
    ],
)
def test_four_values(epsilon, expected):
    found = quantile_normalize(X4, Q4, epsilon=epsilon, squash=False)
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(found.mean(), 25.0, rtol=1e-9)


def test_ott_agrees():
    """Numbers of ott-jax 0.6.0 (jax 0.10.2, float64), tools.soft_sort with squashing_fun=identity,
    epsilon=0.05, threshold=1e-13, max_iterations=100000; its ranks begin with 0."""
    same = {"epsilon": 0.05, "squash": False, "tol": 1e-12}
    ranks = [1.11699887656, 0.260118451545, 3.890163859684, 2.532827635953, 2.199891176256]
    np.testing.assert_allclose(soft_rank(X5, **same), np.add(ranks, 1), rtol=1e-9)
    # Three targets: ott's have the ranks 0, 2, 4, ours the mean ranks of their shares, from 4/3.
    three = [0.799013753387, 0.023176066972, 3.999180182276, 2.854970774994, 2.32365922237]
    found = soft_rank(X5, n_targets=3, **same)
    np.testing.assert_allclose(found, 4 / 3 + np.multiply(three, 10 / 12), rtol=1e-9)
    ordered = [0.15275560619, 0.300841574099, 0.426195293732, 0.515438436349, 0.85476908963]
    np.testing.assert_allclose(soft_sort(X5, **same), ordered, rtol=1e-9)
    three = [0.18833046976, 0.429014280182, 0.732655250058]
    np.testing.assert_allclose(soft_sort(X5, n_targets=3, **same), three, rtol=1e-9)
    # Its "weights" of quantile_normalization are those of the targets.
    normal = [0.917352832273, 0.122395774632, 4.997357085309, 2.342649517307, 1.62024479048]
    found = quantile_normalize(X5, [0, 1, 5], target_weights=[0.2, 0.5, 0.3], **same)
    np.testing.assert_allclose(found, normal, rtol=1e-9)
    found = soft_quantile(X5, 0.3, width=0.1, **same)
    np.testing.assert_allclose(found, 0.315209170033, rtol=1e-9)


def test_the_gradient_of_ott_agrees():
    """Made as above, by jax.grad through its implicit differentiation."""
    _, pullback = vjp(
        *(quantile_normalize, X5, [0, 1, 5]),
        **{"target_weights": [0.2, 0.5, 0.3], "epsilon": 0.05, "squash": False, "tol": 1e-12},
    )
    gradient = [2.846003758092, -3.105323474667, -0.052932420223, 26.953729781989, -26.64147764519]
    np.testing.assert_allclose(pullback([1.0, -2.0, 0.5, 3.0, -1.0]).x, gradient, rtol=1e-9)


# Hard limits.


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(4, 30))


@pytest.mark.parametrize("epsilon", [1e-4, 1e-5])
def test_ranks_become_those_of_scipy(epsilon):
    x = np.random.default_rng(0).permutation(20).reshape(2, 10) * 1.0
    np.testing.assert_allclose(soft_rank(x, epsilon=epsilon), rankdata(x, axis=1), atol=1e-6)
    tied = np.array([3.0, 1.0, 2.0, 2.0, 3.0, 3.0, 0.0])
    np.testing.assert_allclose(soft_rank(tied, epsilon=epsilon), rankdata(tied), atol=1e-6)


def test_sorts_become_those_of_numpy():
    x = np.random.default_rng(0).permutation(20).reshape(2, 10) * 1.0
    np.testing.assert_allclose(soft_sort(x, epsilon=1e-4), np.sort(x, axis=1), atol=1e-6)
    means = np.sort(x, axis=1).reshape(2, 5, 2).mean(axis=2)
    np.testing.assert_allclose(soft_sort(x, n_targets=5, epsilon=1e-4), means, atol=1e-6)


def test_quantiles_become_those_of_numpy(rows):
    levels = np.array([0.0, 0.013, 0.25, 0.5, 0.77, 1.0])
    found = soft_quantile(rows, levels, epsilon=1e-6)
    expected = np.quantile(rows, levels, axis=1, method="hazen").T
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert soft_quantile(rows, 0.5, epsilon=1e-6).shape == (4,)


def test_normalization_becomes_that_of_ranks():
    x = np.random.default_rng(0).permutation(20).reshape(2, 10) * 1.0
    q = np.sort(np.random.default_rng(1).normal(size=10))
    hard = q[np.argsort(np.argsort(x, axis=1), axis=1)]
    np.testing.assert_allclose(quantile_normalize(x, q, epsilon=1e-4), hard, atol=1e-6)


def test_quantiles_of_the_row_itself_give_it_back(rows):
    """n = m and q the sorted row: the transform is the identity."""
    even = np.linspace(0.02, 0.98, 25)
    x = np.log(even / (1 - even))[np.random.default_rng(0).permutation(25)]
    np.testing.assert_allclose(quantile_normalize(x, np.sort(x), epsilon=1e-5), x, atol=1e-6)


def test_much_entropy_gives_means(rows):
    q = np.sort(rows[0])
    np.testing.assert_allclose(quantile_normalize(rows, q, epsilon=1e7), q.mean(), rtol=1e-6)
    np.testing.assert_allclose(soft_rank(rows, epsilon=1e7), 15.5, rtol=1e-6)
    means = np.broadcast_to(rows.mean(1, keepdims=True), rows.shape)
    np.testing.assert_allclose(soft_sort(rows, epsilon=1e7), means, atol=1e-6)


def test_one_value_and_one_target(rows):
    np.testing.assert_allclose(quantile_normalize(rows, [7.0]), 7.0)
    np.testing.assert_allclose(soft_sort(rows, n_targets=1)[:, 0], rows.mean(1))
    np.testing.assert_allclose(soft_rank(rows, n_targets=1), 15.5)
    for function, options, expected in (
        (quantile_normalize, {"quantiles": [1.0, 2.0, 6.0]}, 3.0),
        (soft_sort, {"n_targets": 4}, 3.0),
        (soft_rank, {}, 1.0),
        (soft_quantile, {"levels": [0.1, 0.5]}, 3.0),
    ):
        with pytest.warns(DataWarning, match="single value"):
            found = function([3.0], **options)
        np.testing.assert_allclose(found, expected)


# Invariances and order.


def test_means_are_kept(rows):
    generator = np.random.default_rng(2)
    a, b = generator.random(30), generator.random(7)
    q = np.sort(generator.normal(size=7))
    same = {"weights": a, "target_weights": b, "tol": 1e-12}
    a, b = a / a.sum(), b / b.sum()
    np.testing.assert_allclose(quantile_normalize(rows, q, **same) @ a, b @ q, rtol=1e-9)
    np.testing.assert_allclose(soft_rank(rows, **same) @ a, 15.5, rtol=1e-9)
    np.testing.assert_allclose(soft_sort(rows, **same) @ b, rows @ a, rtol=1e-9)


def test_linear_in_quantiles(rows):
    q = np.array([1.0, 2.0, 5.0, 9.0])
    T = quantile_normalize(rows, q)
    np.testing.assert_allclose(quantile_normalize(rows, q + 3), T + 3)
    np.testing.assert_allclose(quantile_normalize(rows, 2 * q), 2 * T)
    assert T.min() >= 1.0
    assert T.max() <= 9.0


@pytest.mark.parametrize("scale", [1e-250, 1e-12, 3.0, 1e12, 1e250])
def test_unit_and_origin_do_not_matter(rows, scale):
    q = np.arange(6)
    exact = quantile_normalize(rows, q)
    np.testing.assert_allclose(quantile_normalize(scale * rows, q), exact, rtol=1e-7)
    np.testing.assert_allclose(quantile_normalize(scale * (rows + 5), q), exact, rtol=1e-7)
    sorted_rows = soft_sort(rows)
    np.testing.assert_allclose(soft_sort(scale * rows), scale * sorted_rows, rtol=1e-7)


values = st.lists(st.floats(-2, 2, width=16), min_size=2, max_size=9)


def assert_sorted(numbers, slack=1e-9):
    assert (np.diff(numbers) >= -slack * (1 + np.abs(numbers).max())).all()


@settings(max_examples=25, deadline=None)
@given(
    x=values,
    m=st.integers(1, 6),
    epsilon=st.sampled_from([1e-5, 1e-3, 1e-2, 0.3]),
    n_iter=st.sampled_from([None, 1, 2, 3, 7]),
    seed=st.integers(0, 100),
)
def test_order_is_kept_for_any_count(x, m, epsilon, n_iter, seed):
    generator = np.random.default_rng(seed)
    x, q = np.array(x), np.sort(generator.normal(size=m))
    same = {
        "weights": generator.random(len(x)) + 0.01,
        "target_weights": generator.random(m) + 0.01,
        "epsilon": epsilon,
        "n_iter": n_iter,
    }
    order = np.argsort(x, kind="stable")
    for found in (quantile_normalize(x, q, **same), soft_rank(x, **same)):
        assert_sorted(found[order])
        for i, j in pairwise(order):
            if x[i] == x[j]:
                np.testing.assert_allclose(found[i], found[j], rtol=1e-12, atol=1e-12)
    assert_sorted(soft_sort(x, **same))
    T = quantile_normalize(x, q, **same)
    assert T.min() >= q[0] - 1e-12
    assert T.max() <= q[-1] + 1e-12


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_may_have_levels_of_their_own(axis):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3, 4, 5))
    shape = [*x.shape[:axis], 2, *x.shape[axis + 1 :]]
    levels = generator.random(shape).astype(np.float32)
    found, pullback = vjp(soft_quantile, x, levels, epsilon=0.1, axis=axis)
    assert found.shape == levels.shape
    gradients = pullback(found)
    assert gradients.levels.dtype == np.float32
    moved = [np.moveaxis(array, axis, -1) for array in (x, levels, found, gradients.levels)]
    for row in np.ndindex(*moved[0].shape[:-1]):
        values, own, value, by_levels = (array[row] for array in moved)
        expected, pull = vjp(soft_quantile, values, own, epsilon=0.1)
        np.testing.assert_allclose(value, expected, rtol=1e-9)
        np.testing.assert_allclose(by_levels, pull(expected).levels, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(x=values, epsilon=st.sampled_from([1e-4, 1e-2, 0.3]))
def test_quantiles_rise_with_their_levels(x, epsilon):
    assert_sorted(soft_quantile(np.array(x), np.linspace(0, 1, 9), epsilon=epsilon), 1e-7)


@settings(max_examples=20, deadline=None)
@given(x=values, seed=st.integers(0, 100))
def test_order_of_input_does_not_matter(x, seed):
    x = np.array(x)
    p = np.random.default_rng(seed).permutation(len(x))
    np.testing.assert_allclose(soft_rank(x[p]), soft_rank(x)[p], rtol=1e-7)
    np.testing.assert_allclose(soft_sort(x[p]), soft_sort(x), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("n_iter", [1, 2, 5, 40])
def test_iterations_are_those_of_algorithm_1(rows, n_iter):
    generator = np.random.default_rng(3)
    a, b, q = generator.random(30), generator.random(5), np.sort(generator.normal(size=5))
    same = {"weights": a, "target_weights": b, "epsilon": 0.1, "n_iter": n_iter}
    T, S = quantile_normalize(rows, q, **same), soft_sort(rows, **same)
    a, b = a / a.sum(), b / b.sum()
    for row in range(4):
        x = twins.squash(rows[row], a)
        with_a, with_b = twins.sinkhorn_plans(x, np.linspace(0, 1, 5), a, b, 0.1, n_iter)
        np.testing.assert_allclose(T[row], with_a @ q / a, rtol=1e-10)
        np.testing.assert_allclose(S[row], with_b.T @ rows[row] / b, rtol=1e-10)


def test_many_iterations_are_the_solution(rows):
    exact = soft_rank(rows, epsilon=0.1)
    np.testing.assert_allclose(soft_rank(rows, epsilon=0.1, n_iter=300), exact, rtol=1e-8)


# Weights, costs, shapes and types.


def test_a_weight_counts_copies():
    """Two values of weight 1 are one of weight 2; a value of weight 0 is none to the others."""
    once = quantile_normalize([1.0, 2.0, 4.0], [0, 1, 2], weights=[1, 2, 1])
    twice = quantile_normalize([1.0, 2.0, 2.0, 4.0], [0, 1, 2])
    np.testing.assert_allclose(once, twice[[0, 1, 3]], rtol=1e-7)
    more = quantile_normalize([1.0, 2.0, 9.0, 4.0], [0, 1, 2], weights=[1, 2, 0, 1])
    np.testing.assert_allclose(more[[0, 1, 3]], once, rtol=1e-7)
    assert more[2] >= more[3]


def test_a_target_without_weight_is_none_but_has_a_value():
    two = soft_sort([1.0, 2.0, 4.0], target_weights=[1, 0, 1], epsilon=0.1)
    np.testing.assert_allclose(two[[0, 2]].mean(), 7 / 3)
    assert two[0] < two[1] < two[2]
    near = soft_sort([1.0, 2.0, 4.0], target_weights=[1, 1e-14, 1], epsilon=0.1)
    np.testing.assert_allclose(two, near, rtol=1e-9)


def test_a_cost_of_ones_own(rows):
    squared = Cost(lambda x, y: (x - y) ** 2, lambda x, y: 2 * (x - y))
    np.testing.assert_allclose(soft_rank(rows, cost=squared), soft_rank(rows), rtol=1e-7)
    steep = Cost(lambda x, y: (x - y) ** 4, lambda x, y: 4 * (x - y) ** 3)
    x = twins.squash(rows[0])
    even = np.full(30, 1 / 30)
    P = twins.plan(x, np.linspace(0, 1, 30), even, even, 0.01, cost=steep.value, error=1e-11)
    found = soft_rank(rows[0], cost=steep)
    np.testing.assert_allclose(found, 30 * P @ np.arange(1, 31), rtol=1e-7)


def test_rows_are_treated_one_by_one(rows):
    q = np.arange(5)
    block = rows[:, :24].reshape(2, 2, 24)
    together = quantile_normalize(block, q)
    for index in np.ndindex(2, 2):
        np.testing.assert_allclose(together[index], quantile_normalize(block[index], q))
    moved = quantile_normalize(np.moveaxis(block, -1, 0), q, axis=0)
    np.testing.assert_array_equal(moved, np.moveaxis(together, -1, 0))
    assert soft_sort(np.moveaxis(block, -1, 1), n_targets=5, axis=1).shape == (2, 5, 2)
    assert soft_quantile(block, [0.1, 0.2, 0.3]).shape == (2, 2, 3)


def test_each_row_may_have_its_own_arguments(rows):
    generator = np.random.default_rng(4)
    a, b = generator.random((4, 30)), generator.random((4, 6))
    q = np.sort(generator.normal(size=(4, 6)), axis=1)
    together = quantile_normalize(rows, q, weights=a, target_weights=b)
    for row in range(4):
        alone = quantile_normalize(rows[row], q[row], weights=a[row], target_weights=b[row])
        np.testing.assert_allclose(together[row], alone)


@pytest.mark.parametrize("epsilon", [0.1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("function", [soft_rank, soft_sort, soft_quantile])
def test_float32_stays_and_is_accurate(rows, function, epsilon):
    x = rows.astype(np.float32)
    found = function(x, epsilon=epsilon)
    assert found.dtype == np.float32
    exact = function(x.astype(np.float64), epsilon=epsilon)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)


def test_integers_become_float64():
    assert soft_rank([3, 1, 2]).dtype == np.float64
    assert soft_rank(np.array([True, False])).dtype == np.float64


# Hard cases.


@pytest.mark.parametrize("epsilon", [1e-1, 1e-3, 1e-5])
def test_constant_rows_get_the_mean(epsilon):
    x = np.vstack([np.full(6, 0.1), np.arange(6.0)])
    T = quantile_normalize(x, [0, 1, 5], epsilon=epsilon)
    np.testing.assert_allclose(T[0], 2.0)
    np.testing.assert_allclose(soft_sort(x, epsilon=epsilon)[0], 0.1)
    np.testing.assert_allclose(soft_rank(x, epsilon=epsilon)[0], 3.5)


@pytest.mark.parametrize("epsilon", [1e-1, 1e-3, 1e-5])
def test_heavy_tails(epsilon):
    x = np.array([1e-300, 1e300, -1e300, 0.0, 5.0, 1.7e308, -1.7e308, 1e-12])
    ranks = soft_rank(x, epsilon=epsilon)
    assert_sorted(ranks[np.argsort(x)])
    assert np.isfinite(soft_sort(x, epsilon=epsilon)).all()


def test_targets_of_tiny_weight(rows):
    b = np.array([1.0, 1e-300, 1e-12, 1.0, 1e-30])
    q = np.arange(5)
    found = quantile_normalize(rows, q, target_weights=b)
    exact = quantile_normalize(rows, q, target_weights=[1, 0, 0, 1, 0])
    np.testing.assert_allclose(found, exact, atol=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize("function", [soft_rank, soft_sort])
def test_iterations_with_zero_weights_and_little_entropy(function, n_iter):
    x = np.random.default_rng(0).random(8)
    settings = {"epsilon": 1e-4, "squash": False, "n_iter": n_iter}
    weights = np.array([0.0, 1, 1, 1, 1, 1, 1, 0])
    value, pullback = vjp(function, x, weights=weights, target_weights=[0, 1, 1, 0], **settings)
    without, _ = vjp(function, x[1:-1], target_weights=[0, 1, 1, 0], **settings)
    assert np.isfinite(value).all()
    assert np.isfinite(pullback(np.arange(value.size)).x).all()
    if function is soft_sort and n_iter > 1:  # the first step knows no weights
        np.testing.assert_allclose(value[1:-1], without[1:-1], rtol=1e-9)


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-4])
def test_iterations_keep_order_and_range_where_costs_are_large(epsilon, n_iter):
    """Exponents are up to 1e12 here, and known to 1e-4."""
    generator = np.random.default_rng(0)
    x, q = np.sort(1e3 * generator.random((5, 40))), np.sort(generator.random(12))
    settings = {"epsilon": epsilon, "squash": False, "n_iter": n_iter}
    T = quantile_normalize(x, q, **settings)
    S = soft_sort(x, n_targets=12, **settings)
    assert (np.diff(T) >= -1e-12).all()
    assert q[0] - 1e-12 <= T.min()
    assert T.max() <= q[-1] + 1e-12
    assert (np.diff(S) >= -1e-9).all()
    assert x.min() - 1e-9 <= S.min()
    assert S.max() <= x.max() + 1e-9


@pytest.mark.parametrize("n_iter", [1, 3, 10])
def test_iterations_do_not_depend_on_how_far_distant_values_are(n_iter):
    """Beside the squares of distant values, differences of costs would be rounded away."""
    near, q = [-3.0, 0.2, 0.3, 0.7, 4.0], [2.0, 3.0, 5.0, 11.0]
    settings = {"epsilon": 0.1, "squash": False, "n_iter": n_iter}
    reference = quantile_normalize([-1e3, -1e2, *near, 1e2, 1e3], q, **settings)
    assert (np.diff(reference) >= -1e-14).all()
    for far in (1e7, 1e18, 1e70):
        x = [-far * far, -far, *near, far, far * far]
        found = quantile_normalize(x, q, **settings)
        np.testing.assert_allclose(found, reference, rtol=1e-9)
        assert (np.diff(found) >= -1e-14).all()


@pytest.mark.parametrize("n_iter", [None, 3])
@pytest.mark.parametrize("numbers", [1, 70, 150, 10**6])
def test_quantiles_in_parts_are_the_same(monkeypatch, numbers, n_iter):
    """A part may end within the levels of a row."""
    from polyad.soft import formulas

    generator = np.random.default_rng(0)
    x, weights, levels = generator.random((4, 30)), generator.random((4, 30)), [0.1, 0.5, 0.8]
    settings = {"weights": weights, "epsilon": 0.05, "n_iter": n_iter}
    G = generator.normal(size=(4, 3))
    expected, pulled = [], []
    for row in range(4):
        own = {**settings, "weights": weights[row]}
        results = [vjp(soft_quantile, x[row], level, **own) for level in levels]
        expected.append([value for value, _ in results])
        pulled.append([pull(g) for (_, pull), g in zip(results, G[row], strict=True)])
    monkeypatch.setattr(formulas, "_CHUNK_SIZE", numbers)
    value, pullback = vjp(soft_quantile, x, levels, **settings)
    found = pullback(G)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for name in ("x", "weights"):
        sums = [sum(getattr(each, name) for each in row) for row in pulled]
        np.testing.assert_allclose(getattr(found, name), sums, rtol=1e-9, atol=1e-12)
    by_level = [[float(each.levels) for each in row] for row in pulled]
    np.testing.assert_allclose(found.levels, np.sum(by_level, axis=0), rtol=1e-9)


def test_quantiles_need_no_memory_for_each_level(monkeypatch):
    import tracemalloc

    from polyad.soft import formulas

    monkeypatch.setattr(formulas, "_CHUNK_SIZE", 1 << 15)
    x, peaks = np.random.default_rng(0).random((4, 4000)), []
    for n_levels in (1, 4, 40):
        tracemalloc.start()
        value, pullback = vjp(soft_quantile, x, np.linspace(0.1, 0.9, n_levels), epsilon=0.1)
        pullback(np.ones_like(value))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1]
