"""The data of a quantile factorization: one row per feature, as the transports want it.

scikit-learn has the samples first; the paper, and everything below the estimators here, has the
features first: a transform belongs to a feature and acts on its values over all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.losses import Loss

    Table = NDArray[np.float64]

# Entries and model values are kept this part of the largest entry of their feature above zero,
# where a divergence takes logarithms or divides.
_GUARD = 1e-8


@dataclass(frozen=True)
class FeatureTable:
    """The entries of some samples, features first.

    Attributes
    ----------
    shifted : ndarray of shape (d, n)
        Entries plus the guard of their feature; the lowest of the feature where none was observed.
    observed : ndarray of bool of shape (d, n) or None
        Which entries were observed; None if all were.
    low, high : ndarray of shape (d, 1)
        The range of the observed entries of each feature.
    guard : ndarray of shape (d, 1)
        What is added to entries and model values before they are compared.
    divergence : Loss
        How entries and model values are compared.
    dtype : dtype
        Of the data as it was given.
    """

    shifted: Table
    observed: NDArray[np.bool_] | None
    low: Table
    high: Table
    guard: Table
    divergence: Loss
    dtype: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of features and samples."""
        return self.shifted.shape[0], self.shifted.shape[1]

    @cached_property
    def n_observed(self) -> int:
        """The number of observed entries."""
        return self.shifted.size if self.observed is None else int(self.observed.sum())

    @cached_property
    def shares(self) -> Table:
        """The weight of each sample in the transport of a feature; (1, n) if all features agree.

        Entries that were not observed weigh nothing: a feature's transform does not depend on them.
        A feature without any observed entry has equal weights.
        """
        if self.observed is None:
            return np.full((1, self.shape[1]), 1.0 / self.shape[1])
        known = self.observed | ~self.observed.any(axis=1, keepdims=True)
        shares: Table = known / known.sum(axis=1, keepdims=True)
        return shares

    @cached_property
    def spreads(self) -> Table:
        """The divergence of each feature from its mean, summed over the observed entries; (d,)."""
        means = (self.shares * self.shifted).sum(axis=1, keepdims=True) - self.guard
        constant = np.broadcast_to(means, self.shape)
        spreads: Table = self._divergences(constant, slice(None)).sum(axis=1)
        return spreads

    @cached_property
    def unit(self) -> float:
        """The mean divergence from a model that knows the mean of each feature and nothing else."""
        mean = float(self.spreads.sum()) / max(self.n_observed, 1)
        return mean if np.isfinite(mean) and mean > 0 else 1.0

    def divergence_sum(self, model: Table, rows: Any) -> float:
        """Return the sum of the divergence over the observed entries of some features."""
        return float(self._divergences(model, rows).sum())

    def _divergences(self, model: Table, rows: Any) -> Table:
        """Return the divergence of each entry of some features, 0 where it was not observed."""
        terms = np.asarray(self.divergence.value(*self._pair(model, rows)), dtype=np.float64)
        return terms if self.observed is None else np.where(self.observed[rows], terms, 0.0)

    def divergence_slope(self, model: Table, rows: Any) -> Table:
        """Return the derivative of the divergence of each entry of some features."""
        slope = np.asarray(self.divergence.derivative(*self._pair(model, rows)), dtype=np.float64)
        return slope if self.observed is None else np.where(self.observed[rows], slope, 0.0)

    def _pair(self, model: Table, rows: Any) -> tuple[Table, Table]:
        """Return entries and model values of some features as the divergence gets them."""
        return self.shifted[rows], model + self.guard[rows]


def feature_table(data: NDArray[Any], divergence: Loss) -> FeatureTable:
    """Make the table of a fit from samples (n, d), where NaN marks what was not observed."""
    values = np.array(data.T, dtype=np.float64, order="C")
    observed = _observed(values)
    if observed is None:
        low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    else:
        low = np.min(values, axis=1, keepdims=True, where=observed, initial=np.inf)
        high = np.max(values, axis=1, keepdims=True, where=observed, initial=-np.inf)
        unknown = ~observed.any(axis=1, keepdims=True)
        low, high = np.where(unknown, 0.0, low), np.where(unknown, 0.0, high)
        values = np.where(observed, values, low)
    guard = entry_guard(high, divergence)
    return FeatureTable(values + guard, observed, low, high, guard, divergence, data.dtype)


def sample_table(
    data: NDArray[Any], low: Table, high: Table, guard: Table, divergence: Loss
) -> FeatureTable:
    """Make the table of new samples (n, d), with the ranges of the features of a fit."""
    values = np.array(data.T, dtype=np.float64, order="C")
    observed = _observed(values)
    if observed is not None:
        values = np.where(observed, values, low)
    return FeatureTable(values + guard, observed, low, high, guard, divergence, data.dtype)


def _observed(values: Table) -> NDArray[np.bool_] | None:
    observed = ~np.isnan(values)
    return None if observed.all() else observed


def entry_guard(high: Any, divergence: Loss) -> Table:
    """Return what is added to entries up to ``high``, nothing unless the divergence needs it."""
    largest = np.asarray(high, dtype=np.float64)
    if divergence.lower != 0:
        return np.zeros_like(largest)
    return np.where(largest > 0.0, _GUARD * largest, 1.0)
