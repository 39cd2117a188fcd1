r"""Transport of long rows to many targets, in a memory that grows with their sum.

The interface and the formulas are those of ``transport`` and ``adjoint``, for the squared cost.
Both sides are cut into boxes (``boxes``). The nodes of Gauss quadratures are solved in place of the
row. Potentials of all values and targets follow from theirs, and so do densities ``R_ij = P_ij /
(a_i b_j)`` between any two points. Sums over one side of numbers times densities are taken over
Chebyshev nodes, in blocks of the other side, each with the nodes that its densities reach: where
``epsilon`` is small, these are few.

What is found is checked against all values for some of the targets. A row for which ``epsilon`` is
so small that nodes are as many as points, or rounding tells, is solved as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import solve

from polyad.exceptions import InvalidInputError
from polyad.transport.rows.boxes import Interpolation, gauss_nodes, make_boxes
from polyad.transport.rows.entry_points import Rows
from polyad.transport.rows.transport import (
    Gradients,
    RowTransport,
    Solution,
    without_traces,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]

# Entries of a plan to so many targets from which on a row is long, and those of one that is solved
# at most. Nodes that have a larger part of the entries than this are not worth it.
_MANY_TARGETS = 64
_LONG, MOST_ENTRIES, _MAX_PART = 1 << 22, 100_000_000, 0.25
# Logarithms of densities are rounded to 1e-16 of a squared distance over epsilon: below this part
# of the largest of these, derivatives would lose half of their digits.
_LEAST_EPSILON = 2e-6
# Of densities of what has no weight, which the largest of a point does not know of.
_LARGEST_EXPONENT = 600.0
# Entries of densities that are made at once.
_BLOCK_SIZE = 1 << 20
# Densities that are nothing beside the largest of a point: exp(-60) = 9e-27, times all nodes.
_LEAST_EXPONENT = -60.0
# Nodes are solved better than what is asked for. Targets for which all values are summed.
_NODE_TOL, _SAMPLE = 1e-2, 16
# What is added to the diagonal of the system of the derivative: parts that are not coupled.
_RIDGE = 1e-14


def is_long(n: int, m: int) -> bool:
    """Return whether the plan between values and targets, or the system of targets, is large."""
    return m > _MANY_TARGETS and m * max(n, m) > _LONG


class _Nodes(NamedTuple):
    """Points with potentials, and numbers whose sum with the densities of any point is one."""

    points: Vector
    potentials: Vector
    weights: Vector


class LongTransport:
    """Entropic transport from each row of ``x`` (d, n) to its targets ``y`` (1 or d, m).

    See :class:`~polyad.transport.rows.transport.RowTransport`, whose arguments and results it has.
    """

    cost = None

    def __init__(self, x: Table, y: Table, a: Table, b: Table, *, epsilon: float) -> None:
        middle = 0.5 * (y[:, :1] + y[:, -1:])  # squares of distances from it are small
        self.rows = Rows(x - middle, y - middle, a, without_traces(a, b))
        self.epsilon = float(epsilon)

    def solve(self, *, tol: float = 1e-9) -> Solution:
        """Solve all rows; errors are those of a sample of the targets."""
        d, m = len(self.rows.x), self.rows.y.shape[1]
        found = Solution(np.empty((d, m)), np.empty(d), np.empty(d, np.int64), float(tol))
        for row in range(d):
            plan = self._plan(row)
            found.error[row], found.n_iter[row] = plan.solve(tol)
            found.potentials[row] = plan.potentials
        return found

    def average_targets(self, potentials: Table, q: Table) -> Table:
        """Return ``P q / a`` (d, n): for each value, the mean of ``q`` (m) over its targets."""
        return np.stack([plan.average_targets(_own(q, i)) for i, plan in self._plans(potentials)])

    def average_values(self, potentials: Table, z: Table) -> Table:
        """Return ``P' z / b`` (d, m): for each target, the mean of ``z`` (n) over its values."""
        return np.stack([plan.average_values(_own(z, i)) for i, plan in self._plans(potentials)])

    def pull_targets(self, potentials: Table, q: Table, G: Table) -> Gradients:
        """Return the derivatives of a function of :meth:`average_targets` of gradient ``G``."""
        parts = [plan.pull_targets(_own(q, i), G[i]) for i, plan in self._plans(potentials)]
        return Gradients(*map(np.stack, zip(*parts, strict=True)))

    def pull_values(self, potentials: Table, z: Table, G: Table) -> Gradients:
        """Return the derivatives of a function of :meth:`average_values` of gradient ``G``."""
        parts = [plan.pull_values(_own(z, i), G[i]) for i, plan in self._plans(potentials)]
        return Gradients(*map(np.stack, zip(*parts, strict=True)))

    def _plans(self, potentials: Table) -> Iterator[tuple[int, _LongPlan | _PlainPlan]]:
        for i, own in enumerate(potentials):
            plan = self._plan(i)
            plan.take(own)
            yield i, plan

    def _plan(self, row: int) -> _LongPlan | _PlainPlan:
        x, y, a, b = (_own(part, row) for part in self.rows)
        plan = _LongPlan((x, y, a, b), self.epsilon)
        n_entries = plan.X.size * plan.Y.size
        span = max(x.max(), y[-1]) - min(x.min(), y[0])
        is_exact = self.epsilon >= _LEAST_EPSILON * span**2
        is_worth = is_exact and n_entries <= _MAX_PART * x.size * y.size
        if (n_entries if is_worth else x.size * y.size) > MOST_ENTRIES:
            message = (
                f"The transport of {x.size} values to {y.size} targets with epsilon="
                f"{self.epsilon:g} needs a table of {plan.X.size} times {plan.Y.size} numbers. "
                "Increase epsilon, for which fewer are enough, or give fewer targets (n_targets)."
            )
            raise InvalidInputError(message)
        return plan if is_worth else _PlainPlan((x, y, a, b), self.epsilon)


def _own(shared: Table, row: int) -> Vector:
    """Return a row of what may be the same for all rows."""
    own: Vector = shared[row if len(shared) > 1 else 0]
    return own


class _PlainPlan:
    """One row, without nodes."""

    def __init__(self, row: tuple[Vector, Vector, Vector, Vector], epsilon: float) -> None:
        self.transport = RowTransport(*(part[None] for part in row), epsilon=epsilon)

    def solve(self, tol: float) -> tuple[float, int]:
        """Find the potentials of all targets; return the error of the sums and the steps."""
        solution = self.transport.solve(tol=tol)
        self.take(solution.potentials[0])
        return float(solution.error[0]), int(solution.n_iter[0])

    def take(self, potentials: Vector) -> None:
        """Take the potentials of all targets."""
        self.potentials = potentials

    def average_targets(self, q: Vector) -> Vector:
        """Return ``P q / a``."""
        means: Vector = self.transport.average_targets(self.potentials[None], q[None])[0]
        return means

    def average_values(self, z: Vector) -> Vector:
        """Return ``P' z / b``."""
        means: Vector = self.transport.average_values(self.potentials[None], z[None])[0]
        return means

    def pull_targets(self, q: Vector, G: Vector) -> tuple[Vector, ...]:
        """Return derivatives with respect to values, their weights, those of targets, and ``q``."""
        found = self.transport.pull_targets(self.potentials[None], q[None], G[None])
        return found.x[0], found.a[0], found.b[0], found.numbers[0]

    def pull_values(self, z: Vector, G: Vector) -> tuple[Vector, ...]:
        """Return derivatives with respect to values, their weights, those of targets, and ``z``."""
        found = self.transport.pull_values(self.potentials[None], z[None], G[None])
        return found.x[0], found.a[0], found.b[0], found.numbers[0]


class _LongPlan:
    """One row: its boxes and nodes, its solution, and sums with its densities."""

    def __init__(self, row: tuple[Vector, Vector, Vector, Vector], epsilon: float) -> None:
        x, self.y, a, self.b = row
        self.order = np.argsort(x, kind="stable")
        self.x, self.a, self.epsilon = x[self.order], a[self.order], epsilon
        values = make_boxes(self.x, self.a, self.y, self.b, epsilon)
        targets = make_boxes(self.y, self.b, self.x, self.a, epsilon)
        self.of_values, self.of_targets = Interpolation(values), Interpolation(targets)
        self.X, self.A = gauss_nodes(values, self.a)
        self.Y, self.B = gauss_nodes(targets, self.b)

    def solve(self, tol: float) -> tuple[float, int]:
        """Find the potentials of all targets; return the error of the sums and the steps."""
        nodes = RowTransport(
            *(part[None] for part in (self.X, self.Y, self.A, self.B)), epsilon=self.epsilon
        )
        solution = nodes.solve(tol=_NODE_TOL * tol)
        f = self._extend(self.X, _Nodes(self.Y, solution.potentials[0], self.B))
        g = self._extend(self.y, _Nodes(self.X, f, self.A))
        self.take(g - (self.b * g).sum())
        return max(float(solution.error[0]), self._error()), int(solution.n_iter[0])

    def take(self, potentials: Vector) -> None:
        """Take the potentials of all targets, and find those of nodes from them."""
        self.potentials = potentials
        f = self._extend(self.X, _Nodes(self.y, potentials, self.b))
        self.gauss_x = _Nodes(self.X, f, self.A)
        self.gauss_y = _Nodes(self.Y, self._extend(self.Y, self.gauss_x), self.B)
        place, other = self.of_targets.nodes, self.of_values.nodes
        shares = self.of_targets.spread(self.b)[:, 0]
        self.nodes_y = _Nodes(place, self._extend(place, self.gauss_x), shares)
        shares = self.of_values.spread(self.a)[:, 0]
        self.nodes_x = _Nodes(other, self._extend(other, self.gauss_y), shares)

    def _error(self) -> float:
        """Return the largest relative error of the sums over all values, for some targets."""
        chosen = np.unique(np.linspace(0, self.y.size - 1, _SAMPLE).astype(int))
        f = self._extend(self.x, self.nodes_y)
        exponents = f[:, None] + self.potentials[chosen] - (self.x[:, None] - self.y[chosen]) ** 2
        sums = self.a @ np.exp(exponents / self.epsilon)
        return float(np.abs(sums - 1.0).max())

    def average_targets(self, q: Vector) -> Vector:
        """Return ``P q / a``, the values as they were given."""
        return self._back(self._sum(self.x, self.nodes_y, self.of_targets.spread(self.b * q))[:, 0])

    def average_values(self, z: Vector) -> Vector:
        """Return ``P' z / b``."""
        spread = self.of_values.spread(self.a * z[self.order])
        return self._sum(self.y, self.nodes_x, spread)[:, 0]

    def pull_targets(self, q: Vector, G: Vector) -> tuple[Vector, ...]:
        """Return derivatives with respect to values, their weights, those of targets, and ``q``."""
        G = G[self.order]
        spread = self.of_targets.spread(self.b * q)
        T = self._sum(self.x, self.nodes_y, spread)[:, 0]
        u, v = self._sum(self.y, self.nodes_x, self.of_values.spread(G, G * T)).T
        mu = self._solve_targets(q * u - v)
        spread = np.hstack([self.of_targets.spread(self.b * mu), spread])
        lam = -self._sum(self.x, self.nodes_y, spread[:, :1])[:, 0]
        by_mu, by_q = self._sum(self.x, self.nodes_y, spread, is_slope=True).T
        by_x = (self.a * by_mu - G * by_q) / self.epsilon
        return self._back(by_x), self._back(lam), mu, self.b * u

    def pull_values(self, z: Vector, G: Vector) -> tuple[Vector, ...]:
        """Return derivatives with respect to values, their weights, those of targets, and ``z``."""
        z = z[self.order]
        S = self._sum(self.y, self.nodes_x, self.of_values.spread(self.a * z))[:, 0]
        spread = self.of_targets.spread(G, G * S)
        u, v = self._sum(self.x, self.nodes_y, spread).T
        terms = z * u - v
        side = -self._sum(self.y, self.nodes_x, self.of_values.spread(self.a * terms))[:, 0]
        mu = self._solve_targets(side)
        spread = np.hstack([self.of_targets.spread(self.b * mu), spread])
        lam = terms - self._sum(self.x, self.nodes_y, spread[:, :1])[:, 0]
        by_mu, by_G, by_GS = self._sum(self.x, self.nodes_y, spread, is_slope=True).T
        by_x = self.a * (by_mu - z * by_G + by_GS) / self.epsilon
        return self._back(by_x), self._back(lam), mu, self._back(self.a * u)

    def _solve_targets(self, side: Vector) -> Vector:
        """Return ``mu`` from ``H mu = b side``, by a system in the nodes of the values.

        With densities ``R`` between nodes of the values and targets, ``mu = side + R'(A t)``, and
        ``t = R (b mu)`` solves ``(1 - Q Q') sqrt(A) t = sqrt(A) R (b side)`` with ``Q = sqrt(A) R
        sqrt(B)``, whose largest singular value is one, of the vector ``sqrt(A)``.
        """
        roots = np.sqrt(self.A)
        R = self._sum(self.X, self.gauss_y, np.eye(self.Y.size))
        Q = roots[:, None] * R * np.sqrt(self.B)
        system = np.outer(roots, roots) - Q @ Q.T
        system[np.diag_indices(roots.size)] += 1.0 + _RIDGE
        given = self._sum(self.X, self.nodes_y, self.of_targets.spread(self.b * side))[:, 0]
        t = solve(system, roots * given, assume_a="pos") / roots
        mu: Vector = side + self._sum(self.y, self.gauss_x, (self.A * t)[:, None])[:, 0]
        mu -= (self.b * mu).sum()
        return mu

    def _back(self, numbers: Vector) -> Vector:
        """Return numbers of sorted values in the order in which they were given."""
        result = np.empty_like(numbers)
        result[self.order] = numbers
        return result

    def _extend(self, points: Vector, nodes: _Nodes) -> Vector:
        """Return the potentials of sorted points: minus epsilon times the logarithm of a sum."""
        result = np.empty(points.size)
        for block, window in self._blocks(points, nodes):
            E, top = self._exponents(points[block], nodes, window)
            total = np.exp(E) @ nodes.weights[window]
            result[block] = points[block] ** 2 - self.epsilon * (top[:, 0] + np.log(total))
        return result

    def _sum(
        self, points: Vector, nodes: _Nodes, numbers: Table, *, is_slope: bool = False
    ) -> Table:
        """Return sums over nodes of densities times numbers, a column for each, at sorted points.

        With ``is_slope``, times the derivative of the cost too, less its mean over the plan.
        """
        result = np.empty((points.size, numbers.shape[1]))
        for block, window in self._blocks(points, nodes):
            R = np.exp(self._exponents(points[block], nodes, window)[0])
            R /= (R @ nodes.weights[window])[:, None]
            if is_slope:
                places = -2.0 * nodes.points[window]
                # Where they are counted from changes nothing but rounding.
                places -= places[places.size // 2]
                mean = R @ (nodes.weights[window] * places)
                R *= places - mean[:, None]
            result[block] = R @ numbers[window]
        return result

    def _exponents(self, points: Vector, nodes: _Nodes, window: slice) -> tuple[Table, Table]:
        """Return logarithms of densities less the largest of each point, and that.

        The square of a point, which is the same for all nodes, is left out.
        """
        places = nodes.points[window]
        E = np.multiply.outer(2.0 * points, places)
        E += nodes.potentials[window] - places**2
        E /= self.epsilon
        is_weighted = nodes.weights[window] != 0.0
        top = (E if is_weighted.all() else E[:, is_weighted]).max(axis=1, keepdims=True)
        E -= top
        return np.minimum(E, _LARGEST_EXPONENT, out=E), top

    def _blocks(self, points: Vector, nodes: _Nodes) -> Iterator[tuple[slice, slice]]:
        """Cut sorted points into blocks, each with the nodes that its densities reach.

        Logarithms of densities are concave in the node, because potentials follow from sums: what
        a point reaches is an interval, and a larger point reaches no smaller nodes.
        """
        size = max(1, min(256, _BLOCK_SIZE // nodes.points.size))
        for first in range(0, points.size, size):
            block = slice(first, min(first + size, points.size))
            ends = self._exponents(points[[block.start, block.stop - 1]], nodes, slice(None))[0]
            low, high = (np.flatnonzero(E >= _LEAST_EXPONENT) for E in ends)
            yield block, slice(int(low[0]), int(high[-1]) + 1)
