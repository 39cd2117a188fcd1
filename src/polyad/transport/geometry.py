r"""How a Gibbs kernel ``K = exp(-cost / epsilon)`` is applied, by its form where it has one.

A geometry knows the cells of a grid, the cost of moving mass between them and the strength
``epsilon`` of the entropy. It multiplies arrays whose last axes are the grid by K, one grid or many
at once:

``SeparableGeometry``
    Costs that add over axes: squared and city-block distances on product grids, plain or round
    (torus), and, with one axis, any cost matrix. One small matrix per axis, exact, and positive
    numbers stay positive. Where an axis is long and its cost is the distance of even points, a
    recursive filter of two passes takes the place of the matrix, exact too.
``ConvolutionGeometry``
    The plain Euclidean distance of large grids, which does not add over axes but depends on
    differences only. A direct sum over differences, cut where terms are below the rounding of the
    result, or, where the dynamic range allows, Fourier transforms, whose error is relative to the
    largest number: both are within ``1e-10`` of the dense product, entry by entry. Up to some 200 x
    200 cells only the last axis is transformed, by a matrix, which leaves a matrix of the first
    axis for each frequency: three products of matrices, quicker there than fast transforms.

``log_apply`` is the same for logarithms, for any epsilon. Terms beside which others vanish are kept
by cutting each axis into blocks within which costs differ by no more than the exponents of the
number type reach: a block is a product of matrices, and blocks are joined by their largest terms.

Arrays of NumPy, torch and others of the array API stay what and where they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import device, is_array_api_obj, is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import current_threads, cut, run_blocks, thread_limit
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array

    Matrix = NDArray[np.float64]

# Exponents that a number type reaches, with room for sums: of the smallest normal numbers.
_REACH, _SINGLE_REACH = 600.0, 70.0
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
    #: The part of the usual numbers that a thread takes at a time.
    _block_share: ClassVar[float] = 1.0

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
        values : array of shape ``(..., *shape)``
            Numbers that are not negative keep their digits, entry by entry. Whole ones and
            booleans are taken as float64.

        Returns
        -------
        array of shape ``(..., *shape)``
        """
        return self._spread(self._apply, _read(values, self.shape))

    def log_apply(self, logs: Array) -> Array:
        """Return ``log(K exp(logs))`` for each grid of numbers.

        Parameters
        ----------
        logs : array of shape ``(..., *shape)``
            Any numbers; minus infinity stands for zero.

        Returns
        -------
        array of shape ``(..., *shape)``
        """
        logs = _read(logs, self.shape)
        if not self.is_plain(logs):
            return self._spread(self._log_apply, logs)
        xp = namespace_of(logs)
        axes = tuple(range(-len(self.shape), 0))
        high = finite_or_zero(xp.max(logs, axis=axes, keepdims=True))
        return log(self.apply(xp.exp(logs - high))) + high

    @property
    def transposed(self) -> Geometry:
        """The same with the cost of the way back; itself where that is equal."""
        return self

    @abstractmethod
    def with_epsilon(self, epsilon: float) -> Geometry:
        """Return the same cells and costs with another strength of the entropy."""

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
        stacked = xp.reshape(values, (n, *self.shape))
        step = max(1, int(self._block_share * _BLOCK) // self.n_cells)
        if not is_numpy_array(stacked) or n <= step:
            return xp.reshape(function(stacked), given)
        result = np.empty(stacked.shape, stacked.dtype)

        def fill(start: int, stop: int) -> None:
            result[start:stop] = function(stacked[start:stop]).reshape(-1, *self.shape)

        # Blocks that each use all threads of the linear algebra would be in each other's way.
        with thread_limit(current_threads()):
            run_blocks(fill, cut(n, step))
        return result.reshape(given)


def least_above_zero(costs: Sequence[NDArray[Any]]) -> float:
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


def lengths(name: str, given: Any, n_axes: int) -> tuple[float, ...]:
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


def place_of(example: Array) -> tuple[Any, ...]:
    """Return what tells arrays that matrices must be made for: kind, number type and device."""
    if type(example) is np.ndarray:
        return (example.dtype,)
    return type(example).__module__, str(example.dtype), str(device(example))


def like(array: NDArray[np.float64], example: Array) -> Array:
    """Return an array in the namespace, number type and device of another."""
    xp = namespace_of(example)
    return xp.asarray(array, dtype=example.dtype, device=device(example))
