"""Matrices between the entries of a mode, such as costs and similarities, as users give them.

A parameter has one entry for each mode, in a list or in a dict by mode: a name, a function, or a
matrix, which is an array, a scipy.sparse matrix, or a labelled table of pandas, polars or xarray.
A cost may also be a weighted sum of such entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array, csr_array, issparse

from polyad.core.arrays import to_numpy
from polyad.data.label_values import find_labels, shown
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from polyad.data.readers import TensorInput

# How far apart two mirrored entries may be, as a part of the largest: rounding of a product.
_ASYMMETRY = 1e-6


def is_sparse(matrix: Any) -> bool:
    """Say whether a matrix is one of scipy.sparse."""
    return bool(issparse(matrix))


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Names, functions and matrices for one mode, and the weight of each in their sum."""

    parts: tuple[Any, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(isinstance(part, WeightedSum) for part in self.parts):
            message = "A sum has a sum inside. Give all of its parts at once, with their weights."
            raise InvalidInputError(message)
        if len(self.parts) != len(self.weights):
            message = f"A sum has {len(self.parts)} parts and {len(self.weights)} weights."
            raise InvalidInputError(message)
        largest = float(np.finfo(np.float64).max)  # which compares with whole numbers of any size
        sound = (isinstance(w, Real) and 0 <= w <= largest for w in self.weights)
        if not all(sound) or not any(self.weights):
            message = (
                f"The weights of a sum are {list(self.weights)}. Give finite numbers, none of them "
                "negative and not all of them zero; leave out what shall not count."
            )
            raise InvalidInputError(message)

    def of(self, matrices: Iterable[Any], title: str) -> Any:
        """Return the weighted sum of the matrices of the parts, one at a time."""
        total: Any = None
        for matrix, weight in zip(matrices, self.weights, strict=True):
            if matrix is None:
                message = f"{title} is a sum with a part along which nothing moves. Leave it out."
                raise InvalidInputError(message)
            if total is not None and total.shape != matrix.shape:
                message = (
                    f"{title} is a sum of matrices of shapes {total.shape} and {matrix.shape}."
                )
                raise InvalidInputError(message)
            with np.errstate(over="ignore"):
                part = float(weight) * matrix
                total = part if total is None else total + part
        if not np.all(np.isfinite(total)):
            message = f"{title} is a sum beyond the range of the numbers. Give smaller weights."
            raise InvalidInputError(message)
        return total


# What was given for each mode.


def entries_of_modes(
    parameter: str, value: Any, given: TensorInput, accepted: str
) -> dict[int, Any]:
    """Return what a list or a dict has for the modes that it names."""
    n_modes = len(given.shape)
    if isinstance(value, Mapping):
        entries: dict[int, Any] = {}
        for key, entry in value.items():
            mode = _mode_number(parameter, key, given)
            if mode in entries:
                keys = ", ".join(map(repr, value))
                message = f"{parameter} names {given.mode_title(mode)} twice: {keys}."
                raise InvalidInputError(message)
            entries[mode] = entry
        return entries
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != n_modes:
            message = (
                f"{parameter} has {len(value)} entries; the data has {n_modes} modes. Give one "
                "entry for each, None for those that need none."
            )
            raise InvalidInputError(message)
        return dict(enumerate(value))
    message = f"{parameter} is a {type(value).__name__}. {accepted}"
    raise InvalidTypeError(message)


def _mode_number(parameter: str, key: Any, given: TensorInput) -> int:
    n_modes = len(given.shape)
    if isinstance(key, str) and given.modes is not None and key in given.modes:
        return given.modes.index(key)
    is_number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    if is_number and -n_modes <= key < n_modes:
        return int(key) % n_modes
    names = ", which have no names"
    if given.modes is not None:
        names = f" or {', '.join(map(repr, given.modes))}"
    known = f"0..{n_modes - 1}{names}"
    message = f"{parameter} has an entry for mode {key!r}; the data has the modes {known}."
    raise InvalidInputError(message)


def check_name(parameter: str, name: str, known: Sequence[str], mode_title: str) -> None:
    """Refuse a name that stands for no matrix."""
    if name not in known:
        message = (
            f"{parameter} names {name!r} for {mode_title}. Known names are "
            f"{', '.join(map(repr, known))}."
        )
        raise InvalidInputError(message)


# From what was given to numbers in the order of the data.


def read_square(entry: Any, size: int | None, labels: Any, title: str, rule: str) -> Any:
    """Return a square matrix of finite numbers >= 0, dense or csr, in float64 and a copy.

    Tables come in the order of the labels. Without a size nothing is known of the data, and they
    come in the order of their rows. Errors begin with the title, such as "The cost of mode 1", and
    end with the rule, what is asked of it.
    """
    frame = as_frame(entry)
    if frame is not None and labels is None and size is not None:
        refuse_labels(frame, title)
    given = _array(entry if frame is None else _by_label(frame, labels, title), title)
    needed = given.shape[0] if size is None and given.ndim == 2 else size
    if given.shape != (needed, needed) or 0 in given.shape:
        wanted = "a square matrix" if size is None else f"({size}, {size})"
        message = (
            f"{title} has the shape {tuple(given.shape)}; {wanted} is needed: one row and one "
            "column for each position."
        )
        raise InvalidInputError(message)
    matrix = _numbers(given, title)
    problems: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "not finite": lambda stored: ~np.isfinite(stored),
        "negative": lambda stored: stored < 0,
    }
    for problem, is_bad in problems.items():
        place = _first_where(matrix, is_bad)
        if place is not None:
            message = f"{title} is {problem}: {float(matrix[place])} at {place}. {rule}"
            raise InvalidInputError(message)
    return matrix


def is_symmetric(matrix: Any) -> bool:
    """Say whether a matrix is symmetric up to rounding."""
    return _skewed_at(matrix) is None


def _skewed_at(matrix: Any) -> tuple[int, int] | None:
    """Return where a matrix is first not symmetric, but for rounding."""
    limit = _ASYMMETRY * float(matrix.max())
    return _first_where(abs(matrix - matrix.T), lambda skew: skew > limit)


def made_symmetric(matrix: Any, title: str, rule: str) -> Any:
    """Return a matrix that is symmetric up to rounding, made exactly so."""
    place = _skewed_at(matrix)
    if place is not None:
        row, column = place
        message = (
            f"{title} is not symmetric: {matrix[row, column]:.6g} at ({row}, {column}) and "
            f"{matrix[column, row]:.6g} at ({column}, {row}). {rule} If both numbers are meant, "
            "give (M + M.T) / 2."
        )
        raise InvalidInputError(message)
    mean = matrix / 2.0 + matrix.T / 2.0
    return csr_array(mean) if is_sparse(matrix) else mean


def read_similarities(entry: Any, size: int | None, labels: Any, title: str) -> Any:
    """Return similarities, dense or csr, exactly symmetric and zero on the diagonal.

    What an entry has in common with itself says nothing, and may be of any size.
    """
    rule = (
        "Similarities are symmetric, finite and not negative: large for what is similar, 0 where "
        "nothing is known. A cost C becomes one as C.max() - C."
    )
    matrix = read_square(entry, size, labels, title, rule)
    if not is_sparse(matrix):
        np.fill_diagonal(matrix, 0.0)
        return made_symmetric(matrix, title, rule)
    stored = matrix.tocoo()
    off = stored.coords[0] != stored.coords[1]
    places = (stored.coords[0][off], stored.coords[1][off])
    return made_symmetric(csr_array((stored.data[off], places), shape=matrix.shape), title, rule)


def as_frame(entry: Any) -> Any:
    """Return a matrix that has labels as a pandas frame, and None for one that has none."""
    package = type(entry).__module__.partition(".")[0]
    if package == "pandas" and hasattr(entry, "columns"):
        return entry
    if package == "xarray" and hasattr(entry, "coords") and len(getattr(entry, "dims", ())) == 2:
        return entry.to_pandas() if all(name in entry.coords for name in entry.dims) else None
    if package != "polars" or not hasattr(entry, "columns"):
        return None
    import pandas as pd

    # The rows are named by a column of text, or else are in the order of the columns.
    names = [name for name, kind in entry.schema.items() if not kind.is_numeric()]
    numbers = entry.drop(names[:1])
    if not names and numbers.shape[0] != numbers.shape[1]:
        return None
    if not names and numbers.columns == [f"column_{k}" for k in range(numbers.shape[1])]:
        return pd.DataFrame(numbers.to_numpy())  # the names that polars gives to columns of none
    rows = entry[names[0]].to_list() if names else numbers.columns
    return pd.DataFrame(numbers.to_numpy(), index=rows, columns=numbers.columns)


def refuse_labels(frame: Any, title: str) -> None:
    """Refuse a table of labels, other than a mere count, for data that has none."""
    for axis in (frame.index, frame.columns):
        if axis.dtype.kind in "iu" and np.array_equal(axis, np.arange(len(axis))):
            continue
        message = (
            f"{title} is a table with the labels {shown(axis.to_numpy())}, but the data has no "
            "labels there, so that nothing tells which row belongs to which entry. Give data with "
            "labels, such as a polyad.LabelledTensor, or the numbers alone in the order of the "
            "data: table.to_numpy()."
        )
        raise InvalidInputError(message)


def _by_label(frame: Any, labels: Any, title: str) -> np.ndarray:
    """Return the numbers of a frame in the order of the labels, or of its own rows."""
    wanted = frame.index.to_numpy() if labels is None else np.asarray(labels)
    places = []
    for name, axis in (("row", frame.index), ("column", frame.columns)):
        if not axis.is_unique:
            repeated = axis[axis.duplicated()].to_numpy()[:1]
            message = f"{title} has a {name} label twice: {shown(repeated)}."
            raise InvalidInputError(message)
        found = find_labels(axis, wanted)
        missing = wanted[found < 0]
        if len(missing):
            message = (
                f"{title} has no {name} for {len(missing)} of its labels, first "
                f"{shown(missing[:1])}. Give a table with all labels in its rows and its columns."
            )
            raise InvalidInputError(message)
        places.append(found)
    return np.asarray(frame.to_numpy()[np.ix_(*places)])


def _array(entry: Any, title: str) -> Any:
    """Return a matrix of NumPy or scipy.sparse; the format of the latter is left as it is."""
    try:
        matrix: Any = entry if is_sparse(entry) else to_numpy(entry)
    except (TypeError, ValueError) as error:
        raise _no_numbers(title, error) from error
    if matrix.dtype.kind in "cSUMmV":
        raise _no_numbers(title, f"it is of type {matrix.dtype}")
    return matrix


def _numbers(matrix: Any, title: str) -> Any:
    """Return a copy of a matrix in float64, dense or csr."""
    if is_sparse(matrix):
        rows = csr_array(matrix, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        return rows
    try:
        return matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _no_numbers(title, error) from error


def _no_numbers(title: str, reason: object) -> InvalidTypeError:
    return InvalidTypeError(f"{title} is no matrix of numbers: {reason}.")


def _first_where(matrix: Any, is_bad: Callable[[np.ndarray], np.ndarray]) -> tuple[int, int] | None:
    """Return the first place, row by row, whose number is bad."""
    if is_sparse(matrix):
        stored = matrix.tocoo()
        bad = is_bad(stored.data)
        rows, columns = (axis[bad] for axis in stored.coords)
    else:
        rows, columns = np.nonzero(is_bad(matrix))
    if not len(rows):
        return None
    first = np.lexsort((columns, rows))[0]
    return int(rows[first]), int(columns[first])


# In model files, which hold arrays, text and lists.


def stored_matrices(
    value: Any, found: Sequence[Any] = (), modes: Sequence[str] | None = None
) -> Any:
    """Turn what was given for the modes into what a file holds.

    A function, also one in a sum, is replaced by the matrix that was found with it in the fit. That
    of the samples is left out: it is of no use for other samples.
    """
    if value is None or isinstance(value, str):
        return value
    if callable(value):
        value = dict(enumerate([value] * len(found)))
    is_list = not isinstance(value, Mapping)
    entries = dict(enumerate(value)) if is_list else dict(value)
    if any(map(_has_function, entries.values())):
        is_list, entries = False, _without_functions(entries, found, modes)
    if is_list:
        return {"form": "list", "entries": [_stored_matrix(entry) for entry in value]}
    pairs = [
        [int(key) if isinstance(key, np.integer) else key, _stored_matrix(entry)]
        for key, entry in entries.items()
    ]
    return {"form": "dict", "entries": pairs}


def _has_function(entry: Any) -> bool:
    parts = entry.parts if isinstance(entry, WeightedSum) else (entry,)
    return any(map(callable, parts))


def _without_functions(
    entries: dict[Any, Any], found: Sequence[Any], modes: Sequence[str] | None
) -> dict[Any, Any]:
    kept = {}
    for key, entry in entries.items():
        if not _has_function(entry):
            kept[key] = entry
            continue
        mode = modes.index(key) if modes and isinstance(key, str) else key
        if found and mode % len(found) != 0:
            kept[key] = found[mode]
    return kept


def restored_matrices(stored: Any) -> Any:
    """Undo :func:`stored_matrices`."""
    if stored is None or isinstance(stored, str):
        return stored
    if stored["form"] == "dict":
        return {key: _restored_matrix(entry) for key, entry in stored["entries"]}
    return [_restored_matrix(entry) for entry in stored["entries"]]


def _stored_matrix(entry: Any) -> Any:
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, WeightedSum):
        parts = [_stored_matrix(part) for part in entry.parts]
        return {"parts": parts, "weights": list(map(float, entry.weights))}
    if is_sparse(entry):
        stored = entry.tocoo()
        rows, columns = (np.asarray(axis) for axis in stored.coords)
        shape = list(map(int, stored.shape))
        return {"shape": shape, "rows": rows, "columns": columns, "values": stored.data}
    frame = as_frame(entry)
    if frame is None:
        return {"matrix": to_numpy(entry)}
    # Text is an object in pandas, which files do not hold.
    axes = {name: getattr(frame, name).to_numpy() for name in ("index", "columns")}
    labels = {
        name: axis.astype(str) if axis.dtype.kind in "OT" else axis for name, axis in axes.items()
    }
    return {"matrix": frame.to_numpy(), **labels}


def _restored_matrix(stored: Any) -> Any:
    if stored is None or isinstance(stored, str):
        return stored
    if "parts" in stored:
        return WeightedSum(tuple(map(_restored_matrix, stored["parts"])), tuple(stored["weights"]))
    if "rows" in stored:
        places = (stored["rows"], stored["columns"])
        # A format with a number for each row would take what memory the file says.
        return coo_array((stored["values"], places), shape=tuple(stored["shape"]))
    if "index" in stored:
        import pandas as pd

        return pd.DataFrame(stored["matrix"], index=stored["index"], columns=stored["columns"])
    return stored["matrix"]
