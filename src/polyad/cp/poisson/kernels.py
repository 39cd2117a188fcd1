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
No loop sums and writes to an array at once: the compiler would test where the arrays lie before it
regroups the sum, and last digits would depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.core.compiled import kernel, owning_part, part
from polyad.core.vector_math import fast_log
from polyad.cp.poisson.quadratic import minimise_quadratic
from polyad.cp.poisson.strips import LANES, gain_half_strip, gain_strip
from polyad.tensor.kernels import transpose_four

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# Products that are held at once, 4 MiB: bounds the memory of a thread. A row that needs more is
# read in chunks, which must not be too short for the loops over them.
_PRODUCTS = 1 << 19
_LEAST_CHUNK = 256
# Loops over the nonzeros of a row run to the next multiple of this, over products of zero: what is
# left after whole vectors would be done one by one. It is half a strip.
_VECTOR = 16
# A count below this part of its row is taken for this part: it changes no digit of the others, and
# what explains it stays a number that can be squared.
_LEAST_COUNT = 1e-60
# Shares below this are zero. An update gives a component the part of the counts that it explains,
# so what is lost is far below any count; products of smaller shares would be slow denormals.
_VANISHED = 1e-100
# A model below this, where something was counted, is zero: the row is impossible.
_NOTHING = 1e-200
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
# The damping of a Newton step, in parts of the diagonal of the Hessian: the least, by how much it
# grows where a step fails, and where to give up. Where a row has fewer nonzeros than components,
# the least says which of its minima a step goes to, which rounding must not.
_LEAST_DAMPING = 1e-10
_MORE_DAMPING = 1e3
_MOST_DAMPING = 1.0


class Slices(NamedTuple):
    """The nonzeros of a tensor, sorted by the index of one mode."""

    starts: NDArray[np.int64]
    """(n_slices + 1,): the first nonzero of each slice that has any."""
    targets: NDArray[np.int64]
    """(n_slices,): the row of the factor that a slice belongs to."""
    entries: NDArray[Any]
    """(n_nonzeros, n_modes - 1): unsigned rows of the stacked factors of the other modes."""
    values: Vector
    """(n_nonzeros,)."""


class Model(NamedTuple):
    """The other factors."""

    stack: Vector
    """(sum of all sizes, R): all factors, one below the other."""
    scale: Vector
    """(1 or n_rows, R): one over ``d``, and zero where nothing was observed."""


class Rules(NamedTuple):
    """When the work on a row ends."""

    sweeps: int
    tol: float
    """Of the KKT violation in shares, and in Newton's method of the gains."""
    least: float
    """Model values below this count as this: keeps logarithms of impossible counts finite."""
    measures: bool
    """Whether the divergence of the rows after their updates is wanted."""


class Rows(NamedTuple):
    """What the kernels fill."""

    masses: Vector
    """(n_rows, R): ``d * b``, in and out."""
    violations: Vector
    """(n_slices,): the KKT violation ``max |min(d b, 1 - phi)|`` before the update."""
    sweeps: NDArray[np.int64]
    """(n_slices,): how many updates a row took."""
    divergences: Vector
    """(n_slices,): ``sum_p x_p log(x_p / model_p)`` of each row, after the updates."""


class Work(NamedTuple):
    """What every pass over a row reads, and the buffers of one thread."""

    slices: Slices
    model: Model
    products: Vector
    """(R, chunk): the ``pi`` of the nonzeros of a chunk, divided by ``d``."""
    shares: Vector
    """(chunk,): the part of its row that each count is, and zero behind the last one."""
    fitted: Vector
    """(chunk,): the model at the nonzeros, in shares."""
    ratio: Vector
    """(chunk,): data over model."""
    divisor: Vector
    """(chunk,): what the products of a nonzero were divided by."""
    lanes: Vector
    """(R, LANES): the gains, in parts that are summed at the end."""
    ones: Vector
    """(R,)."""


class Row(NamedTuple):
    """One row: where its nonzeros are."""

    first: int
    last: int
    total: float
    scale: Vector


@kernel
def multiplicative_rows(
    slices: Slices, block: tuple[int, int], model: Model, rules: Rules, rows: Rows
) -> None:
    """Improve rows by multiplicative updates ``y <- y phi``, which never raise ``f``."""
    work = _work(slices, block, model)
    n_components = model.stack.shape[1]
    phi, step = np.empty(n_components), np.empty(n_components)
    for s in range(block[0], block[1]):
        row = _row(slices, s, model)
        y = rows.masses[slices.targets[s]]
        _divide(y, row.total)
        _begin(work, row)
        _gains(work, row, y, phi)
        rows.violations[s] = _violation(y, phi, row.total)
        if _escape(work, row, (y, phi), step):
            _gains(work, row, y, phi)
        sweep = 0
        while _violation(y, phi, 1.0) > rules.tol:
            _multiply(y, phi)
            sweep += 1
            if sweep == rules.sweeps:
                break
            _gains(work, row, y, phi)
        rows.sweeps[s] = sweep
        if rules.measures:
            rows.divergences[s] = _divergence(work, row, y, rules.least)
        for r in range(n_components):
            y[r] *= row.total


@kernel
def newton_rows(
    slices: Slices, block: tuple[int, int], model: Model, rules: Rules, rows: Rows
) -> None:
    """Improve rows by a multiplicative update and a Newton step each sweep; ``f`` never rises.

    The update brings each share to its order of magnitude, and no count is then nearly impossible,
    which is where a quadratic model is good. The Newton step does the rest.
    """
    work = _work(slices, block, model)
    n_components = model.stack.shape[1]
    phi, gradient, step = np.empty(n_components), np.empty(n_components), np.empty(n_components)
    hessian = np.empty((n_components, n_components))
    for s in range(block[0], block[1]):
        row = _row(slices, s, model)
        y = rows.masses[slices.targets[s]]
        _divide(y, row.total)
        _begin(work, row)
        _gains(work, row, y, phi)
        rows.violations[s] = _violation(y, phi, row.total)
        if _escape(work, row, (y, phi), step):
            _gains(work, row, y, phi)
        damping, sweep = _LEAST_DAMPING, 0
        while sweep < rules.sweeps and _unsettled(y, phi) > rules.tol:
            _multiply(y, phi)
            _gains(work, row, y, phi)
            _hessian(work, row, y, hessian)
            for r in range(n_components):
                hessian[r, r] += damping * (1.0 + hessian[r, r])
            sweep += 1
            for r in range(n_components):
                gradient[r] = 1.0 - phi[r]
            if minimise_quadratic(hessian, y, gradient, step) and _search(
                work, row, (y, phi), step
            ):
                damping = max(_LEAST_DAMPING, damping / _MORE_DAMPING)
                _gains(work, row, y, phi)
            else:
                damping *= _MORE_DAMPING
                if damping > _MOST_DAMPING:
                    break
        rows.sweeps[s] = sweep
        if rules.measures:
            rows.divergences[s] = _divergence(work, row, y, rules.least)
        for r in range(n_components):
            y[r] *= row.total


@kernel
def divergence_rows(
    slices: Slices, block: tuple[int, int], model: Model, rules: Rules, rows: Rows
) -> None:
    """Measure the divergences of rows as they are."""
    work = _work(slices, block, model)
    for s in range(block[0], block[1]):
        row = _row(slices, s, model)
        y = rows.masses[slices.targets[s]]
        _divide(y, row.total)
        _begin(work, row)
        rows.divergences[s] = _divergence(work, row, y, rules.least)


@owning_part
def _work(slices: Slices, block: tuple[int, int], model: Model) -> Work:
    longest = 1
    for s in range(block[0], block[1]):
        longest = max(longest, slices.starts[s + 1] - slices.starts[s])
    n_components = model.stack.shape[1]
    width = _padded(min(longest, max(_LEAST_CHUNK, _PRODUCTS // n_components)))
    products = np.empty((n_components, width))
    shares, fitted = np.empty(width), np.empty(width)
    ratio, divisor = np.empty(width), np.empty(width)
    lanes, ones = np.empty((n_components, LANES)), np.ones(n_components)
    return Work(slices, model, products, shares, fitted, ratio, divisor, lanes, ones)


@owning_part
def _row(slices: Slices, s: int, model: Model) -> Row:
    first, last = slices.starts[s], slices.starts[s + 1]
    total = 0.0
    for p in range(first, last):
        total += slices.values[p]
    scale = model.scale[min(slices.targets[s], model.scale.shape[0] - 1)]
    return Row(first, last, total, scale)


@part
def _divide(y: Vector, by: float) -> None:
    for r in range(y.size):
        y[r] /= by


@part
def _copy(values: Vector, out: Vector) -> None:
    for r in range(out.size):
        out[r] = values[r]


@part
def _begin(work: Work, row: Row) -> None:
    """Make the products of a row that fits the buffer, once for all passes over it."""
    if row.last - row.first <= work.ratio.size:
        _fill(work, (row.first, row.last), row)
        _enlarge(work, row.last - row.first)


@part
def _fill(work: Work, chunk: tuple[int, int], row: Row) -> None:
    """Multiply the rows of the other factors, divided by ``d``, four nonzeros at a time."""
    entries, stack, products = work.slices.entries, work.model.stack, work.products
    scale = row.scale
    n_components = scale.size
    squares = n_components - n_components % 4
    whole = chunk[1] - (chunk[1] - chunk[0]) % 4
    for p in range(chunk[0], whole, 4):
        q = p - chunk[0]
        four = (entries[p, 0], entries[p + 1, 0], entries[p + 2, 0], entries[p + 3, 0])
        for r in range(0, squares, 4):
            transpose_four(stack, four, r, scale, products, q)
        for k in range(1, entries.shape[1]):
            four = (entries[p, k], entries[p + 1, k], entries[p + 2, k], entries[p + 3, k])
            for r in range(0, squares, 4):
                transpose_four(stack, four, r, None, products, q)
    # What four nonzeros or four components do not divide.
    for p in range(chunk[0], chunk[1]):
        q = p - chunk[0]
        for r in range(squares if p < whole else 0, n_components):
            product = scale[r]
            for k in range(entries.shape[1]):
                product *= stack[entries[p, k], r]
            products[r, q] = product
    values, shares = work.slices.values[chunk[0] : chunk[1]], work.shares
    for q in range(values.size):
        shares[q] = max(values[q] / row.total, _LEAST_COUNT)
    for q in range(values.size, _padded(values.size)):
        shares[q] = 0.0
        for r in range(n_components):
            products[r, q] = 0.0


@part
def _padded(n: int) -> int:
    """Return the next multiple of the length of a vector."""
    return (n + _VECTOR - 1) & -_VECTOR


@part
def _enlarge(work: Work, n: int) -> None:
    """Scale up the products of nonzeros that the other factors hold nearly impossible."""
    products, total, divisor = work.products, work.fitted, work.divisor
    _combine(work.ones, products, _padded(n), total)
    for p in range(n):
        divisor[p] = 1.0
    for p in range(n):
        if 0.0 < total[p] < _SMALL_PRODUCT:
            divisor[p] = total[p]
            for r in range(products.shape[0]):
                products[r, p] /= total[p]


@part
def _combine(y: Vector, products: Vector, n: int, out: Vector) -> None:
    """Fill ``out`` with ``y . pi`` at ``n`` products, four components at a time."""
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


@part
def _load(work: Work, row: Row, chunk: tuple[int, int], y: Vector) -> None:
    """Make the model at the nonzeros of a chunk, and the products if they are not there yet."""
    if row.last - row.first > work.ratio.size:
        _fill(work, chunk, row)
        _enlarge(work, chunk[1] - chunk[0])
    _combine(y, work.products, _padded(chunk[1] - chunk[0]), work.fitted)


@part
def _gains(work: Work, row: Row, y: Vector, phi: Vector) -> None:
    """Fill ``phi``; it is huge where a count is impossible that the component could explain."""
    products, shares, lanes = work.products, work.shares, work.lanes
    for r in range(y.size):
        for v in range(LANES):
            lanes[r, v] = 0.0
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        if row.last - row.first > work.ratio.size:
            _fill(work, (first, last), row)
            _enlarge(work, last - first)
        n = _padded(last - first)
        for q in range(0, n - _VECTOR, 2 * _VECTOR):
            gain_strip(products, y, shares, q, _NOTHING, lanes)
        if n % (2 * _VECTOR) > 0:
            gain_half_strip(products, y, shares, n - _VECTOR, _NOTHING, lanes)
    for r in range(y.size):
        phi[r] = (lanes[r, 0] + lanes[r, 1]) + (lanes[r, 2] + lanes[r, 3])


@part
def _divergence(work: Work, row: Row, y: Vector, least: float) -> float:
    """Return ``sum_p x_p log(x_p / model_p)``, of the model in the unit of the data."""
    total = 0.0
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        _load(work, row, (first, last), y)
        values, fitted, ratio = work.slices.values[first:last], work.fitted, work.ratio
        for p in range(values.size):
            expected = row.total * fitted[p] * work.divisor[p]
            ratio[p] = fast_log(values[p] / (expected if expected > least else least))
        for p in range(values.size):
            total += values[p] * ratio[p]
    return total


@part
def _multiply(y: Vector, phi: Vector) -> None:
    """Make a multiplicative update: the part of the counts that each component explains."""
    for r in range(y.size):
        y[r] *= phi[r]
        if y[r] < _VANISHED:
            y[r] = 0.0


@part
def _violation(y: Vector, phi: Vector, unit: float) -> float:
    """Return ``max |min(y, 1 - phi)|``, which is zero at the minimum and only there."""
    worst = 0.0
    for r in range(y.size):
        worst = max(worst, abs(min(unit * y[r], 1.0 - phi[r])))
    return worst


@part
def _unsettled(y: Vector, phi: Vector) -> float:
    """Return how far from one a gain is that should be one, whatever the size of its share."""
    worst = 0.0
    for r in range(y.size):
        worst = max(worst, phi[r] - 1.0 if y[r] == 0.0 else abs(phi[r] - 1.0))
    return worst


@part
def _change(work: Work, row: Row, moved: tuple[Vector, Vector], step: Vector) -> float:
    """Return ``f(after) - f(before)``, exact for small steps too: no large sums are subtracted.

    A count that becomes impossible costs infinitely much. One that no component can explain does
    so whatever the row is, and is left out.
    """
    before, after = moved
    total = 0.0
    for r in range(step.size):
        total += step[r]
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        _load(work, row, (first, last), before)
        _combine(step, work.products, _padded(last - first), work.ratio)
        for p in range(last - first):
            if work.fitted[p] == 0.0 and work.ratio[p] == 0.0:
                continue
            growth = work.ratio[p] / work.fitted[p]
            if growth > -0.5:
                growth = np.log1p(growth)
            else:
                # The sum of what is left: a difference would hide that nothing is.
                left = 0.0
                for r in range(after.size):
                    left += after[r] * work.products[r, p]
                if left < _NOTHING:
                    return np.inf
                growth = np.log(left / work.fitted[p])
            total -= work.shares[p] * growth
    return total


@owning_part
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
    after = np.empty(y.size)
    for _ in range(_LIFTS):
        for r in range(y.size):
            after[r] = y[r] + step[r]
        if _change(work, row, (y, after), step) < 0.0:
            _copy(after, y)
            return True
        for r in range(y.size):
            step[r] *= 0.1
    return False


@part
def _hessian(work: Work, row: Row, y: Vector, hessian: Vector) -> None:
    """Fill the Hessian, ``sum_p (x_p / t) pi_p pi_p' / (y . pi_p)^2``."""
    hessian[:] = 0.0
    for first in range(row.first, row.last, work.ratio.size):
        last = min(first + work.ratio.size, row.last)
        _load(work, row, (first, last), y)
        n = last - first
        for p in range(n):
            m = work.fitted[p]
            # What no component explains has no curvature either.
            work.ratio[p] = work.shares[p] / (m * m) if m > _NOTHING else 0.0
        for r in range(y.size):
            for p in range(n):
                work.fitted[p] = work.ratio[p] * work.products[r, p]
            for q in range(r + 1):
                total = 0.0
                for p in range(n):
                    total += work.fitted[p] * work.products[q, p]
                hessian[r, q] += total
    for r in range(y.size):
        for q in range(r):
            hessian[q, r] = hessian[r, q]


@owning_part
def _search(work: Work, row: Row, point: tuple[Vector, Vector], direction: Vector) -> bool:
    """Go along a direction, halving the way until ``f`` is lower enough; say whether it was.

    Points on the way are scaled to the sum that the minimum has, the share of the counts that the
    row can explain, which lowers ``f`` further.
    """
    y, phi = point
    explained, predicted = 0.0, 0.0
    for r in range(y.size):
        explained += y[r] * phi[r]
        predicted += (1.0 - phi[r]) * direction[r]
    after, step = np.empty(y.size), np.empty(y.size)
    length = 1.0
    for _ in range(_HALVINGS):
        for r in range(y.size):
            after[r] = max(0.0, y[r] + length * direction[r])
        total = 0.0
        for r in range(y.size):
            total += after[r]
        if total > 0.0:
            for r in range(y.size):
                after[r] *= explained / total
            for r in range(y.size):
                step[r] = after[r] - y[r]
            change = _change(work, row, (y, after), step)
            if change < 0.0 and change <= _ARMIJO * length * min(0.0, predicted):
                _copy(after, y)
                return True
        length *= 0.5
    return False
