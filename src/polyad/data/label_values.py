"""The labels of one mode: a checked NumPy array, and how labels and positions are found in it.

Labels are text, integers, floats, booleans, dates or durations. Text is held as NumPy ``<U``
and never as Python objects, so that a model file holds labels without pickle.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError, UnknownLabelWarning

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

Unknown = Literal["error", "drop"]

# How many labels a message shows, and how many characters of each.
_SHOWN = 5
_SHOWN_OF_EACH = 80
# NumPy gives every text of an array the room of the longest. That is refused where it takes this
# many times what the texts need, and more than these bytes.
_WASTE = 16
_SMALL = 1 << 26
_BYTES_PER_CHARACTER = 4

# What pandas.api.types.infer_dtype calls the contents of an object array -> the array we hold.
_NUMPY_TYPE = {
    "string": np.str_,
    "boolean": np.bool_,
    "floating": np.float64,
    "mixed-integer-float": np.float64,
}


def as_mode_names(modes: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the modes: text, not empty, all different."""
    names = () if isinstance(modes, str) or not isinstance(modes, Iterable) else tuple(modes)
    if not names or not all(isinstance(name, str) and name for name in names):
        message = f"modes must be a list with a name (text) for each mode, got {modes!r:.100}."
        raise InvalidTypeError(message)
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        message = (
            f"modes={list(names)} has {repeated[0]!r} more than once. Give each mode its own "
            "name, and copy a column of a table under another name if it is meant twice."
        )
        raise InvalidInputError(message)
    return names


def as_labels(values: ArrayLike, *, name: str) -> NDArray[Any]:
    """Return the labels of mode ``name`` as a read-only 1-D array: unique, nothing missing.

    It is a copy, of kind text, integer, float, boolean, datetime64 or timedelta64.
    """
    import pandas as pd

    labels = _as_array(values, name=name)
    if len(labels) == 0:
        message = f"No labels are given for mode {name!r}. Give at least one."
        raise InvalidInputError(message)
    missing = pd.isna(labels)
    if missing.any():
        message = (
            f"Mode {name!r} has {missing.sum()} missing labels, the first at position "
            f"{missing.argmax()}. Give every position a label, for example 'unknown'."
        )
        raise InvalidInputError(message)
    if labels.dtype == object:
        labels = _from_objects(labels, name=name)
    if labels.dtype.kind not in "UiufbMm":
        raise _bad_label_type(name, str(labels.dtype))
    repeated = _repeated(labels)
    if len(repeated):
        message = (
            f"The labels of mode {name!r} must be unique, but {shown(repeated[:1])} occurs more "
            "than once. Rename the repeated labels, or sum the positions that share a label."
        )
        raise InvalidInputError(message)
    labels = labels.copy()
    labels.flags.writeable = False
    return labels


def _repeated(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels that occur again; a table of hashes would take several times the memory."""
    ordered = np.sort(labels)
    repeated: NDArray[Any] = ordered[1:][ordered[1:] == ordered[:-1]]
    return repeated


def _as_array(values: ArrayLike, *, name: str) -> NDArray[Any]:
    """Return any list-like as a 1-D array without turning [1, "a"] into text."""
    if hasattr(values, "to_numpy"):
        array: NDArray[Any] = values.to_numpy()
    elif isinstance(values, list | tuple):
        array = np.fromiter(values, dtype=object, count=len(values))
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        message = (
            f"The labels of mode {name!r} must be a list or a 1-D array, got {values!r:.100}. "
            "Give one label for each position of the mode."
        )
        raise InvalidTypeError(message)
    # NumPy's variable-width text has kind "T".
    return array.astype(object) if array.dtype.kind == "T" else array


def _from_objects(objects: NDArray[Any], *, name: str) -> NDArray[Any]:
    """Turn Python objects of one type into a NumPy array of that type."""
    import pandas as pd

    kind = pd.api.types.infer_dtype(objects, skipna=False)
    if kind in _NUMPY_TYPE:
        if kind == "string":
            return as_text(objects, of=f"mode {name!r}")
        return objects.astype(_NUMPY_TYPE[kind])
    if kind == "integer":
        for integers in (np.int64, np.uint64):
            with contextlib.suppress(OverflowError):
                return objects.astype(integers)
        kind = "integer beyond 64 bits"
    if kind == "date":
        return objects.astype("datetime64[D]")
    if kind in {"datetime", "datetime64"}:
        kind = "datetime with time zone"
        # pandas refuses a mixture of time zones.
        with contextlib.suppress(ValueError):
            index = pd.DatetimeIndex(objects)
            if index.tz is None:
                return index.to_numpy()
            kind += f" {index.tz}"
    if kind in {"timedelta", "timedelta64"}:
        return pd.TimedeltaIndex(objects).to_numpy()
    raise _bad_label_type(name, kind)


def as_text(labels: NDArray[Any], *, of: str) -> NDArray[np.str_]:
    """Return an object array of text as NumPy text, unless one is far longer than the others."""
    lengths = np.fromiter(map(len, labels), dtype=np.int64, count=len(labels))
    longest, total = int(lengths.max(initial=0)), int(lengths.sum())
    size = len(labels) * longest * _BYTES_PER_CHARACTER
    if size > max(_SMALL, _WASTE * total * _BYTES_PER_CHARACTER):
        message = (
            f"A label of {of} has {longest} characters: {labels[lengths.argmax()][:40]!r}... All "
            f"{len(labels)} labels would take as much room, {size / 1e9:.3g} GB together. Shorten "
            "it, for example [label[:100] for label in labels] if they still differ."
        )
        raise InvalidInputError(message)
    found = labels.astype(np.str_)
    if np.char.str_len(found).sum() != total:
        message = (
            f"A label of {of} ends in a null character, which NumPy text cannot hold. Strip the "
            "labels: [label.rstrip('\\0') for label in labels]."
        )
        raise InvalidInputError(message)
    return found


def _bad_label_type(name: str, kind: str) -> InvalidTypeError:
    message = (
        f"The labels of mode {name!r} are of type {kind}. Labels are text, integers, floats, "
        "booleans, or dates without time zone, all of one type. Convert them, for example to "
        "text: [str(label) for label in labels], or series.cat.rename_categories(str) for a "
        "pandas Categorical."
    )
    return InvalidTypeError(message)


def find_labels(known: pd.Index | NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    """Return the position in ``known`` of each wanted label, -1 where there is none."""
    import pandas as pd

    positions: NDArray[np.intp] = pd.Index(known).get_indexer(pd.Index(wanted))
    return positions


def find_all(wanted: NDArray[Any], own: NDArray[Any], *, name: str) -> NDArray[np.intp]:
    """Return where the wanted labels of a dense tensor are; it must have them all."""
    positions = find_labels(own, wanted)
    absent = wanted[positions < 0]
    if len(absent):
        message = (
            f"The dense tensor has no entries for {len(absent)} labels of mode {name!r}: "
            f"{shown(absent)}. Add their entries first (NaN where they are missing), or use "
            "sparse data, where absent entries are 0."
        )
        raise InvalidInputError(message)
    return positions


def shown(labels: NDArray[Any]) -> str:
    """Write out the first few labels for a message or a repr."""
    first = labels[:_SHOWN]
    # tolist() would give bare integers for dates in nanoseconds, and leaves what is NumPy's in an
    # array of objects as it is: np.str_('a').
    whole = (
        map(str, first)
        if labels.dtype.kind in "Mm"
        else (repr(x.item() if isinstance(x, np.str_ | np.number) else x) for x in first.tolist())
    )
    texts = [x if len(x) <= _SHOWN_OF_EACH else x[:_SHOWN_OF_EACH] + "..." for x in whole]
    return ", ".join(texts) + (", ..." if len(labels) > _SHOWN else "")


def handle_unknown(
    strangers: NDArray[Any],
    *,
    name: str,
    known: NDArray[Any],
    lost: str,
    unknown: Unknown,
    stacklevel: int,
) -> None:
    """Raise, or warn that they are dropped, for labels that the given list does not have.

    ``lost`` tells what is lost with them, such as ``"12 rows"``. ``stacklevel`` is counted from the
    caller of this function.
    """
    if len(strangers) == 0:
        return
    message = (
        f"{len(strangers)} labels of mode {name!r}, with {lost}, are not among the "
        f"{len(known)} labels asked for: {shown(strangers)}."
    )
    if label_family(strangers) != label_family(known):
        message += f" They are of type {strangers.dtype}, those asked for of type {known.dtype}."
    if unknown == "error":
        message += " Give unknown='drop' to leave them out, or add them to the list of labels."
        raise InvalidInputError(message)
    message += " They are dropped."
    warnings.warn(message, UnknownLabelWarning, stacklevel=stacklevel + 1)


def check_unknown(unknown: str) -> None:
    """Raise for a value of ``unknown`` that has no meaning."""
    if unknown not in ("error", "drop"):
        message = f"unknown={unknown!r} has no meaning; give 'error' or 'drop'."
        raise InvalidInputError(message)


def label_family(labels: NDArray[Any] | pd.Index) -> str:
    """Return the kind of the labels, the same for all numbers, which compare by value."""
    kind: str = np.asarray(labels[:1]).dtype.kind
    # A pandas index holds text as objects.
    return "number" if kind in "iuf" else kind.replace("O", "U")


def positions_of(index: pd.Index, wanted: Any) -> Any:
    """Translate labels of one mode into positions: an integer, a slice, a mask or an array."""
    import pandas as pd

    name = str(index.name)
    if isinstance(wanted, slice):
        return _cut(index, wanted, name=name)
    single = np.ndim(wanted) == 0
    if not single and index.dtype != bool and np.asarray(wanted).dtype == bool:
        return wanted
    labels = as_labels([wanted] if single else wanted, name=name)
    if index.dtype.kind == "M" and labels.dtype.kind == "U":
        try:
            labels = pd.to_datetime(labels).to_numpy()
        except ValueError as error:
            message = f"Mode {name!r} has dates as labels; {error}."
            raise InvalidInputError(message) from error
    positions = find_labels(index, labels)
    if (positions < 0).any():
        message = (
            f"Mode {name!r} has no label {shown(labels[positions < 0])}. Its {len(index)} "
            f"labels are of type {index.dtype}: {shown(index.to_numpy())}."
        )
        raise InvalidInputError(message)
    return int(positions[0]) if single else positions


def _cut(index: pd.Index, wanted: slice, *, name: str) -> slice:
    """Return the positions from one label to another, both included."""
    ends = [end for end in (wanted.start, wanted.stop) if end is not None]
    # pandas would compare text with numbers, as text; dates it reads from text.
    comparable = {label_family(index), "U" if index.dtype.kind == "M" else ""}
    try:
        if all(label_family(as_labels([end], name=name)) in comparable for end in ends):
            return index.slice_indexer(wanted.start, wanted.stop, wanted.step)
        reason = f"the labels are of type {index.dtype}"
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error)
    message = (
        f"Mode {name!r} cannot be cut from {wanted.start!r} to {wanted.stop!r}: {reason}. Both "
        "ends must be labels of the mode, or comparable with its labels if these are sorted. "
        f"The labels are {shown(index.to_numpy())}."
    )
    raise InvalidInputError(message)


def as_positions(pick: Any, length: int, *, name: str) -> int | NDArray[np.intp]:
    """Turn an integer, slice, mask or list of integers into non-negative positions.

    An integer stays one, as a sign that the mode is dropped.
    """
    if isinstance(pick, slice):
        return np.arange(*pick.indices(length))
    positions = np.asarray(pick)
    if positions.dtype == bool and positions.ndim == 1:
        if len(positions) != length:
            message = (
                f"The mask for mode {name!r} has {len(positions)} values; give one for each of "
                f"its {length} positions."
            )
            raise InvalidInputError(message)
        return np.flatnonzero(positions)
    if positions.size == 0:
        positions = positions.astype(np.intp)
    if positions.dtype.kind not in "iu" or positions.ndim > 1:
        message = (
            f"Positions of mode {name!r} are an integer, a list of integers, a slice or a "
            f"boolean mask, got {pick!r:.100}. Use sel() to select by label."
        )
        raise InvalidTypeError(message)
    outside = (positions < -length) | (positions >= length)
    if outside.any():
        message = (
            f"Mode {name!r} has length {length}; position {positions[outside].flat[0]} is "
            f"outside. Give positions from {-length} to {length - 1}."
        )
        raise InvalidInputError(message)
    positions = np.where(positions < 0, positions + length, positions).astype(np.intp)
    if positions.ndim == 0:
        return int(positions)
    if len(np.unique(positions)) < len(positions):
        message = f"A position of mode {name!r} is given more than once. Give each one once."
        raise InvalidInputError(message)
    return positions


def joined_labels(old: NDArray[Any] | None, new: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return the labels of earlier and further samples, or None if neither has any."""
    if old is None and new is None:
        return None
    if old is None or new is None:
        has, lacks = ("earlier", "new") if new is None else ("new", "earlier")
        message = (
            f"The {has} samples have labels and the {lacks} ones have none. Give a LabelledTensor "
            "with labels for the samples, or go on without any: set model.labels_[0] = None and "
            "give the samples without labels."
        )
        raise InvalidInputError(message)
    if old.dtype.kind != new.dtype.kind:
        message = (
            f"The new samples have labels of type {new.dtype}, the earlier ones of type "
            f"{old.dtype}. Convert them to the same type."
        )
        raise InvalidInputError(message)
    repeated = new[find_labels(old, new) >= 0]
    if len(repeated):
        message = (
            f"{len(repeated)} of the new samples have labels of earlier ones: {shown(repeated)}. "
            "partial_fit adds samples and cannot add to one: give each its own label, or fit all "
            "data of a sample at once."
        )
        raise InvalidInputError(message)
    return joined_text([old, new])


def joined_text(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the labels of all parts; text takes the room of the longest."""
    if len({part.dtype.itemsize for part in parts}) > 1 and parts[0].dtype.kind == "U":
        return as_text(np.concatenate([part.astype(object) for part in parts]), of="the samples")
    return np.concatenate(parts)


def in_order_of(y: Any, samples: NDArray[Any] | None, name: str = "y") -> Any:
    """Bring a labelled target into the order of labelled samples.

    A table of events sorts its samples, and a target that is taken in another order would fit noise
    without a word. A target has labels if it is a pandas Series with an index that is not a mere
    count; what has none is taken in order.
    """
    index: Any = getattr(y, "index", None)
    if samples is None or not hasattr(y, "iloc") or type(index).__name__ == "RangeIndex":
        return y
    if len(index) == len(samples) and np.array_equal(np.asarray(index), samples):
        return y
    places = find_labels(index, samples) if index.is_unique else np.full(len(samples), -1)
    if (places < 0).any():
        strangers = samples[places < 0]
        message = (
            f"{name} has no entry for {len(strangers)} labels of the samples of X: "
            f"{shown(strangers)}. Give each sample one (a class that is not known is None or NaN), "
            f"or {name}.to_numpy() to take {name} in its own order."
        )
        raise InvalidInputError(message)
    return y.iloc[places]
