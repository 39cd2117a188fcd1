r"""Sinkhorn's algorithm in the log domain, balanced and unbalanced, of matrices and geometries.

The plan T minimises ``<C, T> + epsilon sum T log T`` where its marginals are ``a`` and ``b``, or,
if a penalty is given, ``penalty (KL(T 1 || a) + KL(T' 1 || b))`` is added instead of that
condition. The plan is ``exp((f + g - C) / epsilon - 1)``; each step sets one potential to its best
value given the other. In the unbalanced problem, moving ``f`` up and ``g`` down does not change
the plan, and the best such shift is taken after each step: it is the direction in which plain
steps are slowest. epsilon is lowered to its value in steps, each starting the next.

This is the general solver for small problems, and the reference for the kernels of
:mod:`polyad.transport.fibres`. Its cost is the size of the plan for each step. With a geometry of a
grid in the place of a cost matrix, no plan is made, and a step costs two products with its kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.costs import check_range
from polyad.transport.geometry import Geometry, check_epsilon

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Vector = NDArray[np.float64]
    _Sums = Callable[[Vector], Vector]

# How epsilon falls on the way, the steps at each larger one, and the tolerance there.
_EPSILON_FALL = 4.0
_COARSE_BUDGET = 100
_COARSE_TOL = 1e-3
# Of sums of exponentials, for each unit of their exponents.
_ROUNDING = 4 * 2.0**-52
# Errors of exponents at which a plan is not known any more, however coarse the tolerance.
_MAX_EXPONENT_ERROR = 1e-6


@dataclass(frozen=True)
class SinkhornResult:
    """The solution of an entropic transport problem.

    Attributes
    ----------
    plan : ndarray of shape (m, n) or None
        None with a geometry: ``exp((f + g - cost) / epsilon - 1)`` of all pairs of cells.
    f, g : ndarray of shape (m,) and (n,), or of the grid
        The potentials; minus infinity where a marginal is zero.
    value : float
        The objective at the plan, entropy and penalties included.
    n_iter : int
    residual : float
        The change of the potentials in the last step, in units of epsilon.
    converged : bool
        Whether that is at most ``tol``, and the sums of the plan are as near to the masses.
    """

    plan: NDArray[np.float64] | None
    f: NDArray[np.float64]
    g: NDArray[np.float64]
    value: float
    n_iter: int
    residual: float
    converged: bool


def sinkhorn(
    a: ArrayLike,
    b: ArrayLike,
    cost: ArrayLike | Geometry,
    *,
    epsilon: float | None = None,
    marginal_penalty: float | None = None,
    tol: float = 1e-9,
    max_iter: int = 10_000,
) -> SinkhornResult:
    """Solve an entropic transport problem.

    Parameters
    ----------
    a, b : array-like of shape (m,) and (n,), or of a grid
        Nonnegative masses; of equal sum if there is no penalty. With a geometry, images of its
        grid.
    cost : array-like of shape (m, n), or Geometry
        From the places of ``a`` to those of ``b``. A geometry, such as
        :func:`~polyad.transport.grid_geometry` returns, needs no matrix of all pairs of cells.
    epsilon : float, optional
        Strength of the entropy; a geometry has its own, a matrix needs it.
    marginal_penalty : float, optional
        Weight of the divergences of the marginals. Without it they are met exactly.
    tol : float, default=1e-9
        Of the change of the potentials in a step, in units of epsilon, and, without a penalty, of
        the sums of the plan, as a part of the mass.
    max_iter : int, default=10000

    Returns
    -------
    SinkhornResult

    Examples
    --------
    >>> result = sinkhorn([1, 2], [3, 0], [[0, 1], [1, 0]], epsilon=0.1, marginal_penalty=1)
    >>> result.plan.sum(axis=1).round(6)
    array([1.230304, 0.930814])
    """
    geometry = cost if isinstance(cost, Geometry) else None
    left, right = _masses(a, "a", geometry), _masses(b, "b", geometry)
    if geometry is None:
        matrix = _numbers(cost, "cost")
        if matrix.shape != (left.size, right.size) or not np.all(np.isfinite(matrix)):
            message = (
                f"cost must be finite, of shape {(left.size, right.size)}; got {matrix.shape}."
            )
            raise InvalidInputError(message)
        strength = check_epsilon(epsilon)
        check_range(float(np.abs(matrix).max(initial=0.0)), strength)
    elif epsilon is not None:
        message = f"epsilon={epsilon!r} is given, but {geometry!r} has its own: leave out one."
        raise InvalidInputError(message)
    _check_steps(tol, max_iter)
    if marginal_penalty is None:
        check_masses(float(left.sum()), float(right.sum()), "a and b")
        # What rounding makes of equal masses cannot be met by both sides of a plan.
        right = right * (left.sum() / right.sum()) if right.any() else right
    elif not isinstance(marginal_penalty, Real) or not 0 < marginal_penalty < np.inf:
        message = f"marginal_penalty={marginal_penalty!r} must be a finite number above zero."
        raise InvalidInputError(message)
    rows, columns = np.flatnonzero(left), np.flatnonzero(right)
    used_part: _Kernel
    if geometry is None:
        used_part = _MatrixKernel(matrix[np.ix_(rows, columns)], strength)
    else:
        used_part = _GeometryKernel(geometry, rows, columns)
    masses = left.ravel()[rows], right.ravel()[columns]
    f, g = np.full(left.size, -np.inf), np.full(right.size, -np.inf)
    margins = np.zeros(left.size), np.zeros(right.size)
    residual, used, done, value = 0.0, 0, True, 0.0
    if rows.size and columns.size:
        logs = np.log(masses[0]), np.log(masses[1])
        f[rows], g[columns], residual, used, done = _potentials(
            used_part, logs, marginal_penalty, (tol, max_iter)
        )
        value, margins[0][rows], margins[1][columns] = used_part.value(f[rows], g[columns])
    plan = None
    if geometry is None:
        plan = np.zeros(matrix.shape)
        exponent = (f[rows][:, None] + g[columns] - matrix[np.ix_(rows, columns)]) / strength - 1.0
        plan[np.ix_(rows, columns)] = np.exp(exponent)
    if marginal_penalty is not None:
        value += marginal_penalty * (
            _divergence(margins[0], left.ravel()) + _divergence(margins[1], right.ravel())
        )
    done = done and bool(np.isfinite(margins[0]).all())
    grids = f.reshape(left.shape), g.reshape(right.shape)
    return SinkhornResult(plan, *grids, value, used, residual, done)


class _Kernel(ABC):
    """The cost between the cells that have mass, and sums of exponentials with it."""

    epsilon: float
    largest: float

    @abstractmethod
    def sums(self, epsilon: float) -> tuple[_Sums, _Sums]:
        """Return ``log K exp(g / epsilon)`` and ``log K' exp(f / epsilon)`` as functions."""

    def value(self, f: Vector, g: Vector) -> tuple[float, Vector, Vector]:
        """Return cost and entropy of the plan of potentials, and its marginals."""
        over_columns, over_rows = self.sums(self.epsilon)
        left = np.exp(f / self.epsilon + over_columns(g) - 1.0)
        right = np.exp(g / self.epsilon + over_rows(f) - 1.0)
        return float(f @ left + g @ right - self.epsilon * left.sum()), left, right


class _MatrixKernel(_Kernel):
    """A matrix of costs."""

    def __init__(self, cost: NDArray[np.float64], epsilon: float) -> None:
        self.cost, self.epsilon = cost, epsilon
        self.largest = float(np.abs(cost).max(initial=0.0))

    def sums(self, epsilon: float) -> tuple[_Sums, _Sums]:
        """Return sums over the columns and over the rows."""

        def over(cost: NDArray[np.float64], other: Vector) -> Vector:
            exponent = (other - cost) / epsilon
            largest = exponent.max(axis=1)
            summed: Vector = largest + np.log(np.exp(exponent - largest[:, None]).sum(axis=1))
            return summed

        return partial(over, self.cost), partial(over, self.cost.T)


class _GeometryKernel(_Kernel):
    """The cells of a grid, of which some have mass."""

    def __init__(self, geometry: Geometry, rows: NDArray[Any], columns: NDArray[Any]) -> None:
        self.geometry, self.rows, self.columns = geometry, rows, columns
        self.epsilon, self.largest = geometry.epsilon, geometry.largest

    def sums(self, epsilon: float) -> tuple[_Sums, _Sums]:
        """Return products with the kernel and its transpose."""
        geometry = self.geometry
        own = geometry if epsilon == geometry.epsilon else geometry.with_epsilon(epsilon)

        def over(kernel: Geometry, sources: Any, targets: Any, other: Vector) -> Vector:
            logs = np.full(kernel.n_cells, -np.inf)
            logs[sources] = other / epsilon
            found: Vector = kernel.log_apply(logs.reshape(kernel.shape)).ravel()[targets]
            return found

        return (
            partial(over, own, self.columns, self.rows),
            partial(over, own.transposed, self.rows, self.columns),
        )


def _is_met(log_sums: Vector, log_mass: Vector, limit: float) -> bool:
    """Say whether the columns of a plan have their masses, up to a part of all mass."""
    highest = float(log_mass.max())
    with np.errstate(over="ignore"):  # what is infinite is not met
        missed = np.abs(np.exp(log_sums - highest) - np.exp(log_mass - highest)).max()
    return bool(missed <= limit * float(np.exp(log_mass - highest).sum()))


def check_masses(left: float, right: float, what: str, *, rtol: float = 1e-6) -> None:
    """Refuse masses that differ: no plan has both as its marginals."""
    if abs(left - right) > rtol * max(left, right):
        message = (
            f"The masses of {what} differ: {left:.9g} and {right:.9g}. Transport needs equal "
            "masses: scale one, or let sinkhorn(..., marginal_penalty=...) make and lose mass."
        )
        raise InvalidInputError(message)


def _potentials(
    kernel: _Kernel,
    logs: tuple[Vector, Vector],
    penalty: float | None,
    limits: tuple[float, int],
) -> tuple[Vector, Vector, float, int, bool]:
    """Return both potentials, the last change, the number of steps, and whether they suffice."""
    epsilon = kernel.epsilon
    tol, max_iter = limits
    f, g = np.zeros(logs[0].size), np.zeros(logs[1].size)
    current = max(epsilon, kernel.largest)
    used = 0
    while True:
        last = current <= epsilon
        current = max(current, epsilon)
        over_columns, over_rows = kernel.sums(current)
        # One for marginals that are met, less for those that are only paid for.
        strictness = 1.0 if penalty is None else 1.0 / (1.0 + current / penalty)
        # The last step is for epsilon itself: potentials of another make no plan.
        steps = max_iter - used if last else min(_COARSE_BUDGET, max_iter - used - 1)
        change, done = np.inf, False
        for _ in range(steps):
            old = g
            g = current * strictness * (logs[1] - (over_rows(f) - 1.0))
            f = current * strictness * (logs[0] - (over_columns(g) - 1.0))
            if penalty is not None:
                g, f = _shift(f, g, logs, penalty)
            used += 1
            moved = g - old
            if penalty is None:
                moved = moved - moved.mean()
            change = float(np.max(np.abs(moved))) / current
            done = change <= (tol if last else _COARSE_TOL)
            if done and last and penalty is None:
                sizes = (kernel.largest, float(np.abs(f).max()), float(np.abs(g).max()))
                limit = tol + _ROUNDING * max(sizes) / epsilon
                done = _is_met(g / epsilon + over_rows(f) - 1.0, logs[1], limit)
            if done:
                break
        if last:
            break
        current /= _EPSILON_FALL
    # The last step of f met its marginal; in the balanced case g is within the change. Potentials
    # beside which epsilon is rounding, as a huge penalty makes them, are no solution.
    largest = max(float(np.abs(part).max()) for part in (f, g)) / epsilon
    done = done and _ROUNDING * largest <= max(tol, _MAX_EXPONENT_ERROR)
    return f, g, change, used, done


def _shift(
    f: Vector, g: Vector, logs: tuple[Vector, Vector], penalty: float
) -> tuple[Vector, Vector]:
    """Move mass between the potentials: maximises the dual, leaves the plan alone."""
    excess = penalty / 2.0 * (_log_sum(logs[0] - f / penalty) - _log_sum(logs[1] - g / penalty))
    return g - excess, f + excess


def _log_sum(x: Vector) -> float:
    largest = float(x.max())
    return largest + float(np.log(np.exp(x - largest).sum()))


def _divergence(a: Vector, b: Vector) -> float:
    """Return KL(a || b); entries of ``a`` are zero where those of ``b`` are."""
    ratio = np.where(a > 0, a, 1.0) / np.where((a > 0) & (b > 0), b, 1.0)
    return float(np.sum(np.where(a > 0, a * np.log(ratio), 0.0) - a + b))


def _masses(given: ArrayLike, name: str, geometry: Geometry | None) -> NDArray[np.float64]:
    masses = _numbers(given, name)
    if not np.all((masses >= 0) & (masses < np.inf)) or (geometry is None and masses.ndim != 1):
        message = f"{name} must be a vector of finite masses, none negative; got {masses!r}."
        raise InvalidInputError(message)
    if geometry is not None and masses.shape != geometry.shape:
        message = f"{name} has the shape {masses.shape}, but the geometry is of {geometry.shape}."
        raise InvalidInputError(message)
    return masses


def _numbers(given: Any, name: str) -> NDArray[np.float64]:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        message = f"{name} is a {type(given).__name__}; give an array of numbers."
        raise InvalidTypeError(message) from error


def _check_steps(tol: Any, max_iter: Any) -> None:
    if not isinstance(tol, Real) or not float(tol) >= 0:
        message = f"tol={tol!r} must be a number that is not negative."
        raise InvalidInputError(message)
    if not isinstance(max_iter, Integral) or isinstance(max_iter, bool) or max_iter < 1:
        message = f"max_iter={max_iter!r} must be a whole number above zero."
        raise InvalidInputError(message)
