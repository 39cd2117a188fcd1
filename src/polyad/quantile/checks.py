"""What the quantile factorizations accept, and what they warn of."""

from __future__ import annotations

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

    from polyad.data.validation import TensorInput
    from polyad.losses import Loss
    from polyad.quantile.features import FeatureTable

# Half of the features hardly count if they have less than this part of the divergence of the data
# from the means of its features. Fewer features than this have no halves to speak of.
_WEAK, _FEW = 1e-5, 4
# Features and samples that a divergence is tried on, and the part of the largest value that a
# negative one may have.
_FEATURES, _SAMPLES = 16, 32
_ROUNDING = 1e-3


def read_divergence(divergence: Any) -> Loss:
    """Return the loss that compares entries with model values, which are of the same unit."""
    loss = read_loss(divergence, "divergence")
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
