"""Divergences: how far a model value is from an entry of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Where a divergence has no curvature of its own, the derivative is compared this far away,
# as a part of the range of a feature.
_STEP = 1e-5


@runtime_checkable
class Divergence(Protocol):
    """What a divergence of one's own must have.

    ``value(x, y)`` and ``derivative(x, y)`` take arrays of entries ``x`` and model values ``y`` of
    the same shape and return one number for each: the divergence, zero where both are equal and
    never negative, and its derivative with respect to ``y``. They leave their arguments as they
    are. With an attribute ``needs_positive = True``, negative entries are refused, and both
    arguments are kept above zero. A few entries are tried before a fit.
    """

    def value(self, x: Any, y: Any) -> Any:
        """Return the divergence of each entry."""
        ...

    def derivative(self, x: Any, y: Any) -> Any:
        """Return its derivative with respect to the model value."""
        ...


class KullbackLeibler:
    """The generalised Kullback-Leibler divergence, ``x log(x / y) - x + y``."""

    needs_positive: ClassVar[bool] = True

    def value(self, x: Table, y: Table) -> Table:
        """Return the divergence of each entry."""
        # x (r - log(1 + r)) with r = y / x - 1: what cancels near zero is small already. Far below
        # the entry, r is rounded to minus one.
        ratio = (y - x) / x
        logarithm = np.where(ratio < -0.5, np.log(y / x), np.log1p(np.maximum(ratio, -0.5)))
        result: Table = x * (ratio - logarithm)
        return result

    def derivative(self, x: Table, y: Table) -> Table:
        """Return its derivative with respect to the model value."""
        result: Table = (y - x) / y
        return result

    def curvature(self, x: Table, y: Table) -> Table:
        """Return its second derivative."""
        result: Table = x / y / y
        return result

    def cross(self, x: Table, y: Table) -> Table:
        """Return the sums over features for all pairs of samples: (d, p) and (d, n) to (p, n)."""
        own = (x * np.log(x) - x).sum(axis=0)
        result: Table = own[:, None] - x.T @ np.log(y) + y.sum(axis=0)
        return result


class Frobenius:
    """Half the squared difference."""

    needs_positive: ClassVar[bool] = False

    def value(self, x: Table, y: Table) -> Table:
        """Return the divergence of each entry."""
        result: Table = 0.5 * (y - x) ** 2
        return result

    def derivative(self, x: Table, y: Table) -> Table:
        """Return its derivative with respect to the model value."""
        return y - x

    def curvature(self, x: Table, y: Table) -> Table:
        """Return its second derivative."""
        return np.ones_like(y)

    def cross(self, x: Table, y: Table) -> Table:
        """Return the sums over features for all pairs of samples: (d, p) and (d, n) to (p, n)."""
        own, theirs = (x * x).sum(axis=0), (y * y).sum(axis=0)
        result: Table = 0.5 * (own[:, None] + theirs) - x.T @ y
        return result


#: What a model file has in the place of a divergence of the user's own, which it does not hold.
CUSTOM = "custom"
_NAMED: dict[str, type[Any]] = {"kl": KullbackLeibler, "frobenius": Frobenius}


def read_divergence(divergence: Any) -> Any:
    """Return a divergence from its name, or one of the user's own."""
    if isinstance(divergence, str):
        if divergence == CUSTOM:
            message = (
                "divergence='custom' stands for a divergence of your own, which a model file does "
                "not hold. Set it again with model.set_params(divergence=...)."
            )
            raise InvalidInputError(message)
        if divergence not in _NAMED:
            names = ", ".join(map(repr, _NAMED))
            message = (
                f"divergence={divergence!r} is not known. Give one of {names}, or an object with "
                "the methods value(x, y) and derivative(x, y)."
            )
            raise InvalidInputError(message)
        return _NAMED[divergence]()
    if isinstance(divergence, type) or not isinstance(divergence, Divergence):
        message = (
            f"divergence={divergence!r} is no divergence. Give 'kl', 'frobenius', or an object "
            "with the methods value(x, y) and derivative(x, y)."
        )
        raise InvalidTypeError(message)
    return divergence


def stored_divergence(divergence: Any) -> str:
    """Return the name of a divergence for a model file."""
    if isinstance(divergence, str) and divergence == CUSTOM:
        return CUSTOM
    read_divergence(divergence)
    return divergence if isinstance(divergence, str) else CUSTOM


def needs_positive(divergence: Any) -> bool:
    """Say whether a divergence takes positive numbers only."""
    return bool(getattr(divergence, "needs_positive", False))


def curvature(divergence: Any, x: Table, y: Table, low: Table, high: Table) -> Table:
    """Return the second derivative, by differences inside of the range where it is not known.

    Parameters
    ----------
    divergence : Divergence
        A divergence.
    x, y : ndarray of shape (d, n)
        Entries and model values.
    low, high : ndarray of shape (d, 1)
        Between which all model values are.
    """
    if hasattr(divergence, "curvature"):
        found = divergence.curvature(x, y)
    else:
        step = _STEP * np.where(high > low, high - low, 1.0)
        step = np.where(y + step > high, -step, step)
        ahead, here = (np.asarray(divergence.derivative(x, at)) for at in (y + step, y))
        found = (ahead - here) / step
    return np.asarray(found, dtype=np.float64)


def cross(divergence: Any, x: Table, y: Table) -> Table:
    """Return the sums over features for all pairs of samples: (d, p) and (d, n) to (p, n)."""
    if hasattr(divergence, "cross"):
        return np.asarray(divergence.cross(x, y), dtype=np.float64)
    sums = []
    for own in x.T:
        column = np.broadcast_to(own[:, None], y.shape)
        sums.append(np.asarray(divergence.value(column, y), dtype=np.float64).sum(axis=0))
    return np.stack(sums)
