"""Logarithms of the parts of spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyad.core.compiled import kernel
from polyad.core.vector_math import fast_log

if TYPE_CHECKING:
    import numpy as np


@kernel
def log_parts_of(spectra: np.ndarray, out: np.ndarray, floor: np.ndarray) -> None:
    """Write log(abs(part) + floor) of samples.

    ``spectra`` are (samples, channels, numbers * 2), real and imaginary parts in turn; ``out`` is
    (samples, 2, channels, numbers); ``floor`` has one number of their type.
    """
    least = floor[0]
    for n in range(len(spectra)):
        for c in range(spectra.shape[1]):
            own, real, imaginary = spectra[n, c], out[n, 0, c], out[n, 1, c]
            for k in range(real.size):
                real[k] = abs(own[2 * k]) + least
                imaginary[k] = abs(own[2 * k + 1]) + least
            # Loops of their own, which run on vector registers.
            for k in range(real.size):
                real[k] = fast_log(real[k])
            for k in range(imaginary.size):
                imaginary[k] = fast_log(imaginary[k])
