"""One more batch for a model that is finished: its factors move, its rows are appended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from polyad.cp.stochastic.solver import SweepState
from polyad.exceptions import NumericalError
from polyad.tensor.kruskal import KruskalTensor, column_norms

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.cp.stochastic.solver import StochasticALS
    from polyad.data.batches import Batch


@dataclass(frozen=True)
class Counts:
    """How much a model has seen: the batches that moved it, and the largest of them."""

    n_steps: int
    largest: int


def extended(
    solver: StochasticALS, batch: Batch, model: KruskalTensor, others: list[Array], counts: Counts
) -> tuple[KruskalTensor, list[Array], Counts]:
    """Return a model that has learned from one more batch, its lengths of columns and the counts.

    ``others`` are the factors of the modes from 1 on in the scale of the fit. The model has columns
    of length one, fixed modes apart, and its components keep their order.
    """
    xp = array_namespace(model.weights)
    exponent, free = solver.problem.exponent, solver.free_modes
    # The data of the batch is divided by 2^exponent, and each of n free factors by its n-th root.
    share = 2.0 ** (-exponent / len(free))
    scaled = [f * share if mode in free else f for mode, f in enumerate(others, start=1)]
    state = SweepState(scaled, counts.n_steps, 0, 0, counts.largest, 0.0)
    _, loss, state = solver.take_batch(state, batch)
    if not math.isfinite(loss):
        raise broken_batch()
    rows, *factors = solver.factors(solver.finish(state))
    units = [
        column_norms(factor) if mode in free else xp.ones_like(model.weights)
        for mode, factor in enumerate(factors, start=1)
    ]
    new_rows = rows * (math.prod(units) * 2.0**exponent)[None, :]
    old_rows = model.factors[0] * model.weights[None, :]
    samples = xp.concat([old_rows, new_rows], axis=0)
    size = column_norms(samples)
    parts = [
        factor / xp.where(length > 0, length, xp.ones_like(length))[None, :]
        for factor, length in zip((samples, *factors), (size, *units), strict=True)
    ]
    lengths = solver.lengths([rows, *factors])[1:]
    return KruskalTensor(size, parts), lengths, Counts(state.n_steps, state.largest)


def broken_batch() -> NumericalError:
    """Return the error of a batch that cannot be learned from."""
    return NumericalError(
        "The batch gave factors that are not finite, so the model is left as it was. Scale the "
        "batch as the data before it was scaled."
    )
