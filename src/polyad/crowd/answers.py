"""Who said what of which item: the labels of a crowd, whatever they come in.

A long table, a matrix or a table with a column for each worker become the same list of numbers, in
the order of items. Missing labels are left out here, and nothing below knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.core.threads import as_slices, cut
from polyad.crowd.kernels import count_labels, place_labels
from polyad.data.label_values import as_labels, find_labels, shown
from polyad.data.long_table import Column, encode, read_columns
from polyad.data.readers import unpack
from polyad.exceptions import DataWarning, InvalidInputError, InvalidTypeError, warn_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Codes = NDArray[np.integer[Any]]

# Whole numbers beyond this are not exact as floats, and are no names of classes.
_LARGEST = 2.0**53
_MODES = ("item", "worker")
DEFAULT_COLUMNS = ("item", "worker", "label")
# Rows that are sorted at a time, and what four bytes can count: labels, and pairs of a worker and a
# class.
_ROWS_AT_A_TIME, _MOST_IN_FOUR = 1 << 14, 2**31
# Three workers hardly have more classes than this among them if one of them has few.
_MANY_CLASSES = 20


@dataclass(frozen=True)
class Answers:
    """The labels of a crowd, those of an item side by side: one number for worker and class."""

    #: Where the labels of each item begin, and where those of the last end.
    starts: Codes
    #: The number of the worker times that of all classes, plus the number of the class.
    codes: NDArray[np.int32]
    #: How many items and workers there are; some may have no label.
    shape: tuple[int, int]
    #: The names of items and workers, None where they are known by position.
    names: tuple[NDArray[Any] | None, NDArray[Any] | None]
    #: What the labels can be, in order.
    classes: NDArray[Any]
    modes: tuple[str, str] = _MODES
    #: Whether items are rows of a table of events, and have no order of their own.
    is_long: bool = False

    def recoded(self, workers: Codes, labels: Codes, n_workers: int, classes: Any) -> Answers:
        """Return the same labels with other numbers of workers and classes."""
        _check_pairs(n_workers, len(classes))
        own_workers, own_labels = np.divmod(self.codes, np.int32(len(self.classes)))
        codes = workers.astype(np.int32)[own_workers]
        codes *= np.int32(len(classes))
        codes += labels.astype(np.int32)[own_labels]
        return replace(self, codes=codes, shape=(self.shape[0], n_workers), classes=classes)


def answers_of(
    entries: tuple[Codes, Codes, Codes],
    shape: tuple[int, int],
    names: tuple[NDArray[Any] | None, NDArray[Any] | None],
    classes: NDArray[Any],
    **options: Any,
) -> Answers:
    """Sort items, workers and labels by item, in their order; numbers are widened bit by bit."""
    items, workers, labels = entries
    _check_pairs(shape[1], len(classes))
    blocks = as_slices(cut(len(labels), _ROWS_AT_A_TIME))
    # One place further on than starts are: each start moves to the next while labels are placed.
    wide = np.int32 if len(labels) < _MOST_IN_FOUR else np.int64
    places: Codes = np.zeros(shape[0] + 2, dtype=wide)
    for rows in blocks:
        count_labels(items[rows].astype(np.int64), places[2:])
    np.cumsum(places, out=places)
    codes = np.empty(len(labels), dtype=np.int32)
    for rows in blocks:
        own = workers[rows].astype(np.int32) * np.int32(len(classes)) + labels[rows]
        place_labels(items[rows].astype(np.int64), own.astype(np.int32), places[1:], codes)
    return Answers(places[:-1], codes, shape, names, classes, **options)


def _check_pairs(n_workers: int, n_classes: int) -> None:
    if n_workers * n_classes >= _MOST_IN_FOUR:
        raise too_many_pairs(n_workers, n_classes)


def too_many_pairs(n_workers: int, n_classes: int) -> InvalidInputError:
    """Return the error of tables that do not fit."""
    message = (
        f"{n_workers} workers and {n_classes} classes make confusion tables of "
        f"{n_workers * n_classes**2:.3g} numbers. Are the labels classes, and not numbers or free "
        "text? Merge rare ones."
    )
    return InvalidInputError(message)


def read_answers(X: Any, columns: Sequence[str] | None) -> Answers:
    """Read a long table with the given columns, or a matrix or table of items x workers."""
    if type(X).__module__.partition(".")[0] in ("pandas", "polars") and hasattr(X, "columns"):
        known = [] if columns is None else [name for name in columns if name in list(X.columns)]
        if columns is not None and len(known) == len(columns):
            return _from_long(X, columns)
        if known or (columns is not None and (columns != DEFAULT_COLUMNS or _looks_long(X))):
            message = (
                f"The table does not have all of columns={tuple(columns or ())}, which make it a "
                f"long table of labels; it has {list(X.columns)[:8]}. Name the columns of items, "
                "workers and labels with columns=(...), or give columns=None if each column holds "
                "the labels of a worker."
            )
            raise InvalidInputError(message)
        return _from_wide(X)
    # NumPy would make text of the numbers in lists of both.
    given = unpack(np.array(X, dtype=object) if isinstance(X, (list, tuple)) else X)
    modes = _MODES if given.modes is None or len(given.modes) != 2 else given.modes
    stored = given.data
    if given.is_sparse and stored.ndim == 2:
        rows, workers = (np.asarray(part, dtype=np.intp) for part in stored.coords)
        return _from_entries((rows, workers), stored.data, stored.shape, given.labels, modes)
    return _from_matrix(to_numpy(stored), given.labels, modes)


def _looks_long(X: Any) -> bool:
    """Say whether one of three columns has many more values than another, as names of items do."""
    if X.shape[1] != 3:
        return False
    counts = sorted(len(set(X[name])) for name in X.columns)
    return counts[2] > max(_MANY_CLASSES, 10 * counts[0])


def _from_long(X: Any, columns: Sequence[str]) -> Answers:
    item, worker, label = read_columns(X, list(columns), table="X")
    (items, item_names), (workers, worker_names) = encode(item), encode(worker)
    known = label.series.notna().to_numpy()
    if not known.all():  # else nothing is copied
        label = Column(label.name, label.series[known], label.dtype)
        items, workers = items[known], workers[known]
    del known
    labels, found = _encoded(label)
    shape, names = (len(item_names), len(worker_names)), (item_names, worker_names)
    modes = (item.name, worker.name)
    entries = (items, workers, labels)
    return answers_of(entries, shape, names, found, modes=modes, is_long=True)


def _from_wide(X: Any) -> Answers:
    """Read a table with the labels of a worker in each column; its index names the items."""
    import pandas as pd

    index = getattr(X, "index", None)
    is_named = isinstance(index, pd.Index) and not isinstance(index, pd.RangeIndex)
    items = as_labels(index, name="item") if is_named else None  # type: ignore[arg-type]
    has_names = not isinstance(X.columns, pd.RangeIndex) and len(X.columns)
    workers = as_labels(X.columns, name="worker") if has_names else None
    kinds = list(X.dtypes) if isinstance(X, pd.DataFrame) and X.size else [None]
    first = kinds[0]
    if isinstance(first, pd.CategoricalDtype) and all(kind == first for kind in kinds):
        # Of columns with the same categories, their order is that of the classes.
        parts = [X.iloc[:, k].cat.set_categories(first.categories) for k in range(len(kinds))]
        codes = np.column_stack([part.cat.codes for part in parts])
        coords = np.nonzero(codes >= 0)
        values = pd.Categorical.from_codes(codes[coords], dtype=first)
        return _from_entries(coords, values, codes.shape, (items, workers), _MODES)
    return _from_matrix(X.to_numpy(), (items, workers), _MODES)


def _from_matrix(values: NDArray[Any], names: Any, modes: Any) -> Answers:
    import pandas as pd

    if values.ndim != 2:
        message = (
            f"X has {values.ndim} modes, of shape {values.shape}. Labels of a crowd are a matrix "
            "of items x workers, or a table with the columns item, worker and label. Reshape your "
            "data: X.reshape(1, -1) is one item, X.reshape(-1, 1) one worker."
        )
        raise InvalidInputError(message)
    if not values.size:
        what = "0 sample(s)" if not len(values) else "0 feature(s)"
        message = (
            f"X has {what} (shape={values.shape}) while a minimum of 1 is required: give the "
            "labels of one item by one worker at least."
        )
        raise InvalidInputError(message)
    if values.dtype.kind == "c":
        message = "Complex data not supported: labels are classes. Give integers or text."
        raise InvalidInputError(message)
    rows, workers = np.nonzero(~pd.isna(values))
    entries = values[rows, workers]
    is_text = {isinstance(entry, str) for entry in entries} if values.dtype == object else set()
    if len(is_text) > 1:
        message = (
            "X is a matrix of items x workers that has text and numbers; labels are of one type. "
            "If its rows are an item, a worker and a label each, give pandas.DataFrame(X, "
            "columns=['item', 'worker', 'label'])."
        )
        raise InvalidTypeError(message)
    return _from_entries((rows, workers), entries, values.shape, names, modes)


def _from_entries(coords: Any, values: Any, shape: Any, names: Any, modes: Any) -> Answers:
    import pandas as pd

    known = ~np.asarray(pd.isna(values))
    series = pd.Series(values[known]).infer_objects()
    labels, classes = _encoded(Column("label", series, str(series.dtype)))
    items, workers = (part[known] for part in coords)
    entries = (items, workers, labels)
    return answers_of(entries, tuple(shape), tuple(names), classes, modes=tuple(modes))


def _encoded(column: Column) -> tuple[Codes, NDArray[Any]]:
    """Return the number of the class of each label, and the classes; whole floats are integers."""
    if not len(column.series):
        message = (
            "X has no label at all. Labels are entries that are not NaN or None, and those that a "
            "sparse matrix stores."
        )
        raise InvalidInputError(message)
    codes, classes = encode(column)
    if classes.dtype.kind == "f":
        broken = (
            ~np.isfinite(classes) | (np.abs(classes) >= _LARGEST) | (classes != np.floor(classes))
        )
        if broken.any():
            message = (
                f"X has labels that are not whole numbers: {shown(classes[broken])}. Labels are "
                "classes: integers, text or categories. Input contains measurements, infinity or "
                "values too large; round or bin them, for example with pandas.cut."
            )
            raise InvalidInputError(message)
        classes = classes.astype(np.int64)
    return codes, classes


def with_gold(answers: Answers, gold: Any) -> tuple[Answers, Codes]:
    """Return the answers, with the classes of gold labels, and the class of each item or -1.

    Without gold labels there is no class, of no item.
    """
    import pandas as pd

    if gold is None:
        return answers, np.zeros(0, dtype=np.int32)
    if hasattr(gold, "columns"):
        message = (
            f"y is a table with the columns {list(gold.columns)[:8]}. Give a mapping from item to "
            "class, or a Series with the items as index, such as y.set_index('item')['class']."
        )
        raise InvalidTypeError(message)
    items, values = _gold_items(answers, gold)
    values = np.asarray(values, dtype=object) if isinstance(values, list) else np.asarray(values)
    told = (items >= 0) & ~np.asarray(pd.isna(values))
    known = np.full(answers.shape[0], -1, dtype=np.int32)
    if not told.any():
        message = (
            f"y knows none of the {len(known)} items of X. Give a mapping or a Series from the "
            "name of an item to its class, in the spelling and type of X."
        )
        raise InvalidInputError(message)
    n_strange = int((items < 0).sum())
    if n_strange:
        warn_user(
            f"{n_strange} of the {len(items)} items of y are not in X, and are left out. A Series "
            "goes by its index: is that the names of the items?",
            DataWarning,
        )
    series = pd.Series(values[told])
    codes, own = _encoded(Column("y", series, str(series.dtype)))
    joined = joined_classes(answers.classes, own)
    known[items[told]] = find_labels(joined, own)[codes]
    if joined is answers.classes:
        return answers, known
    n_workers, moved = answers.shape[1], find_labels(joined, answers.classes)
    return answers.recoded(np.arange(n_workers), moved, n_workers, joined), known


def _gold_items(answers: Answers, gold: Any) -> tuple[Codes, Any]:
    """Return the position of each item that gold labels are given for, -1 if X does not have it."""
    n_items, names = answers.shape[0], answers.names[0]
    is_series = hasattr(gold, "index") and hasattr(gold, "to_numpy")
    plain = is_series and type(gold.index).__name__ == "RangeIndex" and not answers.is_long
    if isinstance(gold, Mapping) or (is_series and not plain):
        wanted = list(gold) if isinstance(gold, Mapping) else gold.index
        values = list(gold.values()) if isinstance(gold, Mapping) else gold.to_numpy()
        if not len(wanted):
            return np.zeros(0, dtype=np.intp), np.zeros(0)
        own = np.arange(n_items) if names is None else names
        return find_labels(own, as_labels(wanted, name="y")), values
    if answers.is_long:
        message = (
            f"y is a {type(gold).__name__}, which does not say which item of the long table X each "
            "class is of. Give a mapping {item: class} or a Series with the items as index."
        )
        raise InvalidTypeError(message)
    values = gold.to_numpy() if hasattr(gold, "to_numpy") else gold
    if np.ndim(values) != 1 or len(values) != n_items:
        message = (
            f"y has the shape {np.shape(values)}, and X has {n_items} items. Give one class for "
            "each (None or NaN where it is not known), or a mapping {item: class}."
        )
        raise InvalidInputError(message)
    return np.arange(n_items), values


def joined_classes(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the classes of both, the first in their order if they have all."""
    new = second[find_labels(first, second) < 0]
    if not len(new):
        return first
    kinds = {own.dtype.kind.replace("u", "i") for own in (first, second)}
    if len(kinds) > 1:
        message = (
            f"y has classes of type {second.dtype} ({shown(second)}), and the labels of X are of "
            f"type {first.dtype} ({shown(first)}). Convert them to the same type."
        )
        raise InvalidTypeError(message)
    return np.unique(np.concatenate([first, new]))


def matched(answers: Answers, model: Any) -> Answers:
    """Bring new answers to the workers and classes of a model; unknown workers come last.

    Workers without names are known by position, and there are as many as in the fit.
    """
    n_workers, known = model.n_features_in_, model.labels_[1]
    theirs = answers.names[1]
    if theirs is None and answers.shape[1] != n_workers:
        message = (
            f"X has {answers.shape[1]} features, but {type(model).__name__} is expecting "
            f"{n_workers} features as input: workers without names are known by position. Give a "
            "column for each, or a long table with the names of workers."
        )
        raise InvalidInputError(message)
    places = np.arange(answers.shape[1])
    if theirs is not None:
        places = find_labels(np.arange(n_workers) if known is None else known, theirs)
    classes = find_labels(model.classes_, answers.classes)
    used = np.unique(answers.codes % len(answers.classes))
    strange = answers.classes[used[classes[used] < 0]]
    if len(strange):
        message = (
            f"X has labels that are none of the classes of the fit: {shown(strange)}; these are "
            f"{shown(model.classes_)}. Leave such labels out, or fit again with them."
        )
        raise InvalidInputError(message)
    is_asked = np.zeros(len(places), dtype=bool)
    is_asked[answers.codes // len(answers.classes)] = True
    known_ones = places[is_asked] >= 0
    if known is not None and theirs is not None and len(known_ones) and not known_ones.any():
        warn_user(
            f"None of the workers of X ({shown(theirs)}) is one of the fit ({shown(known)}): all "
            "count as typical ones. Are their names spelled the same, and of the same type?",
            DataWarning,
        )
    numbers = np.where(places < 0, n_workers, places)
    return answers.recoded(numbers, np.maximum(classes, 0), n_workers + 1, model.classes_)
