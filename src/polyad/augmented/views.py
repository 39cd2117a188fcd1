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
from polyad.core.threads import cut, cut_into, run_blocks
from polyad.cp.rules import double
from polyad.tensor.products import khatri_rao
from polyad.tensor.tiles import ROWS, add_products, widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

# Samples of a block are a multiple of this, which is one of the rows of a tile, and as many as have
# so many entries. Squares are summed of so many entries: of what was just read.
_SAMPLES, _ENTRIES, _COLUMNS = 24, 1 << 18, 4096
# Inner modes have at least so many entries for each component.
_LEAST_COLUMNS = 8
# Entries of a product of rows with samples, a multiple of the rows of a tile, and how many blocks
# it is cut into if there are enough samples.
_WIDTH, _BLOCKS = 1284, 8
# Samples whose products are summed in single precision.
_SUMMED = 256
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


@dataclass(frozen=True)
class Projection:
    """The products of some samples with components, and what they were made of."""

    #: (n, R), in double precision.
    products: Array
    #: (n,): the squares of the samples.
    squares: Array
    #: (n, n_outer, R): the products with the columns of the inner modes alone, in no unit.
    parts: Array


def first_inner(factors: Sequence[Array]) -> int:
    """Return the first of the inner modes, the last ones, which products contract first.

    There are enough of them that what is left is a small part of the samples.
    """
    place, least = len(factors) - 1, _LEAST_COLUMNS * int(factors[0].shape[1])
    while place > 0 and math.prod(int(own.shape[0]) for own in factors[place:]) < least:
        place -= 1
    return place


def _columns_of(factors: Sequence[Array], like: Array) -> Array:
    """Return the Khatri-Rao product of some factors, ones of none; for kernels in whole vectors."""
    columns = khatri_rao(factors) if factors else namespace_of(like).ones_like(like[:1, :])
    return widened(columns) if is_numpy_array(columns) else columns


def project_samples(views: Sequence[View], factors: Sequence[Array]) -> list[Projection]:
    """Return the products of samples with the components, of each view."""
    place, n_components = first_inner(factors), int(factors[0].shape[1])
    outer = _columns_of(factors[:place], factors[0])
    inner = _columns_of(factors[place:], factors[0])
    if not is_numpy_array(inner):
        return [_projected(view, outer, inner) for view in views]
    n_outer, width = outer.shape
    sizes = [len(view.matrix) for view in views]
    parts = [np.zeros((n * n_outer + ROWS, width), inner.dtype) for n in sizes]
    products = [np.empty((n, n_components)) for n in sizes]
    squares = [np.empty(n) for n in sizes]
    means = [0.0 if view.mean is None else view.mean.reshape(n_outer, -1) @ inner for view in views]

    def fill(k: int, start: int, stop: int) -> None:
        view, n_rows = views[k], (stop - start) * n_outer
        out = parts[k][start * n_outer :]
        add_products(_entries(view.matrix[start:stop]), (n_rows, len(inner), 1), inner, out)
        own = out[:n_rows].reshape(-1, n_outer, width)
        own -= means[k]
        products[k][start:stop] = np.einsum("nor,or->nr", own, outer)[:, :n_components] / view.unit
        squares[k][start:stop] = view.squares(start, stop) / view.unit**2

    step = _block_length(views[0])
    run_blocks(fill, [(k, *block) for k, n in enumerate(sizes) for block in cut(n, step)])
    parts = [
        own[: n * n_outer].reshape(n, n_outer, width)[:, :, :n_components]
        for n, own in zip(sizes, parts, strict=True)
    ]
    return [Projection(*own) for own in zip(products, squares, parts, strict=True)]


def _projected(view: View, outer: Array, inner: Array) -> Projection:
    """Return the products of the samples of a view, as any namespace makes them."""
    xp = namespace_of(inner)
    parts = xp.reshape(view.matrix, (-1, int(inner.shape[0]))) @ inner
    parts = xp.reshape(parts, (-1, *outer.shape))
    products = double(xp.sum(parts * outer[None, ...], axis=1)) / view.unit
    return Projection(products, squares_of(view.matrix) / view.unit**2, parts)


def _block_length(view: View) -> int:
    """Return the samples of a block: of whole tiles, so that blocks do not write to each other."""
    return _SAMPLES * max(1, _ENTRIES // (_SAMPLES * int(view.matrix.shape[1])))


def _entries(samples: Array) -> Array:
    """Return all entries in C order, which kernels see as memory that nobody writes to."""
    # NumPy would give those of one row with steps, or of turned axes, as a view with steps.
    entries = np.ascontiguousarray(samples).reshape(-1)
    entries.flags.writeable = False
    return entries


def contract_parts(
    views: Sequence[View], projections: Sequence[Projection], rows: Sequence[Array]
) -> Array:
    """Return the products of rows with samples, the inner modes contracted: (R, n_outer)."""
    total: Array = 0.0
    xp, kind = namespace_of(rows[0]), projections[0].parts.dtype
    for view, found, own in zip(views, projections, rows, strict=True):
        weights = xp.astype(own / view.unit, kind)
        for first, last in cut(int(own.shape[0]), _SUMMED):
            products = weights[first:last, None, :] * found.parts[first:last, ...]
            total = total + double(xp.sum(products, axis=0))
    return xp.astype(total, kind).T


def contract_samples(views: Sequence[View], rows: Sequence[Array], outer: Sequence[Array]) -> Array:
    """Return the products of rows with samples, the outer modes contracted: (R, n_inner).

    ``outer`` are the factors of the outer modes.
    """
    first, n_components = views[0].matrix, int(rows[0].shape[1])
    xp = namespace_of(first)
    weights = [
        xp.astype(own / view.unit, first.dtype) for view, own in zip(views, rows, strict=True)
    ]
    columns = _columns_of(outer, weights[0])
    n_inner = int(first.shape[1]) // int(columns.shape[0])
    if not is_numpy_array(first):
        return sum(
            xp.reshape(own[:, None, :] * columns[None, ...], (-1, n_components)).T
            @ xp.reshape(view.matrix, (-1, n_inner))
            for view, own in zip(views, weights, strict=True)
        )
    weights, width = [widened(own) for own in weights], columns.shape[1]
    n, step, blocks = len(first), _block_length(views[0]), cut(n_inner, _WIDTH)
    shares = cut_into(min(_BLOCKS // len(blocks), -(-n // step)), n)
    sums = np.zeros((len(shares), n_inner + ROWS, width), first.dtype)

    def fill(k: int, share: tuple[int, int], start: int, stop: int) -> None:
        for begin, end in cut(share[1], step, share[0]):
            for view, own in zip(views, weights, strict=True):
                basis = (own[begin:end, None, :] * columns).reshape(-1, width)
                entries = _entries(view.matrix[begin:end])[start:]
                add_products(entries, (stop - start, 1, n_inner), basis, sums[k, start:])

    run_blocks(fill, [(k, share, *block) for k, share in enumerate(shares) for block in blocks])
    contracted = sums.sum(axis=0)[:n_inner]
    for view, own in zip(views, weights, strict=True):
        if view.mean is not None:
            total = own.sum(axis=0, dtype=np.float64).astype(own.dtype)
            contracted -= view.mean.reshape(-1, n_inner).T @ (columns * total)
    return np.ascontiguousarray(contracted[:, :n_components].T)


def squares_of(matrix: Array) -> Array:
    """Return the squared length of each row, summed in double precision if that is cheap."""
    return double(namespace_of(matrix).vecdot(matrix, matrix))
