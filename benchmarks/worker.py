"""Times one library on one case, in a process of its own, and prints JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import numpy as np

from benchmarks.cases import CASES
from benchmarks.crowd import CrowdLabels
from benchmarks.dictionary import DictionaryImages
from benchmarks.membership import MembershipProblem
from benchmarks.quantile import QuantileProblem, RaceProblem
from benchmarks.quiet import per_iteration, timed
from benchmarks.soft import SoftProblem
from benchmarks.swift import SwiftProblem
from benchmarks.transport import SHARE, TransportProblem
from polyad.tensor.kruskal import as_kruskal

# Cases with iterations that do nothing once.
ONCE = ("transport", "SWIFT", "soft", "quantile", "QMF", "membership", "dictionary")


def squared_error(data: Any, model: Any) -> float | None:
    """Return the squared error of a model, if the library returned one."""
    if model is None:
        return None
    tensor = as_kruskal(model)
    square = float(np.sum(np.square(data.data if hasattr(data, "coords") else data)))
    return square - 2 * tensor.inner(data) + tensor.inner(tensor)


def is_slow(case: str, library: str) -> bool:
    """Tell whether an iteration takes seconds, and one measurement of one is as precise."""
    if library == "pyttb":
        return case.startswith("sparse")
    if library == "torch, as published" or case.startswith("dictionary: to one loss"):
        return True
    return case.startswith(ONCE) and "polyad" not in library


def main(case: str, library: str, repeats: int, patience: float) -> None:
    make_data, rank, n_iter, libraries = CASES[case]
    data = make_data()
    iterate = libraries[library](data, rank)
    result, error = None, None

    def run(number: int) -> None:
        nonlocal result
        result = iterate(number)

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        if not is_slow(case, library):
            seconds, disturbed = per_iteration(run, n_iter, repeats, patience)
        elif library == "pyttb":
            seconds, disturbed = per_iteration(run, 1, 1, patience)
            # The others have made more iterations.
            result = None
        else:
            # These do nothing once, but most of them compile.
            if not isinstance(data, SwiftProblem | DictionaryImages | RaceProblem):
                run(1)
            seconds, is_quiet = timed(lambda: run(1), patience)
            disturbed = float(not is_quiet)
        if isinstance(data, TransportProblem):
            error = data.error_of(result)
            seconds *= len(data.rows) / SHARE.get(library, len(data.rows))
        elif isinstance(data, SoftProblem):
            error = data.error_of(result)
            seconds *= data.share(library)
        elif isinstance(data, MembershipProblem | DictionaryImages | CrowdLabels):
            error = data.error_of(result)
        elif isinstance(data, QuantileProblem):
            seconds *= data.share(library)
        elif not isinstance(data, SwiftProblem | RaceProblem) and "matrix" not in case:
            error = squared_error(data, result)
    print("result " + json.dumps({"seconds": seconds, "disturbed": disturbed, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
