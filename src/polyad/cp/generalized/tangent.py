r"""The part of a sum over all cells that needs no sample.

Nearly all cells of a sparse tensor are zeros, and there the loss is :math:`f(0, m)`, a smooth
function of the model value alone. Its parabola at a typical model value,
:math:`g(m) = \alpha m + \tfrac{\beta}{2} m^2` up to a constant, has a sum over all cells that is
known exactly, from sums over the columns of the factors:

.. math:: \sum m = \sum_r \prod_k \sum_i a^{(k)}_{ir}, \qquad
    \sum m^2 = \sum_{r,s} \prod_k (A_k^\top A_k)_{rs}.

A sample then only has to estimate the sum of :math:`f(x, m) - g(m)`: a control variate. The
estimate stays unbiased, whatever the coefficients, and its variance falls by orders of magnitude:
for the Poisson loss and for squares the zeros have no error at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.cp.generalized.kernels import Known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.losses import Loss

    Matrix = NDArray[np.float64]


class Tangent(NamedTuple):
    """The coefficients of ``linear * m + square / 2 * m**2``."""

    linear: float
    square: float

    def value(self, m: NDArray[Any]) -> NDArray[Any]:
        """Return the parabola at model values."""
        return m * (self.linear + (0.5 * self.square) * m)

    def slope(self, m: NDArray[Any]) -> NDArray[Any] | float:
        """Return its derivative."""
        return self.linear + self.square * m if self.square else self.linear


def tangent_at(loss: Loss, m: float) -> Tangent:
    """Return the parabola that touches the loss of a zero at a typical model value."""
    zero, point = np.zeros(1), np.array([m])
    with np.errstate(all="ignore"):
        slope = float(loss.derivative(zero, point)[0])
        bend = float(loss.curvature(zero, point)[0])
    if not math.isfinite(slope):
        return Tangent(0.0, 0.0)
    # A parabola that bends down is wrong by more than the straight line for large model values.
    # Differences of derivatives leave a bend of rounding where there is none.
    if not (math.isfinite(bend) and bend * max(abs(m), 1e-300) > 1e-6 * abs(slope)):
        bend = 0.0
    return Tangent(slope - bend * m, bend)


def sum_over_all(tangent: Tangent, factors: Sequence[Matrix]) -> float:
    """Return the sum of the parabola over all cells of a model."""
    total = 0.0
    if tangent.linear:
        total += tangent.linear * model_sum(factors)
    if tangent.square:
        grams = [factor.T @ factor for factor in factors]
        total += 0.5 * tangent.square * float(np.sum(np.prod(grams, axis=0)))
    return total


def model_sum(factors: Sequence[Matrix]) -> float:
    """Return the sum of a model over all cells."""
    return float(np.sum(np.prod([factor.sum(axis=0) for factor in factors], axis=0)))


def known_gradient(tangent: Tangent, factors: Sequence[Matrix], ridge: float) -> Known:
    """Return the gradient of the parabola's sum over all cells, and of a ridge, for each mode."""
    n_modes, rank = len(factors), factors[0].shape[1]
    sums = np.array([factor.sum(axis=0) for factor in factors])
    linear = tangent.linear * _products_of_others(sums)
    if not (tangent.square or ridge):
        return Known(linear, np.zeros((n_modes, 0, 0)))
    square = np.zeros((n_modes, rank, rank))
    if tangent.square:
        grams = np.array([factor.T @ factor for factor in factors])
        square = tangent.square * _products_of_others(grams)
    square += ridge * np.eye(rank)
    return Known(linear, square)


def _products_of_others(arrays: Matrix) -> Matrix:
    """Return, for each of some arrays, the product of the others; none is divided by."""
    result = np.ones_like(arrays)
    for k in range(len(arrays)):
        for other in range(len(arrays)):
            if other != k:
                result[k] *= arrays[other]
    return result
