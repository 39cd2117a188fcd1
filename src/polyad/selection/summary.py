"""From the outcomes of single fits to means and standard errors per rank."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from polyad.selection.result import MEASURES
from polyad.tensor.alignment import factor_match_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.selection.tasks import Kind, Outcome
    from polyad.tensor.kruskal import KruskalTensor

_COMPARED: dict[str, Kind] = {"restart_match": "start", "subsample_match": "subsample"}


def summarize(
    outcomes: Sequence[Outcome], ranks: Sequence[int], methods: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table of means and standard errors, and the table of single numbers."""
    rows, records = [], []
    for rank in ranks:
        row: dict[str, float] = {}
        for measure in (name for method in methods for name in MEASURES[method]):
            values = _values(measure, [o for o in outcomes if o.task.rank == rank])
            counted = values
            if measure == "core_consistency":
                # It has no lower bound: one bad start, at minus a million, would decide the mean.
                counted = np.maximum(values, 0.0)
            row[measure] = float(np.nanmean(counted)) if _any_number(counted) else math.nan
            row[f"{measure}_se"] = _standard_error(counted, is_match=measure in _COMPARED)
            records += [(rank, measure, k, value) for k, value in enumerate(values.tolist())]
        rows.append(row)
    table = pd.DataFrame(rows, index=pd.Index(ranks, name="rank"))
    return table, pd.DataFrame(records, columns=["rank", "measure", "repeat", "value"])


def _values(measure: str, outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Return one number per repeat; NaN where the fit failed."""
    if measure in _COMPARED:
        chosen = [o for o in outcomes if o.task.kind == _COMPARED[measure]]
        skip = [0] if measure == "subsample_match" else []
        return mean_matches([o.kruskal for o in chosen], skip)
    if measure == "heldout_loss":
        numbers = [o.loss for o in outcomes if o.task.kind == "heldout"]
    else:
        numbers = [o.consistency for o in outcomes if o.task.kind == "start"]
    return np.array([math.nan if number is None else number for number in numbers])


def mean_matches(
    models: Sequence[KruskalTensor | None], skip_modes: Sequence[int]
) -> NDArray[np.float64]:
    """Return the mean factor match score of each model with the others; NaN for one that failed."""
    scores = np.full((len(models), len(models)), math.nan)
    for i, j in combinations(range(len(models)), 2):
        one, two = models[i], models[j]
        if one is not None and two is not None:
            scores[i, j] = scores[j, i] = factor_match_score(one, two, skip_modes=skip_modes)
    return np.array([np.nanmean(row) if _any_number(row) else math.nan for row in scores])


def _standard_error(values: NDArray[np.float64], *, is_match: bool) -> float:
    known = values[~np.isnan(values)]
    n = len(known)
    if n < (3 if is_match else 2):
        return math.nan
    error = float(np.std(known, ddof=1)) / math.sqrt(n)
    # Scores of pairs share their models. The jackknife over models, which leaves out all pairs of
    # one model at a time, gives this factor for the mean over pairs.
    return error * 2.0 * (n - 1) / (n - 2) if is_match else error


def _any_number(values: NDArray[np.float64]) -> bool:
    return bool(np.any(~np.isnan(values)))
