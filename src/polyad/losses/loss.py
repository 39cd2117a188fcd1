r"""Losses of generalized CP: small objects that say how a model value misses an entry.

A loss is a function :math:`f(x, m)` of an entry :math:`x` and the value :math:`m` of the model
there, with its derivatives in :math:`m`, the data it accepts, and the mean of the data that a model
value stands for. All functions work elementwise on arrays of any array-API namespace.

Where it is possible, :math:`f` is zero at the best :math:`m` for its :math:`x` and positive
elsewhere (half the deviance), so that a relative change of the objective means something. What
this adds to the likelihood does not depend on :math:`m`; it is ``offset``, which a fit adds once.

Losses that are bounded below take logarithms or powers of :math:`m \ge 0`. They are functions of
:math:`m + 10^{-10} x`, so that an exact zero of the model has a finite loss, and small entries are
treated as large ones are.

Reference: D. Hong, T. G. Kolda, J. A. Duersch, "Generalized Canonical Polyadic Tensor
Decomposition", SIAM Review 62 (2020), doi:10.1137/18M1203626, table 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import device, is_numpy_array

from polyad.core.arrays import namespace_of, to_numpy
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyad.core.arrays import Array

#: The part of an entry that is added to the model values of losses that are bounded below.
EPSILON = 1e-10
#: What is added where the entry is zero. There only powers below one have a slope without bound:
#: this one is still below that of an entry of size one, so that a zero cannot hold what it needs.
ZERO_MARGIN = 1e-20
# The relative step of a central difference: the cube root of the rounding of double precision.
_STEP = 6e-6


class Loss(ABC):
    """A function of an entry and a model value.

    Attributes
    ----------
    name : str
        How ``loss=`` calls it.
    lower : float
        The lower bound of model values and factors: zero, or minus infinity for none.
    least : float
        No value of the loss is lower; minus infinity if nobody knows.
    domain : str
        In words, which entries are accepted.
    """

    name: str
    lower: float = -math.inf
    # Not a field of the losses that are dataclasses.
    least: ClassVar[float] = 0.0
    domain: str = "all numbers"
    #: What to do with data that is not accepted.
    advice: str = "Replace these values, or mark them as missing (NaN)."

    #: Whether ``f(x, m) - f(0, m)`` is ``-x m`` without offsets: m is a natural parameter.
    is_natural: ClassVar[bool] = False

    @property
    def degree(self) -> float | None:
        """The p of ``f(c x, c m) = c^p f(x, m)``, if the data has a unit c, or None."""
        return None

    @abstractmethod
    def value(self, x: Array, m: Array) -> Array:
        """Return ``f(x, m)``.

        Parameters
        ----------
        x : array
            Entries of the data.
        m : array
            Values of the model, of the same shape.
        """

    @abstractmethod
    def derivative(self, x: Array, m: Array) -> Array:
        """Return the derivative of ``f(x, m)`` in ``m``."""

    def curvature(self, x: Array, m: Array) -> Array:
        """Return the second derivative in ``m``, which is negative where f is not convex."""
        xp = namespace_of(m)
        step = _STEP * (1.0 + xp.abs(m))
        # Near a bound the difference is one-sided.
        low = xp.maximum(m - step, xp.full_like(m, self.lower))
        return (self.derivative(x, m + step) - self.derivative(x, low)) / (m + step - low)

    def evaluate(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return ``f(x, m) - offset(x)`` and the derivative, which share most of their work."""
        return self.value(x, m), self.derivative(x, m)

    def bend(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return the first and the second derivative, which share most of their work."""
        return self.derivative(x, m), self.curvature(x, m)

    def beyond_zero(self, x: Array, m: Array) -> tuple[Array, Array, Array]:
        """Return ``f(x, m) - f(0, m)`` without offsets, and its first and second derivative.

        It is what entries change where all were counted as zeros.
        """
        nothing = namespace_of(x).zeros_like(x)
        value, slope = self.evaluate(x, m)
        value_of_zero, slope_of_zero = self.evaluate(nothing, m)
        curved = self.curvature(x, m) - self.curvature(nothing, m)
        return value - value_of_zero, slope - slope_of_zero, curved

    def offset(self, x: Array) -> Array:
        """Return the part of ``f(x, m)`` that ``evaluate`` leaves out."""
        return namespace_of(x).zeros_like(x)

    def accepts(self, x: Array) -> Array:
        """Say of each entry whether the loss is made for it."""
        return namespace_of(x).isfinite(x)

    @property
    def is_convex(self) -> bool:
        """Whether f is known to be convex in m, for every entry that is accepted."""
        return False

    def mean(self, m: Array) -> Array:
        """Return the mean of the data for a model value."""
        return m

    @property
    def has_means(self) -> bool:
        """Whether a model value is the mean of the data itself."""
        return type(self).mean is Loss.mean

    @property
    def has_curvature(self) -> bool:
        """Whether ``curvature`` is more than a difference of derivatives."""
        return type(self).curvature is not Loss.curvature

    def constant(self, mean: float) -> float | None:
        """Return the best model value for data of a given mean, or None if that takes a search."""
        return mean

    def divided(self, unit: float) -> Loss:
        """Return the loss of data that was divided by a number; see ``degree``."""
        return self

    def without_margin(self) -> Loss:
        """Return the loss for entries and model values that are known to be above zero."""
        return self

    def stored(self) -> dict[str, Any]:
        """Return the name and the parameters, as a model file holds them."""
        own: list[str] = [item.name for item in fields(self)] if is_dataclass(self) else []
        return {"name": self.name, **{name: getattr(self, name) for name in own}}


class PositiveLoss(Loss):
    """A loss of a model that is not negative."""

    lower = 0.0
    domain = "numbers that are not negative"
    advice = "'gaussian' and 'huber' take data of any sign."
    #: The part of an entry that is added to its model value.
    margin: float = EPSILON

    def accepts(self, x: Array) -> Array:
        """Say of each entry whether it is zero or above."""
        return x >= 0

    def without_margin(self) -> Loss:
        """Return the loss at the model values as they are."""
        own = copy(self)
        object.__setattr__(own, "margin", 0.0)
        return own

    def _above_zero(self, x: Array, m: Array) -> Array:
        """Return model values, off zero by what does not matter to their entries, in new memory."""
        if not self.margin:
            return 1.0 * m
        xp = namespace_of(m)
        return m + xp.where(x > 0, self.margin * x, xp.full_like(x, ZERO_MARGIN))


class CustomLoss(Loss):
    """A loss of your own.

    Its functions are given NumPy arrays of equal shape, also where the data is of torch, and return
    a number for each entry. The smaller the value, the better the fit, and it has a least one: of a
    likelihood, give minus its logarithm. All of this is tried before a fit, on some of its entries.

    Parameters
    ----------
    value : callable
        ``value(x, m)``: the loss of each entry ``x`` of the data for a model value ``m``.
    derivative : callable
        ``derivative(x, m)``: its derivative in ``m``.
    curvature : callable, optional
        ``curvature(x, m)``: the second derivative; by default a difference of derivatives.
    lower : float, default=-inf
        Zero if model values below zero have no meaning; factors are then not negative.
    accepts : callable, optional
        ``accepts(x)``: of each entry, whether the loss is made for it; by default all are.
    mean : callable, optional
        ``mean(m)``: the mean of the data for a model value; by default that value.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.losses import CustomLoss
    >>> loss = CustomLoss(lambda x, m: np.cosh(m - x) - 1, lambda x, m: np.sinh(m - x))
    >>> loss.value(np.zeros(2), np.zeros(2))
    array([0., 0.])
    """

    name = "custom"
    least: ClassVar[float] = -math.inf
    domain = "what its accepts function says"

    def __init__(
        self,
        value: Callable[[Array, Array], Array],
        derivative: Callable[[Array, Array], Array],
        *,
        curvature: Callable[[Array, Array], Array] | None = None,
        lower: float = -math.inf,
        accepts: Callable[[Array], Array] | None = None,
        mean: Callable[[Array], Array] | None = None,
    ) -> None:
        functions: dict[str, Callable[..., Array] | None]
        functions = {"curvature": curvature, "accepts": accepts, "mean": mean}
        given = {name: made for name, made in functions.items() if made is not None}
        for name, function in {"value": value, "derivative": derivative, **given}.items():
            if not callable(function):
                message = f"CustomLoss needs a function as {name}, got {function!r}."
                raise InvalidTypeError(message)
        if lower not in (0.0, -math.inf):
            message = f"CustomLoss has lower={lower!r}; give 0 or minus infinity (no bound)."
            raise InvalidInputError(message)
        self.lower = lower
        self._value, self._derivative, self._given = value, derivative, given

    def value(self, x: Array, m: Array) -> Array:
        """Return what the given function says."""
        return _in_numpy(self._value, x, m)

    def derivative(self, x: Array, m: Array) -> Array:
        """Return what the given function says."""
        return _in_numpy(self._derivative, x, m)

    def curvature(self, x: Array, m: Array) -> Array:
        """Return what the given function says, or a difference of derivatives."""
        given = self._given.get("curvature")
        return super().curvature(x, m) if given is None else _in_numpy(given, x, m)

    def accepts(self, x: Array) -> Array:
        """Return what the given function says, or True."""
        given = self._given.get("accepts")
        return super().accepts(x) if given is None else _in_numpy(given, x)

    def mean(self, m: Array) -> Array:
        """Return what the given function says, or the model value."""
        given = self._given.get("mean")
        return m if given is None else _in_numpy(given, m)

    @property
    def has_means(self) -> bool:
        """Whether no function was given that makes means of model values."""
        return "mean" not in self._given

    @property
    def has_curvature(self) -> bool:
        """Whether it was given."""
        return "curvature" in self._given

    def constant(self, mean: float) -> float | None:
        """Return None: it takes a search."""
        return None

    def __repr__(self) -> str:
        return f"CustomLoss({self._value!r}, {self._derivative!r}, lower={self.lower!r})"


def _in_numpy(function: Callable[..., Array], *arrays: Array) -> Array:
    """Return what a function of NumPy arrays gives, as an array of the kind that was given."""
    found = np.asarray(function(*map(to_numpy, arrays)))
    kind = arrays[-1]
    if is_numpy_array(kind):
        return found
    return namespace_of(kind).asarray(found, device=device(kind))


def overwritten_log(a: Array) -> Array:
    """Return the logarithm of an array that is not needed afterwards.

    NumPy reuses its memory: fresh memory costs more than the logarithm.
    """
    return np.log(a, out=a) if isinstance(a, np.ndarray) else namespace_of(a).log(a)


def x_log_x(x: Array) -> Array:
    """Return ``x log x``, and its limit zero at zero."""
    xp = namespace_of(x)
    return x * xp.log(xp.where(x > 0, x, xp.ones_like(x)))


def check_above_zero(owner: str, name: str, value: Any) -> None:
    """Refuse a parameter of a loss that is not a finite number above zero."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        message = f"{owner} needs a finite number above zero as {name}, got {value!r}."
        raise InvalidInputError(message)
