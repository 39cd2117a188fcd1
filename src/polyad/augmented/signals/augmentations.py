"""Augmentations of signals: changes that leave what a signal means as it is.

Each is called with signals of shape (samples, channels, times) and a NumPy generator, and returns
new signals of the same shape, namespace, device and number type. What is drawn is drawn for all
samples at once and in NumPy, so that torch tensors are changed by the same numbers.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.signal

from polyad.augmented.signals.steps import (
    SignalStep,
    check_between,
    copied,
    like,
    moved_index,
    read_signals,
)
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from polyad.core.arrays import Array

_MODES = ("high", "low", "both", "none")
# Signals up to this length are filtered by a matrix, longer ones by transforms.
_SHORT = 512


@dataclasses.dataclass
class Jitter(SignalStep):
    """Add noise to channels: fast, slow or both, relative to the size of the channel.

    Fast noise is uniform at each time. Slow noise is uniform at some knots, a random number of them
    from a twentieth to half of the length, and linear in between.

    Parameters
    ----------
    degree : float, default=0.05
        The largest noise, as a part of the size of a channel.
    modes : tuple of {'high', 'low', 'both', 'none'}, default=('high', 'low', 'both', 'none')
        One of them is drawn for each channel.
    probability : float, default=0.5
        That of a channel to be changed at all.
    relative_to : {'window', 'batch'}, default='window'
        The size is the range (largest minus smallest value) of the channel in the sample itself (as
        published, but for 1e-4 in the unit of the signals, which is added there), or its standard
        deviation over all samples of the batch: the noise of a sensor, which is the same whether
        there is a signal or not.
    """

    degree: float = 0.05
    modes: Any = _MODES
    probability: float = 0.5
    relative_to: str = "window"

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        check_between(self.degree, "degree", 0, np.inf, self)
        check_between(self.probability, "probability", 0, 1, self)
        names = (self.modes,) if isinstance(self.modes, str) else tuple(self.modes)
        if not names or not set(names) <= set(_MODES):
            message = f"Jitter was given modes={self.modes!r}. Choose among {_MODES}."
            raise InvalidInputError(message)
        if self.relative_to not in ("window", "batch"):
            message = f"Jitter was given relative_to={self.relative_to!r}: 'window' or 'batch'."
            raise InvalidInputError(message)

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return signals with noise."""
        xp, signals = read_signals(signals, "Jitter")
        n, channels, n_times = signals.shape
        names = (self.modes,) if isinstance(self.modes, str) else tuple(self.modes)
        drawn = rng.integers(len(names), size=n * channels)
        drawn[rng.random(n * channels) >= self.probability] = -1
        fast = np.flatnonzero(_is_one_of(drawn, names, ("high", "both")))
        slow = np.flatnonzero(_is_one_of(drawn, names, ("low", "both")))
        if self.relative_to == "batch":
            widths = xp.std(signals, axis=(0, 2))[None, :] + xp.zeros_like(signals[:, :, 0])
        else:
            widths = xp.max(signals, axis=2) - xp.min(signals, axis=2)
        sizes = self.degree * xp.reshape(widths, (n * channels,))
        out = xp.reshape(copied(signals), (n * channels, n_times))
        for chosen, noise in ((fast, _fast_noise), (slow, _slow_noise)):
            index = moved_index(chosen, signals)
            added = like(noise(rng, len(chosen), int(n_times)), signals)
            out[index, :] += xp.take(sizes, index, axis=0)[:, None] * added
        return xp.reshape(out, (n, channels, n_times))


def _is_one_of(drawn: np.ndarray, names: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    return np.isin(drawn, [k for k, name in enumerate(names) if name in wanted])


def _fast_noise(rng: np.random.Generator, n: int, n_times: int) -> np.ndarray:
    """Return rows of independent numbers between -1 and 1."""
    return 2 * rng.random((n, n_times), dtype=np.float32) - 1


def _slow_noise(rng: np.random.Generator, n: int, n_times: int) -> np.ndarray:
    """Return rows that are linear between knots of numbers between -1 and 1."""
    least = max(2, n_times // 20)
    most = max(least + 1, n_times // 2)
    lengths = rng.integers(least, most, size=n)
    knots = _fast_noise(rng, n, most)
    places = np.arange(n_times, dtype=np.float32) / np.float32(max(1, n_times - 1))
    places = places * (lengths - 1).astype(np.float32)[:, None]
    left = np.minimum(places.astype(np.int32), (lengths - 2).astype(np.int32)[:, None])
    share = places - left
    flat = left + (np.arange(n, dtype=np.int64) * most)[:, None]
    low, high = knots.reshape(-1)[flat], knots.reshape(-1)[flat + 1]
    return np.asarray(low + share * (high - low))


@dataclasses.dataclass
class BandPass(SignalStep):
    """Filter channels by a Butterworth band-pass of order one, each by one of some bands.

    Parameters
    ----------
    sampling_rate : float
        Samples per unit of time.
    bands : tuple of (low, high)
        Frequencies between which a signal passes, above zero and below half of the sampling rate.
        One band is drawn for each channel.
    """

    sampling_rate: float
    bands: Any

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        check_between(self.sampling_rate, "sampling_rate", np.finfo(float).tiny, np.inf, self)
        bands = np.asarray(self.bands, dtype=float)
        half = self.sampling_rate / 2
        is_sound = bands.ndim == 2 and bands.shape[1] == 2 and len(bands) > 0
        if not (is_sound and (bands[:, 0] > 0).all() and (bands[:, 0] < bands[:, 1]).all()):
            message = (
                f"BandPass was given bands={self.bands!r}. Give pairs of frequencies (low, high) "
                "with 0 < low < high."
            )
            raise InvalidInputError(message)
        if (bands[:, 1] >= half).any():
            message = (
                f"BandPass was given the band {tuple(bands[bands[:, 1] >= half][0])}, which ends "
                f"above half of the sampling rate, {half:g}."
            )
            raise InvalidInputError(message)

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return filtered signals."""
        xp, signals = read_signals(signals, "BandPass")
        n, channels, n_times = (int(size) for size in signals.shape)
        drawn = rng.integers(len(self.bands), size=n * channels)
        rows = xp.reshape(signals, (n * channels, n_times))
        out = xp.empty_like(rows)
        for k, (low, high) in enumerate(self.bands):
            index = moved_index(np.flatnonzero(drawn == k), signals)
            response = _response(float(low), float(high), float(self.sampling_rate), n_times)
            out[index, :] = _filtered(xp, xp.take(rows, index, axis=0), response)
        return xp.reshape(out, (n, channels, n_times))


@lru_cache(maxsize=32)
def _response(low: float, high: float, rate: float, n_times: int) -> np.ndarray:
    """Return what the filter makes of a single one at the first time."""
    numerator, denominator = scipy.signal.butter(1, [low, high], btype="band", fs=rate)
    impulse = np.zeros(n_times)
    impulse[0] = 1.0
    response = np.asarray(scipy.signal.lfilter(numerator, denominator, impulse))
    response.flags.writeable = False
    return response


def _filtered(xp: Any, rows: Array, response: np.ndarray) -> Array:
    """Return the causal convolution of rows with a response of their length.

    The filter has no memory of what was before the first time, so that it is a matrix.
    """
    n_times = len(response)
    if n_times <= _SHORT:
        late = np.concatenate([np.zeros(n_times - 1), response])
        matrix = np.lib.stride_tricks.sliding_window_view(late, n_times)[::-1]
        return rows @ like(np.ascontiguousarray(matrix), rows)
    length = 2 * n_times
    spectrum = xp.fft.rfft(like(response, rows), n=length)
    return xp.fft.irfft(xp.fft.rfft(rows, n=length) * spectrum[None, :], n=length)[:, :n_times]


@dataclasses.dataclass
class Rotation(SignalStep):
    """Turn channels that are the three axes of a sensor, as if it were worn askew.

    The axis is uniform in a cube, the angle uniform up to a largest one.

    Parameters
    ----------
    max_angle : float, default=pi/4
        The largest angle, in radians.
    triples : tuple of (int, int, int), default=None
        Channels that belong together. None are those that follow each other: (0, 1, 2), (3, 4, 5).
    together : bool, default=True
        Whether all triples of a sample turn alike, as the sensors of one device do. The program of
        the paper (see :class:`STFT`) turns each by itself.
    """

    max_angle: float = np.pi / 4
    triples: Any = None
    together: bool = True

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        check_between(self.max_angle, "max_angle", 0, np.pi, self)

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return turned signals."""
        xp, signals = read_signals(signals, "Rotation")
        n, channels, n_times = (int(size) for size in signals.shape)
        triples = self._triples(channels)
        count = 1 if self.together else len(triples)
        axes = rng.uniform(-1, 1, size=(n, count, 3))
        angles = rng.uniform(-self.max_angle, self.max_angle, size=(n, count))
        index = moved_index(triples.reshape(-1), signals)
        parts = xp.reshape(xp.take(signals, index, axis=1), (n, len(triples), 3, n_times))
        turned = xp.matmul(like(rotations(axes, angles), signals), parts)
        out = copied(signals)
        out[:, index, :] = xp.reshape(turned, (n, triples.size, n_times))
        return out

    def _triples(self, channels: int) -> np.ndarray:
        if self.triples is None:
            if channels % 3 or not channels:
                message = (
                    f"Rotation turns three channels at a time, and there are {channels}. Name "
                    "those that belong together: triples=((0, 1, 2),)."
                )
                raise InvalidInputError(message)
            return np.arange(channels).reshape(-1, 3)
        triples = np.asarray(self.triples, dtype=np.int64)
        if triples.ndim != 2 or triples.shape[1] != 3 or np.unique(triples).size != triples.size:
            message = (
                f"Rotation was given triples={self.triples!r}. Give three channels each, and no "
                "channel twice."
            )
            raise InvalidInputError(message)
        if triples.min() < 0 or triples.max() >= channels:
            message = (
                f"Rotation was given triples={self.triples!r}, but there are {channels} channels."
            )
            raise InvalidInputError(message)
        return triples


def rotations(axes: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Return the matrices that turn by angles about axes (Rodrigues' formula)."""
    x, y, z = np.moveaxis(axes / np.linalg.norm(axes, axis=-1, keepdims=True), -1, 0)
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1)
    cross = cross.reshape(*x.shape, 3, 3)
    sine, cosine = np.sin(angles)[..., None, None], np.cos(angles)[..., None, None]
    turned: np.ndarray = np.eye(3) + sine * cross + (1 - cosine) * (cross @ cross)
    return turned


@dataclasses.dataclass
class TimeShift(SignalStep):
    """Shift each sample in time; what leaves at one end comes back at the other.

    Parameters
    ----------
    max_shift : float, default=0.1
        The largest shift, as a part of the length.
    """

    max_shift: float = 0.1

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        check_between(self.max_shift, "max_shift", 0, 1, self)

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return shifted signals."""
        _, signals = read_signals(signals, "TimeShift")
        n, channels, n_times = (int(size) for size in signals.shape)
        most = int(self.max_shift * n_times)
        shifts = rng.integers(-most, most + 1, size=n)
        source = (np.arange(n_times) - shifts[:, None]) % n_times
        rows = np.arange(n)[:, None, None], np.arange(channels)[None, :, None]
        return signals[
            (*(moved_index(row, signals) for row in rows), moved_index(source[:, None, :], signals))
        ]


@dataclasses.dataclass
class Scaling(SignalStep):
    """Multiply signals by random factors near one.

    Parameters
    ----------
    spread : float, default=0.1
        The standard deviation of the logarithm of a factor.
    per_channel : bool, default=False
        Whether each channel has a factor of its own, or all channels of a sample the same.
    """

    spread: float = 0.1
    per_channel: bool = False

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        check_between(self.spread, "spread", 0, np.inf, self)

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return scaled signals."""
        _, signals = read_signals(signals, "Scaling")
        n, channels = (int(size) for size in signals.shape[:2])
        drawn = rng.standard_normal((n, channels if self.per_channel else 1, 1))
        return signals * like(np.exp(self.spread * drawn), signals)


@dataclasses.dataclass
class ChannelDropout(SignalStep):
    """Silence channels, as a loose contact does; one channel of a sample always stays.

    Parameters
    ----------
    probability : float, default=0.1
        That of a channel to be silent.
    """

    probability: float = 0.1

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""
        check_between(self.probability, "probability", 0, 1, self)

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return signals with silent channels."""
        _, signals = read_signals(signals, "ChannelDropout")
        n, channels = (int(size) for size in signals.shape[:2])
        stays = rng.random((n, channels)) >= self.probability
        stays[np.arange(n), rng.integers(channels, size=n)] = True
        return signals * like(stays[:, :, None].astype(np.float64), signals)


@dataclasses.dataclass
class Compose(SignalStep):
    """Augment by several steps, one after another.

    Parameters
    ----------
    steps : sequence of callables
        Each is called as ``step(signals, rng)``.
    """

    steps: Any

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        _check_callables(self.steps, "Compose")

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return augmented signals."""
        _, signals = read_signals(signals, "Compose")
        for step in self.steps:
            signals = step(signals, rng)
        return signals


@dataclasses.dataclass
class OneOf(SignalStep):
    """Augment each sample by one of several steps, drawn at random.

    Parameters
    ----------
    steps : sequence of callables
        Each is called as ``step(signals, rng)`` with the samples for which it was drawn.
    """

    steps: Any

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        _check_callables(self.steps, "OneOf")

    def __call__(self, signals: Any, rng: np.random.Generator) -> Array:
        """Return augmented signals."""
        xp, signals = read_signals(signals, "OneOf")
        drawn = rng.integers(len(self.steps), size=int(signals.shape[0]))
        out = xp.empty_like(signals)
        for k, step in enumerate(self.steps):
            chosen = np.flatnonzero(drawn == k)
            if len(chosen):
                index = moved_index(chosen, signals)
                out[index, ...] = step(xp.take(signals, index, axis=0), rng)
        return out


def _check_callables(steps: Sequence[Callable[..., Any]], of: str) -> None:
    if not isinstance(steps, (list, tuple)) or not steps or not all(map(callable, steps)):
        message = (
            f"{of} was given steps={steps!r}. Give a list of augmentations, such as "
            f"{of}([Jitter(0.05), Scaling(0.1)])."
        )
        raise InvalidTypeError(message)
