"""Numba kernels that transport a block of fibres: exactly, or by the published iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.compiled import kernel, owning_part, part
from polyad.core.vector_math import fast_exp, fast_log
from polyad.transport.fibres.damped_newton import (
    ABSORBED,
    COPIED,
    anneal,
    evaluate_logs,
    newton,
    refer,
    sinkhorn,
)
from polyad.transport.fibres.kernels import (
    INVERSE,
    LOG_X,
    MARGINALS,
    NOTHING,
    SPARE,
    SUMS,
    TRIAL_H,
    WEIGHTS,
    A,
    Fibres,
    Kernels,
    Point,
    Results,
    Rules,
    Settings,
    Task,
    add_rows,
    evaluate,
    log_marginal,
    make_grid,
    make_unknowns,
    refer_to_data,
    round_up,
    row_power,
    unsound,
)
from polyad.transport.fibres.mixed_precision import (
    largest_entry,
    scale,
    smallest_entry,
    solve_in_mixed_precision,
    take_logs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# How a fibre ended: at once, after a detour, or not where it should; or not at all so far.
SOLVED, FALLBACK, UNSOLVED, PENDING = 0, 1, 2, 3
# Fibres of more nonzeros begin with Sinkhorn steps for as long as each halves the residual, and
# those of more than the second number have nothing but them: Newton's matrix would be too large.
_MANY_NONZEROS = 64
_MAX_NEWTON_NONZEROS = 4096
_MAX_CONTRACTIONS = 40
# Without a start, continuation is quicker than Newton's method alone beyond this ``tau``.
_STIFF_TAU = 1000.0
# How much more evaluations continuation may take at each stage, and how many Sinkhorn steps follow.
_BUDGET_FACTOR = 5
_LAST_BUDGET: Any = np.int64(500)


@kernel
def usual_block(
    kernels: Kernels,
    fibres: Fibres,
    xhat: Vector,
    rules: Rules,
    block: tuple[int, int],
    results: Results,
) -> None:
    """Solve the fibres that need no care to the tolerance, and leave the others ``PENDING``.

    A ``log_v`` that is NaN is no start.
    """
    most = min(_most(fibres, block), _MANY_NONZEROS)
    fine, rough = make_grid(most, kernels.scaled), make_grid(most, kernels.single)
    unknowns = make_unknowns(most)
    single, double, has_single = kernels.single, kernels.double, kernels.single.shape[0] > 0
    offsets, rows, values = fibres
    tau, tol, is_single = rules.tau, rules.tol, rules.is_single
    marginals, log_v, masses, _, residuals, evaluations, endings = results
    for j in range(block[0], block[1]):
        first, last = offsets[j], offsets[j + 1]
        endings[j] = PENDING
        if last == first:
            _no_transport(fibres, j, results)
        elif last - first == 1:
            if has_single and is_single:
                _solve_one_nonzero(kernels, fibres, xhat, rules, j, rough, results)
            else:
                _solve_one_nonzero(kernels, fibres, xhat, rules, j, fine, results)
        elif has_single and last - first <= _MANY_NONZEROS:
            mass, residual, used = _try_mixed_precision(
                single,
                double,
                rows,
                values,
                xhat,
                (j, first, last, tau, tol, is_single, rules.sharpness),
                rough,
                fine,
                unknowns,
                log_v,
                marginals,
            )
            if residual < np.inf:
                masses[j], residuals[j], evaluations[j], endings[j] = mass, residual, used, SOLVED
        if endings[j] != PENDING:
            _set_value(fibres, xhat, rules, j, results)


@kernel
def careful_block(
    kernels: Kernels,
    fibres: Fibres,
    xhat: Vector,
    rules: Rules,
    block: tuple[int, int],
    results: Results,
) -> None:
    """Solve the fibres that :func:`usual_block` left, in float64 and whatever their range.

    A kernel of its own, because most data never needs it and it takes long to compile.
    """
    most = _most(fibres, block)
    grid, unknowns = make_grid(most, kernels.scaled), make_unknowns(most)
    marginal = np.empty(grid.shape[1])
    for j in range(block[0], block[1]):
        if results.endings[j] != PENDING:
            continue
        task = _make_task(kernels, fibres, xhat, rules, j, marginal, unknowns, True, results)
        if task.highest > NOTHING:
            start, n = fibres.offsets[j], task.settings.n
            point = _solve_several_nonzeros(task, grid, unknowns, rules, start, j, results)
            _store(grid, unknowns, point, start, n, j, results)
        else:
            _no_transport(fibres, j, results)
        _set_value(fibres, xhat, rules, j, results)


@owning_part
def _make_task(
    kernels: Kernels,
    fibres: Fibres,
    xhat: Vector,
    rules: Rules,
    j: int,
    marginal: Vector,
    unknowns: Vector,
    shifts: bool,
    results: Results,
) -> Task:
    first, last = fibres.offsets[j], fibres.offsets[j + 1]
    for k in range(last - first):
        unknowns[LOG_X, k] = np.log(np.float64(fibres.values[first + k]))
    tau, sharpness = rules.tau, rules.sharpness
    refer_to_data(unknowns, last - first, sharpness / tau)
    power, shift = row_power(tau, sharpness), sharpness / (tau + 1.0)
    highest = log_marginal(xhat[j], power, shift, marginal)
    results.endings[j] = SOLVED
    results.evaluations[j] = 0
    results.residuals[j] = 0.0
    settings = Settings(last - first, rules.tau, 1.0, shifts)
    return Task(kernels, fibres.rows[first:last], marginal, highest, settings)


@part
def _try_mixed_precision(
    single: NDArray[np.float32],
    double: Vector,
    rows: NDArray[np.int64],
    values: Vector,
    xhat: Vector,
    numbers: tuple[int, int, int, float, float, bool, float],
    rough: NDArray[np.float32],
    fine: Vector,
    unknowns: Vector,
    log_v: Vector,
    marginals: Vector,
) -> tuple[float, float, int]:
    """Solve a fibre in the usual way; return mass, residual and points; infinite if it cannot be.

    ``numbers`` are the fibre, its first and last nonzero, ``tau``, the tolerance, whether the data
    is float32, and the sharpness. Arrays are given one by one, because to read one from a tuple
    takes as long as a short loop.
    """
    j, first, last, tau, tol, is_single, sharpness = numbers
    n, known = last - first, 0
    for k in range(n):
        unknowns[LOG_X, k] = values[first + k]
        unknowns[A, k] = log_v[first + k]
        known += np.isfinite(unknowns[A, k])
    is_cold = known < n
    take_logs(unknowns, LOG_X, n)
    refer_to_data(unknowns, n, sharpness / tau)
    power = row_power(tau, sharpness)
    unit = scale(xhat, j, power, is_single, rough, fine) + sharpness / (tau + 1.0)
    if not np.isfinite(unit) or (is_cold and tau > _STIFF_TAU):
        return 0.0, np.inf, 0
    level, residual, used = solve_in_mixed_precision(
        single,
        double,
        (rows, first, last),
        rough,
        fine,
        unknowns,
        (tau, tol, unit, is_cold, is_single),
    )
    if not residual < np.inf:
        return 0.0, np.inf, used
    for k in range(n):
        log_v[first + k] = unknowns[A, k]
    factor = np.exp(level)
    if is_single:
        return factor * _write(rough, factor, marginals, j), residual, used
    return factor * _write(fine, factor, marginals, j), residual, used


@part
def _write(grid: NDArray[Any], factor: float, out: Vector, j: int) -> float:
    """Write the marginals of a fibre, and return their sum without the factor."""
    unit = grid.dtype.type(factor)
    for i in range(out.shape[1]):
        out[j, i] = unit * grid[MARGINALS, i]
    mass = 0.0
    for i in range(out.shape[1]):
        mass += np.float64(grid[MARGINALS, i])
    return mass


@part
def _most(fibres: Fibres, block: tuple[int, int]) -> int:
    most = 1
    for j in range(block[0], block[1]):
        most = max(most, fibres.offsets[j + 1] - fibres.offsets[j])
    return most


@part
def _no_transport(fibres: Fibres, j: int, results: Results) -> None:
    """Nothing to send or nothing to send it to: the plan is zero."""
    results.endings[j], results.evaluations[j], results.residuals[j] = SOLVED, 0, 0.0
    results.marginals[j] = 0.0
    results.masses[j] = 0.0
    for p in range(fibres.offsets[j], fibres.offsets[j + 1]):
        results.log_v[p] = np.nan


@part
def _solve_one_nonzero(
    kernels: Kernels,
    fibres: Fibres,
    xhat: Vector,
    rules: Rules,
    j: int,
    grid: NDArray[Any],
    results: Results,
) -> None:
    """Solve a fibre of one nonzero in closed form, in the type of the work space."""
    p, tau, of_type = fibres.offsets[j], rules.tau, grid.dtype.type
    results.endings[j], results.evaluations[j], results.residuals[j] = SOLVED, 0, 0.0
    largest = largest_entry(xhat, j)
    if not 0.0 < largest < np.inf:
        _no_transport(fibres, j, results)
        return
    kappa = 1.0 / (tau + 1.0)
    power = row_power(tau, rules.sharpness)
    phi, rate, top = of_type(power), of_type(kappa), of_type(np.log(largest))
    row, cost, most = np.uint64(fibres.rows[p]), kernels.scaled, of_type(-NOTHING)
    for i in range(xhat.shape[1]):
        grid[SPARE, i] = xhat[j, i]
    for i in range(xhat.shape[1], grid.shape[1]):
        grid[SPARE, i] = 0.0
    for i in range(grid.shape[1]):
        # Minus the logarithm of the marginals, but for a constant.
        value = phi * (top - fast_log(grid[SPARE, i])) + rate * of_type(cost[row, i])
        # Not negative but for rounding, and infinite where the model is zero.
        value = value if value > of_type(0.0) else of_type(0.0)
        grid[SPARE, i] = value if value < most else most
    least = smallest_entry(grid, SPARE)
    for i in range(grid.shape[1]):
        grid[MARGINALS, i] = fast_exp(least - grid[SPARE, i])
    total = 0.0
    for i in range(xhat.shape[1]):
        total += np.float64(grid[MARGINALS, i])
    level = power * np.log(largest) - np.float64(least) - (1.0 - rules.sharpness) * kappa
    excess = np.log(fibres.values[p]) - level - np.log(total)
    results.log_v[p] = tau * (tau + 1.0) / (2.0 * tau + 1.0) * excess
    factor = np.exp(level + tau / (2.0 * tau + 1.0) * excess)
    results.masses[j] = factor * _write(grid, factor, results.marginals, j)


@part
def _solve_several_nonzeros(
    task: Task,
    grid: Vector,
    unknowns: Vector,
    rules: Rules,
    start: int,
    j: int,
    results: Results,
) -> Point:
    """Solve a fibre of several nonzeros: Newton, then continuation, then Sinkhorn."""
    n, tau = task.settings.n, task.settings.tau
    tol, penalty, many = rules.tol, tau * rules.epsilon, n > _MAX_NEWTON_NONZEROS
    is_cold = _take_start(unknowns, n, results.log_v[start : start + n])
    point, total = unsound(0.0), 0
    if not many and not (is_cold and tau > _STIFF_TAU):
        point, total = _first_attempt(task, grid, unknowns, rules)
        if not _is_solved(point, tol):
            results.endings[j] = FALLBACK
    if not many and not _is_solved(point, tol):
        budget = _BUDGET_FACTOR * rules.budget
        point, used = anneal(task, grid, unknowns, penalty, tol, budget)
        total += used
    if not _is_solved(point, tol):
        results.endings[j] = SOLVED if many else FALLBACK
        point = sinkhorn(task, grid, unknowns, tol, _LAST_BUDGET)
        total += _LAST_BUDGET
        if not _is_solved(point, tol):
            results.endings[j] = UNSOLVED
    results.evaluations[j] = total
    return point


@part
def _take_start(unknowns: Vector, n: int, log_v: Vector) -> bool:
    """Begin at ``log_v`` where all of it is given, else at ``log x``; return which."""
    for k in range(n):
        unknowns[A, k] = log_v[k]
    for k in range(n):
        if not np.isfinite(log_v[k]):
            for m in range(n):
                unknowns[A, m] = unknowns[LOG_X, m]
            return True
    return False


@part
def _is_solved(point: Point, tol: float) -> bool:
    return point.is_sound and point.residual <= max(tol, point.rounding)


@part
def _first_attempt(task: Task, grid: Vector, unknowns: Vector, rules: Rules) -> tuple[Point, int]:
    """Take Newton steps, after Sinkhorn steps where the nonzeros are many."""
    form, total = COPIED if task.kernels.double.shape[0] else ABSORBED, 0
    if task.settings.n > _MANY_NONZEROS:
        total = _contract(task, grid, unknowns, form, rules.tol)
    point, used = newton(task, grid, unknowns, form, rules.tol, rules.budget)
    return point, total + used


@part
def _contract(task: Task, grid: Vector, unknowns: Vector, form: np.int64, tol: float) -> int:
    """Make Sinkhorn steps for as long as each halves the residual; return their number."""
    n, phi = task.settings.n, task.settings.tau / (task.settings.tau + 1.0)
    last = np.inf
    for used in range(_MAX_CONTRACTIONS):
        level, _ = refer(task, grid, unknowns, A, form)
        point = evaluate(task.settings, grid, unknowns, A, level)
        if not point.is_sound or point.residual <= tol or point.residual > 0.5 * last:
            return used + 1
        last = point.residual
        for k in range(n):
            unknowns[A, k] -= phi * unknowns[TRIAL_H, k]
    return _MAX_CONTRACTIONS


@part
def _store(
    grid: Vector, unknowns: Vector, point: Point, start: int, n: int, j: int, results: Results
) -> None:
    for k in range(n):
        results.log_v[start + k] = unknowns[A, k]
    scale, mass = np.exp(point.level), 0.0
    out = results.marginals[j]
    for i in range(out.size):
        out[i] = scale * grid[MARGINALS, i]
    for i in range(out.size):
        mass += grid[MARGINALS, i]
    results.masses[j] = scale * mass
    results.residuals[j] = point.residual


@part
def _set_value(fibres: Fibres, xhat: Vector, rules: Rules, j: int, results: Results) -> None:
    """Set the minimum, ``(lam + alpha epsilon) sum xhat + lam sum x - (2 lam + epsilon) mass``."""
    penalty, total = rules.tau * rules.epsilon, 0.0
    for i in range(xhat.shape[1]):
        total += np.float64(xhat[j, i])
    total *= 1.0 + rules.sharpness / rules.tau
    for p in range(fibres.offsets[j], fibres.offsets[j + 1]):
        total += np.float64(fibres.values[p])
    results.values[j] = penalty * total - (2.0 * penalty + rules.epsilon) * results.masses[j]


@kernel
def published_block(
    kernels: Kernels,
    fibres: Fibres,
    xhat: Vector,
    rules: Rules,
    block: tuple[int, int],
    results: Results,
) -> None:
    """Make ``rules.budget`` steps of the published iteration from ``u = 1 / size``.

    In the log domain where the paper's form would overflow, otherwise the same numbers.
    """
    most = _most(fibres, block)
    grid, unknowns = make_grid(most, kernels.scaled), make_unknowns(most)
    marginal = np.empty(grid.shape[1])
    form = COPIED if kernels.double.shape[0] else ABSORBED
    phi = rules.tau / (rules.tau + 1.0)
    for j in range(block[0], block[1]):
        task = _make_task(kernels, fibres, xhat, rules, j, marginal, unknowns, False, results)
        n = task.settings.n
        if n == 0 or not task.highest > NOTHING:
            _no_transport(fibres, j, results)
            _set_value(fibres, xhat, rules, j, results)
            continue
        _first_scaling(task, grid, unknowns, xhat.shape[1])
        for _ in range(rules.budget - 1):
            level, _form = refer(task, grid, unknowns, A, form)
            if not evaluate(task.settings, grid, unknowns, A, level).is_sound:
                evaluate_logs(task, grid, unknowns)
            for k in range(n):
                unknowns[A, k] -= phi * unknowns[TRIAL_H, k]
        results.residuals[j] = evaluate_logs(task, grid, unknowns).residual
        results.evaluations[j] = rules.budget
        _finish_published(task, grid, unknowns, xhat[j], rules, j, results)
        for k in range(n):
            results.log_v[fibres.offsets[j] + k] = unknowns[A, k]


@part
def _first_scaling(task: Task, grid: Vector, unknowns: Vector, size: int) -> None:
    """Set ``v = (x / K u)^phi`` for ``u = 1 / size``."""
    phi = task.settings.tau / (task.settings.tau + 1.0)
    cost = task.kernels.scaled
    for k in range(task.settings.n):
        row, total = np.uint64(task.rows[k]), 0.0
        for i in range(size):
            grid[SPARE, i] = fast_exp(-cost[row, i])
        for i in range(size):
            total += grid[SPARE, i]
        unknowns[A, k] = phi * (unknowns[LOG_X, k] - np.log(total / size) + 1.0)


@part
def _finish_published(
    task: Task,
    grid: Vector,
    unknowns: Vector,
    xhat: Vector,
    rules: Rules,
    j: int,
    results: Results,
) -> None:
    """Take ``v`` once more, then ``Delta = u (K v)`` and the value of that plan.

    ``inverse`` holds ``log u`` after :func:`evaluate_logs`.
    """
    n, tau = task.settings.n, task.settings.tau
    epsilon, penalty = rules.epsilon, tau * rules.epsilon
    kappa, value = 1.0 / (tau + 1.0), 0.0
    for k in range(n):
        log_x = unknowns[LOG_X, k]
        # log (K u) from the excess of the old column sums; the new ones are x^phi (K u)^kappa.
        log_ku = unknowns[TRIAL_H, k] + log_x - unknowns[A, k] / tau - unknowns[A, k]
        unknowns[A, k] -= tau * kappa * unknowns[TRIAL_H, k]
        log_b = tau * kappa * log_x + kappa * log_ku
        b, x = np.exp(log_b), np.exp(log_x)
        value += epsilon * b * unknowns[A, k] + penalty * (b * (log_b - log_x) - b + x)
    refer(task, grid, unknowns, A, ABSORBED)
    for k in range(round_up(n)):
        unknowns[WEIGHTS, k] = 1.0
    add_rows(grid, unknowns, n, WEIGHTS, SUMS)
    out, mass = results.marginals[j], 0.0
    for i in range(out.size):
        given, log_u = np.float64(xhat[i]), grid[INVERSE, i]
        log_a = log_u + np.log(grid[SUMS, i]) + grid[SPARE, i] - 1.0
        a = np.exp(log_a)
        out[i] = a
        mass += a
        if a > 0.0:
            value += epsilon * a * (log_u - 1.0) + penalty * (a * (log_a - np.log(given)) - a)
        value += penalty * given
    results.masses[j] = mass
    results.values[j] = value
