"""Columns of any kind as numbers that moments are made of.

A categorical variable of ``d`` categories is ``d`` rows of zeros and a one. A number ``y`` is two
rows, ``u`` and ``1 - u`` with ``u = (y - low) / (high - low)``: their means given the memberships
are linear in these, as those of a category are, and sum to one, so that one rule holds for all
kinds. What is missing is zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from polyad.core.threads import as_slices, cut
from polyad.data.label_values import shown
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

KINDS = ("categorical", "count", "real")
#: Whole numbers with more different values than this are no categories, unless it is said.
MOST_CATEGORIES = 20
#: Nor are they counts if their variance is more times their mean, which it is for Poisson numbers.
_MOST_SPREAD = 30.0
# Numbers further than this many standard deviations from the mean do not widen the range.
_WIDEST = 5.0
# Products of three numbers beyond this leave the range of double precision.
_LARGEST = 1e100
#: Numbers whose spread is below this are all the same; squares of less leave double precision.
NARROWEST = 1e-50
#: Whole numbers below this are exact in double precision.
LARGEST_WHOLE = 2.0**53
#: Means of counts are no smaller than this part of the largest count.
LEAST_COUNT = 1e-6
# Samples that are looked at together.
_ROWS_AT_A_TIME = 1 << 13


@dataclass(frozen=True)
class Columns:
    """The columns of a table that need not be numbers, and what of it was observed."""

    each: Sequence[Any]
    observed: NDArray[np.bool_] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return (len(self.each[0]) if len(self.each) else 0, len(self.each))

    def take_samples(self, kept: NDArray[np.int64]) -> Columns:
        """Return some of the rows."""
        observed = None if self.observed is None else self.observed[kept]
        each = [getattr(column, "iloc", column)[kept] for column in self.each]
        return Columns(each, observed)


@dataclass(frozen=True)
class Variables:
    """What is known of columns after a fit."""

    kinds: list[str]
    #: Of categorical variables, in the order of their rows.
    categories: list[np.ndarray | None]
    #: From where to where numbers run; (p, 2).
    ranges: Matrix

    @cached_property
    def is_categorical(self) -> NDArray[np.bool_]:
        """Whether a variable has categories."""
        return np.array([kind == "categorical" for kind in self.kinds])

    @cached_property
    def is_count(self) -> NDArray[np.bool_]:
        """Of the variables that are numbers, whether these are counts."""
        return np.array([kind == "count" for kind in self.kinds if kind != "categorical"])

    @cached_property
    def named_sizes(self) -> NDArray[np.int64]:
        """The numbers of categories of the categorical variables."""
        return self.sizes[self.is_categorical]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The numbers of rows of the variables."""
        return np.array([2 if own is None else len(own) for own in self.categories])

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Where a variable is among the categorical ones, or among the numbers."""
        flags = self.is_categorical
        return np.where(flags, np.cumsum(flags), np.cumsum(~flags)) - 1

    def span(self) -> Matrix:
        """Return the width of each range; one where it has none."""
        width = self.ranges[:, 1] - self.ranges[:, 0]
        return np.where(width > NARROWEST, width, 1.0)

    def in_units(self, rows: Sequence[Matrix]) -> list[Matrix]:
        """Return the rows of each variable as parameters: probabilities, or means of the data."""
        return [
            own if is_named else low + span * own[:1]
            for own, is_named, low, span in zip(
                *(rows, self.is_categorical, self.ranges[:, 0], self.span()), strict=True
            )
        ]

    def above_least(self, means: Matrix) -> Matrix:
        """Return the means of numbers (number of them, k), those of counts above zero."""
        if not len(means):
            return means
        least = LEAST_COUNT * np.maximum(self.ranges[~self.is_categorical, 1], 1.0)[:, None]
        return np.where(self.is_count[:, None], np.maximum(means, least), means)


@dataclass(frozen=True)
class Table:
    """Samples as codes of categories and as numbers."""

    variables: Variables
    #: (n, number of categorical variables), whole numbers; a category is ``codes - first``.
    codes: NDArray[Any]
    first: NDArray[Any]
    #: (n, number of the others), NaN where missing.
    values: NDArray[Any]
    #: Whether anything may be missing: codes below zero, NaN.
    has_missing: bool
    #: The number type of features.
    dtype: Any = np.float64

    @property
    def n_samples(self) -> int:
        """The number of samples."""
        return len(self.codes)

    def every(self, step: int) -> Table:
        """Return each so many-th sample, in memory."""
        codes, values = (np.array(own[::step]) for own in (self.codes, self.values))
        return replace(self, codes=codes, values=values)

    def categories_at(self, rows: slice, chosen: Any = slice(None)) -> NDArray[np.int64]:
        """Return the categories of some samples in categorical variables, below zero if missing."""
        codes: NDArray[np.int64] = self.codes[rows][:, chosen].astype(np.int64)
        codes -= self.first[chosen].astype(np.int64)
        return codes


class Indicators:
    """The rows of some variables for all samples, a sparse matrix that is made in parts.

    ``weights`` multiplies all that is observed of a variable.
    """

    def __init__(
        self, table: Table, chosen: NDArray[np.int64], weights: Matrix | None = None
    ) -> None:
        own = table.variables
        self.table, self.chosen, self.weights = table, chosen, weights
        sizes = own.sizes[chosen]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self.n_rows = int(self.starts[-1])
        #: Which of the chosen variables a row belongs to.
        self.owner = np.repeat(np.arange(len(chosen)), sizes)
        self._named = np.flatnonzero(own.is_categorical[chosen])
        self._numbers = np.flatnonzero(~own.is_categorical[chosen])
        self.n_entries = len(self._named) + 2 * len(self._numbers)

    def part(self, block: tuple[int, int]) -> csr_array:
        """Return the rows of a block of samples; (samples, rows of the variables)."""
        rows, own, chosen = slice(*block), self.table.variables, self.chosen
        columns = own.place[chosen[self._named]]
        indices = self.table.codes[rows][:, columns].astype(np.int32)
        data = np.ones(indices.shape)
        if self.table.has_missing:
            indices -= self.table.first[columns].astype(np.int32)
            data[indices < 0] = 0.0
            np.maximum(indices, 0, out=indices)
            indices += self.starts[self._named].astype(np.int32)
        else:
            indices += (self.starts[self._named] - self.table.first[columns]).astype(np.int32)
        if len(self._numbers):
            which = chosen[self._numbers]
            values = self.table.values[rows][:, own.place[which]].astype(np.float64)
            part = (values - own.ranges[which, 0]) / own.span()[which]
            pairs = np.nan_to_num(np.concatenate([part, 1.0 - part], axis=1))
            places = np.concatenate([self.starts[self._numbers], self.starts[self._numbers] + 1])
            data = np.concatenate([data, pairs], axis=1)
            beside = np.broadcast_to(places.astype(np.int32), pairs.shape)
            indices = np.concatenate([indices, beside], axis=1)
        if self.weights is not None:
            data = data * np.concatenate(
                [self.weights[self._named], np.tile(self.weights[self._numbers], 2)]
            )
        n_samples = len(data)
        ends = np.arange(n_samples + 1) * self.n_entries
        shape = (n_samples, self.n_rows)
        return csr_array((data.ravel(), indices.ravel(), ends.astype(np.int32)), shape=shape)

    def observed(self, block: tuple[int, int]) -> Matrix:
        """Return which of the chosen variables were observed, as zeros and ones."""
        rows, own, chosen = slice(*block), self.table.variables, self.chosen
        seen = np.ones((block[1] - block[0], len(chosen)))
        seen[:, self._named] = self.table.categories_at(rows, own.place[chosen[self._named]]) >= 0
        values = self.table.values[rows][:, own.place[chosen[self._numbers]]]
        seen[:, self._numbers] = ~np.isnan(values)
        return seen


def read_columns(data: Any, kinds: Any, names: Sequence[Any]) -> Table:
    """Return a table of training data, a matrix or :class:`Columns`, with what it says of itself.

    ``kinds`` is a word for all columns, or a mapping from names or positions to words.
    """
    wanted = _wanted_kinds(kinds, names)
    if isinstance(data, np.ndarray) and data.dtype.kind in "iub":
        table = _read_codes(data, wanted)
        if table is not None:
            return table
    found = [
        _read_column(_column(data, j), word, name)
        for j, (word, name) in enumerate(zip(wanted, names, strict=True))
    ]
    variables = Variables(
        [kind for kind, *_ in found],
        [categories for _, categories, _, _ in found],
        np.array([limits for *_, limits in found]),
    )
    return _assembled(variables, [numbers for _, _, numbers, _ in found], data)


def read_samples(
    data: Any, variables: Variables, names: Sequence[Any]
) -> tuple[Table, list[tuple[int, Any]]]:
    """Return new samples as a table, and which variables have categories that are new."""
    strange: list[tuple[int, Any]] = []
    numbers = []
    for j, (kind, known) in enumerate(zip(variables.kinds, variables.categories, strict=True)):
        column = _column(data, j)
        if known is None:
            values = _as_numbers(column, kind, names[j])
            numbers.append(_checked_numbers(values, kind, names[j]))
            continue
        found = _as_labels(column)
        codes = pd.Index(known).get_indexer(pd.Index(found))
        new = (codes < 0) & ~np.asarray(pd.isna(found))
        if new.any():
            strange.append((j, np.unique(np.asarray(found[new]).astype(str))))
        numbers.append(codes)
    return _assembled(variables, numbers, data), strange


def find_positions(chosen: Any, names: Sequence[Any], title: str) -> NDArray[np.int64]:
    """Return the positions of variables that were given by name or position, one or several."""
    is_one = isinstance(chosen, str) or not isinstance(chosen, Iterable)
    known = {name: j for j, name in enumerate(names)}
    found = []
    for item in [chosen] if is_one else chosen:
        is_position = isinstance(item, (int, np.integer)) and 0 <= item < len(names)
        is_name = isinstance(item, (str, int, np.integer)) and item in known
        if not is_name and not is_position:
            message = (
                f"{title} has {item!r}, which is neither the name nor the position of a column. "
                f"There are {len(names)} columns: {shown(np.asarray(names, dtype=object))}."
            )
            raise InvalidInputError(message)
        found.append(known.get(item, item))
    return np.array(found, dtype=np.int64)


def _wanted_kinds(kinds: Any, names: Sequence[Any]) -> list[str]:
    """Return a word for each column: 'auto' or one of KINDS."""
    accepted = ("auto", *KINDS)
    wanted = [kinds if isinstance(kinds, str) else "auto"] * len(names)
    if not isinstance(kinds, (str, Mapping)):
        message = f"kinds={kinds!r} is neither one of {accepted} nor a dict from column to one."
        raise InvalidTypeError(message)
    for column, word in kinds.items() if isinstance(kinds, Mapping) else ():
        wanted[int(find_positions([column], names, "kinds")[0])] = word
    for word in wanted:
        if word not in accepted:
            message = f"kinds has {word!r}, which is not one of {', '.join(map(repr, accepted))}."
            raise InvalidInputError(message)
    return wanted


def _column(data: Any, j: int) -> Any:
    """Return a column, with None or NaN where it was not observed."""
    if not isinstance(data, Columns):
        return data[:, j]
    column = data.each[j]
    if data.observed is None or data.observed[:, j].all():
        return column
    series = pd.Series(column)
    if not isinstance(series.dtype, pd.CategoricalDtype):  # which has an order to keep
        series = series.astype(object)
    return series.where(data.observed[:, j], None)


def _as_labels(column: Any) -> Any:
    """Return what categories are compared by: text, whole numbers, True and False, or numbers."""
    series = pd.Series(column)
    if pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(series.dtype):
        values = series.to_numpy()
        if isinstance(series.dtype, pd.api.extensions.ExtensionDtype) and series.hasnans:
            values = _numbers_of(series.to_numpy(dtype=object))
    elif series.dtype.kind in "bMm":
        values = series.to_numpy()
    else:
        values = series.to_numpy(dtype=object)
        known = values[~pd.isna(values)]
        if any(type(own).__hash__ is None for own in known):
            message = "X has lists, or other collections, as entries. Make text or columns of them."
            raise InvalidTypeError(message)
        if len(known) and all(_is_number(own) for own in known):
            values = _numbers_of(values)
    if values.dtype.kind == "f" and not np.isnan(values).any() and _are_whole(values):
        return values.astype(np.int64)
    return values


def _numbers_of(objects: NDArray[Any]) -> NDArray[Any]:
    """Return numbers and what is missing in floating point, or as they are if that is not exact."""
    known = objects[~pd.isna(objects)]
    is_whole = all(isinstance(own, Integral) for own in known)
    if is_whole and any(abs(int(own)) >= LARGEST_WHOLE for own in known):
        return objects
    return pd.to_numeric(pd.Series(objects), errors="coerce").to_numpy(np.float64, na_value=np.nan)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _are_whole(values: NDArray[Any]) -> bool:
    """Say whether numbers are whole, and small enough to be told apart."""
    return bool((values == np.round(values)).all() and (np.abs(values) < LARGEST_WHOLE).all())


def _read_column(
    column: Any, word: str, name: Any
) -> tuple[str, np.ndarray | None, np.ndarray, tuple[float, float]]:
    """Return the kind of a column, its categories, its codes or numbers, and its range."""
    kind = _kind_of(column, name) if word == "auto" else word
    if kind != "categorical":
        values = _checked_numbers(_as_numbers(column, kind, name), kind, name)
        if np.isnan(values).all():
            raise _nothing_observed(name)
        return kind, None, values, _limits(values, kind)
    declared = getattr(getattr(column, "dtype", None), "categories", None)
    codes, found = pd.factorize(_as_labels(column), use_na_sentinel=True)
    if not len(found):
        raise _nothing_observed(name)
    categories = _storable(np.asarray(found), name)
    order = np.argsort(categories, kind="stable")
    if declared is not None and getattr(column.dtype, "ordered", False):
        order = np.argsort(pd.Index(declared).get_indexer(pd.Index(found)), kind="stable")
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[order], rank[-1] = np.arange(len(order)), -1
    return kind, categories[order], rank[codes], (0.0, 1.0)


def _storable(categories: np.ndarray, name: Any) -> np.ndarray:
    """Return categories as text, numbers or dates, of which a model file is made."""
    if categories.dtype.kind == "f":
        _check_finite(categories, name)
        return categories.astype(np.int64) if _are_whole(categories) else categories
    if categories.dtype != object:
        return categories
    for wanted, dtype in ((str, str), ((bool, np.bool_), bool), (Integral, np.int64)):
        if all(isinstance(own, wanted) for own in categories) and (
            dtype is not np.int64 or max(abs(int(own)) for own in categories) < 2**63
        ):
            stored = categories.astype(dtype)
            if (stored == categories).all():
                return stored
            message = f"Column {name!r} has text that ends in a NUL character, which is not kept."
            raise InvalidInputError(message)
    types = ", ".join(sorted({type(own).__name__ for own in categories}))
    message = (
        f"Column {name!r} has categories of a type, or of several, that are not taken, {types}: "
        f"{shown(categories)}. Make them all text, for example with X[column].astype(str)."
    )
    raise InvalidTypeError(message)


def _kind_of(column: Any, name: Any) -> str:
    """Say what a column is: the rule of ``kinds='auto'``."""
    values = _as_labels(column)
    seen = values[~np.asarray(pd.isna(values))]
    if not len(seen):
        raise _nothing_observed(name)
    are_objects = values.dtype.kind == "O" and all(map(_is_number, seen))
    if values.dtype.kind not in "iuf" and not are_objects:
        return "categorical"
    if values.dtype.kind == "f" and not _are_whole(seen):
        return "real"
    if len(np.unique(seen)) <= MOST_CATEGORIES:
        return "categorical"
    # Ages and incomes are whole numbers too, but no counts of events.
    numbers = seen.astype(np.float64)
    is_count = numbers.min() == 0 and numbers.var() <= _MOST_SPREAD * numbers.mean()
    return "count" if is_count else "real"


def _as_numbers(column: Any, kind: str, name: Any) -> Matrix:
    try:
        return np.asarray(pd.to_numeric(pd.Series(column), errors="raise"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        message = (
            f"Column {name!r} is taken as {kind!r} but holds what is not a number: {error}. Give "
            "kinds={column: 'categorical'}."
        )
        raise InvalidInputError(message) from error


def _check_finite(values: NDArray[Any], name: Any) -> None:
    if np.isinf(values).any():
        message = f"Column {name!r} has infinity. Give NaN for what is missing."
        raise InvalidInputError(message)


def _checked_numbers(values: Matrix, kind: str, name: Any) -> Matrix:
    _check_finite(values, name)
    seen = values[~np.isnan(values)]
    if (np.abs(seen) > _LARGEST).any():
        message = f"Column {name!r} has numbers beyond {_LARGEST:g}: give them in another unit."
        raise InvalidInputError(message)
    if kind == "count" and ((seen < 0) | (seen != np.round(seen))).any():
        message = (
            f"Column {name!r} is taken as 'count' but has numbers that are negative or not whole. "
            "Fit with kinds={column: 'real'}."
        )
        raise InvalidInputError(message)
    return values


def _nothing_observed(name: Any) -> InvalidInputError:
    return InvalidInputError(
        f"Column {name!r} has no observation: leave it out, or check what its missing values are."
    )


def _limits(values: Matrix, kind: str) -> tuple[float, float]:
    """Return from where to where numbers run, but for those that are far out.

    A shift and a scale of a variable are those of its means, since memberships sum to one.
    """
    seen = values[~np.isnan(values)]
    low, high, mean, spread = seen.min(), seen.max(), seen.mean(), _WIDEST * seen.std()
    low = 0.0 if kind == "count" else max(low, mean - spread)
    return float(low), float(min(high, mean + spread) if high > low else high)


def _assembled(variables: Variables, numbers: Sequence[np.ndarray], data: Any) -> Table:
    flags = variables.is_categorical
    n_samples = data.shape[0]
    width = np.int8 if variables.sizes.max() < 128 else np.int32
    codes = np.empty((n_samples, int(flags.sum())), dtype=width)
    values = np.empty((n_samples, int((~flags).sum())))
    for j, own in enumerate(numbers):
        (codes if flags[j] else values)[:, variables.place[j]] = own
    missing = bool((codes < 0).any() or np.isnan(values).any())
    dtype = np.float32 if getattr(data, "dtype", None) == np.float32 else np.float64
    first = np.zeros(codes.shape[1], dtype=np.int64)
    return Table(variables, codes, first, values, missing, dtype)


def _read_codes(data: NDArray[Any], wanted: Sequence[str]) -> Table | None:
    """Return a table that reads whole numbers in place, if they are categories without gaps.

    Data on disk that is larger than memory stays there: it is read a part of the samples at a time.
    """
    if any(word not in ("auto", "categorical") for word in wanted):
        return None
    # In whole numbers of Python: differences of the largest do not fit others.
    ends = [bound(data, axis=0).astype(object) for bound in (np.min, np.max)]
    widest = (ends[1] - ends[0]).max()
    if widest >= MOST_CATEGORIES or ends[1].max() > np.iinfo(np.int64).max:
        return None
    low, high = (own.astype(np.int64) for own in ends)
    seen = np.zeros((int(widest) + 1, data.shape[1]), dtype=bool)
    for rows in as_slices(cut(len(data), _ROWS_AT_A_TIME)):
        part = np.asarray(data[rows])
        for number in range(len(seen)):
            seen[number] |= (part == (low + number).astype(part.dtype)).any(axis=0)
    counts = seen.sum(axis=0)
    if (counts != high - low + 1).any():
        return None
    dtype = bool if data.dtype == bool else np.int64
    categories: list[np.ndarray | None] = [
        np.arange(first, last + 1).astype(dtype) for first, last in zip(low, high, strict=True)
    ]
    variables = Variables(
        ["categorical"] * len(low), categories, np.tile([0.0, 1.0], (len(low), 1))
    )
    return Table(variables, data, low, np.empty((len(data), 0)), has_missing=False)
