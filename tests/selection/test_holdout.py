"""Hidden entries: never seen by the fit, in every form of the data."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad.exceptions import InvalidInputError
from polyad.selection.holdout import HoldoutOptions, hide_entries, sample_zeros
from polyad.tensor.sparse import canonicalize

SHAPE = (12, 10, 8)


def options(missing="zero", share=0.2, max_dense_cells=10**6, zeros_per_entry=1.0):
    return HoldoutOptions(share, missing, max_dense_cells, zeros_per_entry)


def sparse(seed=0, density=0.1, shape=SHAPE):
    generator = np.random.default_rng(seed)
    X = generator.integers(1, 9, shape) * (generator.random(shape) < density)
    return canonicalize(coo_array(X.astype(float)))


@pytest.mark.parametrize("convert", [np.asarray, np.asfortranarray, torch.asarray])
def test_dense_entries_become_nan(convert):
    X = np.random.default_rng(0).random(SHAPE)
    X[0, :3] = np.nan
    hidden = hide_entries(convert(X), options(), seed=1)
    train = np.asarray(hidden.train)
    n_known = np.sum(~np.isnan(X))
    assert len(hidden.values) == round(0.2 * n_known)
    assert np.isnan(train[tuple(hidden.coords)]).all()
    assert np.sum(~np.isnan(train)) == n_known - len(hidden.values)
    np.testing.assert_array_equal(hidden.values, X[tuple(hidden.coords)])
    assert not np.isnan(hidden.values).any()
    assert type(hidden.train) is type(convert(X))


def test_unobserved_entries_are_no_longer_stored():
    X = sparse()
    hidden = hide_entries(X, options("unobserved"), seed=1)
    assert hidden.missing == "unobserved"
    together = hidden.train + coo_array((hidden.values, tuple(hidden.coords)), shape=SHAPE)
    assert hidden.train.nnz + len(hidden.values) == X.nnz
    np.testing.assert_array_equal(together.toarray(), X.toarray())


def test_implied_zeros_of_small_data_become_dense_with_nan():
    X = sparse()
    hidden = hide_entries(X, options(), seed=1)
    dense = X.toarray()
    np.testing.assert_array_equal(hidden.values, dense[tuple(hidden.coords)])
    assert np.isnan(hidden.train[tuple(hidden.coords)]).all()
    seen = ~np.isnan(hidden.train)
    np.testing.assert_array_equal(hidden.train[seen], dense[seen])
    assert np.sum(hidden.values != 0) == pytest.approx(0.2 * X.nnz, abs=1)
    assert np.sum(hidden.values == 0) == pytest.approx(0.2 * (dense.size - X.nnz), abs=1)


@pytest.mark.parametrize("ratio", [1.0, 2.5])
def test_implied_zeros_of_large_data_are_sampled(ratio):
    X = sparse()
    hidden = hide_entries(X, options(max_dense_cells=10, zeros_per_entry=ratio), seed=1)
    assert hidden.missing == "unobserved"
    dense, train = X.toarray(), hidden.train
    np.testing.assert_array_equal(train.data, dense[train.coords])
    np.testing.assert_array_equal(hidden.values, dense[tuple(hidden.coords)])
    cells = set(zip(*train.coords, strict=True)) | set(zip(*hidden.coords, strict=True))
    assert len(cells) == train.nnz + len(hidden.values) == X.nnz + round(ratio * X.nnz)
    assert np.sum(hidden.values != 0) == pytest.approx(0.2 * X.nnz, abs=2)
    assert np.sum(hidden.values == 0) == pytest.approx(0.2 * ratio * X.nnz, abs=2)


@pytest.mark.parametrize("missing", ["zero", "unobserved"])
def test_the_seed_decides(missing):
    X = sparse()
    one, same, other = (hide_entries(X, options(missing), seed=s).coords for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_every_slice_keeps_something_known():
    """Half of all samples have one entry only: those cannot be hidden."""
    coords = np.array([[k, k % 7, k % 5] for k in range(40)] + [[k, 3, 2] for k in range(20)]).T
    X = canonicalize(coo_array((np.ones(60), tuple(coords)), shape=(40, 7, 5)))
    hidden = hide_entries(X, options("unobserved", share=0.5), seed=0)
    assert len(hidden.values) > 5
    for mode, size in enumerate(X.shape):
        assert len(np.unique(hidden.train.coords[mode])) == size
    dense = np.full(X.shape, np.nan)
    dense[X.coords] = 1.0
    hidden = hide_entries(dense, options(share=0.5), seed=0)
    assert (~np.isnan(hidden.train)).any(axis=(1, 2)).all()


def test_nothing_to_hide_is_said():
    X = canonicalize(coo_array((np.ones(3), (range(3), range(3), range(3))), shape=(3, 3, 3)))
    with pytest.raises(InvalidInputError, match="No entry can be held out"):
        hide_entries(X, options("unobserved"), seed=0)


def test_zeros_are_drawn_evenly():
    X = sparse(density=0.3, shape=(4, 3, 3))
    n_zeros = 36 - X.nnz
    counts = np.zeros(X.shape)
    for seed in range(2000):
        cells = sample_zeros(X, 5, np.random.default_rng(seed))
        assert cells.shape == (3, 5)
        np.add.at(counts, tuple(cells), 1)
    assert not counts[X.coords].any()
    free = counts[X.toarray() == 0]
    assert len(free) == n_zeros
    # Standard deviation of a count is about 18 around 10000 / n_zeros.
    assert np.abs(free - 10_000 / n_zeros).max() < 100


def test_zeros_of_a_tensor_whose_cells_exceed_64_bits():
    side = 3_000_000
    X = coo_array((np.ones(50), tuple(np.arange(150).reshape(3, 50))), shape=(side,) * 3)
    assert side**3 > 2**63
    zeros = sample_zeros(canonicalize(X), 1000, np.random.default_rng(0))
    assert zeros.shape == (3, 1000)
    assert zeros.max() > side * 0.99


def test_at_most_half_of_the_zeros_are_drawn():
    X = sparse(density=0.9, shape=(4, 3, 3))
    free = math.prod(X.shape) - X.nnz
    assert sample_zeros(X, 10**6, np.random.default_rng(0)).shape[1] == free // 2
