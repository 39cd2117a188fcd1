"""Numba kernels for the usual fibre, few nonzeros and costs of at most 24 epsilon: float32 first.

What is solved is written down in ``kernels``. Here is the short way to it:

- The start is one Sinkhorn step from ``v = x``, in plain numbers.
- Newton steps are made in float32, and the last ones in float64 if the data is float64. Adding a
  number to all of ``log v`` changes ``h`` by a number, so the mean of ``h`` is taken out at each
  point, and Newton's method is the same with it or without.
- Near the solution a matrix that is factorized already is used again.
- A small step changes ``K v`` by a factor ``1 + d``, and its power is a short series: no logarithm
  and no exponential of the long vectors.

A step that does not halve the residual, or leaves the range of the numbers, ends the attempt: the
fibre is then solved by ``damped_newton``, which is careful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.core.compiled import part
from polyad.core.vector_math import fast_exp, fast_log
from polyad.transport.fibres.kernels import (
    BASE,
    INVERSE,
    LOG_X,
    MARGINALS,
    NOTHING,
    ROUNDING,
    SPARE,
    STEP,
    SUMS,
    TRIAL,
    WEIGHTS,
    A,
    H,
    Q,
    add_rows,
    assemble,
    dot_rows,
    gather_rows,
    gram_rows,
    marginals_of_sums,
    substitute,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# The residual that float32 can hold: its rounding, times a few for the sums.
SINGLE_TOLERANCE = 4e-6
# How far the unknowns may be from each other for kernel rows in float32.
_MAX_DISTANCE = 16.0
# Fibres are scaled by the largest entry of ``xhat``, which must have an inverse in float32 too.
_MIN_SCALE, _MAX_SCALE = 1e-30, 1e30
# Below this residual a step in float32 is the last if float64 follows.
_HANDOVER_RESIDUAL = 1e-3
# Steps of at most this length are made by the series, in float32 and float64.
_MAX_SERIES_STEP_SINGLE, _MAX_SERIES_STEP = 0.08, 1e-3
# Points that a stage may take; four are usual.
_BUDGET = 8
# Loops over the unknowns are cut into pieces of so many, which fill vector registers.
_LANES = 8


class Progress(NamedTuple):
    """How far the solution of a fibre has come."""

    reference: float
    """What the weights are relative to."""
    residual: float
    """Infinite where the attempt failed."""
    factor: float
    """The residual where the factorized matrix was made."""
    used: int
    """The number of points."""


@part
def solve_in_mixed_precision(
    single: NDArray[np.float32],
    double: Vector,
    fibre: tuple[NDArray[np.int64], int, int],
    rough: NDArray[np.float32],
    fine: Vector,
    unknowns: Vector,
    given: tuple[float, float, float, bool, bool],
) -> tuple[float, float, int]:
    """Solve a fibre; return its level, residual and the number of points, after :func:`scale`.

    The rows of ``fibre`` are its first number up to its second. ``given`` has ``tau``, the
    tolerance, the level of ``base``, whether there is no start, and whether the data is float32.
    The marginals are then in ``rough``, otherwise in ``fine``. The residual is infinite where the
    attempt failed.
    """
    rows, first, last = fibre
    tau, tol, level, is_cold, is_single = given
    n = last - first
    gather_rows(single, rows, first, last, rough)
    if is_cold:
        _set_start(rough, unknowns, n, tau / (tau + 1.0))
    reference, low = -np.inf, np.inf
    for k in range(n):
        low, reference = min(low, unknowns[A, k]), max(reference, unknowns[A, k])
    if not reference - low <= _MAX_DISTANCE:
        return 0.0, np.inf, 0
    goal = max(tol, SINGLE_TOLERANCE) if is_single else tol
    now = Progress(reference, np.inf, np.inf, 0)
    now = _improve(rough, unknowns, n, tau, level, goal, is_single, now)
    if not is_single and now.residual < np.inf:
        gather_rows(double, rows, first, last, fine)
        now = _improve(fine, unknowns, n, tau, level, tol, True, now)
    # The -1 is that of the paper's kernel exp(-rho C - 1).
    return level + (now.reference - 1.0) / (tau + 1.0), now.residual, now.used


@part
def scale(
    xhat: Vector,
    j: int,
    phi: float,
    is_single: bool,
    rough: NDArray[np.float32],
    fine: Vector,
) -> float:
    """Fill ``base`` with ``phi log xhat``, less the level that is returned, NaN out of range.

    ``marginals`` gets ``xhat`` over its largest entry, in ``rough``.
    """
    largest = largest_entry(xhat, j)
    if not _MIN_SCALE < largest < _MAX_SCALE:
        return np.nan
    if is_single:
        _log_xhat(xhat, j, largest, phi, rough)
    else:
        _log_xhat(xhat, j, largest, phi, fine)
        for i in range(rough.shape[1]):
            rough[BASE, i] = fine[BASE, i]
            rough[MARGINALS, i] = fine[MARGINALS, i]
    return float(phi * np.log(largest))


@part
def largest_entry(xhat: Vector, j: int) -> float:
    """Return the largest entry of a row that has no negative ones.

    Their bits are in the same order, and the compiler uses vectors for the largest integer.
    """
    most = np.int64(0)
    for i in range(xhat.shape[1]):
        most = max(most, np.float64(xhat[j, i]).view(np.int64))
    return float(np.int64(most).view(np.float64))


@part
def smallest_entry(grid: NDArray[Any], at: np.int64) -> Any:
    """Return the smallest entry of a row of the work space that has no negative ones."""
    if grid.itemsize == 4:
        least = np.int32(0x7F800000)
        for i in range(grid.shape[1]):
            least = min(least, np.float32(grid[at, i]).view(np.int32))
        return grid.dtype.type(np.int32(least).view(np.float32))
    long = np.int64(0x7FF0000000000000)
    for i in range(grid.shape[1]):
        long = min(long, np.float64(grid[at, i]).view(np.int64))
    return grid.dtype.type(np.int64(long).view(np.float64))


@part
def _log_xhat(xhat: Vector, j: int, largest: float, phi: float, grid: NDArray[Any]) -> None:
    size, of_type = xhat.shape[1], grid.dtype.type
    inverse, power = of_type(1.0) / of_type(largest), of_type(phi)
    for i in range(size):
        grid[MARGINALS, i] = of_type(xhat[j, i]) * inverse
    for i in range(size, grid.shape[1]):
        grid[MARGINALS, i] = 0.0
    for i in range(grid.shape[1]):
        value = power * fast_log(grid[MARGINALS, i])
        # Comparisons with minus infinity are false: zero becomes "nothing".
        grid[BASE, i] = value if value > NOTHING else NOTHING


@part
def _whole_lanes(n: int) -> int:
    return (n + _LANES - 1) // _LANES * _LANES


@part
def _set_start(grid: NDArray[Any], unknowns: Vector, n: int, phi: float) -> None:
    """Set ``v = (x / K (xhat / K x))^phi``."""
    highest = -np.inf
    for k in range(n):
        highest = max(highest, unknowns[LOG_X, k])
    _weigh(unknowns, LOG_X, WEIGHTS, highest, n)
    add_rows(grid, unknowns, n, WEIGHTS, SUMS)
    for i in range(grid.shape[1]):
        grid[SPARE, i] = grid[MARGINALS, i] / grid[SUMS, i]
    dot_rows(grid, unknowns, n)
    take_logs(unknowns, Q, n)
    for k in range(n):
        unknowns[A, k] = phi * (unknowns[LOG_X, k] - unknowns[Q, k])


@part
def _weigh(unknowns: Vector, at: np.int64, to: np.int64, reference: float, n: int) -> None:
    """Fill a row with the exponentials of another, relative to the reference."""
    for k in range(n):
        unknowns[to, k] = unknowns[at, k] - reference
    for k in range(n, _whole_lanes(n)):
        unknowns[to, k] = NOTHING
    for k in range(_whole_lanes(n)):
        unknowns[to, k] = fast_exp(unknowns[to, k])


@part
def take_logs(unknowns: Vector, at: np.int64, n: int) -> None:
    """Replace a row of unknowns by its logarithms."""
    for k in range(n, _whole_lanes(n)):
        unknowns[at, k] = 1.0
    for k in range(_whole_lanes(n)):
        unknowns[at, k] = fast_log(unknowns[at, k])


@part
def _improve(
    grid: NDArray[Any],
    unknowns: Vector,
    n: int,
    tau: float,
    base: float,
    tol: float,
    is_last: bool,
    start: Progress,
) -> Progress:
    """Make Newton steps from what was reached so far.

    If this is not the last stage, then it ends with a step whose end is not evaluated.
    """
    kappa, rate = 1.0 / (tau + 1.0), 1.0 / tau
    series = _MAX_SERIES_STEP_SINGLE if grid.itemsize == 4 else _MAX_SERIES_STEP
    reference, factor = start.reference, start.factor
    _weigh(unknowns, A, WEIGHTS, reference, n)
    add_rows(grid, unknowns, n, WEIGHTS, SUMS)
    marginals_of_sums(grid, kappa)
    worst = np.inf
    for used in range(start.used + 1, start.used + 1 + _BUDGET):
        dot_rows(grid, unknowns, n)
        level = base + kappa * (reference - 1.0)
        residual, shift, size = _excess(unknowns, n, level, kappa, rate)
        reference += shift
        if is_last and residual <= max(tol, ROUNDING * size):
            return Progress(reference, residual, factor, used)
        if not residual < worst:
            break
        # Each step by the old matrix reduces the residual by about the one that it was made at.
        if not residual * factor * factor * (1.0 if is_last else factor) <= tol:
            if not _factorized(grid, unknowns, n, tau):
                break
            factor = residual
        longest, farthest = _step(unknowns, n, reference)
        if not farthest <= _MAX_DISTANCE:
            break
        if residual < _HANDOVER_RESIDUAL and not is_last:
            return Progress(reference, residual, factor, used)
        _weigh(unknowns, A, TRIAL, reference, n)
        if longest <= series:
            for k in range(_whole_lanes(n)):
                unknowns[STEP, k] = unknowns[TRIAL, k] - unknowns[WEIGHTS, k]
            add_rows(grid, unknowns, n, STEP, SPARE)
            _shift_sums(grid, kappa)
        else:
            add_rows(grid, unknowns, n, TRIAL, SUMS)
            marginals_of_sums(grid, kappa)
        for k in range(n):
            unknowns[WEIGHTS, k] = unknowns[TRIAL, k]
        worst = 0.5 * residual
    return Progress(reference, np.inf, factor, start.used + _BUDGET)


@part
def _excess(
    unknowns: Vector, n: int, level: float, kappa: float, rate: float
) -> tuple[float, float, float]:
    """Fill ``h``, with the shift that makes its mean zero; return residual, shift and size."""
    for k in range(n):
        unknowns[Q, k] *= unknowns[WEIGHTS, k]
        unknowns[H, k] = unknowns[Q, k]
    take_logs(unknowns, H, n)
    mass, mean = 0.0, 0.0
    for k in range(n):
        unknowns[H, k] += level - unknowns[LOG_X, k] + rate * unknowns[A, k]
        mass += unknowns[Q, k]
        mean += unknowns[Q, k] * unknowns[H, k]
    mean /= mass
    shift = -mean / (kappa + rate)
    residual, size = 0.0, 0.0
    for k in range(n):
        unknowns[A, k] += shift
        unknowns[H, k] -= mean
        # Comparisons with NaN are false, and it must not be lost.
        residual = residual if abs(unknowns[H, k]) <= residual else abs(unknowns[H, k])
        size = max(size, abs(unknowns[A, k]))
    return residual * kappa / rate, shift, size


@part
def _factorized(grid: NDArray[Any], unknowns: Vector, n: int, tau: float) -> bool:
    """Make and factorize the matrix of Newton's method."""
    phi = tau / (tau + 1.0)
    for i in range(grid.shape[1]):
        grid[SPARE, i] *= grid[INVERSE, i]
    gram_rows(grid, unknowns, n)
    return assemble(unknowns, n, tau, phi)


@part
def _step(unknowns: Vector, n: int, reference: float) -> tuple[float, float]:
    """Make a Newton step; return its longest part, and the distance to the reference."""
    for k in range(n):
        unknowns[STEP, k] = -unknowns[Q, k] * unknowns[H, k]
    substitute(unknowns, n)
    longest, farthest = 0.0, 0.0
    for k in range(n):
        unknowns[A, k] += unknowns[STEP, k]
        longest = max(longest, abs(unknowns[STEP, k]))
        away = abs(unknowns[A, k] - reference)
        farthest = farthest if away <= farthest else away
    return longest, farthest


@part
def _shift_sums(grid: NDArray[Any], kappa: float) -> None:
    """Add ``spare`` to the sums, and do what :func:`marginals_of_sums` does, by the series.

    ``(1 + d)^kappa = 1 + kappa d (1 + (kappa - 1) / 2 d (1 + (kappa - 2) / 3 d (...)))``.
    """
    of_type = grid.dtype.type
    one, c1, c2 = of_type(1.0), of_type(kappa), of_type((kappa - 1.0) / 2.0)
    c3, c4 = of_type((kappa - 2.0) / 3.0), of_type((kappa - 3.0) / 4.0)
    for i in range(grid.shape[1]):
        d = grid[SPARE, i] * grid[INVERSE, i]
        total = grid[SUMS, i] + grid[SPARE, i]
        factor = one + c1 * d * (one + c2 * d * (one + c3 * d * (one + c4 * d)))
        reciprocal = one / total
        marginal = grid[MARGINALS, i] * factor
        grid[SUMS, i] = total
        grid[MARGINALS, i] = marginal
        grid[INVERSE, i] = reciprocal
        grid[SPARE, i] = marginal * reciprocal
