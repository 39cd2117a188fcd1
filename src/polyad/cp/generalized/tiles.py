"""The sum of a loss over the cells of a matrix of model values, and its derivatives, in tiles.

The model of a dense tensor is a matrix product: ``M = L R^T``, where ``L`` and ``R`` are the
Khatri-Rao products of the leading and of the trailing factors. ``M`` is never made as a whole. A
tile of it is computed, compared with the data and turned into derivatives ``D`` while it is in
the cache, and two more products give its part of the gradients, ``D R`` and ``D^T L``.

Tiles are grouped into blocks by the shape of the matrix alone. Each block has sums of its own,
which are added in a fixed order: results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import ceil, fsum
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import as_slices, cut_evenly, run_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from polyad.losses import Loss

    Matrix = NDArray[np.float64]

# Cells of a tile: its arrays fit the second-level cache together.
_TILE = 1 << 15
_TILE_COLUMNS = 256
# Cells of a block: enough work to hide what it costs to start, little enough to share.
_BLOCK = 1 << 18
# Blocks that a matrix is cut into if it is large enough, for up to that many threads.
_MAX_BLOCKS = 64


@dataclass(frozen=True)
class TileSums:
    """The sum of a loss over all cells, without offsets, and its derivatives in both sides."""

    value: float
    left: Matrix
    right: Matrix


@dataclass(frozen=True)
class TiledMatrix:
    """The data of a matrix of cells.

    The entries, times ``scale``, have any shape that flattens to that of the matrix, and are zeros
    if there are none. Where they are not observed, they do not count, but must be accepted by the
    loss.
    """

    shape: tuple[int, int]
    data: NDArray[Any] | None = None
    scale: float = 1.0
    observed: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name in ("data", "observed"):
            array = getattr(self, name)
            if array is not None:
                object.__setattr__(self, name, np.ascontiguousarray(array).reshape(self.shape))

    def tile(self, rows: slice, columns: slice) -> Matrix:
        """Return the entries of a tile."""
        if self.data is None:
            return np.zeros((rows.stop - rows.start, columns.stop - columns.start))
        part = self.data[rows, columns]
        if self.scale != 1.0:
            scaled: Matrix = np.multiply(part, self.scale, dtype=np.float64)
            return scaled
        return np.asarray(part, dtype=np.float64)

    def blocks(self) -> tuple[list[slice], list[slice]]:
        """Cut the rows and the columns such that blocks are of about equal size."""
        n_rows, n_columns = self.shape
        size = max(_BLOCK, n_rows * n_columns // _MAX_BLOCKS)
        # Sums over rows are held once for each group of columns, and the other way round.
        width = min(n_columns, max(_TILE_COLUMNS, ceil(size**0.5), ceil(size / n_rows)))
        height = min(n_rows, max(1, ceil(size / width)))
        return as_slices(cut_evenly(n_rows, height)), as_slices(cut_evenly(n_columns, width))

    def sum(self, function: Callable[[Matrix], Matrix]) -> float:
        """Return the sum of a function of the observed entries."""
        row_groups, column_groups = self.blocks()
        sums = np.zeros((len(row_groups), len(column_groups)))

        def work(i: int, j: int) -> None:
            parts = []
            for rows, columns in tiles(row_groups[i], column_groups[j]):
                values = function(self.tile(rows, columns))
                if self.observed is not None:
                    values = values[self.observed[rows, columns]]
                parts.append(float(values.sum()))
            sums[i, j] = fsum(parts)

        run_blocks(work, np.ndindex(*sums.shape))
        return fsum(sums.ravel())

    def value(self, loss: Loss, left: Matrix, right: Matrix) -> float:
        """Return the sum of a loss, without offsets, alone."""
        row_groups, column_groups = self.blocks()
        sums = np.zeros((len(row_groups), len(column_groups)))

        def work(i: int, j: int) -> None:
            with np.errstate(all="ignore"):
                sums[i, j] = sum(
                    float(np.sum(self._tile_of(loss, place, left, right)[0]))
                    for place in tiles(row_groups[i], column_groups[j])
                )

        run_blocks(work, np.ndindex(*sums.shape))
        return _total(sums)

    def evaluate(self, loss: Loss, left: Matrix, right: Matrix) -> TileSums:
        """Return the sum of a loss, without offsets, and its derivatives at ``left @ right.T``."""
        row_groups, column_groups = self.blocks()
        n_components = left.shape[1]
        sums = np.zeros((len(row_groups), len(column_groups)))
        of_left = np.zeros((len(column_groups), self.shape[0], n_components))
        of_right = np.zeros((len(row_groups), self.shape[1], n_components))

        def work(i: int, j: int) -> None:
            parts = []
            with np.errstate(all="ignore"):  # what is not finite shows in the sum
                for rows, columns in tiles(row_groups[i], column_groups[j]):
                    value, slope = self._tile_of(loss, (rows, columns), left, right)
                    parts.append(float(np.sum(value)))
                    of_left[j, rows] += slope @ right[columns]
                    of_right[i, columns] += slope.T @ left[rows]
            sums[i, j] = sum(parts)

        run_blocks(work, np.ndindex(*sums.shape))
        return TileSums(_total(sums), of_left.sum(axis=0), of_right.sum(axis=0))

    def _tile_of(
        self, loss: Loss, place: tuple[slice, slice], left: Matrix, right: Matrix
    ) -> tuple[Matrix, Matrix]:
        """Return the losses and derivatives of a tile, zeros where nothing was observed."""
        rows, columns = place
        value, slope = loss.evaluate(self.tile(rows, columns), left[rows] @ right[columns].T)
        if self.observed is not None:
            counts = self.observed[rows, columns]
            value, slope = np.where(counts, value, 0.0), np.where(counts, slope, 0.0)
        return value, slope


def _total(sums: Matrix) -> float:
    # fsum refuses to add infinities of both signs.
    return fsum(sums.ravel()) if np.isfinite(sums).all() else math.nan


def tiles(rows: slice, columns: slice) -> Iterator[tuple[slice, slice]]:
    """Cut a block into tiles, row by row of them."""
    width = min(columns.stop - columns.start, _TILE_COLUMNS)
    heights = cut_evenly(rows.stop - rows.start, max(1, _TILE // width))
    for first, last in cut_evenly(columns.stop - columns.start, _TILE_COLUMNS):
        for top, bottom in heights:
            yield (
                slice(rows.start + top, rows.start + bottom),
                slice(columns.start + first, columns.start + last),
            )
