"""Logarithms of the Fourier transforms of frames that overlap.

Transforms of every d-th of the n samples of a frame are put together, four at a time, to those of
every d/4-th, from d = n, or n / 2 if that is a power of four, down to d = 1 (decimation in time).
They are rows, one for each frequency from zero to that in the middle, as signals are real. A row
has a number for each place where such a transform begins. Place (a, c, s), in this order, is the
sample a + hop s of the channel c, a < d. Loops run over places: frequencies are few in the
beginning, and places few in the end.

The transform that begins m samples later is the one of m rows (c, s) later. If the weights of the
window are all the same, frames share transforms: where hop divides m, it is that of s + m / hop, so
that a < hop are enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyad.core.compiled import kernel, part, separate_part
from polyad.core.vector_math import fast_log, fast_log_of_normal

if TYPE_CHECKING:
    import numpy as np

_POWERS_OF_FOUR = 0x5555555555555555


@kernel
def log_spectra(
    signals: np.ndarray,
    weights: np.ndarray,
    roots: np.ndarray,
    floor: np.ndarray,
    sizes: tuple[int, int, int, int],
    scratch: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write log(abs(part) + floor) of both parts of spectra, or log(power + floor).

    ``signals`` are (samples, channels, times); ``weights`` those of a window, or hop of them where
    frames share transforms; ``roots`` (2, n), n a power of two, the cosines and sines of
    -2 pi k / n; ``out`` is (samples, 2 parts or 1, channels, frequencies * frames). ``sizes`` are
    hop, the number of frames, and how many channels and frames are transformed at a time;
    ``scratch`` is (5, n * places of a row + 2 * n).
    """
    hop, n_frames, group, most = sizes
    n, n_starts, n_channels = roots.shape[1], weights.size, signals.shape[1]
    shared = hop if n_starts < n else 2 * n
    n_frequencies = n // 2 + 1
    for sample in range(len(signals)):
        for first in range(0, n_channels, group):
            channels = min(group, n_channels - first)
            for start in range(0, n_frames, most):
                frames = min(most, n_frames - start)
                columns = frames + (n // hop - 1 if n_starts < n else 0)
                width = channels * columns
                re, im, to_re, to_im = scratch[0], scratch[1], scratch[2], scratch[3]
                for c in range(channels):
                    own = signals[sample, first + c, start * hop :]
                    own = own[: (frames - 1) * hop + n]
                    _spread(own, weights, hop, columns, scratch[4], re[c * columns :], width)
                d, length = n, 1
                if n & _POWERS_OF_FOUR == 0:
                    d, length = n // 2, 2
                    _join_two(re, _later(d, width, shared), min(d, n_starts) * width, to_re)
                    re, to_re = to_re, re
                row = min(d, n_starts) * width
                while d > 4:
                    d //= 4
                    near, far = _later(d, width, shared), _later(2 * d, width, shared)
                    run = min(d, n_starts) * width
                    _join_four(re, im, row, 0, near, far, roots, length, to_re, to_im, run)
                    re, im, to_re, to_im = to_re, to_im, re, im
                    row = run
                    length *= 4
                near, far = _later(1, width, shared), _later(2, width, shared)
                # Some frames are a part of each row of a channel, all of them are one part.
                pieces = 1 if frames == n_frames else n_frequencies
                size = n_frequencies * frames // pieces
                for c in range(channels):
                    at = c * columns
                    _join_four(re, im, row, at, near, far, roots, length, to_re, to_im, frames)
                    for k in range(pieces):
                        i, j = k * size, k * n_frames + start
                        logs = out[sample, 0, first + c, j : j + size]
                        if out.shape[1] == 1:
                            _write_log_powers(to_re[i:], to_im[i:], floor[0], logs)
                        else:
                            _write_logs(to_re[i:], floor[0], logs)
                            logs = out[sample, 1, first + c, j : j + size]
                            _write_logs(to_im[i:], floor[0], logs)


@part
def _later(samples: int, width: int, shared: int) -> int:
    """Return how many places later a transform is that begins some samples later."""
    return samples // shared if samples >= shared else samples * width


@separate_part
def _spread(
    signal: np.ndarray,
    weights: np.ndarray,
    hop: int,
    columns: int,
    scratch: np.ndarray,
    out: np.ndarray,
    width: int,
) -> None:
    """Write the weighted samples of a channel to their places."""
    # First all that are hop apart beside each other.
    length = -(-signal.size // hop)
    for a in range(min(hop, weights.size)):
        every = scratch[a * length : (a + 1) * length]
        k, s = a, 0
        while k < signal.size:
            every[s] = signal[k]
            k += hop
            s += 1
    turn, later = 0, 0
    for a in range(weights.size):
        weight, every = weights[a], scratch[turn * length + later :]
        row = out[a * width : a * width + columns]
        for s in range(columns):
            row[s] = weight * every[s]
        turn += 1
        if turn == hop:
            turn = 0
            later += 1


@separate_part
def _join_two(a: np.ndarray, near: int, run: int, to_re: np.ndarray) -> None:
    """Put samples together to transforms of two."""
    b, x0, x1 = a[near:], to_re[:run], to_re[run : 2 * run]
    for i in range(run):
        x0[i] = a[i] + b[i]
        x1[i] = a[i] - b[i]


@part
def _join_four(
    re: np.ndarray,
    im: np.ndarray,
    row: int,
    at: int,
    near: int,
    far: int,
    roots: np.ndarray,
    length: int,
    to_re: np.ndarray,
    to_im: np.ndarray,
    run: int,
) -> None:
    """Put four transforms of a length together, at each place of a run of them.

    With a, b, c, d at the frequency f, which begin at a place, near it, far from it, and both, and
    w = exp(-2 pi i f / (4 length)): even, odd = a + w^2 c, b + w^2 d are transforms of twice the
    length at f, and the conjugates of a - w^2 c, b - w^2 d those at length - f, as all are of real
    numbers. even + w odd is the transform at f, and so on.
    """
    step = roots.shape[1] // (4 * length)
    for f in range(length // 2 + 1):
        a, ai = re[f * row + at :], im[f * row + at :]
        k1, k2, k3 = (length - f) * run, (length + f) * run, (2 * length - f) * run
        x0, y0 = to_re[f * run :], to_im[f * run :]
        x1, y1 = to_re[k1:], to_im[k1:]
        x2, y2 = to_re[k2:], to_im[k2:]
        x3, y3 = to_re[k3:], to_im[k3:]
        if f == 0:
            _join_first(run, a, near, far, x0, y0, x1, y1, x3, y3)
        elif 2 * f == length:
            _join_middle(run, a, near, far, roots[0, f * step], x0, y0, x3, y3)
        else:
            w, wi = roots[0, f * step], roots[1, f * step]
            w2, w2i = roots[0, 2 * f * step], roots[1, 2 * f * step]
            _join(run, a, ai, near, far, w, wi, w2, w2i, x0, y0, x1, y1, x2, y2, x3, y3)


@separate_part
def _join_first(
    run: int,
    a: np.ndarray,
    near: int,
    far: int,
    x0: np.ndarray,
    y0: np.ndarray,
    x1: np.ndarray,
    y1: np.ndarray,
    x2: np.ndarray,
    y2: np.ndarray,
) -> None:
    """Write the transforms at 0, length and 2 length, of real ones at 0."""
    b, c, d = a[near:], a[far:], a[near + far :]
    for i in range(run):
        even, odd = a[i] + c[i], b[i] + d[i]
        x0[i] = even + odd
        y0[i] = 0
        x1[i] = a[i] - c[i]
        y1[i] = d[i] - b[i]
        x2[i] = even - odd
        y2[i] = 0


@separate_part
def _join_middle(
    run: int,
    a: np.ndarray,
    near: int,
    far: int,
    root: float,
    x0: np.ndarray,
    y0: np.ndarray,
    x3: np.ndarray,
    y3: np.ndarray,
) -> None:
    """Write the transforms at length / 2 and 3 length / 2, of real ones at length / 2."""
    b, c, d = a[near:], a[far:], a[near + far :]
    for i in range(run):
        p, q = root * (b[i] - d[i]), root * (b[i] + d[i])
        x0[i] = a[i] + p
        y0[i] = -c[i] - q
        x3[i] = a[i] - p
        y3[i] = c[i] - q


@separate_part
def _join(
    run: int,
    a: np.ndarray,
    ai: np.ndarray,
    near: int,
    far: int,
    w: float,
    wi: float,
    w2: float,
    w2i: float,
    x0: np.ndarray,
    y0: np.ndarray,
    x1: np.ndarray,
    y1: np.ndarray,
    x2: np.ndarray,
    y2: np.ndarray,
    x3: np.ndarray,
    y3: np.ndarray,
) -> None:
    """Write the transforms at f, length - f, length + f and 2 length - f."""
    b, c, d = a[near:], a[far:], a[near + far :]
    bi, ci, di = ai[near:], ai[far:], ai[near + far :]
    for i in range(run):
        p, q = w2 * c[i] - w2i * ci[i], w2 * ci[i] + w2i * c[i]
        even, even_i, less, less_i = a[i] + p, ai[i] + q, a[i] - p, ai[i] - q
        p, q = w2 * d[i] - w2i * di[i], w2 * di[i] + w2i * d[i]
        odd, odd_i, lower, lower_i = b[i] + p, bi[i] + q, b[i] - p, bi[i] - q
        p, q = w * odd - wi * odd_i, w * odd_i + wi * odd
        x0[i] = even + p
        y0[i] = even_i + q
        x3[i] = even - p
        y3[i] = q - even_i
        p, q = w * lower - wi * lower_i, w * lower_i + wi * lower
        x1[i] = less - q
        y1[i] = -less_i - p
        x2[i] = less + q
        y2[i] = less_i - p


@separate_part
def _write_logs(x: np.ndarray, floor: float, out: np.ndarray) -> None:
    """Write log(abs(x) + floor)."""
    for i in range(out.size):
        out[i] = fast_log_of_normal(abs(x[i]) + floor)


@separate_part
def _write_log_powers(re: np.ndarray, im: np.ndarray, floor: float, out: np.ndarray) -> None:
    """Write log(re**2 + im**2 + floor)."""
    for i in range(out.size):
        out[i] = fast_log(re[i] * re[i] + im[i] * im[i] + floor)
