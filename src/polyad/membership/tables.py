"""Tables of samples as they are given: of numbers, or with columns of any kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.data.readers import TensorInput, pandas_labels
from polyad.data.validation import as_tensor_input
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.membership.variables import LARGEST_WHOLE, Columns


def opened_table(X: Any, mask: Any, *, is_new: bool) -> TensorInput:
    """Return samples as a matrix of numbers or as columns of any kind, with their labels."""
    if isinstance(X, Columns):
        X = TensorInput(X, None, (None, None))
    if isinstance(X, TensorInput) and isinstance(X.data, Columns):
        return _checked(X, mask)
    package = type(X).__module__.partition(".")[0]
    labels: tuple[Any, Any] = (None, None)
    if package in ("pandas", "polars") and type(X).__name__ == "DataFrame" and X.shape[1]:
        is_pandas = package == "pandas"
        if is_pandas and not X.columns.is_unique:
            return as_tensor_input(X)  # which refuses that
        labels = pandas_labels(X) if is_pandas else (None, np.asarray(X.columns, dtype=str))
        each = [X.iloc[:, j] if is_pandas else X[:, j].to_numpy() for j in range(X.shape[1])]
        return _checked(TensorInput(Columns(each, mask), None, labels), mask)
    if isinstance(X, (list, tuple)) and len(X) and not hasattr(X[0], "shape"):
        X = _as_array(X)
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.size and X.dtype.kind in "OUTMmbiu":
        if mask is None and X.dtype.kind in "biu":
            return TensorInput(X, None, labels)
        if X.dtype.kind != "O" or _has_text(X):
            each = [X[:, j] for j in range(X.shape[1])]
            return _checked(TensorInput(Columns(each, mask), None, labels), mask)
    given = as_tensor_input(X, allow_nan=True, mask=mask, is_new=is_new)
    if given.is_sparse:
        message = (
            "Sparse data is not taken: zeros of a table are values as any other. Give X.toarray()."
        )
        raise InvalidTypeError(message)
    if len(given.shape) != 2:
        message = f"X has {len(given.shape)} modes; give a table of samples x columns."
        raise InvalidInputError(message)
    return (
        given if isinstance(given.data, np.ndarray) else replace(given, data=to_numpy(given.data))
    )


def _as_array(rows: Any) -> np.ndarray:
    """Return lists of rows as an array, of objects if they have what is no number."""
    try:
        return np.asarray(rows, dtype=object if _has_text(rows) else None)
    except ValueError as error:
        message = "The rows of X have different lengths; give as many entries in each."
        raise InvalidInputError(message) from error


def _has_text(X: Any) -> bool:
    """Say whether a table of objects has what is no number, or is none in floating point."""
    return any(
        isinstance(item, (str, bool, np.bool_))
        or (isinstance(item, int) and abs(item) >= LARGEST_WHOLE)
        for row in X
        for item in np.ravel(row)
    )


def _checked(given: TensorInput, mask: Any) -> TensorInput:
    """Refuse tables without rows, and masks of another shape."""
    if not given.shape[0]:
        return as_tensor_input(np.empty(given.shape))  # which refuses that
    if mask is None:
        return given
    observed = np.asarray(mask)
    if observed.dtype != bool or observed.shape != given.shape:
        message = (
            f"mask has the type {observed.dtype} and the shape {observed.shape}; give True and "
            f"False in the shape of X, {given.shape}."
        )
        raise InvalidInputError(message)
    return replace(given, data=Columns(given.data.each, observed))


def column_names(given: TensorInput) -> list[Any]:
    """Return the names of columns, or their positions."""
    names = given.labels[1]
    return list(range(given.shape[1])) if names is None else [str(name) for name in names]
