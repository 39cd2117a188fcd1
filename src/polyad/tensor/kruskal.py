"""A tensor in Kruskal form: a weighted sum of rank-one tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.sparse import coo_array

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import kruskal_to_dense
from polyad.tensor.sparse import SparseTensor, kruskal_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Sums of squares between these are right to rounding: what underflows is far below them.
_SQUARES = (1e-250, 1e250)


@dataclass(frozen=True, eq=False)
class KruskalTensor:
    r"""The tensor :math:`\sum_r w_r\, a^{(0)}_r \circ \dots \circ a^{(N-1)}_r`.

    It unpacks as ``weights, factors``, like the ``CPTensor`` of TensorLy.

    Parameters
    ----------
    weights : array of shape (n_components,)
        The weight of each component.
    factors : sequence of arrays of shape (n_k, n_components)
        One matrix per mode, of the same array namespace.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.tensor import KruskalTensor
    >>> tensor = KruskalTensor(np.array([2.0]), [np.ones((2, 1)), np.ones((3, 1))])
    >>> tensor.to_dense()
    array([[2., 2., 2.],
           [2., 2., 2.]])
    >>> weights, factors = tensor
    """

    weights: Array
    factors: tuple[Array, ...]

    def __init__(self, weights: Array, factors: Sequence[Array]) -> None:
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "factors", tuple(factors))
        if not all(hasattr(array, "ndim") for array in (weights, *self.factors)):
            message = "weights and factors must be arrays; convert lists with numpy.asarray."
            raise InvalidTypeError(message)
        if len(self.factors) < 1 or any(factor.ndim != 2 for factor in self.factors):
            message = "factors must be matrices, one per mode, each of shape (size, n_components)."
            raise InvalidInputError(message)
        ranks = {int(factor.shape[1]) for factor in self.factors}
        if weights.ndim != 1 or ranks != {int(weights.shape[0])}:
            message = (
                f"weights have the shape {tuple(weights.shape)} and the factors "
                f"{[tuple(factor.shape) for factor in self.factors]}: all must have the same "
                "number of components."
            )
            raise InvalidInputError(message)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each mode."""
        return tuple(int(factor.shape[0]) for factor in self.factors)

    @property
    def ndim(self) -> int:
        """The number of modes."""
        return len(self.factors)

    @property
    def n_components(self) -> int:
        """The number of rank-one terms."""
        return int(self.weights.shape[0])

    def absorbed(self) -> list[Array]:
        """Return factors whose first holds the weights, so that the weights are all one."""
        return [self.factors[0] * self.weights[None, :], *self.factors[1:]]

    def norm(self) -> float:
        """Return the Frobenius norm, in O(n_components² · sizes)."""
        return math.sqrt(max(self.inner(self), 0.0))

    def inner(self, other: KruskalTensor | coo_array | SparseTensor | Array) -> float:
        """Return the inner product with another tensor: Kruskal, sparse or dense."""
        shape = tuple(int(n) for n in other.shape)
        if shape != self.shape:
            message = f"an inner product of tensors of shape {self.shape} and {shape} is undefined."
            raise InvalidInputError(message)
        xp = namespace_of(self.weights)
        if isinstance(other, KruskalTensor):
            cross = self.weights[:, None] * other.weights[None, :]
            for mine, theirs in zip(self.factors, other.factors, strict=True):
                cross = cross * (mine.T @ theirs)
            return float(xp.sum(cross))
        if isinstance(other, coo_array):
            other = SparseTensor(other)
        elif not isinstance(other, SparseTensor):
            other = DenseTensor(other)
        contracted = other.mttkrp(self.factors, 0)
        return float(xp.sum(contracted * self.absorbed()[0]))

    def values_at(self, coords: Any) -> np.ndarray:
        """Return the entries at some coordinates, without forming the tensor.

        Parameters
        ----------
        coords : array-like of shape (n_modes, n_points)
            One column of indices per entry, as in ``coo_array.coords``.
        """
        indices = np.asarray(coords)
        if indices.ndim != 2 or indices.shape[0] != self.ndim or indices.dtype.kind not in "iu":
            message = (
                f"coords have the shape {indices.shape} and type {indices.dtype}; give integers of "
                f"shape ({self.ndim}, n_points)."
            )
            raise InvalidInputError(message)
        for mode, (row, size) in enumerate(zip(indices, self.shape, strict=True)):
            if row.size and (row.min() < 0 or row.max() >= size):
                bad = row[(row < 0) | (row >= size)][0]
                message = f"index {bad} of mode {mode} is outside 0..{size - 1}."
                raise InvalidInputError(message)
        return kruskal_values([to_numpy(factor) for factor in self.absorbed()], indices)

    def to_dense(self) -> Array:
        """Return the full array."""
        return kruskal_to_dense(self.weights, self.factors)

    def normalized(self) -> KruskalTensor:
        """Return the same tensor with columns of length one; weights take the lengths."""
        xp = namespace_of(self.weights)
        weights, factors = self.weights, []
        for factor in self.factors:
            lengths = column_norms(factor)
            factors.append(factor / xp.where(lengths > 0, lengths, xp.ones_like(lengths))[None, :])
            weights = weights * lengths
        return KruskalTensor(weights, factors)

    def take(self, components: Sequence[int]) -> KruskalTensor:
        """Return the tensor of some components, in the given order."""
        xp = namespace_of(self.weights)
        index = xp.asarray([int(r) for r in components], dtype=xp.int64)
        return KruskalTensor(
            xp.take(self.weights, index),
            [xp.take(factor, index, axis=1) for factor in self.factors],
        )

    def __iter__(self) -> Iterator[Any]:
        yield self.weights
        yield list(self.factors)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, position: int) -> Any:
        return (self.weights, list(self.factors))[position]

    def __repr__(self) -> str:
        return f"KruskalTensor(shape={self.shape}, n_components={self.n_components})"


def as_kruskal(value: Any) -> KruskalTensor:
    """Read a decomposition: a KruskalTensor, a fitted model, a CPTensor or (weights, factors)."""
    if isinstance(value, KruskalTensor):
        return value
    if hasattr(value, "kruskal_"):
        return cast("KruskalTensor", value.kruskal_)
    try:
        weights, factors = value
        return KruskalTensor(weights, factors)
    except (TypeError, ValueError, AttributeError) as error:
        message = (
            f"A {type(value).__name__} is not a decomposition. Give a KruskalTensor, a fitted "
            "model, or a pair (weights, factors)."
        )
        raise InvalidTypeError(message) from error


def column_norms(matrix: Array) -> Array:
    """Return the length of each column, without overflow or underflow for any finite entries."""
    if isinstance(matrix, np.ndarray):  # a quick way, in one pass, unless squares leave the range
        squares = np.einsum("ir,ir->r", matrix, matrix, dtype=np.float64)
        if np.all((squares > _SQUARES[0]) & (squares < _SQUARES[1])):
            lengths: Array = np.sqrt(squares).astype(matrix.dtype)
            return lengths
    xp = namespace_of(matrix)
    largest = xp.max(xp.abs(matrix), axis=0) if matrix.shape[0] else xp.zeros(matrix.shape[1])
    scale = xp.where(largest > 0, largest, xp.ones_like(largest))
    return scale * xp.sqrt(xp.sum((matrix / scale[None, :]) ** 2, axis=0))
