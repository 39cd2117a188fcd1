r"""Entropic transport of many rows of values to their targets, and averages with the plans.

This is what the soft operators and the factorizations on top of them stand on. For each row, with
values ``x`` (n) of weights ``a`` and increasing targets ``y`` (m) of weights ``b``,

.. math:: P = \arg\min_{P 1 = a,\; P' 1 = b} \langle P, C \rangle - \epsilon H(P),
          \qquad C_{ij} = c(x_i, y_j),

and ``P_ij = a_i b_j exp((f_i + g_j - C_ij) / epsilon)``. Only ``g`` is an unknown: ``f`` follows
from it such that the rows of the plan sum to ``a``. No plan is ever kept: its entries are computed
from ``g``, a row at a time, where they are needed. So the memory is that of the input, and does not
grow with the number of steps.

How to use it::

    transport = RowTransport(x, y, a, b, epsilon=1e-2)
    solution = transport.solve()                     # or solve(start=earlier.potentials)
    T = transport.average_targets(solution.potentials, q)
    gradients = transport.pull_targets(solution.potentials, q, G)  # .x .a .b .numbers

All arrays are float64 and two-dimensional; ``y``, ``a``, ``b``, ``q`` may have a single row that
all share. Nothing is validated here: callers do that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyad.core.threads import Blocks, cut, run_blocks
from polyad.transport.rows.adjoint import pull_block
from polyad.transport.rows.costs import SQUARED, read_table
from polyad.transport.rows.entry_points import Rows, average_block, extend_block, solve_block
from polyad.transport.rows.newton import Task
from polyad.transport.rows.quadrature import breadth_of, count_nodes, reduce_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.transport.rows.costs import Cost
    from polyad.transport.rows.long import LongTransport

    Table = NDArray[np.float64]

# Numbers of plans that one block works through, and the bounds of its rows: memory is used again
# for the rows of a block.
_BLOCK_SIZE, _MIN_ROWS, _MAX_ROWS = 1 << 18, 8, 64
_MAX_ITER = 500
_NO_TABLES = np.empty((0, 0, 0))
_NO_ROWS = Rows(*(np.empty((0, 1)) for _ in range(4)))
# Up to so many targets, and where a quadrature of the values has more than a part of them, the
# system in the targets is solved as it is. Nodes are solved better than the rows they stand for.
_FEW_TARGETS, _MAX_NODE_SHARE, _NODE_TOL = 64, 0.5, 1e-2
# Where nodes are many, too: the solution starts from that of a larger epsilon, roughly solved.
_COARSE_FACTOR, _COARSE_TOL = 4.0, 1e-3
# Targets that together take less than this part of any value have no weight.
_TRACE_SHARE = 1e-14
# Rows that fail are solved again, through values of epsilon that are halved, with many steps.
_LEVEL_TOL, _LEVEL_BUDGET, _MAX_LEVELS = 1e-6, 2000, 40


@dataclass(frozen=True)
class Solution:
    """Potentials of all rows, and how well they solve them."""

    #: (d, m): ``g``, with ``sum(b * g) == 0``.
    potentials: Table
    #: (d,): the largest relative error of the sums of the plan over its values, ``|P'1 - b| / b``.
    error: Table
    #: (d,): Newton steps with all values for the final epsilon.
    n_iter: NDArray[np.int64]
    #: The error that was asked for.
    tol: float

    @property
    def converged(self) -> NDArray[np.bool_]:
        """Which rows have an error of at most ``tol``."""
        return self.error <= self.tol


@dataclass(frozen=True)
class Gradients:
    """Derivatives of a function of averages, for each row also where rows share an argument.

    ``a`` and ``b`` belong to weights that sum to one: a constant may be added to either.
    """

    x: Table
    a: Table
    b: Table
    numbers: Table


@dataclass(frozen=True)
class SolvedPlan:
    """A transport with its solution: averages with its plans, and their derivatives."""

    transport: RowTransport | LongTransport
    potentials: Table

    def average_targets(self, q: Table) -> Table:
        """See :meth:`RowTransport.average_targets`."""
        return self.transport.average_targets(self.potentials, q)

    def average_values(self, z: Table) -> Table:
        """See :meth:`RowTransport.average_values`."""
        return self.transport.average_values(self.potentials, z)

    def pull_targets(self, q: Table, G: Table) -> Gradients:
        """See :meth:`RowTransport.pull_targets`."""
        return self.transport.pull_targets(self.potentials, q, G)

    def pull_values(self, z: Table, G: Table) -> Gradients:
        """See :meth:`RowTransport.pull_values`."""
        return self.transport.pull_values(self.potentials, z, G)


class RowTransport:
    """Entropic transport from each row of ``x`` (d, n) to its targets ``y`` (1 or d, m).

    Targets increase. Weights ``a`` (1 or d, n) and ``b`` (1 or d, m) are not negative, and each row
    of them sums to one. The cost is the squared distance by default.
    """

    def __init__(
        self, x: Table, y: Table, a: Table, b: Table, *, epsilon: float, cost: Cost | None = None
    ) -> None:
        b = without_traces(a, b)
        self.rows = Rows(*(np.ascontiguousarray(part, dtype=np.float64) for part in (x, y, a, b)))
        self.epsilon = float(epsilon)
        self.cost = cost
        if cost is None:
            # Distances are the same, and what is left out of the table is as small as can be.
            middle = 0.5 * (self.rows.y[:, :1] + self.rows.y[:, -1:])
            self.rows = self.rows._replace(x=self.rows.x - middle, y=self.rows.y - middle)

    def solve(
        self, *, start: Table | None = None, tol: float = 1e-9, max_iter: int = _MAX_ITER
    ) -> Solution:
        """Solve all rows to a relative error of the sums of their plans.

        With the potentials of similar rows as a start the final epsilon is tried at once, and rows
        for which that fails begin from nothing.
        """
        solution = self._solve(start, tol, max_iter)
        left = np.flatnonzero((solution.error > tol) & np.isfinite(solution.error))
        if left.size and max_iter >= _MAX_ITER:
            again = self._solve_slowly(left, tol)
            better = again.error < solution.error[left]
            solution.potentials[left[better]] = again.potentials[better]
            solution.error[left] = np.minimum(solution.error[left], again.error)
            solution.n_iter[left] += again.n_iter
        return solution

    def _solve(self, start: Table | None, tol: float, max_iter: int) -> Solution:
        """Solve all rows, as :meth:`solve` does, but do not try those again that fail."""
        d, m = self.rows.x.shape[0], self.rows.y.shape[1]
        if start is None and self.cost is None and m > _FEW_TARGETS:
            start = self._start(tol, max_iter)
        potentials = np.zeros((d, m)) if start is None else np.array(start, np.float64, order="C")
        errors, counts = np.empty(d), np.empty(d, np.int64)
        task = Task(self.epsilon, float(tol), int(max_iter))

        rows = self._sorted()[0].rows if m > _FEW_TARGETS else self.rows

        def solve(first: int, last: int) -> None:
            costs, _ = self._tables(first, last)
            solve_block(
                *(rows, costs, potentials, start is not None, task),
                *(errors, counts, first, last),
            )

        run_blocks(solve, self._blocks())
        return Solution(potentials, errors, counts, float(tol))

    def _solve_slowly(self, which: NDArray[np.int64], tol: float) -> Solution:
        """Solve some rows through many values of epsilon, each of them well."""
        x = self.rows.x[which]
        y, a, b = (part if len(part) == 1 else part[which] for part in self.rows[1:])
        span = max(float(x.max()), float(y.max())) - min(float(x.min()), float(y.min()))
        levels = 2.0 * np.log2(span) - np.log2(self.epsilon) if span > 0.0 else 1.0
        n_levels = int(np.clip(levels, 1, _MAX_LEVELS))
        start = np.zeros((which.size, y.shape[1]))
        for k in range(n_levels, -1, -1):
            level = RowTransport(x, y, a, b, epsilon=self.epsilon * 2.0**k, cost=self.cost)
            found = level._solve(start, tol if k == 0 else _LEVEL_TOL, _LEVEL_BUDGET)
            start = found.potentials
        return found

    def average_targets(self, potentials: Table, q: Table) -> Table:
        """Return ``P q / a`` (d, n): for each value, the mean of ``q`` (m) over its targets."""
        return self._average(potentials, q, of_rows=True)

    def average_values(self, potentials: Table, z: Table) -> Table:
        """Return ``P' z / b`` (d, m): for each target, the mean of ``z`` (n) over its values."""
        return self._average(potentials, z, of_rows=False)

    def pull_targets(self, potentials: Table, q: Table, G: Table) -> Gradients:
        """Return the derivatives of a function of :meth:`average_targets` of gradient ``G``."""
        return self._pull(potentials, q, G, of_rows=True)

    def pull_values(self, potentials: Table, z: Table, G: Table) -> Gradients:
        """Return the derivatives of a function of :meth:`average_values` of gradient ``G``."""
        return self._pull(potentials, z, G, of_rows=False)

    def extend(self, potentials: Table) -> Table:
        """Return the potentials ``f`` (d, n) of the values, of a squared cost."""
        out = np.empty_like(self.rows.x)
        run_blocks(
            lambda *block: extend_block(self.rows, potentials, self.epsilon, out, *block),
            self._blocks(),
        )
        return out

    def _start(self, tol: float, max_iter: int) -> Table | None:
        """Return where many targets start from: the solution of nodes, or of a larger epsilon."""
        if (nodes := self._nodes()) is not None:
            found = nodes.solve(tol=_NODE_TOL * tol, max_iter=max_iter)
            return nodes.extend(found.potentials)
        x, y, a, b = self.rows
        if _COARSE_FACTOR * self.epsilon > float(np.ptp(y)) ** 2:
            return None
        coarser = RowTransport(x, y, a, b, epsilon=_COARSE_FACTOR * self.epsilon)
        return coarser.solve(tol=max(tol, _COARSE_TOL)).potentials

    def _sorted(self) -> tuple[RowTransport, NDArray[np.int64]]:
        """Return this transport with the values of each row in increasing order, and that order."""
        x, y, a, b = self.rows
        order = np.argsort(x, axis=1)
        same = RowTransport(
            *(_take(x, order), y, _take(a, order), b), epsilon=self.epsilon, cost=self.cost
        )
        return same, order

    def _nodes(self) -> RowTransport | None:
        """Return the transport from the targets to nodes that stand for the values.

        It is worth it if the targets are many and the nodes few.
        """
        x, y, a, b = self.rows
        if self.cost is not None or y.shape[1] <= _FEW_TARGETS:
            return None
        breadth = breadth_of(y, b, self.epsilon)
        most = count_nodes(x, self.epsilon, breadth)
        nodes, masses = np.empty((len(x), most)), np.empty((len(x), most))
        run_blocks(
            lambda *block: reduce_block(x, a, self.epsilon, breadth, nodes, masses, *block),
            self._blocks(),
        )
        used = int((masses > 0.0).sum(axis=1).max())
        if used > _MAX_NODE_SHARE * y.shape[1]:
            return None
        values = np.broadcast_to(y, (len(x), y.shape[1]))
        return RowTransport(values, nodes[:, :used], b, masses[:, :used], epsilon=self.epsilon)

    def _average(self, potentials: Table, numbers: Table, *, of_rows: bool) -> Table:
        numbers = np.ascontiguousarray(numbers, dtype=np.float64)
        size = self.rows.x.shape[1] if of_rows else self.rows.y.shape[1]
        out = np.empty((self.rows.x.shape[0], size))

        def average(first: int, last: int) -> None:
            costs, _ = self._tables(first, last)
            average_block(
                *(self.rows, costs, potentials, self.epsilon, of_rows, numbers, out),
                *(first, last),
            )

        run_blocks(average, self._blocks())
        return out

    def _pull(self, potentials: Table, numbers: Table, G: Table, *, of_rows: bool) -> Gradients:
        numbers = np.ascontiguousarray(numbers, dtype=np.float64)
        G = np.ascontiguousarray(G, dtype=np.float64)
        (d, n), m = self.rows.x.shape, self.rows.y.shape[1]
        out = np.empty((d, n)), np.empty((d, n)), np.empty((d, m)), np.empty((d, numbers.shape[1]))

        nodes, node_potentials = _NO_ROWS, np.empty((0, 0))
        reduced = self._nodes()
        if reduced is None and m > _FEW_TARGETS and not _is_sorted(self.rows.x):
            return self._pull_sorted(potentials, numbers, G, of_rows=of_rows)
        if reduced is not None:
            nodes = reduced.rows
            values = RowTransport(nodes.y, nodes.x, nodes.b, nodes.a, epsilon=self.epsilon)
            node_potentials = values.extend(potentials)

        def pull(first: int, last: int) -> None:
            costs, slopes = self._tables(first, last, with_slopes=True)
            pull_block(
                *(self.rows, costs, slopes, potentials, nodes, node_potentials, self.epsilon),
                *(of_rows, numbers, G, out, first, last),
            )

        run_blocks(pull, self._blocks())
        return Gradients(*out)

    def _pull_sorted(
        self, potentials: Table, numbers: Table, G: Table, *, of_rows: bool
    ) -> Gradients:
        """Pull with the values in order, which makes the couplings of many targets few."""
        same, order = self._sorted()
        if of_rows:
            found = same._pull(potentials, numbers, _take(G, order), of_rows=True)
        else:
            found = same._pull(potentials, _take(numbers, order), G, of_rows=False)
        back = np.argsort(order, axis=1)
        by_numbers = found.numbers if of_rows else _take(found.numbers, back)
        return Gradients(_take(found.x, back), _take(found.a, back), found.b, by_numbers)

    def costs(self, first: int, last: int) -> Table:
        """Return the costs of some rows, (rows, n, m)."""
        return self._compute(SQUARED if self.cost is None else self.cost, "value", first, last)

    def slopes(self, first: int, last: int) -> Table:
        """Return the derivatives of the costs of some rows with respect to ``x``, (rows, n, m)."""
        return self._compute(SQUARED if self.cost is None else self.cost, "slope", first, last)

    def _compute(self, cost: Cost, what: str, first: int, last: int) -> Table:
        x, y = self.rows.x[first:last, :, None], self.rows.y
        y = (y[first:last] if len(y) > 1 else y)[:, None, :]
        shape = last - first, x.shape[1], y.shape[2]
        with np.errstate(over="ignore"):  # what is infinite is refused
            return read_table(getattr(cost, what)(x, y), shape, what)

    def _tables(self, first: int, last: int, *, with_slopes: bool = False) -> tuple[Table, Table]:
        """Return the costs of some rows and their slopes, (rows, m, n), if they are one's own."""
        if self.cost is None:
            return _NO_TABLES, _NO_TABLES
        both = self.costs(first, last), self.slopes(first, last) if with_slopes else _NO_TABLES
        costs, slopes = (np.ascontiguousarray(table.transpose(0, 2, 1)) for table in both)
        return costs, slopes

    def _blocks(self) -> Blocks:
        """Cut the rows into blocks, by their size alone."""
        (d, n), m = self.rows.x.shape, self.rows.y.shape[1]
        return cut(d, int(np.clip(_BLOCK_SIZE // (n * m), _MIN_ROWS, _MAX_ROWS)))


def without_traces(a: Table, b: Table) -> Table:
    """Return the weights of targets, zero where they are too small to change anything else.

    A target takes from a value at most its own weight. If that is nothing beside all values, the
    plan of the others is the same without it, and what the target itself gets is the limit for a
    weight of zero, which needs no step that such small numbers would spoil.
    """
    least = float(np.min(a, where=a > 0.0, initial=np.inf))
    traces = (b > 0.0) & (b < _TRACE_SHARE * least / b.shape[1])
    return np.where(traces, 0.0, b) if traces.any() else b


def _take(rows: Table, order: NDArray[np.int64]) -> Table:
    """Return the entries of rows, or of the one that all share, in the order of each row."""
    taken: Table = rows[0][order] if len(rows) == 1 else np.take_along_axis(rows, order, axis=1)
    return taken


def _is_sorted(rows: Table) -> bool:
    return bool((np.diff(rows, axis=1) >= 0.0).all())
