"""What columns are taken for, and how they are read."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from polyad import MixedMembership
from polyad.exceptions import DataWarning, InvalidInputError, InvalidTypeError
from polyad.membership.variables import Indicators, read_columns, read_samples
from polyad.report import write_report
from tests.membership.planted import planted

COLUMNS = {
    "text": (["b", "a", None, "b"] * 10, "categorical"),
    "flag": ([True, False, True, True] * 10, "categorical"),
    "few whole": ([3, 1, 2, 1] * 10, "categorical"),
    "few whole, with gaps": ([3.0, np.nan, 2.0, 1.0] * 10, "categorical"),
    "many whole": (list(range(40)), "count"),
    "many whole below zero": (list(range(-20, 20)), "real"),
    "fractions": (list(np.linspace(0, 1, 40)), "real"),
    "category": (pd.Categorical(["x", "y", None, "x"] * 10), "categorical"),
    "nullable": (pd.array([1, None, 2, 2] * 10, dtype="Int64"), "categorical"),
    "objects": (pd.Series([1, None, 2.0, 3] * 10, dtype=object), "categorical"),
    "dates": (pd.to_datetime(["2020-01-01", "2021-01-01"] * 20), "categorical"),
}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("name", COLUMNS)
def test_the_rule_of_auto(name):
    values, expected = COLUMNS[name]
    model = MixedMembership(1).fit(
        pd.DataFrame({"a": values, "b": [1, 2] * 20, "c": [0.5, 2] * 20})
    )
    assert model.kinds_[0] == expected
    if expected == "categorical":
        assert len(model.categories_[0]) == pd.Series(values).nunique()
        shares = pd.Series(values).value_counts(normalize=True).sort_index()
        np.testing.assert_allclose(np.sort(model.theta_[0][:, 0]), np.sort(shares))
    else:
        np.testing.assert_allclose(model.theta_[0], np.mean(values))


def test_rows_are_zeros_and_ones():
    frame = pd.DataFrame({"a": ["y", "x", None], "b": [0.0, 2.5, 10.0], "c": [True, True, False]})
    columns = MixedMembership(1)._open(frame, None).data
    table = read_columns(columns, "auto", list("abc"))
    rows = Indicators(table, np.arange(3))
    expected = [[0, 1, 0, 1, 0, 1], [1, 0, 0.25, 0.75, 0, 1], [0, 0, 1, 0, 1, 0]]
    np.testing.assert_allclose(rows.part((0, 3)).toarray(), expected)
    np.testing.assert_array_equal(rows.observed((0, 3)), [[1, 1, 1], [1, 1, 1], [0, 1, 1]])
    again, strange = read_samples(columns, table.variables, list("abc"))
    np.testing.assert_array_equal(again.codes, table.codes)
    assert strange == []


def test_whole_numbers_with_an_offset_are_read_in_place():
    X = planted(100)[0].astype(np.uint8) + 3
    table = read_columns(X, "auto", range(12))
    assert table.codes is X
    moved = read_columns(X - 3, "auto", range(12))
    one, two = (Indicators(own, np.arange(12)).part((0, 100)) for own in (table, moved))
    np.testing.assert_array_equal(one.toarray(), two.toarray())
    gaps = np.where(X == 4, 9, X)
    assert read_columns(gaps, "auto", range(12)).codes is not gaps


def test_tables_of_polars_are_tables_of_pandas(tmp_path):
    y, _, _ = planted(100)
    names = [f"q{j}" for j in range(12)]
    content = {name: list(np.array(list("abcd"))[y[:, j]]) for j, name in enumerate(names)}
    content["q0"][0] = None
    one, two = (
        MixedMembership(2, random_state=0, max_iter=5, tol=0).fit(kind(content))
        for kind in (pd.DataFrame, pl.DataFrame)
    )
    assert all(map(np.array_equal, one.theta_, two.theta_))
    assert two.feature_names_in_.tolist() == names
    write_report(one, tmp_path / "report.html")
    assert "q11" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_is_refused():
    good = {"b": [1, 2], "c": [1, 2]}
    with pytest.raises(InvalidTypeError, match="other collections"):
        MixedMembership(2).fit(pd.DataFrame({"a": [[1], [2]], **good}))
    with pytest.raises(InvalidTypeError, match="or of several, that are not taken, int, str"):
        MixedMembership(1).fit(pd.DataFrame({"a": ["x", 1], **good}))
    with pytest.raises(InvalidInputError, match="holds what is not a number"):
        MixedMembership(1, kinds={"a": "real"}).fit(pd.DataFrame({"a": ["x", "y"], **good}))
    with pytest.raises(InvalidInputError, match="'a' has infinity"):
        MixedMembership(1).fit(pd.DataFrame({"a": [0.5, np.inf], **good}))
    with pytest.raises(InvalidInputError, match="mask has the type"):
        MixedMembership(1).fit(pd.DataFrame({"a": ["x", "y"], **good}), mask=np.ones(3))


def test_whole_numbers_that_are_no_counts():
    """Ages have no zero, and incomes a spread that no mixture of Poisson numbers has."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "visits": rng.poisson(np.where(rng.random(400) < 0.5, 2.0, 20.0)),
            "age": rng.integers(18, 90, 400),
            "income": np.maximum(rng.lognormal(10.0, 0.7, 400).round() - 9000, 0),
        }
    )
    columns = MixedMembership(1)._open(frame, None).data
    assert read_columns(columns, "auto", list(frame)).variables.kinds == ["count", "real", "real"]


def test_messages_and_tables_name_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(3, size=(60, 4)).astype(str), columns=list("abcd"))
    frame["n"] = rng.poisson(10.0, 60) * (np.arange(60) > 0)
    model = MixedMembership(2, kinds={"n": "count"}, random_state=0, max_iter=5, tol=1.0).fit(frame)
    with pytest.raises(InvalidInputError, match=r"Column 'n' is taken as 'count'.*Fit with kinds"):
        model.transform(frame.assign(n=-3))
    with pytest.warns(DataWarning, match=r"column 'a' has categories .* not seen, 9:"):
        model.transform(frame.assign(a="9"))
    with pytest.raises(InvalidInputError, match="one column"):
        model.theta_table(["a", "b"])
    assert list(model._report_sections()[1].table.columns) == ["category", 0, 1]
