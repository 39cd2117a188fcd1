r"""Generalized CP by a bounded quasi-Newton method on all factors at once.

Problem
    Minimise :math:`\sum f(x, m) + \tfrac{\lambda}{2} \sum_k \|A^{(k)}\|^2` over the factors of
    :math:`m = \sum_r a_r \circ b_r \circ \dots`, the first sum over the observed entries, and all
    factors not negative where the loss has that bound.
Update
    One step of limited-memory BFGS with lower bounds (``fitting.quasi_newton``) on the vector of
    all free factors, with exact gradients (``problem``). Rows of data over many decades have
    units of their own (``slice_exponents``).
Stopping
    The driver's: relative change of the objective, or an objective at the rounding level. An
    iteration that lowers the objective by less than the tolerance is made of several steps.
Cost per iteration
    About one evaluation: ``O(size · R)`` for dense data, ``O(entries · R · N)`` for sparse data.
    Memory: ten pairs of vectors as long as all factors together.

How this differs from Hong, Kolda and Duersch (2020):

1. Losses are zero at a perfect fit where that is possible, so that a relative change means
   something. The number that keeps logarithms finite is relative to the size of the data.
2. Tiles of the model are compared with the data as they are made; neither the model nor the
   derivatives are ever held as a whole.
3. At the end the rows of the samples are solved for exactly, by Newton's method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from polyad.cp.generalized.problem import scaled_ridge, slice_exponents
from polyad.cp.generalized.rows import solve_rows
from polyad.cp.solver import FactorSolver, balance
from polyad.fitting.quasi_newton import QuasiNewton, QuasiNewtonState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.cp.generalized.problem import GeneralizedProblem

    Matrix = NDArray[np.float64]

# Sums of the loss below this part of what is explained, or of what was taken off, are rounding.
_ROUNDING = 4 * 2.0**-52
# Steps of an iteration, if they lower the objective by less than the tolerance together.
_PATIENCE = 4


@dataclass(frozen=True)
class GeneralizedState:
    """The factors, and where the quasi-Newton method is.

    Its vectors are all free factors, one after another, in the units of their rows.
    """

    factors: list[Array]
    descent: QuasiNewtonState


class QuasiNewtonSolver(FactorSolver[GeneralizedState]):
    """Generalized CP by limited-memory BFGS.

    The ridge is in the unit of the data; an iteration tries to exceed the tolerance of the driver.
    """

    name = "GeneralizedCP"
    side_by_side = True
    problem: GeneralizedProblem

    def __init__(
        self,
        problem: GeneralizedProblem,
        *,
        ridge: float = 0.0,
        fixed_modes: Collection[int] = (),
        tol: float = 0.0,
    ) -> None:
        self.problem = problem
        self.tol = tol
        self.free_modes = [k for k in range(len(problem.shape)) if k not in fixed_modes]
        self.fixed_modes = frozenset(fixed_modes)
        self.ridge = scaled_ridge(problem, ridge, len(self.free_modes))
        scale = abs(problem.constant[1]) + abs(problem.offset)
        self.floor = _ROUNDING * scale * problem.unit
        self.least = problem.loss.least
        # Rows with these units are curved alike: see ``slice_exponents``.
        bend = 1.0 - 0.5 * (1.0 if problem.loss.degree is None else problem.loss.degree)
        self._units = [np.exp2(bend * own)[:, None] for own in slice_exponents(problem)]

    def init(self, factors: Sequence[Array]) -> GeneralizedState:
        """Return the state of given factors; rows without observations are zero."""
        own = [np.maximum(factor, self.problem.loss.lower) for factor in factors]
        for mode in self.free_modes:
            seen = self.problem.observed_slices(mode)
            own[mode] = own[mode] if seen is None else own[mode] * seen[:, None]
        # The ridge is least if lengths are equal, quasi-Newton steps are best if rows are.
        units = [1.0] * len(own) if self.ridge else self._units
        shared = balance(
            [part / unit for part, unit in zip(own, units, strict=True)], self.free_modes
        )
        balanced = [part * unit for part, unit in zip(shared, units, strict=True)]
        start = self._method(balanced).begin(self._point(balanced))
        return self._state(balanced, start)

    def step(self, state: GeneralizedState) -> GeneralizedState:
        """Return the state after a quasi-Newton step, or some if they lower the objective little.

        A short step, as at the foot of a wall of the objective, is not yet the end.
        """
        method, descent = self._method(state.factors), state.descent
        evaluate, values = method.evaluate, [math.inf]

        def noted(point: Matrix) -> tuple[float, Matrix]:
            value, gradient = evaluate(point)
            values.append(value)
            return value, gradient

        method.evaluate = noted
        for _ in range(_PATIENCE):
            values.clear()
            descent = method.step(descent)
            if values and min(values) == math.inf:
                # However short the step: that is no end, but a loss that fails.
                descent = replace(descent, value=math.nan)
                break
            begun = state.descent.value
            if descent.is_final or begun - descent.value > self.tol * abs(begun):
                break
        return self._state(state.factors, descent)

    def objective(self, state: GeneralizedState) -> float:
        """Return the sum of the loss and half the ridge term, in the unit of the data."""
        return state.descent.value * self.problem.unit

    def diagnostics(self, state: GeneralizedState) -> Mapping[str, float]:
        """Return the violation of the optimality conditions and the number of evaluations."""
        violation = self._method(state.factors).violation(state.descent)
        return {"kkt": violation, "evaluations": state.descent.evaluations}

    def finish(self, state: GeneralizedState) -> GeneralizedState:
        """Return the state with the samples at their minimum for the others."""
        if 0 not in self.free_modes:
            return state
        known = None if self.problem.loss.is_convex else state.factors[0]
        rows = solve_rows(self.problem, state.factors[1:], self.ridge, known=known)
        factors = [rows, *state.factors[1:]]
        return self._state(factors, self._method(factors).begin(self._point(factors)))

    def factors(self, state: GeneralizedState) -> list[Array]:
        """Return the factors as arrays of the kind of the data."""
        return [self.problem.result(factor) for factor in state.factors]

    def _method(self, factors: Sequence[Matrix]) -> QuasiNewton:
        return QuasiNewton(partial(self._evaluate, factors), self.problem.loss.lower)

    def _evaluate(self, factors: Sequence[Matrix], point: Matrix) -> tuple[float, Matrix]:
        """Return the objective and its gradient at a vector of the free factors."""
        own = self._parted(factors, point)
        with np.errstate(all="ignore"):  # a value that is not finite is too far
            value, gradients = self.problem.evaluate(own)
            gradient = self._joined(
                [
                    unit * (gradient + self.ridge * factor)
                    for unit, gradient, factor in zip(self._units, gradients, own, strict=True)
                ]
            )
            value += 0.5 * self.ridge * sum(float(np.sum(own[k] ** 2)) for k in self.free_modes)
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(point)
        return value, gradient

    def _state(self, factors: Sequence[Matrix], descent: QuasiNewtonState) -> GeneralizedState:
        return GeneralizedState(self._parted(factors, descent.point), descent)

    def _point(self, factors: Sequence[Matrix]) -> Matrix:
        """Return the vector of the free factors, each row divided by its unit."""
        return self._joined([own / unit for own, unit in zip(factors, self._units, strict=True)])

    def _joined(self, matrices: Sequence[Matrix]) -> Matrix:
        """Return the free factors, or what belongs to them, as one vector."""
        return np.concatenate([np.ravel(matrices[k]) for k in self.free_modes])

    def _parted(self, factors: Sequence[Matrix], point: Matrix) -> list[Matrix]:
        """Return the factors, the free ones taken from a vector."""
        result, first = list(factors), 0
        for k in self.free_modes:
            size = factors[k].size
            result[k] = point[first : first + size].reshape(factors[k].shape) * self._units[k]
            first += size
        return result
