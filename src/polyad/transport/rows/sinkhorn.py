"""Averages with the plan after a fixed number of Sinkhorn iterations, and their derivatives.

Algorithm 1 of the paper, in logarithms: from ``u = 1``, repeatedly ``v = b / K'u`` and ``u = a / K
v`` with ``K = exp(-C / epsilon)``. Averages over targets use the plan whose sums over targets are
exact, ``diag(u) K diag(v)`` with the last of both; averages over values use the one whose sums over
values are, with the ``u`` before the last. Both keep the order of the values after any number of
iterations (Proposition 2.1), converged or not.

Derivatives go back through the iterations. Of these only the vectors are kept, not the plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.core.threads import Blocks, cut, run_blocks
from polyad.transport.rows.costs import read_table
from polyad.transport.rows.transport import Gradients

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.transport.rows.transport import RowTransport

    Table = NDArray[np.float64]

# Entries of plans that are treated at once.
_BLOCK_SIZE = 1 << 20
# Of densities of what has no weight, which nothing bounds: they are multiplied by zero.
_LARGEST_EXPONENT = 600.0


class SinkhornPlan:
    """The plans of the rows of a transport after ``n_iter`` iterations."""

    #: Iterations always begin from nothing.
    potentials: None = None

    def __init__(self, transport: RowTransport, n_iter: int) -> None:
        self.transport = transport
        self.n_iter = n_iter

    def average_targets(self, q: Table) -> Table:
        """Return ``P q / a`` (d, n) with the last plan."""
        out = np.empty(self.transport.rows.x.shape)

        def average(first: int, last: int) -> None:
            block = _Unrolled(self.transport, self.n_iter, first, last)
            plan = block.b[:, None, :] * block.row_density(self.n_iter)
            out[first:last] = (plan * block.part(q)[:, None, :]).sum(axis=2)

        run_blocks(average, self._blocks())
        return out

    def average_values(self, z: Table) -> Table:
        """Return ``P' z / b`` (d, m) with the plan before the last update of ``u``."""
        out = np.empty((len(self.transport.rows.x), self.transport.rows.y.shape[1]))

        def average(first: int, last: int) -> None:
            block = _Unrolled(self.transport, self.n_iter, first, last)
            plan = block.start_weights(self.n_iter) * block.column_density(self.n_iter)
            out[first:last] = (plan * block.part(z)[:, :, None]).sum(axis=1)

        run_blocks(average, self._blocks())
        return out

    def pull_targets(self, q: Table, G: Table) -> Gradients:
        """Return the derivatives of a function of :meth:`average_targets` of gradient ``G``."""
        return self._pull(q, G, of_rows=True)

    def pull_values(self, z: Table, G: Table) -> Gradients:
        """Return the derivatives of a function of :meth:`average_values` of gradient ``G``."""
        return self._pull(z, G, of_rows=False)

    def _pull(self, numbers: Table, G: Table, *, of_rows: bool) -> Gradients:
        (d, n), m = self.transport.rows.x.shape, self.transport.rows.y.shape[1]
        out = Gradients(
            np.empty((d, n)), np.empty((d, n)), np.empty((d, m)), np.empty((d, numbers.shape[1]))
        )

        def pull(first: int, last: int) -> None:
            block = _Unrolled(self.transport, self.n_iter, first, last)
            pull = block.pull_targets if of_rows else block.pull_values
            out.numbers[first:last] = pull(block.part(numbers), G[first:last])
            slopes = self.transport.slopes(first, last)
            out.x[first:last] = (block.by_cost * slopes).sum(axis=2) / self.transport.epsilon
            out.a[first:last], out.b[first:last] = block.by_a, block.by_b

        run_blocks(pull, self._blocks())
        return out

    def _blocks(self) -> Blocks:
        (d, n), m = self.transport.rows.x.shape, self.transport.rows.y.shape[1]
        return cut(d, max(1, _BLOCK_SIZE // (n * m)))


class _Unrolled:
    """Iterations of a block of rows, and gradients that go back through them.

    ``phi[k]`` is the logarithm of ``v / b`` after k iterations, and ``tops[k]`` plus ``logs[k]``
    that of ``a / u``, for costs as in :func:`_start_and_costs`. Their sum is never taken: beside a
    large cost the second would be lost, and with it how a value is shared among its targets.
    Gradients gather in ``by_a``, ``by_b`` and ``by_cost``, which is with respect to ``C /
    epsilon``.
    """

    def __init__(self, transport: RowTransport, n_iter: int, first: int, last: int) -> None:
        self.first, self.last = first, last
        rows = transport.rows
        self.a, self.b = self.part(rows.a), self.part(rows.b)
        self.start, self.C = _start_and_costs(transport, first, last)
        self.phi: list[Table] = [np.zeros((1, self.C.shape[2]))]
        self.tops: list[Table] = [np.empty((0, 0, 0))]
        self.logs: list[Table] = [np.empty((0, 0, 0))]
        for k in range(1, n_iter + 1):
            top, log = _log_sum(self._log_shares(k - 1), self.start_weights(k), 1)
            self.phi.append(self.phi[k - 1] - (top + log)[:, 0, :])
            top, log = _log_sum(self.phi[k][:, None, :] - self.C, self.b[:, None, :], 2)
            self.tops.append(top)
            self.logs.append(log)

    def _log_shares(self, k: int) -> Table:
        """Return the logarithms of the row densities after k iterations, first of the kernel."""
        if k == 0:
            return self.start[:, :, None] - self.C
        shares: Table = (self.phi[k][:, None, :] - self.C - self.tops[k]) - self.logs[k]
        return shares

    def part(self, shared: Table) -> Table:
        """Return the rows of the block, or the one that all share."""
        return shared[self.first : self.last] if len(shared) > 1 else shared

    def start_weights(self, k: int) -> Table:
        """Return what the densities of update k of ``v`` are weighted with: ``u`` starts at one."""
        return self.a[:, :, None] if k > 1 else np.ones((1, 1, 1))

    def row_density(self, k: int) -> Table:
        """Return the densities after update k of ``u``: their means over targets are one."""
        return _densities(self.phi[k][:, None, :] - self.C, self.b[:, None, :], 2)

    def column_density(self, k: int) -> Table:
        """Return the densities after update k of ``v``, before that of ``u``, likewise."""
        return _densities(self._log_shares(k - 1), self.start_weights(k), 1)

    def pull_targets(self, q: Table, G: Table) -> Table:
        """Gather gradients of averages over targets; return that with respect to ``q``."""
        self._clear()
        k = len(self.phi) - 1
        density, b = self.row_density(k), self.b[:, None, :]
        mean = (b * density * q[:, None, :]).sum(axis=2, keepdims=True)
        terms = density * G[:, :, None] * (q[:, None, :] - mean)
        self.by_b += terms.sum(axis=1)
        self.by_cost -= b * terms
        self._back_to_start(k, (b * terms).sum(axis=1))
        by_q: Table = (b * density * G[:, :, None]).sum(axis=1)
        return by_q

    def pull_values(self, z: Table, G: Table) -> Table:
        """Gather gradients of averages over values; return that with respect to ``z``."""
        self._clear()
        k = len(self.phi) - 1
        density, weight = self.column_density(k), self.start_weights(k)
        mean = (weight * density * z[:, :, None]).sum(axis=1, keepdims=True)
        terms = density * G[:, None, :] * (z[:, :, None] - mean)
        self.by_cost -= weight * terms
        if k > 1:
            self.by_a += terms.sum(axis=2)
            self._back_to_start(k - 1, self._through_u(k - 1, (weight * terms).sum(axis=2)))
        by_z: Table = (weight * density * G[:, None, :]).sum(axis=2)
        return by_z

    def _clear(self) -> None:
        rows = len(self.C)
        self.by_a, self.by_b = np.zeros((rows, self.C.shape[1])), np.zeros((rows, self.C.shape[2]))
        self.by_cost = np.zeros_like(self.C)

    def _back_to_start(self, k: int, by_phi: Table) -> None:
        """Take a gradient with respect to ``phi[k]`` through all that it was made of."""
        while True:
            terms = self.column_density(k) * by_phi[:, None, :]
            self.by_cost += self.start_weights(k) * terms
            if k == 1:
                return
            self.by_a -= terms.sum(axis=2)
            by_phi = self._through_u(k - 1, -self.a * terms.sum(axis=2))
            k -= 1

    def _through_u(self, k: int, by_psi: Table) -> Table:
        """Return the gradient with respect to ``phi[k]`` from that with respect to ``psi[k]``."""
        terms = self.row_density(k) * by_psi[:, :, None]
        self.by_cost += self.b[:, None, :] * terms
        self.by_b -= terms.sum(axis=1)
        by_phi: Table = -self.b * terms.sum(axis=1)
        return by_phi


def _densities(exponents: Table, weights: Table, axis: int) -> Table:
    """Return exponentials whose weighted sums along an axis are one.

    What the last update gave is not used: where costs are large, it is rounded to more than that.
    """
    with np.errstate(divide="ignore"):
        top = (exponents + np.log(weights)).max(axis=axis, keepdims=True)
    density: Table = np.exp(np.minimum(exponents - top, _LARGEST_EXPONENT))
    density /= (weights * density).sum(axis=axis, keepdims=True)
    return density


def _log_sum(exponents: Table, weights: Table, axis: int) -> tuple[Table, Table]:
    """Return the largest exponents that weigh along an axis, and by what weighted sums exceed them.

    Weights are no part of the exponents, beside which they would be rounded away.
    """
    weighing = np.where(weights > 0.0, exponents, -np.inf)
    top: Table = weighing.max(axis=axis, keepdims=True)
    return top, np.log((weights * np.exp(weighing - top)).sum(axis=axis, keepdims=True))


def _start_and_costs(transport: RowTransport, first: int, last: int) -> tuple[Table, Table]:
    """Return the logarithms of the first ``u`` (rows, n) and ``C / epsilon`` (rows, n, m).

    Costs may be less by what depends on the value or on the target alone, if ``u`` starts with the
    former: the plans are the same. Beside the square of a distant value, what it costs to bring it
    to one target rather than another would be rounded away, and with it the order of the values.
    So ``(x - y)^2`` is ``-2 (x - o) y`` here, and ``u`` starts at ``exp(-(x^2 - o^2) / epsilon)``,
    where ``o`` is the value of the row that is nearest to the middle of the targets.
    """
    if transport.cost is not None:
        C = transport.costs(first, last) / transport.epsilon
        return np.zeros(C.shape[:2]), C
    x, y = transport.rows.x[first:last], transport.rows.y
    y = y[first:last] if len(y) > 1 else y
    nearest = np.take_along_axis(x, np.abs(x).argmin(axis=1)[:, None], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # what is infinite is refused
        squares = (x - nearest) * (x + nearest) / transport.epsilon
        products = (x - nearest)[:, :, None] * (-2.0 / transport.epsilon * y)[:, None, :]
    start = -read_table(squares, squares.shape, "value")
    return start, read_table(products, products.shape, "value")
