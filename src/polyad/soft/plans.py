r"""The plans of soft operators: transport of rows of values to equally spaced targets.

Squashing comes first: each row of values to the interval (0, 1), whatever its unit. A row is
standardised with its weighted mean and deviation and passed through the logistic function :math:`1
/ (1 + \exp(-\pi z / \sqrt 3))`, which is the distribution function of the logistic law of mean 0
and deviation 1. The result does not change if the row is shifted or multiplied by a positive
number. A row whose values are all equal is mapped to 1/2, with a derivative of zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyad.exceptions import InvalidInputError, NumericalError, TransportWarning, warn_user
from polyad.soft.robust import RobustlySquashed, squash_robustly
from polyad.transport.rows import (
    Gradients,
    LongTransport,
    RowTransport,
    SinkhornPlan,
    SolvedPlan,
    is_long,
)
from polyad.transport.rows.costs import check_order, check_slope
from polyad.transport.rows.long import MOST_ENTRIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.soft.arguments import Settings

    Table = NDArray[np.float64]

#: Of a logistic function that has the variance of standard numbers.
STEEPNESS = np.pi / np.sqrt(3.0)
# Differences of larger numbers may overflow.
_HUGE_VALUE, _SHRINKAGE = 1e300, 2.0**-4
#: Of values without weight, which nothing bounds: their squares are still numbers.
MOST_STANDARD = 1e150
# Weights that are nothing beside the largest.
_NEGLIGIBLE_SHARE = 1e-100
# Gaps between values that are left as they are, and the exponent that is surely nothing.
_MIN_WIDEST_GAP, _MAX_EXPONENT = 1e3, 1500.0


@dataclass(frozen=True)
class Squashed:
    """Squashed rows, between 0 and 1, and what their derivative needs."""

    values: Table
    #: The standardised rows.
    standard: Table
    #: (d, 1): one over the deviation in the unit of the input; zero for constant rows.
    rate: Table

    def pull(self, a: Table, G: Table) -> tuple[Table, Table]:
        """Return the derivatives with respect to the input and to its weights.

        ``G`` is the gradient with respect to the values. Weights sum to one, so that their
        derivative is known up to a constant for each row.
        """
        slope = STEEPNESS * self.values * (1.0 - self.values) * G
        slope = np.where(self.rate > 0.0, slope, 0.0)
        total = slope.sum(axis=1, keepdims=True)
        moment = (slope * self.standard).sum(axis=1, keepdims=True)
        by_rate = slope - a * (total + self.standard * moment)
        with np.errstate(over="ignore", invalid="ignore"):  # told by those who asked
            by_input = np.where(by_rate == 0.0, 0.0, self.rate * by_rate)
        return by_input, -self.standard * (total + 0.5 * self.standard * moment)


def squash(x: Table, a: Table) -> Squashed:
    """Squash rows ``x`` (d, n) with weights ``a`` (d or 1, n) that sum to one."""
    weighted = np.broadcast_to(a > 0.0, x.shape)
    low = np.min(x, axis=1, keepdims=True, where=weighted, initial=np.inf)
    high = np.max(x, axis=1, keepdims=True, where=weighted, initial=-np.inf)
    shrink = np.where(np.abs(x).max(axis=1, keepdims=True) > _HUGE_VALUE, _SHRINKAGE, 1.0)
    # Counted from the lowest value and in units of the range, nothing overflows or cancels.
    span = high * shrink - low * shrink
    is_constant = span == 0.0
    unit = np.where(is_constant, 1.0, span)
    with np.errstate(over="ignore"):
        standard = np.clip((x * shrink - low * shrink) / unit, -MOST_STANDARD, MOST_STANDARD)
    standard -= (a * standard).sum(axis=1, keepdims=True)
    deviation = np.sqrt((a * standard**2).sum(axis=1, keepdims=True))
    standard /= np.where(is_constant, 1.0, deviation)
    with np.errstate(over="ignore", divide="ignore"):
        values = 1.0 / (1.0 + np.exp(-STEEPNESS * standard))
        # It may be too large for a number: then so is any gradient but zero, which is told.
        rate = np.where(is_constant, 0.0, shrink / (unit * np.where(is_constant, 1.0, deviation)))
    return Squashed(values, standard, rate)


def normalise(weights: Table) -> tuple[Table, Table]:
    """Return weights that sum to one in each row, and their sums before.

    Weights that are nothing beside the largest are zero: sums of such a size would underflow.
    """
    largest = weights.max(axis=1, keepdims=True)
    shares = weights / largest
    shares = np.where(shares > _NEGLIGIBLE_SHARE, shares, 0.0)
    total = shares.sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # the derivatives with respect to such weights are zero
        return shares / total, total * largest


def middles(x: Table) -> Table:
    """Return the middle of the range of each row (d, 1); for constant rows, their value."""
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    middle: Table = np.where(low == high, low, 0.5 * low + 0.5 * high)
    return middle


def close_gaps(x: Table, n_targets: int, epsilon: float) -> Table:
    """Return values with gaps that are no wider than what the plans of squared costs can tell.

    For values ``x < x'`` and targets ``y < y'`` such a plan has ``P(x, y') P(x', y) / (P(x, y)
    P(x', y')) = exp(-2 (x' - x) (y' - y) / epsilon)``. Once that is nothing, a wider gap changes
    nothing, but takes the digits of the other values, and at last overflows.
    """
    widest = max(_MIN_WIDEST_GAP, _MAX_EXPONENT * epsilon * n_targets)
    order = np.argsort(x, axis=1)
    ordered = np.take_along_axis(x, order, axis=1)
    with np.errstate(over="ignore"):  # infinite gaps are wide
        gaps = np.diff(ordered, axis=1)
    rows = np.flatnonzero((gaps > widest).any(axis=1) | (np.abs(ordered[:, 0]) > widest))
    if not rows.size:
        return x
    result = x.copy()
    start = np.clip(ordered[rows, :1], -widest, widest)
    steps = np.cumsum(np.hstack([start, np.minimum(gaps[rows], widest)]), axis=1)
    result[rows[:, None], order[rows]] = steps
    return result


def pull_normalised(shares: Table, totals: Table, gradient: Table) -> Table:
    """Return the gradient with respect to weights from that with respect to their shares."""
    mean = (shares * gradient).sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # told by finite
        by_weights: Table = (gradient - mean) / totals
    return by_weights


@dataclass(frozen=True)
class SoftPlan:
    """The plan of rows of values, and the way back to the values and weights as they were given."""

    x: Table
    #: Shares of the weights, and their sums before.
    a: Table
    b: Table
    totals: tuple[Table, Table]
    squashed: Squashed | RobustlySquashed | None
    #: Solved, or after a fixed number of iterations.
    plan: SolvedPlan | SinkhornPlan

    @property
    def potentials(self) -> Table | None:
        """Those of the targets, of plans that are solved."""
        return self.plan.potentials

    def pull_input(self, gradients: Gradients) -> tuple[Table, Table]:
        """Return gradients with respect to the values given, not squashed, and their shares."""
        transport = self.plan.transport
        if transport.cost is not None:
            check_slope(transport.cost, transport.rows.x, transport.rows.y)
        if self.squashed is None:
            return gradients.x, gradients.a
        by_input, by_share = self.squashed.pull(self.a, gradients.x)
        return by_input, gradients.a + by_share


def make_plan(
    x: Table,
    weights: Table,
    target_weights: Table,
    settings: Settings,
    potentials: Table | None = None,
) -> SoftPlan:
    """Solve the transport of each row to equally spaced targets between 0 and 1.

    With the ``potentials`` of an earlier solution of the same rows, nothing is left to solve.
    """
    a, a_total = normalise(weights)
    b, b_total = normalise(target_weights)
    squashed: Squashed | RobustlySquashed | None = None
    if settings.squash:
        squashed = squash_robustly(x, a) if settings.squash == "robust" else squash(x, a)
    plan: SolvedPlan | SinkhornPlan
    y = np.linspace(0.0, 1.0, b.shape[1])[None]
    values = x if squashed is None else squashed.values
    if settings.cost is None and settings.n_iter is None:
        values = close_gaps(values, b.shape[1], settings.epsilon)
        if is_long(values.shape[1], b.shape[1]):
            long = LongTransport(values, y, a, b, epsilon=settings.epsilon)
            plan = _solve(long, settings, potentials)
            return SoftPlan(x, a, b, (a_total, b_total), squashed, plan)
    check_size(values.shape[1], b.shape[1])
    transport = RowTransport(
        *(values, y, a, b),
        epsilon=settings.epsilon,
        cost=settings.cost,
    )
    if settings.cost is not None and potentials is None:
        check_order(settings.cost, transport.rows.x, transport.rows.y)
    if settings.n_iter is not None:
        plan = SinkhornPlan(transport, settings.n_iter)
    else:
        plan = _solve(transport, settings, potentials)
    return SoftPlan(x, a, b, (a_total, b_total), squashed, plan)


def _solve(
    transport: RowTransport | LongTransport, settings: Settings, potentials: Table | None
) -> SolvedPlan:
    if potentials is None:
        solution = transport.solve(tol=settings.tol)
        report_unsolved(solution.error, settings.tol)
        potentials = solution.potentials
    return SolvedPlan(transport, potentials)


def check_size(n: int, m: int) -> None:
    """Refuse plans that are too large for the memory: those of a cost or number of steps."""
    if is_long(n, m) and n * m > MOST_ENTRIES:
        message = (
            f"The plan between {n} values and {m} targets has {n * m} entries, which a cost of "
            f"one's own and a fixed n_iter need at once; {MOST_ENTRIES} are accepted. Give fewer "
            "targets (n_targets), or use cost='squared' and n_iter=None, which need no such table."
        )
        raise InvalidInputError(message)


def report_unsolved(error: Table, tol: float) -> None:
    """Warn if the error of some row is above ``tol``; refuse one that is not a number."""
    if not np.isfinite(error).all():
        message = (
            "The transport of some row could not be computed: its numbers are too far apart for "
            "this epsilon. Use squash=True, scale the values to about [0, 1], or increase epsilon."
        )
        raise NumericalError(message)
    unsolved = int((error > tol).sum())
    if unsolved:
        message = (
            f"The transport of {unsolved} of {error.size} rows is not solved to tol={tol:g}: the "
            f"largest relative error of its sums is {error.max():.1e}. Increase epsilon or tol."
        )
        warn_user(message, TransportWarning)


def finite(numbers: Table, name: str) -> Table:
    """Return numbers that are finite, and refuse others."""
    if not np.isfinite(numbers).all():
        message = (
            f"The gradient with respect to {name} is too large for a float64. Scale the values up, "
            "or the gradient that is pulled back down."
        )
        raise NumericalError(message)
    return numbers
