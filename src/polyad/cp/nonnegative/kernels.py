"""Numba kernels of nonnegative least squares with many right-hand sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.np.numpy_support import carray

from polyad.core.compiled import kernel, owning_part, part
from polyad.tensor.kernels import WIDTH, on_stack

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows with one matrix that are swept together, side by side in memory: enough to hide how long a
# sum waits for the one before it.
_LANES = 64


@part
def _sweep(normal: NDArray[Any], rhs: NDArray[Any], row: NDArray[Any]) -> float:
    """Minimise over each coordinate of a row in turn; return the largest change of gradient."""
    n = row.size
    largest = 0.0
    for r in range(n):
        diagonal = normal[r, r]
        if diagonal <= 0:
            # The component is zero in another mode: its coefficient has no effect.
            row[r] = 0.0
            continue
        gradient = -rhs[r]
        for s in range(n):
            gradient += normal[r, s] * row[s]
        new = max(0.0, row[r] - gradient / diagonal)
        largest = max(largest, abs(new - row[r]) * diagonal)
        row[r] = new
    return largest


@part
def _solve_free(
    normal: NDArray[Any],
    rhs: NDArray[Any],
    free: NDArray[Any],
    factor: NDArray[Any],
    solution: NDArray[Any],
) -> None:
    """Solve the normal equations of some coordinates by Cholesky.

    A coordinate that depends on those before it, as in a row with fewer entries than components,
    is left at zero: they do without it.
    """
    for i in range(free.size):
        for j in range(i + 1):
            total = normal[free[i], free[j]]
            for m in range(j):
                total -= factor[i, m] * factor[j, m]
            if j < i:
                factor[i, j] = total / factor[j, j] if factor[j, j] > 0 else 0.0
            else:
                is_new = total > 1e-13 * normal[free[i], free[i]]
                factor[i, i] = np.sqrt(total) if is_new else 0.0
        total = rhs[free[i]]
        for m in range(i):
            total -= factor[i, m] * solution[m]
        solution[i] = total / factor[i, i] if factor[i, i] > 0 else 0.0
    for i in range(free.size - 1, -1, -1):
        for m in range(i + 1, free.size):
            solution[i] -= factor[m, i] * solution[m]
        solution[i] = solution[i] / factor[i, i] if factor[i, i] > 0 else 0.0


@owning_part
def _polish(
    normal: NDArray[Any], rhs: NDArray[Any], row: NDArray[Any], factor: NDArray[Any], tol: float
) -> bool:
    """Go to the minimum over the positive coordinates; True if it is that over all.

    Coordinates that would become negative on the way are given up at zero, one after another, as
    in the active-set method of Lawson and Hanson.
    """
    solution = np.empty(row.size)
    while True:
        free = np.nonzero(row > 0)[0]
        _solve_free(normal, rhs, free, factor, solution)
        part = 1.0
        blocking = -1
        for i in range(free.size):
            if solution[i] < 0:
                reach = row[free[i]] / (row[free[i]] - solution[i])
                if blocking < 0 or reach < part:
                    part = reach
                    blocking = i
        if blocking < 0:
            break
        for i in range(free.size):
            moved = row[free[i]] + part * (solution[i] - row[free[i]])
            row[free[i]] = max(0.0, moved)
        row[free[blocking]] = 0.0
    for i in range(free.size):
        row[free[i]] = solution[i]
    for r in range(row.size):
        if row[r] > 0:
            continue
        gradient = -rhs[r]
        for s in range(row.size):
            gradient += normal[r, s] * row[s]
        if gradient < -tol:
            return False
    return True


@kernel
def descend_rows(
    normal: NDArray[Any],
    rhs: NDArray[Any],
    block: tuple[int, int],
    limits: tuple[float, int],
    out: NDArray[Any],
) -> None:
    """Minimise ``½ a N aᵀ - b aᵀ`` over ``a >= 0`` for a block of rows, from where they are.

    ``normal`` has the shape (1, R, R) for all rows, or (n, R, R). Sweeps over the coordinates
    of a row end when one moves it by less than ``limits[0]`` of what the first did, or after
    ``limits[1]`` of them. A first limit of zero asks for the exact minimum.
    """
    n = rhs.shape[1]
    reduction, max_sweeps = limits
    row = np.empty(n)
    right = np.empty(n)
    factor = np.empty((n, n))
    # A gradient is a sum of n terms and more: what is below this is noise, which never ends.
    rounding = 1e-15 * (8 + n)
    for i in range(block[0], block[1]):
        matrix = normal[i if normal.shape[0] > 1 else 0]
        scale = 0.0
        for r in range(n):
            row[r] = out[i, r]
            right[r] = rhs[i, r]
            scale = max(scale, abs(right[r]))
        first = _sweep(matrix, right, row)
        step = 1
        next_polish = 1
        change = first
        while step < max_sweeps and change > reduction * first and change > rounding * scale:
            if reduction == 0 and step >= next_polish:
                if _polish(matrix, right, row, factor, 1e-12 * scale):
                    break
                next_polish *= 2
            change = _sweep(matrix, right, row)
            step += 1
        for r in range(n):
            out[i, r] = row[r]


@part
def _sweep_lanes(
    normal: NDArray[Any],
    right: NDArray[Any],
    rows: NDArray[Any],
    gradient: NDArray[Any],
    largest: NDArray[Any],
) -> None:
    """Do what ``_sweep`` does to the row in each column of ``rows``, all with one matrix."""
    n = rows.shape[0]
    whole = n - n % 4
    for b in range(_LANES):
        largest[b] = 0.0
    for r in range(n):
        diagonal = normal[r, r]
        if diagonal <= 0:
            for b in range(_LANES):
                rows[r, b] = 0.0
            continue
        for b in range(_LANES):
            gradient[b] = -right[r, b]
        for s in range(0, whole, 4):
            w, x, y, z = normal[r, s], normal[r, s + 1], normal[r, s + 2], normal[r, s + 3]
            for b in range(_LANES):
                gradient[b] += (w * rows[s, b] + x * rows[s + 1, b]) + (
                    y * rows[s + 2, b] + z * rows[s + 3, b]
                )
        for s in range(whole, n):
            w = normal[r, s]
            for b in range(_LANES):
                gradient[b] += w * rows[s, b]
        for b in range(_LANES):
            new = rows[r, b] - gradient[b] / diagonal
            new = new if new > 0.0 else 0.0
            change = abs(new - rows[r, b]) * diagonal
            largest[b] = change if change > largest[b] else largest[b]
            rows[r, b] = new


@kernel
def descend_shared(
    normal: NDArray[Any],
    rhs: NDArray[Any],
    block: tuple[int, int],
    limits: tuple[float, int],
    out: NDArray[Any],
) -> None:
    """Do what ``descend_rows`` does, for one matrix (R, R) of all rows and no exact minimum.

    The rows are swept side by side. One that has settled makes room for the next, so that each
    takes as many sweeps, and ends at the same numbers, as it would alone.
    """
    n = rhs.shape[1]
    reduction, max_sweeps = limits
    rows, right = np.zeros((n, _LANES)), np.zeros((n, _LANES))
    gradient = carray(on_stack(rhs), WIDTH)
    change, first, least = np.zeros(_LANES), np.zeros(_LANES), np.zeros(_LANES)
    sweeps, place = np.zeros(_LANES, np.int64), np.full(_LANES, -1)
    rounding = 1e-15 * (8 + n)
    following, n_busy = block[0], 0
    while True:
        for b in range(_LANES):
            if place[b] >= 0:
                sweeps[b] += 1
                if sweeps[b] == 1:
                    first[b] = change[b]
                moves = change[b] > reduction * first[b] and change[b] > least[b]
                if moves and sweeps[b] < max_sweeps:
                    continue
                for r in range(n):
                    out[place[b], r] = rows[r, b]
                place[b] = -1
                n_busy -= 1
            if following < block[1]:
                scale = 0.0
                for r in range(n):
                    rows[r, b] = out[following, r]
                    right[r, b] = rhs[following, r]
                    scale = max(scale, abs(right[r, b]))
                place[b], sweeps[b], least[b] = following, 0, rounding * scale
                following += 1
                n_busy += 1
        if n_busy == 0:
            return
        _sweep_lanes(normal, right, rows, gradient, change)
