r"""Random cells of a sparse tensor, by which a sum over all of its cells is estimated.

Stratified sampling (Kolda and Hong 2020, section 4): the stored cells are one stratum, all others,
which are zero, are another. From each a fixed number of cells is drawn uniformly and weighted by
the size of the stratum over that number, so that the weighted sum of any function over the sample
has the sum over all cells as its mean. A stratum that is no larger than its number of draws is
taken as a whole instead, each cell once, and adds no error.

How this differs from the paper:

1. Stored cells are drawn one from each of equal parts of their sorted list, not from all of it.
   That is as free of bias, gives slices their share, and reads memory in order.
2. A cell of the second stratum that turns out to be stored is looked up in a hash table and drawn
   again. The semi-stratified scheme saves the lookup by correcting the stored cells. Its variance
   is the same if few cells are stored and higher otherwise, and with the control variate (see
   below) so few zeros are drawn that the lookup hardly counts.
3. If the second stratum is the smaller one, its cells are listed and drawn like the stored ones,
   so that the search for a cell never is long.

Control variate. Nearly all cells of a sparse tensor are zeros, and there the loss is
:math:`f(0, m)`, a smooth function of the model value alone. Its parabola at a typical model value,
:math:`g(m) = \alpha m + \tfrac{\beta}{2} m^2` up to a constant, has a sum over all cells that is
known exactly, from sums over the columns of the factors:

.. math:: \sum m = \sum_r \prod_k \sum_i a^{(k)}_{ir}, \qquad
    \sum m^2 = \sum_{r,s} \prod_k (A_k^\top A_k)_{rs}.

A sample then only has to estimate the sum of :math:`f(x, m) - g(m)`. The estimate stays unbiased,
whatever the coefficients, and its variance falls by orders of magnitude: for the Poisson loss and
for squares the zeros have no error at all.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.core.threads import run_blocks
from polyad.cp.generalized import kernels
from polyad.cp.generalized.kernels import CellList, Known, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.losses import Loss
    from polyad.tensor.sparse import SparseTensor

    Matrix = NDArray[np.float64]

_BITS = (1 << 64) - 1


class Strata:
    """The stored cells of a sparse tensor, stored zeros too, and the unstored ones.

    Tensors of at most ``listed`` cells have the unstored ones listed, so that a sample can be the
    whole tensor; so have tensors of which more than half is stored. ``offsets`` say where the rows
    of each mode begin in the stack of all factors.
    """

    def __init__(self, tensor: SparseTensor, listed: int = 0) -> None:
        self.shape = np.asarray(tensor.shape, np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.shape)])
        self.n_rows = int(self.offsets[-1])
        #: The type of a row of the stack; unsigned, which kernels index faster by.
        self.row_type = np.dtype(np.uint32 if self.n_rows <= np.iinfo(np.uint32).max else np.uint64)
        coords = np.stack(tensor.coords, axis=1).astype(self.row_type)
        self.stored = CellList(coords, tensor.values.astype(np.float64))
        self.n_stored = tensor.nnz
        n_cells = math.prod(tensor.shape)
        self.n_unstored = n_cells - tensor.nnz
        self.unstored: CellList | None = None
        # Zero is an empty place of the table, p + 1 stands for cell p.
        counts = np.uint32 if tensor.nnz < np.iinfo(np.uint32).max else np.uint64
        self.table = np.zeros(1, counts)
        if n_cells <= max(listed, 2 * tensor.nnz):
            self.unstored = self._list_unstored(tensor)
        else:
            # At most half full: a search ends after few steps.
            self.table = np.zeros(1 << (2 * tensor.nnz + 1).bit_length(), counts)
            kernels.fill_table(coords, self.table)

    def _list_unstored(self, tensor: SparseTensor) -> CellList:
        free = np.ones(tensor.shape, bool)
        free[tensor.coords] = False
        coords = np.argwhere(free).astype(self.row_type)
        return CellList(coords, np.zeros(len(coords)))


class Sampler:
    """Draws samples of one size, so many cells from each stratum, or all that it has.

    Samplers of different purposes draw different numbers from the same seed. ``weights`` are the
    numbers of cells that each cell of a sample stands for; ``exact`` says that a sample is the
    whole tensor, so that all samples are the same.
    """

    def __init__(self, strata: Strata, n_stored: int, n_unstored: int, purpose: int) -> None:
        self.strata = strata
        self.n_stored = min(n_stored, strata.n_stored)
        # A list is needed to take every cell; without one there are far more cells than draws.
        self.n_unstored = min(n_unstored, strata.n_unstored)
        self.every_stored = self.n_stored == strata.n_stored
        self.every_unstored = strata.unstored is not None and self.n_unstored == strata.n_unstored
        self.exact = self.every_stored and self.every_unstored
        self.n_cells = self.n_stored + self.n_unstored
        self._purpose = purpose
        self._ready: list[Sample] = []
        self.weights = np.empty(self.n_cells)
        # Exact integers are divided: the number of cells may exceed what a float holds.
        self.weights[: self.n_stored] = strata.n_stored / max(1, self.n_stored)
        self.weights[self.n_stored :] = strata.n_unstored / max(1, self.n_unstored)

    def draw(self, seed: int, counter: int) -> Sample:
        """Return the sample that belongs to a seed and a counter."""
        sample = self._empty()
        self._fill(seed, counter, sample)
        return sample

    def draw_many(self, seed: int, counters: range) -> list[Sample]:
        """Return the samples of several counters, drawn on several threads.

        They are overwritten by the next call, which uses their memory again.
        """
        if self.exact:
            self._ready = self._ready or [self.draw(seed, 0)]
            return self._ready * len(counters)
        while len(self._ready) < len(counters):
            self._ready.append(self._empty())
        samples = self._ready[: len(counters)]
        run_blocks(partial(self._fill, seed), list(zip(counters, samples, strict=True)))
        return samples

    def how_many(self, n_bytes: int, most: int) -> int:
        """Return how many samples fit into some memory: at least two, for two threads."""
        size = sum(array.nbytes for array in self._empty())
        return min(max(2, n_bytes // size), most)

    def _empty(self) -> Sample:
        strata = self.strata
        n_modes = len(strata.shape)
        type_of_cell = np.uint32 if self.n_cells <= np.iinfo(np.uint32).max else np.uint64
        return Sample(
            np.empty((n_modes, self.n_cells), strata.row_type),
            np.zeros(self.n_cells),
            np.empty(n_modes * self.n_cells, type_of_cell),
            np.empty(strata.n_rows + 1, np.int64),
        )

    def _fill(self, seed: int, counter: int, sample: Sample) -> None:
        strata = self.strata
        cut = self.n_stored
        stored, unstored = sample.rows[:, :cut], sample.rows[:, cut:]
        if cut:
            key = _key(seed, counter, 2 * self._purpose)
            kernels.draw_listed(strata.stored, key, stored, sample.values[:cut])
        key = _key(seed, counter, 2 * self._purpose + 1)
        if strata.unstored is None:
            kernels.draw_unstored(strata.stored, strata.table, strata.shape, key, unstored)
        elif self.n_unstored:
            kernels.draw_listed(strata.unstored, key, unstored, sample.values[cut:])
        kernels.sort_sample(strata.offsets, sample)

    def total(self, terms: NDArray[np.float64]) -> float:
        """Return the estimate of the sum over all cells, from the terms of a sample."""
        return float(np.sum(self.weights * terms))

    def standard_error(self, terms: NDArray[np.float64]) -> float:
        """Return the standard error of :meth:`total`, estimated from the same sample."""
        cut = self.n_stored
        variance = 0.0
        for part, every, size in (
            (terms[:cut], self.every_stored, self.strata.n_stored),
            (terms[cut:], self.every_unstored, self.strata.n_unstored),
        ):
            if part.size > 1 and not every:
                variance += float(np.var(part, ddof=1)) / part.size * float(size) ** 2
        return math.sqrt(variance)


def _key(seed: int, counter: int, stream: int) -> np.uint64:
    """Return where the random numbers of one stratum of one sample begin."""
    key = 0
    for word in (seed, stream, counter):
        key = int(kernels.mix(np.uint64((key + word) & _BITS)))
        key = (key + 0x9E3779B97F4A7C15) & _BITS
    return np.uint64(key)


class Tangent(NamedTuple):
    """The coefficients of ``linear * m + square / 2 * m**2``."""

    linear: float
    square: float

    def value(self, m: NDArray[Any]) -> NDArray[Any]:
        """Return the parabola at model values."""
        return m * (self.linear + (0.5 * self.square) * m)

    def slope(self, m: NDArray[Any]) -> NDArray[Any] | float:
        """Return its derivative."""
        return self.linear + self.square * m if self.square else self.linear


def tangent_at(loss: Loss, m: float) -> Tangent:
    """Return the parabola that touches the loss of a zero at a typical model value."""
    zero, point = np.zeros(1), np.array([m])
    with np.errstate(all="ignore"):
        slope = float(loss.derivative(zero, point)[0])
        bend = float(loss.curvature(zero, point)[0])
    if not math.isfinite(slope):
        return Tangent(0.0, 0.0)
    # A parabola that bends down is wrong by more than the straight line for large model values.
    # Differences of derivatives leave a bend of rounding where there is none.
    if not (math.isfinite(bend) and bend * max(abs(m), 1e-300) > 1e-6 * abs(slope)):
        bend = 0.0
    return Tangent(slope - bend * m, bend)


def sum_over_all(tangent: Tangent, factors: Sequence[Matrix]) -> float:
    """Return the sum of the parabola over all cells of a model."""
    total = 0.0
    if tangent.linear:
        total += tangent.linear * model_sum(factors)
    if tangent.square:
        grams = [factor.T @ factor for factor in factors]
        total += 0.5 * tangent.square * float(np.sum(np.prod(grams, axis=0)))
    return total


def model_sum(factors: Sequence[Matrix]) -> float:
    """Return the sum of a model over all cells."""
    return float(np.sum(np.prod([factor.sum(axis=0) for factor in factors], axis=0)))


def known_gradient(tangent: Tangent, factors: Sequence[Matrix], ridge: float) -> Known:
    """Return the gradient of the parabola's sum over all cells, and of a ridge, for each mode."""
    n_modes, rank = len(factors), factors[0].shape[1]
    sums = np.array([factor.sum(axis=0) for factor in factors])
    linear = tangent.linear * _products_of_others(sums)
    if not (tangent.square or ridge):
        return Known(linear, np.zeros((n_modes, 0, 0)))
    square = np.zeros((n_modes, rank, rank))
    if tangent.square:
        grams = np.array([factor.T @ factor for factor in factors])
        square = tangent.square * _products_of_others(grams)
    square += ridge * np.eye(rank)
    return Known(linear, square)


def _products_of_others(arrays: Matrix) -> Matrix:
    """Return, for each of some arrays, the product of the others; none is divided by."""
    result = np.ones_like(arrays)
    for k in range(len(arrays)):
        for other in range(len(arrays)):
            if other != k:
                result[k] *= arrays[other]
    return result
