"""SparseTensor: canonical form, MTTKRP, values, least squares; any order, type and thread count."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from polyad.core.threads import thread_limit
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor import kernels
from polyad.tensor.sparse import SparseTensor, canonicalize, kruskal_values
from tests.forks import run

LETTERS = "abcde"


def twin_mttkrp(dense, factors, mode):
    modes = LETTERS[: dense.ndim]
    others = [k for k in range(dense.ndim) if k != mode]
    terms = ",".join([modes, *(modes[k] + "z" for k in others)])
    return np.einsum(f"{terms}->{modes[mode]}z", dense, *(factors[k] for k in others))


def twin_values(factors, coords):
    return np.prod([A[c] for A, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)


def twin_observed(tensor, factors, mode, ridge):
    """Regression of each row on the products of the other factors, by an SVD."""
    out = np.array(factors[mode], np.float64)
    others = [k for k in range(tensor.ndim) if k != mode]
    for i in np.unique(tensor.coords[mode]):
        p = tensor.coords[mode] == i
        H = np.prod([np.float64(factors[k])[tensor.coords[k][p]] for k in others], axis=0)
        n = H.shape[1]
        stacked = np.vstack([H, np.sqrt(ridge) * np.eye(n)])
        out[i] = np.linalg.lstsq(stacked, np.append(tensor.values[p], np.zeros(n)), rcond=None)[0]
    return out


def random_coo(rng, shape, n_entries, dtype=np.float64):
    coords = tuple(rng.integers(0, n, n_entries) for n in shape)
    return coo_array((rng.standard_normal(n_entries).astype(dtype), coords), shape=shape)


def random_factors(rng, shape, n_components, dtype=np.float64):
    return [rng.standard_normal((n, n_components)).astype(dtype) for n in shape]


def heavy_coo(rng, n_entries=60_000, dtype=np.float64):
    """Half of the entries in one row of mode 0, most rows empty."""
    shape = (5000, 300, 200)
    coords = [rng.integers(0, n, n_entries) for n in shape]
    coords[0] = np.where(rng.random(n_entries) < 0.5, 17, coords[0] % 1000)
    values = rng.standard_normal(n_entries).astype(dtype)
    return coo_array((values, tuple(coords)), shape=shape)


@st.composite
def sparse_tensors(draw):
    # Kernels are compiled for each type and number of modes: float32 up to three of them.
    dtype, max_modes = draw(st.sampled_from([(np.float32, 3), (np.float64, 5)]))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=max_modes)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return random_coo(rng, shape, draw(st.integers(0, 60)), dtype), rng


class TestCanonicalize:
    @settings(max_examples=25)
    @given(sparse_tensors())
    def test_against_scipy(self, case):
        tensor, _ = case
        result = canonicalize(tensor)
        expected = tensor.copy()
        expected.sum_duplicates()
        assert result.shape == tensor.shape
        assert result.dtype == tensor.dtype
        assert result.has_canonical_format
        for row, expected_row in zip(result.coords, expected.coords, strict=True):
            assert row.dtype == np.int32
            np.testing.assert_array_equal(row, expected_row)
        np.testing.assert_allclose(result.data, expected.data, rtol=1e-5, atol=1e-6)

    def test_zeros_stay(self):
        tensor = coo_array((np.array([0.0, 1.0, -1.0]), ([1, 0, 0], [0, 1, 1])), shape=(2, 2))
        result = canonicalize(tensor)
        np.testing.assert_array_equal(result.data, [0.0, 0.0])
        np.testing.assert_array_equal(np.stack(result.coords), [[0, 1], [1, 0]])

    def test_canonical_values_are_shared_and_the_input_is_kept(self):
        rng = np.random.default_rng(0)
        tensor = random_coo(rng, (40, 30, 20), 1000)
        before = [array.copy() for array in (*tensor.coords, tensor.data)]
        result = canonicalize(tensor)
        for array, copy in zip((*tensor.coords, tensor.data), before, strict=True):
            np.testing.assert_array_equal(array, copy)
        assert np.shares_memory(canonicalize(result).data, result.data)

    @pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.bool_, np.longdouble])
    def test_other_types_become_float64(self, dtype):
        tensor = coo_array((np.array([1, 1], dtype), ([0, 0], [1, 1], [0, 0])), shape=(2, 2, 2))
        assert canonicalize(tensor).dtype == np.float64
        np.testing.assert_array_equal(canonicalize(tensor).data, [2.0])

    def test_complex_values_are_refused(self):
        with pytest.raises(InvalidTypeError, match="complex128"):
            canonicalize(coo_array(np.eye(2) * 1j))

    def test_shape_beyond_64_bits(self):
        shape = (2**40, 2**40, 7)
        coords = ([2**39, 5, 5, 2**39], [3, 2**39 + 1, 2**39, 3], [1, 0, 6, 1])
        tensor = coo_array((np.arange(1.0, 5.0), coords), shape=shape)
        result = canonicalize(tensor)
        assert result.shape == shape
        expected = [[5, 5, 2**39], [2**39, 2**39 + 1, 3], [6, 0, 1]]
        np.testing.assert_array_equal(np.stack(result.coords), expected)
        np.testing.assert_array_equal(result.data, [3.0, 2.0, 5.0])
        assert result.coords[0].dtype == np.int64
        assert SparseTensor(tensor).layout(2).n_fibres in (2, 3)

    def test_float32_duplicates_are_summed_in_float64(self):
        values = np.full(10**6, 0.1, np.float32)
        tensor = coo_array((values, np.zeros((3, 10**6), np.int64)), shape=(2, 2, 2))
        expected = np.float64(np.float32(0.1)) * 10**6
        np.testing.assert_allclose(canonicalize(tensor).data, [expected], rtol=1e-7)


class TestMttkrp:
    @settings(max_examples=25)
    @given(sparse_tensors(), st.integers(1, 9), st.sampled_from("CF"))
    def test_is_its_twin(self, case, n_components, order):
        tensor, rng = case
        factors = random_factors(rng, tensor.shape, n_components, tensor.dtype)
        factors = [np.asarray(factor, order=order) for factor in factors]
        sparse = SparseTensor(tensor)
        assert (sparse.ndim, sparse.dtype) == (tensor.ndim, tensor.dtype)
        for mode in range(tensor.ndim):
            result = sparse.mttkrp(factors, mode)
            assert result.dtype == tensor.dtype
            assert result.flags.c_contiguous
            expected = twin_mttkrp(tensor.toarray(), factors, mode)
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("n_components", [16, 129, 300])
    @pytest.mark.parametrize("shape", [(50, 40), (30, 20, 10), (12, 10, 8, 6)])
    def test_float64_accuracy(self, shape, n_components):
        rng = np.random.default_rng(1)
        tensor = random_coo(rng, shape, 3000)
        factors = random_factors(rng, shape, n_components)
        for mode in range(len(shape)):
            result = SparseTensor(tensor).mttkrp(factors, mode)
            expected = twin_mttkrp(tensor.toarray(), factors, mode)
            np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_heavy_row_and_thread_counts(self, dtype):
        rng = np.random.default_rng(2)
        tensor = SparseTensor(heavy_coo(rng, dtype=dtype))
        layout = tensor.layout(0)
        np.testing.assert_array_equal(layout.split_rows, [17])
        assert layout.n_partial > 20
        assert all(len(tensor.layout(mode).segment_blocks) > 1 for mode in range(3))
        factors = random_factors(rng, tensor.shape, 12, dtype)
        for mode in range(3):
            results = []
            for n_threads in (1, 2, 3):
                with thread_limit(n_threads):
                    results.append(tensor.mttkrp(factors, mode))
            np.testing.assert_array_equal(results[0], results[1])
            np.testing.assert_array_equal(results[0], results[2])
            expected = np.zeros((tensor.shape[mode], 12))
            others = [k for k in range(3) if k != mode]
            rows = np.prod([factors[k][tensor.coords[k]] for k in others], axis=0)
            np.add.at(expected, tensor.coords[mode], tensor.values[:, None] * rows)
            atol = 1e-10 if dtype == np.float64 else 1e-3
            np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=atol)

    def test_float32_sums_of_a_million_entries(self):
        rng = np.random.default_rng(3)
        n = 10**6
        coords = np.unravel_index(rng.permutation(2 * n)[:n], (1, 2000, 1000))
        values = (rng.random(n) + 0.5).astype(np.float32)
        tensor = SparseTensor(coo_array((values, coords), shape=(1, 2000, 1000)))
        ones = [np.ones((size, 2), np.float32) for size in tensor.shape]
        total = values.sum(dtype=np.float64)
        np.testing.assert_allclose(tensor.mttkrp(ones, 0), total, rtol=1e-6)

    def test_dimensions_beyond_32_bits(self):
        """A factor of 2**33 rows would not fit into memory, but the layout does."""
        tensor = SparseTensor(random_coo(np.random.default_rng(4), (3, 2**33, 5), 50))
        assert all(row.dtype == np.int64 for row in tensor.coords)
        coords = np.stack(tensor.coords)
        np.testing.assert_array_equal(np.lexsort(coords[::-1]), np.arange(50))
        assert tensor.layout(0).inner == 1
        pieces = tensor.layout(0).pieces
        assert pieces.singles.dtype == np.uint64
        found = np.append(pieces.quads[:, 1:].ravel(), pieces.singles[:, 1])
        np.testing.assert_array_equal(np.sort(found), np.sort(coords[1]).astype(np.uint64))

    def test_wide_indices_give_the_same(self):
        rng = np.random.default_rng(5)
        tensor = random_coo(rng, (20, 15, 10), 400)
        factors = random_factors(rng, tensor.shape, 6)
        narrow, wide = SparseTensor(tensor), SparseTensor(tensor)
        wide._coords = wide._coords.astype(np.int64)
        for mode in range(3):
            np.testing.assert_array_equal(wide.mttkrp(factors, mode), narrow.mttkrp(factors, mode))
        np.testing.assert_array_equal(wide.values_of(factors), narrow.values_of(factors))

    def test_inner_mode_has_the_fewest_fibres(self):
        rng = np.random.default_rng(6)
        tensor = SparseTensor(random_coo(rng, (30, 5, 400), 5000))
        coords = np.stack(tensor.coords)
        for mode in range(3):
            layout = tensor.layout(mode)
            counts = {
                k: np.unique(np.delete(coords, k, axis=0), axis=1).shape[1]
                for k in range(3)
                if k != mode
            }
            assert layout.n_fibres == counts[layout.inner] == min(counts.values())
            assert tensor.layout(mode) is layout

    def test_read_only_and_strided_factors(self):
        rng = np.random.default_rng(7)
        tensor = SparseTensor(random_coo(rng, (6, 5, 4), 40))
        factors = random_factors(rng, tensor.shape, 8)
        expected = tensor.mttkrp(factors, 1)
        compiled = len(kernels.mttkrp_spans.signatures)
        strided = [np.repeat(factor, 2, axis=1)[:, ::2] for factor in factors]
        for factor in factors:
            factor.flags.writeable = False
        np.testing.assert_array_equal(tensor.mttkrp(factors, 1), expected)
        np.testing.assert_array_equal(tensor.mttkrp(strided, 1), expected)
        assert len(kernels.mttkrp_spans.signatures) == compiled

    def test_wrong_factors_are_refused(self):
        tensor = SparseTensor(random_coo(np.random.default_rng(8), (3, 4, 5), 9))
        good = [np.ones((n, 2)) for n in tensor.shape]
        for bad in (good[:2], [*good[:2], np.ones((4, 2))], [*good[:2], np.ones((5, 3))]):
            with pytest.raises(InvalidInputError, match="shapes"):
                tensor.mttkrp(bad, 0)
        with pytest.raises(InvalidInputError, match="two modes"):
            SparseTensor(coo_array(np.arange(3.0)))

    def test_memory_of_a_tensor_that_cannot_be_dense(self):
        rng = np.random.default_rng(9)
        tensor = random_coo(rng, (200_000,) * 3, 100_000)
        factors = random_factors(rng, tensor.shape, 4)
        SparseTensor(random_coo(rng, (3, 3, 3), 9)).mttkrp([np.ones((3, 4))] * 3, 0)
        tracemalloc.start()
        sparse = SparseTensor(tensor)
        results = [sparse.mttkrp(factors, mode) for mode in range(3)]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * factors[0].nbytes + 60e6
        row = sparse.coords[1][0]
        p = sparse.coords[1] == row
        expected = sparse.values[p] @ (
            factors[0][sparse.coords[0][p]] * factors[2][sparse.coords[2][p]]
        )
        np.testing.assert_allclose(results[1][row], expected)


class TestValues:
    @settings(max_examples=25)
    @given(sparse_tensors(), st.integers(1, 20))
    def test_values_of_is_its_twin(self, case, n_components):
        tensor, rng = case
        sparse = SparseTensor(tensor)
        factors = random_factors(rng, tensor.shape, n_components, tensor.dtype)
        result = sparse.values_of(factors)
        assert result.dtype == tensor.dtype
        expected = twin_values(factors, sparse.coords)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(kruskal_values(factors, np.stack(sparse.coords)), result)

    def test_thread_counts(self):
        rng = np.random.default_rng(10)
        tensor = SparseTensor(heavy_coo(rng))
        factors = random_factors(rng, tensor.shape, 10)
        results = []
        for n_threads in (1, 2, 3):
            with thread_limit(n_threads):
                results.append((tensor.values_of(factors), tensor.norm_squared()))
        for values, norm in results[1:]:
            np.testing.assert_array_equal(values, results[0][0])
            assert norm == results[0][1]
        np.testing.assert_allclose(results[0][1], np.sum(tensor.values**2), rtol=1e-12)

    def test_norm_of_float32_does_not_overflow(self):
        tensor = coo_array(np.full((2, 3), 1e30, np.float32))
        np.testing.assert_allclose(SparseTensor(tensor).norm_squared(), 6e60)
        assert SparseTensor(coo_array((2, 3))).norm_squared() == 0.0

    def test_bad_coordinates_are_refused(self):
        factors = [np.ones((3, 2)), np.ones((4, 2))]
        for coords in ([[0, 3], [0, 0]], [[0, -1], [0, 0]], [[0, 1]], [[0.0], [1.0]]):
            with pytest.raises(InvalidInputError, match="coords"):
                kruskal_values(factors, np.array(coords))

    def test_mixed_types_give_float64(self):
        factors = [np.ones((3, 2), np.float32), np.ones((4, 2))]
        result = kruskal_values(factors, np.array([[2], [3]], np.uint8))
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, [2.0])


class TestObservedLeastSquares:
    @settings(max_examples=25)
    @given(sparse_tensors(), st.integers(1, 6), st.floats(1e-3, 10))
    def test_is_its_twin(self, case, n_components, ridge):
        tensor, rng = case
        sparse = SparseTensor(tensor)
        factors = random_factors(rng, tensor.shape, n_components, tensor.dtype)
        for mode in range(tensor.ndim):
            result = sparse.observed_least_squares(factors, mode, ridge, factors[mode])
            assert result.dtype == tensor.dtype
            expected = twin_observed(sparse, factors, mode, ridge)
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)

    def test_rows_without_entries_keep_the_fallback(self):
        rng = np.random.default_rng(11)
        tensor = SparseTensor(coo_array((np.ones(2), ([1, 3], [0, 1], [2, 2])), shape=(5, 2, 3)))
        factors = random_factors(rng, tensor.shape, 2)
        fallback = rng.standard_normal((5, 2))
        result = tensor.observed_least_squares(factors, 0, 0.1, fallback)
        np.testing.assert_array_equal(result[[0, 2, 4]], fallback[[0, 2, 4]])
        assert not np.shares_memory(result, fallback)
        with pytest.raises(InvalidInputError, match="fallback"):
            tensor.observed_least_squares(factors, 0, 0.1, fallback[:4])

    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
    @pytest.mark.parametrize("n_entries", [60, 4000])
    def test_without_ridge_it_is_the_solution_of_least_norm(self, scale, n_entries):
        rng = np.random.default_rng(12)
        tensor = SparseTensor(random_coo(rng, (10, 20, 30), n_entries))
        factors = [scale * factor for factor in random_factors(rng, tensor.shape, 12)]
        result = tensor.observed_least_squares(factors, 0, 0.0, factors[0])
        expected = twin_observed(tensor, factors, 0, 0.0)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 / scale**2)

    def test_zero_and_equal_columns(self):
        rng = np.random.default_rng(13)
        tensor = SparseTensor(random_coo(rng, (10, 20, 30), 2000))
        factors = random_factors(rng, tensor.shape, 6)
        for factor in factors:
            factor[:, 1] = 0
            factor[:, 3] = factor[:, 2]
        result = tensor.observed_least_squares(factors, 0, 0.0, factors[0])
        expected = twin_observed(tensor, factors, 0, 0.0)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
        zeros = [np.zeros_like(factor) for factor in factors]
        assert not tensor.observed_least_squares(zeros, 0, 0.0, factors[0]).any()

    def test_what_is_not_finite_stays_visible(self):
        tensor = SparseTensor(coo_array(np.eye(3)))
        factors = [np.ones((3, 2)), np.full((3, 2), np.inf)]
        assert np.isnan(tensor.observed_least_squares(factors, 0, 0.0, factors[0])).all()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_thread_counts_and_heavy_rows(self, dtype):
        rng = np.random.default_rng(14)
        tensor = SparseTensor(heavy_coo(rng, dtype=dtype))
        factors = random_factors(rng, tensor.shape, 10, dtype)
        assert len(tensor.layout(1).row_blocks) > 3
        for mode in range(3):
            results = []
            for n_threads in (1, 2, 3):
                with thread_limit(n_threads):
                    results.append(tensor.observed_least_squares(factors, mode, 0.1, factors[mode]))
            np.testing.assert_array_equal(results[0], results[1])
            np.testing.assert_array_equal(results[0], results[2])


def test_to_coo_round_trip():
    tensor = random_coo(np.random.default_rng(15), (4, 5, 6), 50)
    sparse = SparseTensor(tensor)
    np.testing.assert_allclose(sparse.to_coo().toarray(), tensor.toarray())
    assert sparse.to_coo().has_canonical_format
    assert np.shares_memory(sparse.to_coo().data, sparse.values)
    assert sparse.nnz == sparse.to_coo().nnz


def test_first_use_in_a_process_loads_compiled_kernels():
    """No kernel is compiled again in a second process: all of them have a cache."""
    tensor, ones = SparseTensor(coo_array(np.eye(3))), [np.ones((3, 2))] * 2
    tensor.mttkrp(ones, 0)
    tensor.values_of(ones)
    tensor.observed_least_squares(ones, 0, 1.0, ones[0])
    code = (
        "import numpy as np; from scipy.sparse import coo_array; from polyad.tensor import kernels;"
        "from polyad.tensor.sparse import SparseTensor; X = SparseTensor(coo_array(np.eye(3)));"
        "F = [np.ones((3, 2))] * 2; X.mttkrp(F, 0); X.values_of(F);"
        "X.observed_least_squares(F, 0, 1.0, F[0]);"
        "used = [f for f in vars(kernels).values() if getattr(f, 'signatures', None)];"
        "raise SystemExit(sum(f.stats.cache_misses.total() for f in used if f.stats.cache_misses))"
    )
    assert run(code).returncode == 0


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4), (4, 3, 3, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_values_at_the_same_coordinates(shape, dtype):
    generator = np.random.default_rng(0)
    dense = generator.random(shape) * (generator.random(shape) < 0.6)
    tensor = SparseTensor(coo_array(dense.astype(dtype)))
    factors = [generator.random((n, 3)).astype(dtype) for n in shape]
    for _ in range(2):
        values = generator.random(tensor.nnz).astype(dtype)
        other = tensor.with_values(values)
        same = SparseTensor(coo_array((values, tensor.coords), shape=shape))
        for mode in range(len(shape)):
            assert np.array_equal(other.mttkrp(factors, mode), same.mttkrp(factors, mode))
    with pytest.raises(InvalidInputError, match="is needed"):
        tensor.with_values(values[1:])
