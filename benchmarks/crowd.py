"""Rounds of Dawid and Skene's EM, and the memory of a fit: polyad against crowd-kit.

Both get the same long table of whole numbers; the first is of the size of trec. The error is the
share of items whose class is wrong after the rounds. Memory is the peak of what Python allocates in
a second fit of two rounds, with the reading of the table, each library in a process of its own:
``python -m benchmarks.crowd polyad``. Imports are inside for the same reason.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rounds import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pandas as pd

    from benchmarks.rounds import Watch

    Run = Callable[[int], Any]

#: Items, workers, classes, labels of an item.
SHAPES = ((20_000, 750, 2, 5), (200_000, 1000, 4, 5))


def title(n_items: int, n_workers: int, n_classes: int, per_item: int) -> str:
    return (
        f"crowd: a round of EM, {n_items * per_item // 1000} thousand labels of {n_classes} "
        f"classes by {n_workers} workers"
    )


MEMORY = "crowd: peak memory of two rounds" + title(*SHAPES[1]).removeprefix("crowd: a round of EM")


@dataclass(frozen=True)
class CrowdLabels:
    """A long table of labels, and the true class of each item."""

    table: pd.DataFrame
    truth: np.ndarray

    def error_of(self, model: Any) -> float:
        """Return the share of items whose class is wrong."""
        found = model.item_table()["class"] if hasattr(model, "item_table") else model.labels_
        return float(np.mean(found.sort_index() != self.truth))


def problem(n_items: int, n_workers: int, n_classes: int, per_item: int) -> CrowdLabels:
    """Return labels by workers who are right from 40 to 95 % of the time, and guess otherwise."""
    import pandas as pd

    rng = np.random.default_rng(0)
    truth = rng.integers(n_classes, size=n_items)
    right = rng.uniform(0.4, 0.95, n_workers)
    items = np.repeat(np.arange(n_items), per_item)
    workers = rng.integers(n_workers, size=len(items))
    guesses = rng.integers(n_classes, size=len(items))
    labels = np.where(rng.random(len(items)) < right[workers], truth[items], guesses)
    table = pd.DataFrame({"item": items, "worker": workers, "label": labels})
    return CrowdLabels(table.drop_duplicates(["item", "worker"]), truth)


def polyad_run(data: CrowdLabels, n_classes: int, *, prior: Any) -> Run:
    from polyad import DawidSkene

    def run(n_iter: int) -> DawidSkene:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DawidSkene(prior=prior, max_iter=n_iter, tol=0, n_jobs=2).fit(data.table)

    return run


def crowdkit_run(data: CrowdLabels, n_classes: int) -> Run:
    from crowdkit.aggregation import DawidSkene

    table = data.table.rename(columns={"item": "task"})

    def run(n_iter: int) -> DawidSkene:
        # With a tolerance of zero it stops where its bound is lower, be it by rounding.
        return DawidSkene(n_iter=n_iter, tol=-np.inf).fit(table)

    return run


LIBRARIES: dict[str, Callable[[Any, int], Run]] = {
    "polyad": partial(polyad_run, prior="auto"),
    "polyad, no prior": partial(polyad_run, prior=None),
    "crowd-kit": crowdkit_run,
}


def peak_bytes(run: Run) -> int:
    """Return the most that Python allocates in two rounds, after a fit that compiles."""
    run(2)
    tracemalloc.start()
    run(2)
    return tracemalloc.get_traced_memory()[1]


def peaks(libraries: Collection[str], watch: Watch) -> dict[str, Measurement]:
    """Measure the memory of libraries, and give it as a multiple of polyad's."""
    found: dict[str, Measurement] = {}
    own = 0.0
    for library in ("polyad", *(name for name in libraries if name != "polyad")):
        result, failure = watch.result("crowd", library)
        own = own or result or 0.0
        found[library] = (
            Measurement(failure=failure)
            if result is None
            else Measurement(ratio=result / own, remark=f"{result / 1e6:.1f} MB")
        )
    return found


if __name__ == "__main__":
    print("result " + json.dumps(peak_bytes(LIBRARIES[sys.argv[1]](problem(*SHAPES[1]), 4))))
