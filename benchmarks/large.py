"""One iteration of SWIFT at 5000 x 500 x 500 with a million nonzeros: seconds and memory.

``python -m benchmarks.large`` measures it with the default costs, where nothing moves between
samples, and with cosine costs of all modes, each in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import numpy as np
from scipy.sparse import coo_array

SHAPE, NONZEROS, RANK = (5000, 500, 500), 1_000_000, 20
COSTS = {"default": None, "cosine": "cosine"}


class Enough(Exception):  # noqa: N818  (nothing is wrong)
    """Ends a fit before the rows of the samples are solved for."""


def data() -> coo_array:
    generator = np.random.default_rng(0)
    cells = np.sort(generator.choice(np.prod(SHAPE), NONZEROS, replace=False))
    values = generator.poisson(1.0, NONZEROS) + 1.0
    return coo_array((values, np.unravel_index(cells, SHAPE)), shape=SHAPE)


def measure(costs: str) -> None:
    """Print the time of the second iteration: the first one compiles and fills memory."""
    from polyad import WassersteinCP

    seconds: list[float] = []

    def note(news: Any) -> None:
        seconds.append(news.seconds)
        if news.number == 2:
            raise Enough

    try:
        WassersteinCP(RANK, costs=COSTS[costs], random_state=0, n_jobs=2, callbacks=note).fit(
            data()
        )
    except Enough:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"costs {costs}: {seconds[1] - seconds[0]:.0f} s, at most {peak:.1f} GB", flush=True)


def main(words: list[str]) -> None:
    for costs in words:
        measure(costs)
    for costs in COSTS if not words else ():
        subprocess.run([sys.executable, "-m", "benchmarks.large", costs], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
