"""Costs between values and targets, checked where used: numbers, order, slopes.

A cost is evaluated on a sample of values and targets before any work. It is submodular if, for
neighbours ``x < x'`` and ``y < y'`` of the sample,

    c(x, y) + c(x', y') <= c(x, y') + c(x', y),

as sums over neighbours then say the same of all pairs. Otherwise the plan does not keep the order
of the values, and what it gives are no ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Rows, and values or targets of each, in the sample.
_SAMPLE_ROWS, _SAMPLE_POINTS = 4, 64
# Rounding of costs, as a part of the largest.
_ROUNDING = 1e-9
# Differences of costs are taken this part of the range away, and known to this part of the largest
# slope; where a cost has a corner they are not, so that most of them must be wrong.
_STEP, _SLOPE_RTOL, _MAX_WRONG = 1e-6, 1e-3, 0.5


@dataclass(frozen=True)
class Cost:
    """A cost of one's own between values and targets.

    Parameters
    ----------
    value : callable
        ``value(x, y)`` returns the cost for arrays that are broadcast against each other. It must
        be submodular, ``d2c / dx dy <= 0``, for soft operators to keep the order of the values. Any
        convex function of ``x - y`` is. The operators refuse a cost that is not, for a sample of
        the values and targets.
    slope : callable
        ``slope(x, y)`` returns the derivative with respect to ``x``. Where it is needed, it is
        compared with differences of the cost on such a sample.
    """

    value: Callable[[Any, Any], Any]
    slope: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        for name in ("value", "slope"):
            if not callable(function := getattr(self, name)):
                message = f"{name}={function!r} of a cost must be a function of x and y."
                raise InvalidTypeError(message)


SQUARED = Cost(lambda x, y: (x - y) ** 2, lambda x, y: 2.0 * (x - y))


def read_table(found: Any, shape: tuple[int, ...], name: str) -> Table:
    """Return what ``value`` or ``slope`` of a cost gave as a table; refuse other shapes."""
    numbers = np.asarray(found)
    if numbers.dtype.kind not in "biuf":
        message = (
            f"{name}(x, y) of the cost gave {numbers.dtype} numbers; an array of real numbers is "
            "needed, one for each pair of the arguments."
        )
        raise InvalidTypeError(message)
    try:
        table: Table = np.broadcast_to(np.asarray(numbers, dtype=np.float64), shape)
    except ValueError:
        message = (
            f"{name}(x, y) of the cost gave the shape {numbers.shape}; its arguments are broadcast "
            f"against each other to {shape}, and each pair needs a number."
        )
        raise InvalidInputError(message) from None
    if not np.isfinite(table).all():
        message = (
            f"{name}(x, y) of the cost is {table[~np.isfinite(table)][0]} for some value and "
            "target; finite numbers are needed."
        )
        raise InvalidInputError(message)
    return table


def check_order(cost: Cost, x: Table, y: Table) -> None:
    """Refuse a cost that is not submodular for some of the values and targets."""
    points, targets = _sample(x, y)
    C = _evaluate(cost.value, points, targets, "value")
    crossed = C[:, 1:, 1:] - C[:, 1:, :-1] - C[:, :-1, 1:] + C[:, :-1, :-1]
    if (crossed > _ROUNDING * np.abs(C).max()).any():
        row, i, j = (int(k) for k in np.argwhere(crossed > _ROUNDING * np.abs(C).max())[0])
        low, high = (f"{points[row, k]:.3g}" for k in (i, i + 1))
        left, right = (f"{targets[min(row, len(targets) - 1), k]:.3g}" for k in (j, j + 1))
        message = (
            f"The cost is not submodular: c({low}, {left}) + c({high}, {right}) is larger than "
            f"c({low}, {right}) + c({high}, {left}), so that the order of values would not be "
            "kept. Give a convex function of x - y, or another with d2c / dx dy <= 0."
        )
        raise InvalidInputError(message)


def check_slope(cost: Cost, x: Table, y: Table) -> None:
    """Refuse a slope that is not the derivative of the cost with respect to its first argument."""
    points, targets = _sample(x, y)
    step = _STEP * max(np.ptp(points), np.ptp(targets), np.finfo(np.float64).tiny)
    slopes = _evaluate(cost.slope, points, targets, "slope")
    with np.errstate(all="ignore"):
        up, down = (
            np.asarray(cost.value(points[:, :, None] + way, targets[:, None, :]), dtype=np.float64)
            for way in (step, -step)
        )
        differences = np.broadcast_to((up - down) / (2.0 * step), slopes.shape)
    known = np.isfinite(differences)
    largest = max(np.abs(differences[known]).max(initial=0.0), np.abs(slopes).max())
    size = np.abs(up).max(initial=0.0, where=np.isfinite(up))
    rounding = 8.0 * np.finfo(np.float64).eps * size / step
    wrong = np.abs(differences - slopes)[known] > _SLOPE_RTOL * largest + rounding
    if wrong.size and wrong.mean() > _MAX_WRONG:
        message = (
            "slope(x, y) of the cost is not the derivative of value(x, y) with respect to x: "
            f"differences of the value give other numbers for {wrong.mean():.0%} of the pairs "
            "that were tried."
        )
        raise InvalidInputError(message)


def _evaluate(function: Any, points: Table, targets: Table, name: str) -> Table:
    shape = (*points.shape, targets.shape[1])
    return read_table(function(points[:, :, None], targets[:, None, :]), shape, name)


def _sample(x: Table, y: Table) -> tuple[Table, Table]:
    """Return increasing values of some rows, and their targets."""
    rows = np.unique(np.linspace(0, len(x) - 1, min(_SAMPLE_ROWS, len(x))).astype(int))
    points = np.sort(x[rows], axis=1)
    targets = y if len(y) == 1 else y[rows]
    return _thinned(points), _thinned(targets)


def _thinned(numbers: Table) -> Table:
    n = numbers.shape[1]
    chosen: Table = numbers[:, np.unique(np.linspace(0, n - 1, min(_SAMPLE_POINTS, n)).astype(int))]
    return chosen
