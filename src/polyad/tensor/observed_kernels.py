"""Numba kernels of least squares over the stored entries of a sparse tensor, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import kernel
from polyad.tensor.kernels import BATCH, Pieces, Spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A pivot below this part of its diagonal entry counts as zero, and the matrix is then shifted by
# this part of its mean eigenvalue. Rounding puts about 1e-16 of the right-hand side
# into directions that the data does not determine: divided by 1e-10 they are 1e-6 of the answer,
# which is nearly that of least norm, and the sum of squares is above its least value by 1e-10.
SINGULAR = 1e-10


@kernel
def _factorize(normal: NDArray[np.float64], shift: float, factor: NDArray[np.float64]) -> bool:
    """Write the Cholesky factor of ``normal + shift I``; False if a pivot is nearly zero.

    A component that is zero at all entries of a row has a row and a column of zeros: it gets the
    pivot one, which makes its coefficient zero.
    """
    n = factor.shape[0]
    for i in range(n):
        own = normal[i, i] + shift
        least = own * SINGULAR if shift == 0 else 0.0
        for j in range(i + 1):
            total = own if j == i else normal[i, j]
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if j < i:
                factor[i, j] = total / factor[j, j]
            elif own == 0:
                factor[i, i] = 1.0
            elif total > least:
                factor[i, i] = np.sqrt(total)
            else:
                return False
    return True


@kernel
def _own_shift(normal: NDArray[np.float64], factor: NDArray[np.float64]) -> float:
    """Return what is added to the diagonal of a matrix that its row does not determine, or zero.

    It depends on nothing but the matrix. Writes the Cholesky factor of the sum; NaN if there is
    none.
    """
    n = factor.shape[0]
    if _factorize(normal, 0.0, factor):
        return 0.0
    trace = 0.0
    for i in range(n):
        trace += normal[i, i]
    shift: float = SINGULAR * trace / n
    while 0.0 < shift < trace:
        if _factorize(normal, shift, factor):
            return shift
        shift *= 100
    return np.nan


@kernel
def shift_rows(normal: NDArray[np.float64], block: tuple[int, int]) -> None:
    """Make the matrices of a block of rows safely positive definite, in place.

    Solved with them, a row that its entries do not determine is nearly that of least norm.
    """
    n = normal.shape[1]
    factor = np.empty((n, n))
    for s in range(block[0], block[1]):
        shift = _own_shift(normal[s], factor)
        for r in range(n):
            normal[s, r, r] = normal[s, r, r] + shift if normal[s, r, r] != 0 else 1.0


@kernel
def _solve_normal(normal: NDArray[np.float64], factor: NDArray[np.float64]) -> None:
    """Solve the normal equations whose right-hand side is the next row; write it there.

    The answer is nearly that of least norm.
    """
    n = factor.shape[0]
    right = normal[n]
    if not _own_shift(normal, factor) >= 0:
        right[:] = np.nan  # what is not finite stays visible
        return
    for i in range(n):
        total = right[i]
        for k in range(i):
            total -= factor[i, k] * right[k]
        right[i] = total / factor[i, i]
    for i in range(n - 1, -1, -1):
        right[i] /= factor[i, i]
        for k in range(i):
            right[k] -= factor[i, k] * right[i]


@kernel
def _add_products(batch: NDArray[np.float64], n_filled: int, normal: NDArray[np.float64]) -> None:
    """Add ``batch @ batch.T`` to the lower triangle, by twos: a load serves two products."""
    for i in range(0, normal.shape[0], 2):
        for j in range(0, i + 1, 2):
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for k in range(n_filled):
                a += batch[i, k] * batch[j, k]
                b += batch[i, k] * batch[j + 1, k]
                c += batch[i + 1, k] * batch[j, k]
                d += batch[i + 1, k] * batch[j + 1, k]
            normal[i, j] += a
            normal[i, j + 1] += b
            normal[i + 1, j] += c
            normal[i + 1, j + 1] += d


@kernel
def _sum_row(
    work: tuple[Pieces, Spans],
    s: int,
    factors: tuple[NDArray[Any], ...],
    batch: NDArray[np.float64],
    normal: NDArray[np.float64],
) -> None:
    """Sum the normal equations of a row over its nonzeros, in float64, into the lower triangle.

    ``factors`` are those of the middle modes and then the inner one. The values are one more
    column of the regression: row R of ``normal`` becomes the right-hand side.
    """
    pieces, rows = work
    quads, quad_values, singles, single_values = pieces
    inner = len(factors) - 1
    n = factors[inner].shape[1]
    row = np.empty(n)
    normal[:] = 0.0
    quad, single = rows.bounds[s, 0], rows.bounds[s, 1]
    n_in_quads = 4 * (rows.bounds[s + 1, 0] - quad)
    n_nonzeros = n_in_quads + rows.bounds[s + 1, 1] - single
    for start in range(0, n_nonzeros, BATCH):
        n_filled = min(BATCH, n_nonzeros - start)
        for b in range(n_filled):
            p = start + b
            in_quad = p < n_in_quads
            q, u = quad + p // 4, p % 4
            t = single + p - n_in_quads
            batch[n, b] = quad_values[q, u] if in_quad else single_values[t]
            i = quads[q, inner + u] if in_quad else singles[t, inner]
            matrix = factors[inner]
            for r in range(n):
                row[r] = matrix[i, r]
            for k in range(inner):
                i = quads[q, k] if in_quad else singles[t, k]
                matrix = factors[k]
                for r in range(n):
                    row[r] *= matrix[i, r]
            for r in range(n):
                batch[r, b] = row[r]
        _add_products(batch, n_filled, normal)


@kernel
def solve_observed_rows(
    work: tuple[Pieces, Spans],
    block: tuple[int, int],
    factors: tuple[NDArray[Any], ...],
    ridge: float,
    out: NDArray[Any],
) -> None:
    """Write the least-squares solutions of a block of rows over their nonzeros."""
    n = out.shape[1]
    size = n + 2 - n % 2
    normal = np.empty((size, size))
    factor = np.empty((n, n))
    # Eight more numbers to a line, so that a column does not fall into a few sets of the cache.
    batch = np.zeros((size, BATCH + 8))
    for s in range(block[0], block[1]):
        _sum_row(work, s, factors, batch, normal)
        for r in range(n):
            normal[r, r] += ridge
        _solve_normal(normal, factor)
        for r in range(n):
            out[work[1].targets[s], r] = normal[n, r]


@kernel
def observed_rows(
    work: tuple[Pieces, Spans],
    block: tuple[int, int],
    factors: tuple[NDArray[Any], ...],
    matrices: NDArray[np.float64],
    right: NDArray[np.float64],
) -> None:
    """Write the normal equations of a block of rows, from the start of the output arrays."""
    n = right.shape[1]
    size = n + 2 - n % 2
    normal = np.empty((size, size))
    batch = np.zeros((size, BATCH + 8))
    for s in range(block[0], block[1]):
        _sum_row(work, s, factors, batch, normal)
        for i in range(n):
            right[s - block[0], i] = normal[n, i]
            for j in range(i + 1):
                matrices[s - block[0], i, j] = normal[i, j]
                matrices[s - block[0], j, i] = normal[i, j]
