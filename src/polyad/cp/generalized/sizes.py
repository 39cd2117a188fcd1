"""How large the slices of some data are: data over many decades is fitted slice by slice of it.

The derivative of a loss of degree p in a row of a factor goes with the size of that row's slice to
the power p - 1, and the curvature with p - 2. A fit in which all rows share a unit would hardly see
the small slices of a loss that does. Sizes are geometric means, so that those of several modes
multiply to the sizes of the entries.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.core.blocks import as_slices, cut_evenly
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.cp.generalized.problem import GeneralizedProblem

    Exponents = NDArray[np.float64]

# Powers of two by which slices of a mode may differ without being treated apart, and by which they
# do at most.
_COMFORTABLE, _LEAST = 5, -1000
# Cells of dense data that are read at a time.
_CHUNK = 1 << 18


def slice_exponents(problem: GeneralizedProblem) -> list[Exponents]:
    """Return powers of two that are the sizes of the slices of each mode, up to a common factor.

    Their mean square is one, as factors are balanced over the modes. Modes whose slices are of
    comfortable sizes have zeros, and so have losses without a bound, whose model values may have
    another unit than the data, or none.
    """
    sums = [np.zeros(size) for size in problem.shape]
    counts = [np.zeros(size) for size in problem.shape]
    if problem.loss.lower != 0:
        return sums
    if isinstance(problem.tensor, SparseTensor):
        powers, known = _powers(problem.tensor.values)
        for mode, coords in enumerate(problem.tensor.coords):
            sums[mode] += np.bincount(coords, powers, minlength=problem.shape[mode])
            counts[mode] += np.bincount(coords, known, minlength=problem.shape[mode])
    else:
        _add_dense(problem, sums, counts)
    return [_scaled(*own) for own in zip(sums, counts, strict=True)]


def _add_dense(problem: Any, sums: list[Exponents], counts: list[Exponents]) -> None:
    """Add up the exponents of dense data over the slices of all modes."""
    n_cells = prod(problem.shape[1:])
    modes = range(len(problem.shape))
    for rows in as_slices(cut_evenly(problem.shape[0], max(1, _CHUNK // n_cells))):
        powers, known = _powers(to_numpy(problem.tensor.array[rows, ...]))
        if problem.observed is not None:
            observed = to_numpy(problem.observed[rows, ...])
            powers, known = powers * observed, known & observed
        for mode in modes:
            place = rows if mode == 0 else slice(None)
            others = tuple(k for k in modes if k != mode)
            sums[mode][place] += powers.sum(axis=others)
            counts[mode][place] += known.sum(axis=others)


def _powers(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the exponents of numbers above zero, zeros for others, and which are above."""
    known = values > 0
    return np.where(known, np.frexp(values)[1], 0), known


def _scaled(sums: Exponents, counts: Exponents) -> Exponents:
    """Return the mean exponents of the slices, such that their powers have the mean square one."""
    seen = counts > 0
    means = sums / np.maximum(counts, 1.0)
    largest = np.max(means, initial=-np.inf, where=seen)
    below = np.where(seen, np.maximum(means - largest, _LEAST), 0.0)
    if np.min(below) >= -_COMFORTABLE:
        return np.zeros_like(below)
    exponents: Exponents = np.rint(below - 0.5 * np.log2(np.mean(np.exp2(2.0 * below))))
    return exponents
