"""Numba kernels: the order of items, and rounds: from tables of workers to posteriors and back.

Labels are sorted by item: those of item ``i`` are ``codes[starts[i]:starts[i + 1]]``, each the
number of a pair of a worker and a label. Tables, laid out flat, have a column for each class, and
one more, whose share is zero, if their number is odd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import kernel, ordered_part, owning_part, part
from polyad.core.vector_math import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Whole = NDArray[np.integer[Any]]
    Labels = tuple[Whole, NDArray[np.int32], NDArray[np.int32]]

# Items whose exponentials are taken in one go.
_TILE = 256
# Unsigned: sums with signed numbers would be floats.
_0, _1, _2, _3, _4 = (np.uint64(number) for number in range(5))


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


@ordered_part
def sum_logs(
    labels: Labels,
    logs: tuple[NDArray[np.float64], NDArray[np.float64]],
    items: tuple[int, int],
    out: NDArray[np.float64],
) -> None:
    """Add up the logarithms of some items; what is known of one rules out its other classes.

    Unsigned positions, four columns at a time and then two, each in order: half the time of a plain
    loop.
    """
    starts, codes, known = labels
    table, shares = logs
    width, first = np.uint64(len(shares)), np.uint64(items[0])
    for i in range(np.uint64(items[1]) - first):
        begin, end = np.uint64(starts[first + i]), np.uint64(starts[first + i + _1])
        k = _0
        while k + _4 <= width:
            a, b, c, d = shares[k], shares[k + _1], shares[k + _2], shares[k + _3]
            for position in range(begin, end):
                place = np.uint64(codes[position]) * width + k
                a += table[place]
                b += table[place + _1]
                c += table[place + _2]
                d += table[place + _3]
            out[k, i], out[k + _1, i], out[k + _2, i], out[k + _3, i] = a, b, c, d
            k += _4
        if k < width:
            a, b = shares[k], shares[k + _1]
            for position in range(begin, end):
                place = np.uint64(codes[position]) * width + k
                a += table[place]
                b += table[place + _1]
            out[k, i], out[k + _1, i] = a, b
        if len(known) and known[first + i] >= 0:
            for other in range(len(out)):
                if other != known[first + i]:
                    out[other, i] = -np.inf


@owning_part
def normalise(found: NDArray[np.float64], n_items: int) -> float:
    """Make posteriors of logarithms, class by class, and return the sum of what they lacked."""
    n_classes = len(found)
    top, total, likelihood = np.full(_TILE, -np.inf), np.zeros(_TILE), 0.0
    for k in range(n_classes):
        for i in range(n_items):
            top[i] = max(top[i], found[k, i])
    for k in range(n_classes):
        for i in range(n_items):
            found[k, i] = fast_exp(found[k, i] - top[i])
            total[i] += found[k, i]
    for i in range(n_items):
        likelihood += top[i] + fast_log(total[i])
        total[i] = 1.0 / total[i]
    for k in range(n_classes):
        for i in range(n_items):
            found[k, i] *= total[i]
    return likelihood


@part
def add_posteriors(
    labels: Labels,
    found: NDArray[np.float64],
    items: tuple[int, int],
    out: NDArray[np.float64],
) -> None:
    """Add the posteriors of some items to the rows of their labels."""
    starts, codes, _ = labels
    width, first = np.uint64(len(found)), np.uint64(items[0])
    for i in range(np.uint64(items[1]) - first):
        begin, end = np.uint64(starts[first + i]), np.uint64(starts[first + i + _1])
        k = _0
        while k + _4 <= width:
            a, b, c, d = found[k, i], found[k + _1, i], found[k + _2, i], found[k + _3, i]
            for position in range(begin, end):
                place = np.uint64(codes[position]) * width + k
                out[place] += a
                out[place + _1] += b
                out[place + _2] += c
                out[place + _3] += d
            k += _4
        if k < width:
            a, b = found[k, i], found[k + _1, i]
            for position in range(begin, end):
                place = np.uint64(codes[position]) * width + k
                out[place] += a
                out[place + _1] += b


@kernel
def pass_over(
    labels: Labels,
    logs: tuple[NDArray[np.float64], NDArray[np.float64]],
    items: tuple[int, int],
    posteriors: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> float:
    """Find the posteriors of a block of items, and return the log-likelihood of their labels.

    ``labels`` are starts, codes, and the known class of each item or -1, or nothing; ``logs`` a
    table and the shares of classes. Posteriors are written, and added to the rows of labels and the
    last row, where there is room: an empty array has none.
    """
    found, likelihood = np.empty((len(logs[1]), _TILE)), 0.0
    for first in range(items[0], items[1], _TILE):
        last = min(first + _TILE, items[1])
        sum_logs(labels, logs, (first, last), found)
        likelihood += normalise(found, last - first)
        for i in range(first, min(last, len(posteriors))):
            for k in range(posteriors.shape[1]):
                posteriors[i, k] = found[k, i - first]
        if len(expected):
            add_posteriors(labels, found, (first, last), expected)
            for k in range(len(found)):
                total = 0.0
                for i in range(last - first):
                    total += found[k, i]
                expected[len(expected) - len(found) + k] += total
    return likelihood


@part
def risen(x: float) -> tuple[float, float]:
    """Return ``x (x + 1) ... (x + 9)`` and its derivative."""
    product, slope = x, 1.0
    for step in range(1, 10):
        slope = slope * (x + step) + product
        product *= x + step
    return product, slope


@part
def stirling_rest(r: float) -> float:
    """Return the sum of Stirling's series, whose argument is one over ``r`` (6.1.41)."""
    z = r * r
    p = ((z * (1 / 156) - 691 / 360360) * z + 1 / 1188) * z - 1 / 1680
    return (((p * z + 1 / 1260) * z - 1 / 360) * z + 1 / 12) * r


@ordered_part
def log_one_plus(x: float) -> float:
    """Return log(1 + x), for small ``x`` too."""
    near = 1.0 + x
    lost = near - 1.0
    return fast_log(near) * (x / lost) if lost != 0.0 else x


@kernel
def fill_slopes(x: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Fill the derivatives of the log-gamma function of positive numbers below 1e27.

    Stirling's series ten steps up, and back (Abramowitz and Stegun, 6.3.18): without branches,
    three times as fast as SciPy.
    """
    for place in range(len(x)):
        product, slope = risen(x[place])
        y = x[place] + 10.0
        inverse = 1.0 / (product * y)  # of both: divisions take most of the time
        r = product * inverse
        z = r * r
        p = ((z * (1 / 12) - 691 / 32760) * z + 1 / 132) * z - 1 / 240
        p = ((p * z + 1 / 252) * z - 1 / 120) * z + 1 / 12
        out[place] = fast_log(y) - 0.5 * r - p * z - slope * (y * inverse)


@kernel
def fill_rises(
    x: NDArray[np.float64], added: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """Fill how much the log-gamma function rises where something is added to positive numbers.

    As exact as what is added, however large the number: the difference of two values would not be.
    """
    for place in range(len(x)):
        n, y = added[place], x[place] + 10.0
        rise = (y + n - 0.5) * log_one_plus(n / y) + n * fast_log(y) - n
        rise += stirling_rest(1.0 / (y + n)) - stirling_rest(1.0 / y)
        out[place] = rise - fast_log(risen(x[place] + n)[0] / risen(x[place])[0])


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
