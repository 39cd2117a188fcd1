"""Logarithms of the parts of spectra, with frames and frequencies exchanged on the way."""

from __future__ import annotations

import numpy as np

from polyad.core.compiled import kernel
from polyad.core.vector_math import fast_log


@kernel
def log_parts_of(
    spectra: np.ndarray, out: np.ndarray, floor: np.ndarray, start: int, stop: int
) -> None:
    """Write log(abs(part) + floor) of some samples.

    ``spectra`` are (samples, channels, frames, frequencies * 2), real and imaginary parts in turn;
    ``out`` is (samples, 2, channels, frequencies, frames); ``floor`` has one number of their type.
    """
    n_channels, n_frames, width = spectra.shape[1], spectra.shape[2], spectra.shape[3]
    line = np.empty(width, spectra.dtype)
    least = floor[0]
    for n in range(start, stop):
        for c in range(n_channels):
            for m in range(n_frames):
                own = spectra[n, c, m]
                # A loop of its own, which runs on vector registers.
                for k in range(width):
                    line[k] = fast_log(abs(own[k]) + least)
                for f in range(width // 2):
                    out[n, 0, c, f, m] = line[2 * f]
                    out[n, 1, c, f, m] = line[2 * f + 1]
