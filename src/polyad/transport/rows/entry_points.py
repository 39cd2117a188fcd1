"""Numba kernels that treat a block of rows: solve it, and average with its plans.

Arguments that are the same for all rows have a single one. ``costs`` are the costs of the block's
rows where they were computed beforehand, ``(rows, m, n)``, and have no rows for the squared cost;
``slopes`` are their derivatives with respect to ``x``, likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyad.core.compiled import kernel, part
from polyad.transport.rows.kernels import (
    gibbs,
    row_sums,
    squared_table,
)
from polyad.transport.rows.newton import (
    N_BINS,
    Task,
    Workspace,
    complete_potentials,
    make_workspace,
    newton,
    set_weights,
    solve_cold,
    solve_cold_table,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Table = NDArray[np.float64]
    Tables = NDArray[np.float64]


class Rows(NamedTuple):
    """Rows of values with their targets and weights; one row of these if all share it."""

    x: Table
    y: Table
    a: Table
    b: Table


@part
def row_of(shared: Table, row: int) -> int:
    """Return where the numbers of a row are, which may be the same for all rows."""
    return row if shared.shape[0] > 1 else 0


@part
def _fill_table(rows: Rows, costs: Tables, row: int, start: int, table: Table) -> None:
    if costs.shape[0] > 0:
        for k in range(table.shape[0]):  # an assignment of arrays takes Numba seconds to compile
            for i in range(table.shape[1]):
                table[k, i] = costs[row - start, k, i]
    else:
        squared_table(rows.x[row], rows.y[row_of(rows.y, row)], table)


@kernel
def solve_block(
    rows: Rows,
    costs: Tables,
    potentials: Table,
    is_warm: bool,
    task: Task,
    errors: Vector,
    counts: NDArray[np.int64],
    start: int,
    stop: int,
) -> None:
    """Solve rows; ``potentials`` holds where they start if ``is_warm``, and gets the solutions."""
    n, m = rows.x.shape[1], rows.y.shape[1]
    work, small = make_workspace(m, n), make_workspace(m, N_BINS)
    for row in range(start, stop):
        a, b, g = rows.a[row_of(rows.a, row)], rows.b[row_of(rows.b, row)], potentials[row]
        _fill_table(rows, costs, row, start, work.table)
        error, count = np.inf, 0
        if is_warm:
            error, count = newton(work, a, b, g, task)
        if not error <= task.tol:
            if costs.shape[0] > 0:
                error, more = solve_cold_table(a, b, g, task, work)
            else:
                error, more = solve_cold(
                    rows.x[row], rows.y[row_of(rows.y, row)], a, b, g, task, work, small
                )
            count += more
        complete_potentials(work, b, g, task.epsilon)
        errors[row], counts[row] = error, count


@part
def make_densities(
    rows: Rows, costs: Tables, g: Vector, epsilon: float, row: int, start: int, work: Workspace
) -> None:
    """Fill ``work.K`` with the densities P_ij / (a_i b_j).

    Values and targets without weight have them too.
    """
    b, K = rows.b[row_of(rows.b, row)], work.K
    m, n = K.shape
    _fill_table(rows, costs, row, start, work.table)
    set_weights(b, work)
    gibbs(work.table, work.log_b, work.scale, g, 1.0 / epsilon, K, work.top)
    row_sums(K, work.scale, work.shares)
    for i in range(n):
        work.shares[i] = 1.0 / work.shares[i]
    for j in range(m):
        level = 1.0 / b[j] if b[j] > 0.0 else 1.0
        for i in range(n):
            K[j, i] *= level * work.shares[i]


@kernel
def average_block(
    rows: Rows,
    costs: Tables,
    potentials: Table,
    epsilon: float,
    of_rows: bool,
    numbers: Table,
    out: Table,
    start: int,
    stop: int,
) -> None:
    """Average ``numbers`` with the plan: over the targets of each value, or the other way."""
    n, m = rows.x.shape[1], rows.y.shape[1]
    work = make_workspace(m, n)
    for row in range(start, stop):
        a, b = rows.a[row_of(rows.a, row)], rows.b[row_of(rows.b, row)]
        make_densities(rows, costs, potentials[row], epsilon, row, start, work)
        given = numbers[row_of(numbers, row)]
        if of_rows:
            for j in range(m):
                work.step[j] = b[j] * given[j]
            row_sums(work.K, work.step, out[row])
        else:
            for j in range(m):
                total, mass = 0.0, 0.0
                for i in range(n):
                    total += work.K[j, i] * (a[i] * given[i])
                    mass += work.K[j, i] * a[i]
                # The mass is one where the rows are solved; dividing keeps averages averages.
                out[row, j] = total / mass


@kernel
def extend_block(
    rows: Rows, potentials: Table, epsilon: float, out: Table, start: int, stop: int
) -> None:
    """Fill ``out`` with the potentials of the values, from those of the targets; squared cost."""
    n, m = rows.x.shape[1], rows.y.shape[1]
    work = make_workspace(m, n)
    for row in range(start, stop):
        x, b = rows.x[row], rows.b[row_of(rows.b, row)]
        squared_table(x, rows.y[row_of(rows.y, row)], work.table)
        set_weights(b, work)
        gibbs(work.table, work.log_b, work.scale, potentials[row], 1.0 / epsilon, work.K, work.top)
        row_sums(work.K, work.scale, work.shares)
        for i in range(n):
            # The table has left the square of the value out.
            out[row, i] = x[i] * x[i] - epsilon * (work.top[i] + np.log(work.shares[i]))
