r"""Points in boxes, within which the densities of a plan are polynomials but for rounding.

For sorted points ``p`` of one side of a transport, the density of a plan between ``p`` and a point
``q`` of the other side is ``exp(2 p q / epsilon - h(p))`` up to what does not depend on ``p``, and
``h'(p) = 2 E[q | p] / epsilon``. So across a box of width ``w`` its logarithm bends by at most
about ``2 w / epsilon`` times the range of the ``q`` that points of the box go to: those between the
quantiles of its ends, and some ``sqrt(epsilon)`` around. Boxes are as wide as the product of both
allows. Boxes with no more points than nodes are left as they are.

Each box gives two kinds of nodes. Those of the Gauss quadrature of its weights (Golub and Welsch,
1969) are exact for polynomials of degree ``2 GAUSS_NODES - 1`` and have positive weights: they make
a transport of their own. Those of Chebyshev do not depend on the weights: any numbers of the points
are spread over them by interpolation, for sums of numbers times densities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]
    Index = NDArray[np.int64]

#: Nodes of a box.
GAUSS_NODES, NODES = 10, 16
# Width times range of a box over epsilon, and by how much of sqrt(epsilon) the range is larger on
# either side; found on values in clumps, with gaps, ties and long tails. Errors fall with the 16th
# power of the former, and are below 1e-10 of the numbers that are averaged.
_MAX_CHANGE, _MARGIN = 2.5, 2.0
# Squared distances within a box that are nothing, in units of its width.
_NEGLIGIBLE = 1e-24


class Boxes(NamedTuple):
    """Where boxes of sorted points begin, and whether a box is left as it is."""

    points: Vector
    starts: Index
    is_whole: NDArray[np.bool_]

    @property
    def ends(self) -> Index:
        """One behind the last point of each box."""
        return np.append(self.starts[1:], self.points.size)


def make_boxes(
    points: Vector, weights: Vector, others: Vector, shares: Vector, eps: float
) -> Boxes:
    """Cut sorted points into boxes; ``others``, of weights ``shares``, are where they go to."""
    breadth = np.sqrt(eps)
    low, high = _ranges(points, weights, others, shares, _MARGIN * breadth)

    def is_smooth(first: int, end: int) -> bool:
        width, span = points[end - 1] - points[first], high[end - 1] - low[first]
        return bool(width * (span + breadth) <= _MAX_CHANGE * eps)

    starts, is_whole = [], []
    first, n = 0, points.size
    while first < n:
        starts.append(first)
        end = min(n, first + NODES)
        is_whole.append(end == n or not is_smooth(first, end + 1))
        if not is_whole[-1]:
            end, last = end + 1, n
            while end < last:
                middle = (end + last + 1) // 2
                if is_smooth(first, middle):
                    end = middle
                else:
                    last = middle - 1
        first = end
    return Boxes(points, np.array(starts), np.array(is_whole))


def _ranges(
    points: Vector, weights: Vector, others: Vector, shares: Vector, margin: float
) -> tuple[Vector, Vector]:
    """Return between which of the others the mass around each point goes, in order."""
    n, m = points.size, others.size
    mass, taken = np.cumsum(weights), np.cumsum(shares)
    below = np.append(0.0, mass)[np.searchsorted(points, points - margin, side="left")]
    above = mass[np.minimum(np.searchsorted(points, points + margin, side="right"), n) - 1]
    low = others[np.minimum(np.searchsorted(taken, below, side="right"), m - 1)]
    return low, others[np.minimum(np.searchsorted(taken, above, side="left"), m - 1)]


def gauss_nodes(boxes: Boxes, weights: Vector) -> tuple[Vector, Vector]:
    """Return the nodes of all boxes, in order, and their masses, which sum to one."""
    nodes, masses = [], []
    for first, end, is_whole in zip(boxes.starts, boxes.ends, boxes.is_whole, strict=True):
        share = weights[first:end]
        points, share = boxes.points[first:end][share > 0.0], share[share > 0.0]
        if points.size == 0:
            continue
        if points[0] == points[-1]:
            points, share = points[:1], share.sum(keepdims=True)
        elif not is_whole and points.size > GAUSS_NODES:
            points, share = _quadrature(points, share)
        nodes.append(points)
        masses.append(share)
    total = np.concatenate(masses)
    return np.concatenate(nodes), total / total.sum()


def _quadrature(points: Vector, weights: Vector) -> tuple[Vector, Vector]:
    """Return the Gauss quadrature of points: the procedure of Stieltjes, then eigenvalues."""
    middle, half = 0.5 * (points[0] + points[-1]), 0.5 * (points[-1] - points[0])
    t = (points - middle) / half
    now, before, norm = np.ones_like(t), np.zeros_like(t), weights.sum()
    diagonal, beta, roots = [], 0.0, []
    for _ in range(GAUSS_NODES):
        diagonal.append((weights * t * now * now).sum() / norm)
        now, before = (t - diagonal[-1]) * now - beta * before, now
        new_norm = (weights * now * now).sum()
        beta, norm = new_norm / norm, new_norm
        if beta < _NEGLIGIBLE:
            break
        roots.append(np.sqrt(beta))
    size = len(diagonal)
    jacobi = np.diag(diagonal) + np.diag(roots[: size - 1], 1) + np.diag(roots[: size - 1], -1)
    found, vectors = np.linalg.eigh(jacobi)
    return middle + half * found, weights.sum() * vectors[0] ** 2


class Interpolation:
    """Chebyshev nodes of boxes, and numbers of points spread over them."""

    def __init__(self, boxes: Boxes) -> None:
        points, starts, ends = boxes.points, boxes.starts, boxes.ends
        angles = (2 * np.arange(NODES) + 1) * np.pi / (2 * NODES)
        places, signs = -np.cos(angles), (-1.0) ** np.arange(NODES) * np.sin(angles)
        middle = 0.5 * (points[starts] + points[ends - 1])
        half = 0.5 * (points[ends - 1] - points[starts])
        box = np.repeat(np.arange(starts.size), ends - starts)
        t = (points - middle[box]) / np.where(half > 0.0, half, 1.0)[box]
        gaps = t[:, None] - places
        is_hit = gaps == 0.0
        # The barycentric formula of the polynomials that are one at one node and zero at others.
        parts = signs / np.where(is_hit, 1.0, gaps)
        parts /= parts.sum(axis=1, keepdims=True)
        parts = np.where(is_hit.any(axis=1, keepdims=True), is_hit, parts)
        nodes = middle[:, None] + half[:, None] * places
        whole = np.flatnonzero(boxes.is_whole)
        within = np.minimum(starts[whole, None] + np.arange(NODES), ends[whole, None] - 1)
        nodes[whole] = points[within]
        own = np.flatnonzero(boxes.is_whole[box])
        parts[own] = np.arange(NODES) == (own - starts[box[own]])[:, None]
        #: The nodes of all boxes, in order; of those left as they are, points, the last repeated.
        self.nodes: Vector = nodes.ravel()
        self._parts: Table = parts
        self._starts = starts

    def spread(self, *numbers: Vector) -> Table:
        """Return numbers of the points as numbers of the nodes, a column for each."""
        return np.stack(
            [
                np.add.reduceat(self._parts * part[:, None], self._starts).ravel()
                for part in numbers
            ],
            axis=1,
        )
