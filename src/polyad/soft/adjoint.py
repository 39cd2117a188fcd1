"""Numba kernels for the derivatives of averages with a plan, by the implicit function theorem.

Let ``L`` be a function of averages with the plan, and ``M_ij = P_ij dL/dP_ij``, with the averages
divided by the sums of the plan itself. With ``e = M 1`` and ``c = M' 1``,

    a lam + P mu = e,    P' lam + b mu = c

gives ``dL/da = lam``, ``dL/db = mu`` and ``dL/dC = (P (lam + mu) - M) / epsilon``. Without ``lam``,
``H mu = c - P'(e / a)`` is left, with the ``H`` of the Newton steps.

For averages over targets, ``T = P q / a``, ``M_ij = P_ij G_i (q_j - T_i) / a_i`` and ``e`` is zero;
for averages over values, ``S = P'z / b``, ``M_ij = P_ij G_j (z_i - S_j) / b_j`` and ``c`` is zero.
All is written with the densities ``P_ij / (a_i b_j)``, so that nothing is divided by a weight,
which may be zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.compiled import kernel
from polyad.soft.blocks import Rows, make_densities, row_of
from polyad.soft.kernels import couple, eliminate, substitute
from polyad.soft.newton import Room, make_room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]
    Tables = NDArray[np.float64]

# Targets that are coupled more weakly than this are apart: rounding would be divided by nothing.
_RIDGE = 1e-15


@kernel
def fill_target_terms(room: Room, b: Vector, q: Vector, G: Vector, grad_q: Vector) -> None:
    """Fill ``room.W`` with M_ij / (b_j), for averages over targets; ``grad_q`` gets P' (G / a)."""
    R, W, T = room.K, room.W, room.top
    m, n = R.shape
    T[:] = 0.0
    for j in range(m):
        weight = b[j] * q[j]
        for i in range(n):
            T[i] += weight * R[j, i]
    for j in range(m):
        total = 0.0
        for i in range(n):
            total += R[j, i] * G[i]
            W[j, i] = R[j, i] * G[i] * (q[j] - T[i])
        grad_q[j] = b[j] * total


@kernel
def fill_value_terms(room: Room, a: Vector, z: Vector, G: Vector, grad_z: Vector) -> None:
    """Fill ``room.W`` with M_ij / (a_i), for averages over values; ``grad_z`` gets P (G / b)."""
    R, W = room.K, room.W
    m, n = R.shape
    grad_z[:] = 0.0
    for j in range(m):
        total, mass = 0.0, 0.0
        for i in range(n):
            total += R[j, i] * (a[i] * z[i])
            mass += R[j, i] * a[i]
        S = total / mass
        for i in range(n):
            grad_z[i] += R[j, i] * (a[i] * G[j])
            W[j, i] = R[j, i] * G[j] * (z[i] - S)


@kernel
def fill_sides(room: Room, a: Vector, of_rows: bool) -> None:
    """Fill ``room.shares`` with e / a and ``room.step`` with (c - P'(e / a)) / b."""
    R, W, terms, side = room.K, room.W, room.shares, room.step
    m, n = R.shape
    terms[:] = 0.0
    for j in range(m):
        total = 0.0
        for i in range(n):
            total += W[j, i]
        side[j] = total if of_rows else 0.0
    if of_rows:
        return
    for j in range(m):
        for i in range(n):
            terms[i] += W[j, i]
    for j in range(m):
        total = 0.0
        for i in range(n):
            total += R[j, i] * (a[i] * terms[i])
        side[j] = -total


@kernel
def solve_adjoint(room: Room, a: Vector, b: Vector, lam: Vector, mu: Vector) -> None:
    """Fill ``lam`` and ``mu`` from what :func:`fill_sides` and the couplings say."""
    R, terms, side = room.K, room.shares, room.step
    m, n = R.shape
    for j in range(m):
        mu[j] = b[j] * side[j]
        room.ground[j] = _RIDGE * b[j]
    eliminate(room.couplings, room.ground, room.factor, room.pivots)
    substitute(room.factor, room.pivots, mu)
    for i in range(n):
        lam[i] = 0.0
    for j in range(m):
        weight = b[j] * mu[j]
        for i in range(n):
            lam[i] -= weight * R[j, i]
    for j in range(m):
        if not b[j] > 0.0:
            # The second equation, divided by the weight; what it gives for others is mu itself.
            total = 0.0
            for i in range(n):
                total += R[j, i] * (a[i] * lam[i])
            mu[j] = side[j] - total
    for i in range(n):
        lam[i] += terms[i]


@kernel
def pull_block(
    rows: Rows,
    costs: Tables,
    slopes: Tables,
    potentials: Table,
    epsilon: float,
    of_rows: bool,
    numbers: Table,
    gradients: Table,
    out: tuple[Table, Table, Table, Table],
    start: int,
    stop: int,
) -> None:
    """Pull ``gradients`` with respect to averages back to ``x``, ``a``, ``b`` and ``numbers``."""
    n, m = rows.x.shape[1], rows.y.shape[1]
    room = make_room(m, n)
    R, W, mean = room.K, room.W, room.top
    grad_x, grad_a, grad_b, grad_numbers = out
    for row in range(start, stop):
        a, b, y = row_of(rows.a, row), row_of(rows.b, row), row_of(rows.y, row)
        make_densities(rows, costs, potentials[row], epsilon, row, start, room)
        for i in range(n):
            room.roots[i], room.shares[i] = np.sqrt(a[i]), 1.0
        couple(R, b, room.roots, room.shares, W, room.couplings)
        given, G = row_of(numbers, row), gradients[row]
        if of_rows:
            fill_target_terms(room, b, given, G, grad_numbers[row])
        else:
            fill_value_terms(room, a, given, G, grad_numbers[row])
        lam, mu, gx = grad_a[row], grad_b[row], grad_x[row]
        fill_sides(room, a, of_rows)
        solve_adjoint(room, a, b, lam, mu)
        # grad_x = sum_j dL/dC_ij dC_ij/dx_i. The sums over j of dL/dC are zero, so that the mean
        # slope may be taken away first: nothing large cancels.
        mean[:] = 0.0
        gx[:] = 0.0
        has_slopes = slopes.shape[0] > 0
        for j in range(m):
            for i in range(n):
                slope = slopes[row - start, j, i] if has_slopes else -2.0 * y[j]
                mean[i] += b[j] * R[j, i] * slope
        for j in range(m):
            weight = b[j] if of_rows else 1.0
            for i in range(n):
                slope = slopes[row - start, j, i] if has_slopes else -2.0 * y[j]
                term = weight * W[j, i] if of_rows else a[i] * W[j, i]
                gx[i] += (slope - mean[i]) * (a[i] * b[j] * mu[j] * R[j, i] - term)
        for i in range(n):
            gx[i] /= epsilon
