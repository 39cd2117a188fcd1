"""New labelled data brought to the labels of a model, with one message about what is lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array

from polyad.core.arrays import to_numpy
from polyad.data.entries import move_entries
from polyad.data.label_values import find_all, find_labels, label_family, shown
from polyad.data.labels import LabelledTensor
from polyad.exceptions import InvalidInputError, UnknownLabelWarning, warn_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.data.readers import TensorInput


def align_to(
    given: TensorInput, known: Sequence[NDArray[Any] | None], names: Sequence[str] | None
) -> LabelledTensor:
    """Return data whose modes after the samples have exactly the known labels.

    A mode without labels on either side stays as it is. ``names`` are those of the modes, of which
    the data may have none.
    """
    modes = given.modes or names or tuple(f"mode {mode}" for mode in range(len(given.shape)))
    data: Any = given.data if given.is_sparse else to_numpy(given.data)
    before, samples = _contents(data), _filled_samples(data)
    labels, said = list(given.labels), []
    for mode in range(1, len(given.shape)):
        wanted, own = known[mode], given.labels[mode]
        if wanted is None or own is None or np.array_equal(wanted, own):
            continue
        positions = find_labels(wanted, own)
        strangers = own[positions < 0]
        if len(strangers):
            said.append(_told(strangers, own, wanted, modes[mode]))
        if len(strangers) == len(own):
            message = f"Nothing of the new data is known to the model: {'; '.join(said)}."
            raise InvalidInputError(message)
        if isinstance(data, coo_array):
            data = move_entries(data, mode, positions, len(wanted))
        else:
            data = data.take(find_all(wanted, own, name=modes[mode]), axis=mode)
        labels[mode] = wanted
    if said:
        _warn(said, before, _contents(data), int((samples & ~_filled_samples(data)).sum()))
    return LabelledTensor(data, modes=modes, labels=_distinct(labels))


def _told(strangers: NDArray[Any], own: NDArray[Any], wanted: NDArray[Any], name: str) -> str:
    """Say which labels of a mode are not known."""
    kinds = ""
    if label_family(strangers) != label_family(wanted):
        kinds = f", of type {strangers.dtype} where the model has {wanted.dtype}"
    return (
        f"{len(strangers)} of {len(own)} labels of mode {name!r} are unknown to the model: "
        f"{shown(strangers)}{kinds}"
    )


def _contents(data: Any) -> tuple[int, float]:
    """Return the number of entries that are not zero or missing, and the sum of their sizes."""
    values = data.data if isinstance(data, coo_array) else data
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    return len(sizes), float(sizes.sum(dtype=np.float64))


def _filled_samples(data: Any) -> NDArray[np.bool_]:
    """Say which samples have an entry that is not zero."""
    if isinstance(data, coo_array):
        filled = np.zeros(data.shape[0], dtype=bool)
        filled[data.coords[0][data.data != 0]] = True
        return filled
    found: NDArray[np.bool_] = (data != 0).reshape(len(data), -1).any(axis=1)
    return found


def _warn(
    said: list[str], before: tuple[int, float], after: tuple[int, float], n_emptied: int
) -> None:
    part = after[0] / before[0] if before[0] else 1.0
    mass = after[1] / before[1] if before[1] and math.isfinite(before[1]) else part
    message = (
        f"{'; '.join(said)}. {_percent(part)} of the entries are kept ({after[0]} of {before[0]}), "
        f"with {_percent(mass)} of their sum."
    )
    if n_emptied:
        message += f" {n_emptied} samples are left without an entry."
    warn_user(message, UnknownLabelWarning)


def _percent(part: float) -> str:
    """Return a percentage that is 100 or 0 only where it is exactly that."""
    text = f"{part:.0%}"
    return f"{part:.2%}" if text in {"100%", "0%"} and part not in (0.0, 1.0) else text


def _distinct(labels: list[NDArray[Any] | None]) -> list[NDArray[Any] | None]:
    """Leave out labels of samples that repeat, as a model takes them and a tensor does not."""
    samples = labels[0]
    repeats = samples is not None and len(np.unique(samples)) < len(samples)
    return [None if repeats else samples, *labels[1:]]
