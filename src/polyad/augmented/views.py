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
from polyad.core.threads import cut, cut_evenly, run_blocks
from polyad.cp.rules import double
from polyad.tensor.products import khatri_rao

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

# Samples of a product with components, and entries of those whose squares are summed: half a
# megabyte of a block that was just read.
_ROWS, _COLUMNS = 32, 4096
# Entries of a product of rows with samples.
_WIDTH = 2560
# The least length of a product with the columns of the last modes.
_LENGTH = 512
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
    #: The squares of all samples of the data about the mean, NaN where nobody has asked yet; None
    #: if the samples at a position or the mean may change.
    known: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        matrix: Array,
        centre: Centre,
        positions: np.ndarray | None = None,
        known: np.ndarray | None = None,
        *,
        copy: bool = False,
    ) -> View:
        """Return samples about a centre, as a copy if that is wanted or the mean is large."""
        if centre.spread == 0:
            return cls(0.0 * matrix, positions=positions)
        size = float(namespace_of(matrix).linalg.vector_norm(centre.mean))
        if copy or size > _LARGE_MEAN * centre.unit or not is_numpy_array(matrix):
            return cls(matrix - centre.mean[None, :], None, centre.unit, positions, known)
        return cls(matrix, centre.mean if size > 0 else None, centre.unit, positions, known)

    def squares(self, start: int, stop: int) -> np.ndarray:
        """Return the squared lengths of some samples in memory, in the unit of the data.

        That of a sample does not depend on those beside it, in no digit: a fit that goes on from a
        checkpoint may meet it among others.
        """
        mine, found = slice(start, stop), np.zeros(stop - start)
        if self.known is not None and self.positions is not None:
            earlier: np.ndarray = self.known[self.positions[mine]]
            if not np.isnan(earlier).any():
                return earlier
        for first, last in cut(self.matrix.shape[1], _COLUMNS):
            own = self.matrix[mine, first:last]
            found += squares_of(own)
            if self.mean is not None:
                found -= 2.0 * np.vecdot(own, self.mean[first:last])
        if self.mean is not None:
            found = np.maximum(found + float(self.mean @ self.mean), 0.0)
        if self.known is not None and self.positions is not None:
            self.known[self.positions[mine]] = found
        return found


def multiply_components(
    views: Sequence[View], factors: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """Return the products of samples with the components, and their squares, of each view."""
    inner, outer = _bases(factors)
    xp = namespace_of(inner)
    if not is_numpy_array(inner):
        products = [_projected(view.matrix, inner, outer) / view.unit for view in views]
        return products, [squares_of(view.matrix) / view.unit**2 for view in views]
    sizes = [len(view.matrix) for view in views]
    products = [xp.empty((n, inner.shape[1])) for n in sizes]
    squares = [xp.empty(n) for n in sizes]
    means = [
        0.0 if view.mean is None else _projected(view.mean[None, :], inner, outer) for view in views
    ]

    def fill(k: int, start: int, stop: int) -> None:
        view, own = views[k], views[k].matrix[start:stop]
        products[k][start:stop] = (_projected(own, inner, outer) - means[k]) / view.unit
        squares[k][start:stop] = view.squares(start, stop) / view.unit**2

    run_blocks(fill, [(k, *block) for k, n in enumerate(sizes) for block in cut(n, _ROWS)])
    return products, squares


def _bases(factors: Sequence[Array]) -> tuple[Array, Array | None]:
    """Return the Khatri-Rao products of the last modes, and of those before if there are any.

    The columns of the last modes stay in the cache, unlike those of all modes, and a product with
    them is long enough.
    """
    last = len(factors) - 1
    while last > 0 and math.prod(len(own) for own in factors[last:]) < _LENGTH:
        last -= 1
    return khatri_rao(factors[last:]), khatri_rao(factors[:last]) if last else None


def _projected(matrix: Array, inner: Array, outer: Array | None) -> Array:
    """Return the products of samples with the components, in double precision."""
    if outer is None:
        return double(matrix @ inner)
    xp = namespace_of(matrix)
    parts = xp.reshape(matrix, (-1, inner.shape[0])) @ inner
    return double(xp.sum(xp.reshape(parts, (-1, *outer.shape)) * outer[None, ...], axis=1))


def contract_samples(views: Sequence[View], rows: Sequence[Array]) -> tuple[Array, Array]:
    """Return the products of rows with samples, and of rows with themselves, of all views."""
    first = views[0].matrix
    xp = namespace_of(first)
    cross = sum(own.T @ own for own in rows)
    columns = [
        xp.astype(own.T / view.unit, first.dtype) for view, own in zip(views, rows, strict=True)
    ]
    if not is_numpy_array(first):
        pairs = zip(views, columns, strict=True)
        return sum(own @ view.matrix for view, own in pairs), cross
    columns = [np.ascontiguousarray(own) for own in columns]
    # Views of one batch have one mean, which is taken off once.
    means = {id(view.mean): view.mean for view in views if view.mean is not None}
    sums = dict.fromkeys(means, 0.0)
    for view, own in zip(views, columns, strict=True):
        if view.mean is not None:
            sums[id(view.mean)] = sums[id(view.mean)] + own.sum(axis=1)[:, None]
    contracted = np.empty((len(columns[0]), first.shape[1]), first.dtype)

    def fill(start: int, stop: int) -> None:
        out = contracted[:, start:stop]
        np.matmul(columns[0], first[:, start:stop], out=out)
        for view, own in zip(views[1:], columns[1:], strict=True):
            out += own @ view.matrix[:, start:stop]
        for key, mean in means.items():
            out -= sums[key] * mean[start:stop]

    run_blocks(fill, cut_evenly(first.shape[1], _WIDTH))
    return contracted, cross


def squares_of(matrix: Array) -> Array:
    """Return the squared length of each row, summed in double precision if that is cheap."""
    return double(namespace_of(matrix).vecdot(matrix, matrix))
