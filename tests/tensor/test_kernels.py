"""Kernels of sparse tensors against their NumPy twins."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from polyad.tensor import kernels
from polyad.tensor.kernels import Pieces, Spans

FLOATS = [np.float32, np.float64]
INDICES = [np.int32, np.int64]


def twin_is_sorted(coords):
    entries = [tuple(entry) for entry in coords.T.tolist()]
    return all(a < b for a, b in pairwise(entries))


def twin_merge(coords, values):
    sums = {}
    for entry, value in zip(map(tuple, coords.T.tolist()), values, strict=True):
        sums[entry] = sums.get(entry, 0.0) + float(value)
    return np.array(list(sums)).T, np.array(list(sums.values()))


def twin_mttkrp(pieces, spans, factors):
    """The output rows of all spans, by the definition."""
    *middle, inner = factors
    n = len(middle)
    out = np.zeros((spans.targets.max() + 1, inner.shape[1]))
    for s, target in enumerate(spans.targets):
        for q in range(spans.bounds[s, 0], spans.bounds[s + 1, 0]):
            fibre = pieces.quad_values[q] @ inner[pieces.quads[q, n:]]
            rows = [A[m] for A, m in zip(middle, pieces.quads[q, :n], strict=True)]
            out[target] += np.prod([fibre, *rows], axis=0)
        for p in range(spans.bounds[s, 1], spans.bounds[s + 1, 1]):
            rows = [A[m] for A, m in zip(factors, pieces.singles[p], strict=True)]
            out[target] += pieces.single_values[p] * np.prod(rows, axis=0)
    return out


def twin_observed(pieces, rows, factors, ridge):
    n = len(factors) - 1
    out = np.zeros((rows.targets.max() + 1, factors[0].shape[1]))
    for s, target in enumerate(rows.targets):
        quads = slice(*rows.bounds[s : s + 2, 0])
        singles = slice(*rows.bounds[s : s + 2, 1])
        shared = np.repeat(pieces.quads[quads, :n], 4, axis=0)
        inner = pieces.quads[quads, n:].reshape(-1, 1)
        index = np.vstack([np.hstack([shared, inner]), pieces.singles[singles]])
        x = np.append(pieces.quad_values[quads].ravel(), pieces.single_values[singles])
        H = np.prod([A[index[:, k]] for k, A in enumerate(factors)], axis=0, dtype=np.float64)
        out[target] = np.linalg.solve(H.T @ H + ridge * np.eye(H.shape[1]), H.T @ x)
    return out


def random_work(rng, *, n_middle=1, dtype=np.float64, index=np.uint32, n_components=5):
    """Pieces over five rows, the factors (of seven rows) and spans with a gap in the targets."""
    n_quads, n_singles = 23, 41
    pieces = Pieces(
        rng.integers(0, 7, (n_quads, n_middle + 4)).astype(index),
        rng.standard_normal((n_quads, 4)).astype(dtype),
        rng.integers(0, 7, (n_singles, n_middle + 1)).astype(index),
        rng.standard_normal(n_singles).astype(dtype),
    )
    bounds = np.array([[0, 0], [9, 5], [9, 11], [12, 11], [20, 33], [23, 41]])
    spans = Spans(bounds, np.array([0, 1, 3, 4, 6]))
    size = (7, n_components)
    factors = tuple(rng.standard_normal(size).astype(dtype) for _ in range(n_middle + 1))
    return pieces, spans, factors


@njit
def transposed(matrix, rows, r, scale, out, q):
    four = (rows[0], rows[1], rows[2], rows[3])
    kernels.transpose_four(matrix, four, r, scale, out, q)


@pytest.mark.parametrize("index", [np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize(("r", "q"), [(0, 0), (2, 3), (3, 1)])
def test_four_rows_are_transposed(index, r, q):
    """Written with a scale, then multiplied by other rows; nothing outside of the square."""
    rng = np.random.default_rng(r)
    matrix, scale, out = rng.random((9, 7)), rng.random(7), rng.random((7, 8))
    matrix[5] = [0.0, -2.0, 1e300, 1e-310, 1.0, -1e-320, 3.0]
    first, second = np.array([5, 8, 0, 5], index), np.array([1, 5, 5, 7], index)
    expected = out.copy()
    expected[r : r + 4, q : q + 4] = (scale * matrix[first])[:, r : r + 4].T
    transposed(matrix, first, r, scale, out, q)
    np.testing.assert_array_equal(out, expected)
    expected[r : r + 4, q : q + 4] *= matrix[second][:, r : r + 4].T
    transposed(matrix, second, r, None, out, q)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("index", INDICES)
def test_is_sorted(index):
    coords = np.array([[0, 0, 1], [1, 2, 0]], index)
    assert kernels.is_sorted(coords)
    assert not kernels.is_sorted(np.ascontiguousarray(coords[:, ::-1]))
    assert not kernels.is_sorted(np.zeros((2, 2), index))
    assert kernels.is_sorted(np.zeros((3, 0), index))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=8))
def test_is_sorted_is_its_twin(entries):
    coords = np.array(entries, np.int32).reshape(-1, 2).T.copy()
    assert kernels.is_sorted(coords) == twin_is_sorted(coords)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(("shift", "bits"), [(0, 5), (3, 4), (10, 1)])
def test_sort_by_digit_is_stable(index, shift, bits):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2000, 500).astype(index)
    order = rng.permutation(500).astype(np.int32)
    result = np.empty_like(order)
    kernels.sort_by_digit(keys, order, shift, bits, result)
    digits = (keys[order] >> shift) % 2**bits
    np.testing.assert_array_equal(result, order[np.argsort(digits, kind="stable")])


@pytest.mark.parametrize(("dtype", "index"), [*zip(FLOATS, INDICES, strict=True)])
def test_merge_duplicates(dtype, index):
    rng = np.random.default_rng(1)
    coords = rng.integers(0, 3, (3, 100)).astype(index)
    coords = coords[:, np.lexsort(coords[::-1])]
    values = rng.standard_normal(100).astype(dtype)
    expected_coords, expected_values = twin_merge(coords, values)
    n_kept = kernels.merge_duplicates(coords, values)
    np.testing.assert_array_equal(coords[:, :n_kept], expected_coords)
    np.testing.assert_array_equal(values[:n_kept], expected_values.astype(dtype))


@pytest.mark.parametrize("index", INDICES)
def test_count_cells_counts_fibres_when_the_table_is_large(index):
    rng = np.random.default_rng(2)
    coords = rng.integers(0, 6, (3, 200)).astype(index)
    for inner in range(3):
        n_fibres = np.unique(np.delete(coords, inner, axis=0), axis=1).shape[1]
        n_cells = kernels.count_cells(coords, inner, np.zeros(1 << 20, np.bool_))
        assert n_cells == n_fibres


def test_find_and_cut_fibres():
    rng = np.random.default_rng(3)
    coords = np.unique(rng.integers(0, [[3], [3], [40]], (3, 150)), axis=1).astype(np.int32)
    values = rng.standard_normal(coords.shape[1])
    starts = np.empty(coords.shape[1] + 1, np.int64)
    n_fibres = kernels.find_fibres(coords[:2].copy(), starts)
    _, first, lengths = np.unique(coords[:2], axis=1, return_index=True, return_counts=True)
    np.testing.assert_array_equal(starts[: n_fibres + 1], [*first, coords.shape[1]])

    pieces = Pieces(
        np.zeros(((lengths // 4).sum(), 5), np.uint32),
        np.zeros(((lengths // 4).sum(), 4)),
        np.zeros(((lengths % 4).sum(), 2), np.uint32),
        np.zeros((lengths % 4).sum()),
    )
    kernels.cut_fibres(coords[1:2], coords[2], values, starts[: n_fibres + 1], pieces)
    inside = np.concatenate(
        [np.arange(n) < n // 4 * 4 for n in lengths]
    )  # the first entries of a fibre are in quads
    np.testing.assert_array_equal(pieces.quads[:, 1:].ravel(), coords[2, inside])
    np.testing.assert_array_equal(pieces.quads[:, 0], coords[1, inside][::4])
    np.testing.assert_array_equal(pieces.quad_values.ravel(), values[inside])
    np.testing.assert_array_equal(pieces.singles.T, coords[1:, ~inside])
    np.testing.assert_array_equal(pieces.single_values, values[~inside])


@pytest.mark.parametrize(
    ("dtype", "index"),
    [(np.float32, np.uint32), (np.float64, np.uint32), (np.float64, np.uint64)],
)
@pytest.mark.parametrize("n_components", [1, 7, 8, 40, kernels.WIDTH])
def test_mttkrp_spans(dtype, index, n_components):
    rng = np.random.default_rng(4)
    work = random_work(rng, dtype=dtype, index=index, n_components=n_components)
    pieces, spans, factors = work
    out = np.full((7, n_components), np.nan, dtype)
    kernels.mttkrp_spans(pieces, spans, (0, 5), factors, out)
    rtol = 1e-4 if dtype == np.float32 else 1e-12
    expected = twin_mttkrp(*work)
    np.testing.assert_allclose(out[spans.targets], expected[spans.targets], rtol, rtol)
    assert np.isnan(out[[2, 5]]).all()


@pytest.mark.parametrize(("dtype", "n_middle"), [(np.float32, 1), (np.float64, 2), (np.float64, 3)])
def test_mttkrp_deep_spans(dtype, n_middle):
    work = random_work(np.random.default_rng(5), n_middle=n_middle, dtype=dtype)
    pieces, spans, factors = work
    out = np.zeros((7, 5), dtype)
    for block in ((0, 2), (2, 5)):
        kernels.mttkrp_deep_spans(pieces, spans, block, kernels.stack(factors), out)
    rtol = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(out, twin_mttkrp(*work), rtol, rtol)


@pytest.mark.parametrize(
    ("dtype", "n_modes"),
    [(np.float32, 2), (np.float64, 2), (np.float32, 3), (np.float64, 3), (np.float64, 4)],
)
def test_kruskal_values(dtype, n_modes):
    rng = np.random.default_rng(6)
    factors = tuple(rng.standard_normal((9, 11)).astype(dtype) for _ in range(n_modes))
    coords = rng.integers(0, 9, (n_modes, 300)).astype(np.uint32)
    expected = np.prod([A[c] for A, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)
    out = np.full(300, np.nan, dtype)
    if n_modes == 3:
        kernels.kruskal_values_3(factors, coords, (10, 290), out)
    else:
        kernels.kruskal_values_n(kernels.stack(factors), coords, (10, 290), out)
    np.testing.assert_allclose(out[10:290], expected[10:290], rtol=1e-4, atol=1e-4)
    assert np.isnan(out[:10]).all()
    assert np.isnan(out[290:]).all()


@pytest.mark.parametrize(("dtype", "n_middle"), [(np.float64, 1), (np.float32, 1), (np.float64, 2)])
@settings(max_examples=20)
@given(ridge=st.floats(0.01, 10), n_components=st.integers(1, 9))
def test_solve_observed_rows(dtype, n_middle, ridge, n_components):
    rng = np.random.default_rng(7)
    work = random_work(rng, n_middle=n_middle, dtype=dtype, n_components=n_components)
    pieces, rows, factors = work
    out = np.zeros((7, n_components), dtype)
    kernels.solve_observed_rows((pieces, rows), (0, 5), kernels.stack(factors), ridge, out)
    rtol = 1e-4 if dtype == np.float32 else 1e-8
    np.testing.assert_allclose(out, twin_observed(*work, ridge), rtol, rtol)
