r"""What a quantile factorization is made of, and how unconstrained parameters become it.

Weights :math:`B = \mathrm{softmax}(F)` are positive and sum to one for each feature. Quantiles
:math:`Q = s + (t - s)\,[0, \mathrm{cumsum}(\mathrm{softmax}(R))]` increase from the lowest entry
``s`` of a feature to its highest ``t``. Factors are exponentials if they must not be negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.quantile.features import FeatureTable

    Table = NDArray[np.float64]

# Exponents of factors stay where their products and squares do, as float32 numbers too.
_LARGEST_EXPONENT = 40.0
# Part of the gaps between empirical quantiles that is the same for all: ties would never part.
_EVEN = 1e-2


class Parameters(NamedTuple):
    """The unconstrained parameters of a factorization, or what belongs to each, as derivatives."""

    #: (d, k): of the factor of the features.
    loadings: Table
    #: (k, n): of the factor of the samples.
    scores: Table
    #: (d, m - 1): ``R``, of the differences of the quantiles.
    gaps: Table
    #: (d, m): ``F``, of the weights of the quantiles.
    logits: Table


def joined(parts: Sequence[Table]) -> Table:
    """Return the numbers of some arrays as one vector."""
    return np.concatenate([part.ravel() for part in parts])


def parted(vector: Table, shapes: Sequence[tuple[int, ...]]) -> list[Table]:
    """Return the numbers of a vector as arrays of given shapes."""
    parts, first = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(vector[first : first + size].reshape(shape))
        first += size
    return parts


def random_parameters(
    shape: tuple[int, int], n_components: int, n_quantiles: int, *, nonnegative: bool, seed: int
) -> Parameters:
    """Return a start: random factors, equally spaced quantiles of equal weights."""
    d, n = shape
    generator = np.random.default_rng(seed)
    if nonnegative:
        loadings = generator.uniform(-0.5, 0.5, (d, n_components))
        scores = generator.uniform(-0.5, 0.5, (n_components, n))
    else:
        loadings = generator.standard_normal((d, n_components))
        scores = generator.standard_normal((n_components, n))
    return Parameters(loadings, scores, np.zeros((d, n_quantiles - 1)), np.zeros((d, n_quantiles)))


def softmax(logits: Table) -> Table:
    """Return positive numbers that sum to one in each row."""
    weights: Table = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def pull_softmax(weights: Table, gradient: Table) -> Table:
    """Pull a gradient with respect to a softmax back to its logits."""
    mean = (weights * gradient).sum(axis=1, keepdims=True)
    result: Table = weights * (gradient - mean)
    return result


def pinned_quantiles(gaps: Table, low: Table, high: Table) -> tuple[Table, Table]:
    """Return quantiles from ``low`` to ``high`` exactly, and the parts of the range between."""
    parts = softmax(gaps)
    levels = np.concatenate([np.zeros_like(low), np.cumsum(parts, axis=1)], axis=1)
    quantiles = np.clip(low + (high - low) * levels, low, high)
    quantiles[:, -1:] = high
    return quantiles, parts


def pull_pinned(parts: Table, low: Table, high: Table, gradient: Table) -> Table:
    """Pull a gradient with respect to pinned quantiles back to the gaps."""
    above = np.cumsum(gradient[:, :0:-1], axis=1)[:, ::-1]
    return pull_softmax(parts, (high - low) * above)


def factor(free: Table, *, nonnegative: bool) -> Table:
    """Return a factor from its unconstrained parameters."""
    if not nonnegative:
        return free
    bounded = np.clip(free, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    result: Table = np.exp(bounded)
    return result


def pull_factor(values: Table, gradient: Table, *, nonnegative: bool) -> Table:
    """Pull a gradient with respect to a factor back to its unconstrained parameters."""
    return values * gradient if nonnegative else gradient


def unconstrained(values: Table, *, nonnegative: bool) -> Table:
    """Return the unconstrained parameters of a factor, as far as they are finite."""
    if not nonnegative:
        return np.array(values, dtype=np.float64)
    least = np.exp(-_LARGEST_EXPONENT)
    result: Table = np.log(np.maximum(np.asarray(values, dtype=np.float64), least))
    return result


def to_logits(weights: Table) -> Table:
    """Return logits whose softmax are given weights, with a mean of zero in each row."""
    logits = np.log(np.maximum(weights, np.finfo(np.float64).tiny))
    result: Table = logits - logits.mean(axis=1, keepdims=True)
    return result


def to_gaps(quantiles: Table) -> Table:
    """Return the gaps of given pinned quantiles."""
    parts = np.diff(quantiles, axis=1)
    total = parts.sum(axis=1, keepdims=True)
    # The quantiles of a constant feature say nothing of its gaps.
    return to_logits(np.where(total > 0.0, parts / np.where(total > 0.0, total, 1.0), 1.0))


def empirical_gaps(table: FeatureTable, n_quantiles: int) -> Table:
    """Return gaps whose quantiles are nearly those of the observed entries of each feature."""
    levels = np.linspace(0.0, 1.0, n_quantiles)
    if table.observed is None:
        quantiles = np.quantile(table.shifted, levels, axis=1).T
    else:
        # A feature without any entry has those of its fill.
        known = table.observed | ~table.observed.any(axis=1, keepdims=True)
        known_values = np.where(known, table.shifted, np.nan)
        quantiles = np.nanquantile(known_values, levels, axis=1).T
    span = quantiles[:, -1:] - quantiles[:, :1]
    return to_gaps((1.0 - _EVEN) * quantiles + _EVEN * span * levels)
