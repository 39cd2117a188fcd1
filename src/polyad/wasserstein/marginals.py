r"""The marginals of SWIFT's transports, and the factor updates that they ask for.

With the transports held, the objective depends on the factors through
:math:`\lambda \sum_n \mathrm{KL}(\Delta_n \| \hat X)`, where :math:`\Delta_n` is the tensor of row
marginals of mode :math:`n` (eq. 18 and 19). That bound is loose: if the model changes from
:math:`\hat x` to :math:`\hat x'`, the row :math:`i` of a plan may be multiplied by some
:math:`w_i`. Since :math:`z \log z` is convex, the divergence of the column sums is at most what it
is row by row, and the objective of the best such plan at most

.. math:: (\lambda + \alpha \epsilon) \sum \hat x' + \text{const}
    - (2 \lambda + \epsilon) \sum_i \Delta_i w_i, \qquad w_i = (\hat x'_i / \hat x_i)^f, \quad
    f = \frac{\lambda + \alpha \epsilon}{2 \lambda + \epsilon},

with equality where nothing changed. Along a component this is convex in each entry, and a
multiplicative update with a power never raises it:

.. math:: A_m \leftarrow A_m * \left[ \frac{
    \big(\sum_n \Delta_n \hat X^{-f} / \hat X'^{\,1 - f}\big)_{(m)} K_m}{N\, 1^T K_m}
    \right]^{1 / (1 - f)},

with :math:`K_m` the Khatri-Rao product of the other factors. Where the transports are not solved,
:math:`f = 0`, and this is the paper's eq. 19 but for the factor :math:`N`, which that lacks. The
denominator counts all columns, also those without a nonzero: what the model puts there costs as
much as elsewhere. What is held are the marginals relative to the model that they
belong to, :math:`\Delta_n \hat X^{-f}`.

The sum of the marginals is held as a dense tensor where that is smaller than the fibres, and
fibre by fibre otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.tensor.kernels import stack
from polyad.wasserstein.kernels import (
    add_fibre_ratios,
    add_fibres,
    add_nonzero_ratios,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.tensor.kernels import Stack
    from polyad.tensor.sparse import SparseTensor
    from polyad.wasserstein.problem import ModeFibres

# Sums over many blocks are made in this many parts, each in order: the same for any thread count.
_MAX_PARTS = 8
# The fewest numbers of the dense tensor, and nonzeros, that are worth a part of their own.
_MIN_CELLS, _MIN_NONZEROS = 1 << 15, 1 << 13
# No entry is changed by more than this factor beyond what it is where marginals are held. On the
# way to its minimum the bound only falls, and with f close to one that is out of all range.
_MAX_CHANGE = 10.0


class Marginals(ABC):
    """The row marginals of the transports of all modes, summed over the modes.

    ``fibres`` are those of the modes along which mass moves; ``entries`` are the marginals of the
    modes along which nothing moves, summed, at the nonzeros. All of them are relative to the model
    to the power ``follow``.
    """

    def __init__(
        self,
        tensor: SparseTensor,
        fibres: Sequence[ModeFibres],
        entries: NDArray[Any] | None,
        follow: float,
    ) -> None:
        self.tensor = tensor
        self.fibres = fibres
        self.entries = entries
        self.follow = follow

    @abstractmethod
    def add_block(self, number: int, block: int, marginals: NDArray[Any]) -> None:
        """Add those of a block of ``fibres[number]``, of shape (fibres of the block, length)."""

    @abstractmethod
    def numerator(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[np.float64]:
        """Return the numerator of the update of a mode, for the model as it is now."""


class DenseMarginals(Marginals):
    """The sum as a dense tensor, where that is smaller than the fibres of all modes."""

    def __init__(
        self,
        tensor: SparseTensor,
        fibres: Sequence[ModeFibres],
        entries: NDArray[Any] | None,
        follow: float,
    ) -> None:
        super().__init__(tensor, fibres, entries, follow)
        self.total = np.zeros(tensor.shape, tensor.dtype)
        if entries is not None:
            self.total[tensor.coords] = entries
        steps = [prod(tensor.shape[k + 1 :]) for k in range(tensor.ndim)]
        self._strides = [steps[own.mode] for own in fibres]
        self._firsts = [
            sum(place * step for place, step in zip(own.coords, steps, strict=True))
            for own in fibres
        ]

    def add_block(self, number: int, block: int, marginals: NDArray[Any]) -> None:
        """Add a block to its cells, which the fibres of a mode do not share."""
        start, stop = self.fibres[number].blocks[block]
        firsts: Any = self._firsts[number]
        add_fibres(marginals, firsts[start:stop], self._strides[number], self.total.reshape(-1))

    def numerator(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[np.float64]:
        """Return the numerator of the update of a mode: all cells are fibres of the last one."""
        own = [factor.astype(self.total.dtype) for factor in factors]
        stacked, along = stack(own), _along(own, len(own) - 1)
        fibres = self.total.reshape(-1, self.total.shape[-1])

        def part(start: int, stop: int) -> NDArray[np.float64]:
            partial = np.zeros(factors[mode].shape)
            coords = np.zeros((len(own), stop - start), np.int64)
            coords[:-1] = np.unravel_index(np.arange(start, stop), self.total.shape[:-1])
            place, power = (mode, 0), 1.0 - self.follow
            add_fibre_ratios(fibres[start:stop], coords, stacked, along, place, power, partial)
            return partial

        return _sum_of_parts(part, len(fibres), max(1, _MIN_CELLS // fibres.shape[1]))


class FibreMarginals(Marginals):
    """The marginals fibre by fibre.

    Up to ``memory`` bytes of them are kept; ``recompute(number, block)`` gives those of the other
    blocks when they are needed.
    """

    def __init__(
        self,
        tensor: SparseTensor,
        fibres: Sequence[ModeFibres],
        entries: NDArray[Any] | None,
        follow: float,
        *,
        recompute: Callable[[int, int], NDArray[Any]],
        memory: float,
    ) -> None:
        super().__init__(tensor, fibres, entries, follow)
        self._recompute = recompute
        self._coords = np.asarray(tensor.coords)
        self._kept: dict[tuple[int, int], NDArray[Any]] = {}
        # Which blocks are kept follows from their order, not from which thread is first.
        width = tensor.dtype.itemsize
        self._to_keep: set[tuple[int, int]] = set()
        for number, own in enumerate(fibres):
            for block, (start, stop) in enumerate(own.blocks):
                memory -= (stop - start) * own.length * width
                if memory >= 0:
                    self._to_keep.add((number, block))

    def add_block(self, number: int, block: int, marginals: NDArray[Any]) -> None:
        """Keep a block if there is room for it."""
        if (number, block) in self._to_keep:
            self._kept[number, block] = marginals

    def numerator(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[np.float64]:
        """Return the numerator of the update of a mode."""
        own = [factor.astype(self.tensor.dtype) for factor in factors]
        stacked, total = stack(own), np.zeros(factors[mode].shape)
        for number, fibres in enumerate(self.fibres):
            total += self._in_fibres(number, stacked, _along(own, fibres.mode), mode)
        if self.entries is not None:
            total += self._at_nonzeros(self.entries, stacked, mode)
        return total

    def _in_fibres(
        self, number: int, factors: Stack, along: tuple[int, Any, Any], mode: int
    ) -> NDArray[np.float64]:
        """Sum the ratios of the fibres of one mode."""
        fibres, shape = self.fibres[number], (self.tensor.shape[mode], factors.rows.shape[1])

        def part(first: int, last: int) -> NDArray[np.float64]:
            partial = np.zeros(shape)
            for block in range(first, last):
                marginals = self._kept.get((number, block))
                if marginals is None:
                    marginals = self._recompute(number, block)
                place, power = (mode, fibres.blocks[block][0]), 1.0 - self.follow
                add_fibre_ratios(marginals, fibres.coords, factors, along, place, power, partial)
            return partial

        return _sum_of_parts(part, len(fibres.blocks), 1)

    def _at_nonzeros(self, entries: NDArray[Any], factors: Stack, mode: int) -> NDArray[np.float64]:
        """Sum the ratios of the modes along which nothing moves."""
        shape = (self.tensor.shape[mode], factors.rows.shape[1])

        def part(start: int, stop: int) -> NDArray[np.float64]:
            partial = np.zeros(shape)
            place, power = (mode, start, stop), 1.0 - self.follow
            add_nonzero_ratios(entries, self._coords, factors, place, power, partial)
            return partial

        return _sum_of_parts(part, self.tensor.nnz, _MIN_NONZEROS)


def _along(factors: Sequence[NDArray[Any]], mode: int) -> tuple[int, NDArray[Any], NDArray[Any]]:
    """Return a mode, its factor, and that transposed."""
    return mode, factors[mode], np.ascontiguousarray(factors[mode].T)


def updated_factor(
    marginals: Marginals, factors: Sequence[NDArray[Any]], mode: int
) -> NDArray[np.float64]:
    """Return the factor of a mode after one multiplicative update."""
    masses = component_masses([factor for k, factor in enumerate(factors) if k != mode])
    ratio = marginals.numerator(factors, mode) * inverse_masses(len(factors) * masses)
    with np.errstate(over="ignore", under="ignore"):
        beyond = ratio ** (marginals.follow / (1.0 - marginals.follow))
    bounded = np.clip(beyond, 1.0 / _MAX_CHANGE, _MAX_CHANGE)
    factor: NDArray[np.float64] = factors[mode] * ratio * bounded
    return factor


def component_masses(factors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the sum of all entries of each component over some modes."""
    masses: NDArray[np.float64] = np.prod([factor.sum(axis=0) for factor in factors], axis=0)
    return masses


def inverse_masses(masses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one over each mass, and zero for a component that is zero: it has no say."""
    alive = masses > 0
    return np.where(alive, 1.0 / np.where(alive, masses, 1.0), 0.0)


def _sum_of_parts(
    part: Callable[[int, int], NDArray[np.float64]], length: int, step: int
) -> NDArray[np.float64]:
    """Sum ``part(start, stop)`` over a range that is cut by its length alone."""
    cuts = cut(length, max(step, -(-length // _MAX_PARTS))) or [(0, 0)]
    results: list[Any] = [None] * len(cuts)

    def fill(number: int, start: int, stop: int) -> None:
        results[number] = part(start, stop)

    run_blocks(fill, ((number, start, stop) for number, (start, stop) in enumerate(cuts)))
    total: NDArray[np.float64] = results[0]
    for result in results[1:]:
        total += result
    return total
