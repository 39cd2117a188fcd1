r"""Squashing: each row of values to the interval (0, 1), whatever its unit.

A row is standardised with its weighted mean and deviation and passed through the logistic function
:math:`1 / (1 + \exp(-\pi z / \sqrt 3))`, which is the distribution function of the logistic law of
mean 0 and deviation 1. The result does not change if the row is shifted or multiplied by a positive
number. A row whose values are all equal is mapped to 1/2, with a derivative of zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

_STEEPNESS = np.pi / np.sqrt(3.0)
# Differences of larger numbers may overflow.
_HUGE_VALUE, _SHRINKAGE = 1e300, 2.0**-4
# Of values without weight, which nothing bounds: their squares are still numbers.
_MAX_STANDARD = 1e150


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
        slope = _STEEPNESS * self.values * (1.0 - self.values) * G
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
        standard = np.clip((x * shrink - low * shrink) / unit, -_MAX_STANDARD, _MAX_STANDARD)
    standard -= (a * standard).sum(axis=1, keepdims=True)
    deviation = np.sqrt((a * standard**2).sum(axis=1, keepdims=True))
    standard /= np.where(is_constant, 1.0, deviation)
    with np.errstate(over="ignore", divide="ignore"):
        values = 1.0 / (1.0 + np.exp(-_STEEPNESS * standard))
        # It may be too large for a number: then so is any gradient but zero, which is told.
        rate = np.where(is_constant, 0.0, shrink / (unit * np.where(is_constant, 1.0, deviation)))
    return Squashed(values, standard, rate)
