"""Smartphone activities (HAPT, six activities), prepared like the first version of the set.

The recordings are filtered as the README of the first version says: a median filter, a third-order
low-pass Butterworth filter at 20 Hz, and the body acceleration, which is the total acceleration
less its part below 0.3 Hz. The windows are those of the official split.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.signal

from experiments.data import data_file

RATE = 50.0
LENGTH = 128
CHANNELS = (
    *("body acc x", "body acc y", "body acc z"),
    *("gyro x", "gyro y", "gyro z"),
    *("total acc x", "total acc y", "total acc z"),
)


@dataclass(frozen=True)
class Windows:
    """Windows of signals: (windows, channels, times), what was done in each, and by whom."""

    signals: np.ndarray
    activity: np.ndarray
    person: np.ndarray

    def take(self, chosen: np.ndarray) -> Windows:
        """Return some of the windows."""
        return Windows(self.signals[chosen], self.activity[chosen], self.person[chosen])


def _filtered(recording: np.ndarray) -> np.ndarray:
    """Return the nine channels of a recording of six: (times, 9)."""
    calm = scipy.signal.medfilt(recording.astype(np.float64), (3, 1))
    smooth = scipy.signal.butter(3, 20.0, fs=RATE, output="sos")
    gravity = scipy.signal.butter(3, 0.3, fs=RATE, output="sos")
    clean = scipy.signal.sosfiltfilt(smooth, calm, axis=0)
    total, gyro = clean[:, :3], clean[:, 3:]
    body = total - scipy.signal.sosfiltfilt(gravity, total, axis=0)
    return np.concatenate([body, gyro, total], axis=1).astype(np.float32)


@cache
def read_windows() -> tuple[Windows, Windows]:
    """Return the windows of the official training persons and of the official test persons."""
    recordings = np.load(data_file("har/hapt_recordings.npz"))
    windows = np.load(data_file("har/hapt_windows.npz"))
    offset, numbers = recordings["offset"], recordings["experiment"]
    signal = recordings["signal"]
    filtered = {
        int(number): _filtered(signal[offset[k] : offset[k + 1]])
        for k, number in enumerate(numbers)
    }
    kept = np.flatnonzero(windows["y"] <= 6)
    places = zip(windows["experiment"][kept], windows["start"][kept], strict=True)
    cut = np.stack([filtered[int(e)][int(s) : int(s) + LENGTH].T for e, s in places])
    everyone = Windows(
        np.ascontiguousarray(cut), windows["y"][kept].astype(int), windows["subject"][kept]
    )
    is_test = windows["is_test"][kept]
    return everyone.take(~is_test), everyone.take(is_test)
