"""Numba kernels of Poisson CP: the rows of one factor, each a small convex problem of its own.

With the other factors given, row ``i`` of a factor minimises, over ``b >= 0``,

    f(b) = sum_r d_r b_r - sum_p x_p log(b . pi_p)

over the nonzeros ``p`` of slice ``i``, where ``pi_p`` is the product of the rows of the other
factors that belong to ``p`` and ``d_r`` is the sum of ``pi_r`` over all observed cells of the
slice. The kernels work on shares instead: ``y_r = d_r b_r / t`` where ``t`` is the sum of the
slice. At the minimum the shares sum to one, whatever the unit of the data, ``d`` is gone, and the
gradient is ``1 - phi_r`` with ``phi_r = sum_p (x_p / t) / (y . pi_p) pi_pr``.

Rows are independent, so a block of rows is a task and the result is the same for any number of
threads. The ``pi`` of a row are made once for all its sweeps, transposed, so that every loop runs
over nonzeros and is vectorised. A row of more nonzeros than the buffer holds is read in chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.cp.poisson.records import Model, Row, Rows, Rules, Slices, Work
from polyad.tensor.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# Products that are held at once, 4 MiB: bounds the memory of a thread. A row that needs more is
# read in chunks, which must not be too short for the loops over them.
_PRODUCTS = 1 << 19
_LEAST_CHUNK = 256
# Shares below this are zero. An update gives a component the part of the counts that it explains,
# so what is lost is far below rounding; products of smaller shares would be slow denormals.
_VANISHED = 1e-100
# A share below the first number with a gradient that says "grow" is an inadmissible zero: it gets
# the second number (kappatol and kappa of Chi and Kolda 2012, Algorithm 3).
_INADMISSIBLE = 1e-10
_NUDGE = 1e-2
# A gradient must be this far below zero to count, or rounding would look like a wish to grow.
_WISH = 1e-6
_LIFTS = 10
# Products below this are scaled up, which shifts ``f`` by a constant: their squares must exist.
_SMALL_PRODUCT = 1e-50
# How much of the predicted decrease a Newton step must achieve, and how often it is halved.
_ARMIJO = 1e-4
_HALVINGS = 40
# Shares below this, with a positive gradient, are held at zero for a Newton step.
_ACTIVE = 1e-3
# The least and the first damping of a Newton step; the Hessian in shares is of order one.
_LEAST_DAMPING = 1e-12
_DAMPING = 1e-5


@kernel
def multiplicative_rows(
    slices: Slices, block: tuple[int, int], model: Model, rules: Rules, rows: Rows
) -> None:
    """Improve rows by multiplicative updates ``y <- y phi``, which never raise ``f``."""
    work = _work(slices, block, model)
    n_components = model.stack.shape[1]
    phi, step = np.empty(n_components), np.empty(n_components)
    for s in range(block[0], block[1]):
        row = _row(slices, s, model, rules)
        y = rows.masses[slices.targets[s]]
        _divide(y, row.total)
        _begin(work, row)
        _gains(work, row, y, phi)
        rows.violations[s] = _violation(y, phi, row.total)
        if _escape(work, row, (y, phi), step):
            _gains(work, row, y, phi)
        sweep = 0
        while _violation(y, phi, 1.0) > rules.tol:
            for r in range(n_components):
                y[r] *= phi[r]
                if y[r] < _VANISHED:
                    y[r] = 0.0
            sweep += 1
            if sweep == rules.sweeps:
                break
            _gains(work, row, y, phi)
        rows.sweeps[s] = sweep
        _divide(y, 1.0 / row.total)


@kernel
def newton_rows(
    slices: Slices, block: tuple[int, int], model: Model, rules: Rules, rows: Rows
) -> None:
    """Improve rows by projected, damped Newton steps, which never raise ``f``."""
    work = _work(slices, block, model)
    n_components = model.stack.shape[1]
    phi, step = np.empty(n_components), np.empty(n_components)
    hessian = np.empty((n_components, n_components))
    free = np.empty(n_components, np.int64)
    for s in range(block[0], block[1]):
        row = _row(slices, s, model, rules)
        y = rows.masses[slices.targets[s]]
        _divide(y, row.total)
        _begin(work, row)
        known = _gains(work, row, y, phi)
        rows.violations[s] = _violation(y, phi, row.total)
        if known < 1.0 and _escape(work, row, (y, phi), step):
            known = _gains(work, row, y, phi)
        damping, sweep = _DAMPING, 0
        while sweep < rules.sweeps and _violation(y, phi, 1.0) > rules.tol:
            moving = free[: _choose_free(y, phi, free)]
            _hessian(work, row, (y, moving), hessian)
            if not _newton_direction(hessian, phi, moving, damping, step):
                damping *= 100.0
                sweep += 1
                continue
            length = _search(work, row, (y, phi, known), step)
            damping = max(_LEAST_DAMPING, damping * (0.2 if length == 1.0 else 5.0))
            sweep += 1
            if length == 0.0:
                break
            known = _gains(work, row, y, phi)
        rows.sweeps[s] = sweep
        _divide(y, 1.0 / row.total)


@kernel
def divergence_rows(
    slices: Slices, block: tuple[int, int], model: Model, rules: Rules, out: Rows
) -> None:
    """Fill ``violations`` with ``sum_p x_p log(x_p / model_p)`` of each row."""
    work = _work(slices, block, model)
    for s in range(block[0], block[1]):
        row = _row(slices, s, model, rules)
        masses = out.masses[slices.targets[s]]
        total = 0.0
        for first in range(row.first, row.last, work.ratio.size):
            last = min(first + work.ratio.size, row.last)
            _fill(work, (first, last), row.scale)
            _combine(masses, work.products, last - first, work.fitted)
            for p in range(last - first):
                x = slices.values[first + p]
                total += x * np.log(x / max(work.fitted[p], rules.least))
        out.violations[s] = total


@kernel
def _work(slices: Slices, block: tuple[int, int], model: Model) -> Work:
    longest = 1
    for s in range(block[0], block[1]):
        longest = max(longest, slices.starts[s + 1] - slices.starts[s])
    n_components = model.stack.shape[1]
    width = min(longest, max(_LEAST_CHUNK, _PRODUCTS // n_components))
    products = np.empty((n_components, width))
    return Work(slices, model, products, np.empty(width), np.empty(width))


@kernel
def _row(slices: Slices, s: int, model: Model, rules: Rules) -> Row:
    first, last = slices.starts[s], slices.starts[s + 1]
    total = 0.0
    for p in range(first, last):
        total += slices.values[p]
    scale = model.scale[min(slices.targets[s], model.scale.shape[0] - 1)]
    return Row(first, last, total, scale, rules.least / total)


@kernel
def _divide(y: Vector, by: float) -> None:
    for r in range(y.size):
        y[r] /= by


@kernel
def _begin(work: Work, row: Row) -> None:
    """Make the products of a row that fits the buffer, once for all passes over it."""
    if row.last - row.first <= work.ratio.size:
        _fill(work, (row.first, row.last), row.scale)
        _enlarge(work.products, row.last - row.first, work.fitted)


@kernel
def _fill(work: Work, chunk: tuple[int, int], scale: Vector) -> None:
    """Multiply the rows of the other factors, and divide by ``d``."""
    entries, stack, products = work.slices.entries, work.model.stack, work.products
    n_others = entries.shape[1]
    for p in range(chunk[0], chunk[1]):
        column = p - chunk[0]
        i = entries[p, 0]
        if n_others == 2:  # a tensor of order three: one pass
            j = entries[p, 1]
            for r in range(scale.size):
                products[r, column] = scale[r] * stack[i, r] * stack[j, r]
            continue
        for r in range(scale.size):
            products[r, column] = scale[r] * stack[i, r]
        for k in range(1, n_others):
            j = entries[p, k]
            for r in range(scale.size):
                products[r, column] *= stack[j, r]


@kernel
def _enlarge(products: Vector, n: int, largest: Vector) -> None:
    """Scale up the products of nonzeros that the other factors hold nearly impossible."""
    largest[:n] = 0.0
    for r in range(products.shape[0]):
        for p in range(n):
            largest[p] = max(largest[p], products[r, p])
    for p in range(n):
        if 0.0 < largest[p] < _SMALL_PRODUCT:
            for r in range(products.shape[0]):
                products[r, p] /= largest[p]


@kernel
def _combine(y: Vector, products: Vector, n: int, out: Vector) -> None:
    """Fill ``out`` with ``y . pi`` at ``n`` nonzeros, four components at a time."""
    n_components = y.size
    for p in range(n):
        out[p] = 0.0
    whole = n_components - n_components % 4
    for r in range(0, whole, 4):
        a, b, c, d = y[r], y[r + 1], y[r + 2], y[r + 3]
        for p in range(n):
            out[p] += (
                a * products[r, p]
                + b * products[r + 1, p]
                + c * products[r + 2, p]
                + d * products[r + 3, p]
            )
    for r in range(whole, n_components):
        a = y[r]
        for p in range(n):
            out[p] += a * products[r, p]


@kernel
def _load(work: Work, row: Row, chunk: tuple[int, int], y: Vector) -> None:
    """Make the model at the nonzeros of a chunk, and the products if they are not there yet."""
    if row.last - row.first > work.ratio.size:
        _fill(work, chunk, row.scale)
        _enlarge(work.products, chunk[1] - chunk[0], work.fitted)
    _combine(y, work.products, chunk[1] - chunk[0], work.fitted)


@kernel
def _gains(work: Work, row: Row, y: Vector, phi: Vector) -> float:
    """Fill ``phi`` and return the share of the counts that ``y`` holds possible."""
    phi[:] = 0.0
    share = 1.0 / row.total
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        _load(work, row, (first, last), y)
        values, fitted, ratio = work.slices.values[first:last], work.fitted, work.ratio
        for p in range(values.size):
            ratio[p] = share * values[p] / max(fitted[p], row.least)
        _collect(work.ratio, work.products, last - first, phi)
    # The sum over r of y phi is the sum over p of x, but for cells where the model is zero.
    possible = 0.0
    for r in range(y.size):
        possible += y[r] * phi[r]
    # The shares of the counts sum to one up to rounding, which must not look like a lack.
    return 1.0 if possible > 1.0 - 1e-12 else possible


@kernel
def _collect(ratio: Vector, products: Vector, n: int, phi: Vector) -> None:
    """Add the sums of ``ratio pi`` over ``n`` nonzeros, four components at a time."""
    n_components = phi.size
    whole = n_components - n_components % 4
    for r in range(0, whole, 4):
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for p in range(n):
            a += ratio[p] * products[r, p]
            b += ratio[p] * products[r + 1, p]
            c += ratio[p] * products[r + 2, p]
            d += ratio[p] * products[r + 3, p]
        phi[r] += a
        phi[r + 1] += b
        phi[r + 2] += c
        phi[r + 3] += d
    for r in range(whole, n_components):
        a = 0.0
        for p in range(n):
            a += ratio[p] * products[r, p]
        phi[r] += a


@kernel
def _violation(y: Vector, phi: Vector, unit: float) -> float:
    """Return ``max |min(y, 1 - phi)|``, which is zero at the minimum and only there."""
    worst = 0.0
    for r in range(y.size):
        worst = max(worst, abs(min(unit * y[r], 1.0 - phi[r])))
    return worst


@kernel
def _change(work: Work, row: Row, y: Vector, step: Vector) -> float:
    """Return ``f(y + step) - f(y)``, exact for small steps too: no large sums are subtracted."""
    total = 0.0
    for r in range(y.size):
        total += step[r]
    share = 1.0 / row.total
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        _load(work, row, (first, last), y)
        _combine(step, work.products, last - first, work.ratio)
        for p in range(last - first):
            before = max(work.fitted[p], row.least)
            growth = work.ratio[p] / before
            if growth > -0.5:
                growth = np.log1p(growth)
            else:
                growth = np.log(max(work.fitted[p] + work.ratio[p], row.least) / before)
            total -= work.slices.values[first + p] * share * growth
    return total


@kernel
def _escape(work: Work, row: Row, point: tuple[Vector, Vector], step: Vector) -> bool:
    """Lift inadmissible zeros: shares at zero, where updates cannot move them, that want to grow.

    The lift is made smaller until it lowers ``f``; it can, because the derivative is negative.
    """
    y, phi = point
    found = False
    for r in range(y.size):
        stuck = y[r] < _INADMISSIBLE and phi[r] > 1.0 + _WISH
        step[r] = _NUDGE if stuck else 0.0
        found = found or stuck
    if not found:
        return False
    for _ in range(_LIFTS):
        if _change(work, row, y, step) < 0.0:
            for r in range(y.size):
                y[r] += step[r]
            return True
        for r in range(y.size):
            step[r] *= 0.1
    return False


@kernel
def _choose_free(y: Vector, phi: Vector, free: NDArray[np.int64]) -> int:
    """List the components that a Newton step may move; return how many they are.

    The others are at zero, or near it with a derivative that says "shrink": Bertsekas' active set.
    """
    distance = _violation(y, phi, 1.0)
    n_free = 0
    for r in range(y.size):
        if y[r] > min(_ACTIVE, distance) or phi[r] >= 1.0:
            free[n_free] = r
            n_free += 1
    return n_free


@kernel
def _hessian(
    work: Work, row: Row, point: tuple[Vector, NDArray[np.int64]], hessian: Vector
) -> None:
    """Fill the lower half of the Hessian of the free components."""
    y, free = point
    hessian[: free.size, : free.size] = 0.0
    share = 1.0 / row.total
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        _load(work, row, (first, last), y)
        n = last - first
        for p in range(n):
            m = work.fitted[p]
            # What no component explains has no curvature either.
            work.ratio[p] = (
                work.slices.values[first + p] * share / (m * m) if m > row.least else 0.0
            )
        for a in range(free.size):
            left = work.products[free[a]]
            for p in range(n):
                work.fitted[p] = work.ratio[p] * left[p]
            for b in range(a + 1):
                right = work.products[free[b]]
                total = 0.0
                for p in range(n):
                    total += work.fitted[p] * right[p]
                hessian[a, b] += total


@kernel
def _newton_direction(
    hessian: Vector, phi: Vector, free: NDArray[np.int64], damping: float, step: Vector
) -> bool:
    """Fill ``step`` with the Newton direction of the free components, by Cholesky in place.

    Held components get minus their gradient. Returns False if the matrix has no Cholesky factor.
    """
    for a in range(free.size):
        for b in range(a + 1):
            total = hessian[a, b] + (damping if a == b else 0.0)
            for c in range(b):
                total -= hessian[a, c] * hessian[b, c]
            if a > b:
                hessian[a, b] = total / hessian[b, b]
            elif total > 0.0:
                hessian[a, a] = np.sqrt(total)
            else:
                return False
    for r in range(phi.size):
        step[r] = phi[r] - 1.0
    for a in range(free.size):
        total = step[free[a]]
        for b in range(a):
            total -= hessian[a, b] * step[free[b]]
        step[free[a]] = total / hessian[a, a]
    for a in range(free.size - 1, -1, -1):
        total = step[free[a]]
        for b in range(a + 1, free.size):
            total -= hessian[b, a] * step[free[b]]
        step[free[a]] = total / hessian[a, a]
    return True


@kernel
def _search(work: Work, row: Row, point: tuple[Vector, Vector, float], direction: Vector) -> float:
    """Go along the projection arc until ``f`` is lower enough; return the length, or zero.

    Points of the arc are scaled to the sum that the minimum has, which lowers ``f`` further and
    keeps long steps, along directions that the row does not determine, in range.
    """
    y, phi, known = point
    step = np.empty(y.size)
    length = 1.0
    for _ in range(_HALVINGS):
        total = 0.0
        predicted = 0.0
        for r in range(y.size):
            step[r] = max(0.0, y[r] + length * direction[r])
            total += step[r]
            predicted += (1.0 - phi[r]) * (step[r] - y[r])
        if total > 0.0:
            for r in range(y.size):
                step[r] = step[r] * (known / total) - y[r]
            change = _change(work, row, y, step)
            if change < 0.0 and change <= _ARMIJO * min(0.0, predicted):
                for r in range(y.size):
                    y[r] = max(0.0, y[r] + step[r])
                return length
        length *= 0.5
    return 0.0
