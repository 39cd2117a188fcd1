"""How work is cut into blocks: by its size alone, never by the number of threads.

Blocks are ``(first, last)``, as :func:`polyad.core.threads.run_blocks` hands them to kernels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Blocks = list[tuple[int, int]]


def cut(stop: int, size: int, start: int = 0) -> Blocks:
    """Cut a range into blocks of one size; the last may be smaller."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def cut_evenly(stop: int, most: int) -> Blocks:
    """Cut a range into as few blocks as have at most a size, which differ by one at most."""
    return list(pairwise(even_edges(stop, most).tolist()))


def even_edges(stop: int, most: int) -> NDArray[np.int64]:
    """Return where the blocks of :func:`cut_evenly` begin, and where the last one ends."""
    return _edges(-(-stop // most), stop)


def cut_into(n_blocks: int, stop: int, start: int = 0) -> Blocks:
    """Cut a range into so many blocks, but none without an item, which differ by one at most."""
    n_blocks = min(max(1, n_blocks), stop - start)
    return list(pairwise((start + _edges(n_blocks, stop - start)).tolist()))


def _edges(n_blocks: int, stop: int) -> NDArray[np.int64]:
    return np.arange(n_blocks + 1) * stop // max(1, n_blocks)


def as_slices(blocks: Blocks) -> list[slice]:
    """Return blocks as what arrays are indexed by."""
    return [slice(*block) for block in blocks]


def cut_by_work(work: NDArray[np.int64], size: int) -> Blocks:
    """Cut items of some work each into blocks of about equal work, and at least one item."""
    done = np.cumsum(work)
    total = int(done[-1]) if done.size else 0
    inside = np.searchsorted(done, np.arange(size, total, size)) + 1
    return list(pairwise(np.unique([0, *inside, work.size]).tolist()))


def cut_tiles(stop: int, tile: int, n_tiles: int) -> list[tuple[int, int, int]]:
    """Cut a range into blocks of whole tiles, of which each block says the size.

    What is left over is a block of one smaller tile.
    """
    whole = stop - stop % tile
    blocks = [(*block, tile) for block in cut(whole, tile * n_tiles)]
    return blocks if whole == stop else [*blocks, (whole, stop, stop - whole)]
