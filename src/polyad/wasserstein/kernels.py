"""Numba: fibres into a dense tensor, and ratios of transported mass to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.compiled import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel
def add_fibres(
    fibres: NDArray[Any], firsts: NDArray[np.int64], stride: int, cells: NDArray[Any]
) -> None:
    """Add each fibre to the cells that begin at its first one and lie a stride apart.

    Parameters
    ----------
    fibres : ndarray of shape (n_fibres, length)
        What is added.
    firsts : ndarray of shape (n_fibres,)
        The first cell of each fibre.
    stride : int
        From one cell of a fibre to the next.
    cells : ndarray of shape (n_cells,)
        The dense tensor in C order.
    """
    n_fibres, length = fibres.shape
    for j in range(n_fibres):
        cell = firsts[j]
        for i in range(length):
            cells[cell] += fibres[j, i]
            cell += stride


@kernel
def divide_into(above: NDArray[Any], below: NDArray[Any]) -> None:
    """Replace ``below`` by ``above / below``, and by zero where it is zero.

    Parameters
    ----------
    above, below : ndarray of shape (n, m)
        Not negative.
    """
    n, m = below.shape
    for j in range(n):
        for i in range(m):
            divisor = below[j, i]
            below[j, i] = above[j, i] / divisor if divisor > 0 else 0 * divisor


@kernel
def add_ratios(
    marginals: NDArray[Any],
    coords: NDArray[Any],
    factors: tuple[NDArray[Any], ...],
    place: tuple[int, int, int],
    out: NDArray[np.float64],
) -> None:
    """Add ``marginals / model`` at some nonzeros, times the rows of the other factors.

    Parameters
    ----------
    marginals : ndarray of shape (nnz,)
        At the nonzeros.
    coords : ndarray of shape (n_modes, nnz)
        Where they are.
    factors : tuple of ndarray of shape (n_k, n_components)
        Of the model.
    place : (int, int, int)
        The mode whose rows are summed, and the first and last of the nonzeros to sum over.
    out : ndarray of shape (n_mode, n_components)
        What is added to.
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
