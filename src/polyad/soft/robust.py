r"""Squashing that outliers do not move: by the median, and the median distance from it.

A value :math:`x` becomes :math:`1/2 + \arctan(z) / \pi`, :math:`z = (x - c) / s`, the distribution
function of the Cauchy law whose quartiles are :math:`c \pm s`. Its tails are so long that values
ten times as far out as others are still told apart. Half of the weights may be anything without
moving :math:`c` and :math:`s` beyond the other half. Where more than half of them are at :math:`c`,
:math:`s` is the median of the distances that are not zero.

The result increases with the value, and does not change if the row is shifted or multiplied by a
positive number. Medians are continuous in the values, and have a derivative wherever it is clear
which values they are; it does not depend on the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Differences of larger numbers may overflow.
_HUGE_VALUE, _SHRINKAGE = 1e300, 2.0**-4
# The squares of larger standard numbers would.
_MAX_STANDARD = 1e150
# Of sums of weights that are a half.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class RobustlySquashed:
    """Squashed rows, between 0 and 1, and what their derivative needs."""

    values: Table
    #: The rows in units of ``s`` from ``c``.
    standard: Table
    #: (d, 1): one over ``s``; zero for constant rows.
    rate: Table
    #: Derivatives of ``c`` and of ``s`` with respect to the row.
    by_centre: Table
    by_scale: Table

    def pull(self, _a: Table, G: Table) -> tuple[Table, Table]:
        """Return the derivatives with respect to the input and to its weights, which are zero."""
        slope = np.where(self.rate > 0.0, G / (np.pi * (1.0 + self.standard**2)), 0.0)
        total = slope.sum(axis=1, keepdims=True)
        moment = (slope * self.standard).sum(axis=1, keepdims=True)
        by_rate = slope - self.by_centre * total - self.by_scale * moment
        with np.errstate(over="ignore", invalid="ignore"):  # told by those who asked
            by_input = np.where(by_rate == 0.0, 0.0, self.rate * by_rate)
        return by_input, np.zeros_like(G)


def squash_robustly(x: Table, a: Table) -> RobustlySquashed:
    """Squash rows ``x`` (d, n) with weights ``a`` (d or 1, n) that sum to one."""
    a = np.broadcast_to(a, x.shape)
    shrink = np.where(np.abs(x).max(axis=1, keepdims=True) > _HUGE_VALUE, _SHRINKAGE, 1.0)
    x = x * shrink
    centre, by_centre = _median(x, a)
    distance = np.abs(x - centre)
    scale, by_scale = _median(distance, a)
    is_apart = (a > 0.0) & (distance > 0.0)
    few = np.flatnonzero((scale[:, 0] == 0.0) & is_apart.any(axis=1))
    if few.size:
        apart = np.where(is_apart[few], a[few], 0.0)
        apart /= apart.sum(axis=1, keepdims=True)
        scale[few], by_scale[few] = _median(distance[few], apart)
    by_scale *= np.sign(x - centre)
    by_scale -= by_scale.sum(axis=1, keepdims=True) * by_centre
    is_constant = scale == 0.0
    with np.errstate(over="ignore", divide="ignore"):
        standard = (x - centre) / np.where(is_constant, 1.0, scale)
        standard = np.clip(standard, -_MAX_STANDARD, _MAX_STANDARD)
        rate = np.where(is_constant, 0.0, shrink / scale)
    values = 0.5 + np.arctan(standard) / np.pi
    return RobustlySquashed(values, standard, rate, by_centre, by_scale)


def _median(x: Table, a: Table) -> tuple[Table, Table]:
    """Return the weighted median of each row (d, 1), and its derivative (d, n).

    It is the mean of two values where the weights below and above are a half each.
    """
    order = np.argsort(x, axis=1, kind="stable")
    below = np.cumsum(np.take_along_axis(a, order, axis=1), axis=1)
    gradient = np.zeros_like(x)
    median = np.zeros((len(x), 1))
    for is_reached in (below >= 0.5 - _ROUNDING, below > 0.5 + _ROUNDING):
        place = np.take_along_axis(order, is_reached.argmax(axis=1)[:, None], axis=1)
        median += 0.5 * np.take_along_axis(x, place, axis=1)
        np.put_along_axis(
            gradient, place, np.take_along_axis(gradient, place, axis=1) + 0.5, axis=1
        )
    return median, gradient
