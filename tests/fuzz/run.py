"""Runs cases: alone, by number, or many in worker processes that may crash or hang."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz import estimators, functions, kills
from tests.fuzz.judge import FoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The kinds of cases: each takes a generator, the number of the case and a function to
#: tell what the case is.
KINDS: dict[str, Callable[[np.random.Generator, int, Callable[[str], None]], bool]] = {
    "inputs": estimators.case,
    "functions": functions.case,
    "kills": kills.case,
}
# Of a case, compiling included.
LONGEST_SECONDS = 300.0


@dataclass
class Verdict:
    """What came of a case: ``found`` is empty if all is well."""

    kind: str
    seed: int
    case: int
    words: str
    found: str
    worked: bool = False

    def __str__(self) -> str:
        command = f"python -m tests.fuzz --only {self.kind} --seed {self.seed} --case {self.case}"
        return f"{self.found}\n    {self.words}\n    {command}"


def run_case(kind: str, seed: int, number: int) -> Verdict:
    """Run one case in this process."""
    verdict = Verdict(kind, seed, number, "", "")

    def say(words: str) -> None:
        verdict.words = words

    rng = np.random.default_rng([seed, list(KINDS).index(kind), number])
    try:
        verdict.worked = KINDS[kind](rng, number, say)
    except (FoundError, RefusedError) as error:
        verdict.found = str(error)
    return verdict


def run_one(kind: str, seed: int, number: int) -> int:
    """Run one case alone and show where an error came from."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), number])
    try:
        KINDS[kind](rng, number, _write)
    except (FoundError, RefusedError) as error:
        raise error from error.__cause__
    _write("nothing found")
    return 0


def attack(kinds: list[str], seed: int, minutes: float, jobs: int) -> int:
    """Run cases for some minutes, write each finding, and return 1 if there were any."""
    end = time.monotonic() + 60.0 * minutes
    counts: Counter[str] = Counter()
    for verdict in _verdicts(kinds, seed, end, jobs):
        counts["cases"] += 1
        counts["fits that worked"] += verdict.worked
        if verdict.found:
            counts["findings"] += 1
            _write(f"FOUND {verdict}")
    _write(
        f"{counts['cases']} cases, {counts['fits that worked']} of them were not refused, "
        f"{counts['findings']} findings"
    )
    return int(counts["findings"] > 0)


def _verdicts(kinds: list[str], seed: int, end: float, jobs: int) -> Iterator[Verdict]:
    """Yield verdicts of cases in turn, from workers that are replaced when they die or hang."""
    workers = [_Worker() for _ in range(jobs)]
    number = 0
    try:
        while True:
            for worker in workers:
                if worker.task is None and time.monotonic() < end:
                    worker.give((kinds[number % len(kinds)], seed, number // len(kinds)))
                    number += 1
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                if worker.pipe in ready or worker.is_late:
                    yield worker.verdict()
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that runs cases one after the other."""

    task: tuple[str, int, int] | None = None

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: tuple[str, int, int]) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)

    def end(self) -> None:
        """Let the process end itself, with all that it started, or kill it."""
        if self.task is None:
            self.pipe.send(None)
            self.process.join(timeout=10.0)
        self.process.kill()

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.since > LONGEST_SECONDS

    def verdict(self) -> Verdict:
        """Return what came of the task; a worker that died or hangs gets a successor."""
        task: Any = self.task
        self.task = None
        try:
            if self.pipe.poll():
                return self.pipe.recv()
            found = f"not over after {LONGEST_SECONDS:.0f} seconds"
        except EOFError:
            self.process.join()
            found = f"the process died with exit code {self.process.exitcode}"
        self.process.kill()
        self.__init__()  # type: ignore[misc]
        return Verdict(*task, "", found)


def _serve(pipe: Any) -> None:
    while task := pipe.recv():
        pipe.send(run_case(*task))


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
