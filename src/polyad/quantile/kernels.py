"""Numba kernel for the learned transform of a feature as a function of one number.

For a product ``w`` of a feature, with its centre, rate, potentials ``g``, weights ``b`` and
quantiles ``q``,

    s = 1 / (1 + exp(-pi rate (w - centre) / sqrt(3)))
    T(w) = sum_j p_j q_j,    p_j proportional to b_j exp((g_j - (s - y_j)**2) / epsilon)

which is what the transport of the fit gives for the products of the fit. With means over ``p``,

    dT/ds = (2 / epsilon) cov(q, y),    d2T/ds2 = (2 / epsilon)**2 mean((q - mean q) (y - mean
    y)**2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyad.core.compiled import kernel, part
from polyad.core.vector_math import fast_exp
from polyad.soft.plans import STEEPNESS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]
    Tables = NDArray[np.float64]


class Maps(NamedTuple):
    """The numbers of the transforms, one row for each feature."""

    centres: Vector
    rates: Vector
    potentials: Table
    weights: Table
    quantiles: Table
    targets: Vector
    epsilon: float


class Room(NamedTuple):
    """Memory for the values of one feature."""

    s: Vector
    top: Vector
    mass: Vector
    by_y: Vector
    by_q: Vector
    by_qy: Vector
    by_yy: Vector
    by_qyy: Vector


@part
def _squash(w: Vector, centre: float, rate: float, s: Vector) -> None:
    for i in range(w.size):
        exponent = -STEEPNESS * rate * (w[i] - centre)
        exponent = min(max(exponent, -700.0), 700.0)
        s[i] = 1.0 / (1.0 + fast_exp(exponent))


@part
def _sums(maps: Maps, row: int, inverse: float, room: Room) -> None:
    """Fill the sums over targets, of which all means are made; targets count from the middle."""
    y, q, b, g = maps.targets, maps.quantiles[row], maps.weights[row], maps.potentials[row]
    n, low = room.s.size, maps.quantiles[row, 0]
    for i in range(n):
        room.top[i] = -np.inf
        room.mass[i], room.by_y[i], room.by_q[i] = 0.0, 0.0, 0.0
        room.by_qy[i], room.by_yy[i], room.by_qyy[i] = 0.0, 0.0, 0.0
    for j in range(y.size):
        if b[j] > 0.0:
            level, slope = np.log(b[j]) + (g[j] - y[j] * y[j]) * inverse, 2.0 * y[j] * inverse
            for i in range(n):
                exponent = level + slope * room.s[i]
                room.top[i] = exponent if exponent > room.top[i] else room.top[i]
    for j in range(y.size):
        if b[j] > 0.0:
            level, slope = np.log(b[j]) + (g[j] - y[j] * y[j]) * inverse, 2.0 * y[j] * inverse
            own, up = y[j] - 0.5, q[j] - low
            for i in range(n):
                p = fast_exp(level + slope * room.s[i] - room.top[i])
                room.mass[i] += p
                room.by_y[i] += p * own
                room.by_q[i] += p * up
                room.by_qy[i] += p * (own * up)
                room.by_yy[i] += p * (own * own)
                room.by_qyy[i] += p * (own * own * up)


@kernel
def map_block(maps: Maps, w: Table, out: tuple[Table, Table, Table], start: int, stop: int) -> None:
    """Fill the values of the transforms of some features, and their first two derivatives."""
    n = w.shape[1]
    room = Room(
        np.empty(n), np.empty(n), np.empty(n), np.empty(n),
        np.empty(n), np.empty(n), np.empty(n), np.empty(n),
    )  # fmt: skip
    inverse = 1.0 / maps.epsilon
    for row in range(start, stop):
        rate, low = STEEPNESS * maps.rates[row], maps.quantiles[row, 0]
        high = maps.quantiles[row, maps.targets.size - 1]
        _squash(w[row], maps.centres[row], maps.rates[row], room.s)
        _sums(maps, row, inverse, room)
        for i in range(n):
            share, s = 1.0 / room.mass[i], room.s[i]
            y, q = share * room.by_y[i], share * room.by_q[i]
            qy, yy, qyy = share * room.by_qy[i], share * room.by_yy[i], share * room.by_qyy[i]
            first = 2.0 * inverse * (qy - q * y)
            second = (2.0 * inverse) ** 2 * (qyy - 2.0 * y * qy - q * yy + 2.0 * q * y * y)
            by_w = rate * s * (1.0 - s)
            out[0][row, i] = min(max(low + q, low), high)
            out[1][row, i] = first * by_w
            out[2][row, i] = second * by_w * by_w + first * by_w * rate * (1.0 - 2.0 * s)


@kernel
def differentiate_block(
    maps: Maps, s: Table, parts: Table, out: tuple[Table, Table, Table], first: int
) -> None:
    """Fill the values of transforms at squashed products, and what they change by.

    ``out`` gets values (rows, n), slopes in ``s`` (rows, n), and in its last, from the row
    ``first`` on, the derivatives with respect to the ``m - 1`` logarithms of the ``parts`` of the
    range and to the ``m`` levels ``log b_j + g_j / epsilon``. With the sums ``t_k`` of ``p_j`` over
    ``j > k``,

        dT/d(gap k) = part_k (range t_k - (T - q_0)),    dT/d(level j) = p_j (q_j - T).
    """
    values, slopes, tables = out
    m, n = maps.targets.size, s.shape[1]
    mass, above, top = np.empty(n), np.empty(n), np.empty(n)
    y, inverse = maps.targets, 1.0 / maps.epsilon
    for row in range(s.shape[0]):
        q, b, g = maps.quantiles[row], maps.weights[row], maps.potentials[row]
        low, high, J = q[0], q[m - 1], tables[row]
        for i in range(n):
            mass[i], above[i], values[row, i], slopes[row, i], top[i] = 0.0, 0.0, 0.0, 0.0, -np.inf
        for j in range(m):
            level, slope = np.log(b[j]) + (g[j] - y[j] * y[j]) * inverse, 2.0 * y[j] * inverse
            for i in range(n):
                exponent = level + slope * s[row, i]
                top[i] = exponent if exponent > top[i] else top[i]
        for j in range(m):
            level, slope = np.log(b[j]) + (g[j] - y[j] * y[j]) * inverse, 2.0 * y[j] * inverse
            up, own = q[j] - low, first + m - 1 + j
            for i in range(n):
                p = fast_exp(level + slope * s[row, i] - top[i])
                J[own, i] = p
                mass[i] += p
                values[row, i] += p * up
        for i in range(n):
            mass[i] = 1.0 / mass[i]
            values[row, i] *= mass[i]
        for j in range(m - 1, -1, -1):
            up, own, rate = q[j] - low, first + m - 1 + j, 2.0 * y[j] * inverse
            for i in range(n):
                p = J[own, i] * mass[i]
                above[i] += p
                J[own, i] = p * (up - values[row, i])
                slopes[row, i] += rate * J[own, i]
            if j > 0:
                part_of_range = parts[row, j - 1]
                for i in range(n):
                    J[first + j - 1, i] = part_of_range * ((high - low) * above[i] - values[row, i])
        for i in range(n):
            values[row, i] = min(max(low + values[row, i], low), high)


class Steps(NamedTuple):
    """What the steps of some features are made of, one row for each."""

    #: (rows, n): the derivative of the divergence with respect to values, and its curvature.
    by_value: Table
    curved: Table
    #: (rows, p): the gradient of the penalty, and its curvature, the same for all.
    by_penalty: Table
    penalty: Vector
    #: (rows,): Levenberg's damping.
    damping: Vector
    #: (p,): by how much of its own curvature a parameter is slowed down.
    slowness: Vector
    #: (p,): one for parameters that are exponents.
    exponents: Vector


@part
def _weighted_products(J: Table, curved: Vector, H: Table) -> None:
    """Fill the lower triangle of J diag(curved) J', with J times the root of it in place of J."""
    size, n = J.shape
    for i in range(n):
        root = np.sqrt(curved[i])
        for r in range(size):
            J[r, i] *= root
    for r in range(0, size - 1, 2):
        for c in range(0, r + 2, 2):
            h00, h01, h10, h11 = 0.0, 0.0, 0.0, 0.0
            for i in range(n):
                h00 += J[r, i] * J[c, i]
                h01 += J[r, i] * J[c + 1, i]
                h10 += J[r + 1, i] * J[c, i]
                h11 += J[r + 1, i] * J[c + 1, i]
            H[r, c], H[r, c + 1], H[r + 1, c], H[r + 1, c + 1] = h00, h01, h10, h11
    if size % 2:
        for c in range(size):
            total = 0.0
            for i in range(n):
                total += J[size - 1, i] * J[c, i]
            H[size - 1, c] = total


@part
def _solve_positive(H: Table, x: Vector) -> bool:
    """Solve with the lower triangle of a matrix, by Cholesky; return whether it is positive."""
    size = x.size
    for r in range(size):
        for c in range(r):
            total = H[r, c]
            for i in range(c):
                total -= H[r, i] * H[c, i]
            H[r, c] = total * H[c, c]
        pivot = H[r, r]
        for i in range(r):
            pivot -= H[r, i] * H[r, i]
        if not pivot > 0.0:
            return False
        H[r, r] = 1.0 / np.sqrt(pivot)
    for r in range(size):
        total = x[r]
        for i in range(r):
            total -= H[r, i] * x[i]
        x[r] = total * H[r, r]
    for r in range(size - 1, -1, -1):
        x[r] *= H[r, r]
        for i in range(r):
            x[i] -= H[r, i] * x[r]
    return True


@kernel
def step_block(J: Tables, given: Steps, least: float, step: Table, promised: Vector) -> None:
    """Fill damped Gauss-Newton steps of some features, and half of what they promise to gain.

    ``J`` (rows, p, n) are the derivatives of values, which are overwritten. A row without a step
    promises nothing.
    """
    size, n = J.shape[1], J.shape[2]
    H, gradient = np.empty((size, size)), np.empty(size)
    for row in range(J.shape[0]):
        for r in range(size):
            total = 0.0
            for i in range(n):
                total += J[row, r, i] * given.by_value[row, i]
            gradient[r] = total
        _weighted_products(J[row], given.curved[row], H)
        largest = 0.0
        for r in range(size):
            H[r, r] += given.penalty[r] + given.exponents[r] * abs(gradient[r])
            gradient[r] += given.by_penalty[row, r]
            largest = max(largest, H[r, r])
        for r in range(size):
            own, damping = H[r, r], given.damping[row]
            H[r, r] += damping * (own + least * largest) + given.slowness[r] * own
            H[r, r] = H[r, r] if H[r, r] > 0.0 else 1.0
            step[row, r] = -gradient[r]
        good = _solve_positive(H, step[row])
        promised[row] = 0.0
        for r in range(size):
            step[row, r] = step[row, r] if good else 0.0
            promised[row] -= 0.5 * gradient[r] * step[row, r]
