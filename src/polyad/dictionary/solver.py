"""Wasserstein dictionaries by BCD-PR: what a sweep is, where it begins, and what codes are.

The blocks are the factors of the samples' models, codes first (Algorithm 4 of the paper): each is a
problem of :mod:`polyad.dictionary.newton`. What they hand on is the dual of the newest model, from
which the next block begins, and the loss of each sample. The objective is the sum of the losses,
less the lowest that any model has: zero if every sample has a model of its own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyad.core.arrays import namespace_of, to_numpy
from polyad.core.threads import cut_evenly
from polyad.dictionary.loss import self_transport
from polyad.dictionary.newton import (
    Block,
    Effort,
    dense_model,
    loss_of,
    precision_of,
    project_simplex,
    solve_block,
)
from polyad.fitting.blocks import BlockProblem, BlockSolver, BlockState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.dictionary.loss import Samples

# The weight, in epsilon, of half the squares of final codes: those of equal atoms are then equal.
_CODE_RIDGE = 1e-4
# Tangents of the debiased loss after which codes are final.
_DEBIASED_ROUNDS = 20
# An atom that no sample has more of is dead.
_DEAD = 1e-6
# Losses of samples below this part of epsilon, about a relative entropy, are not told apart.
_MATTERS = 1e-3
# The least weight, for each sample, of the proximal term that holds atoms during a batch: with less
# they would follow each batch alone.
_BATCH_TAU = 0.1
# The part of the loss of a batch that its atoms may miss.
_BATCH_GAP = 1e-2
# The part of the gap of a sweep to which the losses after it are known.
_OF_GAP = 0.1
# What a start takes from the mean of all samples, and how far its entries are from others'.
_SHARED, _JITTER = 0.1, 0.1


class DictionaryProblem(BlockProblem):
    """Samples, and the shape of the factors of their models.

    ``modes`` are the sizes of the factors but that of the samples: the grid, or all of it as one.
    ``half`` the losses of samples to themselves are given if the loss is the debiased one.
    """

    least = 0.0
    extrapolates = True

    def __init__(self, samples: Samples, modes: Sequence[int], half: Array | None = None) -> None:
        self.samples, self.modes, self.half = samples, tuple(modes), half
        self.grid = samples.geometry.shape
        self.n_samples = int(samples.values.shape[0])
        self.precision = precision_of(samples.geometry)
        self.floor = 10 * self.precision * self.n_samples

    def take(self, rows: Array) -> DictionaryProblem:
        """Return the problem of some of the samples."""
        half = None if self.half is None else self.half[rows]
        return DictionaryProblem(self.samples.take(rows), self.modes, half)

    def value(self, blocks: list[Array], memory: list[Array]) -> tuple[float, list[Array]]:
        """Return the sum of the losses above the lowest; dual and losses are the memory.

        After a block, whose gap is then in the memory too, they are known to a part of that.
        """
        xp = namespace_of(blocks[0])
        start = memory[0] if memory else xp.zeros_like(self.samples.values)
        share = _OF_GAP * memory[2] / self.n_samples if len(memory) > 2 else 0.0
        model = dense_model(blocks, self.grid)
        losses, dual = self._losses(model, start, max(share, self.precision))
        return float(xp.sum(losses)), [dual, losses]

    def _losses(self, model: Array, start: Array, gap: float) -> tuple[Array, Array]:
        """Return the losses of models above the lowest, or the debiased ones; and the dual."""
        losses, dual = loss_of(self.samples, model, start, Effort(gap))
        if self.half is None:
            return losses - self.samples.least, dual
        own, _ = self_transport(model, self.samples.geometry)
        return losses - self.half - 0.5 * own, dual

    def _solved(self, block: Block, dual: Array, effort: Effort) -> tuple[Array, Array]:
        """Return the solution of a block problem, and the dual.

        The debiased loss has the concave part ``-W(y, y) / 2``, which is below its tangent at the
        current model: the loss with that tangent is a block problem again, and never rises.
        """
        if self.half is None:
            return solve_block(self.samples, block, dual, effort)
        _, tilt = self_transport(block.model(block.origin), self.samples.geometry)
        tilted = dataclasses.replace(self.samples, tilt=tilt)
        factor, found = solve_block(tilted, block, dual + tilt, effort)
        return factor, found - tilt

    def minimize(
        self, number: int, blocks: list[Array], memory: list[Array], tau: float, gap: float
    ) -> tuple[Array, list[Array]]:
        """Return the best factor of a mode, with its proximal term."""
        block = Block(blocks, number, tau, self.grid)
        share = self.n_samples if block.is_separable else 1
        effort = Effort(max(gap / share, self.precision))
        factor, dual = self._solved(block, memory[0], effort)
        return factor, [dual, memory[1], gap]

    def gradient(self, number: int, blocks: list[Array], memory: list[Array]) -> Array:
        """Return the gradient by a factor: minus the adjoint of the dual."""
        block, slope = Block(blocks, number, 0.0, self.grid), memory[0]
        if self.half is not None:
            slope = slope + self_transport(dense_model(blocks, self.grid), self.samples.geometry)[1]
        return -block.adjoint(slope)

    def project(self, number: int, block: Array) -> Array:
        """Return the nearest factor on the simplices."""
        return project_simplex(block, axis=1 if number == 0 else 0)

    def revived(self, blocks: list[Array], memory: list[Array]) -> list[Array]:
        """Let atoms that no sample has begin again as the samples with the largest losses."""
        xp = namespace_of(blocks[0])
        dead = xp.nonzero(xp.max(blocks[0], axis=0) < _DEAD)[0]
        if not dead.shape[0]:
            return blocks
        worst = np.argsort(-to_numpy(memory[1]), kind="stable")
        blocks = [xp.asarray(block, copy=True) for block in blocks]
        blocks[0][:, dead] = 0.0
        blocks[0] = blocks[0] / xp.sum(blocks[0], axis=1, keepdims=True)
        # There may be more of them than samples: the rest stays as it is.
        for place, atom in enumerate(dead[: len(worst)]):
            sample = self.samples.take(xp.asarray(worst[place : place + 1]))
            for mode, own in enumerate(self._marginals(sample.blurred()), start=1):
                blocks[mode][:, atom] = own[0, :]
        return blocks

    def start(self, n_components: int, kind: str, seed: int) -> list[Array]:
        """Return factors to begin with: equal codes, and atoms of samples or at random."""
        xp = namespace_of(self.samples.values)
        generator = np.random.default_rng(seed)

        def given(array: np.ndarray) -> Array:
            values = self.samples.values
            return xp.asarray(array, dtype=values.dtype, device=values.device)

        codes = given(np.full((self.n_samples, n_components), 1.0 / n_components))
        if kind == "random":
            atoms = [generator.dirichlet(np.ones(n), n_components).T for n in self.modes]
            return [codes, *map(given, atoms)]
        few = self.n_samples < n_components
        chosen = generator.choice(self.n_samples, n_components, replace=few)
        picked = self._marginals(self.samples.take(xp.asarray(chosen)).blurred())
        mean = self._marginals(xp.mean(self.samples.values, axis=0, keepdims=True))
        factors = []
        for own, whole in zip(picked, mean, strict=True):
            noise = given(1.0 + _JITTER * generator.random((n_components, own.shape[1])))
            mixed = ((1.0 - _SHARED) * own + _SHARED * whole) * noise
            factors.append((mixed / xp.sum(mixed, axis=1, keepdims=True)).T)
        return [codes, *factors]

    def _marginals(self, values: Array) -> list[Array]:
        """Return the sums over all modes but one, for each, of samples: rows of shares."""
        xp = namespace_of(values)
        tensor = xp.reshape(values, (-1, *self.modes))
        axes = range(1, tensor.ndim)
        return [xp.sum(tensor, axis=tuple(k for k in axes if k != mode)) for mode in axes]

    def codes(self, atoms: Sequence[Array]) -> tuple[Array, Array]:
        """Return the codes of each sample for given atoms, and their losses above the lowest.

        They minimise the loss and a tiny ridge, each sample for itself, whatever the start was.
        """
        xp = namespace_of(self.samples.values)
        n_components = atoms[0].shape[1]
        equal = xp.full_like(self.samples.values[:, :1], 1.0 / n_components)
        equal = xp.reshape(equal, (self.n_samples, -1))[:, :1] * xp.ones_like(atoms[0][:1, :])
        factors = [equal, *atoms]
        zeros = xp.zeros_like(self.samples.values)
        model = dense_model(factors, self.grid)
        epsilon = self.samples.geometry.epsilon
        _, dual = loss_of(self.samples, model, zeros, Effort(1e-3 * epsilon))
        found = equal
        for _ in range(1 if self.half is None else _DEBIASED_ROUNDS):
            block = Block([found, *atoms], 0, _CODE_RIDGE * epsilon, self.grid)
            found, dual = self._solved(block, dual, Effort(self.precision, 60))
            found = found / xp.sum(found, axis=1, keepdims=True)
        model = dense_model([found, *atoms], self.grid)
        losses, _ = self._losses(model, dual, self.precision)
        return found, losses

    def moved(self, atoms: list[Array], tau: float, share: float) -> tuple[Array, list[Array]]:
        """Move atoms a part of the way to those that are best for these samples; and the codes."""
        codes, _ = self.codes(atoms)
        blocks = [codes, *atoms]
        value, memory = self.value(blocks, [])
        gap = max(_BATCH_GAP * value, self.floor)
        for number in range(1, len(blocks)):
            best, memory = self.minimize(number, blocks, memory, tau * self.n_samples, gap)
            blocks[number] = (1.0 - share) * blocks[number] + share * best
            _, memory = self.value(blocks, memory)
        return self.codes(blocks[1:])[0], blocks[1:]


class DictionarySolver(BlockSolver):
    """Sweeps over codes and atoms; the codes are solved for once more at the end."""

    gives_up_steps: ClassVar[bool] = True
    problem: DictionaryProblem
    #: What the problem was made of, for those who read the state.
    data: Any

    def __init__(
        self,
        problem: DictionaryProblem,
        tau: tuple[float, float],
        name: str,
        batch_size: int | None = None,
    ) -> None:
        codes, atoms = tau
        # f is a sum over samples, of which each has its own codes, but all have the same atoms.
        self.weights = [codes, *[atoms * problem.n_samples] * len(problem.modes)]
        super().__init__(problem, self.weights)
        self.name = name
        self.batch_size = problem.n_samples if batch_size is None else batch_size
        # The codes of a model are those of transform, with a ridge that costs next to nothing.
        self.finish_cost = _CODE_RIDGE * problem.samples.geometry.epsilon * problem.n_samples
        # The loss above the lowest may come near to zero, where a part of it says nothing.
        self.scale = _MATTERS * problem.n_samples * problem.samples.geometry.epsilon

    def step(self, state: BlockState) -> BlockState:
        """Return the state after a sweep: over batches, unless that raises the loss."""
        if self.batch_size < self.problem.n_samples:
            moved = self._swept_by_batches(state)
            if moved.value < state.value:
                return moved
        return super().step(state)

    def _swept_by_batches(self, state: BlockState) -> BlockState:
        """Update codes and atoms batch by batch, each atom held by the proximal term of all."""
        xp = namespace_of(state.blocks[0])
        problem, gap = self.problem, state.gap
        blocks = self.problem.revived(list(state.blocks), state.memory)
        blocks[0], dual = (xp.asarray(own, copy=True) for own in (blocks[0], state.memory[0]))
        order = np.random.default_rng(state.n_sweeps).permutation(problem.n_samples)
        for start, stop in cut_evenly(problem.n_samples, self.batch_size):
            rows = xp.asarray(np.sort(order[start:stop]), device=dual.device)
            part = problem.take(rows)
            own = [blocks[0][rows, :], *blocks[1:]]
            memory = [dual[rows, ...], state.memory[1][rows]]
            share = max(gap * part.n_samples / problem.n_samples, part.floor)
            for k, tau in enumerate(self.weights):
                held = max(tau, _BATCH_TAU * problem.n_samples) if k else tau
                own[k], memory = part.minimize(k, own, memory, held, share)
            blocks[0][rows, :], dual[rows, ...] = own[0], memory[0]
            blocks[1:] = own[1:]
        value, memory = problem.value(blocks, [dual, state.memory[1]])
        measured = self._stationarity(blocks, memory, math.inf)
        following = max(min(gap, abs(state.value - value) / 10), self.floor)
        number = state.n_sweeps + 1
        return BlockState(blocks, memory, value, following, measured, number, state.blocks, 0)

    def finish(self, state: BlockState) -> BlockState:
        """Return the state with codes that depend on the atoms alone."""
        codes, losses = self.problem.codes(state.blocks[1:])
        value = float(namespace_of(codes).sum(losses))
        if not math.isfinite(value):
            return state
        blocks, memory = [codes, *state.blocks[1:]], [state.memory[0], losses]
        return dataclasses.replace(state, blocks=blocks, memory=memory, value=value)
