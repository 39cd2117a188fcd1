"""Time-frequency features of signals."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.fft
import scipy.signal
import scipy.special
from array_api_compat import device, is_numpy_array

from polyad.augmented.signals.kernels import log_spectra
from polyad.augmented.signals.steps import SignalStep, check_between, like, read_signals
from polyad.core.threads import cut, run_blocks
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

# The longest window that is chosen, and how many of its steps cover it.
_LONGEST, _OVERLAP = 256, 8
# Numbers in the frames of the samples that a thread transforms at a time, so that they and their
# spectra stay in its cache; and where only features are kept, so that it takes a while.
_BLOCK, _LONG_BLOCK = 150_000, 300_000
# The longest window and the fewest frames for the kernel: fewer are faster without.
_LONGEST_COMPILED, _FEWEST = 2048, 8
# How many numbers of frames, and how many frames, it transforms at a time.
_GROUPED, _MOST = 2**14, 256
_PARTS = {
    "log_parts": ("re", "im"),
    "magnitude_phase": ("magnitude", "phase"),
    "log_power": ("power",),
}


@dataclasses.dataclass
class STFT(SignalStep):
    """Short-time Fourier transform of each channel, as features that a CP model can share.

    Signals (samples, channels, times) become (samples, parts of the channels, frequencies, frames).

    Parameters
    ----------
    n_fft : int, default=None
        Samples of a frame. None is the largest power of two that is at most half of a signal, and
        at most 256. Powers of two from 4 to 2048 are by far the fastest for logarithms in NumPy,
        if there are at least 8 frames.
    hop : int, default=None
        Samples from one frame to the next. None is an eighth of a frame.
    features : {'log_parts', 'magnitude_phase', 'log_power'}, default='log_parts'
        ``'log_parts'`` is log(abs(Re) + floor) of all channels, then log(abs(Im) + floor), as in
        [1]_; ``'magnitude_phase'`` the absolute value and the angle; ``'log_power'`` the logarithm
        of the squared absolute value, which does not change with the phase.
    window : str or tuple, default='boxcar'
        A window of ``scipy.signal.get_window``; that of [1]_ is rectangular.
    normalized : bool, default=False
        Whether to divide by the root of ``n_fft``.
    floor : float, default=1e-3
        What is added before logarithms (its square to powers). Parts of a signal that are smaller
        do not count.
    sampling_rate : float, default=1.0
        Samples per unit of time, for the labels alone.

    References
    ----------
    .. [1] C. Yang, C. Qian, N. Singh, C. Xiao, M. B. Westover, E. Solomonik, J. Sun, "ATD:
       Augmenting CP Tensor Decomposition by Self Supervision", NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.augmented.signals import STFT
    >>> signals = np.random.default_rng(0).standard_normal((5, 9, 128))
    >>> STFT(n_fft=64, hop=2, normalized=True)(signals).shape
    (5, 18, 33, 33)
    """

    n_fft: int | None = None
    hop: int | None = None
    features: str = "log_parts"
    window: Any = "boxcar"
    normalized: bool = False
    floor: float = 1e-3
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        if self.features not in _PARTS:
            message = f"STFT was given features={self.features!r}. Choose one of {list(_PARTS)}."
            raise InvalidInputError(message)
        for name in ("n_fft", "hop"):
            value = getattr(self, name)
            is_whole = isinstance(value, Integral) and not isinstance(value, bool)
            if value is not None and not (is_whole and value >= 1):
                message = f"STFT was given {name}={value!r}. Give a number of samples, or None."
                raise InvalidInputError(message)
        try:
            with np.errstate(all="raise"):
                scipy.signal.get_window(self.window, 4)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            message = (
                f"STFT was given window={self.window!r:.60}. Give a window of "
                f"scipy.signal.get_window, such as 'hann': {error!s:.100}"
            )
            raise InvalidInputError(message) from error
        check_between(self.floor, "floor", float(np.finfo(np.float32).tiny), np.inf, self)
        check_between(
            self.sampling_rate, "sampling_rate", float(np.finfo(float).tiny), np.inf, self
        )

    def __call__(self, signals: Any, *, out: Array | None = None) -> Array:
        """Return the features of signals.

        Parameters
        ----------
        signals : array of shape (n_samples, n_channels, n_times)
            NumPy or torch.
        out : array, default=None
            Memory of the shape and number type of the features, in C order, that they are written
            to; new memory takes a good part of the time.

        Returns
        -------
        array of shape (n_samples, n_parts * n_channels, n_frequencies, n_frames)
            In the namespace, on the device and in the number type of the signals.
        """
        xp, signals = read_signals(signals, "STFT")
        n, channels, n_times = (int(size) for size in signals.shape)
        n_fft, hop = self._sizes(n_times)
        frequencies, frames = n_fft // 2 + 1, (n_times - n_fft) // hop + 1
        n_parts = len(_PARTS[self.features])
        shape = (n, n_parts, channels, frequencies, frames)
        if out is None:
            out = xp.empty(shape, dtype=signals.dtype, device=device(signals))
        else:
            out = xp.reshape(out, shape)
        work = channels * n_fft * frames
        if self._is_compiled(signals, n_fft, frames):
            plan = self._plan(signals, n_fft, hop, frames)
            flat = np.reshape(out, (n, n_parts, channels, frequencies * frames))
            write: Any = partial(_write_logarithms, signals, flat, plan)
            size = max(1, _LONG_BLOCK // work)
        else:
            write = partial(self._write, xp, self._frames(xp, signals, n_fft, hop, frames), out)
            size = max(1, _BLOCK // work) if is_numpy_array(signals) else n
        run_blocks(write, cut(n, size))
        return xp.reshape(out, (n, n_parts * channels, frequencies, frames))

    def _is_compiled(self, signals: Array, n_fft: int, frames: int) -> bool:
        """Return whether there is a kernel for the features of signals, and it is fast."""
        return (
            is_numpy_array(signals)
            and signals.dtype in (np.float32, np.float64)
            and self.features != "magnitude_phase"
            and n_fft.bit_count() == 1
            and 4 <= n_fft <= _LONGEST_COMPILED
            and frames >= _FEWEST
        )

    def _plan(self, signals: Array, n_fft: int, hop: int, frames: int) -> tuple[Any, ...]:
        """Return what the kernel needs to know besides the signals, and the size of its scratch."""
        # In degrees, so that the sine of half a turn is zero.
        degrees = np.arange(n_fft) * (360.0 / n_fft)
        roots = np.stack([scipy.special.cosdg(degrees), -scipy.special.sindg(degrees)])
        weights = scipy.signal.get_window(self.window, n_fft)
        if self.normalized:
            weights = weights / math.sqrt(n_fft)
        most = _even(frames, _MOST)
        columns = most
        if np.ptp(weights) == 0 and hop < n_fft and n_fft % hop == 0 and n_fft // hop <= most:
            weights = weights[:hop]
            columns += n_fft // hop - 1
        # Channels of one sample: its features do not depend, in no digit, on those beside it.
        group = _even(signals.shape[1], max(1, _GROUPED // (n_fft * columns)))
        floor = np.asarray([self.floor if self.features == "log_parts" else self.floor**2])
        arrays = [array.astype(signals.dtype) for array in (weights, roots, floor)]
        return *arrays, (hop, frames, group, most), n_fft * (group * columns + 2)

    def _write(self, xp: Any, frames: Array, out: Array, start: int, stop: int) -> None:
        """Write the features of some samples: (samples, parts, channels, frequencies, frames)."""
        spectra, own = self._spectra(xp, frames[start:stop, ...]), out[start:stop, ...]
        for k, part in enumerate(self._parts(xp, spectra)):
            own[:, k, ...] = part

    def labels(
        self, channels: int | Sequence[Any], n_times: int
    ) -> tuple[tuple[str, str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the names of the modes of the features, and the labels of their entries.

        Parameters
        ----------
        channels : int or sequence
            The number of channels, or their names.
        n_times : int
            The length of the signals.

        Returns
        -------
        modes : tuple of str
            ``('channel', 'frequency', 'time')``.
        labels : tuple of arrays
            Parts and channels, frequencies, and times of the middle of the frames.
        """
        n_fft, hop = self._sizes(n_times)
        names = range(channels) if isinstance(channels, int) else channels
        parts = [f"{name} {part}" for part in _PARTS[self.features] for name in names]
        frequencies = np.arange(n_fft // 2 + 1) * self.sampling_rate / n_fft
        starts = np.arange((n_times - n_fft) // hop + 1) * hop
        times = (starts + n_fft / 2) / self.sampling_rate
        return ("channel", "frequency", "time"), (np.asarray(parts), frequencies, times)

    def _sizes(self, n_times: int) -> tuple[int, int]:
        """Return the length of a frame and the step between frames, for signals of a length."""
        n_fft = self.n_fft
        if n_fft is None:
            n_fft = min(_LONGEST, 2 ** max(1, (n_times // 2).bit_length() - 1))
        if n_fft > n_times:
            message = (
                f"Signals of {n_times} samples are shorter than a frame, n_fft={n_fft}. Give "
                "longer signals or a smaller n_fft."
            )
            raise InvalidInputError(message)
        return int(n_fft), int(max(1, n_fft // _OVERLAP) if self.hop is None else self.hop)

    def _frames(self, xp: Any, signals: Array, n_fft: int, hop: int, n_frames: int) -> Array:
        """Return the frames of signals, a view if that is possible: (..., n_fft, frames)."""
        if is_numpy_array(signals):
            windows = np.lib.stride_tricks.sliding_window_view(signals, n_fft, axis=-1)
            return np.swapaxes(windows[:, :, ::hop], 2, 3)
        index = np.arange(n_fft)[:, None] + np.arange(n_frames) * hop
        flat = xp.asarray(index.reshape(-1), device=device(signals))
        return xp.reshape(xp.take(signals, flat, axis=2), (*signals.shape[:2], n_fft, n_frames))

    def _spectra(self, xp: Any, frames: Array) -> Array:
        """Return the spectrum of each frame: (samples, channels, frequencies, frames)."""
        norm: Literal["ortho", "backward"] = "ortho" if self.normalized else "backward"
        if self.window != "boxcar":
            weights = scipy.signal.get_window(self.window, int(frames.shape[2]))
            frames = frames * like(weights, frames)[:, None]
        # SciPy's transform keeps single precision and is several times as fast as NumPy's.
        if is_numpy_array(frames):
            return np.ascontiguousarray(scipy.fft.rfft(frames, axis=2, norm=norm))
        return xp.fft.rfft(frames, axis=2, norm=norm)

    def _parts(self, xp: Any, spectra: Array) -> list[Array]:
        """Return the features that spectra become."""
        if self.features == "magnitude_phase":
            return [xp.abs(spectra), xp.atan2(xp.imag(spectra), xp.real(spectra))]
        if self.features == "log_power":
            power = xp.real(spectra) ** 2 + xp.imag(spectra) ** 2
            return [xp.log(power + self.floor**2)]
        parts = (xp.real(spectra), xp.imag(spectra))
        return [xp.log(xp.abs(part) + self.floor) for part in parts]


def _write_logarithms(
    signals: np.ndarray, out: np.ndarray, plan: tuple[Any, ...], start: int, stop: int
) -> None:
    """Write the features of some samples: (samples, parts, channels, frequencies * frames)."""
    weights, roots, floor, sizes, size = plan
    # Of one type, whatever was given.
    own = np.require(signals[start:stop], requirements=["C", "A", "W", "E"])
    scratch = np.empty((5, size), own.dtype)
    log_spectra(own, weights, roots, floor, sizes, scratch, out[start:stop])


def _even(n: int, most: int) -> int:
    """Return the size of parts of n items that have at most some, and nearly all the same."""
    return -(-n // max(1, -(-n // most)))
