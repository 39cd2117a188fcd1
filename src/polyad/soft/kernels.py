"""Numba kernels for the plan of one row: its entries, marginals, couplings, and the linear solve.

A row has values ``x`` (n) with weights ``a``, and targets ``y`` (m) with weights ``b``. Its plan is

    P_ij = a_i b_j exp((f_i + g_j - c(x_i, y_j)) / epsilon)

with ``f`` such that the rows sum to ``a`` exactly. Tables have the targets first, ``(m, n)``, so
that every inner loop runs over values that lie next to each other. Targets without weight take
no part in the plan; their ``log_b`` is zero by convention and their ``scale`` is zero.

``H = diag(P'1) - P' diag(1/a) P`` is the Laplacian of a graph whose nodes are the targets and whose
edges are the couplings ``(P' diag(1/a) P)_jk``, none of them negative. Its elimination needs no
subtraction, if each pivot is summed from the couplings that are left: every number keeps its
relative accuracy, however weakly the targets are coupled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.compiled import kernel
from polyad.fastmath import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]

# Of a target without weight, which the largest exponent of a value does not know of.
_LARGEST_EXPONENT = 600.0


@kernel
def squared_table(x: Vector, y: Vector, table: Table) -> None:
    """Fill ``table`` with (x_i - y_j)**2 - x_i**2: what is the same for all targets is left out."""
    for j in range(y.size):
        for i in range(x.size):
            table[j, i] = y[j] * (y[j] - 2.0 * x[i])


@kernel
def gibbs(
    table: Table, log_b: Vector, scale: Vector, g: Vector, inverse: float, K: Table, top: Vector
) -> None:
    """Fill ``K`` with b_j exp((g_j - c_ij) / epsilon), each value's column divided by its largest.

    ``top`` gets the logarithm of what was divided by. ``inverse`` is 1 / epsilon.
    """
    m, n = table.shape
    for i in range(n):
        top[i] = -np.inf
    for j in range(m):
        if scale[j] > 0.0:
            level = log_b[j] + g[j] * inverse
            for i in range(n):
                exponent = level - table[j, i] * inverse
                top[i] = exponent if exponent > top[i] else top[i]
    for j in range(m):
        level = log_b[j] + g[j] * inverse
        for i in range(n):
            exponent = level - table[j, i] * inverse - top[i]
            exponent = exponent if exponent < _LARGEST_EXPONENT else _LARGEST_EXPONENT
            K[j, i] = fast_exp(exponent)


@kernel
def row_sums(K: Table, scale: Vector, sums: Vector) -> None:
    """Fill ``sums`` with sum_j scale_j K_ji."""
    m, n = K.shape
    for i in range(n):
        sums[i] = 0.0
    whole = m - m % 4
    for j in range(0, whole, 4):
        s0, s1, s2, s3 = scale[j], scale[j + 1], scale[j + 2], scale[j + 3]
        for i in range(n):
            sums[i] += s0 * K[j, i] + s1 * K[j + 1, i] + s2 * K[j + 2, i] + s3 * K[j + 3, i]
    for j in range(whole, m):
        for i in range(n):
            sums[i] += scale[j] * K[j, i]


@kernel
def column_sums(K: Table, scale: Vector, t: Vector, sums: Vector) -> None:
    """Fill ``sums`` with scale_j sum_i K_ji t_i."""
    m, n = K.shape
    for j in range(m):
        total = 0.0
        for i in range(n):
            total += K[j, i] * t[i]
        sums[j] = scale[j] * total


@kernel
def evaluate(
    K: Table, scale: Vector, a: Vector, b: Vector, shares: Vector, columns: Vector
) -> tuple[float, float]:
    """Compute the sums of the plan; return its error and the semi-dual value over epsilon.

    ``shares`` gets the weights of the values divided by the row sums of ``K`` times ``scale``,
    ``columns`` the sums of the plan over values. The error is the largest of |P'1 - b| / b. The
    value counts from the ``g`` that ``K`` was made of.
    """
    m, n = K.shape
    row_sums(K, scale, shares)
    value, lowest = 0.0, np.inf
    for i in range(n):
        lowest = shares[i] if shares[i] < lowest else lowest
    if not lowest > 0.0:
        return np.inf, -np.inf
    for i in range(n):
        value -= a[i] * fast_log(shares[i])
    for i in range(n):
        shares[i] = a[i] / shares[i]
    column_sums(K, scale, shares, columns)
    error = 0.0
    for j in range(m):
        if b[j] > 0.0:
            value += b[j] * np.log(scale[j])
            error = max(error, abs(columns[j] - b[j]) / b[j])
    if not value > -np.inf:
        return np.inf, -np.inf
    return error, value


@kernel
def couple(
    K: Table, scale: Vector, roots: Vector, shares: Vector, W: Table, couplings: Table
) -> None:
    """Fill the upper triangle of ``couplings`` with (P' diag(1/a) P)_jk, j < k.

    ``roots`` are 1 / sqrt(a), or zero where ``a`` is. ``W`` is room for the plan times those.
    """
    m, n = K.shape
    for j in range(m):
        s = scale[j]
        for i in range(n):
            W[j, i] = s * K[j, i] * (roots[i] * shares[i])
    for j in range(0, m - 1, 2):
        # Two rows at once: each number that is read is used twice.
        h = 0.0
        for i in range(n):
            h += W[j, i] * W[j + 1, i]
        couplings[j, j + 1] = h
        k = j + 2
        while k + 3 <= m:
            h00, h01, h02, h10, h11, h12 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for i in range(n):
                w0, w1 = W[j, i], W[j + 1, i]
                h00 += w0 * W[k, i]
                h01 += w0 * W[k + 1, i]
                h02 += w0 * W[k + 2, i]
                h10 += w1 * W[k, i]
                h11 += w1 * W[k + 1, i]
                h12 += w1 * W[k + 2, i]
            couplings[j, k], couplings[j, k + 1], couplings[j, k + 2] = h00, h01, h02
            couplings[j + 1, k], couplings[j + 1, k + 1], couplings[j + 1, k + 2] = h10, h11, h12
            k += 3
        while k < m:
            h00, h10 = 0.0, 0.0
            for i in range(n):
                h00 += W[j, i] * W[k, i]
                h10 += W[j + 1, i] * W[k, i]
            couplings[j, k], couplings[j + 1, k] = h00, h10
            k += 1


@kernel
def eliminate(couplings: Table, ground: Vector, factor: Table, pivots: Vector) -> None:
    """Factor the Laplacian of ``couplings`` plus diag(ground), without subtraction.

    ``factor`` gets the multipliers above its diagonal, ``pivots`` the pivots; a pivot of zero
    belongs to a part of the graph without ground, whose unknowns are only known up to a constant.
    """
    m = ground.size
    for j in range(m):
        for k in range(j + 1, m):
            factor[j, k] = couplings[j, k]
    for k in range(m):
        pivot = ground[k]
        for j in range(k + 1, m):
            pivot += factor[k, j]
        pivots[k] = pivot
        if not pivot > 0.0:
            continue
        for i in range(k + 1, m):
            multiplier = factor[k, i] / pivot
            if multiplier > 0.0:
                ground[i] += multiplier * ground[k]
                for j in range(i + 1, m):
                    factor[i, j] += multiplier * factor[k, j]
        for i in range(k + 1, m):
            factor[k, i] /= pivot


@kernel
def substitute(factor: Table, pivots: Vector, unknowns: Vector) -> None:
    """Solve with the result of :func:`eliminate`, in place of the right-hand side.

    Unknowns without a pivot are set to zero.
    """
    m = pivots.size
    for k in range(m):
        if pivots[k] > 0.0:
            for j in range(k + 1, m):
                unknowns[j] += factor[k, j] * unknowns[k]
            unknowns[k] /= pivots[k]
        else:
            unknowns[k] = 0.0
    for k in range(m - 1, -1, -1):
        if pivots[k] > 0.0:
            total = unknowns[k]
            for j in range(k + 1, m):
                total += factor[k, j] * unknowns[j]
            unknowns[k] = total
