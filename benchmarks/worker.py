"""Times one library on one case, in a process of its own, and prints JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import numpy as np

from benchmarks.cases import CASES
from benchmarks.quantile import QuantileProblem
from benchmarks.quiet import per_iteration
from benchmarks.soft import SoftProblem
from benchmarks.transport import SHARE, TransportProblem
from polyad.tensor.kruskal import as_kruskal


def squared_error(data: Any, model: Any) -> float | None:
    """Return the squared error of a model, if the library returned one."""
    if model is None:
        return None
    tensor = as_kruskal(model)
    square = float(np.sum(np.square(data.data if hasattr(data, "coords") else data)))
    return square - 2 * tensor.inner(data) + tensor.inner(tensor)


def is_slow(case: str, library: str) -> int:
    """Return a smaller number of iterations where each takes seconds: they are as precise."""
    if library == "pyttb" and case.startswith("sparse"):
        return 2
    slow = ("transport", "SWIFT", "soft", "quantile")
    return 1 if case.startswith(slow) and "polyad" not in library else 0


def main(case: str, library: str, repeats: int) -> None:
    make_data, rank, n_iter, libraries = CASES[case]
    data = make_data()
    run = libraries[library](data, rank)
    few = is_slow(case, library)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        seconds, disturbed = per_iteration(run, few or n_iter, 1 if few else repeats)
        if isinstance(data, TransportProblem):
            error = data.error_of(run(1))
            seconds *= len(data.rows) / SHARE.get(library, len(data.rows))
        elif isinstance(data, SoftProblem):
            error = data.error_of(run(1))
            seconds *= data.share(library)
        elif isinstance(data, QuantileProblem):
            error = None
            seconds *= data.share(library)
        else:
            error = squared_error(data, run(2 * n_iter))
    print("result " + json.dumps({"seconds": seconds, "disturbed": disturbed, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
