"""The innermost loop of a multiplicative update, in vector registers.

A row reads its products twice in each sweep: for the model at the nonzeros, and for what each
component explains of the counts. Here both are done for a strip of nonzeros at a time, whose
products are then still at hand, and whose model values never leave the registers. Numba has no
vectors, and its compiler makes none of loops over so few numbers, so this is written in the
language of LLVM.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

# Numbers of a vector. Longer ones, where a processor has them, are no faster here.
LANES = 4


def _gain_strip(n_vectors: int) -> Any:
    """Return what tells Numba how to add the gains of a strip of so many vectors."""
    utilities: Any = cgutils  # which names what it takes from llvmlite, but has no types
    ir = utilities.ir
    vector = ir.VectorType(ir.DoubleType(), LANES)
    nothing = ir.Constant(vector, ir.Undefined)
    fused = ("contract",)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        products, y, shares, lanes = (
            context.make_array(signature.args[k])(context, builder, arguments[k])
            for k in (0, 1, 2, 5)
        )
        n_components = builder.extract_value(y.shape, 0)
        width = builder.extract_value(products.shape, 1)
        place = context.cast(builder, arguments[3], signature.args[3], types.intp)

        def at(memory: Any, offset: Any, number: int = 0) -> Any:
            offset = builder.add(offset, ir.Constant(offset.type, LANES * number))
            return builder.bitcast(builder.gep(memory.data, [offset]), vector.as_pointer())

        def load(memory: Any, offset: Any) -> list[Any]:
            return [builder.load(at(memory, offset, v), align=8) for v in range(n_vectors)]

        def spread(number: Any) -> Any:
            first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
            same = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.shuffle_vector(first, nothing, same)

        def add_product(total: Any, a: Any, b: Any) -> Any:
            return builder.fadd(total, builder.fmul(a, b, flags=fused), flags=fused)

        fitted = [utilities.alloca_once(builder, vector) for _ in range(n_vectors)]
        for total in fitted:
            builder.store(ir.Constant(vector, [0.0] * LANES), total)
        with utilities.for_range(builder, n_components) as loop:
            part = spread(builder.load(builder.gep(y.data, [loop.index])))
            row = builder.add(builder.mul(loop.index, width), place)
            for total, product in zip(fitted, load(products, row), strict=True):
                builder.store(add_product(builder.load(total), part, product), total)
        least = spread(arguments[4])
        ratio = []
        for share, total in zip(load(shares, place), fitted, strict=True):
            model = builder.load(total)
            model = builder.select(builder.fcmp_ordered(">", model, least), model, least)
            ratio.append(builder.fdiv(share, model))
        with utilities.for_range(builder, n_components) as loop:
            row = builder.add(builder.mul(loop.index, width), place)
            to = at(lanes, builder.mul(loop.index, ir.Constant(row.type, LANES)))
            # Two sums: each addition waits for the one before.
            sums = [builder.load(to, align=8), ir.Constant(vector, [0.0] * LANES)]
            for v, product in enumerate(load(products, row)):
                sums[v % 2] = add_product(sums[v % 2], ratio[v], product)
            builder.store(builder.fadd(*sums), to, align=8)
        return context.get_dummy_value()

    def typed(  # noqa: PLR0917  (Numba gives arguments by position)
        _typing_context: Any,
        products: Any,
        y: Any,
        shares: Any,
        first: Any,
        least: Any,
        lanes: Any,
    ) -> Any:
        return types.void(products, y, shares, first, least, lanes), generate

    return typed


# ``gain_strip(products, y, shares, first, least, lanes)``, all of float64: adds to ``lanes[r]``,
# (R, LANES), the sums of ``shares[p] / max(y . products[:, p], least) products[r, p]`` over a
# strip of ``p`` from ``first`` on: 32 of them, and 16 for what is left.
gain_strip: Any = intrinsic(_gain_strip(8))
gain_half_strip: Any = intrinsic(_gain_strip(4))
