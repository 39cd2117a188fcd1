"""Losses of continuous data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyad.core.arrays import namespace_of
from polyad.exceptions import InvalidInputError
from polyad.losses.loss import (
    Loss,
    PositiveLoss,
    check_above_zero,
    overwritten_log,
    x_log_x,
)

if TYPE_CHECKING:
    from polyad.core.arrays import Array


@dataclass(frozen=True)
class GaussianLoss(Loss):
    """Half the squared error, ``'frobenius'``: data with symmetric noise of even size."""

    name = "gaussian"

    @property
    def degree(self) -> float:
        """Squares."""
        return 2.0

    @property
    def is_convex(self) -> bool:
        """Yes."""
        return True

    def value(self, x: Array, m: Array) -> Array:
        """Return ``(m - x)² / 2``."""
        return 0.5 * (m - x) ** 2

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``m - x``."""
        return m - x

    def curvature(self, x: Array, m: Array) -> Array:
        """Return 1."""
        return namespace_of(m).ones_like(m)

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return value and derivative."""
        difference = m - x
        return 0.5 * difference * difference, difference


class _AboveZeroLoss(PositiveLoss):
    """A loss of entries above zero, whatever their unit: ``t - 1 - log t`` of a ratio t."""

    domain = "numbers above zero"
    advice = (
        "'poisson' takes zeros, 'gaussian' data of any sign. Mark zeros that are missing "
        "entries by NaN, or leave them out of sparse data with missing='unobserved'."
    )

    @property
    def degree(self) -> float:
        """The unit does not matter."""
        return 0.0

    def accepts(self, x: Array) -> Array:
        """Say of each entry whether it is above zero."""
        return x > 0


@dataclass(frozen=True)
class GammaLoss(_AboveZeroLoss):
    """Half the gamma deviance: positive data whose noise grows with its size (CP-Continuous)."""

    name = "gamma"

    def value(self, x: Array, m: Array) -> Array:
        """Return ``x / m - 1 - log(x / m)``."""
        ratio = x / self._above_zero(x, m)
        return ratio - 1.0 - namespace_of(m).log(ratio)

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``(1 - x / m) / m``."""
        positive = self._above_zero(x, m)
        return (1.0 - x / positive) / positive

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``(2 x / m - 1) / m²``, which is negative for m above 2 x."""
        positive = self._above_zero(x, m)
        # Squares of small numbers vanish.
        return (2.0 * x / positive - 1.0) / positive / positive

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return value and derivative."""
        inverse = 1.0 / self._above_zero(x, m)
        ratio = x * inverse
        excess = ratio - 1.0
        inverse *= excess
        inverse *= -1.0
        excess -= overwritten_log(ratio)
        return excess, inverse


@dataclass(frozen=True)
class RayleighLoss(_AboveZeroLoss):
    """Negative log-likelihood of Rayleigh data: the sizes of random vectors; m is their mean."""

    name = "rayleigh"

    def value(self, x: Array, m: Array) -> Array:
        """Return ``t - 1 - log t`` of ``t = π x² / (4 m²)``."""
        return self.evaluate(x, m)[0]

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``2 (1 - t) / m``."""
        positive = self._above_zero(x, m)
        return (2.0 - (math.pi / 2.0) * (x / positive) ** 2) / positive

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``(6 t - 2) / m²``."""
        positive = self._above_zero(x, m)
        return ((1.5 * math.pi) * (x / positive) ** 2 - 2.0) / positive / positive

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return value and derivative."""
        inverse = 1.0 / self._above_zero(x, m)
        ratio = x * inverse
        excess = (math.pi / 4.0) * ratio * ratio - 1.0
        value = excess - math.log(math.pi / 4.0) - 2.0 * namespace_of(m).log(ratio)
        return value, -2.0 * excess * inverse

    def constant(self, mean: float) -> float | None:
        """Return None: it follows from the mean of the squares, which is not given."""
        return None


@dataclass(frozen=True)
class HuberLoss(Loss):
    """Half the square of small errors, proportional to large ones: data with outliers.

    Parameters
    ----------
    threshold : float, default=1.0
        The error, in the unit of the data, beyond which an entry counts as an outlier.
    nonnegative : bool, default=False
        Whether factors, and so model values, are kept from being negative. The data may have any
        sign.
    """

    threshold: float = 1.0
    nonnegative: bool = False
    name = "huber"

    def __post_init__(self) -> None:
        check_above_zero("HuberLoss", "threshold", self.threshold)
        if not isinstance(self.nonnegative, bool):
            message = f"HuberLoss needs True or False as nonnegative, got {self.nonnegative!r}."
            raise InvalidInputError(message)
        if self.nonnegative:
            object.__setattr__(self, "lower", 0.0)

    @property
    def degree(self) -> float:
        """Squares, if the threshold follows the unit."""
        return 2.0

    @property
    def is_convex(self) -> bool:
        """Yes."""
        return True

    def value(self, x: Array, m: Array) -> Array:
        """Return ``d² / 2`` or ``threshold (|d| - threshold / 2)`` of ``d = m - x``."""
        return self.evaluate(x, m)[0]

    def derivative(self, x: Array, m: Array) -> Array:
        """Return the difference, cut at the threshold on both sides."""
        return namespace_of(m).clip(m - x, -self.threshold, self.threshold)

    def curvature(self, x: Array, m: Array) -> Array:
        """Return 1 for small errors and 0 for large ones."""
        xp = namespace_of(m)
        return xp.where(xp.abs(m - x) <= self.threshold, xp.ones_like(m), xp.zeros_like(m))

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return value and derivative."""
        difference = m - x
        clipped = namespace_of(m).clip(difference, -self.threshold, self.threshold)
        return clipped * (difference - 0.5 * clipped), clipped

    def constant(self, mean: float) -> float | None:
        """Return None: it is no function of the mean."""
        return None

    def divided(self, unit: float) -> Loss:
        """Return the loss of data that was divided by a number, which divides the threshold."""
        return replace(self, threshold=self.threshold / unit)


@dataclass(frozen=True)
class BetaDivergenceLoss(PositiveLoss):
    """The β-divergence, between gamma (β = 0), Poisson (β = 1) and squared error (β = 2).

    Parameters
    ----------
    beta : float, default=0.5
        Smaller values give small entries more weight. Data with zeros needs ``beta`` above zero.
    """

    beta: float = 0.5
    name = "beta"
    domain = "numbers that are not negative, and above zero unless beta is"

    def __post_init__(self) -> None:
        if not isinstance(self.beta, int | float) or not math.isfinite(self.beta):
            message = f"BetaDivergenceLoss needs a finite number as beta, got {self.beta!r}."
            raise InvalidInputError(message)

    @property
    def degree(self) -> float:
        """The power of the unit is beta."""
        return float(self.beta)

    @property
    def is_convex(self) -> bool:
        """Between Poisson and squared error."""
        return 1.0 <= self.beta <= 2.0

    def value(self, x: Array, m: Array) -> Array:
        """Return ``m^β / β - x m^(β-1) / (β-1) + x^β / (β (β-1))``, or its limit for 0 and 1."""
        return self.evaluate(x, m)[0] + self.offset(x)

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``m^(β-1) - x m^(β-2)``."""
        positive = self._above_zero(x, m)
        return positive ** (self.beta - 1.0) * (1.0 - x / positive)

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``(β-1) m^(β-2) - (β-2) x m^(β-3)``."""
        positive, beta = self._above_zero(x, m), self.beta
        return positive ** (beta - 2.0) * ((beta - 1.0) - (beta - 2.0) * x / positive)

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return the value without its last term, and the derivative."""
        xp = namespace_of(m)
        positive, beta = self._above_zero(x, m), self.beta
        if beta == 1.0:
            return positive - x * xp.log(positive), 1.0 - x / positive
        if beta == 0.0:
            inverse = 1.0 / positive
            ratio = x * inverse
            return ratio + xp.log(positive), (1.0 - ratio) * inverse
        power = positive ** (beta - 1.0)
        value = power * (positive / beta - x / (beta - 1.0))
        return value, power * (1.0 - x / positive)

    def offset(self, x: Array) -> Array:
        """Return ``x^β / (β (β-1))``, or its limit for 0 and 1."""
        xp = namespace_of(x)
        if self.beta == 1.0:
            return x_log_x(x) - x
        if self.beta == 0.0:
            return -1.0 - xp.log(x)
        return x**self.beta / (self.beta * (self.beta - 1.0))

    def accepts(self, x: Array) -> Array:
        """Say of each entry whether its divergence is finite."""
        return x >= 0 if self.beta > 0 else x > 0
