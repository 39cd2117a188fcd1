"""The coefficients of samples on given components, for every loss and kind of data.

With the other factors given, each sample is a problem of its own in as many unknowns as there are
components (see ``newton``). Samples are solved in chunks, which do not see each other: the result
for a sample does not depend on the others that are given. If the loss has a unit, each sample is
divided by a power of two close to its size: the smallest is solved as well as the largest.
"""

from __future__ import annotations

from functools import partial
from math import ceil, isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.core.blocks import as_slices, cut_evenly
from polyad.core.threads import run_blocks
from polyad.cp.generalized.objective import ObservedProblem, ZerosProblem
from polyad.cp.generalized.samples import (
    Basis,
    DenseSamples,
    EntrySamples,
    Samples,
    ZeroTerm,
    zero_term,
)
from polyad.fitting.row_newton import Rules, minimize_rows
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import gram_product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from polyad.cp.generalized.problem import GeneralizedProblem
    from polyad.losses import Loss

    Matrix = NDArray[np.float64]
    Chunk = tuple[slice, Callable[[], Samples]]

# Cells, or stored entries, of a chunk of rows, and the most rows of one.
_CHUNK = 1 << 18
_MOST_ROWS = 1 << 12
# Differences of two minima that are not rounding.
_CLEARLY = 1e-7
# Powers of two by which a ridge changes with the unit of a sample; beyond, it is all or nothing.
_MOST_POWERS = 500.0
# A ridge that leaves next to nothing of a component; a larger one would be infinite.
_LARGEST_RIDGE = 1e270


def solve_rows(
    problem: GeneralizedProblem,
    others: Sequence[Matrix],
    ridge: float,
    *,
    exact: bool = True,
    known: Matrix | None = None,
) -> Matrix:
    """Return the best coefficients of each sample, zeros for those without observations.

    ``exact`` visits all zeros that are not stored, rather than a sample of them. ``known``
    coefficients may be better for losses that are not convex: each sample is also solved from
    there, and the better result is kept.
    """
    # Components of length one: the damping of the rows is then the same for all.
    lengths = [np.sqrt(np.sum(factor * factor, axis=0)) for factor in others]
    length = np.prod(lengths, axis=0)
    alive = length > 0
    unit = [
        factor / np.where(own > 0, own, 1.0) * alive
        for factor, own in zip(others, lengths, strict=True)
    ]
    safe = np.where(alive, length, 1.0)
    loss = problem.loss
    # A parameter that follows the unit, as Huber's threshold, would differ between samples.
    degree = loss.degree if loss.divided(2.0) == loss else None
    direction = _start_direction(loss, unit)
    result = np.zeros((problem.shape[0], length.size))

    def work(rows: slice, make: Callable[[], Samples]) -> None:
        samples = make()
        exponents = np.zeros(samples.n_rows, np.int64) if degree is None else samples.divide()
        powers = np.clip((2.0 - (degree or 0.0)) * exponents, -_MOST_POWERS, _MOST_POWERS)
        with np.errstate(over="ignore"):
            weights = np.exp2(powers)[:, None] * (ridge / safe / safe)
        weights = np.minimum(weights, _LARGEST_RIDGE)
        rules = Rules(loss.lower, weights, loss.is_convex)
        means, counts = samples.means()
        levels = np.array([_level(loss, *own) for own in zip(means, counts, strict=True)])
        solved, sums = minimize_rows(samples, levels[:, None] * direction, rules)
        if known is not None:
            begun = np.ldexp(known[rows] * safe, -exponents[:, None])
            other, lower = minimize_rows(samples, begun, rules)
            is_better = lower < sums - _CLEARLY * np.abs(sums)
            solved = np.where(is_better[:, None], other, solved)
        result[rows] = np.ldexp(solved, exponents[:, None]) * (counts > 0)[:, None]

    run_blocks(work, _chunks(problem, unit, exact=exact))
    rescaled: Matrix = result * alive / safe
    return rescaled


def _start_direction(loss: Loss, others: Sequence[Matrix]) -> Matrix:
    """Return the coefficients at which the model is about one everywhere, or zeros.

    Every sample starts from a multiple of it, so that its result depends on nothing else.
    """
    n_components = others[0].shape[1]
    sums = np.prod([factor.sum(axis=0) for factor in others], axis=0)
    if loss.lower == 0:
        mean = float(sums.sum()) / prod(len(factor) for factor in others)
        return np.full(n_components, 1.0 / mean if mean > 0 else 0.0)
    if loss.degree is not None:
        return np.zeros(n_components)
    gram = gram_product(list(others))
    solved: Matrix = np.linalg.lstsq(gram, sums, rcond=1e-6)[0]
    return solved


def _level(loss: Loss, mean: float, count: float) -> float:
    """Return the model value that a sample of some mean and number of entries starts from."""
    level = loss.constant(mean)
    if level is None:
        level = mean if loss.lower == 0 else 0.0
    if not isfinite(level):
        # All entries are at one end of what the loss can say: half an entry of the other kind.
        inside = min(max(mean, 0.5 / max(count, 1.0)), 1.0 - 0.5 / max(count, 1.0))
        level = loss.constant(inside if loss.domain == "zeros and ones" else 0.5 / max(count, 1.0))
    return float(level or 0.0)


def _chunks(
    problem: GeneralizedProblem, others: Sequence[Matrix], *, exact: bool
) -> Iterator[Chunk]:
    """Cut the samples into chunks, each with a function that makes its data."""
    n_samples, n_cells = problem.shape[0], prod(problem.shape[1:])
    if isinstance(problem.tensor, DenseTensor):
        basis = Basis.of(others)
        most = min(_MOST_ROWS, max(1, _CHUNK // n_cells))
        for rows in as_slices(cut_evenly(n_samples, most)):
            yield rows, partial(_dense, problem, basis, rows)
    elif isinstance(problem, ObservedProblem):
        term = None
        most = _MOST_ROWS
        if isinstance(problem, ZerosProblem):
            term = zero_term(problem.loss, others, exact=exact)
            most = min(most, max(1, _CHUNK // term.n_cells))
        starts = np.searchsorted(problem.tensor.coords[0], np.arange(n_samples + 1))
        n_parts = max(ceil(n_samples / most), ceil(problem.tensor.nnz / _CHUNK))
        for rows in as_slices(cut_evenly(n_samples, ceil(n_samples / n_parts))):
            yield rows, partial(_sparse, problem, others, term, starts, rows)


def _dense(problem: Any, basis: Basis, rows: slice) -> DenseSamples:
    """Take some samples out of dense data."""
    n_rows = rows.stop - rows.start
    data = to_numpy(problem.tensor.array[rows, ...]).reshape(n_rows, -1)
    x = np.multiply(data, 2.0**-problem.exponent, dtype=np.float64)
    observed = None
    if problem.observed is not None:
        observed = to_numpy(problem.observed[rows, ...]).reshape(n_rows, -1)
    return DenseSamples(problem.loss, basis, x, observed)


def _sparse(
    problem: ObservedProblem,
    others: Sequence[Matrix],
    term: ZeroTerm | None,
    starts: NDArray[Any],
    rows: slice,
) -> EntrySamples:
    """Take some samples out of sparse data."""
    entries = problem.tensor
    chosen = slice(int(starts[rows.start]), int(starts[rows.stop]))
    coords = [row[chosen] for row in entries.coords[1:]]
    inside = starts[rows.start : rows.stop + 1] - starts[rows.start]
    return EntrySamples(problem.loss, others, coords, (entries.values[chosen], inside), term)
