"""Losses of counts and of binary data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyad.core.arrays import namespace_of
from polyad.losses.loss import (
    EPSILON,
    Loss,
    PositiveLoss,
    check_above_zero,
    overwritten_log,
    x_log_x,
)

if TYPE_CHECKING:
    from polyad.core.arrays import Array

# Entries below this part of their model value count as zero: their ratio would be infinite.
_LEAST_SHARE = 1e-300


@dataclass(frozen=True)
class PoissonLoss(PositiveLoss):
    """Half the Poisson deviance with identity link: counts, as in :class:`~polyad.PoissonCP`.

    It is the generalised Kullback-Leibler divergence, ``'kl'``.
    """

    name = "poisson"

    @property
    def degree(self) -> float:
        """Proportional to the unit."""
        return 1.0

    @property
    def is_convex(self) -> bool:
        """Yes."""
        return True

    def value(self, x: Array, m: Array) -> Array:
        """Return ``m - x + x log(x / m)``."""
        xp = namespace_of(m)
        positive = self._above_zero(x, m)
        # x (r - log(1 + r)) with r = m / x - 1: what cancels near zero is small already. Far below
        # the entry, r is rounded to minus one; of next to no entry, only m is left.
        is_entry = x > _LEAST_SHARE * positive
        entry = xp.where(is_entry, x, xp.ones_like(x))
        ratio = (positive - entry) / entry
        near = xp.log1p(xp.clip(ratio, -0.5, None))
        logarithm = xp.where(ratio < -0.5, xp.log(positive / entry), near)
        return xp.where(is_entry, entry * (ratio - logarithm), positive)

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``1 - x / m``."""
        positive = self._above_zero(x, m)
        return (positive - x) / positive

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``x / m²``."""
        positive = self._above_zero(x, m)
        return x / positive / positive

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return ``m - x log m`` and the derivative."""
        positive = self._above_zero(x, m)
        slope = x / positive
        slope *= -1.0
        slope += 1.0
        value = namespace_of(m).log(positive)
        value *= x
        positive -= value
        return positive, slope

    def offset(self, x: Array) -> Array:
        """Return ``x log x - x``."""
        return x_log_x(x) - x


@dataclass(frozen=True)
class PoissonLogLoss(PositiveLoss):
    """Half the Poisson deviance with log link: counts whose effects multiply."""

    name = "poisson-log"
    is_natural = True
    lower = -math.inf

    @property
    def is_convex(self) -> bool:
        """Yes."""
        return True

    def value(self, x: Array, m: Array) -> Array:
        """Return ``exp(m) - x m`` plus what makes its minimum zero."""
        return self.evaluate(x, m)[0] + self.offset(x)

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``exp(m) - x``."""
        return namespace_of(m).exp(m) - x

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``exp(m)``."""
        return namespace_of(m).exp(m)

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return ``exp(m) - x m`` and the derivative."""
        power = namespace_of(m).exp(m)
        return power - x * m, power - x

    def offset(self, x: Array) -> Array:
        """Return ``x log x - x``."""
        return x_log_x(x) - x

    def mean(self, m: Array) -> Array:
        """Return ``exp(m)``."""
        return namespace_of(m).exp(m)

    def constant(self, mean: float) -> float | None:
        """Return the logarithm of the mean."""
        return math.log(mean) if mean > 0 else -math.inf


class _BinaryLoss(Loss):
    """A loss of zeros and ones."""

    domain = "zeros and ones"
    advice = "Threshold the data, for example X > 0, or use 'poisson' for counts."

    def accepts(self, x: Array) -> Array:
        """Say of each entry whether it is zero or one."""
        return (x == 0) | (x == 1)


@dataclass(frozen=True)
class BernoulliOddsLoss(_BinaryLoss):
    """Negative log-likelihood of binary data; the model is the odds of a one."""

    name = "bernoulli-odds"
    lower = 0.0

    def value(self, x: Array, m: Array) -> Array:
        """Return ``log(1 + m) - x log m``."""
        xp = namespace_of(m)
        odds = m + EPSILON
        # x is zero or one: one logarithm does for both terms, without cancellation.
        return xp.log1p(xp.where(x > 0, 1.0 / odds, odds))

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``1 / (1 + m) - x / m``."""
        odds = m + EPSILON
        return 1.0 / (1.0 + odds) - x / odds

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``x / m² - 1 / (1 + m)²``, which is negative for zeros."""
        odds = m + EPSILON
        share = 1.0 / (1.0 + odds)
        return x / odds**2 - share * share  # powers below zero are slow

    def bend(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return ``1 / (1 + m) - x / m`` and its derivative."""
        odds = m + EPSILON
        share = 1.0 / (1.0 + odds)
        ratio = x / odds
        slope = share - ratio
        share *= share
        ratio /= odds
        ratio -= share
        return slope, ratio

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return value and derivative."""
        # Where x is one, `kept` is the odds, and one elsewhere: no branches, one logarithm.
        odds = m + EPSILON
        kept = odds - 1.0
        kept *= x
        kept += 1.0
        odds += 1.0
        share = 1.0 / odds
        value = overwritten_log(kept * share)
        value *= -1.0
        share /= kept
        share *= 1.0 - 2.0 * x
        return value, share

    def beyond_zero(self, x: Array, m: Array) -> tuple[Array, Array, Array]:
        """Return ``-x log m`` and its derivatives."""
        odds = m + EPSILON
        slope = x / odds
        return -x * namespace_of(m).log(odds), -slope, slope / odds

    def mean(self, m: Array) -> Array:
        """Return the probability ``m / (1 + m)``."""
        return m / (1.0 + m)

    def constant(self, mean: float) -> float | None:
        """Return the odds of the share of ones."""
        return mean / (1.0 - mean) if mean < 1 else math.inf


@dataclass(frozen=True)
class BernoulliLogitLoss(_BinaryLoss):
    """Negative log-likelihood of binary data; the model is the logarithm of the odds of a one."""

    name = "bernoulli-logit"
    is_natural = True

    @property
    def is_convex(self) -> bool:
        """Yes."""
        return True

    def value(self, x: Array, m: Array) -> Array:
        """Return ``log(1 + exp(m)) - x m``."""
        xp = namespace_of(m)
        # x is zero or one: softplus(m) - x m = softplus(-m) for a one, without cancellation.
        signed = xp.where(x > 0, -m, m)
        positive = xp.maximum(signed, xp.zeros_like(m))
        return positive + xp.log1p(xp.exp(-xp.abs(m)))

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``sigmoid(m) - x``."""
        return _sigmoid(m) - x

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``sigmoid(m) sigmoid(-m)``."""
        xp = namespace_of(m)
        small = xp.exp(-xp.abs(m))
        whole = 1.0 + small
        return small / (whole * whole)

    def bend(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return ``sigmoid(m) - x`` and its derivative, which is right to a part of one."""
        sigmoid = _sigmoid(m)
        curved = 1.0 - sigmoid
        curved *= sigmoid
        sigmoid -= x
        return sigmoid, curved

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return value and derivative."""
        xp = namespace_of(m)
        whole = xp.abs(m)
        whole *= -1.0
        whole = xp.exp(whole)
        whole += 1.0
        value = xp.log(whole)
        value += xp.maximum(m, xp.zeros_like(m))
        value -= x * m
        # sigmoid(m) = 1/2 ± (1 / (1 + exp(-|m|)) - 1/2)
        slope = xp.copysign(1.0 / whole - 0.5, m)
        slope += 0.5
        slope -= x
        return value, slope

    def beyond_zero(self, x: Array, m: Array) -> tuple[Array, Array, Array]:
        """Return ``-x m`` and its derivatives."""
        return -x * m, -x, namespace_of(m).zeros_like(m)

    def mean(self, m: Array) -> Array:
        """Return the probability ``sigmoid(m)``."""
        return _sigmoid(m)

    def constant(self, mean: float) -> float | None:
        """Return the logarithm of the odds of the share of ones."""
        if mean <= 0 or mean >= 1:
            return math.copysign(math.inf, mean - 0.5)
        return math.log(mean) - math.log1p(-mean)


@dataclass(frozen=True)
class NegativeBinomialLoss(PositiveLoss):
    """Half the negative binomial deviance: counts that vary more than Poisson ones.

    An entry counts successes before a number of failures, and the model is the odds of a success,
    so that the mean is ``failures`` times the model, and the variance ``1 + m`` times the mean.

    Parameters
    ----------
    failures : float, default=1.0
        Any number above zero; the larger, the nearer to Poisson.
    """

    failures: float = 1.0
    name = "negative-binomial"

    def __post_init__(self) -> None:
        check_above_zero("NegativeBinomialLoss", "failures", self.failures)

    def value(self, x: Array, m: Array) -> Array:
        """Return ``r log(1 + m) + x log(1 + 1 / m)`` plus what makes its minimum zero."""
        return self.evaluate(x, m)[0] + self.offset(x)

    def derivative(self, x: Array, m: Array) -> Array:
        """Return ``(r - x / m) / (1 + m)``."""
        odds = self._above_zero(x / self.failures, m)
        return (self.failures - x / odds) / (1.0 + odds)

    def curvature(self, x: Array, m: Array) -> Array:
        """Return ``(x / m (2 + 1 / m) - r) / (1 + m)²``."""
        odds = self._above_zero(x / self.failures, m)
        whole = 1.0 + odds
        return (x / odds * (2.0 + 1.0 / odds) - self.failures) / whole / whole

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return ``r log(1 + m) + x log(1 + 1 / m)`` and the derivative."""
        xp = namespace_of(m)
        odds = self._above_zero(x / self.failures, m)
        value = self.failures * xp.log1p(odds) + x * xp.log1p(1.0 / odds)
        return value, (self.failures - x / odds) / (1.0 + odds)

    def offset(self, x: Array) -> Array:
        """Return ``-r log(1 + x / r) - x log(1 + r / x)``."""
        xp = namespace_of(x)
        best = xp.where(x > 0, x / self.failures, xp.ones_like(x))
        value = -self.failures * xp.log1p(best) - x * xp.log1p(1.0 / best)
        return xp.where(x > 0, value, xp.zeros_like(x))

    def mean(self, m: Array) -> Array:
        """Return ``failures`` times the odds."""
        return self.failures * m

    def constant(self, mean: float) -> float | None:
        """Return the mean over ``failures``."""
        return mean / self.failures


def _sigmoid(m: Array) -> Array:
    """Return ``1 / (1 + exp(-m))``."""
    with np.errstate(over="ignore"):  # one over infinity is the zero that it should be
        whole = namespace_of(m).exp(-m)
    whole += 1.0
    return 1.0 / whole
