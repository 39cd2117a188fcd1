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

from polyad.core.compiled import kernel, part
from polyad.transport.rows.entry_points import Rows, make_densities, row_of
from polyad.transport.rows.kernels import couple, eliminate, ground_largest, substitute
from polyad.transport.rows.newton import Workspace, make_workspace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]
    Tables = NDArray[np.float64]

# Targets that are coupled more weakly than this are apart: rounding would be divided by nothing.
_RIDGE = 1e-15


@part
def fill_target_terms(work: Workspace, b: Vector, q: Vector, G: Vector, grad_q: Vector) -> None:
    """Fill ``work.W`` with M_ij / (b_j), for averages over targets; ``grad_q`` gets P' (G / a)."""
    R, W, T = work.K, work.W, work.top
    m, n = R.shape
    _clear(T)
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


@part
def fill_value_terms(work: Workspace, a: Vector, z: Vector, G: Vector, grad_z: Vector) -> None:
    """Fill ``work.W`` with M_ij / (a_i), for averages over values; ``grad_z`` gets P (G / b)."""
    R, W = work.K, work.W
    m, n = R.shape
    _clear(grad_z)
    for j in range(m):
        total, mass = 0.0, 0.0
        for i in range(n):
            total += R[j, i] * (a[i] * z[i])
            mass += R[j, i] * a[i]
        S = total / mass
        for i in range(n):
            grad_z[i] += R[j, i] * (a[i] * G[j])
            W[j, i] = R[j, i] * G[j] * (z[i] - S)


@part
def fill_sides(work: Workspace, a: Vector, of_rows: bool) -> None:
    """Fill ``work.shares`` with e / a and ``work.step`` with (c - P'(e / a)) / b."""
    R, W, terms, side = work.K, work.W, work.shares, work.step
    m, n = R.shape
    _clear(terms)
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


@part
def solve_targets(work: Workspace, b: Vector, mu: Vector) -> None:
    """Fill ``mu`` from the system in the targets; :func:`fill_sides` has been called.

    ``work.couplings`` are those of the targets.
    """
    for j in range(b.size):
        mu[j] = b[j] * work.step[j]
        work.ground[j] = _RIDGE * b[j]
    ground_largest(b, work.ground)
    eliminate(work.couplings, work.ground, work.factor, work.pivots)
    substitute(work.factor, work.pivots, mu)


@part
def solve_nodes(work: Workspace, small: Workspace, masses: Vector, b: Vector, mu: Vector) -> None:
    """Fill ``mu`` from a system in the nodes of a quadrature, for many targets.

    With densities ``A`` between nodes and targets, ``H`` is ``diag(b) - diag(b) A' diag(masses) A
    diag(b)``. So ``mu = side + A' (masses t)``, where ``t = A (b mu)`` solves a system like that of
    the targets, in the nodes. ``small.K`` holds ``A``.
    """
    A, t = small.K, small.step
    for k in range(masses.size):
        total = 0.0
        for j in range(b.size):
            total += A[k, j] * (b[j] * work.step[j])
        t[k] = masses[k] * total
        small.ground[k] = _RIDGE * masses[k]
    ground_largest(masses, small.ground)
    eliminate(small.couplings, small.ground, small.factor, small.pivots)
    substitute(small.factor, small.pivots, t)
    for j in range(b.size):
        mu[j] = work.step[j]
    for k in range(masses.size):
        weight = masses[k] * t[k]
        for j in range(b.size):
            mu[j] += weight * A[k, j]


@part
def fill_lam(work: Workspace, a: Vector, b: Vector, lam: Vector, mu: Vector) -> None:
    """Fill ``lam``, and ``mu`` of targets without weight."""
    R = work.K
    m, n = R.shape
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
            mu[j] = work.step[j] - total
    for i in range(n):
        lam[i] += work.shares[i]


@part
def couple_densities(work: Workspace, a: Vector, b: Vector) -> None:
    """Fill the couplings of the targets from the densities in ``work.K``."""
    for i in range(a.size):
        work.roots[i], work.shares[i] = np.sqrt(a[i]), 1.0
    couple(work.K, b, work.roots, work.shares, work.W, work.couplings)


@part
def _centre(weights: Vector, numbers: Vector) -> None:
    """Take the weighted mean away."""
    mean = 0.0
    for j in range(weights.size):
        mean += weights[j] * numbers[j]
    for j in range(weights.size):
        numbers[j] -= mean


@part
def _clear(numbers: Vector) -> None:
    for i in range(numbers.size):
        numbers[i] = 0.0


@kernel
def pull_block(
    rows: Rows,
    costs: Tables,
    slopes: Tables,
    potentials: Table,
    nodes: Rows,
    node_potentials: Table,
    epsilon: float,
    of_rows: bool,
    numbers: Table,
    gradients: Table,
    out: tuple[Table, Table, Table, Table],
    start: int,
    stop: int,
) -> None:
    """Pull ``gradients`` with respect to averages back to ``x``, ``a``, ``b`` and ``numbers``.

    ``nodes`` is the transport from the targets to the nodes of a quadrature, which has potentials
    if it is to be used.
    """
    n, m = rows.x.shape[1], rows.y.shape[1]
    work, small = make_workspace(m, n), make_workspace(nodes.y.shape[1], m)
    squared = np.empty((0, 0, 0))
    R, W, mean = work.K, work.W, work.top
    grad_x, grad_a, grad_b, grad_numbers = out
    for row in range(start, stop):
        a, b, y = (
            rows.a[row_of(rows.a, row)],
            rows.b[row_of(rows.b, row)],
            rows.y[row_of(rows.y, row)],
        )
        given, G = numbers[row_of(numbers, row)], gradients[row]
        lam, mu, gx = grad_a[row], grad_b[row], grad_x[row]
        make_densities(rows, costs, potentials[row], epsilon, row, start, work)
        has_nodes = node_potentials.shape[0] > 0
        if has_nodes:
            make_densities(nodes, squared, node_potentials[row], epsilon, row, start, small)
            couple_densities(small, b, nodes.b[row])
        else:
            couple_densities(work, a, b)
        if of_rows:
            fill_target_terms(work, b, given, G, grad_numbers[row])
        else:
            fill_value_terms(work, a, given, G, grad_numbers[row])
        fill_sides(work, a, of_rows)
        if has_nodes:
            solve_nodes(work, small, nodes.b[row], b, mu)
        else:
            solve_targets(work, b, mu)
        # What may be added to one and taken from the other is chosen.
        _centre(b, mu)
        fill_lam(work, a, b, lam, mu)
        # grad_x = sum_j dL/dC_ij dC_ij/dx_i. The sums over j of dL/dC are zero, so that the mean
        # slope may be taken away first: nothing large cancels.
        _clear(mean)
        _clear(gx)
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
