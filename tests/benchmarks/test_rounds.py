"""A run of the benchmarks ends in time, repeats what was disturbed, and keeps what it has."""

import pandas as pd
import pytest
from benchmarks import table
from benchmarks.rounds import (
    MOST_ROUNDS,
    Case,
    Measurement,
    OutOfTimeError,
    Watch,
    measure,
)

AT_ONCE = Watch(seconds=60.0, limit=60.0)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Write the table of a version into a folder of its own, and return its rows."""
    monkeypatch.setattr(table, "ROWS", tmp_path / "results.csv")
    monkeypatch.setattr(table, "PAGE", tmp_path / "RESULTS.md")
    monkeypatch.setattr(table, "PEERS", ("numpy",))

    def run(cases, version="first", *, among=None):
        def keep(_case, _measured, found):
            table.write(among or cases, found, version)

        measure(cases, AT_ONCE, keep)

    def read():
        return pd.read_csv(table.ROWS, keep_default_na=False).set_index(["case", "library"])

    return run, read


def case_of(title, measurements, rounds=3):
    """Return a case whose only library is found as a list says, round by round."""
    left = iter(measurements)
    return Case(title, {"polyad": rounds}, lambda _pending, _watch: {"polyad": next(left)})


def test_disturbed_rounds_are_made_again_and_left_out(rows):
    run, read = rows
    quiet = [Measurement(seconds, 1.0) for seconds in (1.0, 2.0, 3.0)]
    run([case_of("a", [Measurement(9.0, 1.0, is_quiet=False), *quiet])])
    row = read().loc["a", "polyad"]
    assert (row["seconds"], row["rounds"], row["remark"]) == (2.0, 3, "")


def test_what_stays_disturbed_is_marked_after_a_bounded_number_of_rounds(rows):
    run, read = rows
    run([case_of("a", [Measurement(1.0, 1.0, is_quiet=False)] * MOST_ROUNDS)])
    row = read().loc["a", "polyad"]
    assert (row["rounds"], row["remark"]) == (MOST_ROUNDS, "others used the machine")
    assert "others used the machine" in table.PAGE.read_text(encoding="utf-8")


def test_a_failure_is_tried_once_more_and_told(rows):
    run, read = rows
    failure = Measurement(failure="fails: no memory")
    run([case_of("a", [failure] * 2), case_of("b", [failure, Measurement(1.0, 1.0)], rounds=1)])
    assert read()["remark"].tolist() == ["fails: no memory", ""]


def test_what_a_run_does_not_reach_stays_with_its_version(rows):
    run, read = rows
    first = [case_of(title, [Measurement(1.0, 1.0)], rounds=1) for title in "ab"]
    run(first)

    def too_late(_pending, _watch):
        raise OutOfTimeError

    again = [
        case_of("a", [Measurement(2.0, 1.0)], rounds=1),
        Case("b", {"polyad": 1}, too_late),
    ]
    with pytest.raises(OutOfTimeError):
        run(again, "second")
    found = read()
    assert found["version"].tolist() == ["second", "first"]
    assert found["seconds"].tolist() == [2.0, 1.0]


def test_a_process_that_takes_too_long_is_ended():
    result, failure = Watch(seconds=60.0, limit=0.05).result("worker")
    assert result is None
    assert failure.startswith("takes more than")
    with pytest.raises(OutOfTimeError):
        Watch(seconds=0.05, limit=60.0).result("worker")
