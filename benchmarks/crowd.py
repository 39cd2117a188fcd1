"""Rounds of Dawid and Skene's EM: polyad against the same round with joins and groups of pandas.

crowd-kit, whose rounds are made of joins and groups, needs packages of language models to install;
``experiments/ptpqp/crowd.py --peer`` measures it where it is installed. Here its place has a twin,
written for this comparison: the same formulas on the same table. Imports are inside: each library
runs in a process of its own.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    Run = Callable[[int], object]

#: Items, workers, classes, labels of an item.
SHAPES = ((20_000, 750, 2, 5), (200_000, 1000, 4, 5))


def title(n_items: int, n_workers: int, n_classes: int, per_item: int) -> str:
    return (
        f"crowd: a round of EM, {n_items * per_item // 1000} thousand labels of {n_classes} "
        f"classes by {n_workers} workers"
    )


def problem(n_items: int, n_workers: int, n_classes: int, per_item: int) -> pd.DataFrame:
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
    return table.drop_duplicates(["item", "worker"])


def polyad_run(data: pd.DataFrame, n_classes: int, *, prior: Any) -> Run:
    from polyad import DawidSkene

    def run(n_iter: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DawidSkene(prior=prior, max_iter=n_iter, tol=0, n_jobs=2).fit(data)

    return run


def pandas_run(data: pd.DataFrame, n_classes: int) -> Run:
    import pandas as pd

    shares = pd.crosstab(data["item"], data["label"], normalize="index")
    classes = list(shares.columns)

    def run(n_iter: int) -> None:
        posteriors = shares
        for _ in range(n_iter + 1):  # polyad's start is a round too
            joined = data.join(posteriors, on="item")
            counts = joined.groupby(["worker", "label"])[classes].sum()
            tables = (counts / counts.groupby("worker").transform("sum")).clip(lower=1e-10)
            logs = data.join(np.log(tables), on=["worker", "label"])
            sums = logs.groupby("item")[classes].sum() + np.log(posteriors.mean())
            odds = np.exp(sums.sub(sums.max(axis=1), axis=0))
            posteriors = odds.div(odds.sum(axis=1), axis=0)

    return run


LIBRARIES: dict[str, Callable[[Any, int], Run]] = {
    "polyad": partial(polyad_run, prior="auto"),
    "polyad, no prior": partial(polyad_run, prior=None),
    "pandas (twin of crowd-kit)": pandas_run,
}
