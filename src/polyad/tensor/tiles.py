"""Products of a large matrix, or of its transpose, with a few columns, in vector registers.

For so few columns the libraries of linear algebra are far from the speed of the processor: they
first copy the matrix into an order that pays for many. Here a tile of the result, some rows of one
or two vectors, is summed in registers, while the matrix is read as it lies in memory. Numba has no
vectors, so this is written in the language of LLVM. Sums have an order of their own: results depend
neither on threads, nor on the rows beside them, nor on the length of vectors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import cgutils, codegen, errors, types
from numba.extending import intrinsic

from polyad.core.compiled import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_codegen: Any = codegen  # which has no types
_FEATURES: str = _codegen.get_host_cpu_features()
# The bytes of a vector register. There are 32 of them, but half as many before AVX-512 on x86.
_BYTES = 64 if "+avx512f" in _FEATURES else 32 if "+avx" in _FEATURES else 16
#: The rows of a tile: with two vectors each, and what they are multiplied by, they fill the
#: registers.
ROWS = 6 if "+sse" in _FEATURES and _BYTES < 64 else 12
# Products that are summed in registers before they are added to the result: what a tile reads of
# the matrix stays in the first cache, and a sum of many numbers is made of parts.
_DEPTH = 192
# The most products for which what a tile reads of the columns stays in the second cache.
_LENGTH = 2048
# The bytes that come from memory at once.
_LINE = 64


def widened(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix in C order, with columns of zeros up to whole vectors."""
    n_rows, width = matrix.shape
    missing = -width % (_BYTES // matrix.itemsize)
    if missing == 0:
        return np.ascontiguousarray(matrix)
    wide = np.zeros((n_rows, width + missing), matrix.dtype)
    wide[:, :width] = matrix
    return wide


def _written(n_vectors: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write the code of a tile, with so many vectors in each row."""
    utilities: Any = cgutils  # which names what it takes from llvmlite, but has no types
    ir = utilities.ir
    fused, word = ("contract",), ir.IntType(32)
    byte = ir.IntType(8).as_pointer()
    data, basis, out = (
        context.make_array(signature.args[k])(context, builder, arguments[k]) for k in range(3)
    )
    (n_rows, row_step, step), (row, column, first, last) = (
        utilities.unpack_tuple(builder, arguments[k]) for k in (3, 4)
    )
    number = signature.args[0].dtype
    size = number.bitwidth // 8
    vector = ir.VectorType(context.get_data_type(number), _BYTES // size)
    width = builder.extract_value(out.shape, 1)

    def plus(index: Any, more: int) -> Any:
        return builder.add(index, ir.Constant(index.type, more))

    def vectors(memory: Any, line: Any) -> list[Any]:
        start = builder.add(builder.mul(line, width), column)
        places = [plus(start, v * vector.count) for v in range(n_vectors)]
        return [
            builder.bitcast(builder.gep(memory.data, [place]), vector.as_pointer())
            for place in places
        ]

    def spread(entry: Any) -> Any:
        nothing = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(nothing, entry, ir.Constant(word, 0))
        same = ir.Constant(ir.VectorType(word, vector.count), [0] * vector.count)
        return builder.shuffle_vector(one, nothing, same)

    def fetch(entry: Any) -> None:
        """Ask for what will be read: to be kept in all caches."""
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        call = utilities.get_or_insert_function(builder.module, kind, "llvm.prefetch")
        flags = [ir.Constant(word, flag) for flag in (0, 3, 1)]
        builder.call(call, [builder.bitcast(entry, byte), *flags])

    lines = [plus(row, a) for a in range(ROWS)]
    starts = []
    for line in lines:
        # Rows beyond the last are that one again.
        inside = builder.icmp_signed("<", line, n_rows)
        starts.append(builder.mul(builder.select(inside, line, plus(n_rows, -1)), row_step))
    sums = [[utilities.alloca_once(builder, vector) for _ in range(n_vectors)] for _ in lines]
    for own in sums:
        for total in own:
            builder.store(ir.Constant(vector, [0.0] * vector.count), total)
    with utilities.for_range(builder, builder.sub(last, first)) as loop:
        k = builder.add(first, loop.index)
        columns = [builder.load(place, align=size) for place in vectors(basis, k)]
        along = builder.mul(k, step)
        # The tile after the next one, if rows are beside each other.
        for ahead in range(2 * ROWS, 3 * ROWS, _LINE // size):
            fetch(builder.gep(data.data, [plus(builder.add(starts[0], along), ahead)]))
        for start, own in zip(starts, sums, strict=True):
            entry = spread(builder.load(builder.gep(data.data, [builder.add(start, along)])))
            for total, other in zip(own, columns, strict=True):
                product = builder.fmul(entry, other, flags=fused)
                builder.store(builder.fadd(builder.load(total), product, flags=fused), total)
    for line, own in zip(lines, sums, strict=True):
        for place, total in zip(vectors(out, line), own, strict=True):
            found = builder.fadd(builder.load(place, align=size), builder.load(total))
            builder.store(found, place, align=size)
    return context.get_dummy_value()


def _tile(n_vectors: int) -> Any:
    """Return what tells Numba how to add to a tile of so many vectors in each row."""

    def typed(_typing_context: Any, data: Any, basis: Any, out: Any, grid: Any, place: Any) -> Any:
        # Memory is read as it lies, without strides.
        if {own.layout for own in (data, basis, out)} != {"C"} or data.dtype != basis.dtype:
            message = "tiles are of arrays in C order, of one type"
            raise errors.TypingError(message)
        return types.void(data, basis, out, grid, place), partial(_written, n_vectors)

    return typed


# ``tile(data, basis, out, grid, (row, column, first, last))``: what add_products does, for
# ``ROWS`` rows and one or two vectors of columns, and ``k`` from ``first`` to ``last``.
_wide_tile: Any = intrinsic(_tile(2))
_narrow_tile: Any = intrinsic(_tile(1))


@kernel
def add_products(
    data: NDArray[Any], grid: tuple[int, int, int], basis: NDArray[Any], out: NDArray[Any]
) -> None:
    """Add ``sum_k data[a row_step + k step] basis[k]`` to ``out[a]``, for ``n_rows`` rows.

    ``grid`` is ``(n_rows, row_step, step)``: a matrix in C order has a step of one, its transpose a
    row_step of one. ``basis`` and ``out`` are as wide as whole vectors. ``out`` has rows for a
    multiple of ``ROWS``; those beyond ``n_rows`` get anything.
    """
    n_rows, _, step = grid
    n_products, width, lanes = basis.shape[0], out.shape[1], _BYTES // data.itemsize
    # Neighbours in memory are read one after the other, along rows or across them.
    length = _LENGTH if step == 1 else _DEPTH
    for begin in range(0, n_products, length):
        end = min(begin + length, n_products)
        for row in range(0, n_rows, ROWS):
            for first in range(begin, end, _DEPTH):
                last = min(first + _DEPTH, end)
                for column in range(0, width - lanes, 2 * lanes):
                    _wide_tile(data, basis, out, grid, (row, column, first, last))
                if width % (2 * lanes) > 0:
                    _narrow_tile(data, basis, out, grid, (row, width - lanes, first, last))
