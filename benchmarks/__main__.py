"""``make bench``: the table of ratios, and the time to start.

Arguments: words that a case must contain to be run, for example ``sparse`` or ``dense``. The run
ends within half an hour, whatever others do on the machine. ``--full`` (``make bench FULL=1``)
adds what takes peers long, and takes as long as it takes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import crowd, matrices, race, table
from benchmarks.cases import CASES, is_long
from benchmarks.quiet import timed
from benchmarks.rounds import (
    PATIENCE,
    REPEATS,
    Case,
    Found,
    Measurement,
    OutOfTimeError,
    Watch,
    against_polyad,
    measure,
)
from benchmarks.worker import ONCE, is_slow

if TYPE_CHECKING:
    from collections.abc import Collection

# Seconds of a run and of each process in it, and the rounds that it makes.
SHORT = (28 * 60.0, 150.0)
FULL = (24 * 3600.0, 2 * 3600.0)
SHORT_ROUNDS, FULL_ROUNDS = 2, 3

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
STARTS = {
    "import polyad (limit 0.5 s)": "import polyad",
    "import, first dense and sparse fit (limit 3 s)": FIRST_FIT,
    "import sklearn.decomposition": "import sklearn.decomposition",
}
COLD = """
import os, tempfile, warnings
warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder:
    os.environ["NUMBA_CACHE_DIR"] = folder
    import numba, numpy as np, polyad, polyad.soft, scipy.sparse as sp
    counts = np.random.default_rng(0).poisson(0.3, (8, 6, 5)).astype(float)
    quick = {"n_components": 2, "max_iter": 3, "random_state": 0}
    """
FIRST_FITS = {
    "a loop over an array, by Numba alone": "numba.njit(lambda x: [y for y in x])(counts[0, 0])",
    "PoissonCP (limit 12 s)": "polyad.PoissonCP(**quick).fit(counts)",
    "WassersteinCP (limit 12 s)": "polyad.WassersteinCP(**quick).fit(sp.coo_array(counts))",
    "QMF (limit 12 s)": "polyad.QMF(**quick).fit(np.exp(counts[:, :, 0]))",
    "soft_rank (limit 12 s)": "polyad.soft.soft_rank(counts[0])",
}


def fresh_process(code: str, watch: Watch, repeats: int = REPEATS) -> tuple[float, bool]:
    """Return the median seconds of a fresh Python that runs some code, and whether it was quiet."""

    def run() -> None:
        command = [sys.executable, "-c", code]
        try:
            subprocess.run(command, check=True, timeout=watch.left())
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None

    # The first run fills the caches of files and of compiled kernels.
    if repeats > 1:
        run()
    return sorted(timed(run, PATIENCE) for _ in range(repeats))[repeats // 2]


def startup(titles: Collection[str], watch: Watch) -> dict[str, Measurement]:
    """Measure the time to start, less that of the bare interpreter."""
    bare, _ = fresh_process("pass", watch)
    found = {}
    for title in titles:
        seconds, is_quiet = fresh_process(STARTS[title], watch)
        found[title] = Measurement(seconds - bare, is_quiet=is_quiet)
    return found


def first_fits(titles: Collection[str], watch: Watch) -> dict[str, Measurement]:
    """Measure first fits with nothing compiled before, less the time of the imports."""
    bare, _ = fresh_process(COLD + "pass", watch)
    found = {}
    for title in titles:
        seconds, is_quiet = fresh_process(COLD + FIRST_FITS[title], watch, repeats=1)
        found[title] = Measurement(seconds - bare, is_quiet=is_quiet)
    return found


def all_cases(rounds: int) -> list[Case]:
    """Return everything that is measured, also what takes long.

    Where peers take many times longer, and for processor times, one round is enough.
    """

    def rounds_of(title: str, library: str) -> int:
        return 1 if title.startswith(ONCE) or is_slow(title, library) else rounds

    start = "time to start, in a fresh process with warm caches"
    return [
        Case(start, dict.fromkeys(STARTS, 1), startup),
        Case("first fit on a machine, which compiles", dict.fromkeys(FIRST_FITS, 1), first_fits),
        *(
            Case(
                title,
                {name: rounds_of(title, name) for name in libraries},
                partial(against_polyad, title),
            )
            for title, (_, _, _, libraries) in CASES.items()
        ),
        *(
            Case(title, dict.fromkeys(matrices.STAGES, 1), partial(matrices.objectives, title))
            for title in matrices.RACES
        ),
        Case(crowd.MEMORY, dict.fromkeys(crowd.LIBRARIES, 1), crowd.peaks),
        *(
            Case(f"race: {title}", dict.fromkeys(race.STAGES, 1), partial(race.reached, title))
            for title in race.RACES
        ),
    ]


def short(case: Case) -> Case | None:
    """Return a case without what takes long; none if that leaves nothing to compare."""
    libraries = {
        name: rounds for name, rounds in case.libraries.items() if not is_long(case.title, name)
    }
    is_worth_it = libraries == case.libraries or set(libraries) - {"polyad"}
    return Case(case.title, libraries, case.measure) if is_worth_it else None


def tell(case: Case, measured: dict[str, Measurement]) -> None:
    print(f"\n{case.title}")
    for library, known in measured.items():
        ratio = "" if known.ratio is None else f"{known.ratio:8.2f}x"
        seconds = "" if known.seconds is None else f"{known.seconds:10.4f} s"
        remark = known.failure or known.remark
        remark = remark if known.is_quiet else "(others used the machine)"
        print(f"  {library:<48}{ratio:>9}{seconds:>12}  {remark}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("words", nargs="*", help="words that a case must contain")
    parser.add_argument("--full", action="store_true", help="measure what takes peers long, too")
    options = parser.parse_args()
    rounds = FULL_ROUNDS if options.full else SHORT_ROUNDS
    everything = all_cases(rounds)
    cases = everything if options.full else [case for case in map(short, everything) if case]
    chosen = [case for case in cases if all(word in case.title for word in options.words)]
    print(f"{len(chosen)} cases, {os.cpu_count()} cores, {rounds} rounds of {REPEATS} measurements")
    version = table.version()

    def keep(case: Case, measured: dict[str, Measurement], found: Found) -> None:
        tell(case, measured)
        table.write(everything, found, version)

    try:
        measure(chosen, Watch(*(FULL if options.full else SHORT)), keep)
    except OutOfTimeError:
        print("\nthe time is over: what is missing was not measured, or in fewer rounds")
    except KeyboardInterrupt:
        print("\nstopped: what was measured is kept")
    print(f"the table is in {table.PAGE}")


if __name__ == "__main__":
    main()
