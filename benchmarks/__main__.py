"""``make bench``: the table of ratios, and the time to start.

Arguments: words that a case must contain to be run, for example ``sparse`` or ``dense``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks import race
from benchmarks.cases import CASES
from benchmarks.worker import is_slow

# Each library is measured in every round, so that a slow hour of the machine hits all of them.
ROUNDS = 3
REPEATS = 3


def threads_of(library: str) -> dict[str, str]:
    """Return the settings with which a library is fastest: two threads, unless it says one."""
    if not library.startswith("pygenten"):
        return {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    number = "1" if "1 thread" in library else "2"
    # Kokkos wants its threads bound to processors; bound threads would slow down all others.
    return {"OMP_NUM_THREADS": number, "OMP_PROC_BIND": "spread", "OMP_PLACES": "threads"}


def measure(case: str, library: str) -> dict[str, float] | None:
    """Return the median seconds of an iteration, the share of disturbed ones, and the error."""
    command = [sys.executable, "-m", "benchmarks.worker", case, library, str(REPEATS)]
    environment = {**os.environ, **threads_of(library)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("result "):
            result: dict[str, float] = json.loads(line.removeprefix("result "))
            return result
    print(f"  {library}: failed: {done.stderr.strip().splitlines()[-1:]}")
    return None


def compare(case: str) -> None:
    print(f"\n{case}: as a multiple of polyad's, time of one iteration")
    libraries = list(CASES[case][3])
    seconds: dict[str, list[float]] = {library: [] for library in libraries}
    disturbed: dict[str, float] = dict.fromkeys(libraries, 0.0)
    errors: dict[str, float] = {}
    for _ in range(ROUNDS):
        for library in libraries:
            if is_slow(case, library) and seconds[library]:
                continue
            result = measure(case, library)
            if result is not None:
                seconds[library].append(result["seconds"])
                disturbed[library] = max(disturbed[library], result["disturbed"])
                errors[library] = result["error"]
    own = statistics.median(seconds["polyad"])
    for library in libraries:
        if not seconds[library]:
            continue
        value = statistics.median(seconds[library])
        spread = f"{min(seconds[library]) / own:.2f} to {max(seconds[library]) / own:.2f}"
        note = "  (others used the machine)" if disturbed[library] > 0.5 else ""
        error = errors.get(library)
        fit = f"   squared error {error / errors['polyad']:.4f}" if error else ""
        if case.startswith(("transport", "soft")):
            fit = f"   relative error {error:.1e}" if error is not None else ""
        print(f"  {library:<32}{value / own:8.2f}x   rounds {spread}{fit}{note}")
    print(f"  polyad itself: {1000 * own:.1f} ms")


FIRST_FIT = """
import numpy as np, scipy.sparse as sp
from polyad import CP
generator = np.random.default_rng(0)
dense = generator.random((30, 20, 10))
CP(3, random_state=0, max_iter=5, tol=1).fit(dense)
coords = tuple(generator.integers(0, 20, size=(3, 500)))
sparse = sp.coo_array((np.ones(500), coords), shape=(20, 20, 20))
CP(3, random_state=0, max_iter=5, tol=1).fit(sparse)
"""


def fresh_process(code: str, repeats: int = 7) -> float:
    """Return the median seconds of a fresh Python that runs some code."""
    values = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        values.append(time.perf_counter() - started)
    # The first run fills the caches of files and of compiled kernels.
    return statistics.median(values[1:])


def startup() -> None:
    bare = fresh_process("pass")
    print("\ntime to start, in a fresh process with warm caches, less the bare interpreter")
    rows = [
        ("import polyad", "import polyad", "   (limit 0.5)"),
        ("import, first dense and sparse fit", FIRST_FIT, "   (limit 3)"),
        ("import sklearn.decomposition", "import sklearn.decomposition", ""),
    ]
    for title, code, note in rows:
        print(f"  {title:<36}{fresh_process(code) - bare:6.2f} s{note}")


def main(words: list[str]) -> None:
    print(f"{os.cpu_count()} cores; medians of {ROUNDS} rounds of {REPEATS} measurements")
    if not words or "startup" in words:
        startup()
    for case in CASES:
        if all(word in case for word in words):
            compare(case)
    for case in race.RACES:
        if all(word in case for word in words):
            race.compare(case)


if __name__ == "__main__":
    main(sys.argv[1:])
