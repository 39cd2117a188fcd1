"""Geometries of costs that add over axes, and of any cost matrix: products with small matrices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import namespace_of
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.costs import check_range, validate_cost
from polyad.transport.geometry import (
    Geometry,
    check_epsilon,
    check_shape,
    finite_or_zero,
    least_above_zero,
    lengths,
    like,
    log,
    place_of,
    reach_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike

    from polyad.core.arrays import Array
    from polyad.transport.geometry import Matrix

# Points of an axis from which two passes of a filter are quicker than a product of matrices.
_FILTER_POINTS = 1024


class SeparableGeometry(Geometry):
    """Costs that add over the axes of a grid.

    Parameters
    ----------
    costs : sequence of arrays of shape (n_k, n_k)
        The cost along each axis, from the rows to the columns; one matrix is a grid of one axis,
        for any cost. Finite, not negative, zero on the diagonal.
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
        matrices = [
            validate_cost(cost, mode_title=f"axis {k}", symmetric=False)
            for k, cost in enumerate(costs)
        ]
        self.shape = check_shape([len(matrix) for matrix in matrices])
        self.largest = sum(float(matrix.max()) for matrix in matrices)
        self.nearest = least_above_zero(matrices)
        check_range(self.largest, self.epsilon)
        self.steps = [None] * len(matrices) if steps is None else list(steps)
        lengths("steps", [1.0 if step is None else step for step in self.steps], len(matrices))
        self._axes: list[_Axis] = [
            _FilterAxis(matrix, self.epsilon, step)
            if step is not None and len(matrix) >= _FILTER_POINTS
            else MatrixAxis(matrix, self.epsilon)
            for matrix, step in zip(matrices, self.steps, strict=True)
        ]

    @cached_property
    def transposed(self) -> Geometry:
        """The same with the cost of the way back; itself where that is equal."""
        if all(np.array_equal(axis.cost, axis.cost.T) for axis in self._axes):
            return self
        return self._remade([axis.cost.T for axis in self._axes], self.epsilon)

    def with_epsilon(self, epsilon: float) -> Geometry:
        """Return the same cells and costs with another strength of the entropy."""
        return self._remade([axis.cost for axis in self._axes], epsilon)

    def _remade(self, costs: list[Matrix], epsilon: float) -> Geometry:
        return SeparableGeometry(costs, epsilon=epsilon, steps=self.steps)

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
            values = along(axis.apply, values, k + 1)
        return values

    def _log_apply(self, logs: Array) -> Array:
        for k, axis in enumerate(self._axes):
            logs = along(axis.log_apply, logs, k + 1)
        return logs


class MatrixGeometry(SeparableGeometry):
    """Any cost between the cells of a grid, as a matrix.

    Parameters
    ----------
    cost : array-like of shape (n_cells, n_cells)
        From the cells of the rows to those of the columns: finite, not negative, zero on the
        diagonal. The way back may cost something else.
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

    def _remade(self, costs: list[Matrix], epsilon: float) -> Geometry:
        return MatrixGeometry(costs[0], self.shape, epsilon=epsilon)

    def _apply(self, values: Array) -> Array:
        flat = namespace_of(values).reshape(values, (-1, self.n_cells))
        return super()._apply(flat)

    def _log_apply(self, logs: Array) -> Array:
        flat = namespace_of(logs).reshape(logs, (-1, self.n_cells))
        return super()._log_apply(flat)


class _Axis(ABC):
    """The kernel along the middle one of three axes."""

    cost: Matrix

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """Return the product with numbers."""

    @abstractmethod
    def log_apply(self, logs: Array) -> Array:
        """Return the logarithm of the product with exponentials."""


class MatrixAxis(_Axis):
    """A kernel as a matrix."""

    def __init__(self, cost: Matrix, epsilon: float) -> None:
        self.cost, self.epsilon = cost, epsilon
        self._kernels: dict[Any, Array] = {}
        self._blocks: dict[Any, list[tuple[slice, Array, Array]]] = {}

    def apply(self, values: Array) -> Array:
        """Return the product with numbers."""
        key = place_of(values)
        if key not in self._kernels:
            self._kernels[key] = like(np.exp(-self.cost / self.epsilon), values)
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
        key = place_of(example)
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
                blocks.append((slice(start, stop), like(shifts, example), like(kernel, example)))
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


def along(function: Callable[[Array], Array], values: Array, axis: int) -> Array:
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
