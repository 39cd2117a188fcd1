"""What the quantile factorizations accept, and what they warn of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.arrays import to_numpy
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.quantile.divergence import needs_positive
from polyad.validation import first_position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from polyad.quantile.features import FeatureTable
    from polyad.validation import TensorInput

# Half of the features hardly count if they have less than this part of the divergence of the data
# from the means of its features. Fewer features than this have no halves to speak of.
_WEAK, _FEW = 1e-5, 4


def read_matrix(given: TensorInput, divergence: Any, estimator: str) -> NDArray[Any]:
    """Return data as an array of samples and features, and refuse what is no such thing.

    Parameters
    ----------
    given : TensorInput
        The data.
    divergence : Divergence
        Which may not take negative numbers.
    estimator : str
        The name of the estimator.
    """
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
    data = np.asarray(to_numpy(given.data))
    negative = data < 0
    if needs_positive(divergence) and negative.any():
        message = (
            f"Negative values in data passed to {estimator}, first at "
            f"{first_position(given, negative)}: its divergence compares numbers that are not "
            "negative. Use divergence='frobenius', or shift the data."
        )
        raise InvalidInputError(message)
    return data


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
