"""A line search for the strong conditions of Wolfe: lower enough, and flatter than before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# The part of the promised decrease that must be had, and the part of the slope that may remain.
_DECREASE = 1e-4
_SLOPE = 0.9
_MOST_TRIES = 20
# How much longer the next try is while the slope is still steep.
_GROWTH = 4.0


@dataclass(frozen=True)
class Try:
    """A point on the line, with its value and its slope along the line."""

    length: float
    point: Vector
    value: float
    gradient: Vector
    slope: float


class LineSearch:
    """A function along a line, which counts its evaluations and does not cross lower bounds."""

    def __init__(
        self,
        evaluate: Callable[[Vector], tuple[float, Vector]],
        start: Vector,
        direction: Vector,
        lower: float | Vector,
    ) -> None:
        self._evaluate = evaluate
        self._start, self._direction, self._lower = start, direction, lower
        self.evaluations = 0

    def at(self, length: float) -> Try:
        """Evaluate the function after a part of the direction."""
        point = np.maximum(self._start + length * self._direction, self._lower)
        value, gradient = self._evaluate(point)
        self.evaluations += 1
        return Try(length, point, value, gradient, float(gradient @ self._direction))


def search(line: LineSearch, origin: tuple[float, float], longest: float) -> Try | None:
    """Return a point on the line that is lower enough, or None if there is none.

    ``origin`` has the value and the slope, below zero, at the start. The first length that is tried
    is one, the last the ``longest``.
    """
    value, slope = origin
    # A promise below the rounding of the value cannot be checked: no rise has to do then.
    rounding = np.finfo(np.float64).eps * abs(value)
    low = (0.0, value, slope)
    high: float | None = None
    best: Try | None = None
    length = 1.0
    for _ in range(_MOST_TRIES):
        tried = line.at(length)
        is_finite = math.isfinite(tried.value) and math.isfinite(tried.slope)
        promised = -_DECREASE * length * slope
        enough = tried.value <= value - promised if promised > rounding else tried.value <= value
        if is_finite and enough:
            best = tried if best is None or tried.value <= best.value else best
            is_flat = abs(tried.slope) <= -_SLOPE * slope
            if is_flat or (length >= longest and tried.slope < 0):
                return tried
        if is_finite and enough and tried.slope < 0:
            low = (length, tried.value, tried.slope)
            length = min(_GROWTH * length, longest) if high is None else 0.5 * (length + high)
        else:
            # Too high, or beyond the minimum, as at the foot of a wall.
            high = length
            length = _between(low, tried if is_finite else None, length)
        # Differences that rounding hides are not worth a try.
        if high is not None and -(high - low[0]) * slope <= 0.1 * rounding:
            break
    return best if best is not None and best.value < value else None


def _between(low: tuple[float, float, float], high: Try | None, length: float) -> float:
    """Return the minimum of the cubic through two ends of an interval, kept off its ends."""
    start, value, slope = low
    width = length - start
    if high is None:
        return start + 0.1 * width
    excess = slope + high.slope - 3.0 * (high.value - value) / width
    square = excess * excess - slope * high.slope
    part = 0.5
    if square >= 0:
        root = math.sqrt(square)
        below = high.slope - slope + 2.0 * root
        part = 1.0 - (high.slope + root - excess) / below if below != 0 else 0.5
    if not math.isfinite(part):
        part = 0.5
    return start + min(max(part, 0.1), 0.9) * width
