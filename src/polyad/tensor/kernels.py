"""Numba kernels of sparse tensors: sorting, MTTKRP, values of a model, least squares by row.

Arrays come in, output arrays are filled. No kernel starts threads: each works on a block that
:func:`polyad.core.threads.run_blocks` hands it, without the interpreter lock.

Row indices are unsigned, because Numba gives every signed index a test for negative values, and
bounds are signed 64-bit, because unsigned and signed integers add up to floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from polyad.core.compiled import kernel, owning_part, part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# The most components a kernel takes at once: the length of its buffers on the stack.
WIDTH = 128
# Points of a model, or observations of a row, that are multiplied out together.
BATCH = 64
# A pivot below this part of its diagonal entry counts as zero, and the matrix is then shifted by
# this part of its mean eigenvalue. Rounding puts about 1e-16 of the right-hand side
# into directions that the data does not determine: divided by 1e-10 they are 1e-6 of the answer,
# which is nearly that of least norm, and the sum of squares is above its least value by 1e-10.
SINGULAR = 1e-10


class Pieces(NamedTuple):
    """The nonzeros of a tensor, cut for the MTTKRP of one mode.

    A fibre is a set of nonzeros that differ in the inner mode only. Each is cut into quads of
    four nonzeros, which share one product with the rows of the middle modes, and up to three
    singles. Loops over equal pieces have no unpredictable branches, and four at a time make up
    for the start of the loop over the columns.
    """

    quads: NDArray[Any]
    """(n_quads, n_middle + 4): the indices in the middle modes, then four in the inner mode."""
    quad_values: NDArray[Any]
    """(n_quads, 4)."""
    singles: NDArray[Any]
    """(n_singles, n_middle + 1): the indices in the middle modes, then one in the inner mode."""
    single_values: NDArray[Any]
    """(n_singles,)."""


class Spans(NamedTuple):
    """Consecutive pieces that are summed into one row of the output."""

    bounds: NDArray[np.int64]
    """(n_spans + 1, 2): the first quad and the first single of each span."""
    targets: NDArray[np.int64]
    """(n_spans,): the row of the output."""


class Stack(NamedTuple):
    """The factors of several modes one below the other.

    A tuple of factors would be another type, and another compiled kernel, for each number of them.
    """

    rows: NDArray[Any]
    """(sum of the sizes, n_components)."""
    firsts: NDArray[np.uint64]
    """(n_modes,): where each factor begins."""


def stack(factors: Sequence[NDArray[Any]]) -> Stack:
    """Put factors one below the other."""
    firsts = np.cumsum([0, *(len(factor) for factor in factors[:-1])]).astype(np.uint64)
    return Stack(np.concatenate(factors), firsts)


def _stack_memory(_typing_context: Any, like: Any) -> Any:
    """Tell Numba how to reserve WIDTH numbers of the type of an array on the stack."""
    pointer: Any = types.CPointer
    reserve: Any = cgutils.alloca_once

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        return reserve(builder, context.get_data_type(like.dtype), size=WIDTH)

    return pointer(like.dtype)(like), generate


def _transposed_product(  # noqa: PLR0917  (Numba gives arguments by position)
    _typing_context: Any, matrix: Any, rows: Any, first: Any, scale: Any, out: Any, place: Any
) -> Any:
    """Tell Numba how to write the transpose of parts of four rows to a square of an array."""
    utilities: Any = cgutils  # which names what it takes from llvmlite, but has no types
    ir = utilities.ir
    numbers = ir.VectorType(ir.DoubleType(), 4)
    mask = ir.VectorType(ir.IntType(32), 4)
    is_first = isinstance(scale, types.Array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def number(value: Any, kind: Any) -> Any:
            return context.cast(builder, value, kind, types.intp)

        def pointer(array: int, column: Any, row: Any = None) -> Any:
            memory = context.make_array(signature.args[array])(context, builder, arguments[array])
            if row is not None:
                width = builder.extract_value(memory.shape, 1)
                column = builder.add(builder.mul(row, width), column)
            return builder.bitcast(builder.gep(memory.data, [column]), numbers.as_pointer())

        def pick(a: Any, b: Any, lanes: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(mask, lanes))

        column, to = number(arguments[2], first), number(arguments[5], place)
        read = [
            builder.load(pointer(0, column, number(row, rows.dtype)), align=8)
            for row in utilities.unpack_tuple(builder, arguments[1])
        ]
        if is_first:
            unit = builder.load(pointer(3, column), align=8)
            read = [builder.fmul(row, unit) for row in read]
        pairs = [pick(read[k], read[k + 1], lanes) for k in (0, 2) for lanes in _PAIRS]
        for step, (pair, lanes) in enumerate((pair, lanes) for lanes in _HALVES for pair in (0, 1)):
            row = builder.add(column, ir.Constant(column.type, step))
            target, product = pointer(4, to, row), pick(pairs[pair], pairs[pair + 2], lanes)
            if not is_first:
                product = builder.fmul(builder.load(target, align=8), product)
            builder.store(product, target, align=8)
        return context.get_dummy_value()

    return types.void(matrix, rows, first, scale, out, place), generate


# Which numbers of two vectors of four make up one: every other of both, and a half of each.
_PAIRS = ([0, 4, 2, 6], [1, 5, 3, 7])
_HALVES = ([0, 1, 4, 5], [2, 3, 6, 7])
# ``transpose_four(matrix, rows, r, scale, out, q)``, all of float64: out[r + v, q + u] becomes
# scale[r + v] * matrix[rows[u], r + v], or with None for the scale is multiplied by that entry of
# the matrix, for u, v from 0 to 3. The rows are read as they lie and turned in registers.
transpose_four: Any = intrinsic(_transposed_product)

# LLVM knows that no array overlaps memory on the stack. With sums elsewhere, each short loop over
# the components first compares the addresses of all arrays: a quarter of the time at 16.
on_stack: Any = intrinsic(_stack_memory)


@kernel
def is_sorted(coords: NDArray[Any]) -> bool:
    """Tell whether coordinates (n_modes, n_nonzeros) strictly increase lexicographically."""
    n_modes, n_nonzeros = coords.shape
    for p in range(1, n_nonzeros):
        k = 0
        while k < n_modes and coords[k, p] == coords[k, p - 1]:
            k += 1
        if k == n_modes or coords[k, p] < coords[k, p - 1]:
            return False
    return True


@kernel
def sort_by_digit(
    keys: NDArray[Any], order: NDArray[Any], shift: int, bits: int, result: NDArray[Any]
) -> None:
    """Sort an order of nonzeros, stably, by ``bits`` bits of their keys above ``shift``."""
    starts = np.zeros((1 << bits) + 1, np.int64)
    mask = (1 << bits) - 1
    for p in range(keys.size):
        starts[((keys[p] >> shift) & mask) + 1] += 1
    for b in range(1 << bits):
        starts[b + 1] += starts[b]
    for p in range(order.size):
        digit = (keys[order[p]] >> shift) & mask
        result[starts[digit]] = order[p]
        starts[digit] += 1


@kernel
def merge_duplicates(coords: NDArray[Any], values: NDArray[Any]) -> int:
    """Sum sorted entries that have the same coordinates, in place; return how many are left."""
    n_modes, n_nonzeros = coords.shape
    last = -1
    total = 0.0  # in float64, whatever the type of the values
    for p in range(n_nonzeros):
        k = 0
        while last >= 0 and k < n_modes and coords[k, p] == coords[k, last]:
            k += 1
        if k == n_modes:
            total += values[p]
        else:
            last += 1
            total = np.float64(values[p])
            for mode in range(n_modes):
                coords[mode, last] = coords[mode, p]
        values[last] = total
    return last + 1


@kernel
def count_cells(coords: NDArray[Any], inner: int, table: NDArray[np.bool_]) -> int:
    """Return the number of cells of a hash table that the fibres along a mode fall into.

    It grows with the number of fibres, at a tenth of the cost of sorting. The length of the
    cleared table is a power of two.
    """
    shift = np.uint64(64 - np.int64(np.log2(table.size)))
    n_cells = 0
    for p in range(coords.shape[1]):
        key = np.uint64(0)
        for k in range(coords.shape[0]):
            if k != inner:
                key = (key ^ np.uint64(coords[k, p])) * np.uint64(0x9E3779B97F4A7C15)
                key ^= key >> np.uint64(32)
        cell = (key * np.uint64(0xD6E8FEB86659FD93)) >> shift
        n_cells += not table[cell]
        table[cell] = True
    return n_cells


@kernel
def find_fibres(coords: NDArray[Any], starts: NDArray[np.int64]) -> int:
    """Write where sorted coordinates change, then their number; return how many fibres begin."""
    n_modes, n_nonzeros = coords.shape
    n_fibres = 0
    for p in range(n_nonzeros):
        k = 0
        while p > 0 and k < n_modes and coords[k, p] == coords[k, p - 1]:
            k += 1
        if k < n_modes:
            starts[n_fibres] = p
            n_fibres += 1
    starts[n_fibres] = n_nonzeros
    return n_fibres


@kernel
def cut_fibres(
    middle: NDArray[Any],
    inner: NDArray[Any],
    values: NDArray[Any],
    starts: NDArray[np.int64],
    pieces: Pieces,
) -> None:
    """Fill the quads and singles of fibres, from coordinates and values in the order of these."""
    n_middle = pieces.singles.shape[1] - 1
    quad = 0
    single = 0
    for f in range(starts.size - 1):
        p = starts[f]
        while p + 4 <= starts[f + 1]:
            for k in range(middle.shape[0]):
                pieces.quads[quad, k] = middle[k, p]
            for u in range(4):
                pieces.quads[quad, n_middle + u] = inner[p + u]
                pieces.quad_values[quad, u] = values[p + u]
            quad += 1
            p += 4
        while p < starts[f + 1]:
            for k in range(middle.shape[0]):
                pieces.singles[single, k] = middle[k, p]
            pieces.singles[single, n_middle] = inner[p]
            pieces.single_values[single] = values[p]
            single += 1
            p += 1


@kernel
def mttkrp_spans(
    pieces: Pieces,
    spans: Spans,
    block: tuple[int, int],
    factors: tuple[NDArray[Any], ...],
    out: NDArray[Any],
) -> None:
    """Write the sums of a block of spans, for one middle factor and the inner one."""
    quads, quad_values, singles, single_values = pieces
    middle, inner = factors
    total = carray(on_stack(single_values), WIDTH)
    n_components = out.shape[1]
    for s in range(block[0], block[1]):
        for r in range(n_components):
            total[r] = 0
        for q in range(spans.bounds[s, 0], spans.bounds[s + 1, 0]):
            m = quads[q, 0]
            j0, j1, j2, j3 = quads[q, 1], quads[q, 2], quads[q, 3], quads[q, 4]
            x0, x1 = quad_values[q, 0], quad_values[q, 1]
            x2, x3 = quad_values[q, 2], quad_values[q, 3]
            for r in range(n_components):
                total[r] += middle[m, r] * (
                    (x0 * inner[j0, r] + x1 * inner[j1, r])
                    + (x2 * inner[j2, r] + x3 * inner[j3, r])
                )
        p = spans.bounds[s, 1]
        end = spans.bounds[s + 1, 1]
        while p + 4 <= end:
            m0, m1, m2, m3 = singles[p, 0], singles[p + 1, 0], singles[p + 2, 0], singles[p + 3, 0]
            j0, j1, j2, j3 = singles[p, 1], singles[p + 1, 1], singles[p + 2, 1], singles[p + 3, 1]
            x0, x1 = single_values[p], single_values[p + 1]
            x2, x3 = single_values[p + 2], single_values[p + 3]
            for r in range(n_components):
                total[r] += (
                    x0 * middle[m0, r] * inner[j0, r] + x1 * middle[m1, r] * inner[j1, r]
                ) + (x2 * middle[m2, r] * inner[j2, r] + x3 * middle[m3, r] * inner[j3, r])
            p += 4
        while p < end:
            m0, j0, x0 = singles[p, 0], singles[p, 1], single_values[p]
            for r in range(n_components):
                total[r] += x0 * middle[m0, r] * inner[j0, r]
            p += 1
        for r in range(n_components):
            out[spans.targets[s], r] = total[r]


@kernel
def mttkrp_deep_spans(
    pieces: Pieces,
    spans: Spans,
    block: tuple[int, int],
    factors: Stack,
    out: NDArray[Any],
) -> None:
    """Write the sums of a block of spans, for any number of middle factors and the inner one.

    The rows of ``out`` are zero before.
    """
    quads, quad_values, singles, single_values = pieces
    rows, firsts = factors
    term = carray(on_stack(single_values), WIDTH)
    n_middle = len(firsts) - 1
    inner = rows[firsts[n_middle] :]
    n_components = out.shape[1]
    for s in range(block[0], block[1]):
        target = spans.targets[s]
        for q in range(spans.bounds[s, 0], spans.bounds[s + 1, 0]):
            j0, j1 = quads[q, n_middle], quads[q, n_middle + 1]
            j2, j3 = quads[q, n_middle + 2], quads[q, n_middle + 3]
            x0, x1 = quad_values[q, 0], quad_values[q, 1]
            x2, x3 = quad_values[q, 2], quad_values[q, 3]
            for r in range(n_components):
                term[r] = (x0 * inner[j0, r] + x1 * inner[j1, r]) + (
                    x2 * inner[j2, r] + x3 * inner[j3, r]
                )
            for k in range(n_middle):
                m = firsts[k] + quads[q, k]
                for r in range(n_components):
                    term[r] *= rows[m, r]
            for r in range(n_components):
                out[target, r] += term[r]
        for p in range(spans.bounds[s, 1], spans.bounds[s + 1, 1]):
            j, x = singles[p, n_middle], single_values[p]
            for r in range(n_components):
                term[r] = x * inner[j, r]
            for k in range(n_middle):
                m = firsts[k] + singles[p, k]
                for r in range(n_components):
                    term[r] *= rows[m, r]
            for r in range(n_components):
                out[target, r] += term[r]


@kernel
def kruskal_values_3(
    factors: tuple[NDArray[Any], ...],
    coords: NDArray[Any],
    block: tuple[int, int],
    out: NDArray[Any],
) -> None:
    """Write the values of a model of three modes at a block of points of coords (3, n_points)."""
    A, B, C = factors
    for p in range(block[0], block[1]):
        i, j, k = coords[0, p], coords[1, p], coords[2, p]
        total = out.dtype.type(0)
        for r in range(A.shape[1]):
            total += A[i, r] * B[j, r] * C[k, r]
        out[p] = total


@kernel
def kruskal_values_n(
    factors: Stack,
    coords: NDArray[Any],
    block: tuple[int, int],
    out: NDArray[Any],
) -> None:
    """Write the values of a model at a block of points of coords (n_modes, n_points)."""
    rows, firsts = factors
    n_components = rows.shape[1]
    terms = np.empty((BATCH, n_components), out.dtype)
    for start in range(block[0], block[1], BATCH):
        n_points = min(BATCH, block[1] - start)
        terms[:] = 1
        for k in range(len(firsts)):
            for q in range(n_points):
                i = firsts[k] + coords[k, start + q]
                for r in range(n_components):
                    terms[q, r] *= rows[i, r]
        for q in range(n_points):
            total = out.dtype.type(0)
            for r in range(n_components):
                total += terms[q, r]
            out[start + q] = total


@part
def _factorize(normal: NDArray[np.float64], shift: float, factor: NDArray[np.float64]) -> bool:
    """Write the Cholesky factor of ``normal + shift I``; False if a pivot is nearly zero.

    A component that is zero at all entries of a row has a row and a column of zeros: it gets the
    pivot one, which makes its coefficient zero.
    """
    n = factor.shape[0]
    for i in range(n):
        own = normal[i, i] + shift
        least = own * SINGULAR if shift == 0 else 0.0
        for j in range(i + 1):
            total = own if j == i else normal[i, j]
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if j < i:
                factor[i, j] = total / factor[j, j]
            elif own == 0:
                factor[i, i] = 1.0
            elif total > least:
                factor[i, i] = np.sqrt(total)
            else:
                return False
    return True


@part
def _own_shift(normal: NDArray[np.float64], factor: NDArray[np.float64]) -> float:
    """Return what is added to the diagonal of a matrix that its row does not determine, or zero.

    It depends on nothing but the matrix. Writes the Cholesky factor of the sum; NaN if there is
    none.
    """
    n = factor.shape[0]
    if _factorize(normal, 0.0, factor):
        return 0.0
    trace = 0.0
    for i in range(n):
        trace += normal[i, i]
    shift: float = SINGULAR * trace / n
    while 0.0 < shift < trace:
        if _factorize(normal, shift, factor):
            return shift
        shift *= 100
    return np.nan


@kernel
def shift_rows(normal: NDArray[np.float64], block: tuple[int, int]) -> None:
    """Make the matrices of a block of rows safely positive definite, in place.

    Solved with them, a row that its entries do not determine is nearly that of least norm.
    """
    n = normal.shape[1]
    factor = np.empty((n, n))
    for s in range(block[0], block[1]):
        shift = _own_shift(normal[s], factor)
        for r in range(n):
            normal[s, r, r] = normal[s, r, r] + shift if normal[s, r, r] != 0 else 1.0


@part
def _solve_normal(normal: NDArray[np.float64], factor: NDArray[np.float64]) -> None:
    """Solve the normal equations whose right-hand side is the next row; write it there.

    The answer is nearly that of least norm.
    """
    n = factor.shape[0]
    right = normal[n]
    if not _own_shift(normal, factor) >= 0:
        right[:] = np.nan  # what is not finite stays visible
        return
    for i in range(n):
        total = right[i]
        for k in range(i):
            total -= factor[i, k] * right[k]
        right[i] = total / factor[i, i]
    for i in range(n - 1, -1, -1):
        right[i] /= factor[i, i]
        for k in range(i):
            right[k] -= factor[i, k] * right[i]


@part
def _add_products(batch: NDArray[np.float64], n_filled: int, normal: NDArray[np.float64]) -> None:
    """Add ``batch @ batch.T`` to the lower triangle, by twos: a load serves two products."""
    for i in range(0, normal.shape[0], 2):
        for j in range(0, i + 1, 2):
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for k in range(n_filled):
                a += batch[i, k] * batch[j, k]
                b += batch[i, k] * batch[j + 1, k]
                c += batch[i + 1, k] * batch[j, k]
                d += batch[i + 1, k] * batch[j + 1, k]
            normal[i, j] += a
            normal[i, j + 1] += b
            normal[i + 1, j] += c
            normal[i + 1, j + 1] += d


@owning_part
def _sum_row(
    work: tuple[Pieces, Spans],
    s: int,
    factors: Stack,
    batch: NDArray[np.float64],
    normal: NDArray[np.float64],
) -> None:
    """Sum the normal equations of a row over its nonzeros, in float64, into the lower triangle.

    ``factors`` are those of the middle modes and then the inner one. The values are one more
    column of the regression: row R of ``normal`` becomes the right-hand side.
    """
    pieces, spans = work
    quads, quad_values, singles, single_values = pieces
    rows, firsts = factors
    inner, n = len(firsts) - 1, rows.shape[1]
    row = np.empty(n)
    normal[:] = 0.0
    quad, single = spans.bounds[s, 0], spans.bounds[s, 1]
    n_in_quads = 4 * (spans.bounds[s + 1, 0] - quad)
    n_nonzeros = n_in_quads + spans.bounds[s + 1, 1] - single
    for start in range(0, n_nonzeros, BATCH):
        n_filled = min(BATCH, n_nonzeros - start)
        for b in range(n_filled):
            p = start + b
            in_quad = p < n_in_quads
            q, u = quad + p // 4, p % 4
            t = single + p - n_in_quads
            batch[n, b] = quad_values[q, u] if in_quad else single_values[t]
            i = firsts[inner] + (quads[q, inner + u] if in_quad else singles[t, inner])
            for r in range(n):
                row[r] = rows[i, r]
            for k in range(inner):
                i = firsts[k] + (quads[q, k] if in_quad else singles[t, k])
                for r in range(n):
                    row[r] *= rows[i, r]
            for r in range(n):
                batch[r, b] = row[r]
        _add_products(batch, n_filled, normal)


@kernel
def solve_observed_rows(
    work: tuple[Pieces, Spans],
    block: tuple[int, int],
    factors: Stack,
    ridge: float,
    out: NDArray[Any],
) -> None:
    """Write the least-squares solutions of a block of rows over their nonzeros."""
    n = out.shape[1]
    size = n + 2 - n % 2
    normal = np.empty((size, size))
    factor = np.empty((n, n))
    # Eight more numbers to a line, so that a column does not fall into a few sets of the cache.
    batch = np.zeros((size, BATCH + 8))
    for s in range(block[0], block[1]):
        _sum_row(work, s, factors, batch, normal)
        for r in range(n):
            normal[r, r] += ridge
        _solve_normal(normal, factor)
        for r in range(n):
            out[work[1].targets[s], r] = normal[n, r]


@kernel
def observed_rows(
    work: tuple[Pieces, Spans],
    block: tuple[int, int],
    factors: Stack,
    matrices: NDArray[np.float64],
    right: NDArray[np.float64],
) -> None:
    """Write the normal equations of a block of rows, from the start of the output arrays."""
    n = right.shape[1]
    size = n + 2 - n % 2
    normal = np.empty((size, size))
    batch = np.zeros((size, BATCH + 8))
    for s in range(block[0], block[1]):
        _sum_row(work, s, factors, batch, normal)
        for i in range(n):
            right[s - block[0], i] = normal[n, i]
            for j in range(i + 1):
                matrices[s - block[0], i, j] = normal[i, j]
                matrices[s - block[0], j, i] = normal[i, j]
