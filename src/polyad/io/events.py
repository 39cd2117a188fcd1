"""Health records to a tensor of patients x diagnoses x medications.

Records come as two tables, one row per event. A diagnosis and a medication of a patient belong
together if they were recorded in the same encounter, or if the diagnosis is the reason that was
recorded with the medication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from polyad.data.label_values import as_labels, shown
from polyad.data.labels import LabelledTensor
from polyad.data.long_table import read_columns, read_long_table
from polyad.data.preparation import Entries, Limit, read_preparation
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

Link = Literal["encounter", "reason"]
#: The columns of each table, by what they hold.
Names = dict[str, dict[str, str | None]]

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
_TABLES = ("medications", "diagnoses")
# Words in the names of columns that tell what a table is about.
_DRUG_WORDS = frozenset(
    ["drug", "drugs", "medication", "medications", "medicine", "prescription", "rxnorm", "ndc"]
).union(["atc", "dose", "dosage", "dispenses", "dispensed", "route"])
_ILLNESS_WORDS = frozenset(("diagnosis", "diagnoses", "condition", "conditions", "icd", "snomed"))


def tensor_from_events(  # noqa: PLR0913  (options by keyword)
    medications: Any,
    diagnoses: Any = None,
    *,
    link: Link = "encounter",
    entries: Entries = "sum",
    sample_total: float | None = None,
    min_patients: Limit = None,
    max_patients: Limit = None,
    max_codes: int | None = None,
    patients: ArrayLike | None = None,
    columns: Mapping[str, Any] | None = None,
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
    entries : {'sum', 'presence', 'log'}, default='sum'
        What an entry is: how often the pair occurs, 1 however often it does, or the logarithm of
        one plus the count. One long stay pairs all its diagnoses with all its medications: with the
        last two such patients count for less.
    sample_total : float, optional
        What the entries of each patient are made to sum to, before logarithms: 1 makes shares.
    min_patients, max_patients : int, float, or mapping of mode name to these, optional
        Keep the codes that pairs of at least, and at most, so many patients contain: a whole number
        of patients, or a share of those that have a pair. Codes of too many are taken out first,
        the rare ones until all that are left fulfil this.
    max_codes : int, optional
        Keep at most so many diagnoses and so many medications, those of the most patients.
    patients : array-like, optional
        The patients that mode 0 shall have, in this order, also those without any pair. Events of
        others are left out. By default the patients that have a pair, sorted.
    columns : mapping of str to str, or of table to such a mapping, optional
        What the columns are called, where it is not as here: ``patient``, ``encounter``, ``code``,
        ``description``, ``reason`` (default name ``reason_code``) and ``reason_description``. The
        two descriptions may be absent. None for one of them makes labels of the codes. Where the
        tables have different names, give them for each: ``{"medications": {"code": "ndc"},
        "diagnoses": {"code": "icd"}}``.

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
    _check_request(link, diagnoses, max_codes)
    preparation = read_preparation(
        *(entries, sample_total, (min_patients, max_patients)),
        modes=_MODES,
        known=() if patients is None else ("patient",),
        words=("min_patients", "max_patients"),
    )
    _refuse_swapped(medications, diagnoses, names)
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
    if max_codes is not None:
        pairs = _most_frequent(pairs, max_codes)
    tables = {"medication": [(medications, "medications", "code", "description")]}
    own = [] if diagnoses is None else [(diagnoses, "diagnoses", "code", "description")]
    if link == "reason":
        own.insert(0, (medications, "medications", "reason", "reason_description"))
    tables["diagnosis"] = own
    pairs = pairs.assign(
        **{mode: _described(pairs[mode], sources, names) for mode, sources in tables.items()}
    )
    given = {} if wanted is None else {"patient": wanted}
    whole: Any = {"duplicates": "sum", "unknown": "error", "value": None, "dtype": None}
    counts = read_long_table(pairs, modes=_MODES, labels=given, **whole)
    data, labels = preparation.apply(*counts)
    return LabelledTensor(data, modes=_MODES, labels=labels)


def _check_request(link: str, diagnoses: Any, max_codes: int | None) -> None:
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
    if max_codes is None:
        return
    if isinstance(max_codes, bool) or not isinstance(max_codes, int | np.integer) or max_codes < 1:
        message = f"max_codes={max_codes!r} is not accepted; give a whole number from 1 up."
        raise InvalidInputError(message)


def _column_names(columns: Mapping[str, Any] | None) -> Names:
    """Return the name of each column of each table; descriptions not named may be absent."""
    if columns is not None and not isinstance(columns, Mapping):
        message = (
            f"columns={columns!r} is a {type(columns).__name__}; give a dict from what a column "
            f"holds to its name, such as {{'patient': 'PATIENT'}}, or one for each table."
        )
        raise InvalidTypeError(message)
    given = {} if columns is None else dict(columns)
    both = {role: name for role, name in given.items() if role not in _TABLES}
    names: Names = {}
    for table in _TABLES:
        own = given.get(table, {})
        if not isinstance(own, Mapping):
            message = (
                f"columns gives {own!r} for the table {table}; give a dict from what a column "
                "holds to its name."
            )
            raise InvalidTypeError(message)
        for role, name in (*both.items(), *own.items()):
            if role not in _COLUMNS:
                message = (
                    f"columns names {role!r}; what can be named is {list(_COLUMNS)}, or a dict of "
                    f"these for each table, {list(_TABLES)}."
                )
                raise InvalidInputError(message)
            if not isinstance(name, str) and not (name is None and role in _DESCRIPTIONS):
                message = f"columns gives {name!r} for {role!r}; the name of a column is needed."
                raise InvalidTypeError(message)
        names[table] = {**_COLUMNS, **both, **own}
    return names


def _refuse_swapped(medications: Any, diagnoses: Any, names: Names) -> None:
    """Refuse tables whose columns speak of what the other one is for."""
    if diagnoses is None:
        return
    first, second = (
        [str(name) for name in getattr(table, "columns", ())] for table in (medications, diagnoses)
    )
    of_drugs = [name for name in second if _speaks_of(name, _DRUG_WORDS)]
    of_illness = [name for name in first if _speaks_of(name, _ILLNESS_WORDS)]
    has_own = any(_speaks_of(name, _DRUG_WORDS) for name in first)
    reason = str(names["medications"]["reason"])
    has_reasons = reason in second and reason not in first
    if has_own or not (has_reasons or (of_drugs and of_illness)):
        return
    told = f"diagnoses has the columns {of_drugs or [reason]}"
    told += f", medications {of_illness}" if of_illness else ", medications has none of these"
    message = (
        f"The two tables look swapped: {told}. Medications come first: "
        "tensor_from_events(medications, diagnoses). If they are not swapped, give only the "
        "columns that are needed, such as diagnoses[['patient', 'encounter', 'code']]."
    )
    raise InvalidInputError(message)


def _speaks_of(name: str, words: frozenset[str]) -> bool:
    """Say whether the name of a column has one of some words in it."""
    parts = {*re.findall("[A-Za-z]+", name), *re.findall("[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return not words.isdisjoint(part.lower() for part in parts)


def _read(frame: Any, table: str, roles: Mapping[str, str], names: Names) -> pd.DataFrame:
    """Return some columns of a table under the names of their new roles."""
    import pandas as pd

    columns = read_columns(frame, [str(names[table][role]) for role in roles], table=table)
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


def _pairs_by_encounter(medications: Any, diagnoses: Any, names: Names) -> pd.DataFrame:
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
                f"The column {names['diagnoses'][key]!r} is of type {kinds[0]} in diagnoses and "
                f"{names['medications'][key]!r} of type {kinds[1]} in medications, so nothing "
                "would match. Convert one of them."
            )
            raise InvalidTypeError(message)
    # A code that is recorded twice in an encounter is one.
    pairs = _known(illnesses).drop_duplicates().merge(_known(drugs).drop_duplicates(), on=keys)
    if len(pairs) == 0:
        own = [names["medications"][key] for key in keys]
        message = (
            "No encounter of a patient has both a diagnosis and a medication. Check that the "
            f"columns {own} of medications mean the same as those of diagnoses, or link by reason "
            "(link='reason')."
        )
        raise InvalidInputError(message)
    return pairs


def _kind(dtype: Any) -> str:
    """Return numbers, text or something else."""
    kind: str = getattr(dtype, "kind", "O")
    return {"i": "number", "u": "number", "f": "number", "O": "text", "U": "text"}.get(kind, kind)


def _pairs_by_reason(medications: Any, names: Names) -> pd.DataFrame:
    """Return a row for each prescription with a reason."""
    roles = {"patient": "patient", "reason": "diagnosis", "code": "medication"}
    drugs = _read(medications, "medications", roles, names)
    _complete(drugs, "medications", ["patient", "medication"])
    pairs = _known(drugs)
    if len(pairs) == 0:
        message = (
            f"No medication has a reason: the column {names['medications']['reason']!r} is empty. "
            "Link by encounter instead (link='encounter')."
        )
        raise InvalidInputError(message)
    return pairs


def _most_frequent(pairs: pd.DataFrame, max_codes: int) -> pd.DataFrame:
    """Keep the codes of each mode that the pairs of the most patients contain."""
    kept = pairs
    for mode in _CODES:
        support = _support(pairs, mode).sort_values(ascending=False, kind="stable")
        kept = kept[kept[mode].isin(support.index[:max_codes])]
    if len(kept) == 0:
        message = (
            f"Nothing is left with max_codes={max_codes}: the most frequent diagnoses and "
            "medications are in no pair together. Raise max_codes."
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
    names: Names,
) -> NDArray[Any]:
    """Return the label of each code: its description if any table has one."""
    import pandas as pd

    unique = pd.Index(codes.unique())
    labels = pd.Series(None, index=unique, dtype=object)
    for frame, table, code, description in sources:
        column = names[table][description]
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
