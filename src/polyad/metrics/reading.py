"""Bring data and the model that is compared with it to one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device

from polyad.core.arrays import to_numpy
from polyad.core.blocks import as_slices, cut
from polyad.data.entries import pick_entries
from polyad.data.label_values import find_labels, shown
from polyad.data.validation import TensorInput, as_tensor_input
from polyad.estimators.kruskal import KruskalResult
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polyad.data.validation import Missing

# Cells of a dense tensor that are compared with the model at a time (32 MiB of float64).
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Comparison:
    """Data next to a model of the same shape.

    Attributes
    ----------
    given : TensorInput
        The data.
    model : KruskalTensor
        In NumPy arrays of float64.
    missing : {'zero', 'unobserved'}
        What an entry that sparse data does not store means.
    """

    given: TensorInput
    model: KruskalTensor
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
        rows = max(1, _BLOCK * data.shape[0] // int(np.prod(data.shape, dtype=float)))
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
    data = given.data
    if given.is_sparse:
        data = pick_entries(data, {0: place})
    else:
        xp = array_namespace(data)
        data = xp.take(data, xp.asarray(place, device=device(data)), axis=0)
    return TensorInput(data, given.modes, (mine, *given.labels[1:]))


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
