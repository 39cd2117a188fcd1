"""Fewer points in place of many: Gauss quadrature of the values of a row, for many targets.

Where targets are many, the small side of the transport has to be made. The densities of a plan are
smooth functions of ``x`` on the scale ``sqrt(epsilon)``. So sums over the values of a row may be
taken over the nodes of a quadrature instead: the values are put into boxes about as wide as that
scale, narrower where many values share a place and go to far targets, and each box is replaced by
the nodes of the Gauss quadrature of its own values, which is exact for polynomials of degree ``2 *
NODES - 1`` and has positive weights. The nodes form a transport problem of their own, with few
unknowns, whose solution is that of the full one to about 1e-11.

The quadrature is found by the procedure of Stieltjes (three-term recurrence of the orthogonal
polynomials) and the eigenvalues of its Jacobi matrix (Golub and Welsch, 1969).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.core.compiled import kernel, owning_part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]

#: Nodes of a box at most.
NODES = 10
# Within a box, the logarithm of a density changes by up to about its width times the breadth of the
# targets that its values go to, over epsilon. That is bounded; breadth is counted as the mass of
# the box, as if the targets were uniform, and sqrt(epsilon), and by how much they are not uniform.
_MAX_CHANGE = 5.0
# Squared distances within a box that are nothing, in units of its width.
_NEGLIGIBLE = 1e-24


@owning_part
def gauss_quadrature(points: Vector, weights: Vector, nodes: Vector, masses: Vector) -> int:
    """Fill nodes and masses of the quadrature of some points; return how many there are."""
    n = points.size
    low, high = points.min(), points.max()
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    if n <= nodes.size or half == 0.0:
        if half == 0.0:
            nodes[0], masses[0] = low, weights.sum()
            return 1
        nodes[:n], masses[:n] = points, weights
        return n
    t = (points - middle) / half
    jacobi = np.zeros((nodes.size, nodes.size))
    before, now = np.zeros(n), np.ones(n)
    norm, size = weights.sum(), 0
    total, beta = norm, 0.0
    while size < nodes.size:
        alpha = 0.0
        for i in range(n):
            alpha += weights[i] * t[i] * now[i] * now[i]
        alpha /= norm
        jacobi[size, size] = alpha
        size += 1
        new_norm = 0.0
        for i in range(n):
            value = (t[i] - alpha) * now[i] - beta * before[i]
            before[i], now[i] = now[i], value
            new_norm += weights[i] * value * value
        beta, norm = new_norm / norm, new_norm
        if beta < _NEGLIGIBLE or size == nodes.size:
            break
        jacobi[size - 1, size] = jacobi[size, size - 1] = np.sqrt(beta)
    found, vectors = np.linalg.eigh(jacobi[:size, :size])
    for k in range(size):
        nodes[k] = middle + half * found[k]
        masses[k] = total * vectors[0, k] * vectors[0, k]
    return size


@kernel
def reduce_block(
    x: Table,
    a: Table,
    epsilon: float,
    breadth: float,
    nodes: Table,
    masses: Table,
    start: int,
    stop: int,
) -> None:
    """Fill the nodes of some rows and their masses; what is left of a row has no mass.

    Weights sum to one, and there is room for what :func:`count_nodes` says.
    """
    n = x.shape[1]
    points, weights = np.empty(n), np.empty(n)
    for row in range(start, stop):
        share = a[row if a.shape[0] > 1 else 0]
        order = np.argsort(x[row])
        nodes[row], masses[row] = x[row, order[n // 2]], 0.0
        filled, first = 0, 0
        while first < n:
            begin, mass = x[row, order[first]], 0.0
            size, last = 0, first
            while last < n:
                i = order[last]
                mass += share[i]
                if (x[row, i] - begin) * (mass + breadth) > _MAX_CHANGE * epsilon:
                    break
                if share[i] > 0.0:
                    points[size], weights[size] = x[row, i], share[i]
                    size += 1
                last += 1
            if size > 0:
                room = slice(filled, filled + NODES)
                filled += gauss_quadrature(
                    points[:size], weights[:size], nodes[row, room], masses[row, room]
                )
            first = last


def breadth_of(y: Table, b: Table, epsilon: float) -> float:
    """Return sqrt(epsilon), and twice what uneven targets of the same mass may be apart."""
    span = y[:, -1:] - y[:, :1]
    shares = np.cumsum(b, axis=1) - 0.5 * b
    apart = float(np.abs((y - y[:, :1]) - span * shares).max())
    even = float(span.max()) / y.shape[1]
    return float(np.sqrt(epsilon)) + (4.0 * apart if apart > even else 0.0)


def count_nodes(x: Table, epsilon: float, breadth: float) -> int:
    """Return how many nodes the rows need at most."""
    span = float((x.max(axis=1) - x.min(axis=1)).max())
    # Up to the next value, boxes of little mass are wide, and the products of width and mass of
    # others are bounded from below, while widths sum to the span and masses to two at most.
    boxes = 2.0 * span * breadth / (_MAX_CHANGE * epsilon) + np.sqrt(
        4.0 * span / (_MAX_CHANGE * epsilon)
    )
    return int(min(NODES * (boxes + 2.0), x.shape[1] + NODES))
