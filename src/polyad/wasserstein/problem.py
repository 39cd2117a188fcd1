r"""The data of a Wasserstein factorization: its fibres, its costs, and one evaluation of the model.

Objective (eq. 7 of the SWIFT paper), with :math:`\epsilon = 1 / \rho` and :math:`\lambda` the
penalty of the marginals:

.. math:: F = \sum_n \sum_j \min_{T \ge 0} \langle C_n, T \rangle + \epsilon \sum T \log T
    + \lambda\, \mathrm{KL}(T 1 \| \hat x_j) + \lambda\, \mathrm{KL}(T^T 1 \| x_j),

over the columns :math:`j` of the unfolding of each mode :math:`n`. At the minimum over the
transports it has the closed form

.. math:: F = N \lambda \Big(\sum \hat X + \sum X\Big)
    - (2 \lambda + \epsilon) \sum_n \sum \Delta_n,

where :math:`\Delta_n` holds the row marginals :math:`T 1`. With a sharpness :math:`\alpha` the
entropy is :math:`\epsilon \sum T (\log T - \alpha \log(\hat x x^T / m) - \alpha) + \alpha
\epsilon \sum \hat x`, :math:`m` the mass of :math:`x`, and the model's mass weighs
:math:`\lambda + \alpha \epsilon` in the closed form. That is so in columns of zeros too, the limit
of a mass that vanishes. A column of zeros has no transport.
Along a mode of separate entries nothing is transported from one to another: its transports are
numbers, at the nonzeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import fsum, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array

from polyad.core.arrays import to_numpy
from polyad.core.threads import Blocks, cut, run_blocks
from polyad.cp.problem import FitData
from polyad.data.validation import refuse_negative
from polyad.exceptions import InvalidInputError
from polyad.tensor.fibres import sorting_order
from polyad.tensor.kernels import find_fibres
from polyad.tensor.sparse import SparseTensor
from polyad.transport.fibres import FibreTransport, SparseFibres
from polyad.wasserstein.kernels import relate
from polyad.wasserstein.marginals import DenseMarginals, FibreMarginals, Marginals, component_masses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput

# Numbers in a block of dense fibres: a block, its transport and its ratios stay in the cache.
_BLOCK_SIZE = 1 << 16
# A pair of positions: a cost, as it is and scaled, in float64, its kernel in float64 and float32.
_BYTES_PER_PAIR = 8 + 2 * 8 + 4
# A nonzero in the fibres of a mode, with its potential before and after, and as a fibre of its own.
_BYTES_PER_NONZERO = 8 + 8 + 3 * 8 + 2 * 8
# Factors of an iteration: before, after, balanced, in the type of the data, transposed, a
# numerator, and where the sweeps before ended.
_FACTOR_COPIES = 7


@dataclass(frozen=True)
class ModeFibres:
    """The fibres of one mode that hold a nonzero, cut into blocks of bounded size."""

    mode: int
    length: int
    #: (n_fibres + 1,): where the nonzeros of each fibre begin.
    offsets: NDArray[np.int64]
    #: (n_modes, n_fibres): the coordinates of the fibres in each mode; zeros in their own.
    coords: NDArray[np.int64]
    #: Consecutive fibres that are worked on at a time, and the nonzeros of each block.
    blocks: Blocks
    nonzeros: tuple[SparseFibres, ...]

    @property
    def n_fibres(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    def products(self, factors: Sequence[NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
        """Return the rows of the Khatri-Rao product of the other modes that belong to a block."""
        rows = [
            factor.take(self.coords[k, start:stop], axis=0)
            for k, factor in enumerate(factors)
            if k != self.mode
        ]
        return reduce(np.multiply, rows)


def find_nonzero_fibres(tensor: SparseTensor, mode: int) -> ModeFibres:
    """Sort the nonzeros of a tensor, which stores no zeros, into the fibres of a mode."""
    coords = np.asarray(tensor.coords)
    others = [k for k in range(tensor.ndim) if k != mode]
    order = sorting_order(coords, tensor.shape, others)
    coords, values = np.take(coords, order, axis=1), tensor.values.take(order)
    starts = np.empty(order.size + 1, np.int64)
    n_fibres = find_fibres(coords[others], starts)
    offsets = starts[: n_fibres + 1].copy()
    first = offsets[:-1]
    starting = np.take(coords, first, axis=1).astype(np.int64)
    starting[mode] = 0
    length = tensor.shape[mode]
    blocks = cut(n_fibres, max(1, _BLOCK_SIZE // length))
    rows = coords[mode].astype(np.int64)
    nonzeros = []
    for start, stop in blocks:
        first, last = offsets[start], offsets[stop]
        own = offsets[start : stop + 1] - first
        nonzeros.append(SparseFibres(own, rows[first:last], values[first:last], length))
    return ModeFibres(mode, length, offsets, starting, blocks, tuple(nonzeros))


@dataclass(frozen=True)
class TransportSettings:
    """The weights of the entropy and of the divergences, and how the transports are solved."""

    epsilon: float
    penalty: float
    #: None for exact transports; otherwise the number of steps of Sinkhorn's iteration.
    n_steps: int | None = None
    #: The power of the reference of the entropy.
    sharpness: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether the transports are solved to the end."""
        return self.n_steps is None

    @property
    def tau(self) -> float:
        """The paper's ``lambda rho``: the weight of the divergences over that of the entropy."""
        return self.penalty / self.epsilon

    @property
    def follow(self) -> float:
        """The power by which marginals surely follow the model: see ``marginals``."""
        return (self.tau + self.sharpness) / (2.0 * self.tau + 1.0) if self.is_exact else 0.0

    @property
    def model_weight(self) -> float:
        """What a unit of mass of the model costs, wherever it is."""
        return self.penalty + self.sharpness * self.epsilon

    @property
    def decrease_per_mass(self) -> float:
        """What a unit of mass that is transported saves, at the minimum."""
        return 2.0 * self.penalty + self.epsilon


@dataclass(frozen=True)
class BlockTransport:
    """The transports of a block of fibres."""

    #: (n_fibres, size): the row sums of the plans, relative to the model.
    marginals: NDArray[Any]
    #: By how much the plans are cheaper than to transport nothing.
    decrease: float
    #: Fibres that missed the tolerance.
    unsolved: int


@dataclass(frozen=True)
class Evaluation:
    """What a model costs, and what the transports to it tell."""

    #: The value of eq. 7.
    objective: float
    #: (nnz,) for each mode with a transport: the logarithms of the scalings at the nonzeros, where
    #: the next transports start.
    potentials: list[NDArray[np.float64]]
    marginals: Marginals
    #: Fibres whose transport did not reach its tolerance.
    unsolved: int


def read_nonnegative(given: TensorInput) -> SparseTensor:
    """Return the nonzeros of validated data; refuse entries that are negative or missing."""
    advice = (
        "A Wasserstein loss moves mass, which is not negative: give counts, zeros and ones, or "
        "probabilities. CP takes data of any sign."
    )
    refuse_negative(given, advice)
    if given.is_sparse:
        stored = SparseTensor(given.data)
        values, coords = stored.values, stored.coords
    else:
        array = to_numpy(given.data)
        coords = np.nonzero(array)
        values = array[coords]
    missing = np.flatnonzero(np.isnan(values))
    if missing.size:
        place = tuple(int(row[missing[0]]) for row in coords)
        message = (
            f"X has {missing.size} missing entries, first at {place}. A "
            "Wasserstein loss needs whole fibres: fill them first, or fit PoissonCP or CP, which "
            "leave them out."
        )
        raise InvalidInputError(message)
    kept = values > 0
    nonzeros: Any = tuple(row[kept] for row in coords)
    return SparseTensor(coo_array((values[kept], nonzeros), shape=given.shape))


def memory_for_marginals(
    tensor: SparseTensor,
    n_components: int,
    moving: Sequence[int],
    titles: Sequence[str],
    limit: float,
) -> float:
    """Return how many of ``limit`` bytes are left for marginals; refuse a limit that is too low.

    ``moving`` are the modes along which mass moves, ``titles`` what a message calls each mode.
    """
    costs = {mode: _BYTES_PER_PAIR * tensor.shape[mode] ** 2 for mode in moving}
    coords = 8 * len(tensor.shape) * tensor.nnz
    in_fibres = len(costs) * (_BYTES_PER_NONZERO * tensor.nnz + coords)
    # A factor has a row for each entry of its mode; an update also has one for each fibre.
    rows = 8 * n_components * (_FACTOR_COPIES * sum(tensor.shape) + tensor.nnz)
    needed = sum(costs.values()) + in_fibres + rows
    if needed <= limit:
        return limit - needed
    largest = max(costs, key=lambda mode: costs[mode], default=0)
    if costs and costs[largest] >= needed / 2:
        advice = (
            f"The cost of {titles[largest]}, with its {tensor.shape[largest]} entries, takes "
            f"{costs[largest] / 2**30:.3g} GB of it: raise the limit, keep fewer entries of that "
            f"mode, or let nothing move along it with costs={{{largest}: 'separate'}}."
        )
    else:
        advice = (
            f"Its {tensor.nnz} nonzeros and the factors of shape {tensor.shape} with "
            f"{n_components} components take most of it: raise the limit, or fit less data or "
            "fewer components."
        )
    message = (
        f"The fit would take {needed / 2**30:.3g} GB and memory_limit is {limit / 2**30:.3g} GB. "
        f"{advice}"
    )
    raise InvalidInputError(message)


class TransportProblem(FitData):
    """Positive data and the cost of each mode, None for one of separate entries.

    ``memory`` is how many bytes the marginals may take, ``transports`` those of the costs where
    they are there already.
    """

    tensor: SparseTensor
    #: The name by which the cost of new samples is made from them too, if it has one.
    sample_rule: str | None = None

    def __init__(
        self,
        tensor: SparseTensor,
        costs: Sequence[NDArray[np.float64] | None],
        settings: TransportSettings,
        memory: float,
        transports: Sequence[FibreTransport] | None = None,
    ) -> None:
        super().__init__(tensor)
        self.costs = list(costs)
        self.settings = settings
        self.total = fsum(tensor.values)
        moving = [mode for mode, cost in enumerate(costs) if cost is not None]
        self.n_separate = len(self.shape) - len(moving)
        self.fibres = [find_nonzero_fibres(tensor, mode) for mode in moving]
        self.transports = transports or [
            FibreTransport(
                cost,
                epsilon=settings.epsilon,
                marginal_penalty=settings.penalty,
                sharpness=settings.sharpness,
            )
            for cost in costs
            if cost is not None
        ]
        n_in_fibres = sum(fibres.n_fibres * fibres.length for fibres in self.fibres)
        n_cells, width = prod(self.shape), self.dtype.itemsize
        self.is_dense = n_cells <= n_in_fibres and n_cells * width <= memory
        self.memory = memory

    def asarray(self, array: Array) -> NDArray[np.float64]:
        """Bring an array to the form that the solver works with: float64, in C order."""
        return np.require(to_numpy(array), np.float64, ("C", "W"))

    def cold_potentials(self) -> list[NDArray[np.float64]]:
        """Return potentials that say that nothing is known of the transports."""
        return [np.full(self.tensor.nnz, np.nan) for _ in self.fibres]

    @property
    def couples_samples(self) -> bool:
        """Whether mass moves between samples, which then depend on each other."""
        return self.costs[0] is not None

    def batches(self) -> list[NDArray[np.bool_]]:
        """Return samples that can be solved for at a time, since their marginals fit into memory.

        Samples that depend on each other stay together.
        """
        cells = np.zeros(self.shape[0])
        for fibres in self.fibres:
            cells += fibres.length * np.bincount(fibres.coords[0], minlength=self.shape[0])
        needed = self.dtype.itemsize * cells
        if self.is_dense or self.couples_samples or needed.sum() <= self.memory:
            return [np.ones(self.shape[0], bool)]
        batch, left = np.zeros(self.shape[0], np.int64), self.memory
        for sample in range(1, self.shape[0]):
            left -= needed[sample - 1]
            batch[sample] = batch[sample - 1]
            if needed[sample] > left:
                batch[sample], left = batch[sample] + 1, self.memory
        return [batch == number for number in range(int(batch[-1]) + 1)]

    def subset(
        self, samples: NDArray[np.bool_], potentials: Sequence[NDArray[np.float64]]
    ) -> tuple[TransportProblem, list[NDArray[np.float64]]]:
        """Return the problem of some of the samples, and their part of the potentials.

        Nothing may move between samples.
        """
        coords = self.tensor.coords
        kept = samples[coords[0]]
        number = np.cumsum(samples) - 1
        part: Any = (number[coords[0][kept]], *(row[kept] for row in coords[1:]))
        shape = (int(np.count_nonzero(samples)), *self.shape[1:])
        tensor = SparseTensor(coo_array((self.tensor.values[kept], part), shape=shape))
        problem = TransportProblem(tensor, self.costs, self.settings, self.memory, self.transports)
        # The samples stay in order, and with them the nonzeros of the fibres.
        own = []
        for fibres, potential in zip(self.fibres, potentials, strict=True):
            sample = np.repeat(fibres.coords[0], np.diff(fibres.offsets))
            own.append(potential[samples[sample]])
        return problem, own

    def evaluate(
        self, factors: Sequence[NDArray[np.float64]], potentials: Sequence[NDArray[np.float64]]
    ) -> Evaluation:
        """Solve all transports between the model and the data, from given potentials."""
        own = [np.require(factor, self.dtype, "C") for factor in factors]
        solved = [potential.copy() for potential in potentials]
        entries, separate = self._separate_marginals(own)
        marginals = self._empty_marginals(own, solved, entries)
        settings = self.settings
        decreases = [settings.decrease_per_mass * separate]
        unsolved = 0
        for number, fibres in enumerate(self.fibres):
            results: list[tuple[float, int]] = [(0.0, 0)] * len(fibres.blocks)

            def work(number: int, block: int, results: list[tuple[float, int]]) -> None:
                found = self._transport(number, block, own, solved)
                results[block] = found.decrease, found.unsolved
                marginals.add_block(number, block, found.marginals)

            run_blocks(work, ((number, block, results) for block in range(len(fibres.blocks))))
            decreases += [decrease for decrease, _ in results]
            unsolved += sum(count for _, count in results)
        mass = float(component_masses(factors).sum())
        whole = settings.model_weight * mass + settings.penalty * self.total
        return Evaluation(len(self.shape) * whole - fsum(decreases), solved, marginals, unsolved)

    def _separate_marginals(
        self, factors: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any] | None, float]:
        """Return those of all modes along which nothing moves, at the nonzeros, and their mass."""
        if not self.n_separate:
            return None, 0.0
        model = self.tensor.values_of(factors)
        plan = self.n_separate * separate_marginals(self.tensor.values, model, self.settings)
        mass = float(plan.sum())
        relate(plan[None], model.astype(np.float64)[None], self.settings.follow)
        return plan.astype(self.dtype), mass

    def _empty_marginals(
        self,
        factors: Sequence[NDArray[Any]],
        potentials: Sequence[NDArray[np.float64]],
        entries: NDArray[Any] | None,
    ) -> Marginals:
        if self.is_dense:
            return DenseMarginals(self.tensor, self.fibres, entries, self.settings.follow)

        def recompute(number: int, block: int) -> NDArray[Any]:
            # From the solution, where it stays.
            return self._transport(number, block, factors, potentials).marginals

        follow = self.settings.follow
        return FibreMarginals(
            self.tensor, self.fibres, entries, follow, recompute=recompute, memory=self.memory
        )

    def _transport(
        self,
        number: int,
        block: int,
        factors: Sequence[NDArray[Any]],
        potentials: Sequence[NDArray[np.float64]],
    ) -> BlockTransport:
        """Solve the transports of a block of fibres; the potentials are moved to the solution."""
        fibres, settings = self.fibres[number], self.settings
        start, stop = fibres.blocks[block]
        nonzeros = fibres.nonzeros[block]
        own = potentials[number][fibres.offsets[start] : fibres.offsets[stop]]
        model = fibres.products(factors, start, stop) @ factors[fibres.mode].T
        transport = self.transports[number]
        if settings.is_exact:
            found = transport.solve_block(nonzeros, model, own)
            decrease = settings.decrease_per_mass * float(found.masses.sum())
            relate(found.marginals, model, settings.follow)
        else:
            found = transport.sinkhorn(nonzeros, model, n_steps=settings.n_steps or 0)
            both = model.sum(dtype=np.float64) + nonzeros.values.sum(dtype=np.float64)
            decrease = settings.penalty * float(both) - float(found.values.sum())
            own[:] = found.log_v
        return BlockTransport(found.marginals, decrease, found.n_unsolved)


def separate_marginals(
    x: NDArray[Any], model: NDArray[Any], settings: TransportSettings
) -> NDArray[np.float64]:
    r"""Return the transports of single entries.

    :math:`T^{2 \tau + 1} = x^\tau \hat x^{\tau + \alpha} e^{\alpha - 1}`, with
    :math:`\tau = \lambda / \epsilon`.
    """
    tau, alpha = settings.tau, settings.sharpness
    # The product may leave the range of the numbers; the sum of the logarithms does not.
    with np.errstate(divide="ignore"):
        logs = tau * np.log(x, dtype=np.float64) + (tau + alpha) * np.log(model, dtype=np.float64)
    plan: NDArray[np.float64] = np.exp((logs + alpha - 1.0) / (2.0 * tau + 1.0))
    return plan
