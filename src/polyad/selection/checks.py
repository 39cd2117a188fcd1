"""Checks of everything that is given to a choice of the rank, before the first fit."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.utils import get_tags

from polyad.core.arrays import namespace_of
from polyad.core.sklearn_compat import count_samples
from polyad.data.label_values import in_order_of
from polyad.data.readers import sample_access
from polyad.data.validation import as_tensor_input
from polyad.estimators.kruskal import KruskalResult
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.selection.result import MEASURES
from polyad.selection.tasks import subsample_size
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from polyad.data.readers import TensorInput


def read_methods(method: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the methods, each once."""
    try:
        methods = (method,) if isinstance(method, str) else tuple(dict.fromkeys(method))
    except TypeError as error:
        message = f"method={method!r} is not a name or a list of names; give for example 'heldout'."
        raise InvalidTypeError(message) from error
    unknown = [name for name in methods if name not in MEASURES]
    if unknown or not methods:
        given = repr(unknown[0]) if unknown else "an empty list"
        message = f"method is {given}; give one or more of {', '.join(map(repr, MEASURES))}."
        raise InvalidInputError(message)
    return methods


def read_ranks(ranks: Iterable[int] | str) -> list[int]:
    """Return the numbers of components to try, sorted, each once."""
    if isinstance(ranks, str):
        message = f"ranks={ranks!r} has no meaning; give 'auto', or numbers such as range(1, 6)."
        raise InvalidInputError(message)
    try:
        given = list(ranks)
    except TypeError as error:
        message = f"ranks={ranks!r} is not a list of numbers; give range(1, 6), or 'auto'."
        raise InvalidTypeError(message) from error
    if not given:
        message = "ranks is empty; give the numbers of components to try, for example range(1, 6)."
        raise InvalidInputError(message)
    for rank in given:
        if not isinstance(rank, Integral) or isinstance(rank, bool):
            message = f"ranks has {rank!r}, a {type(rank).__name__}; whole numbers are needed."
            raise InvalidTypeError(message)
        if rank < 1:
            message = f"ranks has {rank}; a decomposition has 1 component or more."
            raise InvalidInputError(message)
    return sorted({int(rank) for rank in given})


def check_shares(**shares: float) -> None:
    """Refuse shares outside 0 and 1."""
    for name, share in shares.items():
        if not isinstance(share, Real) or not 0 < share < 1:
            message = f"{name}={share!r} is not a share; give a number above 0 and below 1."
            raise InvalidInputError(message)


def check_thresholds(**thresholds: float) -> None:
    """Refuse thresholds that are no numbers."""
    for name, threshold in thresholds.items():
        if not isinstance(threshold, Real) or math.isnan(threshold):
            message = f"{name}={threshold!r} is not a number; see select_rank for its meaning."
            raise InvalidInputError(message)


def check_sizes(*, n_repeats: int, zeros_per_entry: float) -> None:
    """Refuse numbers that are too small."""
    if not isinstance(n_repeats, Integral) or isinstance(n_repeats, bool) or n_repeats < 2:
        message = f"n_repeats={n_repeats!r} gives no standard error; give 2 or more."
        raise InvalidInputError(message)
    if not isinstance(zeros_per_entry, Real) or not 0 < zeros_per_entry < math.inf:
        message = f"zeros_per_entry={zeros_per_entry!r} must be a positive number."
        raise InvalidInputError(message)


def read_estimator(estimator: Any) -> KruskalResult:
    """Return a clone that shows nothing and writes nothing."""
    is_class = isinstance(estimator, type)
    scores_samples = getattr(estimator, "_scores_samples", False)
    if is_class or not (isinstance(estimator, KruskalResult) or scores_samples):
        given = f"the class {estimator.__name__}" if is_class else f"a {type(estimator).__name__}"
        message = (
            f"estimator is {given}; an estimator of polyad is needed, for example polyad.CP()."
        )
        raise InvalidTypeError(message)
    parameters = estimator.get_params(deep=False)
    if "n_components" not in parameters:
        message = f"{type(estimator).__name__} has no n_components to choose."
        raise InvalidTypeError(message)
    if not isinstance(parameters.get("init", "random"), str):
        message = (
            "init holds factors, which have a number of components already. Choose the rank with "
            "init='svd' or 'random'."
        )
        raise InvalidInputError(message)
    prepared: KruskalResult = clone(estimator)
    # Fits of one file, or that go on from each other, would not be fits of their own.
    quiet = {"verbose": 0, "checkpoint": None, "warm_start": False}
    prepared.set_params(**{k: v for k, v in quiet.items() if k in parameters})
    return prepared


def check_data(
    estimator: KruskalResult,
    X: Any,
    ranks: Sequence[int],
    methods: Sequence[str],
    subsample: float,
) -> TensorInput:
    """Return the data as fits take it, or say why a method cannot work on it."""
    if estimator._reads_batches and sample_access(X) == "batches":
        message = (
            f"X is a {type(X).__name__}, which {type(estimator).__name__} reads batch by batch; a "
            "choice of the rank hides entries and leaves out samples of all of them. Give one "
            "array, such as np.concatenate(list(batches))."
        )
        raise InvalidTypeError(message)
    if estimator._scores_samples:
        return _check_samples(estimator, X, methods, subsample)
    takes_nan = bool(get_tags(estimator).input_tags.allow_nan)
    given = as_tensor_input(X, allow_nan=takes_nan)
    data, missing = given.data, getattr(estimator, "missing", "zero")
    if isinstance(data, coo_array):
        data = canonicalize(data)
        if missing == "zero":
            data = _without_zeros(data)
    _check_ranks(ranks, given.shape)
    if "stability" in methods:
        kept = subsample_size(given.shape[0], subsample)
        if kept < 2:
            message = (
                f"subsample={subsample} of {given.shape[0]} samples leaves {kept}; stability needs "
                "2 or more. Give a larger share, or method='heldout'."
            )
            raise InvalidInputError(message)
        _check_ranks(ranks, (kept, *given.shape[1:]))
    if "core_consistency" in methods:
        _check_complete(data, missing)
        _check_models_the_data(estimator)
    if "heldout" in methods:
        _check_heldout(estimator, data, takes_nan=takes_nan)
    return replace(given, data=data)


def _check_samples(estimator: Any, X: Any, methods: Sequence[str], subsample: float) -> TensorInput:
    """Return the data of a model that samples are held out from."""
    given: TensorInput = estimator._open(X, None)
    if "core_consistency" in methods:
        message = (
            "method='core_consistency' is for sums of components, which "
            f"{type(estimator).__name__} does not learn. Use method='heldout' or 'stability'."
        )
        raise InvalidInputError(message)
    if subsample_size(given.shape[0], subsample) < 2 or given.shape[0] < 3:
        message = f"X has {given.shape[0]} samples, too few to leave some out: give more."
        raise InvalidInputError(message)
    return given


def read_classes(y: Any, given: TensorInput) -> Any:
    """Return the classes of the samples in the order of these, as a fit would, without labels.

    The index of a part of a Series that goes by position would be taken for labels.
    """
    if y is None:
        return None
    y = in_order_of(y, given.labels[0])
    _check_length(y, given.shape[0])
    return np.asarray(y) if hasattr(y, "iloc") else y


def _check_length(y: Any, n_samples: int) -> None:
    """Refuse labels that are not one per sample."""
    try:
        n_labels = count_samples(y)
    except TypeError as error:
        message = f"y is a {type(y).__name__}; give one label per sample, or None."
        raise InvalidTypeError(message) from error
    if n_labels != n_samples:
        message = f"y has {n_labels} labels, X has {n_samples} samples; give one per sample."
        raise InvalidInputError(message)


def _without_zeros(data: coo_array[Any, Any]) -> coo_array[Any, Any]:
    """Leave out stored zeros, which are zeros like those that are not stored."""
    kept = data.data != 0
    if kept.all():
        return data
    coords = tuple(row[kept] for row in data.coords)
    return canonicalize(coo_array((data.data[kept], coords), shape=data.shape))


def largest_rank(
    estimator: Any, shape: tuple[int, ...], methods: Sequence[str], subsample: float
) -> int:
    """Return the largest number of components that can be tried."""
    if estimator._scores_samples:
        return shape[0]
    n_samples = subsample_size(shape[0], subsample) if "stability" in methods else shape[0]
    sizes = (n_samples, *shape[1:])
    return math.prod(sizes) // max(sizes)


def _check_ranks(ranks: Sequence[int], shape: tuple[int, ...]) -> None:
    limit = math.prod(shape) // max(shape)
    if max(ranks) > limit:
        message = (
            f"ranks has {max(ranks)}, too many: a tensor of shape {shape} has rank at most "
            f"{limit}, the product of all sizes but the largest. Leave larger ranks out."
        )
        raise InvalidInputError(message)


def _check_complete(data: Any, missing: str) -> None:
    if data.ndim < 3:
        message = (
            f"method='core_consistency' needs 3 modes or more, X has {data.ndim}: for a matrix it "
            "is 100 for every rank. Use method='heldout'."
        )
        raise InvalidInputError(message)
    if isinstance(data, coo_array):
        is_complete = missing == "zero"
    else:
        xp = namespace_of(data)
        is_complete = not bool(xp.any(xp.isnan(data)))
    if not is_complete:
        message = (
            "method='core_consistency' needs complete data, and X has missing entries. Use "
            "method='heldout' or 'stability'."
        )
        raise InvalidInputError(message)


def _check_models_the_data(estimator: KruskalResult) -> None:
    some = np.asarray([0.25, 2.0])
    if not np.array_equal(estimator._entry_fill(some), some):
        message = (
            f"method='core_consistency' compares the components with the data, but those of this "
            f"{type(estimator).__name__} model a function of its mean. Use method='heldout' or "
            "'stability'."
        )
        raise InvalidInputError(message)


def _check_heldout(estimator: KruskalResult, data: Any, *, takes_nan: bool) -> None:
    if isinstance(data, coo_array):
        if data.nnz < 2:
            message = f"X has {data.nnz} entries that are not zero; 2 or more are needed."
            raise InvalidInputError(message)
        is_open = getattr(estimator, "missing", "zero") == "zero"
        if is_open and np.isnan(estimator._entry_fill(np.asarray([0.25, 2.0]))).any():
            message = (
                "method='heldout' fills hidden cells of sparse data with what the model expects "
                f"there, and this {type(estimator).__name__} takes no such numbers. Give dense "
                "data, sparse data with missing='unobserved', or method='stability'."
            )
            raise InvalidInputError(message)
        return
    if not takes_nan:
        others = "'stability'" if data.ndim < 3 else "'stability' or 'core_consistency'"
        message = (
            f"{type(estimator).__name__} takes no missing entries, so that none of dense data can "
            f"be held out. Use method={others}."
        )
        raise InvalidInputError(message)
