"""Tensor-like input to one canonical form, checked.

What :mod:`polyad.data.readers` takes apart becomes a floating-point array or an n-D ``coo_array``,
with mode names and labels where there are any, of numbers that a fit can work with.
"""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from array_api_compat import is_numpy_array
from scipy.sparse import coo_array

from polyad.core.arrays import namespace_of, to_numpy
from polyad.data.readers import ACCEPTED, TensorInput, unpack
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

__all__ = [
    "Missing",
    "as_tensor_input",
    "check_seed",
    "describe_entries",
    "first_position",
    "refuse_negative",
]

Missing = Literal["zero", "unobserved"]

# How many bad samples an error names.
_SHOWN = 5
# Beyond these sizes of the largest entry, squares leave the range of the number type.
_LARGEST = {"float32": 1e15, "float64": 1e120}


def as_tensor_input(
    X: Any, *, allow_nan: bool = False, mask: Any = None, is_new: bool = False
) -> TensorInput:
    """Bring anything tensor-like (``readers.ACCEPTED``) to canonical form, or refuse it.

    NaN in dense data is a missing entry, and what ``mask`` has as False becomes NaN. ``is_new``
    samples are for a model that is there: what is accepted of a sample beside others, nothing
    observed or only tiny numbers, is then accepted of it alone.
    """
    given = unpack(X)
    data = _as_float(given.data)
    if data.ndim < 2:
        message = (
            f"Expected 2D array or a tensor of higher order, got {data.ndim}D array instead, of "
            f"shape {tuple(data.shape)}. Reshape your data: X.reshape(-1, 1) if it has a single "
            "feature, X.reshape(1, -1) if it is a single sample."
        )
        raise InvalidInputError(message)
    given = dataclasses.replace(given, data=data)
    _check_size(given)
    if mask is not None:
        given = dataclasses.replace(given, data=_masked(given, mask))
        allow_nan = True
    _check_values(given, allow_nan=allow_nan, is_new=is_new)
    return given


def _as_float(data: Any) -> Any:
    """Keep float32 and float64; turn every other real type into float64 once."""
    if isinstance(data, coo_array) or is_numpy_array(data):
        kind = data.dtype.kind
        if kind == "c":
            message = "Complex data not supported. Give the real and imaginary parts as a mode."
            raise InvalidInputError(message)
        if kind in "MmSUTV":
            message = f"The data is of type {data.dtype}, which does not hold numbers. {ACCEPTED}"
            raise InvalidInputError(message)
        native = data.dtype.newbyteorder("=")
        if native in (np.float32, np.float64):
            return data if data.dtype.isnative else data.astype(native)
        try:
            return data.astype(np.float64)
        except TypeError as error:
            message = f"The data holds something that is not a number: {error}."
            raise InvalidTypeError(message) from error
        except ValueError as error:
            message = f"The data holds something that is not a number: {error}. {ACCEPTED}"
            raise InvalidInputError(message) from error
    xp = namespace_of(data)
    if xp.isdtype(data.dtype, "complex floating"):
        message = "Complex data not supported. Give the real and imaginary parts as a mode."
        raise InvalidInputError(message)
    return data if data.dtype in (xp.float32, xp.float64) else xp.astype(data, xp.float64)


def _check_size(given: TensorInput) -> None:
    shape = given.shape
    empty = [mode for mode, size in enumerate(shape) if size == 0]
    if not empty:
        return
    mode = empty[0]
    # The wording of scikit-learn, which its users search for.
    found = {0: "0 sample(s)", 1: "0 feature(s)"}.get(
        mode, f"0 entries in {given.mode_title(mode)}"
    )
    message = (
        f"Found array with {found} (shape={shape}) while a minimum of 1 is required. Every mode of "
        "the tensor needs at least one entry: check the filter that made the data."
    )
    raise InvalidInputError(message)


def _check_values(given: TensorInput, *, allow_nan: bool, is_new: bool) -> None:
    """Refuse infinity, NaN where it has no meaning, and sizes whose squares overflow."""
    stored = given.data.data if given.is_sparse else given.data
    if math.prod(stored.shape) == 0:
        return
    xp = namespace_of(stored)
    # One pass in the normal case: the largest and smallest entry tell of NaN and infinity too.
    high, low = float(xp.max(stored)), float(xp.min(stored))
    has_nan = math.isnan(high) or math.isnan(low)
    if has_nan and (given.is_sparse or not allow_nan):
        _refuse_nan(given, xp.isnan(stored))
    if has_nan:
        missing = xp.isnan(stored)
        if bool(xp.all(missing)) and not is_new:
            message = "Every entry is NaN: there is nothing to fit."
            raise InvalidInputError(message)
        filled = xp.where(missing, xp.zeros_like(stored), stored)
        high, low = float(xp.max(filled)), float(xp.min(filled))
    if math.isinf(high) or math.isinf(low):
        where = first_position(given, xp.isinf(stored))
        message = (
            f"The data contains infinity, first at {where}. Replace such values, or mark "
            "them as missing (NaN) where the method supports that."
        )
        raise InvalidInputError(message)
    size = max(abs(high), abs(low))
    limit = _LARGEST["float32" if stored.dtype == xp.float32 else "float64"]
    if size > limit or (0 < size < 1 / limit and not is_new):
        message = (
            f"The largest entry has the size {size:.3g}, whose square leaves the range of "
            f"{stored.dtype}. Scale the data to a size between {1 / limit:.0e} and {limit:.0e}."
        )
        raise InvalidInputError(message)


def _refuse_nan(given: TensorInput, bad: Array) -> None:
    where = first_position(given, bad)
    if given.is_sparse:
        message = (
            f"The sparse data contains NaN, first at {where}. Leave missing entries out and "
            "fit with missing='unobserved', where the method supports it."
        )
    else:
        message = (
            f"The data contains NaN, first at {where}, in {_samples(bad)}, and this method does "
            "not accept missing entries. Fill or drop them first."
        )
    raise InvalidInputError(message)


def _samples(bad: Array) -> str:
    """Return how many samples have True somewhere, and the first of them, in words."""
    xp = namespace_of(bad)
    found = np.flatnonzero(to_numpy(xp.any(bad, axis=tuple(range(1, bad.ndim)))))
    shown = ", ".join(map(str, found[:_SHOWN].tolist())) + (", ..." if len(found) > _SHOWN else "")
    return f"{len(found)} sample{'s' if len(found) > 1 else ''} ({shown})"


def first_position(given: TensorInput, bad: Array) -> tuple[int, ...]:
    """Return the index of the first True, in the coordinates of the tensor."""
    xp = namespace_of(bad)
    first = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.uint8)))
    if given.is_sparse:
        return tuple(int(row[first]) for row in given.data.coords)
    return tuple(int(k) for k in np.unravel_index(first, given.shape))


def describe_entries(given: TensorInput, bad: Array) -> str:
    """Return how many entries are bad, and the first with its position and labels, in words.

    ``bad`` is of the stored entries of sparse data, of all entries of dense data.
    """
    stored = given.data.data if given.is_sparse else given.data
    xp = namespace_of(stored)
    flat = xp.reshape(bad, (-1,))
    count = int(xp.sum(xp.astype(flat, xp.int64)))
    first = float(xp.reshape(stored, (-1,))[int(xp.argmax(xp.astype(flat, xp.uint8)))])
    return (
        f"X has {count} of them, first {first:.6g} at {_place(given, first_position(given, bad))}"
    )


def _place(given: TensorInput, where: Sequence[int]) -> str:
    """Return a position, with the labels of the modes that have any."""
    names = [
        f"{given.mode_title(mode)}: {labels[k]!s}"
        for mode, (k, labels) in enumerate(zip(where, given.labels, strict=True))
        if labels is not None
    ]
    return f"{tuple(where)}" + (f" ({', '.join(names)})" if names else "")


def refuse_negative(given: TensorInput, advice: str) -> None:
    """Refuse data with a negative entry, naming the first; the advice says what to do."""
    stored = given.data.data if given.is_sparse else given.data
    if not bool(namespace_of(stored).any(stored < 0)):
        return
    if given.is_sparse:
        # Parts of an entry may be negative where their sum is not.
        given = dataclasses.replace(given, data=canonicalize(given.data))
        stored = given.data.data
        if not (stored < 0).any():
            return
    # The wording of scikit-learn, which its users search for.
    message = f"Negative values in data: {describe_entries(given, stored < 0)}. {advice}"
    raise InvalidInputError(message)


def read_features(X: Any, n_components: int) -> Array:
    """Return features that ``inverse_transform`` was given, of one column for each component."""
    features = X.to_numpy() if hasattr(X, "to_numpy") else X
    if is_numpy_array(features) or not hasattr(features, "shape"):
        features = _real_numbers(features)
    if features.ndim != 2 or features.shape[1] != n_components:
        message = (
            f"The features have the shape {tuple(features.shape)}; (n_samples, {n_components}) is "
            "needed, as transform returns them."
        )
        raise InvalidInputError(message)
    xp = namespace_of(features)
    if not bool(xp.all(xp.isfinite(features))):
        message = (
            "The features have entries that are not finite. Leave such samples out, or give "
            "numbers, as transform returns them."
        )
        raise InvalidInputError(message)
    return features


def _real_numbers(features: Any) -> np.ndarray:
    """Return features as float64, and refuse what no real numbers are."""
    try:
        found = np.asarray(features)
        if found.dtype.kind != "c":
            return found.astype(np.float64, copy=False)
        kind = f"are {found.dtype}"
    except (TypeError, ValueError):
        kind = "do not form an array of numbers"
    message = f"The features {kind}; real numbers are needed, as transform returns them."
    raise InvalidInputError(message)


def check_seed(random_state: Any) -> None:
    """Refuse what seeds no generator, where scikit-learn or NumPy would in their words."""
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return
    if not isinstance(random_state, Integral) or isinstance(random_state, bool):
        kind = type(random_state).__name__
        message = f"random_state is a {kind}; give a whole number, a RandomState or None."
        raise InvalidTypeError(message)
    if not 0 <= int(random_state) < 2**32:
        message = f"random_state={random_state} is not a seed; give a number from 0 to 2**32 - 1."
        raise InvalidInputError(message)


def _refuse_other_labels(given: TensorInput, mask: Any) -> None:
    """Refuse a table as mask that has other labels than the data: masks go by position."""
    is_table = type(mask).__module__.partition(".")[0] in ("pandas", "polars", "xarray")
    if not is_table or getattr(mask, "shape", None) != given.shape:
        return
    theirs = unpack(mask)
    if given.modes and theirs.modes and given.modes != theirs.modes:
        message = (
            f"The mask has the modes {theirs.modes}, the data {given.modes}: give it the same, in "
            "the same order."
        )
        raise InvalidInputError(message)
    for mode, (mine, other) in enumerate(zip(given.labels, theirs.labels, strict=False)):
        if mine is not None and other is not None and not np.array_equal(mine, other):
            message = (
                f"The mask has other labels than the data, or another order of them, in "
                f"{given.mode_title(mode)}. Bring it to those of the data first: "
                "mask.reindex_like(X) of pandas and xarray."
            )
            raise InvalidInputError(message)


def _masked(given: TensorInput, mask: Any) -> Array:
    """Return the dense data with NaN where the mask is False."""
    if given.is_sparse:
        message = (
            "A mask was given with sparse data. Leave unobserved entries out of the sparse data "
            "and fit with missing='unobserved' instead."
        )
        raise InvalidInputError(message)
    _refuse_other_labels(given, mask)
    xp = namespace_of(given.data)
    try:
        observed = xp.asarray(mask)
    except (TypeError, ValueError) as error:
        message = f"The mask makes no array: {error}."
        raise InvalidInputError(message) from error
    wrong = []
    if tuple(observed.shape) != given.shape:
        wrong.append(f"the shape {tuple(observed.shape)}, not {given.shape} as the data")
    if not xp.isdtype(observed.dtype, "bool"):
        wrong.append(f"the type {observed.dtype}, not bool: convert it with mask.astype(bool)")
    if wrong:
        message = (
            f"The mask has {' and '.join(wrong)}. It must be True where an entry was observed."
        )
        raise InvalidInputError(message)
    nan = xp.full_like(given.data, math.nan)
    return xp.where(observed, given.data, nan)
