"""The stored entries of rows, cut into blocks whose sums by row are taken together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.core.threads import as_slices, cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# Stored entries of a sample from which a product of matrices of its own is faster than pairs.
_LONG_ROW = 64


class EntryBlock(NamedTuple):
    """Some entries of some rows, which are counted from zero."""

    place: Any
    """Where they are stored."""
    present: NDArray[Any]
    """The rows, and where each begins among the entries."""
    first: NDArray[Any]
    long: list[tuple[Any, Any, Any]]
    """The rows of many entries, with the first and the last of these."""
    few: NDArray[Any]
    """The entries of the other rows, and their rows."""
    of: NDArray[Any]
    short: NDArray[Any]
    """The other rows, and where each begins among their entries."""
    begins: NDArray[Any]


def cut_entries(starts: NDArray[Any], index: NDArray[Any], most: int) -> Iterator[EntryBlock]:
    """Cut the entries of some rows, of which ``starts`` has all, into blocks of at most some."""
    counts = np.diff(starts)[index]
    row = np.repeat(np.arange(index.size), counts)
    place = np.repeat(starts[:-1][index] - (np.cumsum(counts) - counts), counts)
    place = place + np.arange(place.size)
    whole = index.size == len(starts) - 1
    for block in as_slices(cut(place.size, most)):
        of = row[block]
        first = np.flatnonzero(np.diff(of, prepend=-1))
        present, ends = of[first], [*first[1:], of.size]
        bounds = zip(present, first, ends, strict=True)
        long = [(k, begin, end) for k, begin, end in bounds if counts[k] >= _LONG_ROW]
        few = np.flatnonzero(counts[of] < _LONG_ROW)
        begins = np.flatnonzero(np.diff(of[few], prepend=-1))
        short = of[few[begins]]
        at: Any = slice(block.start, block.stop) if whole else place[block]
        yield EntryBlock(at, present, first, long, few, of[few], short, begins)
