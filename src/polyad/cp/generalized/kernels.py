"""Numba kernels of the sampled fit: drawing cells, sorting them by row, and gradients.

The factors are one matrix, the stack: the rows of mode 0, then those of mode 1, and so on. A cell
is a row of the stack for each mode. A sample is a number of cells; sorted by row, it says for each
row of the stack which of its cells lie in that slice, so that the gradient of a row is one sum
that no other row shares. Blocks of rows are independent, and the result is the same for any
number of threads.

Random numbers are SplitMix64 (Steele, Lea and Flood 2014): the output is a mixture of the bits of
a counter, so that draw ``s`` of iteration ``t`` is a function of the seed, ``t`` and ``s`` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.np.numpy_support import carray

from polyad.core.compiled import kernel, part
from polyad.tensor.kernels import WIDTH, on_stack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[Any]

# SplitMix64: the step of the counter (the golden ratio) and the multipliers of the mixture.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53


class CellList(NamedTuple):
    """Cells of a tensor that are written down."""

    coords: NDArray[Any]
    """(n_cells, n_modes), unsigned; the coordinates of a cell are read together."""
    values: NDArray[np.float64]
    """(n_cells,)."""


class Sample(NamedTuple):
    """Some cells, sorted by the rows of the stack."""

    rows: NDArray[Any]
    """(n_modes, n_cells): the rows of the stack that belong to each cell."""
    values: NDArray[np.float64]
    """(n_cells,): the data."""
    order: NDArray[Any]
    """(n_modes * n_cells,): the cells of row 0 of the stack, then those of row 1, and so on."""
    starts: NDArray[np.int64]
    """(n_rows + 1,): where the cells of each row begin in ``order``."""


class Known(NamedTuple):
    """The part of the gradient that needs no sample: a row a has ``linear + a @ square``."""

    linear: NDArray[np.float64]
    """(n_modes, n_components)."""
    square: NDArray[np.float64]
    """(n_modes, n_components, n_components), symmetric; or (n_modes, 0, 0) for none."""


class Terms(NamedTuple):
    """What a gradient is a sum of."""

    stack: NDArray[np.float64]
    sample: Sample
    slopes: NDArray[np.float64]
    """(n_cells,): the derivatives of the loss at the cells of the sample, weighted."""
    known: Known


@kernel
def mix(counter: np.uint64) -> np.uint64:
    """Return 64 random bits that belong to a counter."""
    z = counter
    z = (z ^ (z >> _S30)) * _FIRST
    z = (z ^ (z >> _S27)) * _SECOND
    return z ^ (z >> _S31)


@part
def _index(counter: np.uint64, size: int) -> int:
    """Return an integer below ``size``; 53 bits make all equally likely up to ``size / 2**53``."""
    place = int(np.float64(mix(counter) >> _S11) * _UNIT * size)
    return min(place, size - 1)


@part
def _mixed(key: np.uint64, coordinate: Any) -> np.uint64:
    """Return the hash of some coordinates and a further one."""
    return (key ^ (key >> _S31) ^ np.uint64(coordinate)) * _STEP


@kernel
def fill_table(coords: Matrix, table: Matrix) -> None:
    """Enter distinct cells (n_cells, n_modes) into a hash table of zeros.

    Its length is a power of two, larger than the number of cells. Place ``p + 1`` stands for
    cell ``p``.
    """
    mask = np.uint64(table.size - 1)
    one = np.uint64(1)
    for p in range(coords.shape[0]):
        key = np.uint64(0)
        for k in range(coords.shape[1]):
            key = _mixed(key, coords[p, k])
        slot = (key ^ (key >> _S31)) & mask
        while table[slot] != 0:
            slot = (slot + one) & mask
        table[slot] = p + 1


@part
def is_stored(coords: Matrix, table: Matrix, points: Matrix, s: int) -> bool:
    """Tell whether point ``s`` of (n_modes, n_points) is in a table, comparing all coordinates.

    No number stands for a cell as a whole, so that there may be more cells than 64 bits count.
    """
    mask = np.uint64(table.size - 1)
    one = np.uint64(1)
    key = np.uint64(0)
    for k in range(points.shape[0]):
        key = _mixed(key, points[k, s])
    slot = (key ^ (key >> _S31)) & mask
    while table[slot] != 0:
        p = table[slot] - one
        k = 0
        while k < points.shape[0] and coords[p, k] == points[k, s]:
            k += 1
        if k == points.shape[0]:
            return True
        slot = (slot + one) & mask
    return False


@kernel
def draw_listed(
    cells: CellList, key: np.uint64, points: Matrix, values: NDArray[np.float64]
) -> None:
    """Draw cells from a list, one from each of equal parts of it.

    The parts are real intervals: with n cells in q parts, part s is from s n / q to (s + 1) n / q,
    and may begin or end within a cell. Each cell is then drawn q / n times on average. If there
    are as many draws as cells, every cell is taken once.
    """
    n_cells, n_draws = cells.values.size, values.size
    length = n_cells / n_draws
    for s in range(n_draws):
        u = np.float64(mix(key + np.uint64(s) * _STEP) >> _S11) * _UNIT
        # The sum may be rounded up to the next part.
        p = s if n_cells == n_draws else min(int((s + u) * length), n_cells - 1)
        for k in range(points.shape[0]):
            points[k, s] = cells.coords[p, k]
        values[s] = cells.values[p]


@kernel
def draw_unstored(
    cells: CellList,
    table: Matrix,
    shape: NDArray[np.int64],
    key: np.uint64,
    points: Matrix,
) -> None:
    """Draw cells that are not on a list, with replacement, by drawing again if one is."""
    for s in range(points.shape[1]):
        counter = mix(key + np.uint64(s) * _STEP)
        while True:
            for k in range(points.shape[0]):
                points[k, s] = _index(counter, shape[k])
                counter += _STEP
            if not is_stored(cells.coords, table, points, s):
                break


@kernel
def sort_sample(offsets: NDArray[np.int64], sample: Sample) -> None:
    """Turn coordinates into rows of the stack, and sort the cells by each of them."""
    rows, _, order, starts = sample
    n_modes, n_cells = rows.shape
    starts[:] = 0
    for k in range(n_modes):
        offset = offsets[k]
        for s in range(n_cells):
            row = rows[k, s] + offset
            rows[k, s] = row
            starts[row] += 1
    # The sum before a row is where it begins; placing from the back leaves it there.
    total = np.int64(0)
    for i in range(starts.size):
        total += starts[i]
        starts[i] = total
    for k in range(n_modes):
        for s in range(n_cells - 1, -1, -1):
            row = rows[k, s]
            starts[row] -= 1
            order[starts[row]] = s


@kernel
def model_values(
    stack: Matrix, rows: Matrix, block: tuple[int, int], out: NDArray[np.float64]
) -> None:
    """Write the values of the model at a block of cells."""
    n_components = stack.shape[1]
    if rows.shape[0] == 3:
        for s in range(block[0], block[1]):
            a, b, c = rows[0, s], rows[1, s], rows[2, s]
            total = 0.0
            for r in range(n_components):
                total += stack[a, r] * stack[b, r] * stack[c, r]
            out[s] = total
        return
    term = np.empty(n_components)
    for s in range(block[0], block[1]):
        a = rows[0, s]
        for r in range(n_components):
            term[r] = stack[a, r]
        for k in range(1, rows.shape[0] - 1):
            b = rows[k, s]
            for r in range(n_components):
                term[r] *= stack[b, r]
        c = rows[rows.shape[0] - 1, s]
        total = 0.0
        for r in range(n_components):
            total += term[r] * stack[c, r]
        out[s] = total


@kernel
def gradient_rows(terms: Terms, block: tuple[int, int, int], out: NDArray[np.float64]) -> None:
    """Write the gradient of a block of rows (mode, first, last)."""
    stack, sample, slopes, known = terms
    mode, first_row, last_row = block
    rows, order, starts = sample.rows, sample.order, sample.starts
    # The sums never leave the function: LLVM then knows that no array overlaps them.
    total = carray(on_stack(slopes), WIDTH)
    term = carray(on_stack(slopes), WIDTH)
    for begin in range(0, stack.shape[1], WIDTH):
        # Sums of signed integers would be tested for negative values at each use as an index.
        first, width = np.uint64(begin), np.uint64(min(WIDTH, stack.shape[1] - begin))
        for i in range(first_row, last_row):
            for r in range(width):
                total[r] = known.linear[mode, first + r]
            for q in range(known.square.shape[1]):
                for r in range(width):
                    total[r] += stack[i, q] * known.square[mode, q, first + r]
            for position in range(starts[i], starts[i + 1]):
                s = order[position]
                for r in range(width):
                    term[r] = slopes[s]
                for k in range(rows.shape[0]):
                    if k != mode:
                        a = rows[k, s]
                        for r in range(width):
                            term[r] *= stack[a, first + r]
                for r in range(width):
                    total[r] += term[r]
            for r in range(width):
                out[i, first + r] = total[r]


@kernel
def gradient_rows_3(terms: Terms, block: tuple[int, int, int], out: NDArray[np.float64]) -> None:
    """Write the gradient of a block of rows for three modes; see :func:`gradient_rows`."""
    stack, sample, slopes, known = terms
    mode, first_row, last_row = block
    order, starts = sample.order, sample.starts
    left, right = sample.rows[(mode + 1) % 3], sample.rows[(mode + 2) % 3]
    total = carray(on_stack(slopes), WIDTH)
    for begin in range(0, stack.shape[1], WIDTH):
        # Sums of signed integers would be tested for negative values at each use as an index.
        first, width = np.uint64(begin), np.uint64(min(WIDTH, stack.shape[1] - begin))
        for i in range(first_row, last_row):
            for r in range(width):
                total[r] = known.linear[mode, first + r]
            for q in range(known.square.shape[1]):
                for r in range(width):
                    total[r] += stack[i, q] * known.square[mode, q, first + r]
            position, end = starts[i], starts[i + 1]
            # Four cells at a time make up for the start of the short loop over the components.
            while position + 4 <= end:
                s, t = order[position], order[position + 1]
                u, v = order[position + 2], order[position + 3]
                a, b, x = left[s], right[s], slopes[s]
                c, d, y = left[t], right[t], slopes[t]
                e, f, z = left[u], right[u], slopes[u]
                g, h, w = left[v], right[v], slopes[v]
                for r in range(width):
                    k = first + r
                    total[r] += (
                        x * (stack[a, k] * stack[b, k]) + y * (stack[c, k] * stack[d, k])
                    ) + (z * (stack[e, k] * stack[f, k]) + w * (stack[g, k] * stack[h, k]))
                position += 4
            while position < end:
                s = order[position]
                a, b, x = left[s], right[s], slopes[s]
                for r in range(width):
                    total[r] += x * (stack[a, first + r] * stack[b, first + r])
                position += 1
            for r in range(width):
                out[i, first + r] = total[r]
