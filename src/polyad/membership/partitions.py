"""Variables in three sets, or in many partitions that share the variables of three anchor sets.

The whole model as one block of three sets needs no matching. The paper's way factorizes a small
block for each partition, its variables together with the anchors, by themselves and in parallel;
components are told apart by the anchors, which all blocks have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import Parallel, delayed

from polyad.core.threads import current_threads
from polyad.cp.solver import ALSState
from polyad.exceptions import InvalidInputError
from polyad.fitting import FitOptions, Solver, fit_best
from polyad.membership.matching import Match, Matching, match_components, smallest_angle
from polyad.membership.moment_tensors import (
    MomentTensor,
    block_moments,
    check_sets,
    moment_tensor,
)
from polyad.membership.solver import MomentSolver, moment_problem, residual_norm
from polyad.membership.variables import find_positions
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.membership.variables import Table, Variables

    Matrix = NDArray[np.float64]
    Positions = NDArray[np.int64]
    Sets = list[Positions]

# Sweeps of each partition in an iteration: what is sent to a worker is worth sending.
_SWEEPS = 10
# The most sweeps over a part of the samples, where these are too many to keep.
_FIRST_SWEEPS = 100
# Variables among which anchors are looked for: all pairs of them are compared.
_CANDIDATES = 60
# Rows of their moments, all together (32 MB).
_MOST_ROWS = 2000
# Variables of each set by which the part of moments below zero is told, where they are not formed,
# and the most cells of their block.
_SEEN_VARIABLES = 8
_SEEN_CELLS = 1 << 22


@dataclass(frozen=True)
class Layout:
    """Which variables make up the three sets of each block; the first of each are the anchors."""

    blocks: list[Sets]
    anchors: Sets


@dataclass(frozen=True)
class Plan:
    """What a fit works on."""

    table: Table
    layout: Layout
    alpha0: float


def rank_bound(variables: Variables, chosen: Positions) -> int:
    """Return the largest rank that the stacked parameters of variables can have.

    Those of each variable sum to one, so that each has one row less to itself, but for a first.
    """
    return int((variables.sizes[chosen] - 1).sum()) + 1


def check_identifiable(variables: Variables, sets: Sequence[Positions], n_components: int) -> None:
    """Refuse more components than three sets of variables can tell apart (Kruskal's condition)."""
    bounds = [rank_bound(variables, own) for own in sets]
    ranks = [min(bound, n_components) for bound in bounds]
    if n_components > 1 and sum(ranks) < 2 * n_components + 2:
        message = (
            f"n_components={n_components} is more than moments can tell apart: the three sets of "
            f"variables have parameters of rank at most {', '.join(map(str, bounds))}, which "
            f"together must reach 2 n_components + 2 = {2 * n_components + 2}, none counting for "
            "more than n_components. Use fewer components, more columns, or larger anchors."
        )
        raise InvalidInputError(message)


def thirds(variables: Variables, n_components: int, seed: int) -> Layout:
    """Return all variables as one block: dealt out at random, sets of about equal rank."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(variables.kinds))
    order = order[np.argsort(-variables.sizes[order], kind="stable")]
    if n_components == 1:
        # Nothing is to be told apart: columns may serve twice, where there are fewer than three.
        order = np.resize(order, max(len(order), 3))
    sets: list[list[int]] = [[], [], []]
    filled = np.zeros(3)
    for j in order:
        k = int(np.argmin(filled))
        sets[k].append(int(j))
        # A variable of one category takes up some room too, so that no set stays empty.
        filled[k] += variables.sizes[j] - 1 + 0.5
    block = [np.sort(np.array(own, dtype=np.int64)) for own in sets]
    check_identifiable(variables, block, n_components)
    return Layout([block], block)


def partitioned(
    table: Table, anchors: Sets, n_components: int, n_partitions: int | None, seed: int
) -> Layout:
    """Return blocks of the anchors and a part of the other variables, at random."""
    check_sets(anchors)
    check_identifiable(table.variables, anchors, n_components)
    generator = np.random.default_rng(seed)
    taken = np.concatenate(anchors)
    rest = np.setdiff1d(np.arange(len(table.variables.kinds)), taken)
    most = max(1, len(rest) // 3)
    if n_partitions is None:
        # As many of the others as of the anchors in each block.
        n_partitions = min(most, max(1, round(len(rest) / len(taken))))
    if n_partitions > most:
        message = (
            f"n_partitions={n_partitions} is more than the {len(rest)} variables that are no "
            f"anchors fill, three for each. Use at most {most}."
        )
        raise InvalidInputError(message)
    parts = np.array_split(generator.permutation(rest), n_partitions)
    blocks = [
        [
            np.concatenate([anchor, third])
            for anchor, third in zip(anchors, np.array_split(part, 3), strict=True)
        ]
        for part in parts
    ]
    return Layout(blocks, anchors)


def given_anchors(anchors: Any, names: Sequence[Any]) -> Sets:
    """Return three sets of variables that were given by names or positions."""
    if isinstance(anchors, str) or len(list(anchors)) != 3:
        message = f"anchors={anchors!r} are not three sets of columns, by name or position."
        raise InvalidInputError(message)
    return [find_positions(own, names, "anchors") for own in anchors]


def choose_anchors(table: Table, n_components: int, alpha0: float, seed: int) -> Sets:
    """Choose three sets of variables whose pair moments have large k-th singular values.

    One variable at a time is added to each set in turn: that with which the moments between the
    sets are furthest from losing rank, until each can have full rank.
    """
    variables = table.variables
    order = np.random.default_rng(seed).permutation(len(variables.kinds))
    # Those with most categories first: they say most.
    order = order[np.argsort(-variables.sizes[order], kind="stable")][:_CANDIDATES]
    order = order[np.cumsum(variables.sizes[order]) <= _MOST_ROWS]
    if len(order) < 3:
        message = (
            f"The columns have too many categories to choose anchors from, up to "
            f"{variables.sizes.max()}. Use method='tensor-free', or give anchors."
        )
        raise InvalidInputError(message)
    pairs = block_moments(table, [order, order], alpha0)
    edges = np.concatenate([[0], np.cumsum(variables.sizes[order])])
    rows = [np.arange(edges[k], edges[k + 1]) for k in range(len(order))]
    sets: list[list[int]] = [[], [], []]
    free = list(range(len(order)))
    while any(rank_bound(variables, order[own]) < n_components or not own for own in sets):
        k = int(np.argmin([rank_bound(variables, order[own]) if own else 0 for own in sets]))
        if not free:
            message = (
                f"The columns have too few categories for anchors of rank n_components="
                f"{n_components}. Use fewer components, or method='tensor-free'."
            )
            raise InvalidInputError(message)
        others = [own for place, own in enumerate(sets) if place != k and own]
        worth = [_strength(pairs, rows, [*sets[k], j], others, n_components) for j in free]
        sets[k].append(free.pop(int(np.argmax(worth))))
    return [np.sort(order[own]) for own in sets]


def _strength(
    pairs: Matrix, rows: Sequence[Positions], own: list[int], others: list[list[int]], rank: int
) -> float:
    """Return the smallest of the singular values that count, of moments with the other sets."""
    mine = np.concatenate([rows[j] for j in own])
    if not others:
        # The first of all: that which says most of all others.
        alone = [[j] for j in range(len(rows)) if j not in own]
        return float(np.mean([_strength(pairs, rows, own, [other], rank) for other in alone]))
    least = np.inf
    for other in others:
        block = pairs[np.ix_(mine, np.concatenate([rows[j] for j in other]))]
        values = np.linalg.svd(block, compute_uv=False)
        least = min(least, float(values[min(rank, len(values)) - 1]))
    return least


@dataclass(frozen=True)
class PartitionState:
    """The factors of all blocks one after another, and what each leaves."""

    factors: list[Matrix]
    residuals: Matrix


def _block_solver(array: Any, update: str) -> MomentSolver:
    """Return the solver of one block, wherever a worker is."""
    return MomentSolver(moment_problem(DenseTensor(array), update), update)


def _init_block(array: Any, update: str, factors: Sequence[Matrix]) -> ALSState:
    """Return the state of given factors of one block."""
    return _block_solver(array, update).init(factors)


def _sweep_block(array: Any, update: str, factors: list[Matrix]) -> ALSState:
    """Return the state of one block after some sweeps."""
    solver, state = _block_solver(array, update), ALSState(factors, np.nan)
    for _ in range(_SWEEPS):
        state = solver.step(state)
    return state


def _start_block(array: Any, update: str, n_components: int, seeds: Sequence[int]) -> ALSState:
    """Return the best of some random starts of a block after a few sweeps."""
    solver = _block_solver(array, update)
    starts = [solver.random(n_components, seed) for seed in seeds]
    if len(starts) > 1:
        starts = [_sweep_block(array, update, own.factors) for own in starts]
    return min(starts, key=lambda own: own.residual)


class BlockSolver(MomentSolver):
    """The one block of three sets of all variables, which is formed only if that is cheaper."""

    def __init__(self, plan: Plan, update: str) -> None:
        self.plan = plan
        formed = True if update == "wnmf" else None
        tensor = moment_tensor(plan.table, plan.layout.blocks[0], plan.alpha0, formed=formed)
        super().__init__(moment_problem(tensor, update), update)

    def random(self, n_components: int, seed: int) -> ALSState:
        """Return uniform random factors; or, of samples too many to keep, the fit of some."""
        tensor = self.problem.tensor
        step = tensor.thinning if isinstance(tensor, MomentTensor) else 1
        if step == 1:
            return super().random(n_components, seed)
        some = BlockSolver(replace(self.plan, table=self.plan.table.every(step)), self.update)
        first = fit_best(
            some, lambda _, own: some.random(n_components, own), [seed], FitOptions(_FIRST_SWEEPS)
        )
        return self.init(first.state.factors)

    def fit_quality(self, factors: Sequence[Matrix]) -> dict[str, float | None]:
        """Return what factors miss of the moments, and the part of these below zero."""
        table, sets, alpha0 = self.plan.table, self.plan.layout.blocks[0], self.plan.alpha0
        tensor = self.problem.tensor
        if isinstance(tensor, DenseTensor):
            # That of the problem has the positive entries only with 'wnmf'.
            is_cut = self.update == "wnmf"
            return _seen([block_moments(table, sets, alpha0) if is_cut else tensor.array], factors)
        missed, norm = residual_norm(self.problem, factors, tensor), tensor.norm_squared()
        # Of a part of the tensor, which says as much.
        some, below = [own[:_SEEN_VARIABLES] for own in sets], math.nan
        if math.prod(int(table.variables.sizes[own].sum()) for own in some) <= _SEEN_CELLS:
            below = float((block_moments(table, some, alpha0) < 0).mean())
        return _quality(missed, math.sqrt(norm), below)


class PartitionSolver(Solver[PartitionState]):
    """The blocks of all partitions, each by itself: an iteration is ten sweeps over each."""

    name = "MixedMembership"
    least = -np.inf
    nothing = 0.0

    def __init__(self, plan: Plan, update: str) -> None:
        self.plan, self.update = plan, update
        self.arrays = [
            np.asarray(moment_tensor(plan.table, sets, plan.alpha0, formed=True).array)  # type: ignore[union-attr]
            for sets in plan.layout.blocks
        ]
        self.floor = 2.0 * np.finfo(float).eps * sum(float(np.sum(own**2)) for own in self.arrays)

    def fit_quality(self, factors: Sequence[Matrix]) -> dict[str, float | None]:
        """Return what factors miss of the moments, and the part of these below zero."""
        return _seen(self.arrays, factors)

    def random(self, n_components: int, seed: int, n_starts: int) -> PartitionState:
        """Return random starts, for each block the best of some."""
        seeds = np.random.default_rng(seed).integers(2**31 - 1, size=(len(self.arrays), n_starts))
        return self._spread(_start_block, [(n_components, own.tolist()) for own in seeds])

    def init(self, factors: Sequence[Matrix]) -> PartitionState:
        """Return the state of given factors, those of each block times the best number."""
        return self._spread(_init_block, [(own,) for own in _by_block(factors)])

    def step(self, state: PartitionState) -> PartitionState:
        """Return the state after ten sweeps over each block."""
        return self._spread(_sweep_block, [(own,) for own in _by_block(state.factors)])

    def _spread(self, work: Any, arguments: Sequence[tuple[Any, ...]]) -> PartitionState:
        """Work on all blocks in threads, or as a joblib backend that was chosen has it."""
        states = Parallel(n_jobs=current_threads(), prefer="threads")(
            delayed(work)(array, self.update, *own)
            for array, own in zip(self.arrays, arguments, strict=True)
        )
        factors = [factor for own in states for factor in own.factors]
        return PartitionState(factors, np.array([own.residual for own in states]))

    def objective(self, state: PartitionState) -> float:
        """Return the sum of the objectives of the blocks."""
        return 0.5 * float(state.residuals.sum())


def _seen(arrays: Sequence[Any], factors: Sequence[Matrix]) -> dict[str, float | None]:
    """Return the quality of the factors of blocks whose moments were formed."""
    models = [kruskal_to_dense(None, own) for own in _by_block(factors)]
    missed = [np.linalg.norm(own - model) for own, model in zip(arrays, models, strict=True)]
    norms = [np.linalg.norm(own) for own in arrays]
    below, cells = sum((own < 0).sum() for own in arrays), sum(own.size for own in arrays)
    return _quality(math.hypot(*missed), math.hypot(*norms), float(below / cells))


def _quality(missed: float, norm: float, below: float) -> dict[str, float | None]:
    """Return the norm of what is missed as a part of that of moments, and the part below zero."""
    part = missed / norm if norm > 0 else math.nan
    told = {"residual": part, "negative_fraction": below}
    return {name: value if math.isfinite(value) else None for name, value in told.items()}


def _by_block(factors: Sequence[Matrix]) -> list[list[Matrix]]:
    """Return the three factors of each block."""
    return [list(factors[k : k + 3]) for k in range(0, len(factors), 3)]


def combine(
    factors: Sequence[Matrix], layout: Layout, variables: Variables, matching: Matching
) -> tuple[list[Matrix], Matrix, dict[str, Any], list[Match]]:
    """Return the parameters that blocks have found; those of anchors are means over the blocks.

    They are the rows of each variable, whose columns sum to one, with the components of all blocks
    in one order, and weights; and what is known of them, and how each block but the first matches.
    """
    n_components = factors[0].shape[1]
    sums = [np.zeros((size, n_components)) for size in variables.sizes]
    counts = np.zeros(len(sums))
    weights, matches, anchors, n_empty = np.zeros(n_components), [], [], 0
    for own_factors, sets in zip(_by_block(factors), layout.blocks, strict=True):
        found, lengths, empty = _normalized(own_factors, sets, variables)
        n_empty += empty
        anchors.append(np.concatenate([found[int(j)] for own in layout.anchors for j in own]))
        match = match_components(anchors[0], anchors[-1], matching)
        matches.append(match)
        weights += lengths[match.order] / len(layout.blocks)
        for j, own in found.items():
            sums[j] += own[:, match.order]
            counts[j] += 1
    theta = [own / count for own, count in zip(sums, counts, strict=True)]
    known = {"smallest_anchor_angle": smallest_angle(anchors[0]), "n_empty_columns": n_empty}
    return theta, weights, known, matches[1:]


def _normalized(
    factors: Sequence[Matrix], sets: Sets, variables: Variables
) -> tuple[dict[int, Matrix], Matrix, int]:
    """Return the parameters of each variable, the weights of components, and empty columns."""
    found, weights, n_empty = {}, np.ones(factors[0].shape[1]), 0
    for factor, own in zip(factors, sets, strict=True):
        ends = np.cumsum(variables.sizes[own])
        totals = np.zeros(factor.shape[1])
        for j, block in zip(own, np.split(factor, ends[:-1]), strict=True):
            total = block.sum(axis=0)
            totals += total / len(own)
            is_empty = total <= 0
            n_empty += int(is_empty.sum())
            even = 1.0 / len(block)
            found[int(j)] = np.where(is_empty, even, block / np.where(is_empty, 1.0, total))
        weights = weights * totals
    return found, weights, n_empty
