"""Rounds of a case: each library is measured after polyad, in a process of its own.

Rounds go through all cases, so that a slow hour of the machine hits all libraries, and a run whose
time is over has measured each of them at least once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

# Rounds that are tried until a library was measured often enough while the machine was quiet.
MOST_ROUNDS = 5
# What fails is tried again once: a first process may have been ended while it compiled.
MOST_FAILURES = 2
REPEATS = 3
# Seconds after which a process repeats nothing, disturbed or not.
PATIENCE = 5.0


class OutOfTimeError(Exception):
    """The time of the whole run is over."""


@dataclass
class Watch:
    """Starts processes, and ends them when their time or that of the whole run is over."""

    seconds: float
    limit: float
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Return the seconds that the run still has."""
        left = self.started + self.seconds - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        return left

    def result(self, module: str, *words: str, **environment: str) -> tuple[Any, str]:
        """Return what a module of the benchmarks printed as its result, or why it did not."""
        left = self.left()
        command = [sys.executable, "-m", f"benchmarks.{module}", *words]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env={**os.environ, **environment},
                timeout=min(self.limit, left),
                check=False,
            )
        except subprocess.TimeoutExpired:
            if left < self.limit:
                raise OutOfTimeError from None
            return None, f"takes more than {self.limit:.0f} s"
        for line in done.stdout.splitlines():
            if line.startswith("result "):
                return json.loads(line.removeprefix("result ")), ""
        reason = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        return None, f"fails: {reason}"


@dataclass(frozen=True)
class Measurement:
    """What one round found of a library: its time, alone and as a multiple of polyad's."""

    seconds: float | None = None
    ratio: float | None = None
    error: float | None = None
    is_quiet: bool = True
    failure: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Case:
    """What is measured: for each library, the number of quiet rounds that it needs."""

    title: str
    libraries: dict[str, int]
    measure: Callable[[Collection[str], Watch], dict[str, Measurement]]


Found = dict[str, dict[str, list[Measurement]]]


def measure(
    cases: Sequence[Case],
    watch: Watch,
    keep: Callable[[Case, dict[str, Measurement], Found], None],
) -> None:
    """Make rounds through the cases until each library has enough quiet ones.

    ``keep`` is called after each round of a case, with what it and all rounds have found.
    """
    found: Found = {}
    for _ in range(MOST_ROUNDS):
        for case in cases:
            known = found.setdefault(case.title, {})
            pending = unfinished(case, known)
            if not pending:
                continue
            measured = case.measure(pending, watch)
            for library, measurement in measured.items():
                known.setdefault(library, []).append(measurement)
            keep(case, measured, found)


def unfinished(case: Case, found: dict[str, list[Measurement]]) -> list[str]:
    """Return the libraries of a case that need another round."""

    def is_finished(library: str) -> bool:
        known = found.get(library, [])
        failures = sum(bool(measurement.failure) for measurement in known)
        quiet = sum(measurement.is_quiet for measurement in known) - failures
        return failures >= MOST_FAILURES or quiet >= case.libraries[library]

    return [library for library in case.libraries if not is_finished(library)]


def against_polyad(title: str, libraries: Collection[str], watch: Watch) -> dict[str, Measurement]:
    """Measure polyad and then some libraries."""
    own = _measure(title, "polyad", watch)
    found = {"polyad": own}
    if own.seconds is None:
        return found
    found["polyad"] = _relative(title, own, own)
    for library in libraries:
        if library != "polyad":
            found[library] = _relative(title, _measure(title, library, watch), own)
    return found


def _measure(title: str, library: str, watch: Watch) -> Measurement:
    result, failure = watch.result(
        "worker", title, library, str(REPEATS), str(PATIENCE), **_threads_of(library)
    )
    if result is None:
        return Measurement(failure=failure)
    if result["seconds"] <= 0:
        # A difference of times, which others disturbed differently.
        return Measurement(failure="others used the machine too much")
    return Measurement(result["seconds"], None, result["error"], result["disturbed"] <= 0.5)


def _relative(title: str, measured: Measurement, own: Measurement) -> Measurement:
    if measured.seconds is None or own.seconds is None:
        return measured
    error = measured.error
    if error is not None and own.error is not None and not title.startswith(("transport", "soft")):
        error /= own.error
    return replace(
        measured,
        ratio=measured.seconds / own.seconds,
        error=error,
        is_quiet=measured.is_quiet and own.is_quiet,
    )


def _threads_of(library: str) -> dict[str, str]:
    """Return the settings with which a library is fastest: two threads, unless it says one."""
    if not library.startswith("pygenten"):
        return {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    number = "1" if "1 thread" in library else "2"
    # Kokkos wants its threads bound to processors; bound threads would slow down all others.
    return {"OMP_NUM_THREADS": number, "OMP_PROC_BIND": "spread", "OMP_PLACES": "threads"}
