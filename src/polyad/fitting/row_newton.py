r"""Many small minimisations at once: one row of coefficients for each sample.

Problem
    For each row, minimise :math:`\sum_p f(x_p, h_p \cdot a) + \tfrac12 \sum_r \rho_r a_r^2` over
    :math:`a \ge l`, where the :math:`h_p` are given.
Update
    Newton steps with Levenberg's damping, cut at the bound. Coefficients that are at the bound and
    would leave it are held. Losses that are not convex have Hessians with negative eigenvalues, of
    which the sizes are taken: the step then leads down in every direction.
Stopping
    Row by row: a step that is tiny against the row, or nothing lower where the step promises no
    more than rounding. Rows do not see each other.
Cost per iteration
    ``O(R²)`` for each entry and ``O(R³)`` for each row that is not done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

_MOST_STEPS = 200
# A row is done after a step that is this small against it: the next would be far smaller still.
_SMALL_STEP = 1e-11
_ROUNDING = 1e-13
# How often the step of a row is computed again for coefficients that met the bound.
_FACES = 4
# Damping relative to the diagonal: at first, the least that is kept, and the most.
_FIRST_DAMPING = 1e-4
_LEAST_DAMPING = 1e-10
_MOST_DAMPING = 1e12
# Eigenvalues below this part of the largest say nothing.
_SINGULAR = 1e-13


@dataclass
class Rows:
    """The sum of the loss of some rows, with its derivatives."""

    #: (n,)
    value: Matrix
    #: (n, n_components)
    gradient: Matrix
    #: (n, n_components, n_components)
    hessian: Matrix

    def put(self, index: NDArray[Any], other: Rows, chosen: NDArray[np.bool_]) -> None:
        """Replace some rows by some rows of another."""
        self.value[index[chosen]] = other.value[chosen]
        self.gradient[index[chosen]] = other.gradient[chosen]
        self.hessian[index[chosen]] = other.hessian[chosen]


class RowSource(ABC):
    """Rows that can be evaluated, any selection of them at a time."""

    n_rows: int

    @abstractmethod
    def evaluate(self, index: NDArray[Any], a: Matrix) -> Rows:
        """Return the sums of the rows ``index`` at the coefficients ``a``, one row for each."""


@dataclass(frozen=True)
class Rules:
    """What all rows share."""

    #: The bound of the coefficients.
    lower: float
    #: (n_components,) or (n_rows, n_components): the weights of the squares.
    ridge: Matrix
    #: Whether Hessians have no negative eigenvalues.
    is_convex: bool


@np.errstate(all="ignore")  # what is not finite is never better
def minimize_rows(
    source: RowSource, start: Matrix, rules: Rules, small_step: float = _SMALL_STEP
) -> tuple[Matrix, Matrix]:
    """Return the best coefficients of each row, and the sums there.

    A row is done after a step that is below ``small_step`` of it.
    """
    a = start.copy()
    index = np.arange(source.n_rows)
    now = _evaluate(source, index, a, rules)
    damping = np.full(source.n_rows, _FIRST_DAMPING)
    # A row whose best coefficients are infinite has a value that falls forever.
    first = np.abs(now.value)
    for _ in range(_MOST_STEPS):
        if not index.size:
            break
        own = Rows(now.value[index], now.gradient[index], now.hessian[index])
        step = _step(a[index], own, damping[index], rules)
        new = np.maximum(a[index] + step, rules.lower)
        step = new - a[index]
        promised = -np.einsum("nr,nr->n", own.gradient, step)
        tried = _evaluate(source, index, new, rules)
        rounding = _ROUNDING * np.maximum(np.abs(own.value), first[index])
        # A comparison with NaN is False.
        rise = np.einsum("nr,nr->n", tried.gradient, step)
        # Lower, but steeper than before, is the foot of a wall: a logarithm of nearly zero.
        better = (tried.value <= own.value) & (rise <= promised)
        better |= (promised <= rounding) & (tried.value <= own.value + rounding)
        size = np.max(np.abs(new), axis=1, initial=0.0)
        is_small = np.max(np.abs(step), axis=1, initial=0.0) <= small_step * size
        a[index[better]] = new[better]
        now.put(index, tried, better)
        damping[index] = np.where(
            better, np.maximum(0.1 * damping[index], _LEAST_DAMPING), 10.0 * damping[index]
        )
        hopeless = (promised <= rounding) & (promised >= 0) | (damping[index] > _MOST_DAMPING)
        is_settled = is_small | ((own.value - tried.value <= rounding) & (promised > rounding))
        done = np.where(better, is_settled, hopeless)
        index = index[~done]
    return a, now.value


def _evaluate(source: RowSource, index: NDArray[Any], a: Matrix, rules: Rules) -> Rows:
    rows = source.evaluate(index, a)
    ridge = np.broadcast_to(rules.ridge, (source.n_rows, a.shape[1]))[index]
    rows.value += 0.5 * np.sum(ridge * a * a, axis=1)
    rows.gradient += ridge * a
    diagonal = np.arange(a.shape[1])
    rows.hessian[:, diagonal, diagonal] += ridge
    return rows


def _step(a: Matrix, rows: Rows, damping: Matrix, rules: Rules) -> Matrix:
    """Return a damped Newton step of each row, within the bound.

    Coefficients that would cross the bound are put there, and the step of the others is computed
    again for that, a few times.
    """
    diagonal = np.arange(a.shape[1])
    hessian = rows.hessian.copy()
    fixed = (a <= rules.lower) & (rows.gradient >= 0)
    # What is held may be curved without bound: it must not damp the others.
    curvature = np.where(fixed, 0.0, np.abs(hessian[:, diagonal, diagonal]))
    # Where nothing is curved, a step of about the size of the row.
    largest = np.max(np.where(fixed, 0.0, np.abs(rows.gradient)), axis=1, initial=0.0)
    size = np.max(np.abs(a), axis=1, initial=0.0) + 1.0
    least = np.max(curvature, axis=1, initial=0.0) * _SINGULAR + np.finfo(np.float64).tiny
    shift = damping[:, None] * (curvature + (largest / size)[:, None]) + least[:, None]
    hessian[:, diagonal, diagonal] += shift
    step = np.zeros_like(a)
    for _ in range(_FACES):
        right = rows.gradient + np.einsum("nrs,ns->nr", hessian, step)
        step = np.where(fixed, step, _solve(hessian, np.where(fixed, 0.0, right), fixed, rules))
        crossing = ~fixed & (a + step < rules.lower)
        if not crossing.any():
            break
        fixed = fixed | crossing
        step = np.where(fixed, np.where(crossing, rules.lower - a, step), 0.0)
    return step


def _solve(hessian: Matrix, right: Matrix, fixed: NDArray[np.bool_], rules: Rules) -> Matrix:
    """Return minus the inverse of each Hessian times a vector, over what is not fixed."""
    either = fixed[:, :, None] | fixed[:, None, :]
    free = np.where(either, 0.0, hessian)
    diagonal = np.arange(right.shape[1])
    scale = np.max(np.abs(free[:, diagonal, diagonal]), axis=1, initial=0.0)
    free[:, diagonal, diagonal] += np.where(fixed, np.where(scale > 0, scale, 1.0)[:, None], 0.0)
    if rules.is_convex:
        solved: Any = -np.linalg.solve(free, right[:, :, None])[:, :, 0]
        return np.asarray(solved, dtype=np.float64)
    values, vectors = np.linalg.eigh(free)
    sizes: Any = np.abs(values)
    least = _SINGULAR * sizes.max(axis=1, keepdims=True)
    turned = np.einsum("nrs,nr->ns", vectors, right) / np.maximum(sizes, least)
    result: Matrix = np.asarray(-np.einsum("nrs,ns->nr", vectors, turned), dtype=np.float64)
    return result
