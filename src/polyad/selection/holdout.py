"""Hide entries of a tensor from a fit, to be predicted afterwards.

What hiding means depends on what an absent entry means:

* dense data: hidden entries become NaN, which estimators leave out of their sums;
* sparse data whose absent entries are unobserved: hidden entries are no longer stored;
* sparse data whose absent entries are zero: an entry that is no longer stored would be seen as a
  zero, which is a wrong value and not a hidden one. A tensor of moderate size is therefore made
  dense, with NaN at hidden nonzeros and hidden zeros. A larger one becomes a sample of known
  entries: its nonzeros and a random set of its zeros, stored explicitly, all else unobserved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import coo_array

from polyad.arrays import to_numpy
from polyad.exceptions import InvalidInputError
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.validation import Missing


@dataclass(frozen=True)
class HoldoutOptions:
    """How entries are hidden.

    Attributes
    ----------
    share : float
        The part of the entries to hide.
    missing : {'zero', 'unobserved'}
        What an absent entry of sparse data means.
    max_dense_cells : int
        Sparse data with implied zeros is made dense up to this number of cells.
    zeros_per_entry : float
        Beyond, so many zeros are sampled for each nonzero.
    """

    share: float
    missing: Missing
    max_dense_cells: int
    zeros_per_entry: float


@dataclass(frozen=True)
class Holdout:
    """Data without the hidden entries, and these.

    Attributes
    ----------
    train : array or coo_array
        What a fit may see.
    missing : {'zero', 'unobserved'}
        What an entry that ``train`` does not store means.
    coords : array of int of shape (n_modes, n_hidden)
        Where the hidden entries are.
    values : array of float of shape (n_hidden,)
        What they are.
    """

    train: Any
    missing: Missing
    coords: NDArray[Any]
    values: NDArray[Any]


def hide_entries(data: Any, options: HoldoutOptions, seed: int) -> Holdout:
    """Hide a random share of the known entries of a tensor.

    Every slice of every mode that had a known entry keeps one: nothing can be predicted for a
    sample, or any other index, of which nothing is known.

    Parameters
    ----------
    data : array or coo_array
        Dense with NaN for missing entries, or canonical sparse data.
    options : HoldoutOptions
        How to hide.
    seed : int
        Decides which entries; the same seed hides the same ones.
    """
    generator = np.random.default_rng(seed)
    if not isinstance(data, coo_array):
        known = np.flatnonzero(~np.isnan(to_numpy(data)))
        return _hidden_in_dense(data, _draw(generator, known, options.share))
    if options.missing == "unobserved":
        return _hidden_in_sparse(data, options.share, generator)
    if math.prod(data.shape) <= options.max_dense_cells:
        dense = data.toarray()
        # The same share of either kind, so that hidden entries are like all entries.
        is_zero = dense.ravel() == 0
        kinds = (np.flatnonzero(~is_zero), np.flatnonzero(is_zero))
        chosen = [_draw(generator, kind, options.share) for kind in kinds if len(kind)]
        return _hidden_in_dense(dense, np.concatenate(chosen))
    zeros = sample_zeros(data, round(options.zeros_per_entry * data.nnz), generator)
    return _hidden_in_sparse(_with_zeros(data, zeros), options.share, generator)


def sample_zeros(
    data: coo_array[Any, Any], n: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return the coordinates of random cells that are not stored, each at most once.

    Parameters
    ----------
    data : coo_array
        Canonical. Its number of cells may exceed 64 bits; memory follows ``n`` and its nonzeros.
    n : int
        How many; at most half of the absent cells are given, so that few draws are rejected.
    generator : numpy Generator
        Draws the cells.

    Returns
    -------
    array of int of shape (n_modes, n_cells)
        In lexicographic order.
    """
    n = min(n, (math.prod(data.shape) - data.nnz) // 2)
    found = np.zeros((data.ndim, 0), dtype=np.int64)
    while found.shape[1] < n:
        n_drawn = 2 * (n - found.shape[1]) + 16
        drawn = np.stack([generator.integers(0, size, n_drawn) for size in data.shape])
        cells = np.concatenate([np.stack(data.coords), found, drawn], axis=1)
        # Duplicates add up: what is stored counts as one, so that absent cells stay zero.
        marks = np.zeros(cells.shape[1])
        marks[: data.nnz] = 1.0
        merged = canonicalize(coo_array((marks, tuple(cells)), shape=data.shape))
        found = np.stack(merged.coords)[:, merged.data == 0].astype(np.int64)
    kept = generator.choice(found.shape[1], n, replace=False, shuffle=False)
    return found[:, np.sort(kept)]


def _draw(generator: np.random.Generator, positions: NDArray[Any], share: float) -> NDArray[Any]:
    n = min(len(positions), max(1, round(share * len(positions))))
    return positions[generator.choice(len(positions), n, replace=False, shuffle=False)]


def _hidden_in_dense(data: Any, hidden: NDArray[Any]) -> Holdout:
    values = to_numpy(data)
    known = ~np.isnan(values)
    known.ravel()[hidden] = False
    coords = np.stack(np.unravel_index(hidden, values.shape))
    axes = range(values.ndim)
    covered = [known.any(axis=tuple(k for k in axes if k != mode)) for mode in axes]
    coords = coords[:, _predictable(covered, coords)]
    hide = np.zeros(values.shape, dtype=bool)
    hide[tuple(coords)] = True
    xp = array_namespace(data)
    train = xp.where(xp.asarray(hide, device=device(data)), xp.full_like(data, math.nan), data)
    return Holdout(train, "zero", coords, values[tuple(coords)])


def _hidden_in_sparse(
    data: coo_array[Any, Any], share: float, generator: np.random.Generator
) -> Holdout:
    """Hide stored entries, nonzeros and explicit zeros each by the same share."""
    kinds = (np.flatnonzero(data.data != 0), np.flatnonzero(data.data == 0))
    hidden = np.concatenate([_draw(generator, kind, share) for kind in kinds if len(kind)])
    coords = np.stack(data.coords)
    known = np.ones(data.nnz, dtype=bool)
    known[hidden] = False
    covered = [
        np.bincount(row[known], minlength=size) > 0
        for row, size in zip(coords, data.shape, strict=True)
    ]
    hidden = np.sort(hidden[_predictable(covered, coords[:, hidden])])
    known = np.ones(data.nnz, dtype=bool)
    known[hidden] = False
    train = coo_array((data.data[known], tuple(coords[:, known])), shape=data.shape)
    return Holdout(train, "unobserved", coords[:, hidden], data.data[hidden])


def _predictable(covered: Sequence[NDArray[Any]], coords: NDArray[Any]) -> NDArray[Any]:
    """Say which hidden entries lie in slices of which something is still known."""
    fine = np.ones(coords.shape[1], dtype=bool)
    for row, seen in zip(coords, covered, strict=True):
        fine &= seen[row]
    if not fine.any():
        message = (
            "No entry can be held out: each is the only known one of a slice of some mode. Give "
            "more data, a smaller heldout_share, or use method='stability'."
        )
        raise InvalidInputError(message)
    return fine


def _with_zeros(data: coo_array[Any, Any], zeros: NDArray[Any]) -> coo_array[Any, Any]:
    """Return sparse data that also stores some zeros."""
    coords = np.concatenate([np.stack(data.coords), zeros], axis=1)
    values = np.concatenate([data.data, np.zeros(zeros.shape[1], dtype=data.dtype)])
    return canonicalize(coo_array((values, tuple(coords)), shape=data.shape))
