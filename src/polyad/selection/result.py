"""What a choice of the rank found: means and errors of the fits, rules, a table and a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from polyad.exceptions import InvalidInputError, MissingPackageError
from polyad.selection.reasons import reasons
from polyad.tensor.alignment import factor_match_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.selection.tasks import Kind, Outcome
    from polyad.tensor.kruskal import KruskalTensor

Method = Literal["heldout", "stability", "core_consistency"]

#: The columns of the table that belong to each method.
MEASURES: dict[str, tuple[str, ...]] = {
    "heldout": ("heldout_loss",),
    "stability": ("restart_match", "subsample_match"),
    "core_consistency": ("core_consistency",),
}
_TITLES = {
    "heldout": "loss of held-out entries",
    "stability": "factor match score",
    "core_consistency": "core consistency (%)",
}
_COLOURS = ("#2c6fbb", "#c8553d")
# Losses closer than this part of their range are equal: data without noise would otherwise be
# decided by how far a fit went below any error that matters.
_EQUAL = 1e-6
_COMPARED: dict[str, Kind] = {"restart_match": "start", "subsample_match": "subsample"}


@dataclass(frozen=True, repr=False)
class RankSelection:
    """The result of :func:`polyad.selection.select_rank`.

    Attributes
    ----------
    methods : tuple of str
        The methods, in the order asked for.
    table : pandas.DataFrame
        One row per rank; for each measure its mean and, ending in ``_se``, its standard error.
    values : pandas.DataFrame
        The single numbers: one row per rank, measure and repeat.
    min_match : float
        The factor match score that ``'stability'`` asks for.
    min_consistency : float
        The percentage that ``'core_consistency'`` asks for.
    n_unconverged : int
        How many fits did not converge.
    advice : str
        What to do about losses that are too large, for the estimator that was asked about.
    loss_limit : float
        The loss of held-out entries above which no model of this kind is right.
    is_complete : bool
        Whether there are no larger ranks to try.
    """

    methods: tuple[str, ...]
    table: pd.DataFrame
    values: pd.DataFrame
    min_match: float
    min_consistency: float
    n_unconverged: int
    advice: str = ""
    loss_limit: float = math.inf
    is_complete: bool = False

    @property
    def best_ranks(self) -> dict[str, int | None]:
        """The rank that the rule of each method chooses; None if no rank passes a threshold."""
        return {
            method: self._largest_above(method, self._thresholds[method])
            if method in self._thresholds
            else self._best_heldout()
            for method in self.methods
        }

    @property
    def best_rank(self) -> int | None:
        """The choice of the first method."""
        return self.best_ranks[self.methods[0]]

    @property
    def reason(self) -> str:
        """Why these ranks were chosen, in words, and what speaks against relying on them."""
        return "\n".join(reasons(self))

    def to_frame(self) -> pd.DataFrame:
        """Return the single numbers as a long table: rank, measure, repeat and value.

        The value of a match is the mean over the other repeats that a fit is compared with. A
        core consistency below zero, which counts as zero in the table, is given as it is.
        """
        return self.values.copy()

    def plot(self, axes: Sequence[Any] | None = None) -> list[Any]:
        """Draw one panel per method and return the matplotlib axes.

        Bars are standard errors, the vertical line is the chosen rank and the dotted one the
        threshold.

        Parameters
        ----------
        axes : sequence of matplotlib axes, optional
            One per method; a new figure by default.
        """
        panels = self._panels() if axes is None else list(np.ravel(np.asarray(axes)))
        if len(panels) != len(self.methods):
            message = (
                f"{len(self.methods)} methods need as many axes, {len(panels)} were given: make "
                f"them with figure.subplots(1, {len(self.methods)})."
            )
            raise InvalidInputError(message)
        for panel, method in zip(panels, self.methods, strict=True):
            for column, colour in zip(MEASURES[method], _COLOURS, strict=False):
                errors = self.table[f"{column}_se"].fillna(0.0)
                label = column.replace("_", " ")
                panel.errorbar(
                    *(self.table.index, self.table[column]),
                    **{"yerr": errors, "marker": "o", "capsize": 3},
                    **{"color": colour, "label": label},
                )
            best = self.best_ranks[method]
            if best is not None:
                panel.axvline(best, color="0.5", linewidth=1, zorder=0)
            self._decorate(panel, method)
        return panels

    @property
    def _thresholds(self) -> dict[str, float]:
        return {"stability": self.min_match, "core_consistency": self.min_consistency}

    def _panels(self) -> list[Any]:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            message = "Plots need matplotlib: install it with pip install 'polyad[report]'."
            raise MissingPackageError(message) from error
        n = len(self.methods)
        figure = plt.figure(figsize=(4.2 * n, 3.2), layout="constrained")
        return list(figure.subplots(1, n, squeeze=False)[0])

    def _decorate(self, panel: Any, method: str) -> None:
        panel.set_xlabel("number of components")
        panel.set_ylabel(_TITLES[method])
        panel.set_xticks(self.table.index)
        if method in self._thresholds:
            panel.axhline(self._thresholds[method], color="0.5", linestyle=":", zorder=0)
        if len(MEASURES[method]) > 1:
            panel.legend(frameon=False)

    def _best_heldout(self) -> int | None:
        """Return the smallest rank within one standard error of the lowest mean loss."""
        means = self.table["heldout_loss"].to_numpy()
        finite = means[np.isfinite(means)]
        if not len(finite):
            return None
        lowest = int(np.nanargmin(means))
        error = float(np.nan_to_num(self.table["heldout_loss_se"].to_numpy()[lowest]))
        slack = max(error, _EQUAL * float(np.ptp(finite)))
        return int(self.table.index[means <= means[lowest] + slack].min())

    def _largest_above(self, method: str, threshold: float) -> int | None:
        """Return the largest rank whose measures all reach a threshold."""
        columns = self.table[list(MEASURES[method])]
        passed = self.table.index[(columns >= threshold).all(axis=1)]
        return int(passed.max()) if len(passed) else None

    def __repr__(self) -> str:
        chosen = ", ".join(
            f"{method}: {'none passes' if rank is None else rank}"
            for method, rank in self.best_ranks.items()
        )
        table = self.table.to_string(float_format="{:.4g}".format)
        return f"RankSelection(best rank by {chosen})\n{self.reason}\n{table}"


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
