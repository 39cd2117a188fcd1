"""The geometry of the plain distance of large grids, which depends on differences only."""

from __future__ import annotations

import itertools
import math
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.transport.costs import check_range
from polyad.transport.geometry import (
    Geometry,
    check_epsilon,
    check_shape,
    least_above_zero,
    lengths,
    like,
    place_of,
)
from polyad.transport.separable import MatrixAxis, along

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.transport.geometry import Matrix

# The dynamic range, as an exponent, below which the error of a Fourier transform is 1e-10.
_FFT_RANGE = 12.0
# Terms of a sum that are smaller than the largest by this exponent are rounding.
_ROUNDING = 37.0
# Numbers in the matrices of a grid of two axes, up to which they take the place of FFTs: 64 MB.
_MATRIX_SIZE = 1 << 23
# Matrices are made by one thread, for all.
_BUILDING = threading.Lock()


class ConvolutionGeometry(Geometry):
    """The plain Euclidean distance between the points of a grid of two axes or more.

    Parameters
    ----------
    shape : sequence of int
        Points along each axis.
    epsilon : float
        The strength of the entropy.
    steps : sequence of float
        The distance of neighbours along each axis.
    periodic : bool, default=False
        Whether the grid is round: the end of an axis is beside its start.
    """

    # Transforms are longer than grids, and two of them are there at a time.
    _block_share: ClassVar[float] = 0.5

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float,
        steps: Sequence[float],
        periodic: bool = False,
    ) -> None:
        self.epsilon = check_epsilon(epsilon)
        self.shape, self.periodic = check_shape(shape), periodic
        self.steps = lengths("steps", steps, len(self.shape))
        # Along each axis the distances of all differences, from zero on; round ones come back.
        self._distances = []
        for n, step in zip(self.shape, self.steps, strict=True):
            index = np.arange(n)
            reached = np.minimum(index, n - index) if periodic else index
            self._distances.append(step * reached)
        self.largest = math.hypot(*(float(own.max()) for own in self._distances))
        self.nearest = least_above_zero(self._distances)
        check_range(self.largest, self.epsilon)
        self._spectra: dict[Any, Any] = {}
        self._rows: dict[tuple[int, ...], MatrixAxis] = {}

    def with_epsilon(self, epsilon: float) -> Geometry:
        """Return the same cells and costs with another strength of the entropy."""
        return ConvolutionGeometry(
            self.shape, epsilon=epsilon, steps=self.steps, periodic=self.periodic
        )

    def cost_matrix(self) -> Matrix:
        """Return the cost of all pairs of cells, the last axis of the grid running fastest."""
        total = np.zeros((self.n_cells, self.n_cells))
        for index, own in zip(np.indices(self.shape), self._distances, strict=True):
            flat = index.ravel()
            total += own[np.abs(flat[:, None] - flat)] ** 2
        return np.asarray(np.sqrt(total))

    def _apply(self, values: Array) -> Array:
        span = _dynamic_range(values)
        if min(span, self.largest / self.epsilon) <= _FFT_RANGE:
            return self._transformed(values)
        # A term is at most exp(span - distance / epsilon) times the one of the cell itself.
        radius = self.epsilon * (span + _ROUNDING)
        result = namespace_of(values).zeros_like(values)
        for offset, targets, sources in self._offsets(radius):
            result[targets] += along(self._row(offset).apply, values[sources], -1)
        return result

    def _log_apply(self, logs: Array) -> Array:
        xp = namespace_of(logs)
        result = xp.full_like(logs, -math.inf)
        for offset, targets, sources in self._offsets(math.inf):
            further = along(self._row(offset).log_apply, logs[sources], -1)
            result[targets] = xp.logaddexp(result[targets], further)
        return result

    def _row(self, offset: tuple[int, ...]) -> MatrixAxis:
        """Return the kernel between the last axes of cells whose others differ by an offset."""
        key = tuple(map(abs, offset))
        if key not in self._rows:
            apart = sum(own[k] ** 2 for own, k in zip(self._distances, key, strict=False))
            index = np.arange(self.shape[-1])
            last = self._distances[-1][np.abs(index[:, None] - index)]
            self._rows[key] = MatrixAxis(np.sqrt(apart + last**2), self.epsilon)
        return self._rows[key]

    def _offsets(self, radius: float) -> Any:
        """Yield the differences of all axes but the last, and which cells they lead to and from."""
        ranges = []
        for n, own in zip(self.shape[:-1], self._distances, strict=False):
            near = [k for k in range(n) if own[k] <= radius]
            both = near if self.periodic else [*(-k for k in near if k), *near]
            ranges.append(both)
        for offset in itertools.product(*ranges):
            pieces = [
                _overlaps(n, k, periodic=self.periodic)
                for n, k in zip(self.shape, offset, strict=False)
            ]
            for piece in itertools.product(*pieces):
                targets, sources = zip(*piece, strict=True)
                yield offset, (slice(None), *targets), (slice(None), *sources)

    def _transformed(self, values: Array) -> Array:
        """Return K times numbers by Fourier transforms, padded unless the grid is round."""
        # What wraps around is rounding: a padded axis is longer by what a kernel reaches.
        sizes = [
            n if self.periodic else min(2 * n - 1, n + math.ceil(_ROUNDING * self.epsilon / step))
            for n, step in zip(self.shape, self.steps, strict=True)
        ]
        n_matrices = self.shape[0] ** 2 * (sizes[-1] // 2 + 1)
        if len(sizes) == 2 and n_matrices <= _MATRIX_SIZE:
            return self._transformed_by_matrices(values, sizes[1])
        from scipy.fft import next_fast_len

        if not self.periodic:
            sizes = [next_fast_len(size, real=True) for size in sizes]
        axes = tuple(range(1, 1 + len(self.shape)))
        fft: Any
        if is_numpy_array(values):
            from scipy import fft
        else:
            fft = namespace_of(values).fft
        key = place_of(values)
        if key not in self._spectra:
            self._spectra[key] = like(np.fft.rfftn(self._wrapped(sizes)).real, values)
        product = fft.rfftn(values, s=sizes, axes=axes) * self._spectra[key]
        cut_back = (slice(None), *(slice(0, n) for n in self.shape))
        return fft.irfftn(product, s=sizes, axes=axes)[cut_back]

    def _transformed_by_matrices(self, values: Array, size: int) -> Array:
        """Return the same of two axes: the last is transformed, the first has its matrices."""
        xp = namespace_of(values)
        key = place_of(values)
        with _BUILDING:
            if key not in self._spectra:
                self._spectra[key] = [like(own, values) for own in self._fourier_matrices(size)]
        forward, kernels, back = self._spectra[key]
        n_grids, (rows, columns) = values.shape[0], self.shape
        waves = xp.matmul(forward, xp.reshape(values, (-1, columns)).T)
        # Real and imaginary parts of all grids are columns beside each other.
        waves = xp.matmul(xp.reshape(waves, (-1, 2 * n_grids, rows)), kernels)
        flat = xp.matmul(xp.reshape(waves, (-1, n_grids * rows)).T, back)
        return xp.reshape(flat, (n_grids, rows, columns))

    def _fourier_matrices(self, size: int) -> tuple[Matrix, Matrix, Matrix]:
        """Return a transform of the last axis, a matrix of the first per frequency, the inverse."""
        rows, columns = self.shape
        frequency = np.arange(size // 2 + 1)
        angle = 2 * np.pi / size * (np.outer(frequency, np.arange(columns)) % size)
        forward = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        # All frequencies but zero, and the highest of an even size, stand for two.
        counts = np.where((frequency == 0) | (2 * frequency == size), 1.0, 2.0) / size
        spectrum = np.fft.rfft(self._wrapped([rows, size])).real
        apart = np.abs(np.arange(rows)[:, None] - np.arange(rows))
        kernels = np.take(spectrum.T, apart, axis=1)
        back = forward * counts[:, None, None]
        return forward.reshape(-1, columns), kernels, back.reshape(-1, columns)

    def _wrapped(self, sizes: Sequence[int]) -> Matrix:
        """Return the kernel by differences, which come back from the end of longer axes."""
        squares = np.zeros(())
        for n, size, step in zip(self.shape, sizes, self.steps, strict=True):
            index = np.arange(size)
            is_round = self.periodic or size > n
            own = step * (np.minimum(index, size - index) if is_round else index)
            squares = squares[..., None] + own**2
        return np.asarray(np.exp(-np.sqrt(squares) / self.epsilon))


def _dynamic_range(values: Array) -> float:
    """Return the largest ratio within a grid, as an exponent; infinite where there is a zero."""
    xp = namespace_of(values)
    axes = tuple(range(1, values.ndim))
    low, high = xp.min(values, axis=axes), xp.max(values, axis=axes)
    if not bool(xp.all(low > 0)):
        return math.inf
    return float(xp.max(xp.log(high) - xp.log(low)))


def _overlaps(n: int, offset: int, *, periodic: bool) -> list[tuple[slice, slice]]:
    """Return the targets and sources on an axis whose positions differ by an offset."""
    if offset < 0:
        return [(slice(-offset, n), slice(0, n + offset))]
    ahead = [(slice(0, n - offset), slice(offset, n))]
    return [*ahead, (slice(n - offset, n), slice(0, offset))] if periodic and offset else ahead
