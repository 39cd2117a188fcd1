"""The fibres of a sparse tensor along one mode: the columns of the unfolding that are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.tensor.fibres import sorting_order
from polyad.tensor.kernels import find_fibres
from polyad.transport.fibres import SparseFibres
from polyad.wasserstein.kernels import multiply_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.tensor.sparse import SparseTensor

# Numbers in a block of dense fibres: a block, its transport and its ratios stay in the cache.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class ModeFibres:
    """The fibres of one mode that hold a nonzero, cut into blocks of bounded size.

    Attributes
    ----------
    mode : int
        The mode along which they run.
    length : int
        The size of that mode.
    offsets : ndarray of shape (n_fibres + 1,)
        Where the nonzeros of each fibre begin.
    places : ndarray of shape (n_modes, n_fibres)
        The coordinates of the fibres in each mode; zeros in their own.
    blocks : tuple of (start, stop)
        Consecutive fibres that are worked on at a time.
    nonzeros : tuple of SparseFibres
        The nonzeros of each block.
    """

    mode: int
    length: int
    offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    blocks: tuple[tuple[int, int], ...]
    nonzeros: tuple[SparseFibres, ...]

    @property
    def n_fibres(self) -> int:
        """The number of fibres."""
        return len(self.offsets) - 1

    def products(self, factors: Sequence[NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
        """Return the rows of the Khatri-Rao product of the other modes that belong to a block.

        Parameters
        ----------
        factors : sequence of ndarray of shape (n_k, n_components)
            One per mode; that of the own mode is not read.
        start, stop : int
            The fibres of the block.

        Returns
        -------
        ndarray of shape (stop - start, n_components)
        """
        rows = np.empty((stop - start, factors[0].shape[1]), factors[0].dtype)
        multiply_rows(tuple(factors), self.places, (self.mode, self.mode, start), rows)
        return rows


def find_nonzero_fibres(tensor: SparseTensor, mode: int) -> ModeFibres:
    """Sort the nonzeros of a tensor into the fibres of a mode.

    Parameters
    ----------
    tensor : SparseTensor
        Without stored zeros.
    mode : int
        The mode along which the fibres run.
    """
    coords = np.asarray(tensor.coords)
    others = [k for k in range(tensor.ndim) if k != mode]
    order = sorting_order(coords, tensor.shape, others)
    coords, values = np.take(coords, order, axis=1), tensor.values.take(order)
    starts = np.empty(order.size + 1, np.int64)
    n_fibres = find_fibres(coords[others], starts)
    offsets = starts[: n_fibres + 1].copy()
    first = offsets[:-1]
    places = np.take(coords, first, axis=1).astype(np.int64)
    places[mode] = 0
    length = tensor.shape[mode]
    step = max(1, _BLOCK // length)
    blocks = tuple((k, min(k + step, n_fibres)) for k in range(0, n_fibres, step))
    rows = coords[mode].astype(np.int64)
    nonzeros = []
    for start, stop in blocks:
        first, last = offsets[start], offsets[stop]
        own = offsets[start : stop + 1] - first
        nonzeros.append(SparseFibres(own, rows[first:last], values[first:last], length))
    return ModeFibres(mode, length, offsets, places, blocks, tuple(nonzeros))
