"""Numba kernels of the factor updates: sums of transported mass, and its ratios to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import kernel, part
from polyad.core.vector_math import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.tensor.kernels import Stack

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


@kernel
def relate(marginals: NDArray[Any], model: NDArray[Any], power: float) -> None:
    """Divide marginals by a power of the model, and make them zero where that is out of range."""
    n, m = model.shape
    exponent = -model.dtype.type(power)
    for j in range(n):
        for i in range(m):
            divisor = model[j, i]
            scale = fast_exp(exponent * fast_log(divisor))
            # The product is a zero of its type.
            marginals[j, i] *= scale if divisor > 0 and scale < np.inf else 0 * divisor


@part
def divide_into(above: NDArray[Any], below: NDArray[Any], power: float) -> None:
    """Replace ``below``, which is not negative, by ``above / below^power``, or zero out of range.

    In place: only then the compiler sees that it may use vectors.
    """
    n, m = below.shape
    exponent = -below.dtype.type(power)
    for j in range(n):
        for i in range(m):
            divisor = below[j, i]
            inverse = fast_exp(exponent * fast_log(divisor))
            is_known = divisor > 0 and inverse < np.inf
            below[j, i] = above[j, i] * inverse if is_known else 0 * divisor


@kernel
def add_fibre_ratios(
    marginals: NDArray[Any],
    coords: NDArray[np.int64],
    factors: Stack,
    along: tuple[int, NDArray[Any], NDArray[Any]],
    place: tuple[int, int],
    power: float,
    out: NDArray[np.float64],
) -> None:
    """Add ``marginals / model^power`` in a block of fibres, times the rows of the other factors.

    ``along`` is the mode along which the fibres run, its factor, and that transposed; ``place`` is
    the mode whose rows are summed, and the first fibre of the block.
    """
    (own_mode, own, transposed), (mode, first) = along, place
    n_fibres, length = marginals.shape
    rank = out.shape[1]
    tile = max(_MIN_TILE, _TILE_SIZE // length)
    model, sums = np.empty((tile, length), own.dtype), np.empty((length, rank), own.dtype)
    others = np.empty((tile, rank), own.dtype)
    products, rows = np.empty_like(others), np.empty_like(others)
    for start in range(0, n_fibres, tile):
        n = min(tile, n_fibres - start)
        multiply_rows(factors, coords, (own_mode, mode, first + start), others[:n])
        # Entry by entry: an assignment of arrays takes Numba seconds to compile.
        for j in range(n):
            for r in range(rank):
                products[j, r] = others[j, r]
            if mode != own_mode:
                i = factors.firsts[mode] + np.uint64(coords[mode, first + start + j])
                for r in range(rank):
                    products[j, r] *= factors.rows[i, r]
        np.dot(products[:n], transposed, model[:n])
        divide_into(marginals[start : start + n], model[:n], power)
        if mode == own_mode:
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


@part
def multiply_rows(
    factors: Stack,
    coords: NDArray[np.int64],
    place: tuple[int, int, int],
    out: NDArray[Any],
) -> None:
    """Fill rows with the products of the rows of all factors but two, which may be the same.

    ``place`` is these two modes, and the first fibre whose rows are multiplied.
    """
    one, other, first = place
    out[:] = 1.0
    for k in range(len(factors.firsts)):
        if k not in (one, other):
            for j in range(len(out)):
                i = factors.firsts[k] + np.uint64(coords[k, first + j])
                for r in range(out.shape[1]):
                    out[j, r] *= factors.rows[i, r]


@kernel
def add_nonzero_ratios(
    marginals: NDArray[Any],
    coords: NDArray[Any],
    factors: Stack,
    place: tuple[int, int, int],
    power: float,
    out: NDArray[np.float64],
) -> None:
    """Add ``marginals / model^power`` at some nonzeros, times the rows of the other factors.

    ``place`` is the mode whose rows are summed, and the nonzeros to sum over.
    """
    mode, start, stop = place
    rows, firsts = factors
    rank = out.shape[1]
    others = np.empty(rank)
    for p in range(start, stop):
        others[:] = 1.0
        for k in range(len(firsts)):
            if k != mode:
                i = firsts[k] + np.uint64(coords[k, p])
                for r in range(rank):
                    others[r] *= rows[i, r]
        target = coords[mode, p]
        own = firsts[mode] + np.uint64(target)
        model = 0.0
        for r in range(rank):
            model += others[r] * rows[own, r]
        inverse = fast_exp(-power * fast_log(model))
        if model > 0 and inverse < np.inf:
            ratio = marginals[p] * inverse
            for r in range(rank):
                out[target, r] += ratio * others[r]
