"""Times one library on one case, in a process of its own, and prints JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import numpy as np

from benchmarks.cases import CASES
from benchmarks.quiet import per_iteration
from polyad.tensor.kruskal import as_kruskal


def squared_error(data: Any, model: Any) -> float | None:
    """Return the squared error of a model, if the library returned one."""
    if model is None:
        return None
    tensor = as_kruskal(model)
    square = float(np.sum(np.square(data.data if hasattr(data, "coords") else data)))
    return square - 2 * tensor.inner(data) + tensor.inner(tensor)


def main(case: str, library: str, repeats: int) -> None:
    make_data, rank, n_iter, libraries = CASES[case]
    data = make_data()
    run = libraries[library](data, rank)
    # pyttb needs seconds for an iteration on sparse data: fewer of them are as precise.
    few = library == "pyttb" and case.startswith("sparse")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        seconds, disturbed = per_iteration(run, 2 if few else n_iter, 1 if few else repeats)
        error = squared_error(data, run(2 * n_iter))
    print("result " + json.dumps({"seconds": seconds, "disturbed": disturbed, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
