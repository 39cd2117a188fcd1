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
from polyad.soft.plans import MOST_STANDARD, STEEPNESS

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


class Curves(NamedTuple):
    """Transforms of products that are standardised with them, one row for each feature."""

    #: (rows, m): ``log b_j + g_j / epsilon``.
    levels: Table
    quantiles: Table
    targets: Vector
    epsilon: float
    #: (rows or 1, n): what the samples weigh.
    shares: Table


class Along(NamedTuple):
    """What derivatives with respect to the parameters of the products and quantiles need."""

    #: (k, n)
    scores: Table
    #: (rows, k): what a loading changes by with its parameter.
    rises: Table
    #: (rows, m - 1): the parts of the range between quantiles.
    parts: Table


@part
def _standardise(w: Vector, shares: Vector, standard: Vector) -> float:
    """Fill products standardised; return one over their deviation, zero if all are equal."""
    n, low, high = w.size, np.inf, -np.inf
    for i in range(n):
        low = w[i] if shares[i] > 0.0 and w[i] < low else low
        high = w[i] if shares[i] > 0.0 and w[i] > high else high
    varies = high != low
    unit = high - low if varies else 1.0
    mean, variance = 0.0, 0.0
    for i in range(n):
        x = (w[i] - low) / unit
        # What weighs nothing may be anywhere, and is no part of a sum as long as it is finite.
        standard[i] = x if shares[i] > 0.0 else min(max(x, -MOST_STANDARD), MOST_STANDARD)
        mean += shares[i] * standard[i]
    for i in range(n):
        standard[i] -= mean
        variance += shares[i] * standard[i] ** 2
    deviation = np.sqrt(variance) if varies else 1.0
    for i in range(n):
        standard[i] /= deviation
    return 1.0 / (unit * deviation) if varies else 0.0


class Mixture(NamedTuple):
    """Memory for the plan of one feature: of each sample the shares of all targets."""

    #: (n,): squashed products.
    s: Vector
    top: Vector
    mass: Vector
    above: Vector
    #: (m, n)
    shares: Table


@part
def _mix(curves: Curves, row: int, room: Mixture, T: Vector, slope: Vector) -> None:
    """Fill the plan at squashed products, the mean of quantiles above the lowest, and its slope."""
    q, levels, s, p = curves.quantiles[row], curves.levels[row], room.s, room.shares
    y, inverse, n = curves.targets, 1.0 / curves.epsilon, room.s.size
    for i in range(n):
        room.mass[i], T[i], slope[i], room.top[i] = 0.0, 0.0, 0.0, -np.inf
    for j in range(y.size):
        level, tilt = levels[j] - y[j] * y[j] * inverse, 2.0 * y[j] * inverse
        for i in range(n):
            exponent = level + tilt * s[i]
            room.top[i] = exponent if exponent > room.top[i] else room.top[i]
    for j in range(y.size):
        level, tilt = levels[j] - y[j] * y[j] * inverse, 2.0 * y[j] * inverse
        for i in range(n):
            p[j, i] = fast_exp(level + tilt * s[i] - room.top[i])
            room.mass[i] += p[j, i]
            T[i] += p[j, i] * (q[j] - q[0])
    for i in range(n):
        room.mass[i] = 1.0 / room.mass[i]
        T[i] *= room.mass[i]
    for j in range(y.size):
        for i in range(n):
            p[j, i] *= room.mass[i]
            slope[i] += 2.0 * y[j] * inverse * p[j, i] * (q[j] - q[0] - T[i])


@part
def _differentiate_loadings(
    along: Along, row: int, shares: Vector, moved: tuple[Vector, Vector], J: Table
) -> None:
    slope, z = moved
    for r in range(along.scores.shape[0]):
        v, mean, moment = along.scores[r], 0.0, 0.0
        for i in range(z.size):
            mean += shares[i] * v[i]
            moment += shares[i] * z[i] * v[i]
        for i in range(z.size):
            J[r, i] = along.rises[row, r] * slope[i] * (v[i] - mean - z[i] * moment)


@part
def _differentiate_mixture(
    along: Along, row: int, room: Mixture, moved: tuple[Vector, Vector], J: Table
) -> None:
    q, T = moved
    k, m, n = along.scores.shape[0], q.size, T.size
    for i in range(n):
        room.above[i] = 0.0
    for j in range(m - 1, -1, -1):
        for i in range(n):
            J[k + m - 1 + j, i] = room.shares[j, i] * (q[j] - q[0] - T[i])
            room.above[i] += room.shares[j, i]
        if j > 0:
            for i in range(n):
                rise = (q[m - 1] - q[0]) * room.above[i] - T[i]
                J[k + j - 1, i] = along.parts[row, j - 1] * rise


@kernel
def transform_block(
    curves: Curves, w: Table, along: Along, out: tuple[Table, Table, Table], tables: Tables
) -> None:
    """Fill transforms of products, their slopes, and the products standardised.

    Slopes are those with respect to products, with means and deviations held. ``tables`` has no
    rows, or gets the derivatives with respect to the parameters of the ``k`` loadings, to the ``m -
    1`` logarithms of the parts of the range and to the ``m`` levels. With standardised products
    ``z``, shares ``a``, scores ``v`` and the sums ``t_k`` of ``p_j`` over ``j > k``,

        dw/d(loading) = v - mean(v) - z mean(z v),  means over a,
        dT/d(gap k) = part_k (range t_k - (T - q_0)),    dT/d(level j) = p_j (q_j - T).
    """
    values, slopes, standards = out
    m, n = curves.targets.size, w.shape[1]
    room = Mixture(np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty((m, n)))
    for row in range(w.shape[0]):
        q, shares = curves.quantiles[row], curves.shares[row % curves.shares.shape[0]]
        T, slope, z = values[row], slopes[row], standards[row]
        rate = STEEPNESS * _standardise(w[row], shares, z)
        for i in range(n):
            room.s[i] = 1.0 / (1.0 + fast_exp(-STEEPNESS * z[i]))
        _mix(curves, row, room, T, slope)
        for i in range(n):
            slope[i] *= rate * room.s[i] * (1.0 - room.s[i])
        if tables.shape[0] > 0:
            _differentiate_loadings(along, row, shares, (slope, z), tables[row])
            _differentiate_mixture(along, row, room, (q, T), tables[row])
        for i in range(n):
            # No comparison with NaN is true: it stays.
            value = q[0] + T[i]
            value = q[0] if value < q[0] else value
            T[i] = q[m - 1] if value > q[m - 1] else value


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
