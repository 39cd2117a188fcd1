"""How good a decomposition is: squared error, Poisson deviance, core consistency (CORCONDIA).

The core is computed by one contraction per mode with the pseudo-inverse of its factor, the first
in one pass over the data. Of sparse data only the nonzeros are visited, in blocks whose size
bounds the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device
from scipy.special import rel_entr

from polyad.core.arrays import namespace_of, to_numpy
from polyad.core.threads import as_slices, current_threads, cut, thread_limit
from polyad.data.label_values import find_labels, shown
from polyad.data.validation import as_tensor_input
from polyad.estimators.kruskal import KruskalResult
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.alignment import normalize_components
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.products import project
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing

# Cells of a dense tensor that are compared with the model at a time (32 MiB of float64).
_CELLS_AT_A_TIME = 1 << 22
# Numbers in the largest array that is made for a block of nonzeros (16 MiB), and in the core.
_BLOCK = 1 << 21
_LARGEST_CORE = 1 << 27


@dataclass(frozen=True)
class Comparison:
    """Data next to a model of the same shape."""

    #: The data.
    given: TensorInput
    #: In NumPy arrays of float64.
    model: KruskalTensor
    #: What an entry that sparse data does not store means.
    missing: Missing

    @property
    def has_implied_zeros(self) -> bool:
        """Whether the data holds more entries than it stores: zeros."""
        return self.given.is_sparse and self.missing == "zero"

    def stored(self) -> SparseTensor:
        """Return sparse data, each coordinate once, in float64."""
        return SparseTensor(self.given.data.astype(np.float64))

    def observed_blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield observed entries of the data and of the model, a block at a time.

        Of sparse data these are the stored entries.
        """
        if self.given.is_sparse:
            stored = self.stored()
            yield stored.values, stored.values_of(self.model.absorbed())
            return
        data, factors = self.given.data, self.model.absorbed()
        rows = max(1, _CELLS_AT_A_TIME * data.shape[0] // int(np.prod(data.shape, dtype=float)))
        ones = np.ones(self.model.n_components)
        for block in as_slices(cut(data.shape[0], rows)):
            values = to_numpy(data[block]).astype(np.float64)
            part = KruskalTensor(ones, [factors[0][block], *factors[1:]])
            expected = part.to_dense()
            known = ~np.isnan(values)
            yield values[known], expected[known]


def compare(X: Any, model: Any, *, missing: Missing | None = None) -> Comparison:
    """Read data and a model of it: a fitted estimator, KruskalTensor or (weights, factors).

    Labelled data is brought into the order that it had in the fit. ``missing`` is by default that
    of the estimator, or ``'zero'``.
    """
    given = as_tensor_input(X, allow_nan=True)
    if missing is None:
        missing = getattr(model, "missing", "zero")
    if missing not in ("zero", "unobserved"):
        message = f"missing={missing!r} is not known; give 'zero' or 'unobserved'."
        raise InvalidInputError(message)
    kruskal = read_kruskal(model)
    if isinstance(model, KruskalResult) and not model._values_are_means:
        message = (
            f"The products of the factors of this {type(model).__name__} are not means of the data "
            "but, for example, odds, logarithms, or numbers that go through learned transforms. "
            f"They cannot be compared with the data. model.score(X) is the {model._score_name}; "
            "model.inverse_transform(model.transform(X)) are the means."
        )
        raise InvalidInputError(message)
    if isinstance(model, KruskalResult) and len(given.shape) == kruskal.ndim:
        given = _samples_in_the_order_of(model, model._aligned(given))
    if kruskal.shape != given.shape:
        message = (
            f"X has the shape {given.shape}, but the model is of shape {kruskal.shape}. Give the "
            "data that the model was fitted to; new samples have features of their own "
            "(model.transform), which make KruskalTensor(ones, [features, *model.factors_[1:]])."
        )
        raise InvalidInputError(message)
    return Comparison(given, kruskal, missing)


def _samples_in_the_order_of(model: KruskalResult, given: TensorInput) -> TensorInput:
    """Bring labelled samples into the order that they had in the fit, as ``_aligned`` the rest."""
    mine, theirs = model.labels_[0], given.labels[0]
    if mine is None or theirs is None or np.array_equal(mine, theirs):
        return given
    if len(np.unique(theirs)) < len(theirs) or len(mine) != len(theirs):
        return given  # without one row per label the place is all that there is
    place = find_labels(theirs, mine)
    if (place < 0).any():
        message = (
            f"X lacks {np.sum(place < 0)} of the samples that the model was fitted to: "
            f"{shown(mine[place < 0])}. Give the data of the fit; new samples have features of "
            "their own (model.transform)."
        )
        raise InvalidInputError(message)
    return given.take_samples(place)


def read_kruskal(model: Any) -> KruskalTensor:
    """Return the decomposition of an estimator, or the one given, in NumPy arrays of float64."""
    kruskal = model.kruskal_ if hasattr(type(model), "kruskal_") else model
    try:
        weights, factors = kruskal
        if weights is None:  # TensorLy leaves out weights that are all one
            weights = np.ones(factors[0].shape[1])
        return KruskalTensor(
            to_numpy(weights).astype(np.float64),
            [to_numpy(factor).astype(np.float64) for factor in factors],
        )
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, InvalidInputError):
            raise
        message = (
            f"The model is a {type(model).__name__}; a fitted estimator of polyad, a KruskalTensor "
            "or a pair (weights, factors) is needed."
        )
        raise InvalidTypeError(message) from error


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


def core_consistency(X: Any, model: Any) -> float:
    r"""Return the core consistency in percent: 100 if no component interacts with another.

    The Tucker core :math:`G` that fits the data best with the factors of the model is compared
    with the one that CP assumes, ones on the superdiagonal and zeros elsewhere:

    .. math:: 100 \Big(1 - \frac{1}{R} \sum_{pq\ldots} (g_{pq\ldots} - \delta_{pq\ldots})^2\Big)

    Near 100 the components explain the data as they claim. With more components than the data
    holds they share what is there and it falls, often far below zero. It tells of too many
    components, not of too few: with one component it is always about 100. A component that fits
    nothing but noise, apart from all others, is not seen by it.

    Parameters
    ----------
    X : tensor-like of order 3 or more
        Complete data, of the shape of the model. Entries that sparse data does not store are zero.
    model : fitted estimator, KruskalTensor or (weights, factors)
        The decomposition.

    Returns
    -------
    float
        At most 100.

    Notes
    -----
    The weight of a component is shared evenly by its columns, so that the result does not depend
    on the scaling of the factors. Costs one pass over dense data with `R` components, and
    ``O(nnz · R**order)`` for sparse data, which is never made dense. Data of order 2 is refused:
    with the least-squares factors of a matrix the core is always the identity, whatever the rank.

    References
    ----------
    R. Bro, H. A. L. Kiers, "A new efficient method for determining the number of components in
    PARAFAC models", Journal of Chemometrics 17 (2003), doi:10.1002/cem.801.

    Examples
    --------
    >>> from polyad.datasets import make_low_rank
    >>> from polyad.metrics import core_consistency
    >>> X, truth = make_low_rank((8, 7, 6), 2, random_state=0)
    >>> round(core_consistency(X, truth), 6)
    100.0
    """
    pair = compare(X, model, missing="zero")
    rank, order = pair.model.n_components, pair.model.ndim
    _check(pair, rank, order)
    if pair.given.is_sparse and getattr(model, "missing", "zero") == "unobserved":
        message = (
            "The model was fitted to unobserved entries (missing='unobserved'); core consistency "
            "is for complete data. Use held-out entries to choose the rank."
        )
        raise InvalidInputError(message)
    # The same number of threads in the linear algebra gives the same rounding anywhere.
    with thread_limit(current_threads()):
        inverses = [np.linalg.pinv(factor) for factor in _balanced(pair.model)]
        core = _sparse_core(pair, inverses) if pair.given.is_sparse else _dense_core(pair, inverses)
    core[(np.arange(rank),) * order] -= 1.0
    return 100.0 * (1.0 - float(np.sum(core**2)) / rank)


def _check(pair: Comparison, rank: int, order: int) -> None:
    if order < 3:
        message = (
            f"X has {order} modes; core consistency needs 3 or more. The best low-rank "
            "approximation of a matrix has a core consistency of 100 for any rank: use held-out "
            "entries (polyad.selection.select_rank with method='heldout')."
        )
        raise InvalidInputError(message)
    if rank**order > _LARGEST_CORE:
        message = (
            f"The core of {rank} components and {order} modes has {rank**order} entries; at most "
            f"{_LARGEST_CORE} are computed. Core consistency is a tool for few components."
        )
        raise InvalidInputError(message)
    if not pair.given.is_sparse:
        xp = namespace_of(pair.given.data)
        if bool(xp.any(xp.isnan(pair.given.data))):
            message = (
                "X has missing entries (NaN); core consistency is for complete data. Fill them "
                "with the model first, or use held-out entries to choose the rank."
            )
            raise InvalidInputError(message)


def _balanced(model: KruskalTensor) -> list[NDArray[Any]]:
    """Return factors whose columns have the same length in each mode and hold the weights."""
    unit = model.normalized()
    share = np.abs(unit.weights) ** (1.0 / model.ndim)
    factors = [factor * share for factor in unit.factors]
    factors[0] = factors[0] * np.where(unit.weights < 0, -1.0, 1.0)
    return factors


def _dense_core(pair: Comparison, inverses: list[NDArray[Any]]) -> NDArray[Any]:
    """Contract the first mode in the memory of the data, then the small rest in NumPy."""
    data = pair.given.data
    xp = namespace_of(data)
    shape = pair.given.shape
    basis = xp.asarray(inverses[0].T, dtype=data.dtype, device=device(data))
    matrix = xp.reshape(data, (shape[0], -1))
    core = to_numpy(project(matrix.T, basis)).astype(np.float64)
    core = core.reshape(-1, *shape[1:])
    for inverse in inverses[1:]:
        # The mode in place 1 goes to the end: after all of them the order is that of the modes.
        core = np.tensordot(core, inverse, axes=([1], [1]))
    return core


def _sparse_core(pair: Comparison, inverses: list[NDArray[Any]]) -> NDArray[Any]:
    """Add up the outer products of the columns of the pseudo-inverses over the nonzeros."""
    stored = pair.stored()
    rank, order = inverses[0].shape[0], len(inverses)
    rows = [np.ascontiguousarray(inverse.T) for inverse in inverses]
    core = np.zeros((rank ** (order - 1), rank))
    step = max(1, _BLOCK // rank ** (order - 1))
    for chosen in as_slices(cut(stored.nnz, step)):
        outer = stored.values[chosen, None]
        for mode in range(order - 1):
            picked = rows[mode][stored.coords[mode][chosen]]
            outer = (outer[:, :, None] * picked[:, None, :]).reshape(len(outer), -1)
        core += outer.T @ rows[-1][stored.coords[-1][chosen]]
    return core.reshape((rank,) * order)
