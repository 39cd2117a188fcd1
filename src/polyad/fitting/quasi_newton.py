r"""Limited-memory BFGS with lower bounds, as a pure step on a state.

Problem
    Minimise a smooth function of a vector :math:`x \ge l`, given its values and gradients.
Update
    The last few steps and changes of the gradient make a quadratic model with the matrix
    :math:`B = \theta I - W M W^T` in compact form (Byrd, Lu, Nocedal and Zhu 1995, eq. 3.2). A
    projected search along the gradient finds a Cauchy step of the model, which says which
    variables rest at their bounds; the model is then minimised over the others exactly, by the
    Sherman-Morrison-Woodbury formula (eq. 5.11), and once more if further variables meet their
    bounds. A line search on the function itself, from the point to the minimum of the model, ends
    with the strong conditions of Wolfe.
Stopping
    The driver's. A state whose line search finds nothing lower forgets its pairs; if it had none,
    it is final: no step changes it any more.
Cost per step
    About one evaluation, plus ``O(n · memory²)``. Memory: ``2 · memory`` vectors, which
    successive states share.

How this differs from L-BFGS-B:

1. The Cauchy step is found by a projected search, as in Lin and Moré (1999), instead of the first
   minimum along all corners of the path, which has to visit them one by one.
2. The model is minimised twice where variables meet their bounds on the way.
3. The first step has a length relative to the start rather than one, so that the unit of the
   variables does not matter.

References
----------
R. H. Byrd, P. Lu, J. Nocedal, C. Zhu, "A Limited Memory Algorithm for Bound Constrained
Optimization", SIAM Journal on Scientific Computing 16 (1995), doi:10.1137/0916069.

C.-J. Lin, J. J. Moré, "Newton's Method for Large Bound-Constrained Optimization Problems", SIAM
Journal on Optimization 9 (1999), doi:10.1137/S1052623498345075.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import as_slices, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Evaluate = Callable[[Vector], tuple[float, Vector]]

# The length of the first step, as a part of the length of the start.
_FIRST_STEP = 0.1
# How often a Cauchy step is halved at most.
_CAUCHY_TRIES = 12
# How often the model is minimised over the variables that are not at their bounds.
_FACES = 2
# Relative decreases below this are rounding of the value.
_ROUNDING = 64 * 2.0**-52
# Entries of the vectors that are multiplied together at a time: bounds the memory of a step.
_CHUNK = 1 << 15
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


@dataclass(frozen=True)
class QuasiNewtonState:
    """Where the minimisation is, and what it remembers."""

    #: (n,)
    point: Vector
    gradient: Vector
    #: Of the function.
    value: float
    #: (n,): the last steps, oldest first, and how the gradient changed with each.
    steps: list[Vector] = field(default_factory=list, metadata={"like": "point"})
    changes: list[Vector] = field(default_factory=list, metadata={"like": "point"})
    #: Of the function, since the start.
    evaluations: int = 1
    #: Whether nothing lower was found along the gradient itself.
    is_final: bool = False


class QuasiNewton:
    """Minimises a function above lower bounds.

    Parameters
    ----------
    evaluate : callable
        Returns the value and the gradient at a point. A value that is not finite is taken as a
        point too far.
    lower : float or ndarray of shape (n,)
        The bounds; minus infinity where there is none.
    memory : int
        How many steps are remembered.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.fitting.quasi_newton import QuasiNewton
    >>> method = QuasiNewton(lambda x: (float(np.sum((x - [1, -1]) ** 2)), 2 * (x - [1, -1])), 0.0)
    >>> state = method.begin(np.array([3.0, 3.0]))
    >>> for _ in range(10):
    ...     state = method.step(state)
    >>> state.point.tolist()
    [1.0, 0.0]
    """

    def __init__(
        self, evaluate: Evaluate, lower: float | Vector = -math.inf, *, memory: int = 10
    ) -> None:
        self.evaluate = evaluate
        self.lower = lower
        self.memory = memory
        self._is_bounded = bool(np.any(np.asarray(lower) > -math.inf))

    def begin(self, point: Vector) -> QuasiNewtonState:
        """Return the state of a start, moved to the bounds where it is below them."""
        inside = np.maximum(np.asarray(point, dtype=np.float64), self.lower)
        value, gradient = self.evaluate(inside)
        return QuasiNewtonState(inside, gradient, value)

    def step(self, state: QuasiNewtonState) -> QuasiNewtonState:
        """Return the state after one iteration; its value is never higher."""
        if state.is_final:
            return state
        try:
            with np.errstate(all="ignore"):  # a slope that is not finite is no descent
                direction = self._direction(state, _Model(state))
                slope = float(state.gradient @ direction)
        except np.linalg.LinAlgError:
            # Pairs that nearly depend on each other make no model.
            return self._without_memory(state, 0)
        if not slope < 0:
            return self._without_memory(state, 0)
        # The direction ends within the bounds, whatever rounding says.
        longest = max(1.0, self._longest(state.point, direction))
        line = LineSearch(self.evaluate, state.point, direction, self.lower)
        found = search(line, (state.value, slope), longest)
        if found is None:
            # Nothing lower, where the model promises no more than rounding: this is the end.
            at_the_end = -slope <= _ROUNDING * abs(state.value)
            forgetful = self._without_memory(state, line.evaluations)
            return replace(forgetful, is_final=forgetful.is_final or at_the_end)
        steps, changes = list(state.steps), list(state.changes)
        step, change = found.point - state.point, found.gradient - state.gradient
        curvature = float(step @ change)
        # Without curvature along the step the model would not be convex.
        sizes = float(np.linalg.norm(step)) * float(np.linalg.norm(change))
        if curvature > np.finfo(np.float64).eps * sizes:
            keep = max(0, len(steps) + 1 - self.memory)
            steps, changes = [*steps[keep:], step], [*changes[keep:], change]
        evaluations = state.evaluations + line.evaluations
        return QuasiNewtonState(
            found.point, found.gradient, found.value, steps, changes, evaluations
        )

    def violation(self, state: QuasiNewtonState) -> float:
        """Return the largest entry of the gradient that a bound does not hold back."""
        if not self._is_bounded:
            return float(np.max(np.abs(state.gradient), initial=0.0))
        room = state.point - self.lower
        return float(np.max(np.abs(np.minimum(room, state.gradient)), initial=0.0))

    def _without_memory(self, state: QuasiNewtonState, evaluations: int) -> QuasiNewtonState:
        return replace(
            state,
            steps=[],
            changes=[],
            evaluations=state.evaluations + evaluations,
            is_final=not state.steps,
        )

    def _direction(self, state: QuasiNewtonState, model: _Model) -> Vector:
        """Return the step to the point that the line search tries first."""
        point, gradient = state.point, state.gradient
        if not state.steps:
            size, steepness = (float(np.linalg.norm(v)) for v in (point, self._inward(state)))
            length = _FIRST_STEP * size / steepness if size > 0 and steepness > 0 else 1.0
            return self._inside(point - length * gradient) - point
        if not self._is_bounded:
            return model.minimum(gradient, None)
        return self._bounded_minimum(state, model)

    def _bounded_minimum(self, state: QuasiNewtonState, model: _Model) -> Vector:
        """Return a step to a point within the bounds that nearly minimises the model."""
        point, gradient = state.point, state.gradient
        step = self._cauchy(state, model)
        lowest = model.value(gradient, step)
        free = point + step > self.lower
        for _ in range(_FACES):
            remainder = model.minimum(gradient + model.times(step), free)
            whole = step + remainder
            clipped = self._inside(point + whole) - point
            value = model.value(gradient, clipped)
            if value > lowest:
                # The projection went wrong: stop where the first variable meets its bound.
                length = min(1.0, self._longest(point + step, remainder))
                return step + length * remainder
            step, lowest = clipped, value
            still = free & (point + step > self.lower)
            if np.array_equal(still, free):
                break
            free = still
        return step

    def _cauchy(self, state: QuasiNewtonState, model: _Model) -> Vector:
        """Return a step along the projected gradient that lowers the model enough."""
        point, gradient = state.point, state.gradient
        inward = self._inward(state)
        square = float(inward @ inward)
        length = square / max(model.curvature(inward), np.finfo(np.float64).tiny)
        best = self._inside(point - length * gradient) - point
        lowest = model.value(gradient, best)
        for _ in range(_CAUCHY_TRIES):
            # A shorter step meets fewer bounds, which hold their variables for this iteration.
            length *= 0.5
            step = self._inside(point - length * gradient) - point
            value = model.value(gradient, step)
            if value >= lowest:
                break
            best, lowest = step, value
        return best

    def _inward(self, state: QuasiNewtonState) -> Vector:
        """Return the gradient without what the bounds hold back."""
        inward = (state.point > self.lower) | (state.gradient < 0)
        return np.where(inward, state.gradient, 0.0)

    def _inside(self, point: Vector) -> Vector:
        return np.maximum(point, self.lower)

    def _longest(self, point: Vector, direction: Vector) -> float:
        """Return how many times a direction can be followed before a bound is met."""
        if not self._is_bounded:
            return math.inf
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(direction < 0, (self.lower - point) / direction, math.inf)
        return max(float(ratio.min(initial=math.inf)), 0.0)


class _Model:
    """The quadratic model of a state: ``g s + s B s / 2`` with ``B = θ I - W M W^T``."""

    def __init__(self, state: QuasiNewtonState) -> None:
        self._vectors: Sequence[Vector] = [*state.changes, *state.steps]
        n_pairs = len(state.steps)
        if not n_pairs:
            return
        gram = self._gram(None)
        last = n_pairs - 1
        self._theta = float(gram[last, last] / gram[n_pairs + last, last])
        # The length of a pair does not change B. Pairs of equal length, s_i y_i = 1, keep the
        # matrices below well conditioned when steps become short.
        share = np.tile(1.0 / np.sqrt(np.diag(gram[n_pairs:, :n_pairs])), 2)
        gram = share[:, None] * gram * share
        products = gram[n_pairs:, :n_pairs]  # s_i y_j
        # W = [Y, θ S]; M is the inverse of this matrix.
        below = np.tril(products, -1)
        middle = np.block(
            [
                [-np.diag(np.diag(products)), below.T],
                [below, self._theta * gram[n_pairs:, n_pairs:]],
            ]
        )
        self._middle = middle
        self._scale = share * np.repeat([1.0, self._theta], n_pairs)

    def times(self, step: Vector) -> Vector:
        """Return ``B s``."""
        inner = np.linalg.solve(self._middle, self._project(step))
        result: Vector = self._theta * step - self._combine(inner)
        return result

    def curvature(self, step: Vector) -> float:
        """Return ``s B s``."""
        projected = self._project(step)
        inner = projected @ np.linalg.solve(self._middle, projected)
        return self._theta * float(step @ step) - float(inner)

    def value(self, gradient: Vector, step: Vector) -> float:
        """Return the change of the model along a step."""
        return float(gradient @ step) + 0.5 * self.curvature(step)

    def minimum(self, gradient: Vector, free: NDArray[np.bool_] | None) -> Vector:
        """Return the step to the minimum over the free variables: ``-B^-1 g`` on them."""
        right = gradient if free is None else np.where(free, gradient, 0.0)
        scaled = self._scale[:, None] * self._gram(free) * self._scale
        # (θ I - W M W^T)^-1 = I / θ + W (M^-1 - W^T W / θ)^-1 W^T / θ².
        small = np.linalg.solve(self._middle - scaled / self._theta, self._project(right))
        result = (right + self._combine(small) / self._theta) / -self._theta
        return result if free is None else np.where(free, result, 0.0)

    def _gram(self, free: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        """Return the products of all changes and steps with each other."""
        n = len(self._vectors)
        total = np.zeros((n, n))
        for chunk, rows in self._chunks():
            kept = rows if free is None else rows * free[chunk]
            total += kept @ rows.T
        return total

    def _project(self, vector: Vector) -> Vector:
        """Return ``W^T v``."""
        products = np.array([own @ vector for own in self._vectors])
        scaled: Vector = self._scale * products
        return scaled

    def _combine(self, weights: Vector) -> Vector:
        """Return ``W c``."""
        result = np.empty_like(self._vectors[0])
        scaled = self._scale * weights
        for chunk, rows in self._chunks():
            np.matmul(scaled, rows, out=result[chunk])
        return result

    def _chunks(self) -> Iterator[tuple[Any, NDArray[np.float64]]]:
        for chunk in as_slices(cut(self._vectors[0].size, _CHUNK)):
            yield chunk, np.stack([vector[chunk] for vector in self._vectors])
