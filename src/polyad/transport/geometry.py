r"""How a Gibbs kernel ``K = exp(-cost / epsilon)`` is applied, by its form where it has one.

A geometry knows the cells of a grid, a symmetric cost between them and the strength ``epsilon`` of
the entropy. It multiplies arrays whose last axes are the grid by K, one grid or many at once:

``SeparableGeometry``
    Costs that add over axes: squared and city-block distances on product grids, plain or round
    (torus), and, with one axis, any cost matrix. One small matrix per axis, exact, and positive
    numbers stay positive. Where an axis is long and its cost is the distance of even points, a
    recursive filter of two passes takes the place of the matrix, exact too.
``ConvolutionGeometry``
    The plain Euclidean distance of large grids, which does not add over axes but depends on
    differences only. A direct sum over differences, cut where terms are below the rounding of the
    result, or, where the dynamic range allows, a fast Fourier transform, whose error is relative to
    the largest number: both are within ``1e-10`` of the dense product, entry by entry.

``log_apply`` is the same for logarithms, for any epsilon. Terms beside which others vanish are kept
by cutting each axis into blocks within which costs differ by no more than the exponents of the
number type reach: a block is a product of matrices, and blocks are joined by their largest terms.

Arrays of NumPy, torch and others of the array API stay what and where they are.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from array_api_compat import device, is_array_api_obj, is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.costs import check_range, validate_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from polyad.core.arrays import Array

    Matrix = NDArray[np.float64]

Metric = Literal["sqeuclidean", "euclidean", "cityblock"]
METRICS: tuple[Metric, ...] = get_args(Metric)

# Exponents that a number type reaches, with room for sums: of the smallest normal numbers.
_REACH, _SINGLE_REACH = 600.0, 70.0
# The dynamic range, as an exponent, below which the error of a Fourier transform is 1e-10.
_FFT_RANGE = 12.0
# Terms of a sum that are smaller than the largest by this exponent are rounding.
_ROUNDING = 37.0
# Plain distances on grids of at most so many cells are a matrix: 72 MB.
_DENSE_CELLS = 3000
# Points of an axis from which two passes of a filter are quicker than a product of matrices.
_FILTER_POINTS = 1024
# Numbers that a thread takes at a time.
_BLOCK = 1 << 17
# The largest length of an axis or a step, and one over the smallest: their squares are finite.
_LONGEST = 1e100


class Geometry(ABC):
    """A grid of cells, a cost between them, and the entropy; see the top of the module.

    Attributes
    ----------
    shape : tuple of int
        The grid; of a cost matrix, its size.
    epsilon : float
        The strength of the entropy.
    largest : float
        The largest cost.
    nearest : float
        The smallest cost between two cells that is above zero; zero if there is none.
    """

    shape: tuple[int, ...]
    epsilon: float
    largest: float
    nearest: float

    @property
    def n_cells(self) -> int:
        """The number of cells."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        """Return the kind, the grid and the entropy."""
        return f"{type(self).__name__}(shape={self.shape}, epsilon={self.epsilon:g})"

    def is_plain(self, example: Array) -> bool:
        """Say whether products of numbers of a type lose nothing: if not, use logarithms.

        Parameters
        ----------
        example : array
            Any array of the number type.
        """
        return self.largest <= reach_of(example) * self.epsilon

    def apply(self, values: Array) -> Array:
        """Return ``K`` times each grid of numbers.

        Parameters
        ----------
        values : array of shape (..., *shape)
            Numbers that are not negative keep their digits, entry by entry. Whole ones and
            booleans are taken as float64.

        Returns
        -------
        array of shape (..., *shape)
        """
        return self._spread(self._apply, _read(values, self.shape))

    def log_apply(self, logs: Array) -> Array:
        """Return ``log(K exp(logs))`` for each grid of numbers.

        Parameters
        ----------
        logs : array of shape (..., *shape)
            Any numbers; minus infinity stands for zero.

        Returns
        -------
        array of shape (..., *shape)
        """
        logs = _read(logs, self.shape)
        if not self.is_plain(logs):
            return self._spread(self._log_apply, logs)
        xp = namespace_of(logs)
        axes = tuple(range(-len(self.shape), 0))
        high = finite_or_zero(xp.max(logs, axis=axes, keepdims=True))
        return log(self.apply(xp.exp(logs - high))) + high

    @abstractmethod
    def cost_matrix(self) -> Matrix:
        """Return the cost of all pairs of cells, the last axis of the grid running fastest."""

    @abstractmethod
    def _apply(self, values: Array) -> Array:
        """Return K times numbers of shape (n, *shape)."""

    @abstractmethod
    def _log_apply(self, logs: Array) -> Array:
        """Return the same of logarithms, for any epsilon."""

    def _spread(self, function: Callable[[Array], Array], values: Array) -> Array:
        """Call a function of stacked grids, of NumPy arrays in blocks on threads."""
        xp = namespace_of(values)
        given = tuple(values.shape)
        n = math.prod(given[: len(given) - len(self.shape)])
        if n == 0:
            return xp.asarray(values, copy=True)
        stacked, step = xp.reshape(values, (n, *self.shape)), max(1, _BLOCK // self.n_cells)
        if not is_numpy_array(stacked) or n <= step:
            return xp.reshape(function(stacked), given)
        result = np.empty(stacked.shape, stacked.dtype)

        def fill(start: int, stop: int) -> None:
            result[start:stop] = function(stacked[start:stop])

        run_blocks(fill, cut(n, step))
        return result.reshape(given)


class SeparableGeometry(Geometry):
    """Costs that add over the axes of a grid.

    Parameters
    ----------
    costs : sequence of arrays of shape (n_k, n_k)
        The cost along each axis; one matrix is a grid of one axis, for any cost.
    epsilon : float
        The strength of the entropy.
    steps : sequence of (float or None), optional
        For each axis the distance of neighbours, if its cost is the distance of even points on a
        line, or None: long ones are then filtered.
    """

    def __init__(
        self,
        costs: Sequence[ArrayLike],
        *,
        epsilon: float,
        steps: Sequence[float | None] | None = None,
    ) -> None:
        self.epsilon = check_epsilon(epsilon)
        if isinstance(costs, str) or not isinstance(costs, Iterable):
            message = f"costs={costs!r} is not a sequence of matrices, one for each axis."
            raise InvalidTypeError(message)
        matrices = [validate_cost(cost, mode_title=f"axis {k}") for k, cost in enumerate(costs)]
        self.shape = check_shape([len(matrix) for matrix in matrices])
        self.largest = sum(float(matrix.max()) for matrix in matrices)
        self.nearest = _least_above_zero(matrices)
        check_range(self.largest, self.epsilon)
        even: Sequence[float | None] = [None] * len(matrices) if steps is None else list(steps)
        _lengths("steps", [1.0 if step is None else step for step in even], len(matrices))
        self._axes: list[_Axis] = [
            _FilterAxis(matrix, self.epsilon, step)
            if step is not None and len(matrix) >= _FILTER_POINTS
            else _MatrixAxis(matrix, self.epsilon)
            for matrix, step in zip(matrices, even, strict=True)
        ]

    def cost_matrix(self) -> Matrix:
        """Return the cost of all pairs of cells, the last axis of the grid running fastest."""
        total = np.zeros((1, 1))
        for axis in self._axes:
            n, m = len(total), len(axis.cost)
            total = total[:, None, :, None] + axis.cost[None, :, None, :]
            total = total.reshape(n * m, n * m)
        return total

    def _apply(self, values: Array) -> Array:
        for k, axis in enumerate(self._axes):
            values = _along(axis.apply, values, k + 1)
        return values

    def _log_apply(self, logs: Array) -> Array:
        for k, axis in enumerate(self._axes):
            logs = _along(axis.log_apply, logs, k + 1)
        return logs


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
        self.steps = _lengths("steps", steps, len(self.shape))
        # Along each axis the distances of all differences, from zero on; round ones come back.
        self._distances = []
        for n, step in zip(self.shape, self.steps, strict=True):
            index = np.arange(n)
            reached = np.minimum(index, n - index) if periodic else index
            self._distances.append(step * reached)
        self.largest = math.hypot(*(float(own.max()) for own in self._distances))
        self.nearest = _least_above_zero(self._distances)
        check_range(self.largest, self.epsilon)
        self._spectra: dict[Any, Array] = {}
        self._rows: dict[tuple[int, ...], _MatrixAxis] = {}

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
            result[targets] += _along(self._row(offset).apply, values[sources], -1)
        return result

    def _log_apply(self, logs: Array) -> Array:
        xp = namespace_of(logs)
        result = xp.full_like(logs, -math.inf)
        for offset, targets, sources in self._offsets(math.inf):
            further = _along(self._row(offset).log_apply, logs[sources], -1)
            result[targets] = xp.logaddexp(result[targets], further)
        return result

    def _row(self, offset: tuple[int, ...]) -> _MatrixAxis:
        """Return the kernel between the last axes of cells whose others differ by an offset."""
        key = tuple(map(abs, offset))
        if key not in self._rows:
            apart = sum(own[k] ** 2 for own, k in zip(self._distances, key, strict=False))
            index = np.arange(self.shape[-1])
            last = self._distances[-1][np.abs(index[:, None] - index)]
            self._rows[key] = _MatrixAxis(np.sqrt(apart + last**2), self.epsilon)
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
        axes = tuple(range(1, 1 + len(self.shape)))
        sizes = self.shape if self.periodic else tuple(2 * n for n in self.shape)
        cut_back = (slice(None), *(slice(0, n) for n in self.shape))
        fft: Any
        if is_numpy_array(values):
            from scipy import fft
        else:
            fft = namespace_of(values).fft
        spectrum = self._spectrum(values, sizes)
        product = fft.rfftn(values, s=sizes, axes=axes) * spectrum
        return fft.irfftn(product, s=sizes, axes=axes)[cut_back]

    def _spectrum(self, example: Array, sizes: tuple[int, ...]) -> Array:
        """Return the Fourier transform of the kernel, in the namespace of an array."""
        key = _place_of(example)
        if key not in self._spectra:
            squares = np.zeros((1,) * len(sizes))
            for k, (size, step) in enumerate(zip(sizes, self.steps, strict=True)):
                index = np.arange(size)
                own = step * np.minimum(index, size - index)
                squares = squares + np.expand_dims(own**2, [j for j in range(len(sizes)) if j != k])
            spectrum = np.fft.rfftn(np.exp(-np.sqrt(squares) / self.epsilon))
            self._spectra[key] = _like(spectrum.real, example)
        return self._spectra[key]


class _Axis(ABC):
    """The kernel along the middle one of three axes."""

    cost: Matrix

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Return the product with numbers."""

    @abstractmethod
    def log_apply(self, logs: Array) -> Array:
        """Return the logarithm of the product with exponentials."""


class _MatrixAxis(_Axis):
    """A kernel as a matrix."""

    def __init__(self, cost: Matrix, epsilon: float) -> None:
        self.cost, self.epsilon = cost, epsilon
        self._kernels: dict[Any, Array] = {}
        self._blocks: dict[Any, list[tuple[slice, Array, Array]]] = {}

    def apply(self, values: Array) -> Array:
        """Return the product with numbers."""
        key = _place_of(values)
        if key not in self._kernels:
            self._kernels[key] = _like(np.exp(-self.cost / self.epsilon), values)
        return _multiply(self._kernels[key], values)

    def log_apply(self, logs: Array) -> Array:
        """Return the logarithm of the product with exponentials, block by block."""
        xp = namespace_of(logs)
        total = xp.full_like(logs, -math.inf)
        for columns, shifts, kernel in self._cut(logs):
            part = logs[:, columns, :]
            high = finite_or_zero(xp.max(part, axis=1, keepdims=True))
            own = log(_multiply(kernel, xp.exp(part - high))) + high + shifts
            total = xp.logaddexp(total, own)
        return total

    def _cut(self, example: Array) -> list[tuple[slice, Array, Array]]:
        """Return blocks of columns, the largest exponents of their rows, and what is left."""
        key = _place_of(example)
        if key not in self._blocks:
            reach = reach_of(example) * self.epsilon
            blocks, start = [], 0
            while start < len(self.cost):
                high = np.maximum.accumulate(self.cost[:, start:], axis=1)
                low = np.minimum.accumulate(self.cost[:, start:], axis=1)
                # Costs of one column are one number: a block has a column at least.
                stop = start + int(np.sum((high - low).max(axis=0) <= reach))
                part = self.cost[:, start:stop] / -self.epsilon
                shifts = part.max(axis=1, keepdims=True)
                kernel = np.exp(part - shifts)
                blocks.append((slice(start, stop), _like(shifts, example), _like(kernel, example)))
                start = stop
            self._blocks[key] = blocks
        return self._blocks[key]


class _FilterAxis(_Axis):
    """The kernel of the distance of even points: two passes of a recursive filter."""

    def __init__(self, cost: Matrix, epsilon: float, step: float) -> None:
        self.cost, self.decay = cost, -step / epsilon

    def apply(self, values: Array) -> Array:
        """Add what comes from the left to what comes from the right."""
        xp = namespace_of(values)
        rows = [values[:, k, :] for k in range(values.shape[1])]
        ratio = math.exp(self.decay)
        sums = [rows[0]]
        for row in rows[1:]:
            sums.append(row + ratio * sums[-1])
        backward = xp.zeros_like(rows[0])
        for k in range(len(rows) - 2, -1, -1):
            backward = ratio * (backward + rows[k + 1])
            sums[k] = sums[k] + backward
        return xp.stack(sums, axis=1)

    def log_apply(self, logs: Array) -> Array:
        """Do the same with logarithms."""
        xp = namespace_of(logs)
        rows = [logs[:, k, :] for k in range(logs.shape[1])]
        sums = [rows[0]]
        for row in rows[1:]:
            sums.append(xp.logaddexp(row, sums[-1] + self.decay))
        backward = xp.full_like(rows[0], -math.inf)
        for k in range(len(rows) - 2, -1, -1):
            backward = xp.logaddexp(backward, rows[k + 1]) + self.decay
            sums[k] = xp.logaddexp(sums[k], backward)
        return xp.stack(sums, axis=1)


def grid_geometry(
    shape: Sequence[int],
    epsilon: float,
    *,
    metric: Metric = "sqeuclidean",
    periodic: bool = False,
    axis_weights: Sequence[float] | None = None,
) -> Geometry:
    """Return the geometry of the points of a grid, whose axes run from 0 to 1.

    The largest squared distance is then the number of axes, and not one as in
    :func:`~polyad.transport.grid_cost`.

    Parameters
    ----------
    shape : sequence of int
        Points along each axis.
    epsilon : float
        The strength of the entropy, in the unit of the cost. The costs must be below 1e12 times it.
    metric : {'sqeuclidean', 'euclidean', 'cityblock'}, default='sqeuclidean'
        The squared distance, the distance, or the sum of the distances along the axes.
    periodic : bool, default=False
        Whether the grid is round (a torus): the end of an axis is beside its start. A round axis of
        n points has steps of 1 / n, another one of 1 / (n - 1).
    axis_weights : sequence of float, optional
        What the coordinates of each axis are multiplied by; ones by default. For pixels that are
        square in an image that is not, give the sides of the image.

    Returns
    -------
    Geometry

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.transport import grid_geometry
    >>> geometry = grid_geometry((28, 28), epsilon=0.01)
    >>> geometry.apply(np.ones((5, 28, 28))).shape
    (5, 28, 28)
    """
    sizes = check_shape(shape)
    if not isinstance(metric, str) or metric not in METRICS:
        message = (
            f"metric={metric!r} is not one of {', '.join(map(repr, METRICS))}. For costs of your "
            "own, use MatrixGeometry."
        )
        raise InvalidInputError(message)
    lengths = [1.0] * len(sizes) if axis_weights is None else axis_weights
    weights = _lengths("axis_weights", lengths, len(sizes))
    steps = [
        weight / max(1, n if periodic else n - 1) for n, weight in zip(sizes, weights, strict=True)
    ]
    if metric == "euclidean" and sum(n > 1 for n in sizes) > 1:
        large = ConvolutionGeometry(sizes, epsilon=epsilon, steps=steps, periodic=periodic)
        if large.n_cells > _DENSE_CELLS:
            return large
        return MatrixGeometry(large.cost_matrix(), sizes, epsilon=epsilon)
    costs = []
    for n, step in zip(sizes, steps, strict=True):
        apart = np.abs(np.arange(n)[:, None] - np.arange(n))
        distance = step * (np.minimum(apart, n - apart) if periodic else apart)
        costs.append(distance**2 if metric == "sqeuclidean" else distance)
    is_line = metric != "sqeuclidean" and not periodic
    return SeparableGeometry(costs, epsilon=epsilon, steps=steps if is_line else None)


class MatrixGeometry(SeparableGeometry):
    """Any cost between the cells of a grid, as a matrix.

    Parameters
    ----------
    cost : array-like of shape (n_cells, n_cells)
        Symmetric, finite, not negative, zero on the diagonal.
    shape : sequence of int, optional
        The grid, whose last axis runs fastest in the rows of the cost.
    epsilon : float
        The strength of the entropy.
    """

    def __init__(
        self, cost: ArrayLike, shape: Sequence[int] | None = None, *, epsilon: float
    ) -> None:
        super().__init__([cost], epsilon=epsilon)
        grid = self.shape if shape is None else check_shape(shape)
        if math.prod(grid) != self.n_cells:
            message = (
                f"The cost is of {self.n_cells} cells, but the grid {grid} has {math.prod(grid)}."
            )
            raise InvalidInputError(message)
        self.shape = grid

    def _apply(self, values: Array) -> Array:
        flat = namespace_of(values).reshape(values, (-1, self.n_cells))
        return super()._apply(flat)

    def _log_apply(self, logs: Array) -> Array:
        flat = namespace_of(logs).reshape(logs, (-1, self.n_cells))
        return super()._log_apply(flat)


def _least_above_zero(costs: Sequence[NDArray[Any]]) -> float:
    """Return the smallest cost above zero of any axis, or zero."""
    found = [float(cost[cost > 0].min()) for cost in costs if (cost > 0).any()]
    return min(found, default=0.0)


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return the points along each axis of a grid, or refuse them."""
    sizes = list(shape) if isinstance(shape, Iterable) else []
    if not sizes or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in sizes
    ):
        message = (
            f"shape={shape!r} is no grid: give the number of points along each axis, whole and at "
            "least one, such as (28, 28)."
        )
        raise InvalidInputError(message)
    return tuple(map(int, sizes))


def _lengths(name: str, given: Any, n_axes: int) -> tuple[float, ...]:
    """Return a length above zero for each axis, or refuse what was given."""
    each = list(given) if isinstance(given, Iterable) else []
    if len(each) != n_axes or not all(
        isinstance(own, int | float | np.integer | np.floating) and 1 / _LONGEST <= own <= _LONGEST
        for own in each
    ):
        message = (
            f"{name}={given!r} must be a number above zero for each of {n_axes} axes, between "
            f"{1 / _LONGEST:g} and {_LONGEST:g}."
        )
        raise InvalidInputError(message)
    return tuple(map(float, each))


def _read(values: Any, shape: tuple[int, ...]) -> Array:
    """Return grids of float32 or float64; whole numbers and booleans become the latter."""
    if type(values) is not np.ndarray and not is_array_api_obj(values):
        message = f"A {type(values).__name__} is no array: give one of NumPy, torch or the like."
        raise InvalidTypeError(message)
    given = tuple(values.shape)
    if given[max(0, len(given) - len(shape)) :] != shape:
        message = f"The array has the shape {given}; its last axes must be {shape}."
        raise InvalidInputError(message)
    xp = namespace_of(values)
    if values.dtype in (xp.float32, xp.float64):
        return values
    if not xp.isdtype(values.dtype, ("bool", "integral")):
        message = f"The array is of {values.dtype}: give float32, float64 or whole numbers."
        raise InvalidTypeError(message)
    return xp.astype(values, xp.float64)


def check_epsilon(epsilon: Any) -> float:
    """Return the strength of an entropy, or refuse it."""
    if (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, Real)
        or not 0 < float(epsilon) < math.inf
    ):
        message = f"epsilon={epsilon!r} must be a finite number above zero."
        raise InvalidInputError(message)
    return float(epsilon)


def reach_of(example: Array) -> float:
    """Return the exponent that numbers of the type of an array reach, with room for sums."""
    return _SINGLE_REACH if example.dtype.itemsize == 4 else _REACH


def finite_or_zero(x: Array) -> Array:
    """Return zero where a largest exponent is minus infinity: there is nothing to shift."""
    xp = namespace_of(x)
    return xp.where(xp.isfinite(x), x, xp.zeros_like(x))


def log(x: Array) -> Array:
    """Return the logarithm, minus infinity of zero without a warning."""
    with np.errstate(divide="ignore"):
        return namespace_of(x).log(x)


def _along(function: Callable[[Array], Array], values: Array, axis: int) -> Array:
    """Call a function of the middle one of three axes for one axis of an array."""
    xp = namespace_of(values)
    shape = tuple(values.shape)
    axis %= len(shape)
    three = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return xp.reshape(function(xp.reshape(values, three)), shape)


def _multiply(kernel: Array, values: Array) -> Array:
    """Multiply along the middle one of three axes."""
    xp = namespace_of(values)
    if values.shape[2] > 1:
        return xp.matmul(kernel, values)
    return xp.matmul(values[:, :, 0], kernel.T)[:, :, None]


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


def _place_of(example: Array) -> tuple[Any, ...]:
    """Return what tells arrays that matrices must be made for: kind, number type and device."""
    if type(example) is np.ndarray:
        return (example.dtype,)
    return type(example).__module__, str(example.dtype), str(device(example))


def _like(array: NDArray[np.float64], example: Array) -> Array:
    """Return an array in the namespace, number type and device of another."""
    xp = namespace_of(example)
    return xp.asarray(array, dtype=example.dtype, device=device(example))
