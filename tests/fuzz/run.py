"""Runs cases: alone, by number, or many in worker processes that may crash or hang."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz import estimators, files, functions, kills
from tests.fuzz.judge import FoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Task = tuple[str, int, int]

#: The kinds of cases: each takes a generator, the number of the case and a function that is told
#: what the case is; it returns whether the case was not refused.
KINDS: dict[str, Callable[[np.random.Generator, int, Callable[[str], None]], bool]] = {
    "inputs": estimators.case,
    "functions": functions.case,
    "files": files.case,
    "kills": kills.case,
}
# How many of each kind take turns: a kill takes as long as many inputs.
TURNS = {"inputs": 40, "functions": 20, "files": 20, "kills": 1}
# Of a case, compiling included: of its process, which a busy machine does not change, and of the
# clock, for a process that waits for ever.
LONGEST_CPU_SECONDS = 300.0
LONGEST_SECONDS = 1800.0


@dataclass
class Verdict:
    """What came of a case: ``found`` is empty if all is well."""

    kind: str
    seed: int
    case: int
    words: str = ""
    found: str = ""
    worked: bool = False

    def __str__(self) -> str:
        command = f"python -m tests.fuzz --only {self.kind} --seed {self.seed} --case {self.case}"
        return f"{self.found}\n    {self.words}\n    {command}"


def run_case(kind: str, seed: int, number: int, *, shows: bool = False) -> Verdict:
    """Run one case in this process; one that shows says what it does and where it fails."""
    verdict = Verdict(kind, seed, number)

    def say(words: str) -> None:
        verdict.words = words
        if shows:
            write(words)

    rng = np.random.default_rng([seed, list(KINDS).index(kind), number])
    try:
        verdict.worked = KINDS[kind](rng, number, say)
    except FoundError as error:
        if shows:
            raise
        verdict.found = str(error)
    return verdict


def attack(kinds: list[str], seed: int, minutes: float, jobs: int) -> int:
    """Run cases for some minutes, write each finding, and return 1 if there were any."""
    counts: Counter[str] = Counter()
    for verdict in _verdicts(_tasks(kinds, seed), time.monotonic() + 60.0 * minutes, jobs):
        counts.update(cases=1, worked=verdict.worked, found=bool(verdict.found))
        if verdict.found:
            write(f"FOUND {verdict}")
    write("{cases} cases, {worked} of them not refused, {found} findings".format(**counts))
    return int(counts["found"] > 0)


def _tasks(kinds: list[str], seed: int) -> Iterator[Task]:
    """Yield the cases of all kinds in turns, without an end."""
    numbers = {kind: count() for kind in kinds}
    while True:
        for kind in kinds:
            for _ in range(TURNS[kind]):
                yield kind, seed, next(numbers[kind])


def _verdicts(tasks: Iterator[Task], end: float, jobs: int) -> Iterator[Verdict]:
    """Yield verdicts from workers that are replaced when they die or hang."""
    workers = [_Worker() for _ in range(jobs)]
    while True:
        for worker in workers:
            if worker.task is None and time.monotonic() < end:
                worker.give(next(tasks))
        busy = [worker for worker in workers if worker.task is not None]
        if not busy:
            break
        ready = wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in busy:
            if worker.pipe in ready or worker.is_late:
                yield worker.verdict()
    for worker in workers:
        worker.end()


class _Worker:
    """A process that runs cases one after the other, and its successors."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        self.task, self.since, self.used = task, time.monotonic(), self._cpu_seconds()
        self.pipe.send(task)

    @property
    def is_late(self) -> bool:
        return (
            self._cpu_seconds() - self.used > LONGEST_CPU_SECONDS
            or time.monotonic() - self.since > LONGEST_SECONDS
        )

    def _cpu_seconds(self) -> float:
        """Return what the process has used so far, or zero where only Linux would tell."""
        status = Path(f"/proc/{self.process.pid}/stat")
        if not status.exists():
            return 0.0
        # Behind the name, which may hold spaces: see proc(5).
        fields = status.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def verdict(self) -> Verdict:
        """Return what came of the task; a worker that died or hangs gets a successor."""
        task: Any = self.task
        self.task = None
        try:
            if self.pipe.poll():
                verdict: Verdict = self.pipe.recv()
                return verdict
            found = f"not over after {time.monotonic() - self.since:.0f} seconds"
        except EOFError:
            self.process.join()
            found = f"the process died with exit code {self.process.exitcode}"
        self.process.kill()
        self._begin()
        return Verdict(*task, found=found)

    def end(self) -> None:
        """Let the process end, with all that it started."""
        self.pipe.send(None)
        self.process.join(timeout=10.0)
        self.process.kill()


def _serve(pipe: Any) -> None:
    while task := pipe.recv():
        pipe.send(run_case(*task))


def write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
