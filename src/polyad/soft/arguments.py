"""The arguments of soft operators, checked and brought to rows of float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.exceptions import (
    DataWarning,
    InvalidInputError,
    InvalidTypeError,
    NumericalError,
    warn_user,
)
from polyad.transport.rows import Cost

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Table = NDArray[np.float64]
    Squash = bool | Literal["robust"]


# Of Sinkhorn's algorithm, which has long converged then, or never will.
_MOST_ITERATIONS = 10**6
_MOST_TARGETS = 10**8


@dataclass(frozen=True)
class Settings:
    """How rows are found, and how their transports are set up and solved."""

    epsilon: float
    squash: Squash
    cost: Cost | None
    n_iter: int | None
    tol: float
    axes: tuple[int, ...]
    #: Whether rows of a single value are told.
    tells_single: bool = True


def read_settings(
    epsilon: float,
    squash: Squash,
    cost: str | Cost,
    n_iter: int | None,
    tol: float,
    axis: int | tuple[int, ...],
) -> Settings:
    """Check what all operators have in common."""
    is_robust = isinstance(squash, str) and squash == "robust"
    if not is_robust and not isinstance(squash, bool | np.bool_):
        message = f"squash={squash!r} must be True, False or 'robust'."
        raise InvalidTypeError(message)
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not axes or any(isinstance(i, bool) or not isinstance(i, int | np.integer) for i in axes):
        message = f"axis={axis!r} must be a whole number, or several of them."
        raise InvalidTypeError(message)
    count = read_count(n_iter, "n_iter")
    if count is not None and count > _MOST_ITERATIONS:
        message = (
            f"n_iter={count} is above {_MOST_ITERATIONS}: each iteration takes time and memory, "
            "whether it changes anything or not. Use n_iter=None, which iterates until it does not."
        )
        raise InvalidInputError(message)
    return Settings(
        epsilon=read_epsilon(epsilon),
        squash="robust" if is_robust else bool(squash),
        cost=read_cost(cost),
        n_iter=count,
        tol=read_tol(tol),
        axes=tuple(int(i) for i in axes),
    )


@dataclass(frozen=True)
class Layout:
    """How an array is cut into rows along some of its axes, and the type of results."""

    #: That of the input.
    shape: tuple[int, ...]
    #: Along which the values of a row lie, increasing and not negative.
    axes: tuple[int, ...]
    dtype: Any

    @property
    def axis(self) -> int:
        """Where the axis of what a row becomes is: in place of the first of its axes."""
        return self.axes[0]

    @property
    def leading(self) -> tuple[int, ...]:
        """Lengths of the other axes."""
        return tuple(n for i, n in enumerate(self.shape) if i not in self.axes)

    def to_array(self, rows: Table) -> NDArray[Any]:
        """Return rows in the place and type of the input, along one axis that has a new length."""
        array = rows.reshape(*self.leading, rows.shape[1])
        return as_type(np.moveaxis(array, -1, self.axis), self.dtype)

    def to_input(self, rows: Table, dtype: Any = None) -> NDArray[Any]:
        """Return rows in the shape of the input, and in its type or another."""
        array = rows.reshape(*self.leading, *(self.shape[i] for i in self.axes))
        last = range(-len(self.axes), 0)
        return as_type(np.moveaxis(array, last, self.axes), dtype or self.dtype)

    def to_rows(self, array: NDArray[Any]) -> Table:
        """Return the rows of an array that :meth:`to_array` or :meth:`to_input` could have made.

        They are a copy: a pullback needs them as they were, whatever becomes of the array.
        """
        axes = self.axes if array.shape == self.shape else self.axes[:1]
        moved = np.moveaxis(array, axes, range(-len(axes), 0))
        n = math.prod(moved.shape[moved.ndim - len(axes) :])
        return np.array(moved.reshape(-1, n), dtype=np.float64, order="C")


def as_type(numbers: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return results in the type of the argument, and refuse those that it cannot hold."""
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(numbers, dtype=dtype)
    if not np.isfinite(result).all():
        message = (
            "A result is too large for float32, the type of the argument that it belongs to. Give "
            "that as float64, or scale it."
            if dtype == np.float32
            else "A result is no finite number: values are too far apart for this epsilon. Use "
            "squash=True, scale the values to about [0, 1], or increase epsilon."
        )
        raise NumericalError(message)
    return result


_NO_PLACE = (
    "there is no place for it in an order of soft ranks. Remove or replace such entries; to leave "
    "some out, give them the weight zero and any finite value."
)


def read_array(
    array: ArrayLike, name: str, advice: str = "finite numbers are needed."
) -> NDArray[Any]:
    """Return a finite array of real numbers that is not empty; not more than float64."""
    numbers = _to_array(array, name)
    if numbers.dtype.kind not in "biuf":
        message = f"{name} has the type {numbers.dtype}; real numbers are needed."
        raise InvalidTypeError(message)
    if numbers.size == 0:
        message = (
            f"{name} has the shape {numbers.shape}: it is empty, at least one number is needed."
        )
        raise InvalidInputError(message)
    if numbers.dtype.itemsize > np.dtype(np.float64).itemsize:
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float64)
    if not np.isfinite(numbers).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(numbers))[0])
        message = f"{name} is {numbers[where]} at {where}: {advice}"
        raise InvalidInputError(message)
    return numbers


def _to_array(array: ArrayLike, name: str) -> NDArray[Any]:
    if getattr(array, "requires_grad", False) is True:
        message = (
            f"{name} is a tensor that requires a gradient, which would end here: polyad.soft takes "
            "arrays. Use the function of the same name in polyad.soft.torch, or give "
            f"{name}.detach()."
        )
        raise InvalidTypeError(message)
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            message = (
                f"{name} has masked entries. Give array.data, and weights=~array.mask, which "
                "leaves values without influence on others."
            )
            raise InvalidTypeError(message)
        return np.asarray(array.data)
    if hasattr(array, "__array__"):
        return to_numpy(array)
    try:
        return np.asarray(array)
    except ValueError:
        message = f"{name} is a list whose parts have different lengths; an array is needed."
        raise InvalidInputError(message) from None


def read_values(x: ArrayLike, settings: Settings, name: str = "x") -> tuple[Table, Layout]:
    """Return the rows of the input and their layout; rows of one value are told."""
    axes = settings.axes
    numbers = read_array(x, name, _NO_PLACE)
    if numbers.ndim == 0:
        message = f"{name} is a single number; an array with one axis or more is needed."
        raise InvalidInputError(message)
    for axis in axes:
        if not -numbers.ndim <= axis < numbers.ndim:
            message = f"axis={axis} does not exist: {name} has {numbers.ndim} axes."
            raise InvalidInputError(message)
    places = tuple(sorted({axis % numbers.ndim for axis in axes}))
    if len(places) < len(axes):
        message = f"axis={axes} names an axis twice; {name} has {numbers.ndim} axes."
        raise InvalidInputError(message)
    layout = Layout(numbers.shape, places, result_type(numbers))
    rows = layout.to_rows(numbers)
    if settings.tells_single and rows.shape[1] == 1:
        message = (
            f"{name} has the shape {numbers.shape}, so that each row along axis "
            f"{places[0] if len(places) == 1 else places} has a single value: there is nothing to "
            "compare it with, and its derivative is zero. Give the axis along which the values of "
            "a row lie, such as axis=0, or x.squeeze()."
        )
        warn_user(message, DataWarning)
    return rows, layout


@dataclass(frozen=True)
class Side:
    """Numbers that belong to rows: one row that all share, or one for each."""

    rows: Table
    #: Shape of the argument; ``None`` if it was not given.
    shape: tuple[int, ...] | None
    #: That of the argument.
    dtype: Any

    def back(self, gradient: Table, layout: Layout) -> NDArray[Any] | None:
        """Return a gradient for each row in the shape of the argument."""
        if self.shape is None:
            return None
        if len(self.shape) <= 1:
            return as_type(gradient.sum(axis=0), self.dtype).reshape(self.shape)
        if self.shape == layout.shape:
            return layout.to_input(gradient, self.dtype)
        moved = gradient.reshape(*layout.leading, gradient.shape[1])
        return as_type(np.moveaxis(moved, -1, layout.axis), self.dtype)


def read_side(given: ArrayLike, name: str, layout: Layout, size: int | None) -> Side:
    """Return numbers that are one-dimensional, or have the other axes of the input."""
    numbers = read_array(given, name)
    place = layout.axis if numbers.ndim > layout.axis and numbers.ndim > 1 else -1
    length = numbers.shape[place] if numbers.ndim else 0
    whole = (*layout.leading[: layout.axis], length, *layout.leading[layout.axis :])
    if numbers.ndim > 1 and numbers.shape == layout.shape:
        length = math.prod(layout.shape[i] for i in layout.axes)
    elif numbers.ndim == 0 or (numbers.ndim > 1 and numbers.shape != whole):
        message = (
            f"{name} has the shape {numbers.shape}: give one axis, for all rows of x, or the "
            f"axes of x with another length in place of axis {layout.axis}, for each row its own."
        )
        raise InvalidInputError(message)
    if size is not None and length != size:
        message = f"{name} has {length} entries along its axis of values where {size} are needed."
        raise InvalidInputError(message)
    rows = layout.to_rows(numbers) if numbers.ndim > 1 else numbers[None].astype(np.float64)
    return Side(rows, numbers.shape, result_type(numbers))


def result_type(numbers: NDArray[Any]) -> Any:
    """Return float32 for what is no more precise, in any order of bytes, and float64 for others."""
    is_short = numbers.dtype.kind == "f" and numbers.dtype.itemsize <= 4
    return np.float32 if is_short else np.float64


def read_weights(given: ArrayLike | None, name: str, layout: Layout, size: int | None) -> Side:
    """Return weights that are not negative, ``size`` uniform ones by default."""
    if given is None and size is not None:
        return Side(np.full((1, size), 1.0 / size), None, np.float64)
    side = read_side([] if given is None else given, name, layout, size)
    if (side.rows < 0.0).any():
        message = f"{name} has the entry {side.rows.min()}; weights must not be negative."
        raise InvalidInputError(message)
    if not (side.rows.max(axis=1) > 0.0).all():
        message = f"{name} are all zero for some row; at least one must be positive."
        raise InvalidInputError(message)
    return side


def read_targets(
    n_targets: int | None, target_weights: ArrayLike | None, layout: Layout, n: int
) -> Side:
    """Return the weights of targets, whose number may be given by either argument."""
    size = read_count(n_targets, "n_targets")
    if size is not None and size > _MOST_TARGETS:
        message = (
            f"n_targets={size} is above {_MOST_TARGETS}: each row has a number for each target. "
            "Use n_targets=None, which takes as many as there are values, or fewer."
        )
        raise InvalidInputError(message)
    if target_weights is None:
        return read_weights(None, "target_weights", layout, n if size is None else size)
    return read_weights(target_weights, "target_weights", layout, size)


def read_top_targets(
    top_k: int,
    n_targets: int | None,
    target_weights: ArrayLike | None,
    n: int,
) -> Side:
    """Return the weights of ``top_k`` targets of one value each, after one of all others."""
    if n_targets is not None or target_weights is not None:
        message = (
            f"top_k={top_k!r} says what the targets are; leave n_targets and target_weights out."
        )
        raise InvalidInputError(message)
    k = read_top(top_k, "top_k", n)
    counts = np.ones(k) if k == n else np.concatenate([[n - k], np.ones(k)])
    return Side(counts[None] / n, None, np.float64)


def read_top(k: int, name: str, n: int) -> int:
    """Return how many of the values are wanted."""
    count = read_count(k, name)
    if count is None or count > n:
        message = f"{name}={k!r} must be a whole number from 1 to {n}, the values of a row."
        raise InvalidInputError(message)
    return count


def read_quantiles(quantiles: ArrayLike, layout: Layout) -> Side:
    """Return quantiles, which must not decrease."""
    side = read_side(quantiles, "quantiles", layout, None)
    if (np.diff(side.rows, axis=1) < 0.0).any():
        message = (
            "quantiles decrease somewhere; the order of values is only kept if they are sorted."
        )
        raise InvalidInputError(message)
    return side


def read_levels(levels: ArrayLike, layout: Layout) -> Side:
    """Return levels between 0 and 1; a single one is a row of one."""
    numbers = read_array(levels, "levels")
    side = read_side(np.atleast_1d(numbers), "levels", layout, None)
    if numbers.min() < 0.0 or numbers.max() > 1.0:
        message = f"levels={levels!r} must be numbers between 0 and 1."
        raise InvalidInputError(message)
    return replace(side, shape=numbers.shape)


def read_epsilon(epsilon: float) -> float:
    """Return the strength of the entropy."""
    if not _is_number(epsilon) or not 0.0 < epsilon < math.inf:
        message = f"epsilon={epsilon!r} must be a finite number above zero; 0.01 is the default."
        raise InvalidInputError(message)
    return float(epsilon)


def read_tol(tol: float) -> float:
    """Return the error at which a transport is solved."""
    if not _is_number(tol) or not 0.0 < tol < 1.0:
        message = f"tol={tol!r} must be between 0 and 1; 1e-9 is the default."
        raise InvalidInputError(message)
    return float(tol)


def read_count(count: int | None, name: str) -> int | None:
    """Return a number of targets or of iterations, or ``None``."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        message = f"{name}={count!r} must be a whole number, at least 1, or None."
        raise InvalidInputError(message)
    return int(count)


def read_cost(cost: str | Cost) -> Cost | None:
    """Return a cost of one's own, or ``None`` for the squared distance."""
    if isinstance(cost, Cost):
        return cost
    if not isinstance(cost, str) or cost != "squared":
        message = f"cost={cost!r} must be 'squared' or a polyad.soft.Cost(value, slope)."
        raise InvalidInputError(message)
    return None


def read_width(width: float | None, n: int) -> float:
    """Return the weight of the target of a quantile, by default that of one of ``n`` values."""
    if width is None:
        return 1.0 / n
    if not _is_number(width) or not 0.0 < width <= 1.0:
        message = f"width={width!r} must be a number above 0 and at most 1, or None."
        raise InvalidInputError(message)
    return float(width)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
