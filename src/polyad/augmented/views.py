"""Samples about their mean, which is taken off their products instead of them.

A copy of a batch about its mean would cost as much as a matrix product. Blocks are cut by the
shape alone and added in their order, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks
from polyad.cp.rules import double

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

# Samples and entries of a product: a megabyte, which the cache keeps until it is squared.
_ROWS, _COLUMNS = 64, 4096
# Samples of one product of rows with samples.
_DEPTH = 256
# A mean of so many times the size of samples about it would cost their products a digit.
_LARGE_MEAN = 10.0


@dataclass(frozen=True)
class Centre:
    """The mean of samples, and the mean of their squared distances from it."""

    #: How many samples these are of.
    n_samples: int
    #: (p,) of the entries of a sample.
    mean: Array
    spread: float

    @property
    def unit(self) -> float:
        """The size of a sample about the mean, one if there is none."""
        return math.sqrt(self.spread) if self.spread > 0 else 1.0


@dataclass(frozen=True)
class View:
    """Some samples about a mean and in a unit: a matrix with a row for each."""

    matrix: Array
    #: (p,), or None where nothing is taken off.
    mean: Array | None = None
    unit: float = 1.0
    #: Where the samples are in the data, if that is known.
    positions: np.ndarray | None = None

    @classmethod
    def of(
        cls, matrix: Array, centre: Centre, positions: np.ndarray | None, *, copy: bool = False
    ) -> View:
        """Return samples about a centre, as a copy if that is wanted or the mean is large."""
        if centre.spread == 0:
            return cls(0.0 * matrix, positions=positions)
        size = float(namespace_of(matrix).linalg.vector_norm(centre.mean))
        if copy or size > _LARGE_MEAN * centre.unit or not is_numpy_array(matrix):
            return cls(matrix - centre.mean[None, :], None, centre.unit, positions)
        return cls(matrix, centre.mean if size > 0 else None, centre.unit, positions)

    def products(self, basis: Array) -> tuple[Array, Array]:
        """Return the products with the columns of a basis, and the squared lengths of samples."""
        matrix, mean = self.matrix, self.mean
        if not is_numpy_array(matrix):
            return double(matrix @ basis) / self.unit, squares_of(matrix) / self.unit**2
        products, squares = np.zeros((len(matrix), basis.shape[1])), np.zeros(len(matrix))

        def add(start: int, stop: int) -> None:
            for begin in range(0, matrix.shape[1], _COLUMNS):
                columns = slice(begin, begin + _COLUMNS)
                own = matrix[start:stop, columns]
                products[start:stop] += own @ basis[columns]
                squares[start:stop] += squares_of(own)
                if mean is not None:
                    squares[start:stop] -= 2.0 * (own @ mean[columns])

        run_blocks(add, cut(len(matrix), _ROWS))
        if mean is not None:
            products -= mean @ basis
            squares += float(mean @ mean)
        return products / self.unit, np.maximum(squares, 0.0) / self.unit**2


def contract_samples(views: Sequence[View], rows: Sequence[Array]) -> tuple[Array, Array]:
    """Return the products of rows with samples, and of rows with themselves, of all views."""
    first = views[0].matrix
    xp = namespace_of(first)
    cross = sum(own.T @ own for own in rows)
    pairs = [
        (view, xp.astype(own / view.unit, first.dtype))
        for view, own in zip(views, rows, strict=True)
    ]
    if not is_numpy_array(first):
        return sum(own.T @ view.matrix for view, own in pairs), cross
    n, p = first.shape
    contracted = np.zeros((pairs[0][1].shape[1], p), first.dtype)

    def add(begin: int, end: int) -> None:
        out = contracted[:, begin:end]
        for view, own in pairs:
            for start in range(0, n, _DEPTH):
                mine = slice(start, start + _DEPTH)
                out += own[mine].T @ view.matrix[mine, begin:end]
            if view.mean is not None:
                out -= own.sum(axis=0)[:, None] * view.mean[begin:end]

    run_blocks(add, cut(p, _COLUMNS))
    return contracted, cross


def squares_of(matrix: Array) -> Array:
    """Return the squared length of each row, summed in double precision if that is cheap."""
    return double(namespace_of(matrix).vecdot(matrix, matrix))
