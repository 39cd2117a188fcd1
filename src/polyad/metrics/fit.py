"""How close a decomposition is to its data: squared error and Poisson deviance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import rel_entr

from polyad.exceptions import InvalidInputError
from polyad.metrics.reading import Comparison, compare
from polyad.tensor.alignment import normalize_components

if TYPE_CHECKING:
    from polyad.data.validation import Missing


def explained_variation(X: Any, model: Any, *, missing: Missing | None = None) -> float:
    """Return 1 minus the squared error over the sum of squares of the data; 1 is perfect.

    Parameters
    ----------
    X : tensor-like
        The data, of the shape of the model. Missing entries (NaN) do not count.
    model : fitted estimator, KruskalTensor or (weights, factors)
        The decomposition.
    missing : {'zero', 'unobserved'}, optional
        What an entry that sparse data does not store means; by default as in the estimator, or
        ``'zero'``.

    Returns
    -------
    float
        Can be negative. For data of zeros, 1 if the model is zero too and 0 otherwise.

    Notes
    -----
    Dense data is compared in blocks. Sparse data is not made dense: the error over all cells is
    ``|X|² - 2 <X, model> + |model|²``, exact to about 1e-16 times the sum of squares.

    Examples
    --------
    >>> from polyad.datasets import make_low_rank
    >>> from polyad.metrics import explained_variation
    >>> X, truth = make_low_rank((8, 7, 6), 2, noise=0.1, random_state=0)
    >>> round(explained_variation(X, truth), 2)
    0.99
    """
    error, total = _squares(compare(X, model, missing=missing))
    if total == 0:
        return 1.0 if error == 0 else 0.0
    return 1.0 - error / total


def relative_error(X: Any, model: Any, *, missing: Missing | None = None) -> float:
    """Return the norm of the residual over the norm of the data; 0 is perfect.

    Parameters
    ----------
    X : tensor-like
        The data, of the shape of the model. Missing entries (NaN) do not count.
    model : fitted estimator, KruskalTensor or (weights, factors)
        The decomposition.
    missing : {'zero', 'unobserved'}, optional
        What an entry that sparse data does not store means; by default as in the estimator, or
        ``'zero'``.

    Returns
    -------
    float
        The root of 1 minus :func:`explained_variation`. For data of zeros, 0 or infinity.

    Examples
    --------
    >>> from polyad.datasets import make_low_rank
    >>> from polyad.metrics import relative_error
    >>> X, truth = make_low_rank((8, 7, 6), 2, noise=0.1, random_state=0)
    >>> round(relative_error(X, truth), 1)
    0.1
    """
    error, total = _squares(compare(X, model, missing=missing))
    if total == 0:
        return 0.0 if error == 0 else math.inf
    return math.sqrt(error / total)


def poisson_deviance(X: Any, model: Any, *, missing: Missing | None = None) -> float:
    r"""Return the Poisson deviance of counts from a model of their means; 0 is perfect.

    .. math:: 2 \sum_i \big( x_i \log (x_i / m_i) - x_i + m_i \big)

    A zero of the data adds :math:`2 m_i`. Where the model is zero and the data is not, the
    deviance is infinite.

    Parameters
    ----------
    X : tensor-like
        Data without negative entries, of the shape of the model. Missing entries (NaN) do not
        count.
    model : fitted estimator, KruskalTensor or (weights, factors)
        The decomposition; its entries are the expected counts and may not be negative. For
        sparse data with implied zeros the factors may not be negative either, up to signs that
        cancel, because only then is this known without visiting every cell.
    missing : {'zero', 'unobserved'}, optional
        What an entry that sparse data does not store means; by default as in the estimator, or
        ``'zero'``.

    Returns
    -------
    float
        Never NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import KruskalTensor
    >>> from polyad.metrics import poisson_deviance
    >>> means = KruskalTensor(np.ones(1), [np.array([[1.0], [2.0]]), np.array([[1.0], [0.0]])])
    >>> poisson_deviance(np.array([[1.0, 0.0], [2.0, 0.0]]), means)
    0.0
    >>> poisson_deviance(np.array([[1.0, 3.0], [2.0, 0.0]]), means)
    inf
    """
    pair = compare(X, model, missing=missing)
    if pair.has_implied_zeros:
        return _sparse_deviance(pair)
    return math.fsum(_deviance(values, expected) for values, expected in pair.observed_blocks())


def _squares(pair: Comparison) -> tuple[float, float]:
    """Return the squared error and the sum of squares."""
    if pair.has_implied_zeros:
        total, model = pair.stored().norm_squared(), pair.model
        inner = model.inner(pair.stored())
        return max(0.0, total - 2.0 * inner + model.inner(model)), total
    errors, totals = [], []
    for values, expected in pair.observed_blocks():
        errors.append(float(np.sum((values - expected) ** 2)))
        totals.append(float(np.sum(values**2)))
    return math.fsum(errors), math.fsum(totals)


def _sparse_deviance(pair: Comparison) -> float:
    """Sum over the stored entries, and the model over all cells by the sums of its columns."""
    model = normalize_components(pair.model)
    # A component of weight zero adds nothing, whatever its columns.
    used = model.weights > 0
    lowest = min(float(factor[:, used].min(initial=0.0)) for factor in model.factors)
    if lowest < 0:
        message = (
            f"A factor has the negative entry {lowest:.3g} (columns scaled to length one). The "
            "expected counts of a Poisson model are not negative: use a nonnegative decomposition."
        )
        raise InvalidInputError(message)
    stored = pair.stored()
    _check_counts(stored.values)
    expected = stored.values_of(model.absorbed())
    sums = model.weights
    for factor in model.factors:
        sums = sums * factor.sum(axis=0)
    everywhere = float(sums.sum())
    at_stored = float(np.sum(rel_entr(stored.values, expected) - stored.values))
    return max(0.0, 2.0 * (at_stored + everywhere))


def _deviance(values: np.ndarray, expected: np.ndarray) -> float:
    _check_counts(values)
    if expected.size and expected.min() < 0:
        message = (
            f"The model has the negative entry {expected.min():.3g}. The expected counts of a "
            "Poisson model are not negative: use a nonnegative decomposition."
        )
        raise InvalidInputError(message)
    terms = rel_entr(values, expected) - values + expected
    # Each term is a distance; rounding can make a perfect one slightly negative.
    return 2.0 * float(np.sum(np.maximum(terms, 0.0)))


def _check_counts(values: np.ndarray) -> None:
    if values.size and values.min() < 0:
        message = (
            f"The data has the negative entry {values.min():.3g}; the Poisson deviance is for "
            "counts and other data that is not negative. Use explained_variation instead."
        )
        raise InvalidInputError(message)
