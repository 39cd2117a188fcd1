"""The fibres of a sparse tensor along one mode: the columns of the unfolding that are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.blocks import Blocks, cut
from polyad.tensor.fibres import sorting_order
from polyad.tensor.kernels import find_fibres
from polyad.transport.fibres import SparseFibres
from polyad.wasserstein.kernels import multiply_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.tensor.sparse import SparseTensor

# Numbers in a block of dense fibres: a block, its transport and its ratios stay in the cache.
_BLOCK_SIZE = 1 << 16


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
        rows = np.empty((stop - start, factors[0].shape[1]), factors[0].dtype)
        multiply_rows(tuple(factors), self.coords, (self.mode, self.mode, start), rows)
        return rows


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
