"""Health records to a tensor of patients x diagnoses x medications.

Records come as two tables, one row per event. A diagnosis and a medication of a patient belong
together if they were recorded in the same encounter, or if the diagnosis is the reason that was
recorded with the medication.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from polyad.data.label_values import as_labels, shown
from polyad.data.labels import LabelledTensor
from polyad.data.long_table import read_columns
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

Link = Literal["encounter", "reason"]

_MODES = ["patient", "diagnosis", "medication"]
_CODES = _MODES[1:]
# What a column is called unless the caller says otherwise.
_COLUMNS: dict[str, str | None] = {
    "patient": "patient",
    "encounter": "encounter",
    "code": "code",
    "description": "description",
    "reason": "reason_code",
    "reason_description": "reason_description",
}
_DESCRIPTIONS = ("description", "reason_description")


def tensor_from_events(  # noqa: PLR0913  (options by keyword)
    medications: Any,
    diagnoses: Any = None,
    *,
    link: Link = "encounter",
    binary: bool = False,
    min_patients: int = 1,
    max_codes: int | None = None,
    patients: ArrayLike | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> LabelledTensor:
    """Build the tensor of patients x diagnoses x medications from tables of events.

    If one table already has a column for each of the three, use
    :meth:`polyad.LabelledTensor.from_frame`.

    Parameters
    ----------
    medications : pandas.DataFrame or polars.DataFrame
        One row per prescription: the patient, the code of the medication, and the encounter or
        the reason.
    diagnoses : pandas.DataFrame or polars.DataFrame, optional
        One row per diagnosis: patient, encounter and code. Needed for ``link='encounter'``. For
        ``link='reason'`` only its descriptions are used, where the medications have none.
    link : {'encounter', 'reason'}, default='encounter'
        What makes a pair of a diagnosis and a medication. ``'encounter'``: both were recorded in
        the same encounter of the patient; an entry counts these encounters. ``'reason'``: the
        diagnosis is the reason recorded with the medication; an entry counts the prescriptions.
        Rows without encounter, or without reason, make no pair.
    binary : bool, default=False
        Whether an entry is 1 however often the pair occurs.
    min_patients : int, default=1
        Keep the codes that pairs of at least so many patients contain. Codes are taken out until
        all that are left fulfil this.
    max_codes : int, optional
        Keep at most so many diagnoses and so many medications, those of the most patients.
    patients : array-like, optional
        The patients that mode 0 shall have, in this order, also those without any pair. Events of
        others are left out. By default the patients that have a pair, sorted.
    columns : mapping of str to str, optional
        What the columns are called, where it is not as here: ``patient``, ``encounter``, ``code``,
        ``description``, ``reason`` (default name ``reason_code``) and ``reason_description``. The
        two descriptions may be absent. None for one of them makes labels of the codes.

    Returns
    -------
    LabelledTensor
        Sparse, with the modes ``patient``, ``diagnosis`` and ``medication``. The label of a code
        is the description that most of its rows have, with the code in brackets where two codes
        share one.

    Examples
    --------
    >>> import pandas as pd
    >>> from polyad.io import tensor_from_events
    >>> diagnoses = pd.DataFrame({
    ...     "patient": [1, 1, 2], "encounter": [10, 11, 20],
    ...     "code": ["J45", "I10", "J45"], "description": ["asthma", "hypertension", "asthma"],
    ... })
    >>> medications = pd.DataFrame({
    ...     "patient": [1, 1, 2, 2], "encounter": [10, 11, 20, 21],
    ...     "code": ["R03", "C03", "R03", "C03"],
    ...     "description": ["inhaler", "diuretic", "inhaler", "diuretic"],
    ... })
    >>> tensor_from_events(medications, diagnoses)
    LabelledTensor of order 3, shape (2, 2, 2), float64, sparse: 3 entries, density 0.375
      patient: 1, 2
      diagnosis: 'asthma', 'hypertension'
      medication: 'diuretic', 'inhaler'
    """
    names = _column_names(columns)
    _check_request(link, diagnoses, min_patients, max_codes)
    if not isinstance(binary, bool | np.bool_):
        message = f"binary={binary!r} is a {type(binary).__name__}; give True or False."
        raise InvalidTypeError(message)
    if link == "encounter":
        pairs = _pairs_by_encounter(medications, diagnoses, names)
    else:
        pairs = _pairs_by_reason(medications, names)
    wanted = None if patients is None else as_labels(patients, name="patient")
    if wanted is not None:
        pairs = pairs[pairs["patient"].isin(wanted)]
        if len(pairs) == 0:
            message = (
                f"None of the {len(wanted)} patients asked for has a pair of a diagnosis and a "
                f"medication: {shown(wanted)}. Check the spelling and the type of the labels."
            )
            raise InvalidInputError(message)
    pairs = _supported(pairs, min_patients, max_codes)
    if binary:
        pairs = pairs.drop_duplicates(_MODES)
    tables = {"medication": [(medications, "medications", "code", "description")]}
    own = [] if diagnoses is None else [(diagnoses, "diagnoses", "code", "description")]
    if link == "reason":
        own.insert(0, (medications, "medications", "reason", "reason_description"))
    tables["diagnosis"] = own
    pairs = pairs.assign(
        **{mode: _described(pairs[mode], sources, names) for mode, sources in tables.items()}
    )
    given = {} if wanted is None else {"patient": wanted}
    return LabelledTensor.from_frame(pairs, modes=_MODES, labels=given)


def _check_request(link: str, diagnoses: Any, min_patients: int, max_codes: int | None) -> None:
    if not isinstance(link, str) or link not in get_args(Link):
        message = f"link={link!r} has no meaning; give 'encounter' or 'reason'."
        raise InvalidInputError(message)
    if link == "encounter" and diagnoses is None:
        message = (
            "link='encounter' pairs the diagnoses of an encounter with its medications. Give the "
            "table of diagnoses too, or link='reason'."
        )
        raise InvalidInputError(message)
    if diagnoses is not None:
        read_columns(diagnoses, [], table="diagnoses")  # refuses what is no table
    for name, number in (("min_patients", min_patients), ("max_codes", max_codes)):
        if number is None and name == "max_codes":
            continue
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            message = f"{name}={number!r} is not accepted; give a whole number from 1 up."
            raise InvalidInputError(message)


def _column_names(columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Return the name of each column; descriptions that were not named may be absent."""
    if columns is not None and not isinstance(columns, Mapping):
        message = (
            f"columns={columns!r} is a {type(columns).__name__}; give a dict from what a column "
            f"holds to its name, such as {{'patient': 'PATIENT'}}."
        )
        raise InvalidTypeError(message)
    given = {} if columns is None else dict(columns)
    for role, name in given.items():
        if role not in _COLUMNS:
            message = f"columns names {role!r}; what can be named is {list(_COLUMNS)}."
            raise InvalidInputError(message)
        if not isinstance(name, str) and not (name is None and role in _DESCRIPTIONS):
            message = f"columns gives {name!r} for {role!r}; the name of a column is needed."
            raise InvalidTypeError(message)
    return {**_COLUMNS, **given}


def _read(
    frame: Any, table: str, roles: Mapping[str, str], names: Mapping[str, str | None]
) -> pd.DataFrame:
    """Return some columns of a table under the names of their new roles."""
    import pandas as pd

    columns = read_columns(frame, [str(names[role]) for role in roles], table=table)
    return pd.DataFrame(
        {
            new: _plain(column.series).reset_index(drop=True)
            for new, column in zip(roles.values(), columns, strict=True)
        }
    )


def _plain(series: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column whose values compare across tables.

    Categories become what they stand for. Whole numbers that are held as floats because some are
    missing become integers.
    """
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    if series.dtype.kind == "f":
        known = series.dropna()
        if (known == known.round()).all() and known.abs().max() < 2**53:
            return series.astype("Int64")
    return series


def _known(events: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in which nothing is missing, in types that cannot hold missing values."""
    rows = events.dropna()
    nullable = {name: np.int64 for name, kind in rows.dtypes.items() if str(kind) == "Int64"}
    return rows.astype(nullable)


def _complete(events: pd.DataFrame, table: str, needed: list[str]) -> None:
    """Refuse events without patient or code."""
    if len(events) == 0:
        message = f"The table {table} has no rows."
        raise InvalidInputError(message)
    for name in needed:
        missing = events[name].isna().to_numpy()
        if missing.any():
            message = (
                f"The table {table} has no {name} in {missing.sum()} rows, the first is row "
                f"{missing.argmax()} (counting from 0). Drop these rows first."
            )
            raise InvalidInputError(message)


def _pairs_by_encounter(
    medications: Any, diagnoses: Any, names: Mapping[str, str | None]
) -> pd.DataFrame:
    """Return a row for each encounter and each pair of codes in it."""
    roles = {"patient": "patient", "encounter": "encounter"}
    drugs = _read(medications, "medications", {**roles, "code": "medication"}, names)
    illnesses = _read(diagnoses, "diagnoses", {**roles, "code": "diagnosis"}, names)
    _complete(drugs, "medications", ["patient", "medication"])
    _complete(illnesses, "diagnoses", ["patient", "diagnosis"])
    keys = list(roles)
    for key in keys:
        kinds = [table[key].dtype for table in (illnesses, drugs)]
        if _kind(kinds[0]) != _kind(kinds[1]):
            message = (
                f"The column {names[key]!r} is of type {kinds[0]} in diagnoses and of type "
                f"{kinds[1]} in medications, so nothing would match. Convert one of them."
            )
            raise InvalidTypeError(message)
    # A code that is recorded twice in an encounter is one.
    pairs = _known(illnesses).drop_duplicates().merge(_known(drugs).drop_duplicates(), on=keys)
    if len(pairs) == 0:
        message = (
            "No encounter of a patient has both a diagnosis and a medication. Check that the "
            f"columns {names['patient']!r} and {names['encounter']!r} mean the same in both "
            "tables, or link by reason (link='reason')."
        )
        raise InvalidInputError(message)
    return pairs


def _kind(dtype: Any) -> str:
    """Return numbers, text or something else."""
    kind: str = getattr(dtype, "kind", "O")
    return {"i": "number", "u": "number", "f": "number", "O": "text", "U": "text"}.get(kind, kind)


def _pairs_by_reason(medications: Any, names: Mapping[str, str | None]) -> pd.DataFrame:
    """Return a row for each prescription with a reason."""
    roles = {"patient": "patient", "reason": "diagnosis", "code": "medication"}
    drugs = _read(medications, "medications", roles, names)
    _complete(drugs, "medications", ["patient", "medication"])
    pairs = _known(drugs)
    if len(pairs) == 0:
        message = (
            f"No medication has a reason: the column {names['reason']!r} is empty. Link by "
            "encounter instead (link='encounter')."
        )
        raise InvalidInputError(message)
    return pairs


def _supported(pairs: pd.DataFrame, min_patients: int, max_codes: int | None) -> pd.DataFrame:
    """Keep the pairs of codes that enough patients have."""
    kept = pairs
    if max_codes is not None:
        for mode in _CODES:
            support = _support(pairs, mode).sort_values(ascending=False, kind="stable")
            kept = kept[kept[mode].isin(support.index[:max_codes])]
    n_before = -1
    # What is left of a code's pairs shrinks with the other mode: until nothing changes.
    while len(kept) and len(kept) != n_before:
        n_before = len(kept)
        for mode in _CODES:
            support = _support(kept, mode)
            kept = kept[kept[mode].isin(support.index[support >= min_patients])]
    if len(kept) == 0:
        most = {mode: int(_support(pairs, mode).max()) for mode in _CODES}
        message = (
            f"Nothing is left with min_patients={min_patients} and max_codes={max_codes}: of "
            f"{len(pairs)} pairs, the most frequent diagnosis is in those of {most['diagnosis']} "
            f"patients and the most frequent medication in those of {most['medication']}. Lower "
            "min_patients, or raise max_codes."
        )
        raise InvalidInputError(message)
    return kept


def _support(pairs: pd.DataFrame, mode: str) -> pd.Series[Any]:
    """Return the number of patients of each code, codes sorted."""
    counts: pd.Series[Any] = pairs.groupby(mode)["patient"].nunique()
    return counts


def _described(
    codes: pd.Series[Any],
    sources: list[tuple[Any, str, str, str]],
    names: Mapping[str, str | None],
) -> NDArray[Any]:
    """Return the label of each code: its description if any table has one."""
    import pandas as pd

    unique = pd.Index(codes.unique())
    labels = pd.Series(None, index=unique, dtype=object)
    for frame, table, code, description in sources:
        column = names[description]
        absent = column == _COLUMNS[description] and column not in list(frame.columns)
        if column is None or absent:
            continue
        rows = _read(frame, table, {code: "code", description: "text"}, names)
        rows = _known(rows)
        rows = rows[rows["code"].isin(unique)]
        if len(rows) == 0:
            continue
        text = rows["text"].astype(str).str.strip()
        # The first of the most frequent ones, in the order of the text.
        usual = text.groupby(rows["code"]).agg(lambda texts: texts.mode().iloc[0])
        labels = labels.fillna(usual)
    undescribed = labels.isna().to_numpy()
    if undescribed.all():
        return codes.to_numpy()
    labels = labels.where(~undescribed, pd.Series(unique, index=unique).astype(str))
    brackets = " [" + pd.Series(unique, index=unique).astype(str) + "]"
    # A description may look like another one with its code: until all are told apart.
    while (shared := labels.duplicated(keep=False)).any():
        labels = labels.where(~shared, labels + brackets)
    named: NDArray[Any] = labels.loc[codes].to_numpy()
    return named
