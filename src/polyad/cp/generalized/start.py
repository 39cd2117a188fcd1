"""Where a generalized fit starts: random factors whose model has the level of the data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.cp.generalized.problem import slice_exponents
from polyad.losses import HuberLoss
from polyad.tensor.products import gram_product
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.cp.generalized.problem import GeneralizedProblem

    Matrix = NDArray[np.float64]

# The size of model values on a scale that has no unit, such as logarithms of odds.
_TYPICAL_SIZE = 1.0
# Odds, or the like, of data that is all at one end.
_CERTAIN_LEVEL = 10.0
# How far the component that carries the level of the data is from being constant.
_SPREAD = 0.1
# Data whose root mean square is this many times its median has outliers.
_OUTLIER_RATIO = 10.0
# Entries that a median is taken of.
_MAX_ENTRIES = 1 << 20


def random_start(problem: GeneralizedProblem, n_components: int, seed: int) -> list[Matrix]:
    """Return random factors."""
    generator = np.random.default_rng(seed)
    if problem.loss.lower == 0:
        return _positive(problem, n_components, generator)
    factors = [generator.standard_normal((size, n_components)) for size in problem.shape]
    if problem.loss.degree is not None:
        return _scaled(factors, _typical_size(problem))
    level = problem.constant[0]
    level = level if math.isfinite(level) else math.copysign(_CERTAIN_LEVEL, level)
    # A loss of one's own may have a unit that nobody knows, which small data then shows.
    size = math.sqrt(problem.norm_squared / problem.n_observed)
    factors = _scaled(factors, min(_TYPICAL_SIZE, abs(level) + min(0.1, size)))
    if abs(level) > _TYPICAL_SIZE:
        _put_level(factors, level, generator)
    return factors


def _typical_size(problem: GeneralizedProblem) -> float:
    """Return the root mean square of the data, or a size that outliers do not change."""
    size = math.sqrt(problem.norm_squared / problem.n_observed)
    if not isinstance(problem.loss, HuberLoss):
        return size
    entries = _some_entries(problem)
    entries = np.abs(entries[entries != 0])
    if not entries.size:
        return size
    share = entries.size / problem.n_observed if isinstance(problem.tensor, SparseTensor) else 1.0
    middle = float(np.median(entries)) * math.sqrt(share)
    # A start as large as the outliers would be lost: what it has to give up is nothing to them.
    return middle if size > _OUTLIER_RATIO * middle else size


def _some_entries(problem: GeneralizedProblem) -> Matrix:
    """Return the entries of sparse data, or those of some samples of dense data, as one vector."""
    if isinstance(problem.tensor, SparseTensor):
        return problem.tensor.values
    array, observed = problem.tensor.array, getattr(problem, "observed", None)
    step = math.ceil(math.prod(problem.shape) / _MAX_ENTRIES)
    part = to_numpy(array[::step, ...]) * 2.0**-problem.exponent
    return part.ravel() if observed is None else part[to_numpy(observed[::step, ...])]


def _positive(
    problem: GeneralizedProblem, n_components: int, generator: np.random.Generator
) -> list[Matrix]:
    """Return positive random factors, whose slices are as large as those of the data."""
    # Between 0.1 and 1: every component can still become anything, and no cell is impossible.
    factors = [
        generator.uniform(0.1, 1.0, (size, n_components)) * np.exp2(exponents)[:, None]
        for size, exponents in zip(problem.shape, slice_exponents(problem), strict=True)
    ]
    return of_the_level_of(problem, factors)


def of_the_level_of(problem: GeneralizedProblem, factors: list[Matrix]) -> list[Matrix]:
    """Scale positive factors so that the mean of the model is the best constant."""
    level = problem.constant[0]
    level = level if math.isfinite(level) else _CERTAIN_LEVEL
    if level == 0 and not problem.is_zero:
        level = _TYPICAL_SIZE
    mean = float(np.prod([factor.mean(axis=0) for factor in factors], axis=0).sum())
    return [factor * (level / mean) ** (1.0 / len(factors)) for factor in factors]


def _scaled(factors: list[Matrix], size: float) -> list[Matrix]:
    """Return factors of a model whose root mean square is given."""
    cells = math.prod(len(factor) for factor in factors)
    own = math.sqrt(max(float(np.sum(gram_product(factors))), 0.0) / cells)
    share = (size / own) ** (1.0 / len(factors)) if own > 0 else 1.0
    return [factor * share for factor in factors]


def _put_level(factors: list[Matrix], level: float, generator: np.random.Generator) -> None:
    """Make the first component nearly constant, at the level of the data."""
    size = abs(level) ** (1.0 / len(factors))
    for mode, factor in enumerate(factors):
        sign = math.copysign(1.0, level) if mode == 0 else 1.0
        noise = generator.standard_normal(len(factor))
        factor[:, 0] = sign * size * (1.0 + _SPREAD * noise)
