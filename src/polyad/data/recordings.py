"""Recordings as an array of windows that is read from disk a few windows at a time.

:class:`Recordings` has what an array on disk has, ``shape``, ``dtype`` and slices of its first
axis, so that it is read like one (:class:`~polyad.data.batches.BlockSource`). Packages that it
reads with, mne and zarr, are imported when a file needs them.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.data.labels import LabelledTensor
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import DTypeLike

# Files that are open at a time.
_OPEN_FILES = 4
_MODES = ("sample", "channel", "time")


class Recordings:
    """Windows of recordings: (windows, channels, times), read when they are asked for.

    Give it to an estimator in the place of an array. A recording is (channels, times), of which
    windows are cut, or (windows, channels, times), which is taken as it is.

    Parameters
    ----------
    recordings : recording, path or list of them
        Arrays, memory maps, zarr, ``mne.io.Raw``, ``mne.Epochs``, or files of them: ``.npy``,
        ``.zarr`` and what mne reads, such as ``.edf`` and ``.fif``.
    window : int, default=None
        Times of a window. Needed for recordings that are not cut yet.
    step : int, default=None
        Times from one window to the next; None is ``window``, so that they do not overlap.
    open_file : callable, default=None
        Opens a path: ``open_file(path)`` returns a recording as above. Use it for formats of your
        own, and to pick channels or to filter: ``lambda path: mne.io.read_raw(path).pick('eeg')``.
    dtype : dtype, default=None
        The number type. None is that of arrays, and float32 for mne.

    Attributes
    ----------
    shape : tuple of int
        Windows, channels, times.
    channels : array of str or None
        The names of the channels, if the recordings have them.
    origins : array of shape (n_windows, 2)
        The number of the recording of each window, and the first time of it.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.augmented.signals import Recordings
    >>> windows = Recordings([np.zeros((3, 1000)), np.ones((3, 500))], window=200, step=100)
    >>> windows.shape
    (13, 3, 200)
    >>> windows.origins[-1]
    array([  1, 300])
    """

    ndim = 3

    def __init__(
        self,
        recordings: Any,
        window: int | None = None,
        step: int | None = None,
        *,
        open_file: Callable[[Any], Any] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        is_list = isinstance(recordings, (list, tuple))
        self._given: list[Any] = list(recordings) if is_list else [recordings]
        if not self._given:
            message = "No recordings were given: the list of them is empty."
            raise InvalidInputError(message)
        for name, value in (("window", window), ("step", step)):
            if value is not None and not (isinstance(value, (int, np.integer)) and value >= 1):
                message = f"Recordings was given {name}={value!r}. Give a number of times."
                raise InvalidInputError(message)
        self._window, self._step = window, step or window
        self._open_file = open_file or _open_file
        self._opened: OrderedDict[int, _Recording] = OrderedDict()
        counts, first = self._look_at_all()
        self._ends = np.cumsum(counts)
        self.channels = first.channels
        self.dtype = np.dtype(dtype if dtype is not None else first.dtype)
        self.shape = (int(self._ends[-1]), first.n_channels, first.length)

    def __len__(self) -> int:
        """Return the number of windows."""
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """Read windows: those of a slice or of an array of numbers, or a single one."""
        if isinstance(key, (int, np.integer)):
            return self._read(np.asarray([range(len(self))[int(key)]]))[0]
        numbers = np.arange(len(self))[key]
        windows = self._read(numbers)
        if self.channels is None:
            return windows
        return LabelledTensor(windows, modes=_MODES, labels=(None, self.channels, None))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001
        """Read all windows."""
        del copy
        return self._read(np.arange(len(self))).astype(dtype or self.dtype, copy=False)

    @property
    def origins(self) -> np.ndarray:
        """The number of the recording of each window, and the first time of it."""
        numbers = np.arange(len(self))
        recording, inside = self._places(numbers)
        return np.stack([recording, inside * (self._step or self.shape[2])], axis=1)

    def _look_at_all(self) -> tuple[list[int], _Recording]:
        """Return the windows of each recording, and the first of them."""
        counts: list[int] = []
        first: _Recording | None = None
        for number in range(len(self._given)):
            own = self._recording(number)
            first = own if first is None else first
            different = own.n_channels != first.n_channels or own.length != first.length
            if different or not _same_names(own.channels, first.channels):
                message = (
                    f"Recording {number} has {own.n_channels} channels and windows of {own.length} "
                    f"times, but recording 0 has {first.n_channels} and {first.length}, or their "
                    "channels have other names. Pick the same channels of all with open_file."
                )
                raise InvalidInputError(message)
            counts.append(own.n_windows)
        if first is None or not sum(counts):
            message = f"No recording is as long as a window, {self._window} times."
            raise InvalidInputError(message)
        return counts, first

    def _recording(self, number: int) -> _Recording:
        """Return a recording, opened; the last few stay open."""
        if number in self._opened:
            self._opened.move_to_end(number)
            return self._opened[number]
        given = self._given[number]
        is_path = isinstance(given, (str, os.PathLike))
        opened = self._open_file(given) if is_path else given
        found = _Recording(opened, self._window, self._step, f"Recording {number}")
        self._opened[number] = found
        if len(self._opened) > _OPEN_FILES:
            self._opened.popitem(last=False)
        return found

    def _places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the recordings that windows are in, and their numbers there."""
        recording = np.searchsorted(self._ends, numbers, side="right")
        before = np.concatenate([[0], self._ends])[recording]
        return recording, numbers - before

    def _read(self, numbers: np.ndarray) -> np.ndarray:
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        recording, inside = self._places(numbers)
        for start, stop in _runs(recording, inside):
            own = self._recording(int(recording[start]))
            out[start:stop] = own.windows(int(inside[start]), int(inside[stop - 1]) + 1)
        return out


class _Recording:
    """One recording and the windows that it is cut into."""

    def __init__(self, data: Any, window: int | None, step: int | None, title: str) -> None:
        self._is_mne = type(data).__module__.partition(".")[0] == "mne"
        self.channels: np.ndarray | None = None
        self.dtype: Any = np.dtype(np.float32)
        if self._is_mne:
            is_cut = not hasattr(data, "n_times")
            data = _without_bad(data) if is_cut else data
            self.channels = np.asarray(data.ch_names, dtype=str)
            counted = (len(data),) if is_cut else ()
            shape = (*counted, len(data.ch_names), len(data.times))
        elif all(hasattr(data, name) for name in ("shape", "dtype", "__getitem__")):
            shape, self.dtype = tuple(int(n) for n in data.shape), _real(data.dtype)
        else:
            message = (
                f"{title} is a {type(data).__name__}. Accepted are arrays, memory maps, zarr, "
                "mne.io.Raw and mne.Epochs, and paths of files that hold them."
            )
            raise InvalidTypeError(message)
        self._data = data
        self._is_cut = len(shape) == 3
        self.n_channels = shape[-2] if len(shape) > 1 else 0
        if self._is_cut:
            self.n_windows, _, self.length = shape
        elif len(shape) == 2 and window is not None and step is not None:
            self.length, self._step = window, step
            self.n_windows = max(0, (shape[1] - window) // step + 1)
        else:
            need = "Say how long windows are: window=..." if len(shape) == 2 else ""
            message = f"{title} has the shape {shape}; (channels, times) is needed. {need}".strip()
            raise InvalidInputError(message)

    def windows(self, start: int, stop: int) -> np.ndarray:
        """Read windows that follow each other."""
        if self._is_cut:
            if self._is_mne:
                return np.asarray(self._data[start:stop].get_data(verbose="error"))
            return np.asarray(self._data[start:stop])
        first, last = start * self._step, (stop - 1) * self._step + self.length
        if self._is_mne:
            span = np.asarray(self._data.get_data(start=first, stop=last, verbose="error"))
        else:
            span = np.asarray(self._data[:, first:last])
        cut = np.lib.stride_tricks.sliding_window_view(span, self.length, axis=1)
        return np.moveaxis(cut[:, :: self._step], 0, 1)


def _runs(recording: np.ndarray, inside: np.ndarray) -> Iterator[tuple[int, int]]:
    """Give the runs of windows that follow each other in one recording."""
    if not len(inside):
        return
    breaks = np.flatnonzero((np.diff(recording) != 0) | (np.diff(inside) != 1)) + 1
    yield from zip([0, *breaks.tolist()], [*breaks.tolist(), len(inside)], strict=True)


def _real(kind: Any) -> np.dtype[Any]:
    return np.dtype(kind) if np.dtype(kind) in (np.float32, np.float64) else np.dtype(np.float64)


def _same_names(mine: np.ndarray | None, theirs: np.ndarray | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return np.array_equal(mine, theirs)


def _without_bad(epochs: Any) -> Any:
    """Return epochs whose bad ones are left out, which mne needs to count them."""
    try:
        len(epochs)
    except RuntimeError:
        return epochs.copy().drop_bad(verbose="error")
    return epochs


def _open_file(path: Any) -> Any:
    """Open a file by its ending."""
    name = os.fspath(path)
    if not Path(name).exists():
        message = f"There is no file {name}."
        raise InvalidInputError(message)
    if name.endswith(".npy"):
        return np.load(name, mmap_mode="r", allow_pickle=False)
    if name.rstrip("/").endswith(".zarr"):
        import zarr

        return zarr.open_array(name, mode="r")
    try:
        import mne
    except ImportError as error:
        message = (
            f"{name} is read by mne, which is not installed: pip install polyad[signal]. Formats "
            "of your own are opened by open_file."
        )
        raise InvalidInputError(message) from error
    if name.endswith(("-epo.fif", "_epo.fif", "-epo.fif.gz", "_epo.fif.gz")):
        return mne.read_epochs(name, preload=False, verbose="error")
    return mne.io.read_raw(name, preload=False, verbose="error")
