r"""Sinkhorn's algorithm in the log domain, balanced and unbalanced, with dense plans.

The plan T minimises ``<C, T> + epsilon sum T log T`` where its marginals are ``a`` and ``b``, or,
if a penalty is given, ``penalty (KL(T 1 || a) + KL(T' 1 || b))`` is added instead of that
condition. The plan is ``exp((f + g - C) / epsilon - 1)``; each step sets one potential to its best
value given the other. In the unbalanced problem, moving ``f`` up and ``g`` down does not change
the plan, and the best such shift is taken after each step: it is the direction in which plain
steps are slowest. epsilon is lowered to its value in steps, each starting the next.

This is the general solver for small problems, and the reference for the kernels of
:mod:`polyad.transport.fibres`. Its cost is the size of the plan for each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.costs import check_range

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Vector = NDArray[np.float64]

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
    plan : ndarray of shape (m, n)
    f, g : ndarray of shape (m,) and (n,)
        The potentials; minus infinity where a marginal is zero.
    value : float
        The objective at the plan, entropy and penalties included.
    n_iter : int
    residual : float
        The change of the potentials in the last step, in units of epsilon.
    converged : bool
        Whether that is at most ``tol``, and the sums of the plan are as near to the masses.
    """

    plan: NDArray[np.float64]
    f: NDArray[np.float64]
    g: NDArray[np.float64]
    value: float
    n_iter: int
    residual: float
    converged: bool


def sinkhorn(
    a: ArrayLike,
    b: ArrayLike,
    cost: ArrayLike,
    *,
    epsilon: float,
    marginal_penalty: float | None = None,
    tol: float = 1e-9,
    max_iter: int = 10_000,
) -> SinkhornResult:
    """Solve an entropic transport problem.

    Parameters
    ----------
    a, b : array-like of shape (m,) and (n,)
        Nonnegative masses; of equal sum if there is no penalty.
    cost : array-like of shape (m, n)
    epsilon : float
        Strength of the entropy.
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
    left, right = _masses(a, "a"), _masses(b, "b")
    matrix = _numbers(cost, "cost")
    if matrix.shape != (left.size, right.size) or not np.all(np.isfinite(matrix)):
        message = f"cost must be finite, of shape {(left.size, right.size)}; got {matrix.shape}."
        raise InvalidInputError(message)
    if not isinstance(epsilon, Real) or not 0 < epsilon < np.inf:
        message = f"epsilon={epsilon!r} must be a finite number above zero."
        raise InvalidInputError(message)
    _check_steps(tol, max_iter)
    if marginal_penalty is None:
        check_masses(float(left.sum()), float(right.sum()), "a and b")
        # What rounding makes of equal masses cannot be met by both sides of a plan.
        right = right * (left.sum() / right.sum()) if right.any() else right
    elif not isinstance(marginal_penalty, Real) or not 0 < marginal_penalty < np.inf:
        message = f"marginal_penalty={marginal_penalty!r} must be a finite number above zero."
        raise InvalidInputError(message)
    check_range(float(np.abs(matrix).max(initial=0.0)), float(epsilon))
    rows, columns = np.flatnonzero(left), np.flatnonzero(right)
    plan = np.zeros(matrix.shape)
    f, g = np.full(left.size, -np.inf), np.full(right.size, -np.inf)
    residual, used, done = 0.0, 0, True
    if rows.size and columns.size:
        inner = matrix[np.ix_(rows, columns)]
        logs = np.log(left[rows]), np.log(right[columns])
        f[rows], g[columns], residual, used, done = _potentials(
            inner, logs, (epsilon, marginal_penalty), (tol, max_iter)
        )
        exponent = (f[rows][:, None] + g[columns] - inner) / epsilon - 1.0
        plan[np.ix_(rows, columns)] = np.exp(exponent)
    value = float(np.sum(matrix * plan)) + epsilon * float(np.sum(_x_log_x(plan)))
    if marginal_penalty is not None:
        value += marginal_penalty * (
            _divergence(plan.sum(axis=1), left) + _divergence(plan.sum(axis=0), right)
        )
    done = done and bool(np.isfinite(plan).all())
    return SinkhornResult(plan, f, g, value, used, residual, done)


def _is_met(
    cost: NDArray[np.float64], potentials: tuple[Vector, Vector], log_mass: Vector, limit: float
) -> bool:
    """Say whether the columns of a plan have their masses, up to a part of all mass and rounding.

    Cost and potentials are in units of epsilon.
    """
    f, g = potentials
    exponent = f[:, None] + g - cost - 1.0
    highest = float(log_mass.max())
    with np.errstate(over="ignore"):  # what is infinite is not met
        missed = np.abs(np.exp(exponent - highest).sum(axis=0) - np.exp(log_mass - highest)).max()
    whole = float(np.exp(log_mass - highest).sum())
    largest = max(float(np.abs(part).max()) for part in (f, g, cost))
    return bool(missed <= (limit + _ROUNDING * largest) * whole)


def check_masses(left: float, right: float, what: str, *, rtol: float = 1e-6) -> None:
    """Refuse masses that differ: no plan has both as its marginals."""
    if abs(left - right) > rtol * max(left, right):
        message = (
            f"The masses of {what} differ: {left:.9g} and {right:.9g}. Transport needs equal "
            "masses: scale one, or let sinkhorn(..., marginal_penalty=...) make and lose mass."
        )
        raise InvalidInputError(message)


def _potentials(
    cost: NDArray[np.float64],
    logs: tuple[Vector, Vector],
    strength: tuple[float, float | None],
    limits: tuple[float, int],
) -> tuple[Vector, Vector, float, int, bool]:
    """Return both potentials, the last change, the number of steps, and whether they suffice."""
    epsilon, penalty = strength
    tol, max_iter = limits
    f, g = np.zeros(cost.shape[0]), np.zeros(cost.shape[1])
    current = max(epsilon, float(cost.max(initial=0.0)))
    used = 0
    while True:
        last = current <= epsilon
        current = max(current, epsilon)
        # One for marginals that are met, less for those that are only paid for.
        strictness = 1.0 if penalty is None else 1.0 / (1.0 + current / penalty)
        # The last step is for epsilon itself: potentials of another make no plan.
        steps = max_iter - used if last else min(_COARSE_BUDGET, max_iter - used - 1)
        change, done = np.inf, False
        for _ in range(steps):
            old = g
            g = _update(cost.T, f, logs[1], current, strictness)
            f = _update(cost, g, logs[0], current, strictness)
            if penalty is not None:
                g, f = _shift(f, g, logs, penalty)
            used += 1
            moved = g - old
            if penalty is None:
                moved = moved - moved.mean()
            change = float(np.max(np.abs(moved))) / current
            done = change <= (tol if last else _COARSE_TOL)
            if done and last and penalty is None:
                done = _is_met(cost / epsilon, (f / epsilon, g / epsilon), logs[1], tol)
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


def _update(
    cost: NDArray[np.float64], other: Vector, log_mass: Vector, epsilon: float, strictness: float
) -> Vector:
    exponent = (other - cost) / epsilon - 1.0
    largest = exponent.max(axis=1)
    total = largest + np.log(np.exp(exponent - largest[:, None]).sum(axis=1))
    updated: Vector = epsilon * strictness * (log_mass - total)
    return updated


def _shift(
    f: Vector, g: Vector, logs: tuple[Vector, Vector], penalty: float
) -> tuple[Vector, Vector]:
    """Move mass between the potentials: maximises the dual, leaves the plan alone."""
    excess = penalty / 2.0 * (_log_sum(logs[0] - f / penalty) - _log_sum(logs[1] - g / penalty))
    return g - excess, f + excess


def _log_sum(x: Vector) -> float:
    largest = float(x.max())
    return largest + float(np.log(np.exp(x - largest).sum()))


def _x_log_x(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * np.log(np.where(x > 0, x, 1.0))


def _divergence(a: Vector, b: Vector) -> float:
    """Return KL(a || b); entries of ``a`` are zero where those of ``b`` are."""
    ratio = np.where(a > 0, a, 1.0) / np.where((a > 0) & (b > 0), b, 1.0)
    return float(np.sum(np.where(a > 0, a * np.log(ratio), 0.0) - a + b))


def _masses(given: ArrayLike, name: str) -> Vector:
    masses = _numbers(given, name)
    if masses.ndim != 1 or not np.all((masses >= 0) & (masses < np.inf)):
        message = f"{name} must be a vector of finite masses, none negative; got {masses!r}."
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
