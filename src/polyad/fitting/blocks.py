r"""BCD-PR: minimise a function of several blocks, one after the other, each with a proximal term.

Problem
    Minimise :math:`f(\theta_1, \dots, \theta_m)` with each block in a convex set of its own.
Step
    For each block in turn, with the newest values of the others,

    .. math:: \theta_i \leftarrow \arg\min_\theta f(\dots, \theta, \dots)
        + \tfrac{\tau_i}{2} \|\theta - \theta_i^{\mathrm{old}}\|^2

    up to a gap. Where f is convex in each block, any :math:`\tau > 0` makes the minimum unique and
    the step a descent; the gaps must be summable for the theory of [1]_, and are: each sweep may
    leave a fifth of what the one before it brought.
Descent
    A sweep that brings less than the gap it may leave says nothing about how much there is to
    gain: another one with a third of the gap belongs to the same step. One that raises f, which
    only its gaps can do, is forgotten: f never rises.
Momentum
    Alternating minimisation creeps along valleys. Where a problem allows it (``extrapolates``), a
    sweep begins beyond the newest blocks, on the line from those before them, by a share that grows
    as in Nesterov's method. A sweep that raises f so is forgotten too: the next one begins at the
    newest blocks, and the shares at zero.
Stationarity
    Eq. 5 of [1]_: the norm of the projection of :math:`-\nabla f` on the directions into the sets.
    It is measured where the problem knows gradients and projections. Elsewhere
    :math:`(\sum_i \tau_i^2 \|\theta_i - \theta_i^{\mathrm{old}}\|^2)^{1/2}` is told, a bound of
    it for each block when it was updated.

References
----------
.. [1] D. Kwon, H. Lyu, "Complexity of Block Coordinate Descent with Proximal Regularization and
   Applications to Wasserstein CP-dictionary Learning", ICML 2023.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polyad.core.arrays import namespace_of
from polyad.exceptions import InvalidInputError
from polyad.fitting.driver import FitOptions, FitResult, Solver
from polyad.fitting.restarts import fit_best

if TYPE_CHECKING:
    from polyad.core.arrays import Array

# The part of its value that the first sweep may leave, the part of what a sweep brought that the
# next may, and what is left of a gap that was too large.
_FIRST = 0.1
_PART = 0.2
_SMALLER = 1 / 3
_ATTEMPTS = 4
# Sweep k after a start has the share k / (k + this) of the last change as momentum.
_MOMENTUM = 3
# How far the gradient is followed to find its projection, as a part of the size of the block.
_NEARBY = 1e-7

#: A weight for all blocks, one for each, or a function of the sweep, from 1, that gives them.
Tau = float | Sequence[float] | Callable[[int], float | Sequence[float]]


class BlockProblem(ABC):
    """What is minimised: a function of blocks that is told how to minimise over each.

    ``memory`` is a list of arrays that the methods hand on to each other, such as the start of a
    dual; it may stay empty.
    """

    #: Differences of values below this are rounding.
    floor: float = 0.0
    #: No value is lower, if that is known.
    least: float = -math.inf
    #: Whether sweeps may have momentum: they then begin at what :meth:`project` makes of it.
    extrapolates: bool = False

    @abstractmethod
    def value(self, blocks: list[Array], memory: list[Array]) -> tuple[float, list[Array]]:
        """Return f, and the memory."""

    @abstractmethod
    def minimize(
        self, number: int, blocks: list[Array], memory: list[Array], tau: float, gap: float
    ) -> tuple[Array, list[Array]]:
        """Return the best block ``number``, with its proximal term, up to a gap; and the memory."""

    def gradient(self, number: int, blocks: list[Array], memory: list[Array]) -> Array | None:
        """Return the gradient of f by a block after :meth:`value`, or None if nobody knows."""
        return None

    def project(self, number: int, block: Array) -> Array:
        """Return the nearest point of the set of a block, for gradients and momentum."""
        return block

    def revived(self, blocks: list[Array], memory: list[Array]) -> list[Array]:
        """Return blocks of the same value that a sweep can make more of: by default the same."""
        return blocks


@dataclasses.dataclass(frozen=True)
class BlockState:
    """Blocks, what their steps hand on, f, and the gap that the next sweep may leave.

    ``earlier`` are the blocks that the newest ones came after, for momentum, which has grown for
    ``n_moving`` sweeps.
    """

    blocks: list[Array]
    memory: list[Array]
    value: float
    gap: float
    stationarity: float
    n_sweeps: int
    earlier: list[Array]
    n_moving: int


class BlockSolver(Solver[BlockState]):
    """Sweeps over the blocks of a problem.

    Parameters
    ----------
    problem : BlockProblem
        What is minimised.
    tau : float, sequence of float or callable
        The weights of the proximal terms, not negative.
    """

    name = "BCD-PR"

    def __init__(self, problem: BlockProblem, tau: Tau) -> None:
        self.problem, self.tau = problem, tau
        self.floor, self.least = problem.floor, problem.least

    def begin(self, blocks: Sequence[Array], memory: Sequence[Array] = ()) -> BlockState:
        """Return the state of a start, whose first sweep may leave a tenth of its value."""
        value, kept = self.problem.value(list(blocks), list(memory))
        above = value - self.least if math.isfinite(self.least) else abs(value)
        gap = max(_FIRST * above, self.floor)
        measured = self._stationarity(list(blocks), kept, math.inf)
        return BlockState(list(blocks), kept, value, gap, measured, 0, list(blocks), 0)

    def step(self, state: BlockState) -> BlockState:
        """Return the state after one sweep, or a few with smaller gaps; f never rises."""
        number = state.n_sweeps + 1
        weights = weights_of(self.tau(number) if callable(self.tau) else self.tau, state.blocks)
        best, gap = state, state.gap
        for attempt in range(_ATTEMPTS):
            blocks, memory = self._ahead(best), best.memory
            blocks = self.problem.revived(blocks, memory) if attempt == 0 else blocks
            squares = 0.0
            for k, tau in enumerate(weights):
                block, memory = self.problem.minimize(k, blocks, memory, tau, gap)
                xp = namespace_of(block)
                squares += float(xp.sum((tau * (block - blocks[k])) ** 2))
                blocks[k] = block
            value, memory = self.problem.value(blocks, memory)
            had_momentum, is_lower = best.n_moving > 0, value <= best.value
            if is_lower:
                measured = self._stationarity(blocks, memory, math.sqrt(squares))
                moving = best.n_moving + 1 if self.problem.extrapolates else 0
                earlier = best.blocks
                best = BlockState(blocks, memory, value, gap, measured, number, earlier, moving)
            else:
                best = dataclasses.replace(best, n_moving=0)
            brought = state.value - best.value
            if had_momentum and not is_lower:  # the momentum is to blame, not the gap
                continue
            if brought >= gap or gap <= self.floor:
                following = max(_PART * brought, self.floor)
                return dataclasses.replace(best, gap=following, n_sweeps=number)
            gap = max(_SMALLER * gap, self.floor)
        return dataclasses.replace(best, gap=gap, n_sweeps=number)

    def _ahead(self, state: BlockState) -> list[Array]:
        """Return the blocks that a sweep begins with: the newest ones, or beyond them."""
        if not state.n_moving:
            return list(state.blocks)
        share = state.n_moving / (state.n_moving + _MOMENTUM)
        pairs = enumerate(zip(state.blocks, state.earlier, strict=True))
        return [self.problem.project(k, new + share * (new - old)) for k, (new, old) in pairs]

    def objective(self, state: BlockState) -> float:
        """Return f."""
        return state.value

    def diagnostics(self, state: BlockState) -> dict[str, float]:
        """Return the stationarity of the state."""
        return {"stationarity": state.stationarity}

    def _stationarity(self, blocks: list[Array], memory: list[Array], otherwise: float) -> float:
        """Return the measure of eq. 5, or a bound where gradients are not known."""
        total = 0.0
        for k, block in enumerate(blocks):
            gradient = self.problem.gradient(k, blocks, memory)
            if gradient is None:
                return otherwise
            xp = namespace_of(block)
            steepest = float(xp.max(xp.abs(gradient)))
            if steepest == 0.0:
                continue
            length = _NEARBY * max(float(xp.max(xp.abs(block))), _NEARBY) / steepest
            moved = self.problem.project(k, block - length * gradient) - block
            total += float(xp.sum((moved / length) ** 2))
        return math.sqrt(total)


def minimize_blocks(
    problem: BlockProblem,
    start: Sequence[Array],
    *,
    tau: Tau = 1.0,
    max_iter: int = 100,
    tol: float = 1e-6,
    options: FitOptions | None = None,
) -> FitResult[BlockState]:
    """Minimise a function of blocks by BCD-PR.

    Parameters
    ----------
    problem : BlockProblem
        What is minimised, and how over each block.
    start : sequence of arrays
        The blocks to begin with.
    tau : float, sequence of float or callable, default=1.0
        The weights of the proximal terms: one for all blocks, one for each, or a function of the
        number of the sweep, from 1, that returns one of these.
    max_iter : int, default=100
        The largest number of sweeps.
    tol : float, default=1e-6
        Stop when a sweep lowers f by less than this part of it.
    options : FitOptions, optional
        Callbacks, a time budget, progress; then ``max_iter`` and ``tol`` are those of it.

    Returns
    -------
    FitResult
        ``state.blocks``, ``state.value`` and ``state.stationarity``, ``status`` and ``history``,
        whose column ``stationarity`` is the measure of eq. 5, or its bound, after each sweep.

    Examples
    --------
    The nearest numbers whose product is one half, each from an interval:

    >>> import numpy as np
    >>> from polyad.fitting import BlockProblem, minimize_blocks
    >>> class Product(BlockProblem):
    ...     least = 0.0
    ...     def value(self, blocks, memory):
    ...         return float((blocks[0] * blocks[1] - 0.5)[0] ** 2), memory
    ...     def minimize(self, number, blocks, memory, tau, gap):
    ...         own, other = blocks[number], blocks[1 - number]
    ...         best = (other + tau * own) / (2 * other**2 + tau)
    ...         return np.clip(best, 0.0, 1.0), memory
    >>> result = minimize_blocks(Product(), [np.ones(1), np.ones(1)], tau=0.1, tol=1e-12)
    >>> bool(abs(np.prod(result.state.blocks) - 0.5) < 1e-4)
    True
    """
    solver = BlockSolver(problem, tau)
    chosen = FitOptions(max_iter=max_iter, tol=tol) if options is None else options
    return fit_best(solver, lambda number, seed: solver.begin(start), [0], chosen)


def weights_of(tau: Any, blocks: Sequence[Array]) -> list[float]:
    """Return the weight of the proximal term of each block."""
    each = list(tau) if isinstance(tau, Sequence) else [tau] * len(blocks)
    weights = [float(weight) for weight in each]
    if len(weights) != len(blocks) or not all(0 <= weight < math.inf for weight in weights):
        message = (
            f"tau={tau!r} is not usable for {len(blocks)} blocks: give a number that is not "
            "negative, or one for each block."
        )
        raise InvalidInputError(message)
    return weights
