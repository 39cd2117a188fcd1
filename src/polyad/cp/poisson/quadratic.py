"""The quadratic model of a Newton step, minimised over rows that are not negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.core.compiled import owning_part, part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# A slope below this frees a share that is at zero.
_SLOPE = -1e-12


@owning_part
def minimise_quadratic(hessian: Vector, y: Vector, gradient: Vector, step: Vector) -> bool:
    """Fill ``step`` with the minimum of ``g . s + s . H s / 2`` over ``s >= -y``.

    An active set: the minimum over the free shares, cut at zero if that lowers the model, and else
    followed to the first zero; when nothing is cut, shares at zero that want to grow are freed.
    The model falls with each pass, so that the step leads down wherever it ends. Returns False
    where the matrix has no Cholesky factor.
    """
    n = y.size
    slope, direction = np.empty(n), np.empty(n)
    is_free = np.empty(n, np.bool_)
    for r in range(n):
        step[r] = 0.0
        slope[r] = gradient[r]
        is_free[r] = y[r] > 0.0 or slope[r] < 0.0
    for _ in range(3 * n + 10):
        if not _solve_free(hessian, slope, is_free, direction):
            return False
        first = _advance(hessian, (y, gradient), step, direction)
        for r in range(n):
            total = gradient[r]
            for q in range(n):
                total += hessian[r, q] * step[q]
            slope[r] = total
        n_freed = 0
        for r in range(n):
            if is_free[r]:
                is_free[r] = step[r] > -y[r] or direction[r] >= 0.0
            elif first < 0 and slope[r] < _SLOPE:
                is_free[r] = True
                n_freed += 1
        if first < 0 and n_freed == 0:
            break
    return True


@owning_part
def _solve_free(
    hessian: Vector, slope: Vector, is_free: NDArray[np.bool_], direction: Vector
) -> bool:
    """Fill ``direction`` with minus the inverse Hessian times the slope; zero what is not free."""
    lower, free = np.empty(hessian.shape), np.empty(slope.size, np.int64)
    n_free = 0
    for r in range(slope.size):
        direction[r] = 0.0
        if is_free[r]:
            free[n_free] = r
            n_free += 1
    for a in range(n_free):
        for b in range(a + 1):
            total = hessian[free[a], free[b]]
            for c in range(b):
                total -= lower[a, c] * lower[b, c]
            if a > b:
                lower[a, b] = total / lower[b, b]
            elif total > 0.0:
                lower[a, a] = np.sqrt(total)
            else:
                return False
    for a in range(n_free):
        total = -slope[free[a]]
        for b in range(a):
            total -= lower[a, b] * direction[free[b]]
        direction[free[a]] = total / lower[a, a]
    for a in range(n_free - 1, -1, -1):
        total = direction[free[a]]
        for b in range(a + 1, n_free):
            total -= lower[b, a] * direction[free[b]]
        direction[free[a]] = total / lower[a, a]
    return True


@owning_part
def _advance(
    hessian: Vector, problem: tuple[Vector, Vector], step: Vector, direction: Vector
) -> int:
    """Add a direction to a step, cut at zero, or at its first zero if that lowers the model more.

    Returns the share that is at zero first, or minus one if none is cut.
    """
    y, gradient = problem
    first, reach = -1, 1.0
    for r in range(y.size):
        if step[r] + direction[r] < -y[r]:
            way = (y[r] + step[r]) / -direction[r]
            if first < 0 or way < reach:
                first, reach = r, way
    trial = np.empty(y.size)
    for r in range(y.size):
        trial[r] = max(step[r] + direction[r], -y[r])
    if first >= 0 and _value(hessian, gradient, trial) >= _value(hessian, gradient, step):
        for r in range(y.size):
            trial[r] = max(step[r] + reach * direction[r], -y[r])
        trial[first] = -y[first]
    for r in range(y.size):
        step[r] = trial[r]
    return first


@part
def _value(hessian: Vector, gradient: Vector, step: Vector) -> float:
    total = 0.0
    for r in range(step.size):
        curvature = 0.0
        for q in range(step.size):
            curvature += hessian[r, q] * step[q]
        total += step[r] * (gradient[r] + 0.5 * curvature)
    return total
