"""Signals for :class:`~polyad.AugmentedCP`: time-frequency features and augmentations.

Augmentations are called as ``augment(signals, rng)``: they keep the shape (samples, channels,
times) and draw all that is random from the NumPy generator that they are given. Features are called
as ``preprocess(signals)`` and draw nothing. Any function that is called in the same way can take
their place.
"""

from polyad.augmented.signals.augmentations import (
    BandPass,
    ChannelDropout,
    Compose,
    Jitter,
    OneOf,
    Rotation,
    Scaling,
    TimeShift,
)
from polyad.augmented.signals.stft import STFT
from polyad.data.recordings import Recordings

__all__ = [
    "STFT",
    "BandPass",
    "ChannelDropout",
    "Compose",
    "Jitter",
    "OneOf",
    "Recordings",
    "Rotation",
    "Scaling",
    "TimeShift",
]
