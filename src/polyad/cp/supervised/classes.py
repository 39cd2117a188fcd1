"""What ``y`` says: the classes, and which samples have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.cp.supervised.classifier import Labels
from polyad.data.label_values import as_text, find_labels, shown
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNLABELLED = (
    "Samples without a class are marked by -1 where classes are integers, and by None or NaN "
    "otherwise."
)


def split_unlabelled(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the classes of the labelled samples, in their own type, and which samples those are.

    Unlabelled are -1 among integers, and None and NaN (NA of pandas) among all others.
    """
    if y.dtype.kind == "O":
        known = np.array([not _is_nothing(value) for value in y], dtype=bool)
        values = _in_own_type(y[known])
    elif y.dtype.kind == "f":
        known = ~np.isnan(y)
        values = y[known]
    else:
        known, values = np.ones(len(y), dtype=bool), y
    if values.dtype.kind == "i":
        labelled = values != -1
        known[known] = labelled
        values = values[labelled]
    return values, known


def _is_nothing(value: Any) -> bool:
    """Recognise None, NaN and the missing values of pandas, none of which equals itself."""
    if value is None:
        return True
    different = value != value  # noqa: PLR0124  (true of NaN alone)
    return type(different).__name__ == "NAType" or (
        isinstance(different, bool | np.bool_) and bool(different)
    )


def _in_own_type(objects: NDArray[Any]) -> NDArray[Any]:
    """Turn objects into an array of text, numbers or booleans; mixtures are refused."""
    kinds = sorted({_kind(value) for value in objects})
    if len(kinds) > 1:
        message = (
            f"Unknown label type: y mixes {' and '.join(kinds)}. Give classes of one type: text or "
            f"integers. {_UNLABELLED}"
        )
        raise InvalidInputError(message)
    if kinds == ["text"]:
        return as_text(objects, of="y")
    return np.array(objects.tolist())


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "booleans"
    return "numbers" if isinstance(value, int | float | np.number) else type(value).__name__


def in_order_of(y: Any, samples: NDArray[Any] | None) -> Any:
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
            f"y has no entry for {len(strangers)} labels of the samples of X: {shown(strangers)}. "
            "Give each sample one (None or NaN where its class is not known), or y.to_numpy() to "
            "take y in its own order."
        )
        raise InvalidInputError(message)
    return y.iloc[places]


def read_labels(values: NDArray[Any], known: NDArray[np.bool_]) -> Labels:
    """Give the classes of the labelled samples numbers."""
    classes, codes = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        found = "no labelled sample" if not len(classes) else f"only one class, {shown(classes)}"
        message = f"y has {found}, and two classes or more are needed to tell apart. {_UNLABELLED}"
        if classes.dtype.kind == "i" and not known.all():
            message += " If -1 is a class of yours, call the classes 0 and 1, for example."
        raise InvalidInputError(message)
    return Labels(np.flatnonzero(known), codes.reshape(-1), classes)
