"""The stored entries of a sparse tensor, sorted and cut for the kernels of one mode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import Blocks, cut_by_work
from polyad.tensor import kernels
from polyad.tensor.kernels import Pieces, Spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from polyad.tensor.sparse import SparseTensor


# Entries of a row that are summed in the type of the data: bounds the rounding error of float32.
_SEGMENT = 1024
# Work of one call of a kernel: long against the 10 microseconds of a call, short against a fit.
BLOCK = 1 << 15
# The same for least squares, where an entry costs R times more and a row as much as 32 entries.
_SOLVE_BLOCK = 1 << 13
_ROW_COST = 32
# Sorting by more bits at once makes the table of counters too large for the fastest cache.
_DIGIT_BITS = 12


@dataclass(frozen=True)
class FibreLayout:
    """The stored entries of a tensor, sorted and cut for the kernels of one mode."""

    middle: tuple[int, ...]
    """Modes whose rows are multiplied once per piece of a fibre."""
    inner: int
    """The mode along which the fibres run."""
    n_fibres: int
    pieces: Pieces
    rows: Spans
    """One span for each row that has entries."""
    row_blocks: Blocks
    segments: Spans
    """Spans of at most ``_SEGMENT`` entries. Those of a row that has more than one are summed
    into rows of their own behind the rows of the output."""
    segment_blocks: Blocks
    split_rows: NDArray[np.int64]
    """Rows of more than one segment."""
    split_starts: NDArray[np.int64]
    """The number of their first segment among those of split rows."""

    @property
    def n_partial(self) -> int:
        """The number of segments of split rows."""
        split = self.segments.targets.size - (self.rows.targets.size - self.split_rows.size)
        return int(split)


def sorting_order(
    coords: NDArray[Any], shape: tuple[int, ...], modes: Iterable[int]
) -> NDArray[Any]:
    """Return the stable order of the entries by some modes, the first one leading."""
    small = coords.shape[1] <= np.iinfo(np.int32).max
    order = np.arange(coords.shape[1], dtype=np.int32 if small else np.int64)
    spare = np.empty_like(order)
    for mode in reversed(tuple(modes)):
        bits = (shape[mode] - 1).bit_length()
        n_digits = ceil(bits / _DIGIT_BITS)
        for digit in range(n_digits):
            width = ceil(bits / n_digits)
            kernels.sort_by_digit(coords[mode], order, digit * width, width, spare)
            order, spare = spare, order
    return order


def _inner_mode(coords: NDArray[Any], mode: int) -> int:
    """Return the mode, other than the given one, along which there are the fewest fibres."""
    others = [k for k in range(len(coords)) if k != mode]
    if len(others) == 1:
        return others[0]
    n_cells = 2 << coords.shape[1].bit_length()
    return min(others, key=lambda k: kernels.count_cells(coords, k, np.zeros(n_cells, np.bool_)))


def build_layout(tensor: SparseTensor, mode: int) -> FibreLayout:
    """Sort the stored entries of a tensor into the fibres of a mode, and cut them."""
    shape = tensor.shape
    inner = _inner_mode(tensor._coords, mode)
    middle = tuple(k for k in range(len(shape)) if k not in (mode, inner))
    # The order is stable and begins canonical: along a fibre, the entries stay sorted.
    order = sorting_order(tensor._coords, shape, (mode, *middle))
    coords, values = np.take(tensor._coords, order, axis=1), tensor.values.take(order)
    starts = np.empty(order.size + 1, np.int64)
    n_fibres = kernels.find_fibres(coords[[mode, *middle]], starts)
    starts = starts[: n_fibres + 1].copy()
    lengths = np.diff(starts)
    n_quads, n_singles = int((lengths // 4).sum()), int((lengths % 4).sum())
    index = coords.dtype.str.replace("i", "u")
    # A matrix is treated as a tensor with a middle mode of size one: see _other_factors.
    n_middle = max(1, len(middle))
    pieces = Pieces(
        np.zeros((n_quads, n_middle + 4), index),
        np.empty((n_quads, 4), values.dtype),
        np.zeros((n_singles, n_middle + 1), index),
        np.empty(n_singles, values.dtype),
    )
    kernels.cut_fibres(coords[list(middle)], coords[inner], values, starts, pieces)
    rows = _row_spans(coords[mode, starts[:-1]], lengths)
    segments, n_segments = _split_rows(rows, shape[mode])
    split = n_segments > 1
    return FibreLayout(
        middle,
        inner,
        n_fibres,
        pieces,
        rows=rows,
        row_blocks=cut_by_work(_sizes(rows) + _ROW_COST, _SOLVE_BLOCK),
        segments=segments,
        segment_blocks=cut_by_work(_sizes(segments), BLOCK),
        split_rows=rows.targets[split],
        split_starts=np.cumsum(n_segments[split]) - n_segments[split],
    )


def refill_layout(layout: FibreLayout, values: NDArray[Any]) -> FibreLayout:
    """Return a layout with other values, where its own are positions in ``values``."""
    pieces = layout.pieces
    filled = Pieces(
        pieces.quads,
        values[pieces.quad_values.astype(np.intp)],
        pieces.singles,
        values[pieces.single_values.astype(np.intp)],
    )
    return replace(layout, pieces=filled)


def _row_spans(row_of_fibre: NDArray[Any], lengths: NDArray[np.int64]) -> Spans:
    """Return one span for each row, from the row and the length of each fibre."""
    first = np.flatnonzero(np.diff(row_of_fibre, prepend=-1))
    edges = np.append(first, lengths.size)
    before = np.zeros((lengths.size + 1, 2), np.int64)
    np.cumsum(np.stack([lengths // 4, lengths % 4], axis=1), axis=0, out=before[1:])
    return Spans(before[edges], row_of_fibre[first].astype(np.int64))


def _split_rows(rows: Spans, n_rows: int) -> tuple[Spans, NDArray[np.int64]]:
    """Cut rows into segments of like work; return those and the number of segments per row."""
    n_segments = -(-_sizes(rows) // _SEGMENT)
    row = np.repeat(np.arange(n_segments.size), n_segments)
    number = np.arange(row.size) - (np.cumsum(n_segments) - n_segments)[row]
    counts = np.diff(rows.bounds, axis=0)
    bounds = rows.bounds[row] + counts[row] * number[:, None] // n_segments[row, None]
    targets = rows.targets[row]
    split = n_segments[row] > 1
    targets[split] = n_rows + np.arange(np.count_nonzero(split))
    return Spans(np.concatenate([bounds, rows.bounds[-1:]]), targets), n_segments


def _sizes(spans: Spans) -> NDArray[np.int64]:
    """Return the number of entries of each span."""
    sizes: NDArray[np.int64] = np.diff(spans.bounds, axis=0) @ np.array([4, 1])
    return sizes
