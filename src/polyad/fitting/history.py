"""How a fit went, iteration by iteration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from polyad.exceptions import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

# The part of the best objective within which another is as low, and the match below which
# components are others.
_AS_LOW = 1e-3
_OTHER_COMPONENTS = 0.9


class History:
    """The record of a fit: one row for the start (iteration 0) and one per iteration.

    Parameters
    ----------
    records : sequence of dict, optional
        Rows to begin with, each with at least ``iteration``, ``objective`` and ``seconds``.
    starts : sequence of dict, optional
        How each start of the fit ended, this one among them.
    """

    def __init__(
        self, records: Sequence[dict[str, float]] = (), starts: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.records: list[dict[str, float]] = [dict(record) for record in records]
        self.starts: list[dict[str, Any]] = [dict(start) for start in starts]

    def append(self, objective: float, seconds: float, **diagnostics: float) -> None:
        """Add the next iteration."""
        iteration = len(self.records)
        self.records.append(
            {"iteration": iteration, "objective": objective, "seconds": seconds, **diagnostics}
        )

    @property
    def objective(self) -> list[float]:
        """The objective at the start and after each iteration."""
        return [record["objective"] for record in self.records]

    @property
    def n_iter(self) -> int:
        """The number of iterations done."""
        return max(0, len(self.records) - 1)

    @property
    def seconds(self) -> float:
        """The time that the iterations took, over all runs if the fit was resumed."""
        return self.records[-1]["seconds"] if self.records else 0.0

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a table with one row per iteration."""
        import pandas as pd

        return pd.DataFrame(self.records).astype({"iteration": int}).set_index("iteration")

    def starts_to_frame(self) -> pd.DataFrame:
        """Return a table with one row per start: its kind, and how far it ended above the best.

        ``objective`` is that of the model that the start would have delivered, and NaN if it broke
        down; ``above_best`` is its distance to the lowest one, which is the model that you have.
        A move that could not become the best any more was ended there. ``match`` is the factor
        match score of its components with those of the start that beat it, 1 for the best one, and
        NaN where there are no components to compare.
        """
        import pandas as pd

        columns = ["start", "kind", "objective", "match", "n_iter", "seconds"]
        table = pd.DataFrame(self.starts, columns=columns).set_index("start")
        table.insert(2, "above_best", table["objective"] - table["objective"].min())
        return table

    @property
    def rival(self) -> str:
        """A sentence, if another start ended as low with other components; nothing otherwise."""
        known = [start for start in self.starts if math.isfinite(start["objective"])]
        if len(known) < 2:
            return ""
        best, second, *_ = sorted(known, key=lambda start: float(start["objective"]))
        above, size = second["objective"] - best["objective"], abs(best["objective"])
        if above > _AS_LOW * size or not second["match"] < _OTHER_COMPONENTS:
            return ""
        return (
            f"Start {second['start']} ended as low as the best one, {above:.2g} above, with other "
            f"components (match {second['match']:.2f}): this model is one of several answers. "
            "history_.starts_to_frame() tells of all; fewer components may leave one."
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the objective against the iteration and return the matplotlib axes.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure by default.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            message = "Plots need matplotlib: install it with pip install 'polyad[report]'."
            raise MissingPackageError(message) from error
        if ax is None:
            ax = plt.figure().subplots()
        ax.plot(self.objective, marker=".")
        ax.set_xlabel("iteration")
        ax.set_ylabel("objective")
        # Only a positive objective with a wide range is readable on a logarithmic axis.
        if min(self.objective) > 0 and max(self.objective) > 10 * min(self.objective):
            ax.set_yscale("log")
        return ax

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(empty)"
        first, last = self.objective[0], self.objective[-1]
        return f"History({self.n_iter} iterations, objective {first:.6g} -> {last:.6g})"
