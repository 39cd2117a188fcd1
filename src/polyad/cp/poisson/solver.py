r"""Alternating Poisson regression (CP-APR) for the CP decomposition of counts.

Problem
    Minimise the Kullback-Leibler divergence :math:`\sum m - x + x \log(x / m)` of the data
    :math:`x` from the model :math:`m = \sum_r w_r\, a_r \circ b_r \circ \dots \ge 0`, over the
    observed cells. It is the negative Poisson log-likelihood up to a constant, and half the
    deviance.
Update
    Each mode in turn, mode 0, the samples, last. Its rows are independent convex problems (see
    ``kernels``), improved by a few multiplicative updates or Newton steps each.
Stopping
    The driver's: relative change of the divergence. The KKT violation of each iteration is in the
    history; it is zero at a stationary point and only there.
Cost per iteration
    Multiplicative: ``O(nonzeros · R · N)`` per inner sweep. Newton: about R / 2 times that, and
    fewer sweeps. With missing entries one MTTKRP of the mask per mode more. Memory: the nonzeros
    once more per mode, in double precision, and the factors.

How this differs from Chi and Kolda (2012) and Hansen, Plantenga and Kolda (2015):

1. The objective is the divergence, not the likelihood: it is never negative and is zero for a
   perfect fit, so that a relative change means something.
2. A row stops its inner sweeps when that row is optimal, not when the whole mode is.
3. Inadmissible zeros are lifted row by row, by a share of the sum of the row rather than of the
   column, and by less if the row's objective would rise: the descent is kept. A component whose
   weight fell to zero keeps the shape of its columns, so that it can return in the same way.
4. Model values are not cut at 1e-10, a number that depends on the unit of the data. A row that
   holds a count impossible costs infinitely much, unless no row could explain that count.
5. A sweep of Newton's method begins with a multiplicative update, and its quadratic model is
   minimised over nonnegative rows exactly, where the paper projects a step of the free shares. Its
   damping is relative to the Hessian, and its points are scaled to the sum that the minimum has.
6. Missing cells are left out of the sum of the model, which makes the divisor of an update the
   sum of the products over the observed cells of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.cp.solver import FactorSolver

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.cp.poisson.problem import CountProblem, Method

# The KKT violation, in shares of the sum of a row, at which its inner sweeps end.
_ROW_TOL = 1e-11
# The divergence is a sum of terms as large as the counts, each rounded.
_ROUNDING = 16 * 2.0**-52


@dataclass(frozen=True)
class PoissonState:
    """Weights, factors, and how well they fit.

    The columns of free modes sum to one, those of a component of weight zero too.
    """

    weights: Array
    factors: list[Array]
    divergence: float
    violation: float
    """The largest KKT violation of a mode, each just before its last update."""
    sweeps: int
    """The inner sweeps of the last iteration, over all modes."""


class PoissonSolver(FactorSolver[PoissonState]):
    """CP of counts by alternating Poisson regression."""

    name = "PoissonCP"
    side_by_side = True
    problem: CountProblem

    def __init__(
        self,
        problem: CountProblem,
        *,
        method: Method = "mu",
        inner_iter: int = 10,
        fixed_modes: Collection[int] = (),
    ) -> None:
        super().__init__(problem, fixed_modes)
        self.method = method
        self.inner_iter = inner_iter
        # The samples come last, as in all of the family.
        self.free_modes.sort(key=lambda mode: mode == 0)
        self.floor = _ROUNDING * problem.total

    def init(self, factors: Sequence[Array]) -> PoissonState:
        """Return the state of given factors."""
        weights = np.ones(factors[0].shape[1])
        normalized = list(factors)
        for mode in self.free_modes:
            even = np.full_like(factors[mode], 1.0 / len(factors[mode]))
            sums, normalized[mode] = _split(factors[mode], even)
            weights = weights * sums
        violation = 0.0
        for mode in self.free_modes:
            loaded = _loaded(weights, normalized, mode)
            violation = max(violation, self.problem.violation(loaded, mode))
        return self._state(weights, normalized, violation, 0)

    def step(self, state: PoissonState) -> PoissonState:
        """Return the state after one pass over the free modes."""
        weights, factors = state.weights, list(state.factors)
        violation, sweeps = 0.0, 0
        for mode in self.free_modes:
            update = self.problem.update(
                _loaded(weights, factors, mode),
                mode,
                self.method,
                sweeps=self.inner_iter,
                tol=_ROW_TOL,
                measures=mode == self.free_modes[-1],
            )
            weights, factors[mode] = _split(update.rows, factors[mode])
            violation = max(violation, update.violation)
            sweeps += update.sweeps
        return PoissonState(weights, factors, update.divergence, violation, sweeps)

    def objective(self, state: PoissonState) -> float:
        """Return the divergence of the data from the model."""
        return state.divergence

    def diagnostics(self, state: PoissonState) -> Mapping[str, float]:
        """Return the KKT violation and the number of inner sweeps."""
        return {"kkt": state.violation, "inner_iter": state.sweeps}

    def finish(self, state: PoissonState) -> PoissonState:
        """Return the state with the samples at their minimum for the others."""
        if self.free_modes[-1] != 0:
            return state
        rows = self.problem.solve(_loaded(state.weights, state.factors, 0), 0)
        weights, samples = _split(rows, state.factors[0])
        factors = [samples, *state.factors[1:]]
        return self._state(weights, factors, state.violation, state.sweeps)

    def factors(self, state: PoissonState) -> list[Array]:
        """Return the factors with the weights in one of them, in the type of the data."""
        loaded = _loaded(state.weights, state.factors, self.free_modes[-1])
        return [factor.astype(self.problem.dtype) for factor in loaded]

    def adopt(self, state: PoissonState) -> PoissonState:
        """Bring the factors of a checkpoint to the layout that kernels need."""
        factors = [self.problem.asarray(factor) for factor in state.factors]
        weights = self.problem.asarray(state.weights)
        return PoissonState(weights, factors, state.divergence, state.violation, state.sweeps)

    def _state(
        self, weights: Array, factors: list[Array], violation: float, sweeps: int
    ) -> PoissonState:
        loaded = _loaded(weights, factors, self.free_modes[-1])
        divergence = self.problem.divergence(loaded)
        return PoissonState(weights, factors, divergence, violation, sweeps)


def random_start(problem: CountProblem, n_components: int, seed: int) -> list[Array]:
    """Return positive random factors."""
    generator = np.random.default_rng(seed)
    # Between 0.1 and 1: every component can still become anything, and no cell is impossible.
    factors = [generator.uniform(0.1, 1.0, (size, n_components)) for size in problem.shape]
    return [factor / factor.sum(axis=0) for factor in factors]


def of_the_sum_of(problem: CountProblem, factors: list[Array]) -> list[Array]:
    """Scale factors so that the sum of the model is that of the data."""
    mass = float(np.sum(factors[0] * problem.column_masses(factors, 0)))
    return [factors[0] * (problem.total / mass if mass > 0 else 0.0), *factors[1:]]


def _loaded(weights: Array, factors: Sequence[Array], mode: int) -> list[Array]:
    """Return the factors with the weights put into one of them."""
    return [factor * weights if k == mode else factor for k, factor in enumerate(factors)]


def _split(rows: NDArray[Any], before: NDArray[Any]) -> tuple[Array, Array]:
    """Return sums of columns, and columns over them; one of zeros keeps its shape: a way back."""
    sums = rows.sum(axis=0)
    alive = sums > 0
    return sums, np.where(alive, rows / np.where(alive, sums, 1.0), before)
