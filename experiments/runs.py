"""Long runs in small units: each is stored when it is finished, and a stopped run goes on.

A unit of work is a dictionary of plain values. Unit and results are a row of a csv file, which is
kept with the tables that are made of it: a later run does what is not there, and what is deleted
there is done again. Before a run, one unit of each kind is done and the time of all is estimated.
"""

from __future__ import annotations

import csv
import json
import platform
import shlex
import sys
import time
import warnings
from contextlib import closing
from importlib.metadata import version
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from pathlib import Path

    Unit = dict[str, Any]
    Key = tuple[tuple[str, str], ...]

# What tells the repeats of a kind of unit apart.
REPEATS = ("sample", "start", "fold")
# The first column of what came of a unit.
_DIVIDER = "seconds"
# Significant digits of results.
_DIGITS = 7


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers, separated by commas, from a command line."""
    return tuple(int(number) for number in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """Read words, separated by commas, from a command line."""
    return tuple(text.split(","))


class Store:
    """Finished units in a csv file, one row each.

    The columns before ``seconds`` say what the unit is, with one for each entry of a dictionary in
    it; the others say what came of it.

    Parameters
    ----------
    path : Path
        The file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._unit_columns: list[str] = []
        self._result_columns: list[str] = [_DIVIDER]
        self._done: dict[Key, Unit] = {}
        if path.exists():
            self._read()

    def __contains__(self, unit: Unit) -> bool:
        return _key(_cells(unit)) in self._done

    def add(self, unit: Unit, result: Unit) -> None:
        """Append a finished unit."""
        cells, outcome = _cells(unit), _rounded(result)
        self._done[_key(cells)] = outcome
        columns = (set(self._unit_columns), set(self._result_columns))
        self._unit_columns += [name for name in cells if name not in columns[0]]
        self._result_columns += [name for name in outcome if name not in columns[1]]
        if columns != (set(self._unit_columns), set(self._result_columns)):
            self._rewrite()
            return
        line = StringIO()
        csv.writer(line, lineterminator="\n").writerow(self._row(cells, outcome))
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(line.getvalue())

    def table(self, units: Iterable[Unit]) -> pd.DataFrame:
        """Return the finished ones among some units, one row each: the unit and its results."""
        found = [unit for unit in units if unit in self]
        return pd.DataFrame([{**_flat(unit), **self._done[_key(_cells(unit))]} for unit in found])

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        # The last line may be cut where a run was stopped: that unit is done again.
        whole = text[: text.rfind("\n") + 1]
        head, *rows = csv.reader(StringIO(whole, newline="")) if whole else [[_DIVIDER]]
        first = head.index(_DIVIDER)
        self._unit_columns, self._result_columns = head[:first], head[first:]
        for row in rows:
            if len(row) == len(head):
                named = list(zip(head, row, strict=True))
                cells = {name: cell for name, cell in named[:first] if cell}
                outcome = {name: _value(cell) for name, cell in named[first:] if cell}
                self._done[_key(cells)] = outcome
        if whole != text:
            self._rewrite()

    def _rewrite(self) -> None:
        """Write the file anew; the old one stays until the new one is complete."""
        new = self.path.with_suffix(".new")
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*self._unit_columns, *self._result_columns])
            writer.writerows(self._row(dict(key), outcome) for key, outcome in self._done.items())
        new.replace(self.path)

    def _row(self, cells: dict[str, str], outcome: Unit) -> list[str]:
        known = [cells.get(name, "") for name in self._unit_columns]
        return known + [
            _text(outcome[name]) if name in outcome else "" for name in self._result_columns
        ]


def _cells(unit: Unit, prefix: str = "") -> dict[str, str]:
    """Return the cells of a unit, with a column for each entry of a dictionary in it."""
    cells: dict[str, str] = {}
    for name, value in unit.items():
        if isinstance(value, dict):
            cells |= _cells(value, f"{prefix}{name}.")
        else:
            cells[prefix + name] = _text(value)
    return cells


def _key(cells: dict[str, str]) -> Key:
    return tuple(sorted(cells.items()))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except json.JSONDecodeError:
        return cell


def _rounded(value: Any) -> Any:
    """Round the floats of a result to the digits that are kept."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _flat(unit: Unit) -> Unit:
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
        for name, value in unit.items()
    }


def kind_of(unit: Unit) -> str:
    """Return what units that differ only in sample, start and fold have in common."""
    kind = {name: value for name, value in unit.items() if name not in REPEATS}
    return json.dumps(kind, sort_keys=True)


def run_units(
    units: Sequence[Unit],
    work: Callable[[Unit], Unit],
    store: Store,
    *,
    jobs: int = 1,
    max_minutes: float = 60.0,
) -> None:
    """Do the units that are not done yet.

    Parameters
    ----------
    units : sequence of dict
        The units.
    work : callable
        Returns the results of a unit, a dictionary of numbers. Must be found by its name in its
        module, so that other processes can run it.
    store : Store
        Where finished units are.
    jobs : int
        The number of processes.
    max_minutes : float
        Stop when one unit of each kind has taken longer, or after the estimate if the rest would.
    """
    todo = [unit for unit in units if unit not in store]
    print(f"{len(units)} units, {len(units) - len(todo)} of them done before")
    if not todo:
        return
    first: dict[str, Unit] = {}
    for unit in todo:
        first.setdefault(kind_of(unit), unit)
    probes = list(first.values())
    seconds: dict[str, float] = {}
    # A pool of processes that is used twice keeps its compiled functions and its data.
    with Parallel(n_jobs=jobs, return_as="generator_unordered") as pool:
        watch = _Watch(max_minutes)
        with closing(_do(probes, work, store, pool)) as finished:
            for unit, took in finished:
                seconds[kind_of(unit)] = took
                watch.look(len(seconds), len(probes))
        rest = [unit for unit in todo if unit not in store]
        minutes = sum(seconds[kind_of(unit)] for unit in rest) / jobs / 60
        print(f"estimate for the remaining {len(rest)} units: {minutes:.1f} minutes")
        if minutes > max_minutes:
            message = f"This is above --max-minutes {max_minutes:g}: raise it, or ask for less."
            raise SystemExit(message)
        watch = _Watch(np.inf)
        for number, _ in enumerate(_do(rest, work, store, pool), start=1):
            watch.look(number, len(rest))


class _Watch:
    """Tells how far a run is, every half minute, and ends it when its time is over."""

    def __init__(self, max_minutes: float) -> None:
        self.max_minutes = max_minutes
        self.started, self.told = time.perf_counter(), 0.0

    def look(self, done: int, n_units: int) -> None:
        passed = (time.perf_counter() - self.started) / 60
        if passed > self.told + 0.5:
            self.told = passed
            print(f"  {done} of {n_units} units, {passed:.1f} minutes", flush=True)
        if done < n_units and passed > self.max_minutes:
            message = (
                f"{done} of {n_units} kinds of units have taken longer than --max-minutes "
                f"{self.max_minutes:g}. They are kept: raise it, or ask for less, and run again."
            )
            raise SystemExit(message)


def _do(
    units: Sequence[Unit], work: Callable[[Unit], Unit], store: Store, pool: Parallel
) -> Generator[tuple[Unit, float]]:
    outputs = pool(delayed(_timed)(work, unit) for unit in units)
    try:
        for unit, result in outputs:
            store.add(unit, result)
            yield unit, result["seconds"]
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of units that are left undone on purpose
            outputs.close()


def _timed(work: Callable[[Unit], Unit], unit: Unit) -> tuple[Unit, Unit]:
    started = time.perf_counter()
    result = work(unit)
    return unit, {**result, "seconds": round(time.perf_counter() - started, 4)}


def interval(differences: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean of paired differences and its confidence interval (Student's t)."""
    from scipy import stats  # which takes longer to import than most processes take to begin

    values = np.asarray(differences, dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + level / 2, len(values) - 1) * error)
    return mean, mean - half, mean + half


def environment(packages: Sequence[str] = ("numpy", "scipy", "numba", "scikit-learn")) -> str:
    """Return a line that says what a result was made with."""
    import polyad

    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    python = f"Python {platform.python_version()}"
    return f"polyad {polyad.__version__}, {versions}, {python}, {platform.machine()}"


def command() -> str:
    """Return the command that was given."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"-m {module.name}" if module is not None else sys.argv[0]
    return f"python {program} {shlex.join(sys.argv[1:])}".strip()


def markdown(table: pd.DataFrame) -> str:
    """Return a table of text as Markdown, its index as the first column."""
    head = [str(table.index.name or ""), *map(str, table.columns)]
    rows = [
        [str(label), *map(str, row)]
        for label, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def write_section(path: Path, title: str, body: str) -> None:
    """Put a section into a Markdown file, in the place of the one of the same title."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    sections = ("\n" + text).split("\n## ")
    new = f"{title}\n\n{body.strip()}\n"
    for number, section in enumerate(sections[1:], start=1):
        if section.partition("\n")[0].strip() == title:
            sections[number] = new
            break
    else:
        sections.append(new)
    joined = sections[0].strip() + "".join("\n\n## " + section.strip() for section in sections[1:])
    path.write_text(joined.strip() + "\n", encoding="utf-8")
