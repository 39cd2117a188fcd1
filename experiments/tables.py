"""Tables and figures of repeated experiments: means over samples, paired differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.runs import interval, markdown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def sample_means(table: pd.DataFrame, by: list[str], value: str = "test") -> pd.DataFrame:
    """Return the mean over starts and folds of each sample: samples x kinds.

    Samples are what is independent here; starts and folds of one sample are not.
    """
    means = table.groupby([*by, "sample"])[value].mean()
    return means.unstack(by)


def compared(
    means: pd.DataFrame, kind: tuple[Any, ...], against: tuple[Any, ...]
) -> tuple[float, float, float]:
    """Return the paired difference of two kinds over the samples that both have."""
    both = means[[kind, against]].dropna()
    return interval((both[kind] - both[against]).to_numpy())


def difference_text(values: tuple[float, float, float]) -> str:
    """Return a mean and its interval as text."""
    mean, low, high = values
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def mean_table(
    table: pd.DataFrame,
    names: list[str],
    against: str,
    *,
    column: str = "method",
    across: str = "rank",
    paper: Mapping[str, Mapping[float, float]] | None = None,
) -> str:
    """Return means as Markdown, and the differences to one of the rows with their intervals.

    Parameters
    ----------
    table : pandas.DataFrame
        Finished units: a row each, with the columns ``sample``, ``test`` and the two below.
    names : list of str
        The rows, of which those that the table has are shown.
    against : str
        The row that the others are compared with.
    column, across : str
        What the rows and the columns are.
    paper : mapping
        Published numbers to show beside the means.
    """
    means = sample_means(table, [column, across])
    ranks = sorted(table[across].unique())
    names = [name for name in names if name in set(table[column])]
    rows, differences = [], []
    for name in names:
        rows.append([_cell(means, name, rank, paper or {}) for rank in ranks])
        if name != against and against in names:
            differences.append([_difference_cell(means, name, against, rank) for rank in ranks])
    heads = [f"{'R' if across == 'rank' else across} = {rank:g}" for rank in ranks]
    text = markdown(pd.DataFrame(rows, index=pd.Index(names, name=column), columns=heads))
    if differences:
        others = pd.Index([name for name in names if name != against], name=f"minus {against}")
        text += "\n" + markdown(pd.DataFrame(differences, index=others, columns=heads))
    return text


def _cell(
    means: pd.DataFrame, name: str, rank: float, paper: Mapping[str, Mapping[float, float]]
) -> str:
    if (name, rank) not in means:
        return ""
    own = means[name, rank].dropna()
    published = paper.get(name, {}).get(rank)
    spread = f" ± {own.std(ddof=1):.3f}" if len(own) > 1 else ""
    return f"{own.mean():.3f}{spread}" + (f" (paper {published:.3f})" if published else "")


def _difference_cell(means: pd.DataFrame, name: str, against: str, rank: float) -> str:
    if (name, rank) not in means or (against, rank) not in means:
        return ""
    return difference_text(compared(means, (name, rank), (against, rank)))


def plot_curves(
    table: pd.DataFrame,
    names: list[str],
    across: str,
    path: Path,
    *,
    column: str = "method",
    ylabel: str = "accuracy",
    bold: str = "",
) -> None:
    """Draw mean accuracy with its spread over samples against the rank or the noise."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    means = sample_means(table, [column, across])
    for name in [name for name in names if name in set(table[column])]:
        own = means[name]
        width = 2.5 if name == bold else 1.2
        error = own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else None
        axes.errorbar(own.columns, own.mean(), yerr=error, marker="o", lw=width, label=name)
    axes.set(xlabel=across, ylabel=ylabel)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"figure written to {path}")
