"""Similarities that a user gives: checked, matched by label, brought to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from polyad.cp.similarity.laplacian import Laplacian, is_sparse
from polyad.cp.similarity.profiles import NAMES, laplacian_of_data
from polyad.data.label_values import as_labels, find_labels, shown
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from polyad.data.validation import TensorInput

# Asymmetry below this part of the largest similarity is rounding, and is averaged away.
_ROUNDING = 1e-6

_ACCEPTED = (
    "Give 'cosine' or 'presence' for all modes but the samples, or a list with one entry per mode, "
    "or a dict from modes to entries. An entry is None, one of these names, or a square matrix "
    "(array, scipy.sparse or labelled pandas table) of nonnegative similarities."
)


def read_similarities(given: TensorInput, similarities: Any) -> dict[int, Laplacian]:
    """Return the Laplacian of each mode that has similarities.

    Parameters
    ----------
    given : TensorInput
        The data.
    similarities : str, sequence, dict or None
        What the user gave.
    """
    found = {}
    for mode, entry in _entries(given, similarities).items():
        if entry is None:
            continue
        if mode == 0:
            message = (
                "similarities has an entry for mode 0, the samples, where new samples have none: "
                "leave it out, or give None."
            )
            raise InvalidInputError(message)
        if isinstance(entry, str):
            _check_name(entry)
            found[mode] = laplacian_of_data(given, mode, entry)
        else:
            found[mode] = Laplacian(_matrix(given, mode, entry))
    return found


def _entries(given: TensorInput, similarities: Any) -> dict[int, Any]:
    """Say which mode has which entry."""
    n_modes = len(given.shape)
    if similarities is None:
        return {}
    if isinstance(similarities, str):
        _check_name(similarities)
        return dict.fromkeys(range(1, n_modes), similarities)
    if isinstance(similarities, Mapping):
        entries: dict[int, Any] = {}
        for key, entry in similarities.items():
            mode = _mode_of(given, key)
            if mode in entries:
                message = f"similarities names {given.mode_title(mode)} twice."
                raise InvalidInputError(message)
            entries[mode] = entry
        return entries
    if isinstance(similarities, Sequence):
        if len(similarities) != n_modes:
            message = (
                f"similarities has {len(similarities)} entries for {n_modes} modes. Give one for "
                "each, None for the samples and for modes without."
            )
            raise InvalidInputError(message)
        return dict(enumerate(similarities))
    message = f"similarities is a {type(similarities).__name__}. {_ACCEPTED}"
    raise InvalidTypeError(message)


def _mode_of(given: TensorInput, key: Any) -> int:
    n_modes = len(given.shape)
    if isinstance(key, str):
        if given.modes is not None and key in given.modes:
            return given.modes.index(key)
        known = f"the numbers 0 to {n_modes - 1}, for its modes have no names"
        if given.modes is not None:
            known = f"the names {', '.join(map(repr, given.modes))}"
        message = f"similarities has an entry for {key!r}; the data has {known}."
        raise InvalidInputError(message)
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        message = f"similarities has the key {key!r}; give the number or the name of a mode."
        raise InvalidTypeError(message)
    if not -n_modes <= key < n_modes:
        message = f"similarities has an entry for mode {key}; there are 0..{n_modes - 1}."
        raise InvalidInputError(message)
    return int(key) % n_modes


def _check_name(name: str) -> None:
    if name not in NAMES:
        message = f"similarities={name!r} is not known. {_ACCEPTED}"
        raise InvalidInputError(message)


def _matrix(given: TensorInput, mode: int, entry: Any) -> Any:
    """Return a checked similarity matrix in double precision, dense or in rows."""
    title = f"The similarity of {given.mode_title(mode)}"
    size = given.shape[mode]
    if hasattr(entry, "columns") and hasattr(entry, "index"):
        matrix: Any = _from_table(given, mode, entry, title)
    elif is_sparse(entry):
        matrix = entry
    else:
        try:
            matrix = np.asarray(entry)
        except ValueError as error:
            message = f"{title} makes no matrix: {error}. {_ACCEPTED}"
            raise InvalidInputError(message) from error
    if matrix.ndim != 2 or matrix.shape != (size, size):
        message = (
            f"{title} has the shape {tuple(matrix.shape)}; ({size}, {size}) is needed, one row and "
            "one column for each entry of the mode."
        )
        raise InvalidInputError(message)
    if matrix.dtype.kind not in "fiub":
        message = f"{title} is of type {matrix.dtype}; real numbers are needed. {_ACCEPTED}"
        raise InvalidTypeError(message)
    if is_sparse(matrix):
        matrix = csr_array(matrix, dtype=np.float64)
        matrix.sum_duplicates()
    else:
        matrix = np.array(matrix, dtype=np.float64)
    return _checked(matrix, title)


def _from_table(given: TensorInput, mode: int, table: Any, title: str) -> np.ndarray:
    """Return the matrix of a labelled table, in the order of the data."""
    values = table.to_numpy()
    mine = given.labels[mode]
    rows, columns = (as_labels(axis, name=title) for axis in (table.index, table.columns))
    if values.shape[0] != values.shape[1] or (find_labels(columns, rows) < 0).any():
        message = f"{title} is a table whose rows and columns have different labels."
        raise InvalidInputError(message)
    if mine is None:
        return np.asarray(values[:, find_labels(columns, rows)])
    places = [find_labels(axis, mine) for axis in (rows, columns)]
    if (places[0] < 0).any():
        strangers = mine[places[0] < 0]
        message = (
            f"{title} lacks {len(strangers)} labels of the data: {shown(strangers)}. Give the "
            "table a row and a column for each; zeros say that nothing is known to be similar."
        )
        raise InvalidInputError(message)
    return np.asarray(values[np.ix_(*places)])


def _checked(matrix: Any, title: str) -> Any:
    """Refuse what is no similarity, naming the first bad position; divide by the largest."""
    sparse = is_sparse(matrix)
    stored = matrix.data if sparse else matrix

    def first(bad: Any) -> tuple[int, int]:
        if not sparse:
            row, column = np.argwhere(bad)[0]
            return int(row), int(column)
        place = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(matrix.indptr, place, side="right")) - 1
        return row, int(matrix.indices[place])

    problems = (
        (~np.isfinite(stored), "is not finite", "Use 0 where nothing is known."),
        (stored < 0, "is negative", "Clip it to 0; a cost C becomes a similarity as C.max() - C."),
    )
    for bad, says, advice in problems:
        if bad.any():
            message = f"{title} {says}, first at {first(bad)}. {advice}"
            raise InvalidInputError(message)
    # What an entry has in common with itself says nothing, and may be of any size.
    matrix = _without_diagonal(matrix)
    top = float(matrix.max()) or 1.0
    matrix = matrix / top
    skew = abs(matrix - matrix.T)
    if skew.max() > _ROUNDING:
        row, column = _first_skew(skew, sparse=sparse)
        values = (matrix[row, column] * top, matrix[column, row] * top)
        message = (
            f"{title} is not symmetric, first at ({row}, {column}): {values[0]:.6g} against "
            f"{values[1]:.6g}. Use (S + S.T) / 2 if both are meant."
        )
        raise InvalidInputError(message)
    mean = (matrix + matrix.T) / 2
    return csr_array(mean) if sparse else mean


def _without_diagonal(matrix: Any) -> Any:
    if not is_sparse(matrix):
        np.fill_diagonal(matrix, 0.0)
        return matrix
    stored = matrix.tocoo()
    off = stored.coords[0] != stored.coords[1]
    pairs = (stored.coords[0][off], stored.coords[1][off])
    return csr_array((stored.data[off], pairs), shape=matrix.shape)


def _first_skew(skew: Any, *, sparse: bool) -> tuple[int, int]:
    if not sparse:
        row, column = np.argwhere(skew > _ROUNDING)[0]
        return int(row), int(column)
    found = skew.tocoo()
    rows, columns = (axis[found.data > _ROUNDING] for axis in found.coords)
    place = np.lexsort((columns, rows))[0]
    return int(rows[place]), int(columns[place])
