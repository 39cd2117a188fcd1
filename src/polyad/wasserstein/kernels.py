"""Numba kernels of the factor updates: sums of transported mass, and its ratios to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import kernel, part

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Numbers in a tile of fibres, which stays in the fastest caches, and its fewest fibres.
_TILE_SIZE = 1 << 14
_MIN_TILE = 8


@kernel
def add_fibres(
    fibres: NDArray[Any], firsts: NDArray[np.int64], stride: int, cells: NDArray[Any]
) -> None:
    """Add each fibre to the cells that begin at its first one and lie a stride apart."""
    n_fibres, length = fibres.shape
    for j in range(n_fibres):
        cell = firsts[j]
        for i in range(length):
            cells[cell] += fibres[j, i]
            cell += stride


@part
def divide_into(above: NDArray[Any], below: NDArray[Any]) -> None:
    """Replace ``below``, which is not negative, by ``above / below``, and by zero where zero."""
    n, m = below.shape
    for j in range(n):
        for i in range(m):
            divisor = below[j, i]
            below[j, i] = above[j, i] / divisor if divisor > 0 else 0 * divisor


@kernel
def add_fibre_ratios(
    marginals: NDArray[Any],
    coords: NDArray[np.int64],
    factors: tuple[NDArray[Any], ...],
    transposed: NDArray[Any],
    place: tuple[int, int, int],
    out: NDArray[np.float64],
) -> None:
    """Add ``marginals / model`` in a block of fibres, times the rows of the other factors.

    ``place`` is the mode along which the fibres run, whose factor is also given transposed, the
    mode whose rows are summed, and the first fibre of the block.
    """
    along, mode, first = place
    n_fibres, length = marginals.shape
    rank, own = out.shape[1], factors[along]
    tile = max(_MIN_TILE, _TILE_SIZE // length)
    model, sums = np.empty((tile, length), own.dtype), np.empty((length, rank), own.dtype)
    others = np.empty((tile, rank), own.dtype)
    products, rows = np.empty_like(others), np.empty_like(others)
    for start in range(0, n_fibres, tile):
        n = min(tile, n_fibres - start)
        multiply_rows(factors, coords, (along, mode, first + start), others[:n])
        # Entry by entry: an assignment of arrays takes Numba seconds to compile.
        for j in range(n):
            for r in range(rank):
                products[j, r] = others[j, r]
            if mode != along:
                row = factors[mode][coords[mode, first + start + j]]
                for r in range(rank):
                    products[j, r] *= row[r]
        np.dot(products[:n], transposed, model[:n])
        divide_into(marginals[start : start + n], model[:n])
        if mode == along:
            np.dot(model[:n].T, products[:n], sums)
            for i in range(length):
                for r in range(rank):
                    out[i, r] += sums[i, r]
        else:
            np.dot(model[:n], own, rows[:n])
            for j in range(n):
                target = coords[mode, first + start + j]
                for r in range(rank):
                    out[target, r] += rows[j, r] * others[j, r]


@kernel
def multiply_rows(
    factors: tuple[NDArray[Any], ...],
    coords: NDArray[np.int64],
    place: tuple[int, int, int],
    out: NDArray[Any],
) -> None:
    """Fill rows with the products of the rows of all factors but two, which may be the same.

    ``place`` is these two modes, and the first fibre whose rows are multiplied.
    """
    one, other, first = place
    out[:] = 1.0
    for k in range(len(factors)):
        if k not in (one, other):
            for j in range(len(out)):
                row = factors[k][coords[k, first + j]]
                for r in range(out.shape[1]):
                    out[j, r] *= row[r]


@kernel
def add_nonzero_ratios(
    marginals: NDArray[Any],
    coords: NDArray[Any],
    factors: tuple[NDArray[Any], ...],
    place: tuple[int, int, int],
    out: NDArray[np.float64],
) -> None:
    """Add ``marginals / model`` at some nonzeros, times the rows of the other factors.

    ``place`` is the mode whose rows are summed, and the nonzeros to sum over.
    """
    mode, start, stop = place
    rank = out.shape[1]
    others = np.empty(rank)
    for p in range(start, stop):
        others[:] = 1.0
        for k in range(len(factors)):
            if k != mode:
                row = factors[k][coords[k, p]]
                for r in range(rank):
                    others[r] *= row[r]
        target = coords[mode, p]
        own = factors[mode][target]
        model = 0.0
        for r in range(rank):
            model += others[r] * own[r]
        if model > 0:
            ratio = marginals[p] / model
            for r in range(rank):
                out[target, r] += ratio * others[r]
