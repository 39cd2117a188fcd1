"""Numba kernels of a round: from tables of workers to posteriors of items, and back to counts.

Labels are sorted by item: those of item ``i`` are ``codes[starts[i]:starts[i + 1]]``, each the
number of a pair of a worker and a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.core.compiled import kernel, part
from polyad.core.vector_math import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Items whose exponentials are taken in one go.
_TILE = 256


@part
def normalize(
    out: NDArray[np.float64],
    known: NDArray[np.int64],
    first: int,
    last: int,
    totals: NDArray[np.float64],
) -> None:
    """Make probabilities of the odds of items, or of what is known, and keep the sums of odds."""
    n_classes = len(out) // len(known)
    for i in range(first, last):
        base = i * n_classes
        total = 0.0
        for k in range(n_classes):
            total += out[base + k]
        for k in range(n_classes):
            out[base + k] /= total
        if known[i] >= 0:
            total = 1.0
            for k in range(n_classes):
                out[base + k] = 1.0 if k == known[i] else 0.0
        totals[i - first] = total


@kernel
def fill_posteriors(
    labels: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]],
    table: NDArray[np.float64],
    shares: NDArray[np.float64],
    out: NDArray[np.float64],
    place: tuple[int, int],
) -> float:
    """Fill the posteriors of a block of items, and return the log-likelihood of their labels.

    ``labels`` are starts, codes, and the known class of each item or -1; ``table`` and ``shares``
    hold logarithms; ``out`` is flat, item after item.
    """
    starts, codes, known = labels
    n_classes = len(shares)
    likelihood = 0.0
    totals = np.empty(_TILE)
    for first in range(place[0], place[1], _TILE):
        last = min(first + _TILE, place[1])
        for i in range(first, last):
            base = i * n_classes
            for k in range(n_classes):
                out[base + k] = shares[k]
            for position in range(starts[i], starts[i + 1]):
                code = codes[position]
                for k in range(n_classes):
                    out[base + k] += table[code, k]
            top = out[base]
            for k in range(1, n_classes):
                top = max(top, out[base + k])
            likelihood += top if known[i] < 0 else out[base + known[i]]
            for k in range(n_classes):
                out[base + k] -= top
        # A loop of its own, which the compiler makes wide.
        for place_of in range(first * n_classes, last * n_classes):
            out[place_of] = fast_exp(out[place_of])
        normalize(out, known, first, last, totals)
        for position in range(last - first):
            likelihood += fast_log(totals[position])
    return likelihood


@kernel
def add_counts(
    starts: NDArray[np.int64],
    codes: NDArray[np.int32],
    weights: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Add the row of each item to those of its labels."""
    n_columns = weights.shape[1]
    for i in range(len(starts) - 1):
        for position in range(starts[i], starts[i + 1]):
            code = codes[position]
            for k in range(n_columns):
                out[code, k] += weights[i, k]
