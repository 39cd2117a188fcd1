r"""The entropic Wasserstein loss of samples, through its conjugate.

For a sample ``x`` on the simplex and :math:`K = e^{-M/\varepsilon}`, the loss of a model ``y`` is

.. math:: H_x(y) = \min_{T 1 = x, T^\top 1 = y} \langle M, T \rangle
    + \varepsilon \langle T, \log T \rangle,

which has no closed form, but its conjugate has (Cuturi and Peyré): with :math:`\alpha =
e^{g/\varepsilon}`

.. math:: H_x^*(g) = \varepsilon \langle x, \log K \alpha - \log x \rangle, \qquad
    \nabla H_x^*(g) = \alpha * K \frac{x}{K \alpha}, \qquad
    \nabla^2 H_x^*(g) = \tfrac1\varepsilon \big(\mathrm{diag}(q) - T^\top \mathrm{diag}(x) T\big)

where ``q`` is the gradient, a distribution, and ``T`` has the rows of the plan, which sum to one.
(The paper prints the sign of :math:`\log x` wrong, and assumes a symmetric K: where it is not, the
second K is its transpose.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks
from polyad.transport.geometry import finite_or_zero, log

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyad.core.arrays import Array
    from polyad.transport.geometry import Geometry

# Numbers that a thread takes at a time.
_BLOCK = 1 << 16
# The share of a cell below which its slope does not fall, and how far self-transport is solved.
_LEAST_SHARE = 1e-20
_SELF_STEPS, _SELF_PRECISION = 1000, 1e-9


@dataclass(frozen=True)
class Samples:
    """Samples on the simplex, the grid in the last axes, and how mass moves between cells.

    ``least`` is the lowest loss of each, that of its blur ``K (x / K 1)``. ``tilt`` is the slope of
    what is taken from the losses, if anything: ``H(y) - <tilt, y>``.
    """

    values: Array
    geometry: Geometry
    entropy: Array
    least: Array
    tilt: Array | None = None

    @classmethod
    def of(cls, values: Array, geometry: Geometry) -> Samples:
        """Take in samples whose entries sum to one."""
        xp = namespace_of(values)
        axes = grid_axes(values)
        logs = log(xp.where(values > 0, values, xp.ones_like(values)))
        entropy = xp.sum(values * logs, axis=axes)
        ones = geometry.log_apply(xp.zeros_like(values[:1, ...]))
        least = geometry.epsilon * (entropy - xp.sum(values * ones, axis=axes))
        return cls(values, geometry, entropy, least)

    def take(self, rows: Array) -> Samples:
        """Return some of the samples."""
        values, entropy, least = (own[rows] for own in (self.values, self.entropy, self.least))
        tilt = None if self.tilt is None else self.tilt[rows, ...]
        return Samples(values, self.geometry, entropy, least, tilt)

    def blurred(self) -> Array:
        """Return the model of the lowest loss of each sample, ``K (x / K 1)``."""
        return Conjugate.at(self, namespace_of(self.values).zeros_like(self.values)).mean


@dataclass(frozen=True)
class Conjugate:
    r"""The conjugate of the losses of samples at potentials: value, gradient and curvature.

    Of ``scaled`` and ``inverse``, plain geometries have :math:`\alpha` up to a factor and
    :math:`1 / K \alpha`, others the logarithms of both. ``sent`` is :math:`x / K \alpha` of plain
    ones, and the samples themselves of others.
    """

    samples: Samples
    value: Array
    mean: Array
    scaled: Array
    inverse: Array
    sent: Array

    @classmethod
    def at(cls, samples: Samples, potentials: Array) -> Conjugate:
        """Evaluate at potentials ``g``, one array for each sample."""
        xp = namespace_of(potentials)
        geometry, x = samples.geometry, samples.values
        potentials = potentials if samples.tilt is None else potentials + samples.tilt
        is_plain = geometry.is_plain(potentials)
        value = xp.empty_like(samples.entropy)
        mean, scaled, inverse = (xp.empty_like(potentials) for _ in range(3))
        sent = xp.empty_like(potentials) if is_plain else x
        axes = grid_axes(potentials)

        def fill(start: int, stop: int) -> None:
            own, logs = x[start:stop, ...], potentials[start:stop, ...] / geometry.epsilon
            high = finite_or_zero(xp.max(logs, axis=axes, keepdims=True))
            if is_plain:
                alpha = xp.exp(logs - high)
                moved = geometry.apply(alpha)
                ratio = 1.0 / moved
                sent[start:stop, ...] = own * ratio
                back = geometry.transposed.apply(sent[start:stop, ...])
                mean[start:stop, ...] = alpha * back
                scaled[start:stop, ...], inverse[start:stop, ...] = alpha, ratio
                high_log = xp.log(moved)
            else:
                high_log = geometry.log_apply(logs - high)
                back = geometry.transposed.log_apply(log(own) - high_log)
                mean[start:stop, ...] = xp.exp(logs - high + back)
                scaled[start:stop, ...], inverse[start:stop, ...] = logs - high, -high_log
            value[start:stop] = xp.sum(own * (high_log + high), axis=axes)

        by_samples(fill, potentials)
        value = geometry.epsilon * (value - samples.entropy)
        return cls(samples, value, mean, scaled, inverse, sent)

    def take(self, rows: Array) -> Conjugate:
        """Return the part of some samples."""
        parts = (self.value, self.mean, self.scaled, self.inverse, self.sent)
        return Conjugate(self.samples.take(rows), *(own[rows, ...] for own in parts))

    def returned(self, direction: Array, rows: slice) -> Array:
        """Return ``T' diag(x) T`` times a direction of some of the samples.

        What comes back of it by the plan: the curvature is ``diag(q)`` less this, over epsilon.
        """
        geometry = self.samples.geometry
        scaled, inverse = self.scaled[rows, ...], self.inverse[rows, ...]
        if not geometry.is_plain(direction):
            there = _signed(geometry, direction, scaled, inverse) * self.sent[rows, ...]
            return _signed(geometry.transposed, there, inverse, scaled)
        there = geometry.apply(scaled * direction)
        there *= inverse
        there *= self.sent[rows, ...]
        result = geometry.transposed.apply(there)
        result *= scaled
        return result


def _signed(geometry: Geometry, own: Array, before: Array, after: Array) -> Array:
    """Return ``exp(after) K (exp(before) v)`` of numbers of both signs."""
    xp = namespace_of(own)
    zeros = xp.zeros_like(own)
    above = xp.exp(geometry.log_apply(log(xp.maximum(own, zeros)) + before) + after)
    return above - xp.exp(geometry.log_apply(log(xp.maximum(-own, zeros)) + before) + after)


def self_transport(values: Array, geometry: Geometry) -> tuple[Array, Array]:
    r"""Return the loss of each distribution to itself, :math:`W(y, y)`, and half its gradient.

    The plan is symmetric, :math:`e^{u_i + u_j} K_{ij}`; the mean of two steps of Sinkhorn finds it.
    """
    xp = namespace_of(values)
    axes, epsilon = grid_axes(values), geometry.epsilon
    # Cells without mass have none in the plan, but a finite slope.
    logs = log(xp.maximum(values, xp.full_like(values, _LEAST_SHARE)))
    scales = 0.5 * logs
    for _ in range(_SELF_STEPS):
        missed = logs - scales - geometry.log_apply(scales)
        scales = scales + 0.5 * missed
        if float(xp.max(xp.abs(missed * values))) <= _SELF_PRECISION:
            break
    mass = xp.sum(xp.exp(scales + geometry.log_apply(scales)), axis=axes)
    # The value of the dual, whose error is of second order.
    value = epsilon * (2.0 * xp.sum(values * scales, axis=axes) - mass + 1.0)
    return value, epsilon * scales


def grid_axes(values: Array) -> tuple[int, ...]:
    """Return the axes of the grid, which are all but that of the samples."""
    return tuple(range(1, values.ndim))


def by_samples(fill: Callable[[int, int], None], example: Array) -> None:
    """Call a function of a range of samples, for NumPy arrays in blocks on threads."""
    n = example.shape[0]
    step = max(1, _BLOCK // max(1, example[0].size)) if is_numpy_array(example) else n
    with np.errstate(divide="ignore"):
        run_blocks(fill, cut(n, step))
