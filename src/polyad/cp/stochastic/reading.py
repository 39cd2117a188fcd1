"""What the reading of samples in batches asks of a fit: passes, labels, gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from polyad.data.label_values import joined_text
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from polyad.data.validation import TensorInput


def check_single_pass(max_iter: int, n_init: int, checkpoint: Any) -> None:
    """Refuse to read a stream more often than it can be read."""
    again = {
        f"max_iter={max_iter} asks for several sweeps": max_iter > 1,
        f"n_init={n_init} asks for several fits": n_init > 1,
        "a checkpoint compares the data before the fit": checkpoint is not None,
    }
    for what, is_asked in again.items():
        if is_asked:
            message = (
                f"X is an iterator, which can be read once, but {what}. Use max_iter=1, n_init=1 "
                "and no checkpoint, or give something that can be read again: an array on disk, a "
                "list of batches, or a callable that opens the stream, such as lambda: "
                "read_batches(path)."
            )
            raise InvalidInputError(message)


def joined_batch_labels(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Join the labels of the samples of several batches, which all have them or have none."""
    known = [labels for labels in parts if labels is not None]
    return joined_text(known) if known else None


def unobserved_slices(given: TensorInput) -> Iterator[tuple[int, int]]:
    """Give the modes of dense data that have slices of NaN only, and the first such slice."""
    xp = array_namespace(given.data)
    unknown = xp.isnan(given.data)
    modes = range(len(given.shape))
    for mode in modes:
        empty = xp.all(unknown, axis=tuple(k for k in modes if k != mode))
        if bool(xp.any(empty)):
            yield mode, int(xp.argmax(xp.astype(empty, xp.uint8)))
