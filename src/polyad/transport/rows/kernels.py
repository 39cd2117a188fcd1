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

from polyad.core.compiled import owning_part, part
from polyad.core.vector_math import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]

# Of a target without weight, which the largest exponent of a value does not know of.
_LARGEST_EXPONENT = 600.0
# What a value gives to a target that it takes no part in, over the root of its weight.
_NEGLIGIBLE = 1e-40
# Rows from which on a view of their end, which the compiler knows to be whole, is worth making.
_LONG_ROW = 32


@part
def squared_table(x: Vector, y: Vector, table: Table) -> None:
    """Fill ``table`` with (x_i - y_j)**2 - x_i**2: what is the same for all targets is left out."""
    for j in range(y.size):
        for i in range(x.size):
            table[j, i] = y[j] * (y[j] - 2.0 * x[i])


@part
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


@part
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


@part
def column_sums(K: Table, scale: Vector, t: Vector, sums: Vector) -> None:
    """Fill ``sums`` with scale_j sum_i K_ji t_i."""
    m, n = K.shape
    for j in range(m):
        total = 0.0
        for i in range(n):
            total += K[j, i] * t[i]
        sums[j] = scale[j] * total


@part
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


@owning_part
def couple(
    K: Table, scale: Vector, roots: Vector, shares: Vector, W: Table, couplings: Table
) -> None:
    """Fill the upper triangle of ``couplings`` with (P' diag(1/a) P)_jk, j < k.

    ``roots`` are 1 / sqrt(a), or zero where ``a`` is. ``W`` is room for the plan times those. Sums
    run over the values that both targets have a part in: few of them, if epsilon is small and the
    values are sorted.
    """
    m, n = K.shape
    first, last = np.empty(m + 2, np.int64), np.empty(m + 2, np.int64)
    for j in range(m):
        s = scale[j]
        for i in range(n):
            W[j, i] = s * K[j, i] * (roots[i] * shares[i])
        first[j], last[j] = 0, n
        while first[j] < n and W[j, first[j]] <= _NEGLIGIBLE:
            first[j] += 1
        while last[j] > first[j] and W[j, last[j] - 1] <= _NEGLIGIBLE:
            last[j] -= 1
    for j in range(0, m - 1, 2):
        begin, end = min(first[j], first[j + 1]), max(last[j], last[j + 1])
        couplings[j, j + 1] = _product(W[j, begin:end], W[j + 1, begin:end])
        k = j + 2
        while k + 3 <= m:
            low = max(begin, min(first[k], first[k + 1], first[k + 2]))
            high = max(low, min(end, max(last[k], last[k + 1], last[k + 2])))
            h = _six_products(
                *(W[j, low:high], W[j + 1, low:high]),
                *(W[k, low:high], W[k + 1, low:high], W[k + 2, low:high]),
            )
            couplings[j, k], couplings[j, k + 1], couplings[j, k + 2] = h[0], h[1], h[2]
            couplings[j + 1, k], couplings[j + 1, k + 1], couplings[j + 1, k + 2] = h[3], h[4], h[5]
            k += 3
        while k < m:
            low = max(begin, first[k])
            high = max(low, min(end, last[k]))
            couplings[j, k] = _product(W[j, low:high], W[k, low:high])
            couplings[j + 1, k] = _product(W[j + 1, low:high], W[k, low:high])
            k += 1


@part
def _product(u: Vector, v: Vector) -> float:
    total = 0.0
    for i in range(u.size):
        total += u[i] * v[i]
    return total


@part
def _six_products(
    u0: Vector, u1: Vector, v0: Vector, v1: Vector, v2: Vector
) -> tuple[float, float, float, float, float, float]:
    """Return the products of two vectors with three: each number that is read is used again."""
    h00, h01, h02, h10, h11, h12 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(u0.size):
        h00 += u0[i] * v0[i]
        h01 += u0[i] * v1[i]
        h02 += u0[i] * v2[i]
        h10 += u1[i] * v0[i]
        h11 += u1[i] * v1[i]
        h12 += u1[i] * v2[i]
    return h00, h01, h02, h10, h11, h12


@part
def ground_largest(b: Vector, ground: Vector) -> None:
    """Connect the target of the largest weight to the ground, where the sum of rounding then goes.

    It would be divided by the couplings of small targets otherwise. A right-hand side whose sum is
    zero has a solution that is zero there, whatever the connection.
    """
    largest = 0
    for j in range(b.size):
        largest = j if b[j] > b[largest] else largest
    ground[largest] += b[largest]


@owning_part
def eliminate(couplings: Table, ground: Vector, factor: Table, pivots: Vector) -> None:
    """Factor the Laplacian of ``couplings`` plus diag(ground), without subtraction.

    ``factor`` gets the multipliers above its diagonal, ``pivots`` the pivots; a pivot of zero
    belongs to a part of the graph without ground, whose unknowns are only known up to a constant.
    A row ends with its last coupling, or that of a row above that reaches it.
    """
    m = ground.size
    ends = np.empty(m, np.int64)
    for j in range(m):
        ends[j] = m
        while ends[j] > j + 1 and couplings[j, ends[j] - 1] == 0.0:
            ends[j] -= 1
        for k in range(j + 1, m):
            factor[j, k] = couplings[j, k]
    for k in range(m):
        pivot = ground[k]
        for j in range(k + 1, ends[k]):
            pivot += factor[k, j]
        pivots[k] = pivot
        if not pivot > 0.0:
            continue
        for i in range(k + 1, ends[k]):
            multiplier = factor[k, i] / pivot
            if multiplier > 0.0:
                ends[i] = max(ends[i], ends[k])
                ground[i] += multiplier * ground[k]
                end = ends[k]
                if end - i > _LONG_ROW:
                    _add_multiple(multiplier, factor[k, i + 1 : end], factor[i, i + 1 : end])
                    continue
                for j in range(i + 1, end):
                    factor[i, j] += multiplier * factor[k, j]
        for i in range(k + 1, ends[k]):
            factor[k, i] /= pivot


@part
def _add_multiple(multiplier: float, v: Vector, out: Vector) -> None:
    for j in range(v.size):
        out[j] += multiplier * v[j]


@part
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
