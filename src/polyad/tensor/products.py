"""Dense N-way products against the array API.

Arrays of NumPy, PyTorch or any other array-API namespace go in, arrays of the same namespace,
device and dtype come out. A tensor of shape ``(I, J, K)`` is read as a matrix by cutting its modes
at one place, ``(I, JK)`` or ``(IJ, K)``: both are views of memory in C order, so that no product
here makes a transposed copy of the data. NumPy products of some size are cut into the fixed blocks
of :func:`project`; other namespaces bring their own threads and get one ``matmul``.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import mul
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, cut_tiles, run_blocks
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

# Multiplications in one matrix product handed to the linear algebra library. Its operands then
# fit the second-level cache, and OpenBLAS takes its kernels without packing (up to 100^3).
_TILE_WORK = 1_000_000
# Contracted axes are cut to about this length, so that tiles stay wide enough to be fast, and
# tiles have at least as many rows as the fast kernels have use for.
_TILE_DEPTH = 256
_LEAST_ROWS = 48
# How many times as many rows a tile has where the columns of the matrix are contiguous.
_COLUMN_LEAD = 4
# Tiles per block: enough work to hide the cost of a Python call, little enough to share.
_TILES_PER_BLOCK = 8
# Components of one pass over the data in an MTTKRP: far more than make it worth reading.
_MOST_COMPONENTS = 128
# Below this number of multiplications a product is one call: threads would cost more than it.
_SMALL_WORK = 4_000_000


def unfold(x: Array, mode: int) -> Array:
    """Lay a tensor out as a matrix with the fibres of one mode as columns.

    Parameters
    ----------
    x : array of shape (n_0, ..., n_N)
    mode : int
        The mode that becomes the rows; negative modes count from the end.

    Returns
    -------
    array of shape (n_mode, product of the others)
        The remaining modes keep their order, the last varies fastest (C order), as in TensorLy.
        Kolda and Bader let the first vary fastest.
    """
    mode = check_mode(mode, x.ndim)
    xp = namespace_of(x)
    rest = prod(x.shape[:mode]) * prod(x.shape[mode + 1 :])
    return xp.reshape(xp.moveaxis(x, mode, 0), (x.shape[mode], rest))


def fold(matrix: Array, mode: int, shape: Sequence[int]) -> Array:
    """Undo :func:`unfold`: give the matrix back the shape ``shape``."""
    mode = check_mode(mode, len(shape))
    xp = namespace_of(matrix)
    moved = (shape[mode], *shape[:mode], *shape[mode + 1 :])
    return xp.moveaxis(xp.reshape(matrix, moved), 0, mode)


def khatri_rao(factors: Sequence[Array], weights: Array | None = None) -> Array:
    """Return the column-wise Kronecker product of the factors.

    Parameters
    ----------
    factors : sequence of arrays of shape (n_k, n_components)
        At least one. The first varies slowest along the rows of the result.
    weights : array of shape (n_components,), optional
        Multiplies the columns.

    Returns
    -------
    array of shape (product of the n_k, n_components)
    """
    check_factors(factors)
    xp = namespace_of(*factors)
    n_components = factors[0].shape[1]
    result = factors[0] if weights is None else factors[0] * weights[None, :]
    for factor in factors[1:]:
        result = xp.reshape(result[:, None, :] * factor[None, :, :], (-1, n_components))
    return result


def mttkrp(x: Array, factors: Sequence[Array], mode: int) -> Array:
    """Multiply the unfolding of a tensor by the Khatri-Rao product of all factors but one.

    Parameters
    ----------
    x : array of shape (n_0, ..., n_N)
    factors : sequence of arrays of shape (n_k, n_components)
        One per mode; that of ``mode`` is not read, only its number of columns.
    mode : int
        The mode that is kept.

    Returns
    -------
    array of shape (n_mode, n_components)

    Notes
    -----
    The modes are cut at one place into two sides. The side without ``mode`` is contracted by one
    matrix product with its Khatri-Rao product, the modes left over are then contracted from the
    much smaller result, of size ``n_components`` times the other side. Many components are taken
    in several passes over the data, which bounds that memory. A NumPy array in Fortran
    order is read as its transpose in C order; an array in neither order is copied into C order.
    """
    mode = check_mode(mode, x.ndim)
    check_factors(factors, x.shape)
    if is_numpy_array(x) and x.flags.f_contiguous and not x.flags.c_contiguous:
        x, factors, mode = x.T, factors[::-1], x.ndim - 1 - mode
    n_components = factors[0].shape[1]
    stops = [*range(_MOST_COMPONENTS, n_components, _MOST_COMPONENTS), n_components]
    parts = [
        contract_outside(x, [factor[:, start:stop] for factor in factors], mode, mode + 1)
        for start, stop in zip([0, *stops], stops, strict=False)
    ]
    return contiguous(namespace_of(x).concat(parts).T)


def gram_product(factors: Sequence[Array], skip: int | None = None) -> Array:
    """Return the Hadamard product of the Gram matrices of all factors but that of mode ``skip``.

    Single precision is not widened: the result is rounded to it anyway, long factors are summed in
    blocks, which bounds the error of the sums, and some devices have no double precision.
    """
    left_out = None if skip is None else check_mode(skip, len(factors))
    others = [factor for k, factor in enumerate(factors) if k != left_out]
    check_factors(others)
    return reduce(mul, (project(factor.T, factor) for factor in others))


def kruskal_to_dense(weights: Array | None, factors: Sequence[Array]) -> Array:
    """Return the dense tensor of a Kruskal form, the weighted sum of outer products.

    Parameters
    ----------
    weights : array of shape (n_components,) or None
        None stands for ones.
    factors : sequence of arrays of shape (n_k, n_components)
        At least two.

    Returns
    -------
    array of shape (n_0, ..., n_N)

    Notes
    -----
    One matrix product of the Khatri-Rao products of the leading and of the trailing modes, cut
    where these two are smallest: nothing of size ``n_components`` times the tensor is made.
    """
    check_factors(factors)
    shape = tuple(factor.shape[0] for factor in factors)
    place = cheapest_cut(shape)
    rows, columns = khatri_rao(factors[:place], weights), khatri_rao(factors[place:])
    xp = namespace_of(rows, columns)
    if not is_numpy_array(rows):
        return xp.reshape(xp.matmul(rows, xp.matrix_transpose(columns)), shape)
    dense = np.empty((rows.shape[0], columns.shape[0]), np.result_type(rows, columns))

    def fill(start: int, stop: int) -> None:
        np.matmul(rows[start:stop], columns.T, out=dense[start:stop])

    step = max(1, _TILES_PER_BLOCK * _TILE_WORK // max(1, columns.size))
    run_blocks(fill, cut(rows.shape[0], step))
    return dense.reshape(shape)


def cheapest_cut(shape: Sequence[int]) -> int:
    """Return the first mode of the second side, where both sides are smallest together."""
    return min(range(1, len(shape)), key=lambda cut: prod(shape[:cut]) + prod(shape[cut:]))


def contract_outside(x: Array, factors: Sequence[Array], first: int, stop: int) -> Array:
    """Contract every mode of a C-ordered tensor but ``first, ..., stop - 1``, in one pass over it.

    The components come first in the result: what follows is then a product of a matrix and a vector
    per component, which is fast in any namespace. Factors of the modes that stay are not read.
    """
    xp = namespace_of(x, *factors)

    def cost(cut: int) -> int:
        # Entries per component: of the Khatri-Rao product, which one thread makes and which
        # counts twice for that, and of the partial result.
        sides: tuple[int, int] = prod(x.shape[:cut]), prod(x.shape[cut:])
        return 2 * sides[0] + sides[1] if cut <= first else sides[0] + 2 * sides[1]

    cut = min((*range(1, first + 1), *range(stop, x.ndim)), key=cost)
    matrix = xp.reshape(x, (prod(x.shape[:cut]), prod(x.shape[cut:])))
    if cut <= first:
        partial, offset = project(matrix.T, khatri_rao(factors[:cut])), cut
        factors, shape = factors[cut:], x.shape[cut:]
    else:
        partial, offset = project(matrix, khatri_rao(factors[cut:])), 0
        factors, shape = factors[:cut], x.shape[:cut]
    partial = xp.reshape(partial, (-1, *shape))
    return contract_columns(partial, factors, first - offset, stop - offset)


def contract_columns(partial: Array, factors: Sequence[Array], first: int, stop: int) -> Array:
    """Contract each component (axis 0) of a partial result with its column of the factors.

    ``first, ..., stop - 1`` are the modes that stay, counted without the components.
    """
    xp = namespace_of(partial, *factors)
    n_components, *sizes = partial.shape
    if first > 0:
        columns = contiguous(khatri_rao(factors[:first]).T)
        rest = xp.reshape(partial, (n_components, columns.shape[1], prod(sizes[first:])))
        partial = _stacked_matmul(columns[:, None, :], rest)
    if stop < len(sizes):
        columns = contiguous(khatri_rao(factors[stop:]).T)
        rest = xp.reshape(partial, (n_components, prod(sizes[first:stop]), columns.shape[1]))
        partial = _stacked_matmul(rest, columns[:, :, None])
    return xp.reshape(partial, (n_components, *sizes[first:stop]))


def project(matrix: Array, basis: Array) -> Array:
    """Return ``(matrix @ basis)^T`` for a large matrix, or a transposed view, and few columns.

    A NumPy product is cut into tiles by its shape alone. A block of tiles is one stacked
    ``matmul``; blocks run on the threads of the computation, and partial sums over the contracted
    axis are added in their order, so that the result does not depend on the number of threads.
    """
    n_rows, depth = matrix.shape
    n_components = basis.shape[1]
    if not is_numpy_array(matrix) or n_rows * depth * n_components <= _SMALL_WORK:
        return namespace_of(matrix, basis).matmul(basis.T, matrix.T)
    height, length = _tile_shape(n_rows, depth, n_components)
    if matrix.strides[0] < matrix.strides[1]:
        # The columns are contiguous: longer pieces of them are read faster.
        height *= _COLUMN_LEAD
    chunks = cut_tiles(depth, length, _TILES_PER_BLOCK)
    n_tiles = max(1, _TILES_PER_BLOCK * length // depth)
    partial = np.empty((len(chunks), n_components, n_rows), np.result_type(matrix, basis))

    def multiply(rows: tuple[int, int, int], chunk: tuple[int, int, int], out: Array) -> None:
        (start, stop, m), (begin, end, k) = rows, chunk
        tiles = matrix[start:stop, begin:end].reshape(-1, m, (end - begin) // k, k)
        bases = basis[begin:end].reshape(-1, k, n_components)
        target = out[:, start:stop].reshape(n_components, -1, m).transpose(1, 0, 2)
        if bases.shape[0] == 1:
            np.matmul(basis[begin:end].T, tiles[:, :, 0].transpose(0, 2, 1), out=target)
        else:
            stack = np.matmul(bases.transpose(0, 2, 1), tiles.transpose(0, 2, 3, 1))
            np.sum(stack, axis=1, out=target)

    run_blocks(
        multiply,
        [
            (rows, chunk, out)
            for rows in cut_tiles(n_rows, height, n_tiles)
            for chunk, out in zip(chunks, partial, strict=True)
        ],
    )
    return partial[0] if len(chunks) == 1 else partial.sum(axis=0)


def _tile_shape(n_rows: int, depth: int, n_components: int) -> tuple[int, int]:
    """Choose the rows and the depth of a tile: even parts of both, of about equal work."""
    height = _TILE_WORK // (n_components * min(depth, _TILE_DEPTH))
    height = min(n_rows, max(_LEAST_ROWS, height))
    length = max(_TILE_DEPTH, _TILE_WORK // (n_components * height))
    # A last part of a few rows would be slow: all parts get about the same.
    return -(-n_rows // -(-n_rows // height)), -(-depth // -(-depth // length))


def _stacked_matmul(a: Array, b: Array) -> Array:
    """Multiply two stacks of matrices, one of them of vectors, with NumPy on all threads."""
    if not is_numpy_array(a) or a.size + b.size <= _SMALL_WORK // 8:
        return namespace_of(a, b).matmul(a, b)
    n_stacked = a.shape[0]
    result = np.empty((n_stacked, a.shape[1], b.shape[2]), np.result_type(a, b))

    def multiply(start: int, stop: int) -> None:
        np.matmul(a[start:stop], b[start:stop], out=result[start:stop])

    step = max(1, n_stacked * _SMALL_WORK // (16 * (a.size + b.size)))
    run_blocks(multiply, cut(n_stacked, step))
    return result


def contiguous(x: Array) -> Array:
    """Return a NumPy array in C order, which its products need to be fast; others unchanged."""
    return np.ascontiguousarray(x) if is_numpy_array(x) else x


def check_mode(mode: int, n_modes: int) -> int:
    """Return a mode counted from the start, or raise."""
    if not -n_modes <= mode < n_modes:
        message = f"mode={mode} does not exist in a tensor of {n_modes} modes."
        raise InvalidInputError(message)
    return mode % n_modes


def check_factors(factors: Sequence[Array], shape: Sequence[int] | None = None) -> None:
    """Raise unless the factors are matrices of equally many columns that fit the shape."""
    if not factors:
        message = "No factor was given; give one matrix per mode."
        raise InvalidInputError(message)
    shapes = [tuple(factor.shape) for factor in factors]
    if any(len(s) != 2 or s[1] != shapes[0][-1] for s in shapes):
        message = f"Factors must be matrices with the same number of columns, got shapes {shapes}."
        raise InvalidInputError(message)
    if shape is not None and [s[0] for s in shapes] != list(shape):
        message = f"Factors of shapes {shapes} do not fit a tensor of shape {tuple(shape)}."
        raise InvalidInputError(message)
