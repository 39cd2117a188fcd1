"""Hide entries of a tensor from a fit, to be predicted afterwards.

What hiding means depends on what an absent entry means:

* dense data: hidden entries become NaN, which estimators leave out of their sums;
* sparse data whose absent entries are unobserved: hidden entries are no longer stored;
* sparse data whose absent entries are zero: an entry that is no longer stored would be seen as a
  zero, which is a wrong value and not a hidden one. Hidden cells, of nonzeros and of zeros, have
  to be filled with what the model itself expects there, fit by fit, until that no longer changes.
  For losses that are lowest where data and expectation agree this ends in a fit to all cells but
  the hidden ones, without a cell made dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device
from scipy.sparse import coo_array

from polyad.core.arrays import namespace_of, to_numpy
from polyad.exceptions import InvalidInputError
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.data.validation import Missing


@dataclass(frozen=True)
class HoldoutOptions:
    """How entries are hidden.

    Attributes
    ----------
    share : float
        The part of the entries to hide.
    missing : {'zero', 'unobserved'}
        What an absent entry of sparse data means.
    zeros_per_entry : float
        For sparse data with implied zeros, so many zeros are hidden for each hidden nonzero.
    """

    share: float
    missing: Missing
    zeros_per_entry: float


@dataclass(frozen=True)
class Holdout:
    """Data without the hidden entries, and these.

    Attributes
    ----------
    train : array or coo_array
        What a fit may see.
    coords : array of int of shape (n_modes, n_hidden)
        Where the hidden entries are.
    values : array of float of shape (n_hidden,)
        What they are.
    weights : array of float of shape (n_hidden,)
        The part of all entries that each stands for; the sum is one.
    is_open : bool
        Whether the hidden cells, absent from ``train``, would be taken for zeros: they have to be
        filled with :meth:`filled`.
    """

    train: Any
    coords: NDArray[Any]
    values: NDArray[Any]
    weights: NDArray[np.float64]
    is_open: bool = False

    def filled(self, expected: NDArray[Any]) -> coo_array[Any, Any]:
        """Return sparse data that has given values in the hidden cells."""
        coords = np.concatenate([np.stack(self.train.coords), self.coords], axis=1)
        values = np.concatenate([self.train.data, expected.astype(self.train.dtype)])
        return canonicalize(coo_array((values, tuple(coords)), shape=self.train.shape))


def hide_entries(data: Any, options: HoldoutOptions, seed: int) -> Holdout:
    """Hide a random share of the known entries of a tensor.

    Every slice of every mode that had a known entry keeps one: nothing can be predicted for a
    sample, or any other index, of which nothing is known. Implied zeros are known entries.
    """
    generator = np.random.default_rng(seed)
    if not isinstance(data, coo_array):
        known = np.flatnonzero(~np.isnan(to_numpy(data)))
        return _hidden_in_dense(data, _draw(generator, known, options.share))
    if options.missing == "unobserved":
        return _hidden_among_stored(data, options.share, generator)
    return _hidden_among_zeros(data, options, generator)


def sample_zeros(
    data: coo_array[Any, Any], n: int, generator: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Draw cells that are not stored, and the share of all such cells that each stands for.

    Half of the draws are even over all cells. The other half takes the index of each mode from a
    stored entry of its own, so that zeros among the entries, where models differ, are not missed in
    a tensor that is nearly empty. Draws that are stored are thrown away; the cells come once each,
    in lexicographic order. Memory follows ``n`` and the nonzeros: the cells may exceed 64 bits.
    """
    n_even = n // 2
    even = np.stack([generator.integers(0, size, n_even) for size in data.shape])
    busy = np.stack([row[generator.integers(0, data.nnz, n - n_even)] for row in data.coords])
    cells = np.concatenate([np.stack(data.coords), even, busy], axis=1)
    # Duplicates add up: a draw counts one, and no number of draws outweighs a stored entry.
    marks = np.ones(cells.shape[1])
    marks[: data.nnz] = -2.0 * n
    merged = canonicalize(coo_array((marks, tuple(cells)), shape=data.shape))
    free = merged.data > 0
    coords, n_drawn = np.stack(merged.coords)[:, free], merged.data[free]
    # The density of the draws, times the number of cells; importance sampling divides by it.
    density = np.ones(coords.shape[1])
    for row, stored, size in zip(coords, data.coords, data.shape, strict=True):
        density *= np.bincount(stored, minlength=size)[row] * (size / data.nnz)
    weights = n_drawn / (0.5 + 0.5 * density)
    return coords, weights / weights.sum()


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
    xp = namespace_of(data)
    train = xp.where(xp.asarray(hide, device=device(data)), xp.full_like(data, math.nan), data)
    return Holdout(train, coords, values[tuple(coords)], _even(coords))


def _hidden_among_stored(
    data: coo_array[Any, Any], share: float, generator: np.random.Generator
) -> Holdout:
    """Take stored entries out; what is not stored was not observed."""
    hidden = _draw(generator, np.arange(data.nnz), share)
    coords = np.stack(data.coords)
    known = np.ones(data.nnz, dtype=bool)
    known[hidden] = False
    covered = [
        np.bincount(row[known], minlength=size) > 0
        for row, size in zip(coords, data.shape, strict=True)
    ]
    hidden = np.sort(hidden[_predictable(covered, coords[:, hidden])])
    train, taken = _split(data, hidden)
    return Holdout(train, taken, data.data[hidden], _even(taken))


def _hidden_among_zeros(
    data: coo_array[Any, Any], options: HoldoutOptions, generator: np.random.Generator
) -> Holdout:
    """Hide nonzeros and zeros, with the weights that the two kinds have among all cells."""
    hidden = np.sort(_draw(generator, np.arange(data.nnz), options.share))
    train, taken = _split(data, hidden)
    n_drawn = max(2, round(options.zeros_per_entry * len(hidden)))
    zeros, weights = sample_zeros(data, n_drawn, generator)
    dense_part = data.nnz / math.prod(data.shape) if zeros.shape[1] else 1.0
    return Holdout(
        train,
        np.concatenate([taken, zeros], axis=1),
        np.concatenate([data.data[hidden], np.zeros(zeros.shape[1], data.dtype)]),
        np.concatenate([dense_part * _even(taken), (1.0 - dense_part) * weights]),
        is_open=True,
    )


def _split(
    data: coo_array[Any, Any], hidden: NDArray[Any]
) -> tuple[coo_array[Any, Any], NDArray[Any]]:
    """Return the data without some stored entries, and the coordinates of these."""
    coords = np.stack(data.coords)
    known = np.ones(data.nnz, dtype=bool)
    known[hidden] = False
    train = coo_array((data.data[known], tuple(coords[:, known])), shape=data.shape)
    return train, coords[:, hidden]


def _even(coords: NDArray[Any]) -> NDArray[np.float64]:
    return np.full(coords.shape[1], 1.0 / coords.shape[1])


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
