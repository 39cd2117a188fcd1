"""Long runs in small units: each is stored when it is finished, and a stopped run goes on.

A unit of work is a dictionary of plain values. Its results are added to it and appended to a
file of JSON lines. Before a run, one unit of each kind is done and the time of all is estimated.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    Unit = dict[str, Any]

# What tells the repeats of a kind of unit apart.
REPEATS = ("sample", "start", "fold")


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers, separated by commas, from a command line."""
    return tuple(int(number) for number in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """Read words, separated by commas, from a command line."""
    return tuple(text.split(","))


class Store:
    """Finished units in a file.

    Parameters
    ----------
    path : Path
        A file of JSON lines; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._done: dict[str, Unit] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                # The last line may be cut where a run was stopped: that unit is done again.
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    continue
                self._done[_key(record["unit"])] = record

    def __contains__(self, unit: Unit) -> bool:
        return _key(unit) in self._done

    def add(self, unit: Unit, result: Unit) -> None:
        """Append a finished unit."""
        record = {"unit": unit, "result": result}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._done[_key(unit)] = record

    def table(self, units: Iterable[Unit]) -> pd.DataFrame:
        """Return the finished ones among some units, one row each: the unit and its results."""
        rows = [self._done[_key(unit)] for unit in units if unit in self]
        return pd.DataFrame([{**_flat(row["unit"]), **row["result"]} for row in rows])


def _key(unit: Unit) -> str:
    return json.dumps(unit, sort_keys=True)


def _flat(unit: Unit) -> Unit:
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
        for name, value in unit.items()
    }


def kind_of(unit: Unit) -> str:
    """Return what units that differ only in sample, start and fold have in common."""
    return _key({name: value for name, value in unit.items() if name not in REPEATS})


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
        Stop after the estimate if the run would take longer.
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
        for unit, took in _do(probes, work, store, pool):
            seconds[kind_of(unit)] = took
        rest = [unit for unit in todo if unit not in store]
        minutes = sum(seconds[kind_of(unit)] for unit in rest) / jobs / 60
        print(f"estimate for the remaining {len(rest)} units: {minutes:.1f} minutes")
        if minutes > max_minutes:
            message = f"This is above --max-minutes {max_minutes:g}: raise it, or ask for less."
            raise SystemExit(message)
        started, reported = time.perf_counter(), 0.0
        for number, (_, _took) in enumerate(_do(rest, work, store, pool), start=1):
            passed = (time.perf_counter() - started) / 60
            if passed > reported + 0.5:
                reported = passed
                print(f"  {number} of {len(rest)} units, {passed:.1f} minutes", flush=True)


def _do(
    units: Sequence[Unit], work: Callable[[Unit], Unit], store: Store, pool: Parallel
) -> Iterable[tuple[Unit, float]]:
    for unit, result in pool(delayed(_timed)(work, unit) for unit in units):
        store.add(unit, result)
        yield unit, result["seconds"]


def _timed(work: Callable[[Unit], Unit], unit: Unit) -> tuple[Unit, Unit]:
    started = time.perf_counter()
    result = work(unit)
    return unit, {**result, "seconds": round(time.perf_counter() - started, 4)}


def interval(differences: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean of paired differences and its confidence interval (Student's t)."""
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
    return " ".join(["python", program, *sys.argv[1:]])


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
