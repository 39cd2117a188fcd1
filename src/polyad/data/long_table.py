"""Long tables: one row per entry, one column per mode, perhaps a column of values.

pandas and polars tables are read alike. polars is recognised by its module name and never
imported. Cost: one or two hash passes over each label column and one sort of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyad.core.threads import as_slices, cut
from polyad.data.entries import summed_coo
from polyad.data.label_values import (
    Unknown,
    as_labels,
    as_mode_names,
    as_text,
    check_unknown,
    find_labels,
    handle_unknown,
)
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from scipy.sparse import coo_array

    from polyad.data.entries import Entries

Duplicates = Literal["sum", "count", "error"]
# Rows whose labels are numbered at a time, and the range of whole numbers that is always narrow.
_ROWS_AT_A_TIME, _NARROW = 1 << 16, 1 << 10


@dataclass(frozen=True)
class Column:
    """A column as pandas sees it, and its type as the user's library names it."""

    name: str
    series: pd.Series[Any]
    dtype: str


def read_long_table(
    frame: object,
    *,
    modes: Sequence[str],
    value: str | None,
    duplicates: Duplicates,
    labels: Mapping[str, ArrayLike],
    unknown: Unknown,
    dtype: DTypeLike | None,
) -> tuple[coo_array[Any, Any], list[NDArray[Any]]]:
    """Return the sparse tensor of a long table and the labels of each mode.

    The parameters are those of :meth:`polyad.data.labels.LabelledTensor.from_frame`.
    """
    modes = as_mode_names(modes)
    _check_request(modes, value, duplicates, labels, unknown)
    columns = read_columns(frame, [*modes, *([] if value is None else [value])])
    n_rows = len(columns[0].series)
    if n_rows == 0:
        message = "The table has no rows. Give at least one row, or build the tensor from an array."
        raise InvalidInputError(message)
    values = np.ones(n_rows) if value is None else _values(columns.pop())
    codes, mode_labels = [], []
    for column in columns:
        mode_codes, found = encode(column)
        if column.name in labels:
            wanted = as_labels(labels[column.name], name=column.name)
            mode_codes = _look_up(mode_codes, found, wanted, name=column.name, unknown=unknown)
            found = wanted
        codes.append(mode_codes.astype(np.intp, copy=False))
        mode_labels.append(found)
    rows = np.arange(n_rows)
    if labels:
        # Only given labels can be unknown.
        rows = np.flatnonzero(np.logical_and.reduce([c >= 0 for c in codes]))
        if len(rows) == 0:
            message = (
                "No row of the table has labels that are all known, so nothing is left. Check "
                "that the table and the given labels use the same spelling and type."
            )
            raise InvalidInputError(message)
        codes, values = [c[rows] for c in codes], values[rows]
    shape = tuple(len(found) for found in mode_labels)
    tensor = summed_coo(codes, values, shape)
    if duplicates == "error" and tensor.nnz < len(values):
        raise _duplicates_error(codes, rows)
    return _with_dtype(tensor, dtype, default=values.dtype), mode_labels


def write_long_table(
    data: Entries,
    modes: Sequence[str],
    labels: Sequence[NDArray[Any] | None],
    *,
    value: str,
) -> pd.DataFrame:
    """Return one row for each stored entry, or for each entry of a dense array.

    Labels become Categoricals, whose codes are the coordinates: nothing is spelled out.
    """
    import pandas as pd

    if value in modes:
        message = f"The value column cannot be named {value!r}: a mode has that name."
        raise InvalidInputError(message)
    if isinstance(data, np.ndarray):
        coords: Sequence[NDArray[Any]] = np.unravel_index(np.arange(data.size), data.shape)
        values = data.ravel()
    else:
        coords, values = data.coords, data.data
    columns: dict[str, Any] = {}
    for name, own, codes in zip(modes, labels, coords, strict=True):
        columns[name] = codes
        if own is not None:
            columns[name] = pd.Categorical.from_codes(codes, categories=pd.Index(own))
    return pd.DataFrame({**columns, value: values}, copy=True)


def _check_request(
    modes: Sequence[str],
    value: str | None,
    duplicates: str,
    labels: Mapping[str, ArrayLike],
    unknown: str,
) -> None:
    if value in modes:
        message = (
            f"Column {value!r} is both a mode and the value. Give value=None to count rows, or "
            "name another column."
        )
        raise InvalidInputError(message)
    if duplicates not in ("sum", "count", "error"):
        message = f"duplicates={duplicates!r} has no meaning; give 'sum', 'count' or 'error'."
        raise InvalidInputError(message)
    if duplicates == "count" and value is not None:
        message = (
            f"duplicates='count' counts rows and would ignore the column value={value!r}. Give "
            "value=None to count, or duplicates='sum' to add up the values."
        )
        raise InvalidInputError(message)
    check_unknown(unknown)
    strangers = [name for name in labels if name not in modes]
    if strangers:
        message = f"labels are given for {strangers}, which are not among modes={list(modes)}."
        raise InvalidInputError(message)


def read_columns(frame: object, names: Sequence[str], *, table: str = "frame") -> list[Column]:
    """Take columns out of a pandas or polars table, which must have each once.

    ``table`` is what messages call it: the name of the argument.
    """
    import pandas as pd

    given: Any = frame
    from_polars = type(frame).__module__.partition(".")[0] == "polars"
    if from_polars and type(frame).__name__ == "LazyFrame":
        message = f"A polars LazyFrame has no rows yet. Give {table}.collect()."
        raise InvalidTypeError(message)
    if not isinstance(frame, pd.DataFrame) and not (from_polars and hasattr(frame, "columns")):
        message = (
            f"{table} must be a pandas or polars DataFrame, got {type(frame).__name__}. Convert "
            f"it first, for example pandas.DataFrame({table})."
        )
        raise InvalidTypeError(message)
    title = "The table" if table == "frame" else f"The table {table}"
    available = list(given.columns)
    absent = [name for name in names if name not in available]
    if absent:
        message = f"{title} has no column {absent[0]!r}; it has {available}."
        if not from_polars and absent[0] in given.index.names:
            message += f" It is in the index: give {table}.reset_index()."
        else:
            message += " Give the name that the table has, or rename the column."
        raise InvalidInputError(message)
    repeated = [name for name in names if available.count(name) > 1]
    if repeated:
        message = f"{title} has more than one column {repeated[0]!r}. Rename or drop one."
        raise InvalidInputError(message)
    if from_polars:
        return [_from_polars(name, given[name]) for name in names]
    return [Column(name, given[name], str(given[name].dtype)) for name in names]


def _from_polars(name: str, series: Any) -> Column:
    """Convert one polars column by way of NumPy, so that pyarrow is not needed."""
    import pandas as pd

    dtype = series.dtype
    if getattr(dtype, "time_zone", None) is not None:
        message = (
            f"Column {name!r} is of type {dtype}. Labels are dates without time zone: convert "
            f'it with pl.col("{name}").dt.replace_time_zone(None).'
        )
        raise InvalidTypeError(message)
    kind = str(dtype).partition("(")[0]
    if kind in {"Enum", "String", "Categorical"}:
        # Encoded by polars, which is many times faster than making a Python text of each cell.
        # The order of its text is that of code points, as in NumPy.
        text = series.cast(str)
        known = dtype.categories if kind == "Enum" else text.drop_nulls().unique().sort()
        codes = np.full(len(text), -1)
        if len(known):
            codes = text.replace_strict(known, np.arange(len(known)), default=-1).to_numpy()
        column = pd.Series(pd.Categorical.from_codes(codes, categories=known.to_list()))
    elif kind == "Decimal" or (kind == "Boolean" and series.null_count()):
        # NumPy would hold these as objects; as floats they are numbers and nulls become NaN.
        column = pd.Series(series.cast(float).to_numpy())
    else:
        column = pd.Series(series.to_numpy())
    return Column(name, column, str(dtype))


def _values(column: Column) -> NDArray[Any]:
    """Return the value column as floats, all finite."""
    import pandas as pd

    series = column.series
    if not pd.api.types.is_numeric_dtype(series) or pd.api.types.is_complex_dtype(series):
        message = (
            f"The value column {column.name!r} has dtype {column.dtype}, which is not a real "
            "number. Convert it to numbers, or give value=None to count rows."
        )
        raise InvalidTypeError(message)
    single = str(series.dtype).lower() in {"float32", "float[pyarrow]"}
    values = series.to_numpy(dtype=np.float32 if single else np.float64, na_value=np.nan)
    bad = ~np.isfinite(values)
    if bad.any():
        message = (
            f"The value column {column.name!r} is missing or infinite in {bad.sum()} rows, the "
            f"first is row {bad.argmax()} (counting from 0). Drop these rows to treat the "
            "entries as absent, or fill in a number."
        )
        raise InvalidInputError(message)
    return values


def encode(column: Column) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the label number of each row and the labels: sorted, or a category's own order.

    Numbers are in as few bytes as they need, and rows are read some at a time.
    """
    import pandas as pd

    series = column.series
    if isinstance(series.dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy()
        _check_labelled(column, codes)
        return codes, as_labels(series.cat.categories, name=column.name)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu" and len(series):
        values = series.to_numpy()
        low, high = int(values.min()), int(values.max())
        if high - low < max(_NARROW, len(values)):
            return _encode_narrow(column, values, (low, high))
    is_text = isinstance(series.dtype, pd.StringDtype)
    if pd.api.types.is_object_dtype(series.dtype):
        # Before hashing, which takes True and 1 for the same label.
        kind = pd.api.types.infer_dtype(series, skipna=True)
        if kind in {"mixed", "mixed-integer"}:
            raise _unsortable(column)
        is_text = kind == "string"
    if is_text and len(series) > _ROWS_AT_A_TIME:
        return _encode_text(column)
    codes, found = pd.factorize(series)
    _check_labelled(column, codes)
    labels = as_labels(found, name=column.name)
    order = np.argsort(labels, kind="stable")
    rank = np.empty(len(order), dtype=np.min_scalar_type(-len(order)))
    rank[order] = np.arange(len(order))
    return rank[codes], labels[order]


def _encode_narrow(
    column: Column, values: NDArray[Any], ends: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Give numbers to whole numbers of a narrow range, by a table of it."""
    low, high = ends
    blocks = as_slices(cut(len(values), _ROWS_AT_A_TIME))
    is_used = np.zeros(high - low + 1, dtype=bool)
    for rows in blocks:
        is_used[values[rows] - low] = True
    places = np.flatnonzero(is_used)
    rank = np.empty(len(is_used), dtype=np.min_scalar_type(-len(places)))
    rank[places] = np.arange(len(places))
    codes = np.empty(len(values), dtype=rank.dtype)
    for rows in blocks:
        codes[rows] = rank[values[rows] - low]
    return codes, as_labels((places + low).astype(values.dtype), name=column.name)


def _encode_text(column: Column) -> tuple[NDArray[Any], NDArray[Any]]:
    """Give numbers to text by its sorted labels, which need a fraction of what hashes do."""
    import pandas as pd

    series, blocks = column.series, as_slices(cut(len(column.series), _ROWS_AT_A_TIME))
    # The text type of pandas without pyarrow wraps objects; unwrapped, it hashes in half the time.
    is_wrapped = getattr(series.dtype, "storage", None) == "python"
    places, known, runs = np.empty(len(series), dtype=np.uint16), [], []
    for rows in blocks:
        values = series.iloc[rows].array
        own, names = pd.factorize(values.to_numpy(dtype=object) if is_wrapped else values)
        if (own < 0).any():
            _check_labelled(column, series.isna().to_numpy() * -1)
        places[rows] = own
        known.append(names)
        runs.append(np.sort(as_text(np.asarray(names, dtype=object), of=f"mode {column.name!r}")))
        # Each run is twice as long as the next, as in a sort by merging.
        while len(runs) > 1 and (len(runs[-2]) < 2 * len(runs[-1]) or rows is blocks[-1]):
            runs.append(_united([runs.pop(), runs.pop()]))
    labels = as_labels(runs.pop(), name=column.name)
    codes = np.empty(len(series), dtype=np.min_scalar_type(-len(labels)))
    for rows, names in zip(blocks, known, strict=True):
        texts = np.asarray(names, dtype=object).astype(np.str_)
        codes[rows] = np.searchsorted(labels, texts)[places[rows]]
    return codes, labels


def _united(runs: list[NDArray[Any]]) -> NDArray[Any]:
    """Return what sorted labels have together, sorted; those given are let go."""
    both = np.concatenate(runs)
    runs.clear()
    both.sort(kind="stable")
    is_new = np.ones(len(both), dtype=bool)
    is_new[1:] = both[1:] != both[:-1]
    return both[is_new]


def _check_labelled(column: Column, codes: NDArray[Any]) -> None:
    """Refuse rows without a label."""
    missing = codes < 0
    if missing.any():
        message = (
            f"Column {column.name!r} has no label in {missing.sum()} rows, the first is row "
            f"{missing.argmax()} (counting from 0). Drop these rows with dropna/drop_nulls, or "
            "give them a label of their own, for example 'unknown'."
        )
        raise InvalidInputError(message)


def _unsortable(column: Column) -> InvalidTypeError:
    types = sorted({type(x).__name__ for x in column.series.dropna().iloc[:100_000]})
    message = (
        f"Column {column.name!r} holds values of types {types}, which cannot be sorted as "
        f"labels. Convert it to text: frame[{column.name!r}].astype(str)."
    )
    return InvalidTypeError(message)


def _look_up(
    codes: NDArray[Any],
    found: NDArray[Any],
    wanted: NDArray[Any],
    *,
    name: str,
    unknown: Unknown,
) -> NDArray[np.intp]:
    """Renumber the rows by the wanted labels, -1 where the label is not among them."""
    positions = find_labels(wanted, found)
    # Categories without rows are no reason to complain.
    n_rows = np.bincount(codes, minlength=len(found))
    strange = (positions < 0) & (n_rows > 0)
    lost = f"{n_rows[strange].sum()} rows"
    handle_unknown(
        found[strange], name=name, known=wanted, lost=lost, unknown=unknown, stacklevel=4
    )
    renumbered: NDArray[np.intp] = positions[codes]
    return renumbered


def _duplicates_error(
    codes: Sequence[NDArray[np.intp]], rows: NDArray[np.intp]
) -> InvalidInputError:
    import pandas as pd

    repeated = pd.DataFrame(dict(enumerate(codes))).duplicated().to_numpy()
    first = rows[repeated.argmax()]
    message = (
        f"{repeated.sum()} rows repeat the labels of an earlier row, the first is row {first} "
        "(counting from 0). Give duplicates='sum' to add up their values, or drop them."
    )
    return InvalidInputError(message)


def _with_dtype(
    tensor: coo_array[Any, Any], dtype: DTypeLike | None, *, default: DTypeLike
) -> coo_array[Any, Any]:
    """Convert to the wanted float type; numbers that do not fit are an error."""
    try:
        wanted = np.dtype(default if dtype is None else dtype)
    except TypeError:  # told below, as other types are
        wanted = np.dtype(object)
    if wanted not in (np.float32, np.float64):
        message = f"dtype={dtype!r} is not accepted; give float32 or float64."
        raise InvalidInputError(message)
    with np.errstate(over="ignore"):
        tensor.data = tensor.data.astype(wanted, copy=False)
    if not np.isfinite(tensor.data).all():
        message = f"The sum of duplicate rows exceeds the range of {wanted}. Rescale the values."
        raise InvalidInputError(message)
    return tensor
