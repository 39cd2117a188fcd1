"""Hidden entries: never seen by the fit, in every form of the data."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad.exceptions import InvalidInputError
from polyad.selection.holdout import HoldoutOptions, hide_entries, sample_zeros
from polyad.tensor.sparse import canonicalize

SHAPE = (12, 10, 8)


def options(missing="zero", share=0.2, zeros_per_entry=4.0):
    return HoldoutOptions(share, missing, zeros_per_entry)


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
    assert not hidden.is_open
    together = hidden.train + coo_array((hidden.values, tuple(hidden.coords)), shape=SHAPE)
    assert hidden.train.nnz + len(hidden.values) == X.nnz
    np.testing.assert_array_equal(together.toarray(), X.toarray())


@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_nonzeros_and_zeros_are_hidden_where_zeros_are_implied(ratio):
    X = sparse()
    hidden = hide_entries(X, options(zeros_per_entry=ratio), seed=1)
    assert hidden.is_open
    dense, n_nonzeros = X.toarray(), np.sum(hidden.values != 0)
    np.testing.assert_array_equal(hidden.values, dense[tuple(hidden.coords)])
    assert n_nonzeros == round(0.2 * X.nnz) == X.nnz - hidden.train.nnz
    assert 0.7 * ratio * n_nonzeros < np.sum(hidden.values == 0) <= ratio * n_nonzeros
    assert len(set(zip(*hidden.coords, strict=True))) == len(hidden.values)
    assert hidden.weights.sum() == pytest.approx(1.0)
    assert hidden.weights[hidden.values != 0].sum() == pytest.approx(X.nnz / dense.size)
    filled = hidden.filled(np.full(len(hidden.values), 7.0)).toarray()
    assert (filled[tuple(hidden.coords)] == 7.0).all()
    filled[tuple(hidden.coords)] = dense[tuple(hidden.coords)]
    np.testing.assert_array_equal(filled, dense)


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


def test_weighted_zeros_stand_for_all_zeros():
    """The weighted mean of any function over the drawn zeros is that over all zeros."""
    generator = np.random.default_rng(0)
    entries = sparse(density=0.3, shape=(9, 8, 7)).toarray()
    entries[3:, 1:] = 0.0  # far more in some slices than in others, and none in some
    X = canonicalize(coo_array(entries))
    function = generator.random(X.shape) + np.arange(9)[:, None, None]
    expected = function[X.toarray() == 0].mean()
    found = []
    for seed in range(200):
        cells, weights = sample_zeros(X, 60, np.random.default_rng(seed))
        assert not X.toarray()[tuple(cells)].any()
        found.append(function[tuple(cells)] @ weights)
    assert abs(np.mean(found) - expected) < 4 * np.std(found) / np.sqrt(200) + 0.02


def test_zeros_among_the_entries_are_not_missed():
    """A block of 10**3 cells in 10**9: even draws would never hit it."""
    generator = np.random.default_rng(0)
    X = canonicalize(
        coo_array((np.ones(300), tuple(generator.integers(0, 10, (3, 300)))), shape=(1000,) * 3)
    )
    cells, weights = sample_zeros(X, 400, generator)
    inside = (cells < 10).all(axis=0)
    assert inside.sum() > 100
    assert weights[inside].sum() < 1e-4


def test_zeros_of_a_tensor_whose_cells_exceed_64_bits():
    side = 3_000_000
    X = coo_array((np.ones(50), tuple(np.arange(150).reshape(3, 50))), shape=(side,) * 3)
    assert side**3 > 2**63
    zeros, weights = sample_zeros(canonicalize(X), 1000, np.random.default_rng(0))
    assert zeros.shape[1] > 990  # a few draws repeat each other
    assert zeros.max() > side * 0.99
    assert np.isfinite(weights).all()


def test_sparse_data_without_zeros_hides_nonzeros_only():
    X = canonicalize(coo_array(np.ones((4, 3, 3))))
    hidden = hide_entries(X, options(), seed=0)
    assert (hidden.values == 1).all()
    assert hidden.weights.sum() == pytest.approx(1.0)
