"""In which units a generalized fit runs: of its data, of the slices of each mode, and of the ridge.

Data of a loss that has a unit is divided by a power of two close to its mean size if that is far
from one, which is exact; the loss follows (``Loss.divided``).

Data over many decades is fitted slice by slice of it. The derivative of a loss of degree p in a row
of a factor goes with the size of that row's slice to the power p - 1, and the curvature with p - 2.
A fit in which all rows share a unit would hardly see the small slices of a loss that does. Sizes
are geometric means, so that those of several modes multiply to the sizes of the entries.
"""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import coo_array

from polyad.core.arrays import to_numpy
from polyad.core.blocks import as_slices, cut_evenly
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.cp.generalized.problem import GeneralizedProblem
    from polyad.losses import Loss

    Exponents = NDArray[np.float64]

# Mean sizes of the data, as powers of two, for which the margin of a loss is small as it is.
_MAX_EXPONENT = 10
# Powers of two by which slices of a mode may differ without being treated apart, and by which they
# do at most.
_SLICE_RANGE, _LOWEST_EXPONENT = 5, -1000
# Cells of dense data that are read at a time.
_CHUNK = 1 << 18


def find_exponent(data: Any, loss: Loss, *, zeros: bool) -> int:
    """Return the power of two to divide data by, or zero if it has no unit or a good one.

    ``zeros`` says that entries that sparse data does not store are zeros.
    """
    if loss.degree is None:
        return 0
    stored = data.data if isinstance(data, coo_array) else data
    xp = array_namespace(stored)
    known = ~xp.isnan(stored)
    n_known = int(xp.sum(xp.astype(known, xp.int64)))
    total = float(xp.sum(xp.where(known, xp.abs(stored), xp.zeros_like(stored)), dtype=xp.float64))
    cells = math.prod(data.shape) if zeros and isinstance(data, coo_array) else n_known
    exponent = math.frexp(total / cells)[1] if total > 0 else 0
    return exponent if abs(exponent) > _MAX_EXPONENT else 0


def scaled_ridge(problem: GeneralizedProblem, ridge: float, n_free: int) -> float:
    """Return a ridge, given in the unit of the data, for factors of data that was divided by it.

    If the data was divided by s, each of n free factors is by ``s^(1/n)`` and the objective by
    ``s^p``, where p is the degree of the loss.
    """
    degree = problem.loss.degree or 0.0
    return float(ridge * 2.0 ** (problem.exponent * (2.0 / n_free - degree)))


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
    below = np.where(seen, np.maximum(means - largest, _LOWEST_EXPONENT), 0.0)
    if np.min(below) >= -_SLICE_RANGE:
        return np.zeros_like(below)
    exponents: Exponents = np.rint(below - 0.5 * np.log2(np.mean(np.exp2(2.0 * below))))
    return exponents
