"""The data of a quantile factorization: one row per feature, as the transports want it.

scikit-learn has the samples first; the paper, and everything below the estimators here, has the
features first: a transform belongs to a feature and acts on its values over all samples.

What the factorizations accept of it, and what they warn of, is here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.data.validation import refuse_negative
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.losses.checks import GOLDEN, check_domain, try_loss
from polyad.losses.names import LOSSES, read_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from polyad.data.readers import TensorInput
    from polyad.losses import Loss

    Table = NDArray[np.float64]

# Entries and model values are kept this part of the largest entry of their feature above zero,
# where a divergence takes logarithms or divides.
_GUARD = 1e-8
# Half of the features hardly count if they have less than this part of the divergence of the data
# from the means of its features. Fewer features than this have no halves to speak of.
_WEAK, _FEW = 1e-5, 4
# Features and samples that a divergence is tried on, and the part of the largest value that a
# negative one may have.
_FEATURES, _SAMPLES = 16, 32
_ROUNDING = 1e-3


@dataclass(frozen=True)
class FeatureTable:
    """The entries of some samples, features first."""

    #: (d, n): entries plus the guard of their feature; the lowest of the feature where none was
    #: observed.
    shifted: Table
    #: (d, n) or None: which entries were observed; None if all were.
    observed: NDArray[np.bool_] | None
    #: (d, 1): the range of the observed entries of each feature.
    low: Table
    high: Table
    #: (d, 1): what is added to entries and model values before they are compared.
    guard: Table
    #: How entries and model values are compared.
    divergence: Loss
    #: Of the data as it was given.
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
        spreads: Table = self.divergences(constant, slice(None)).sum(axis=1)
        return spreads

    @cached_property
    def unit(self) -> float:
        """The mean divergence from a model that knows the mean of each feature and nothing else."""
        mean = float(self.spreads.sum()) / max(self.n_observed, 1)
        return mean if np.isfinite(mean) and mean > 0 else 1.0

    def divergence_sum(self, model: Table, rows: Any) -> float:
        """Return the sum of the divergence over the observed entries of some features."""
        return float(self.divergences(model, rows).sum())

    def divergences(self, model: Table, rows: Any) -> Table:
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


def read_divergence(divergence: Any) -> Loss:
    """Return the loss that compares entries with model values, which are of the same unit."""
    loss = read_loss(divergence, "divergence", of_means=True)
    if not loss.has_means:
        message = (
            f"divergence={divergence!r} is a loss of model values that are no entries of the data, "
            "such as odds or logarithms. Give 'kl', 'frobenius', or another loss whose model "
            "values are in the unit of the data, such as HuberLoss(0.5)."
        )
        raise InvalidInputError(message)
    # Entries and model values are kept above zero here: see ``features``.
    return loss.without_margin()


def read_matrix(given: TensorInput, loss: Loss, estimator: str) -> NDArray[Any]:
    """Return data as an array of samples and features, and refuse what is no such thing."""
    if given.is_sparse:
        message = (
            f"Sparse data was given to {estimator}, whose model has a value for every entry. Give "
            "a dense array, X.toarray(), or of an AnnData the table adata.to_df(), if that fits "
            "into memory."
        )
        raise InvalidTypeError(message)
    if len(given.shape) != 2:
        message = (
            f"X has {len(given.shape)} modes, of shape {given.shape}; {estimator} factorizes a "
            "matrix (n_samples, n_features)."
        )
        raise InvalidInputError(message)
    if loss.lower == 0:
        advice = (
            f"The divergence of {estimator} compares numbers that are not negative. Use "
            "divergence='frobenius', or shift the data."
        )
        refuse_negative(given, advice)
    check_domain(given, loss, zeros=True, parameter="divergence")
    return np.asarray(to_numpy(given.data))


def weak_features(table: FeatureTable) -> Iterator[str]:
    """Tell of features whose numbers are so small that they hardly count in the divergence."""
    parts = np.sort(table.spreads[(table.high > table.low)[:, 0]])
    total = parts.sum()
    if not (np.isfinite(total) and total > 0):
        return
    share = float(parts[: len(parts) // 2].sum() / total)
    if len(parts) >= _FEW and share < _WEAK:
        yield (
            f"half of the features have {share:.1g} of the divergence of the data, because their "
            "numbers are small, and hardly count in the fit. If all should count, divide each by "
            "its mean, or put StandardScaler(with_mean=False) before it in a pipeline."
        )


def gaps_of(given: TensorInput, table: FeatureTable) -> Iterator[str]:
    """Tell of samples and features of which nothing was observed."""
    if table.observed is None:
        return
    for mode, what in enumerate(("sample", "feature")):
        empty = np.flatnonzero(~table.observed.any(axis=mode))
        if empty.size:
            yield (
                f"nothing was observed at position {int(empty[0])} of {given.mode_title(mode)}, "
                f"the first such {what} of {empty.size}: it has no part in the fit."
            )


def check_divergence(loss: Loss, table: FeatureTable) -> None:
    """Try a divergence of the user's own on a few entries, and refuse it if it is none."""
    if type(loss) in LOSSES.values():
        return
    d, n = (min(*sizes) for sizes in zip(table.shape, (_FEATURES, _SAMPLES), strict=True))
    x = table.shifted[:d, :n]
    low, high = table.low[:d], table.high[:d]
    span = np.where(high > low, high - low, np.maximum(np.abs(high), table.guard[:d]))
    span = np.where(span > 0.0, span, 1.0)
    part = 0.05 + 0.9 * (GOLDEN * np.arange(1, x.size + 1).reshape(x.shape) % 1.0)
    m = low + span * part + table.guard[:d]
    values = try_loss(loss, x, m, np.broadcast_to(span, x.shape), parameter="divergence")
    if values.min() < -_ROUNDING * np.abs(values).max():
        message = (
            f"value(x, m) of divergence={loss!r} is {values.min():.3g} for some entry; a "
            "divergence is zero where x and m agree and never negative."
        )
        raise InvalidInputError(message)
