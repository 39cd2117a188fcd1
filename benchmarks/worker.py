"""Times one library on one case, in a process of its own, and prints JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from benchmarks.cases import CASES
from benchmarks.quiet import per_iteration


def main(case: str, library: str, repeats: int) -> None:
    make_data, rank, n_iter, libraries = CASES[case]
    run = libraries[library](make_data(), rank)
    # pyttb needs seconds for an iteration on sparse data: fewer of them are as precise.
    few = library == "pyttb" and case.startswith("sparse")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        seconds, disturbed = per_iteration(run, 2 if few else n_iter, 1 if few else repeats)
    print("result " + json.dumps({"seconds": seconds, "disturbed": disturbed}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
