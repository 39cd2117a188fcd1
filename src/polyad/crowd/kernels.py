"""Numba kernels: the order of items, and rounds: from tables of workers to posteriors and back.

Labels are sorted by item: those of item ``i`` are ``codes[starts[i]:starts[i + 1]]``, each the
number of a pair of a worker and a label. Tables have a column for each class, and more to a
multiple of ``LANES``, whose share is zero: sums of four columns fit a register.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import kernel, owning_part, part
from polyad.core.vector_math import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Whole = NDArray[np.integer[Any]]
    Labels = tuple[Whole, NDArray[np.int32], NDArray[np.int32]]

#: Columns that are added at once.
LANES = 4
# Items whose exponentials are taken in one go.
_TILE = 256


@kernel
def count_labels(items: NDArray[np.int64], out: Whole) -> None:
    """Count the labels of each item."""
    for position in range(len(items)):
        out[items[position]] += 1


@kernel
def place_labels(
    items: NDArray[np.int64],
    own: NDArray[np.int32],
    places: Whole,
    codes: NDArray[np.int32],
) -> None:
    """Put each label into the next place of its item."""
    for position in range(len(items)):
        place = places[items[position]]
        codes[place] = own[position]
        places[items[position]] = place + 1


@part
def sum_logs(
    labels: Labels,
    table: NDArray[np.float64],
    shares: NDArray[np.float64],
    items: tuple[int, int],
    out: NDArray[np.float64],
) -> None:
    """Add up the logarithms of some items; what is known of one rules out its other classes."""
    starts, codes, known = labels
    width = len(shares)
    for i in range(items[0], items[1]):
        base = (i - items[0]) * width
        for k in range(0, width, LANES):
            a, b, c, d = shares[k], shares[k + 1], shares[k + 2], shares[k + 3]
            for position in range(starts[i], starts[i + 1]):
                row = np.uint64(codes[position])
                a += table[row, k]
                b += table[row, k + 1]
                c += table[row, k + 2]
                d += table[row, k + 3]
            out[base + k], out[base + k + 1] = a, b
            out[base + k + 2], out[base + k + 3] = c, d
        if len(known) and known[i] >= 0:
            for k in range(width):
                if k != known[i]:
                    out[base + k] = -np.inf


@owning_part
def fill_tile(
    labels: Labels,
    table: NDArray[np.float64],
    shares: NDArray[np.float64],
    items: tuple[int, int],
    out: NDArray[np.float64],
) -> float:
    """Fill the posteriors of some items, and return the log-likelihood of their labels.

    Loops are many and short, so that the compiler makes each of them wide.
    """
    width, n_items = len(shares), items[1] - items[0]
    likelihood, total = 0.0, np.empty(_TILE)
    sum_logs(labels, table, shares, items, out)
    for i in range(n_items):
        top = out[i * width]
        for k in range(1, width):
            top = max(top, out[i * width + k])
        likelihood += top
        for k in range(width):
            out[i * width + k] -= top
    for place in range(n_items * width):
        out[place] = fast_exp(out[place])
    for i in range(n_items):
        total[i] = 0.0
        for k in range(width):
            total[i] += out[i * width + k]
        scale = 1.0 / total[i]
        for k in range(width):
            out[i * width + k] *= scale
    for i in range(n_items):
        likelihood += fast_log(total[i])
    return likelihood


@kernel
def fill_posteriors(
    labels: Labels,
    table: NDArray[np.float64],
    shares: NDArray[np.float64],
    items: tuple[int, int],
    out: NDArray[np.float64],
) -> float:
    """Fill the posteriors of a block of items, and return the log-likelihood of their labels.

    ``labels`` are starts, codes, and the known class of each item or -1, or nothing; ``table`` and
    ``shares`` hold logarithms.
    """
    width, n_classes, likelihood = len(shares), out.shape[1], 0.0
    found = np.empty(_TILE * width)
    for first in range(items[0], items[1], _TILE):
        last = min(first + _TILE, items[1])
        likelihood += fill_tile(labels, table, shares, (first, last), found)
        for i in range(first, last):
            for k in range(n_classes):
                out[i, k] = found[(i - first) * width + k]
    return likelihood


@kernel
def add_expected(
    labels: Labels,
    table: NDArray[np.float64],
    shares: NDArray[np.float64],
    items: tuple[int, int],
    out: NDArray[np.float64],
) -> float:
    """Add the posteriors of a block of items to the rows of their labels, and to the last row.

    Returns the log-likelihood; nothing is kept of an item.
    """
    starts, codes, _ = labels
    width, likelihood = len(shares), 0.0
    found = np.empty(_TILE * width)
    everything = len(out) - 1
    for first in range(items[0], items[1], _TILE):
        last = min(first + _TILE, items[1])
        likelihood += fill_tile(labels, table, shares, (first, last), found)
        for i in range(first, last):
            for k in range(0, width, LANES):
                base = (i - first) * width + k
                a, b, c, d = found[base], found[base + 1], found[base + 2], found[base + 3]
                for position in range(starts[i], starts[i + 1]):
                    row = np.uint64(codes[position])
                    out[row, k] += a
                    out[row, k + 1] += b
                    out[row, k + 2] += c
                    out[row, k + 3] += d
                out[everything, k] += a
                out[everything, k + 1] += b
                out[everything, k + 2] += c
                out[everything, k + 3] += d
    return likelihood


@kernel
def add_counts(
    starts: Whole,
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
