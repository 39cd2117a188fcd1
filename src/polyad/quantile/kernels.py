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
