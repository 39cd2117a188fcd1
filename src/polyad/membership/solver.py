r"""Nonnegative CP of a tensor of moments, whose entries may be negative.

Problem
    Minimise :math:`\tfrac12 \|M - \sum_h a_h \circ b_h \circ c_h\|^2` over nonnegative factors. The
    objective is told without the constant :math:`\tfrac12 \|M\|^2`, which a tensor that is never
    formed does not know: it is zero for a model of nothing, and lower is better.
Update
    Each mode in turn by its normal equations :math:`Q = (B^T B) * (C^T C)`, :math:`Z = -M_{(1)} (C
    \odot B)`, always with the newest factors; then the lengths of columns are made equal.

    ``nnls``
        Coordinate descent on rows, while it pays: the rule of ``NonnegativeCP``.
    ``pqp``
        :math:`A \leftarrow A * (Z_- + \Phi) / (A Q + Z_+ + \Phi)`, all entries at once, with the
        :math:`\Phi` of Theorem 3 of [1]_.
    ``eps``
        The same with a :math:`\Phi` at the level of rounding. It also never raises the objective:
        that needs no bound on :math:`\Phi`, which only makes steps shorter.
    ``wnmf``
        Multiplicative updates of a fit to the positive entries alone, which are then the objective.
        It needs the tensor itself.
Stopping
    The driver's. No update raises the objective.

References
----------
.. [1] Z. Tan, S. Mukherjee, "Partitioned Tensor Factorizations for Learning Mixed Membership
   Models", ICML 2017.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from polyad.core.threads import current_threads, thread_limit
from polyad.cp.nonnegative.solver import Descent
from polyad.cp.problem import CompleteProblem
from polyad.cp.rules import UpdateRule, epsilon_of
from polyad.cp.solver import ALSState, LeastSquaresSolver, balance
from polyad.exceptions import InvalidInputError
from polyad.fitting import FitOptions, Status, fit_best
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import gram_product, kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array

    Matrix = NDArray[np.float64]

Update = Literal["nnls", "pqp", "eps", "wnmf"]
UPDATES: tuple[Update, ...] = get_args(Update)
# The least Phi, as a part of the largest right-hand side: exact zeros would stay zeros.
_LEAST_PHI = 1e-12


class MomentProblem(CompleteProblem):
    """A tensor that may never have been formed; residuals are told without its own square.

    Of one that was not, ``norm_squared`` is a number that the squared norm is not below: rounding
    is told by it.
    """

    def __init__(self, tensor: Any) -> None:
        if isinstance(tensor, DenseTensor):
            super().__init__(tensor)
            return
        self.tensor, self.shape, self.dtype = tensor, tensor.shape, tensor.dtype
        self.norm_squared = tensor.least_norm_squared()
        self.precision = 2.0 * epsilon_of(tensor.dtype)

    def asarray(self, array: Array) -> Matrix:
        """Return an array in the number type of moments."""
        return np.asarray(array, dtype=np.float64)

    def _residual(self, normal: Array, rhs: Array, factor: Array) -> float:
        """Return ``|model|² - 2 <M, model>``."""
        return float(np.sum(normal * gram_product([factor])) - 2.0 * np.sum(rhs * factor))


class PositiveProblem(MomentProblem):
    """The positive entries of a tensor; what is below zero counts as unknown."""

    def __init__(self, tensor: DenseTensor) -> None:
        self.mask = np.asarray(tensor.array > 0)
        super().__init__(DenseTensor(np.where(self.mask, tensor.array, 0.0)))

    def sweep(self, factors: list[Array], rule: UpdateRule, fixed_modes: Collection[int]) -> float:
        """Multiply each mode by the ratio of the two parts of its gradient."""
        for mode in (1, 2, 0):
            above = self.tensor.mttkrp(factors, mode)
            below = DenseTensor(self._model(factors)).mttkrp(factors, mode)
            least = _least_phi(above)
            factors[mode] = factors[mode] * (above + least) / (below + least)
        return self.residual(factors)

    def residual(self, factors: Sequence[Array]) -> float:
        """Return ``|model|² - 2 <M, model>`` over the positive entries."""
        model = self._model(factors)
        return float(np.sum(model * (model - 2.0 * self.tensor.array)))  # type: ignore[union-attr]

    def _model(self, factors: Sequence[Array]) -> Matrix:
        return np.where(self.mask, kruskal_to_dense(None, factors), 0.0)


class ParallelQuadratic(UpdateRule):
    """Multiplicative steps of quadratic programs, all rows and entries at once (PQP)."""

    def __init__(self, *, bounded: bool) -> None:
        self.bounded = bounded

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Take one step: eq. 11 of the paper, with Z = -rhs."""
        phi = _least_phi(rhs) + (lower_bound(normal, rhs) if self.bounded else 0.0)
        above = np.maximum(rhs, 0.0) + phi
        below = current @ normal + np.maximum(-rhs, 0.0) + phi
        stepped: Array = current * above / below
        return stepped

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Moments are known everywhere: there is one normal matrix."""
        raise NotImplementedError

    solve_observed = solve_rows  # type: ignore[assignment]


def _least_phi(rhs: Matrix) -> float:
    """Return the least Phi: above zero, so that nothing is divided by nothing."""
    return max(_LEAST_PHI * float(np.abs(rhs).max()), float(np.finfo(float).tiny))


def lower_bound(normal: Matrix, rhs: Matrix) -> Matrix:
    r"""Return the :math:`\Phi` of Theorem 3 of the paper, less its least value.

    Half of :math:`\sqrt{\mathrm{diag}(Z Q^{-1} Z^T) / \lambda_{\min}(Q)}\; \mathrm{diag}(Q)^T -
    |Z|` where that is positive; zero where ``Q`` is singular, as the authors' code has it.
    """
    eigenvalues, vectors = np.linalg.eigh(normal)
    smallest = float(eigenvalues[0])
    if smallest <= len(normal) * np.finfo(float).eps * float(eigenvalues[-1]):
        return np.zeros_like(rhs)
    sizes = np.sum((rhs @ vectors) ** 2 / eigenvalues, axis=1)
    reach = np.sqrt(sizes / smallest)[:, None] * np.diagonal(normal)[None, :]
    bound: Matrix = 0.5 * np.maximum(reach - np.abs(rhs), 0.0)
    return bound


def moment_problem(tensor: Any, update: str) -> MomentProblem:
    """Return the problem of an update; ``wnmf`` needs a tensor that was formed."""
    if update != "wnmf":
        return MomentProblem(tensor)
    if not isinstance(tensor, DenseTensor):
        message = (
            "update='wnmf' looks at the sign of each entry, which a tensor that is never formed "
            "does not have. Use update='nnls', or a tensor that is formed (method='partitioned')."
        )
        raise InvalidInputError(message)
    return PositiveProblem(tensor)


class MomentSolver(LeastSquaresSolver):
    """Nonnegative factors of a tensor of moments."""

    name = "MixedMembership"
    problem: MomentProblem
    least = -math.inf
    nothing = 0.0

    def __init__(self, problem: MomentProblem, update: str = "nnls") -> None:
        super().__init__(problem)
        self.update = update
        zeros = [0.0] * 3
        self.rule: UpdateRule = (
            Descent(zeros, zeros)
            if update == "nnls"
            else ParallelQuadratic(bounded=update == "pqp")
        )

    def random(self, n_components: int, seed: int) -> ALSState:
        """Return uniform random factors, in the size that suits the tensor best."""
        generator = np.random.default_rng(seed)
        return self.init([generator.random((size, n_components)) for size in self.problem.shape])

    def init(self, factors: Sequence[Array]) -> ALSState:
        """Return the state of given factors, times the best number."""
        balanced = balance(factors, range(3))
        residual = self.problem.residual(balanced)
        square = float(np.sum(gram_product(balanced)))
        if self.update == "wnmf" or square == 0.0:
            return ALSState(balanced, residual)
        # The best multiple is <M, model> / |model|²; moments may be on the other side of zero.
        best = max((square - residual) / (2.0 * square), 1e-3)
        return ALSState(
            [factor * best ** (1 / 3) for factor in balanced],
            best * best * square - best * (square - residual),
        )

    def step(self, state: ALSState) -> ALSState:
        """Return the state after one sweep over the modes."""
        factors = list(state.factors)
        residual = self.problem.sweep(factors, self.rule, ())
        return ALSState(balance(factors, range(3)), residual)

    def objective(self, state: ALSState) -> float:
        """Return half the squared residual, less that of a model of nothing."""
        return 0.5 * state.residual


class Decomposition(NamedTuple):
    """Nonnegative factors, the scale shared out evenly over them, and the norm of what they miss.

    ``residual`` is ``|M - model|``, or NaN where ``|M|`` would cost more than the fit.
    """

    factors: list[Matrix]
    residual: float


def decompose(
    tensor: Any,
    n_components: int,
    *,
    update: Update = "nnls",
    max_iter: int = 1000,
    tol: float = 1e-8,
    n_init: int = 1,
    random_state: int | None = None,
) -> Decomposition:
    """Return nonnegative factors of a tensor of order three, whose entries may be negative.

    ``tensor`` is an array, a DenseTensor or a MomentTensor; of ``n_init`` random starts the best
    end counts.
    """
    if update not in UPDATES:
        message = f"update={update!r} is not one of {', '.join(map(repr, UPDATES))}."
        raise InvalidInputError(message)
    if isinstance(tensor, np.ndarray):
        tensor = DenseTensor(np.ascontiguousarray(tensor, dtype=np.float64))
    solver = MomentSolver(moment_problem(tensor, update), update)
    options = FitOptions(max_iter=max_iter, tol=tol)
    factors = best_factors(solver, n_components, options, n_init, random_state)
    return Decomposition(factors, residual_norm(solver.problem, factors, tensor))


def best_factors(
    solver: MomentSolver, n_components: int, options: FitOptions, n_init: int, random_state: Any
) -> list[Matrix]:
    """Return the factors that the best of some random starts ends with."""
    seeds = np.random.default_rng(random_state).integers(2**31 - 1, size=n_init)

    def start(number: int, seed: int) -> ALSState:
        return solver.random(n_components, seed)

    with thread_limit(current_threads()):
        best = fit_best(solver, start, list(map(int, seeds)), options)
    if best.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return best.state.factors


def residual_norm(problem: MomentProblem, factors: Sequence[Matrix], tensor: Any) -> float:
    """Return the norm of what factors miss of a tensor."""
    if isinstance(tensor, DenseTensor):
        missed = np.asarray(tensor.array) - kruskal_to_dense(None, factors)
        return float(np.linalg.norm(missed))
    square = tensor.norm_squared()
    if math.isnan(square):
        return math.nan
    return math.sqrt(max(square + problem.residual(factors), 0.0))
