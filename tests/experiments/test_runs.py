"""A run that was stopped goes on where it was; results are what they say."""

import json

import numpy as np
import pandas as pd
import pytest
from experiments.data import data_file
from experiments.runs import Store, interval, kind_of, markdown, run_units, write_section


def square(unit):
    return {"value": unit["start"] ** 2}


def units(n):
    return [{"part": "a", "settings": {"x": 1}, "sample": 0, "start": k} for k in range(n)]


def test_only_what_is_not_done_is_done(tmp_path):
    path = tmp_path / "runs" / "a.csv"
    run_units(units(3), square, Store(path))
    assert len(path.read_text().splitlines()) == 4

    def forbidden(unit):
        if unit["start"] < 3:
            raise AssertionError
        return square(unit)

    store = Store(path)
    run_units(units(5), forbidden, store)
    table = store.table(units(5))
    assert list(table["value"]) == [0, 1, 4, 9, 16]
    assert len(store.table(units(2))) == 2


@pytest.mark.parametrize("cut", [1, 2, 8])
def test_a_line_that_was_cut_is_done_again(tmp_path, cut):
    path = tmp_path / "a.csv"
    run_units(units(3), square, Store(path))
    path.write_text(path.read_text()[:-cut])
    store = Store(path)
    assert units(3)[0] in store
    assert sum(unit in store for unit in units(3)) == 2
    run_units(units(3), square, store)
    assert list(Store(path).table(units(3))["value"]) == [0, 1, 4]


def test_an_empty_file_is_a_store_without_units(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("part,settings.x,sam")
    store = Store(path)
    assert len(store.table(units(3))) == 0
    run_units(units(3), square, store)
    assert len(Store(path).table(units(3))) == 3


def test_units_that_are_deleted_from_the_file_are_done_again(tmp_path):
    path = tmp_path / "a.csv"
    run_units(units(3), square, Store(path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[3:]]))
    store = Store(path)
    assert [unit in store for unit in units(3)] == [True, False, True]


def test_the_file_is_a_table_of_units_and_results(tmp_path):
    path = tmp_path / "a.csv"
    store = Store(path)
    first = {"method": "CP", "parameters": {"tol": 1e-3, "costs": {"a": "one"}}, "fold": 0}
    noisy = {**first, "noise": 0.1, "labels": [25, 50]}
    store.add(first, {"seconds": 1.5, "test": 2 / 3, "status": "converged"})
    store.add(noisy, {"test": float("nan"), "curve": [1 / 3, 2.0]})
    frame = pd.read_csv(path)
    assert list(frame.columns) == [
        *("method", "parameters.tol", "parameters.costs.a", "fold", "noise", "labels"),
        *("seconds", "test", "status", "curve"),
    ]
    assert list(frame["noise"].isna()) == [True, False]
    again = Store(path)
    assert first in again
    assert noisy in again
    assert {**noisy, "noise": 0.2} not in again
    pd.testing.assert_frame_equal(again.table([first, noisy]), store.table([first, noisy]))
    table = again.table([first, noisy])
    assert table["test"].iloc[0] == 0.6666667
    assert table["curve"].iloc[1] == [0.3333333, 2.0]
    assert json.loads(table["parameters"].iloc[0]) == first["parameters"]


def test_other_settings_are_other_units(tmp_path):
    store = Store(tmp_path / "a.csv")
    run_units(units(1), square, store)
    assert {**units(1)[0], "settings": {"x": 2}} not in store
    assert kind_of(units(1)[0]) == kind_of(units(2)[1])


def test_a_run_that_would_take_too_long_is_not_begun(tmp_path):
    store = Store(tmp_path / "a.csv")
    with pytest.raises(SystemExit, match="max-minutes"):
        run_units(units(4), square, store, max_minutes=-1)
    assert len(store.table(units(4))) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_kinds_that_take_too_long_are_not_all_begun(tmp_path, jobs):
    store = Store(tmp_path / "a.csv")
    kinds = [{**unit, "part": str(k)} for k, unit in enumerate(units(40))]
    with pytest.raises(SystemExit, match=r"1 of 40 kinds .* are kept"):
        run_units(kinds, square, store, jobs=jobs, max_minutes=0)
    assert len(store.table(kinds)) == 1
    run_units(kinds, square, store)
    assert len(store.table(kinds)) == 40


def test_interval():
    mean, low, high = interval(np.array([1.0, 2.0, 3.0, 4.0]))
    assert mean == 2.5
    # Student's t at 3 degrees of freedom: 3.1824.
    assert high - mean == pytest.approx(3.182446 * np.sqrt(5 / 3) / 2, rel=1e-6)
    assert mean - low == pytest.approx(high - mean)
    assert np.isnan(interval(np.array([1.0]))[1])


def test_sections_take_the_place_of_their_former_selves(tmp_path):
    path = tmp_path / "RESULTS.md"
    path.write_text("# Title\n\nwords\n")
    write_section(path, "one", "first")
    write_section(path, "two", "second")
    write_section(path, "one", "third")
    assert path.read_text() == "# Title\n\nwords\n\n## one\n\nthird\n\n## two\n\nsecond\n"


def test_markdown():
    table = pd.DataFrame({"R=5": ["0.1"]}, index=pd.Index(["CP"], name="method"))
    assert markdown(table) == "| method | R=5 |\n| --- | --- |\n| CP | 0.1 |\n"


def test_missing_data_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("POLYAD_DATA", raising=False)
    with pytest.raises(SystemExit, match="POLYAD_DATA"):
        data_file("bbc/bbc_news.parquet")
    monkeypatch.setenv("POLYAD_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"bbc_news\.parquet is missing"):
        data_file("bbc/bbc_news.parquet")
