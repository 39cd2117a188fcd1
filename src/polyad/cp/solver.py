r"""Alternating least squares for the CP decomposition.

Problem
    Minimise :math:`\tfrac12 \|X - \sum_r a_r \circ b_r \circ \dots\|^2
    + \tfrac{\lambda}{2} (\|A\|^2 + \|B\|^2 + \dots)` over the factors, where the first norm
    runs over the observed entries.
Update
    Each mode in turn is set to its exact minimiser (normal equations), mode 0, the samples, last.
    Then the lengths of the columns of a component are made equal over the free modes, which
    leaves the model unchanged, lowers the ridge term, and keeps numbers in range.
Stopping
    The driver's: relative change of the objective, or an objective at the rounding level.
Cost per iteration
    Dense: two passes over the data, ``O(size · R)``. Sparse: ``O(nnz · R · N)``. With missing
    entries ``O(observed · R²)``. Memory beyond the data: the factors.

How this differs from the textbook algorithm:

1. Modes of dense data share partial contractions: two passes over the data, not one per mode.
2. Columns are balanced instead of normalised after each mode, so that a ridge has a meaning.
3. Singular normal matrices give the shortest solution instead of an error or noise.
4. Missing entries are left out of the sums rather than imputed, so that each step is exact.

Over a stream of samples, new rows are appended and the other modes move a little. Each mode ``k``
but the samples keeps the two sums of its normal equations over all samples seen, the right-hand
side :math:`P_k` and the normal matrix :math:`Q_k`, so that :math:`A_k = P_k Q_k^{-1}`. A batch adds
its own MTTKRP and Gram product to them. The data of earlier batches is never needed again [1]_.

References
----------
.. [1] S. Zhou, N. X. Vinh, J. Bailey, Y. Jia, I. Davidson, "Accelerating Online CP Decompositions
   for Higher Order Tensors", KDD 2016, doi:10.1145/2939672.2939763
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from polyad.core.arrays import namespace_of
from polyad.cp.rules import LeastSquares, solve_normal
from polyad.fitting.driver import Solver
from polyad.tensor.kruskal import column_norms
from polyad.tensor.products import gram_product

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.problem import CompleteProblem, FitData, Problem
    from polyad.cp.rules import UpdateRule

S = TypeVar("S")


@dataclass(frozen=True)
class ALSState:
    """The factors, with the weights inside them, and the squared residual that they leave."""

    factors: list[Array]
    residual: float


class FactorSolver(Solver[S]):
    """A solver whose state is made of factors: what the estimators of the family ask for."""

    problem: FitData
    free_modes: list[int]
    fixed_modes: frozenset[int]

    def __init__(self, problem: FitData, fixed_modes: Collection[int] = ()) -> None:
        self.problem = problem
        self.fixed_modes = frozenset(fixed_modes)
        self.free_modes = [k for k in range(len(problem.shape)) if k not in self.fixed_modes]

    @abstractmethod
    def init(self, factors: Sequence[Array]) -> S:
        """Return the state of given factors."""

    @abstractmethod
    def factors(self, state: S) -> list[Array]:
        """Return the factors of a finished state, in the type of the data."""

    def lengths(self, factors: Sequence[Array]) -> list[Array]:
        """Return the lengths of the columns of each free mode, in the unit of the data.

        Fixed modes count as having the length one, because their scale stays in their factors.
        """
        share = 2.0 ** (self.problem.exponent / len(self.free_modes))
        lengths = [column_norms(factor) for factor in factors]
        xp = namespace_of(lengths[0])
        return [
            length * share if k in self.free_modes else xp.ones_like(length)
            for k, length in enumerate(lengths)
        ]


class LeastSquaresSolver(FactorSolver[ALSState]):
    """A solver of a squared loss, which tells its objective in the unit of the data as given."""

    problem: Problem

    def __init__(self, problem: Problem, fixed_modes: Collection[int] = ()) -> None:
        super().__init__(problem, fixed_modes)
        self.unit: float = 4.0**problem.exponent
        self.floor = problem.precision * problem.norm_squared * self.unit

    def scaled(self, weight: float, degree: int) -> float:
        """Return the weight of a penalty on each factor that has the same effect on the problem.

        If the data was divided by s, each of n free factors is by s^(1/n) and the objective by s².
        ``degree`` is that of the penalty in the entries of a factor: 2 for squares.
        """
        exponent = self.problem.exponent * (degree / len(self.free_modes) - 2.0)
        return weight * 2.0**exponent if weight else 0.0

    def factors(self, state: ALSState) -> list[Array]:
        """Return the factors."""
        return list(state.factors)

    def adopt(self, state: ALSState) -> ALSState:
        """Move the factors of a checkpoint to the namespace, device and type of the data."""
        return ALSState([self.problem.asarray(f) for f in state.factors], state.residual)

    def _with_samples(self, state: ALSState, rule: UpdateRule) -> ALSState:
        """Return a state whose samples are what a rule gives for the other factors."""
        if 0 not in self.free_modes:
            return state
        rows, residual = self.problem.fit_samples(state.factors, rule)
        return ALSState([rows, *state.factors[1:]], residual)


class AlternatingLeastSquares(LeastSquaresSolver):
    """CP by alternating least squares; ``ridge`` weighs the squared factors."""

    name = "CP"
    side_by_side = True

    def __init__(
        self, problem: Problem, *, ridge: float = 0.0, fixed_modes: Collection[int] = ()
    ) -> None:
        super().__init__(problem, fixed_modes)
        self.ridge = self.scaled(ridge, 2)
        self.rule = LeastSquares(self.ridge)

    def init(self, factors: Sequence[Array]) -> ALSState:
        """Return the state of given factors."""
        balanced = balance(factors, self.free_modes)
        return ALSState(balanced, self.problem.residual(balanced))

    def step(self, state: ALSState) -> ALSState:
        """Return the state after one sweep over the free modes."""
        factors = list(state.factors)
        residual = self.problem.sweep(factors, self.rule, self.fixed_modes)
        return ALSState(balance(factors, self.free_modes), residual)

    def objective(self, state: ALSState) -> float:
        """Return half the squared residual plus half the ridge term."""
        if self.ridge == 0:
            return 0.5 * self.unit * state.residual
        xp = namespace_of(state.factors[0])
        size = sum(float(xp.sum(state.factors[k] ** 2)) for k in self.free_modes)
        return 0.5 * self.unit * (state.residual + self.ridge * size)

    def finish(self, state: ALSState) -> ALSState:
        """Return the samples to their best rows, the shortest, from which balancing moved them."""
        return self._with_samples(state, self.rule)


def ridge_rows(problem: Problem, others: Sequence[Array], scale: Array, ridge: float) -> Array:
    """Return the best rows of samples for the other factors, times the scale of the components."""
    start = problem.asarray(np.zeros((problem.shape[0], scale.shape[0])))
    others = [problem.asarray(factor) for factor in others]
    rows = problem.minimizer([start, *others], 0, LeastSquares(ridge))
    return rows * problem.asarray(scale)[None, :]


def balance(factors: Sequence[Array], free_modes: Collection[int]) -> list[Array]:
    """Make the columns of each component equally long over some modes; the model stays the same."""
    xp = namespace_of(factors[0])
    lengths = [column_norms(factors[k]) for k in free_modes]
    alive = lengths[0] > 0
    for length in lengths[1:]:
        alive = alive & (length > 0)
    safe = [xp.where(alive, length, xp.ones_like(length)) for length in lengths]
    logarithm = xp.log(safe[0])
    for length in safe[1:]:
        logarithm = logarithm + xp.log(length)
    common = xp.exp(logarithm / len(safe))
    result = list(factors)
    for mode, length in zip(free_modes, safe, strict=True):
        # A component with a zero column is zero and has no scale; a sweep may still revive it.
        scale = xp.where(alive, common / length, xp.ones_like(length))
        result[mode] = factors[mode] * scale[None, :]
    return result


@dataclass(frozen=True)
class OnlineSums:
    """The right-hand side and normal matrix of each mode other than the samples."""

    rhs: list[Array]
    normal: list[Array]


def sums_of_fit(factors: Sequence[Array], ridge: float) -> OnlineSums:
    r"""Return the sums of a complete fit from its factors alone.

    At a minimum :math:`A_k (Q_k + \lambda I) = P_k`, so the right-hand side needs no second look at
    the data.
    """
    normal = [gram_product(factors, mode) for mode in range(1, len(factors))]
    rhs = [
        factor @ matrix + ridge * factor for factor, matrix in zip(factors[1:], normal, strict=True)
    ]
    return OnlineSums(rhs, normal)


def add_batch(
    batch: CompleteProblem, sums: OnlineSums, factors: Sequence[Array], ridge: float
) -> tuple[OnlineSums, list[Array]]:
    """Fold a batch of samples into the sums and update the factors of the other modes.

    ``factors`` are the rows of the batch for the factors before, and those factors.
    """
    updated = list(factors)
    rhs, normal = list(sums.rhs), list(sums.normal)
    for mode in range(1, len(updated)):
        rhs[mode - 1] = rhs[mode - 1] + batch.tensor.mttkrp(updated, mode)
        normal[mode - 1] = normal[mode - 1] + gram_product(updated, mode)
        updated[mode] = solve_normal(normal[mode - 1], rhs[mode - 1], ridge)
    updated[0] = batch.minimizer(updated, 0, LeastSquares(ridge))
    return OnlineSums(rhs, normal), updated
