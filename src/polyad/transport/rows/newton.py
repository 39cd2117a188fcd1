"""Numba kernels that solve a row: damped Newton steps on the semi-dual, annealed if it starts cold.

The semi-dual in the m unknowns ``g``,

    b . g - epsilon sum_i a_i log sum_j b_j exp((g_j - c_ij) / epsilon),

is concave, with gradient ``b - P'1`` and Hessian ``-H / epsilon``. A step is ``H delta = b - P'1``
in the unknown ``g / epsilon``. While it is too long, or does not raise the value enough, multiples
of ``max(P'1, b)`` are added to the diagonal (Levenberg): directions along which targets are hardly
coupled are held back, all others keep their full step. Where that fails too, a Sinkhorn step ``g +=
epsilon log(b / P'1)``, which never lowers the value, is taken.

A cold start is annealed: the problem is solved roughly for a large epsilon, which is lowered to a
quarter at a time. That is done with the values gathered into bins as long as epsilon does not tell
the values of a bin apart, because a rough solution needs no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.core.compiled import owning_part, part
from polyad.transport.rows.kernels import (
    couple,
    eliminate,
    evaluate,
    gibbs,
    ground_largest,
    squared_table,
    substitute,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]

# How much of the predicted increase of the value a step must achieve; values are known to rounding.
_ARMIJO = 1e-4
_ROUNDING = 1e-14
# Levenberg damping: the first, its growth on rejection, its decay on success, and what is none.
_FIRST_DAMPING, _DAMPING_GROWTH, _DAMPING_DECAY, _NO_DAMPING = 1e-8, 8.0, 1.0 / 64.0, 1e-10
_MAX_REJECTIONS = 16
# The largest change of g / epsilon in a step, at first, which grows while steps of that length are
# good, and at most, where numbers stay in range; and how far it may get from where K was made.
_FIRST_LENGTH, _MAX_LENGTH, _LENGTH_GROWTH, _MAX_DISTANCE = 10.0, 300.0, 4.0, 60.0
# A tiny weight, and what is next to nothing as a part of what a target should get.
_TINY_WEIGHT, _NEGLIGIBLE_SHARE = 1e-9, 1e-30
# Annealing begins at a part of the range of the costs and goes down by a factor, roughly.
_FIRST_LEVEL, _LEVEL_FACTOR, _ROUGH_TOL, _ROUGH_BUDGET = 0.1, 0.25, 0.001, 50
_MAX_LEVELS = 60
# Bins for rough solutions: their number, and how many of them the width of the kernel must cover.
N_BINS: Any = np.int64(32)  # Numba compiles anew for each Python constant
_BINS_PER_WIDTH = 2.0
# How well the last level is solved with bins, about what the bins are wrong by, and those above.
_BINNED_TOL, _ROUGH_BINNED_TOL = 0.01, 0.1


class Workspace(NamedTuple):
    """Memory that the rows of a block are solved in, one after the other."""

    table: Table
    K: Table
    W: Table
    couplings: Table
    factor: Table
    top: Vector
    shares: Vector
    roots: Vector
    scale: Vector
    trial: Vector
    columns: Vector
    step: Vector
    ground: Vector
    pivots: Vector
    log_b: Vector


class Task(NamedTuple):
    """What is asked: the final epsilon and error, and how many steps may be used for it."""

    epsilon: float
    tol: float
    budget: int


@owning_part
def make_workspace(m: int, n: int) -> Workspace:
    """Return the memory for rows with ``n`` values and ``m`` targets."""
    tables, squares = (np.empty((m, n)), np.empty((m, n)), np.empty((m, n))), np.zeros((2, m, m))
    long, short = np.empty((3, n)), np.empty((7, m))
    return Workspace(
        tables[0],
        tables[1],
        tables[2],
        squares[0],
        squares[1],
        long[0],
        long[1],
        long[2],
        short[0],
        short[1],
        short[2],
        short[3],
        short[4],
        short[5],
        short[6],
    )


@part
def set_weights(b: Vector, work: Workspace) -> None:
    """Fill the logarithms of the weights of targets, and scales that change nothing."""
    for j in range(b.size):
        work.log_b[j] = np.log(b[j]) if b[j] > 0.0 else 0.0
        work.scale[j] = 1.0 if b[j] > 0.0 else 0.0


@part
def newton(work: Workspace, a: Vector, b: Vector, g: Vector, task: Task) -> tuple[float, int]:
    """Improve ``g`` until the error is small enough; return the error and the number of steps."""
    K, scale, trial, columns = work.K, work.scale, work.trial, work.columns
    m, inverse = g.size, 1.0 / task.epsilon
    for i in range(a.size):
        work.roots[i] = 1.0 / np.sqrt(a[i]) if a[i] > 0.0 else 0.0
    set_weights(b, work)
    gibbs(work.table, work.log_b, scale, g, inverse, K, work.top)
    error, value = evaluate(K, scale, a, b, work.shares, columns)
    if revive(work, b, g, task.epsilon):
        gibbs(work.table, work.log_b, scale, g, inverse, K, work.top)
        error, value = evaluate(K, scale, a, b, work.shares, columns)
    used, damping, longest = 0, 0.0, _FIRST_LENGTH
    while error > task.tol and used < task.budget:
        used += 1
        couple(K, scale, work.roots, work.shares, work.W, work.couplings)
        new_error, new_value, is_limited = np.inf, -np.inf, False
        for attempt in range(_MAX_REJECTIONS + 1):
            if attempt == _MAX_REJECTIONS:
                sinkhorn_step(b, columns, work.step)
            elif newton_step(work, b, damping) > longest:
                damping, is_limited = max(_FIRST_DAMPING, _DAMPING_GROWTH * damping), True
                continue
            slope = 0.0
            for j in range(m):
                slope += (b[j] - columns[j]) * work.step[j]
                trial[j] = scale[j] * np.exp(work.step[j])
            new_error, new_value = evaluate(K, trial, a, b, work.shares, work.ground)
            bound = value + _ARMIJO * slope - _ROUNDING * (1.0 + abs(value))
            if new_error < 0.5 * error or (new_value >= bound and slope >= 0.0):
                break
            damping, longest = max(_FIRST_DAMPING, _DAMPING_GROWTH * damping), _FIRST_LENGTH
        if not new_error < np.inf:
            break
        longest = min(_LENGTH_GROWTH * longest, _MAX_LENGTH) if is_limited else longest
        damping = damping * _DAMPING_DECAY if damping * _DAMPING_DECAY > _NO_DAMPING else 0.0
        error, value = new_error, new_value
        farthest = 0.0
        for j in range(m):
            scale[j], columns[j] = trial[j], work.ground[j]
            if scale[j] > 0.0:
                farthest = max(farthest, abs(np.log(scale[j])))
        if farthest > _MAX_DISTANCE:
            _absorb(scale, g, task.epsilon)
            gibbs(work.table, work.log_b, scale, g, inverse, K, work.top)
            error, value = evaluate(K, scale, a, b, work.shares, columns)
    _absorb(scale, g, task.epsilon)
    return error, used


@part
def newton_step(work: Workspace, b: Vector, damping: float) -> float:
    """Fill ``work.step`` with a damped Newton step; return its length.

    The step is centred and its length the largest change: a constant changes nothing.
    """
    step, columns, ground = work.step, work.columns, work.ground
    for j in range(b.size):
        step[j] = b[j] - columns[j] if b[j] > 0.0 else 0.0
        ground[j] = damping * max(b[j], columns[j])
    ground_largest(b, ground)
    eliminate(work.couplings, ground, work.factor, work.pivots)
    substitute(work.factor, work.pivots, step)
    low, high = np.inf, -np.inf
    for j in range(b.size):
        if b[j] > 0.0:
            low, high = min(low, step[j]), max(high, step[j])
    for j in range(b.size):
        step[j] = step[j] - 0.5 * (low + high) if b[j] > 0.0 else 0.0
    return 0.5 * (high - low)


@part
def sinkhorn_step(b: Vector, columns: Vector, step: Vector) -> None:
    """Fill ``step`` with log(b / P'1), bounded."""
    for j in range(b.size):
        step[j] = 0.0
        if b[j] > 0.0:
            step[j] = np.log(b[j] / max(columns[j], 1e-300))
            step[j] = min(max(step[j], -_FIRST_LENGTH), _FIRST_LENGTH)


@part
def revive(work: Workspace, b: Vector, g: Vector, epsilon: float) -> bool:
    """Take a Sinkhorn step, in logarithms, for tiny targets that get next to nothing.

    No Newton step would find them: they are coupled to no other. Return whether there are any.
    """
    found = False
    for j in range(b.size):
        if 0.0 < b[j] < _TINY_WEIGHT and work.columns[j] < _NEGLIGIBLE_SHARE * b[j]:
            g[j] = -epsilon * _log_sum(work, j, 1.0 / epsilon)
            found = True
    return found


@part
def _absorb(scale: Vector, g: Vector, epsilon: float) -> None:
    """Move what the scales say into ``g``."""
    for j in range(g.size):
        if scale[j] > 0.0:
            g[j] += epsilon * np.log(scale[j])
            scale[j] = 1.0


@part
def fill_bins(x: Vector, a: Vector, low: float, high: float, bins: Table) -> None:
    """Gather values into bins of equal width: their means and masses; empty bins have no mass."""
    means, masses = bins[0], bins[1]
    for k in range(N_BINS):
        means[k], masses[k] = 0.0, 0.0
    unit = N_BINS / (high - low)
    for i in range(x.size):
        k = min(int((x[i] - low) * unit), N_BINS - 1)
        masses[k] += a[i]
        means[k] += a[i] * x[i]
    for k in range(N_BINS):
        means[k] = means[k] / masses[k] if masses[k] > 0.0 else low


@part
def bounds(values: Vector) -> tuple[float, float]:
    """Return the smallest and the largest number."""
    low, high = np.inf, -np.inf
    for i in range(values.size):
        low, high = min(low, values[i]), max(high, values[i])
    return low, high


@part
def anneal(
    work: Workspace,
    a: Vector,
    b: Vector,
    g: Vector,
    task: Task,
    level: float,
    last: float,
    tol: float,
) -> float:
    """Solve roughly for ``level`` and below, while it is above ``last`` and the wanted epsilon.

    Return the epsilon to go on with.
    """
    factor = _LEVEL_FACTOR
    n_levels = np.log(level / task.epsilon) / -np.log(_LEVEL_FACTOR)
    if n_levels > _MAX_LEVELS:
        factor = _LEVEL_FACTOR ** (n_levels / _MAX_LEVELS)
    while level >= last and level > task.epsilon:
        newton(work, a, b, g, Task(level, tol, _ROUGH_BUDGET))
        level = max(task.epsilon, factor * level)
    return level


@part
def complete_potentials(work: Workspace, b: Vector, g: Vector, epsilon: float) -> None:
    """Give targets without weight the potential that they would keep with a little of it.

    Then take the mean of ``g`` away, which the plan does not depend on. Follows :func:`newton`.
    """
    mean = 0.0
    for j in range(b.size):
        if not b[j] > 0.0:
            g[j] = -epsilon * _log_sum(work, j, 1.0 / epsilon)
        mean += b[j] * g[j]
    for j in range(b.size):
        g[j] -= mean


@part
def _log_sum(work: Workspace, j: int, inverse: float) -> float:
    """Return the logarithm of the sum that a target would have with a potential of zero."""
    highest, total = -np.inf, 0.0
    for i in range(work.shares.size):
        if work.shares[i] > 0.0:
            exponent = np.log(work.shares[i]) - work.top[i] - work.table[j, i] * inverse
            highest = max(highest, exponent)
    for i in range(work.shares.size):
        if work.shares[i] > 0.0:
            exponent = np.log(work.shares[i]) - work.top[i] - work.table[j, i] * inverse
            total += np.exp(exponent - highest)
    result: float = highest + np.log(total)
    return result


@owning_part
def solve_cold(
    x: Vector,
    y: Vector,
    a: Vector,
    b: Vector,
    g: Vector,
    task: Task,
    work: Workspace,
    small: Workspace,
) -> tuple[float, int]:
    """Solve a row with the squared cost from nothing; return the error and the steps.

    ``work.table`` is that of the row, ``small`` is that of bins in place of values.
    """
    for j in range(g.size):
        g[j] = 0.0
    low, high = bounds(x)
    lowest, highest = bounds(y)
    level = _FIRST_LEVEL * (highest - lowest) * (max(high, highest) - min(low, lowest))
    level = max(level, task.epsilon)
    if x.size > 2 * N_BINS and high > low:
        bins = np.empty((2, N_BINS))
        fill_bins(x, a, low, high, bins)
        squared_table(bins[0], y, small.table)
        width = _BINS_PER_WIDTH * (high - low) / N_BINS
        level = anneal(small, bins[1], b, g, task, level, width * width, _ROUGH_BINNED_TOL)
        if level >= width * width:
            newton(small, bins[1], b, g, Task(level, _BINNED_TOL, _ROUGH_BUDGET))
    anneal(work, a, b, g, task, level, 0.0, _ROUGH_TOL)
    return newton(work, a, b, g, task)


@part
def solve_cold_table(
    a: Vector, b: Vector, g: Vector, task: Task, work: Workspace
) -> tuple[float, int]:
    """Solve a row with the costs in ``work.table`` from nothing; return the error and the steps."""
    for j in range(g.size):
        g[j] = 0.0
    lowest, highest = np.inf, -np.inf
    for j in range(b.size):
        low, high = bounds(work.table[j])
        lowest, highest = min(lowest, low), max(highest, high)
    level = max(_FIRST_LEVEL * (highest - lowest), task.epsilon)
    anneal(work, a, b, g, task, level, 0.0, _ROUGH_TOL)
    return newton(work, a, b, g, task)
