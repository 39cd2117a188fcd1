"""What is checked before a fit: the data against its loss, and a loss of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import namespace_of, to_numpy
from polyad.data.validation import describe_entries, refuse_negative
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.losses.names import LOSSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput
    from polyad.losses.loss import Loss

    Vector = NDArray[np.float64]

# Entries that a loss is tried on, and out of how many they are taken.
_N_TRIED, _N_SEEN = 32, 1 << 14
# Golden section: model values all over a range. In it they are the entry times up to this power of
# two, or as far away as entries are from each other; those without a unit are about as large.
GOLDEN = 0.6180339887498949
_MAX_POWER = 2.0
# Differences are known to this part of them, but not where they overflow; rounding may spoil one.
_TOLERANCE, _WRONG_SHARE = 0.02, 0.04
_KNOWN_SHARE, _NAN_SHARE = 0.5, 0.1
# How many times as large as all that were tried model values are far and farther, and the part of
# the way down to the far ones by which a loss without a least value falls on from there.
_DISTANCES = 1e4, 1e8
_FALL_SHARE = 0.1
# How a function of a user fails that was not made for arrays.
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def check_domain(given: TensorInput, loss: Loss, *, zeros: bool, parameter: str = "loss") -> None:
    """Refuse data that a loss is not made for, naming the first such value.

    Entries that sparse data does not store are zeros, or not known.
    """
    stored = given.data.data if given.is_sparse else given.data
    xp = namespace_of(stored)
    name = f"{parameter}={loss.name!r} is for {loss.domain}"
    if zeros and given.is_sparse and not bool(loss.accepts(np.zeros(1))[0]):
        message = (
            f"{name}, and the entries that the sparse data does not store are zeros. Fit with "
            "missing='unobserved' if they are not known rather than zero, or use another loss, "
            "such as loss='poisson'."
        )
        raise InvalidInputError(message)
    bad = ~(loss.accepts(stored) | xp.isnan(stored))
    if not bool(xp.any(bad)):
        return
    if bool(xp.any(bad & (stored < 0))):
        refuse_negative(given, f"{name}. {loss.advice}")
    message = (
        f"Values in data that the loss cannot take: {describe_entries(given, bad)}. {name}. "
        f"{loss.advice}"
    )
    raise InvalidInputError(message)


def check_loss(loss: Loss, stored: Array) -> None:
    """Try a loss of the user's own on some of its entries, where NaN is missing."""
    if type(loss) in LOSSES.values():
        return
    x, m, unit = _points(loss, stored)
    if not x.size:
        return
    try_loss(loss, x, m, unit)
    falls = [sign for sign in (1.0, -1.0) if sign > loss.lower and _falls(loss, x, m, sign)]
    if falls:
        message = (
            f"value(x, m) of loss={loss!r} falls without end for m towards "
            f"{'-' if falls[0] < 0 else ''}infinity, so that no model is the best. The value must "
            "be the smaller the better the fit: give minus a log-likelihood, and the derivative of "
            "that."
        )
        raise InvalidInputError(message)


def try_loss(loss: Loss, x: Vector, m: Vector, unit: Vector, *, parameter: str = "loss") -> Vector:
    """Return the values of a loss of the user's own, if they and its derivative can be used.

    ``unit`` is the size that a difference of model values counts by.
    """
    title = f"(x, m) of {parameter}={loss!r}"
    with np.errstate(all="ignore"):  # losses may overflow far from the data
        value = try_function(loss.value, f"value{title}", (x, m))
        slope = try_function(loss.derivative, f"derivative{title}", (x, m))
        try_function(loss.curvature, f"curvature{title}", (x, m))
        try_function(loss.mean, f"mean(m) of {parameter}={loss!r}", (m,))
        fine = float(np.finfo(value.dtype if value.dtype.kind == "f" else np.float64).eps)
        length = np.cbrt(fine) * unit
        above, below = m + length, m - length
        up, down = (try_function(loss.value, f"value{title}", (x, at)) for at in (above, below))
        difference = (np.asarray(up, np.float64) - down) / (above - below)
        # At a corner, the derivative is that of one side.
        left = (np.asarray(value, np.float64) - down) / (m - below)
        right = (np.asarray(up, np.float64) - value) / (above - m)
        rounding = 8.0 * fine * np.maximum(np.abs(up), np.abs(down)) / length
        is_known = np.isfinite(difference) & np.isfinite(slope)
        is_right = [
            np.abs(one - slope) <= _TOLERANCE * np.maximum(np.abs(one), np.abs(slope)) + rounding
            for one in (difference, left, right)
        ]
        wrong = ~np.any(is_right, axis=0)
    is_nan = np.isnan(value) | np.isnan(slope)
    # Without a bound, some of the model values may be none for this loss.
    if is_nan.mean() > (0.0 if loss.lower == 0 else _NAN_SHARE) or is_known.mean() < _KNOWN_SHARE:
        first = _first(is_nan if is_nan.any() else ~is_known)
        message = (
            f"value{title} is {float(value[first])}, and its derivative {float(slope[first])}, for "
            f"x={x[first]:.6g} and m={m[first]:.6g}; finite numbers are needed. Give lower=0 to a "
            "loss of model values that are not negative, and scale data to what it is made for."
        )
        raise InvalidInputError(message)
    share = wrong[is_known].mean()
    if share > _WRONG_SHARE:
        first = _first(wrong & is_known)
        message = (
            f"derivative{title} is not the derivative of value(x, m) with respect to m: for "
            f"x={x[first]:.6g} and m={m[first]:.6g} it gives {float(slope[first]):.6g}, and "
            f"differences of the value give {float(difference[first]):.6g}. They differ for "
            f"{share:.0%} of the points that were tried."
        )
        raise InvalidInputError(message)
    return np.asarray(value, np.float64)


def try_function(
    function: Callable[..., Any], title: str, arguments: tuple[NDArray[Any], ...]
) -> NDArray[Any]:
    """Return what a function of the user's gives for arrays of one shape: a number for each entry.

    ``title`` is what the messages of a refusal call it.
    """
    given = tuple(argument.copy() for argument in arguments)
    try:
        found = np.asarray(function(*given))
    except _FAILURES as error:
        message = f"{title}, given NumPy arrays, failed with {type(error).__name__}: {error}"
        raise InvalidInputError(message) from error
    if found.dtype.kind not in "biuf":
        message = f"{title} gave {found.dtype} numbers; real numbers are needed."
        raise InvalidTypeError(message)
    if found.shape != given[0].shape:
        message = (
            f"{title} gave the shape {found.shape} for arrays of shape {given[0].shape}; a number "
            "for each entry is needed."
        )
        raise InvalidInputError(message)
    if not all(map(np.array_equal, given, arguments)):
        message = f"{title} changes its arguments; it must leave them as they are."
        raise InvalidInputError(message)
    return found


def _first(marks: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the place of the first True."""
    return tuple(int(k) for k in np.argwhere(marks)[0])


def _falls(loss: Loss, x: Vector, m: Vector, sign: float) -> bool:
    """Say whether the mean loss falls and falls, the larger the model values are."""
    largest = sign * np.abs(m).max()
    far_away = (np.full_like(m, times * largest) for times in _DISTANCES)
    with np.errstate(all="ignore"):
        near, far, farther = (float(np.mean(loss.value(x, at))) for at in (m, *far_away))
        return far < near and (farther == -np.inf or far - farther > _FALL_SHARE * (near - far))


def _points(loss: Loss, stored: Array) -> tuple[Vector, Vector, Vector]:
    """Return entries of all sizes, model values that they suggest, and the unit of these."""
    entries = _some(stored)
    if not entries.size:
        return entries, entries, entries
    part = GOLDEN * np.arange(1, entries.size + 1) % 1.0
    sizes = np.abs(entries[entries != 0])
    typical = float(np.median(sizes)) if sizes.size else 1.0
    if loss.lower == 0:
        m = np.where(entries > 0, entries, typical) * 2.0 ** (_MAX_POWER * (2.0 * part - 1.0))
        return entries, m, m
    spread = float(entries.max() - entries.min()) or typical
    near = entries + spread * (2.0 * part - 1.0)
    # The model may have no unit, as logarithms do not.
    plain = _MAX_POWER * (2.0 * part - 1.0)
    unit = np.maximum(np.abs(near), spread)
    x = np.concatenate([entries, entries])
    return x, np.concatenate([near, plain]), np.concatenate([unit, np.ones_like(plain)])


def _some(stored: Array) -> Vector:
    """Return some of the entries, half of them evenly out of all in order, half of the distinct."""
    flat = namespace_of(stored).reshape(stored, (-1,))
    some: NDArray[Any] = to_numpy(flat[:: max(1, flat.shape[0] // _N_SEEN)])
    known = np.sort(some[~np.isnan(some)]).astype(np.float64)
    # Zeros are often many, and then matter most, while they are but one of the distinct entries.
    parts = [
        entries[np.linspace(0, entries.size - 1, min(_N_TRIED // 2, entries.size)).astype(int)]
        for entries in (known, np.unique(known))
    ]
    return np.concatenate(parts)
