"""Noise is put where there was nothing, as much of it as the paper says."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from polyad import LabelledTensor
from polyad.datasets import add_noise, make_sparse
from polyad.exceptions import InvalidInputError, InvalidTypeError


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.integers(0, 60),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 10**6),
)
def test_only_zeros_change_and_only_to_counts_in_range(shape, n_draws, p, seed):
    X = np.zeros(shape)
    if n_draws:
        X = make_sparse(shape, n_draws, skew=0.5, random_state=seed).toarray()
    noisy = add_noise(coo_array(X), p, random_state=seed)
    assert noisy.has_canonical_format
    dense = noisy.toarray()
    np.testing.assert_array_equal(dense[X > 0], X[X > 0])
    new = dense[(X == 0) & (dense != 0)]
    n_nonzero = np.count_nonzero(X)
    assert new.size <= min(n_nonzero, X.size - n_nonzero)
    if p == 1.0:
        assert new.size == min(n_nonzero, X.size - n_nonzero)
    if p == 0.0:
        assert new.size == 0
    if new.size:
        assert new.min() >= 1
        assert new.max() <= X.max()
        assert (new == np.round(new)).all()


@pytest.mark.parametrize("share", [0.24, 0.26])
def test_every_zero_is_as_likely_as_any_other(share):
    """Where zeros are guessed and where they are listed alike."""
    generator = np.random.default_rng(0)
    X = (generator.permutation(100) < 100 * share).astype(float).reshape(10, 10)
    n_nonzero, n_zero = int(X.sum()), int((X == 0).sum())
    n_repeats = 400
    # Dense arrays get the noise of sparse ones, in less time.
    first = add_noise(coo_array(X), 0.5, random_state=0).toarray()
    np.testing.assert_array_equal(add_noise(X, 0.5, random_state=0), first)
    hits = sum(add_noise(X, 0.5, random_state=k) for k in range(n_repeats))
    expected = n_repeats * 0.5 * min(n_nonzero, n_zero) / n_zero
    assert (hits[X > 0] == n_repeats).all()
    deviation = (hits[X == 0] - expected) / np.sqrt(expected)
    assert np.abs(deviation).max() < 4.5
    assert hits[X == 0].mean() == pytest.approx(expected, rel=0.05)


def test_counts_are_uniform_up_to_the_largest():
    X = coo_array((np.array([1.0, 4.0] * 2000), (np.arange(4000), np.zeros(4000, int))), (4000, 9))
    noisy = add_noise(X, 1.0, random_state=0)
    new = noisy.toarray()[:, 1:]
    found = np.bincount(new[new > 0].astype(int), minlength=5)[1:]
    assert found.sum() == 4000
    np.testing.assert_allclose(found, 1000, atol=130)


def test_binary_stays_binary():
    X = make_sparse((40, 30, 20), 900, random_state=0)
    X.data[:] = 1
    assert set(add_noise(X, 0.3, random_state=0).data) == {1.0}


def test_the_seed_decides():
    X = make_sparse((40, 30, 20), 900, random_state=0)
    first, again, other = (add_noise(X, 0.3, random_state=k).toarray() for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool])
def test_containers_and_types_are_kept(dtype):
    X = make_sparse((12, 10, 8), 200, random_state=0)
    if dtype is bool:
        X.data[:] = 1
    X = X.astype(dtype)
    expected = np.dtype(dtype if dtype == np.float32 else np.float64)
    sparse = add_noise(X, 0.5, random_state=3)
    dense = add_noise(X.toarray(), 0.5, random_state=3)
    assert isinstance(sparse, coo_array)
    assert isinstance(dense, np.ndarray)
    assert sparse.dtype == dense.dtype == expected
    np.testing.assert_array_equal(sparse.toarray(), dense)
    flat = add_noise(csr_array(X.toarray()[0]), 0.5, random_state=0)
    assert isinstance(flat, coo_array)


def test_labels_are_kept_and_the_data_is_not_changed():
    X = LabelledTensor(
        make_sparse((5, 4, 3), 20, random_state=0),
        modes=["day", "shop", "item"],
        labels={"item": ["tea", "milk", "cake"]},
    )
    before = X.to_dense().copy()
    noisy = add_noise(X, 1.0, random_state=0)
    assert noisy.modes == X.modes
    assert list(noisy.labels[2]) == ["tea", "milk", "cake"]
    assert noisy.labels[0] is None
    assert noisy.is_sparse
    np.testing.assert_array_equal(X.to_dense(), before)


def test_stored_zeros_are_zeros():
    stored = ([1.0, 0.0, 0.0], ([0, 0, 1], [0, 1, 0]))
    X = coo_array(stored, shape=(2, 2))
    found = sum(add_noise(X, 1.0, random_state=k).toarray() for k in range(60))
    assert found[0, 0] == 60
    assert (found > 0).all()


def test_a_tensor_of_more_cells_than_64_bits_count():
    shape = (2**31, 2**31, 2**20)
    coords = tuple(np.arange(1000) * 7 % size for size in shape)
    X = coo_array((np.ones(1000), coords), shape=shape)
    tracemalloc.start()
    noisy = add_noise(X, 0.5, random_state=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1400 < noisy.nnz < 1600
    assert peak < 5e6


@pytest.mark.parametrize("p", [-0.1, 1.5, np.nan, "much", None])
def test_p_is_a_probability(p):
    with pytest.raises(InvalidInputError, match="is not a probability"):
        add_noise(np.eye(3), p)


@pytest.mark.parametrize(
    ("X", "text"),
    [
        (-np.eye(3), "negative"),
        (np.array([[np.nan, 1.0]]), "not finite"),
        (0.5 * np.eye(3), r"not whole, such as 0\.5"),
    ],
)
def test_only_counts(X, text):
    for given_data in (X, coo_array(X)):
        with pytest.raises(InvalidInputError, match=text):
            add_noise(given_data, 0.5)


@pytest.mark.parametrize("X", [[[1, 0]], "text", np.array([["a"]]), np.array(2), None])
def test_other_types_are_refused(X):
    with pytest.raises(InvalidTypeError, match="X must be a LabelledTensor"):
        add_noise(X, 0.5)
