"""What the quantile factorizations accept, and what they warn of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.data.validation import refuse_negative
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.losses.checks import try_function
from polyad.quantile.divergence import Frobenius, KullbackLeibler, needs_positive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from polyad.data.validation import TensorInput
    from polyad.quantile.features import FeatureTable

# Half of the features hardly count if they have less than this part of the divergence of the data
# from the means of its features. Fewer features than this have no halves to speak of.
_WEAK, _FEW = 1e-5, 4
# Features and samples that a divergence is tried on; how far differences are taken, as a part of
# the range of a feature. They are known to a part of the largest derivative, but not where there is
# a corner, so that most of them must be wrong.
_FEATURES, _SAMPLES = 16, 32
_STEP, _CLOSE, _MOST = 1e-6, 1e-3, 0.5
# Golden section: model values all over the range of a feature.
_GOLDEN = 0.6180339887498949


def read_matrix(given: TensorInput, divergence: Any, estimator: str) -> NDArray[Any]:
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
    if needs_positive(divergence):
        advice = (
            f"The divergence of {estimator} compares numbers that are not negative. Use "
            "divergence='frobenius', or shift the data."
        )
        refuse_negative(given, advice)
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


def check_divergence(divergence: Any, table: FeatureTable) -> None:
    """Try a divergence of one's own on a few entries, and refuse it if it is none."""
    if type(divergence) in (KullbackLeibler, Frobenius):
        return
    d, n = (min(*sizes) for sizes in zip(table.shape, (_FEATURES, _SAMPLES), strict=True))
    x = table.shifted[:d, :n]
    low, high = table.low[:d], table.high[:d]
    span = np.where(high > low, high - low, np.maximum(np.abs(high), table.guard[:d]))
    span = np.where(span > 0.0, span, 1.0)
    part = 0.05 + 0.9 * (_GOLDEN * np.arange(1, x.size + 1).reshape(x.shape) % 1.0)
    y = low + span * part + table.guard[:d]
    values = _tried(divergence, "value", x, y)
    if values.min() < -_CLOSE * np.abs(values).max():
        message = (
            f"value(x, y) of divergence={divergence!r} is {values.min():.3g} for some entry; a "
            "divergence is zero where x and y agree and never negative."
        )
        raise InvalidInputError(message)
    slopes = _tried(divergence, "derivative", x, y)
    step = _STEP * span
    up, down = (_tried(divergence, "value", x, y + way) for way in (step, -step))
    differences = (up - down) / (2.0 * step)
    largest = np.maximum(np.abs(differences), np.abs(slopes)).max(axis=1, keepdims=True)
    rounding = 8.0 * np.finfo(np.float64).eps * np.abs(values).max(axis=1, keepdims=True) / step
    wrong = float((np.abs(differences - slopes) > _CLOSE * largest + rounding).mean())
    if wrong > _MOST:
        message = (
            f"derivative(x, y) of divergence={divergence!r} is not the derivative of value(x, y) "
            f"with respect to y: differences of the value give other numbers for {wrong:.0%} of "
            "the entries that were tried."
        )
        raise InvalidInputError(message)


def _tried(divergence: Any, name: str, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Return what a method of a divergence gives for some entries, if that can be used."""
    title = f"{name}(x, y) of divergence={divergence!r}"
    found = try_function(getattr(divergence, name), title, (x, y))
    if not np.isfinite(found).all():
        message = f"{title} is {found[~np.isfinite(found)][0]} for some entry."
        if not needs_positive(divergence):
            message += " If it needs positive numbers, give it an attribute needs_positive = True."
        raise InvalidInputError(message)
    return found
