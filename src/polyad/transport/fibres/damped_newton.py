"""Numba kernels that solve one fibre: damped Newton steps, continuation, Sinkhorn steps.

A fibre is solved by Newton's method from the start it is given. Where that fails, the problem is
solved for a larger ``epsilon`` first, which is lowered step by step; each solution starts the
next. Where that fails too, Sinkhorn steps with the best shift, wholly in the log domain, do
what they can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import owning_part, part
from polyad.core.vector_math import fast_exp, fast_log
from polyad.transport.fibres.kernels import (
    BASE,
    INVERSE,
    LOG_X,
    MARGINALS,
    NOTHING,
    REFERENCE,
    ROUNDING,
    SPARE,
    STEP,
    SUMS,
    TRIAL,
    TRIAL_H,
    WEIGHTS,
    A,
    H,
    Point,
    Settings,
    Task,
    absorb_rows,
    add_rows,
    evaluate,
    gather_rows,
    newton_direction,
    round_up,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# How far ``a`` may be from its reference before the kernel rows are made again.
_MAX_DISTANCE = 100.0
# How much of the predicted decrease of the merit a step must achieve, how a step is shortened,
# and how often. A merit is only known up to rounding.
_ARMIJO = 1e-4
_STEP_FACTOR = 0.3
_MAX_SHORTENINGS = 14
_MERIT_ROUNDING = 1e-13
# Continuation begins where ``rho max(1, lambda)`` is this, and ``rho`` grows by this factor; the
# tolerance on the way.
_FIRST_STIFFNESS = 20.0
_RHO_GROWTH = 4.0
_COARSE_TOL = 1e-2
# Sinkhorn steps that bring back to where Newton's method has numbers in range.
_RESCUE_STEPS: Any = np.int64(5)
_FIRST_ROW: Any = np.int64(0)


# How the kernel rows are made: see refer().
COPIED, ABSORBED = np.int64(0), np.int64(1)


@part
def refer(
    task: Task, grid: Vector, unknowns: Vector, at: np.int64, form: np.int64
) -> tuple[float, np.int64]:
    """Make kernel rows and ``base`` for a row of unknowns; return the unit and the form.

    Rows of ``exp(-C / epsilon)`` are copied while the unknowns are near each other, so that one
    number is a reference for all of them; otherwise they are the reference themselves.
    """
    n, kappa = task.settings.n, 1.0 / (task.settings.tau + 1.0)
    low, high = np.inf, -np.inf
    for k in range(n):
        low, high = min(low, unknowns[at, k]), max(high, unknowns[at, k])
    marginal = task.marginal
    if form == COPIED and high - low <= _MAX_DISTANCE:
        for k in range(n):
            unknowns[REFERENCE, k] = high
        gather_rows(task.kernels.double, task.rows, _FIRST_ROW, n, grid)
        for i in range(grid.shape[1]):
            grid[BASE, i] = marginal[i] - task.highest
        # The -1 is that of the paper's kernel exp(-rho C - 1).
        return task.highest + kappa * (high - 1.0), form
    for k in range(n):
        unknowns[REFERENCE, k] = unknowns[at, k]
    absorb_rows(task, grid, unknowns)
    level = -np.inf
    for i in range(grid.shape[1]):
        grid[BASE, i] = marginal[i] + kappa * (grid[SPARE, i] - 1.0)
        if marginal[i] > NOTHING:
            level = max(level, grid[BASE, i])
    for i in range(grid.shape[1]):
        grid[BASE, i] = grid[BASE, i] - level if marginal[i] > NOTHING else NOTHING
    return level, ABSORBED


@part
def _farthest(unknowns: Vector, n: int) -> float:
    distance = 0.0
    for k in range(n):
        distance = max(distance, abs(unknowns[TRIAL, k] - unknowns[REFERENCE, k]))
    return distance


@part
def newton(
    task: Task, grid: Vector, unknowns: Vector, form: np.int64, tol: float, budget: int
) -> tuple[Point, int]:
    """Improve ``a`` by damped Newton steps; return the last evaluation and their number."""
    settings = task.settings
    n = settings.n
    level, form = refer(task, grid, unknowns, A, form)
    point = evaluate(settings, grid, unknowns, A, level)
    level = point.level
    _accept(unknowns, n, A)
    used = 1
    while point.is_sound and point.residual > max(tol, point.rounding) and used < budget:
        slope = newton_direction(settings, grid, unknowns)
        if not slope < np.inf:
            break
        length, new = 1.0, point
        for attempt in range(_MAX_SHORTENINGS + 1):
            _move(settings, unknowns, length if attempt < _MAX_SHORTENINGS else 0.0)
            if _farthest(unknowns, n) > _MAX_DISTANCE:
                level, form = refer(task, grid, unknowns, TRIAL, form)
            new = evaluate(settings, grid, unknowns, TRIAL, level)
            level = new.level
            used += 1
            if new.is_sound and _is_better(point, new, length * slope):
                break
            length *= _STEP_FACTOR
        point = new
        _accept(unknowns, n, TRIAL)
    return point, used


@part
def _move(settings: Settings, unknowns: Vector, length: float) -> None:
    """Put the end of a Newton step into ``trial``; of length zero, that of a Sinkhorn step."""
    phi = settings.tau / (settings.tau + 1.0)
    for k in range(settings.n):
        if length > 0.0:
            unknowns[TRIAL, k] = unknowns[A, k] + length * unknowns[STEP, k]
        else:
            unknowns[TRIAL, k] = unknowns[A, k] - phi * unknowns[H, k]


@part
def _accept(unknowns: Vector, n: int, at: np.int64) -> None:
    for k in range(n):
        unknowns[A, k] = unknowns[at, k]
        unknowns[H, k] = unknowns[TRIAL_H, k]


@part
def _is_better(old: Point, new: Point, predicted: float) -> bool:
    if new.residual < 0.5 * old.residual:
        return True
    bound = old.merit + _ARMIJO * predicted + _MERIT_ROUNDING * (1.0 + abs(old.merit))
    return predicted < 0.0 and new.merit <= bound


@owning_part
def anneal(
    task: Task, grid: Vector, unknowns: Vector, penalty: float, tol: float, budget: int
) -> tuple[Point, int]:
    """Solve for a large epsilon from ``log x``, then lower it; return as :func:`newton` does."""
    settings = task.settings
    n, rho = settings.n, settings.tau / penalty
    for k in range(n):
        unknowns[A, k] = unknowns[LOG_X, k]
    stiffness = min(1.0, _FIRST_STIFFNESS / (max(1.0, penalty) * rho))
    total, marginal = 0, np.empty_like(task.marginal)
    while True:
        last = stiffness == 1.0
        highest = _scale(task, stiffness, marginal)
        gentle = Settings(n, settings.tau * stiffness, stiffness, True)
        stage = Task(task.kernels, task.rows, marginal, highest, gentle)
        goal = tol if last else max(tol, _COARSE_TOL)
        point, used = newton(stage, grid, unknowns, ABSORBED, goal, budget)
        total += used
        if not point.is_sound:
            point = sinkhorn(stage, grid, unknowns, tol, _RESCUE_STEPS)
            point, used = newton(stage, grid, unknowns, ABSORBED, goal, budget)
            total += used + _RESCUE_STEPS
        if last:
            return point, total
        growth = min(_RHO_GROWTH, 1.0 / stiffness)
        for k in range(n):
            unknowns[A, k] *= growth
        stiffness = stiffness * growth if growth == _RHO_GROWTH else 1.0


@part
def _scale(task: Task, stiffness: float, out: Vector) -> float:
    """Fill ``out`` with ``phi log xhat`` for a smaller ``rho``; return its largest entry."""
    tau = task.settings.tau
    factor = tau * stiffness / (tau * stiffness + 1.0) * (tau + 1.0) / tau
    for i in range(out.size):
        out[i] = factor * task.marginal[i] if task.marginal[i] > NOTHING else NOTHING
    return factor * task.highest


@part
def sinkhorn(task: Task, grid: Vector, unknowns: Vector, tol: float, budget: int) -> Point:
    """Improve ``a`` by Sinkhorn steps, each with the best shift, wholly in the log domain."""
    phi = task.settings.tau / (task.settings.tau + 1.0)
    point = evaluate_logs(task, grid, unknowns)
    for _ in range(budget):
        if point.residual <= max(tol, point.rounding):
            break
        for k in range(task.settings.n):
            unknowns[A, k] -= phi * unknowns[TRIAL_H, k]
        point = evaluate_logs(task, grid, unknowns)
    return point


@part
def evaluate_logs(task: Task, grid: Vector, unknowns: Vector) -> Point:
    """Evaluate at ``a`` as ``kernels.evaluate`` does, for numbers of any range.

    ``inverse`` gets ``log u``; ``q`` stays as it is, only its logarithm is known to exist.
    """
    n, tau = task.settings.n, task.settings.tau
    kappa = 1.0 / (tau + 1.0)
    level, _ = refer(task, grid, unknowns, A, ABSORBED)
    for k in range(round_up(n)):
        unknowns[WEIGHTS, k] = 1.0
    add_rows(grid, unknowns, n, WEIGHTS, SUMS)
    for i in range(grid.shape[1]):
        # K v = exp(log_sum + m - 1), where spare is the m of absorb_rows; u = r / (K v).
        log_sum = fast_log(grid[SUMS, i])
        log_r = grid[BASE, i] + kappa * log_sum
        grid[INVERSE, i] = log_r + level - log_sum - grid[SPARE, i] + 1.0
        grid[MARGINALS, i] = fast_exp(log_r)
    supply, demand = -np.inf, -np.inf
    for k in range(n):
        unknowns[TRIAL_H, k] = unknowns[A, k] + _log_column(task, grid, k)
        supply = np.logaddexp(supply, unknowns[TRIAL_H, k])
        demand = np.logaddexp(demand, unknowns[LOG_X, k] - unknowns[A, k] / tau)
    shift = (demand - supply) / (kappa + 1.0 / tau) if task.settings.shifts else 0.0
    residual, size = 0.0, 0.0
    for k in range(n):
        unknowns[A, k] += shift
        unknowns[TRIAL_H, k] += kappa * shift - unknowns[LOG_X, k] + unknowns[A, k] / tau
        residual = max(residual, abs(unknowns[TRIAL_H, k]))
        size = max(size, abs(unknowns[A, k]))
    level += kappa * shift
    merit = supply + kappa * shift
    return Point(level, merit, residual * tau * kappa, ROUNDING * size, True)


@part
def _log_column(task: Task, grid: Vector, k: int) -> float:
    """Return ``log (K u)_k``, for ``log u`` in ``inverse``."""
    cost, row, stiffness = task.kernels.scaled, np.uint64(task.rows[k]), task.settings.stiffness
    largest = -np.inf
    for i in range(grid.shape[1]):
        grid[SPARE, i] = grid[INVERSE, i] - stiffness * cost[row, i]
        largest = max(largest, grid[SPARE, i])
    total = 0.0
    for i in range(grid.shape[1]):
        total += fast_exp(grid[SPARE, i] - largest)
    return float(largest + np.log(total) - 1.0)
