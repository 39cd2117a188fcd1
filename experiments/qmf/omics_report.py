"""Tables and figures of the omics experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.qmf.figures import save, subplots
from experiments.qmf.omics_methods import BASELINES, CONTROLS, METHODS, QUANTILE, numbers_of
from experiments.runs import markdown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: What the tables of each part are made of, by the beginnings of columns.
_MEASURES = {
    "reconstruct": ("purity: ", "rand: "),
    "predict": ("accuracy: ", "balanced: "),
}
_TITLES = {
    "purity: ": "Purity of as many clusters as classes, {}",
    "rand: ": "Adjusted Rand index of the same clusters, {}",
    "accuracy: ": "Accuracy, {}",
    "balanced: ": "Balanced accuracy (mean over classes), {}",
}


def describe(part: str, table: pd.DataFrame) -> str:
    """Return the results of a set as text, scale by scale."""
    texts = []
    for scale in dict.fromkeys(table["scale"]):
        own = table[table["scale"] == scale]
        texts.append(f"### Scale of the measurements: {scale}\n")
        texts.append(_divergences(part, own))
        for start in _MEASURES[part]:
            for column in [name for name in own.columns if name.startswith(start)]:
                if own[column].notna().any():
                    name = column.removeprefix(start)
                    title = _TITLES[start].format(name)
                    texts.append(f"{title}:\n\n{grid(own, column, '{:.3f}'.format)}")
    return "\n".join(texts)


def _divergences(part: str, own: pd.DataFrame) -> str:
    if part == "predict":
        text = f"Mean KL of new samples:\n\n{grid(own, 'KL of new samples', '{:.4g}'.format)}\n"
        return text + verdict(own, "KL of new samples")
    title = "Mean KL (in brackets: the numbers that are learned, per entry of the data)"
    text = f"{title}; means of the features have {own['KL of means'].iloc[0]:.4g}:\n\n"
    text += f"{grid(own, 'KL', '{:.4g}'.format, beside=_numbers_text)}\n{verdict(own, 'KL')}"
    for column in [name for name in own.columns if name.startswith("KL of ")]:
        name = column.removeprefix("KL of ")
        if name != "means" and own[column].notna().any() and (own[column] != own["KL"]).any():
            text += f"\nMean KL of the {name} alone:\n\n{grid(own, column, '{:.4g}'.format)}"
    return text


def _numbers_text(own: pd.DataFrame) -> str:
    """Return how many numbers some units learned, per entry of the data."""
    row = own.iloc[0]
    shape = tuple(row["shape"])
    learned = numbers_of(row["method"], int(row["rank"]), int(row["quantiles"]), shape)
    return f" ({learned / np.prod(shape):.2g})"


def grid(
    table: pd.DataFrame,
    value: str,
    form: Callable[[float], str],
    beside: Callable[[pd.DataFrame], str] = lambda _: "",
) -> str:
    """Return means over repeats as Markdown, methods by ranks, with their standard deviation.

    Parameters
    ----------
    table : pandas.DataFrame
        Finished units, a row each.
    value : str
        The column that is shown.
    form : callable
        Makes a text of a number.
    beside : callable
        Returns what stands beside the number of some units.
    """
    names = [name for name in METHODS if name in set(table["method"])]
    ranks = sorted(table["rank"].unique())
    rows = []
    for name in names:
        cells = []
        for rank in ranks:
            own = table[(table["method"] == name) & (table["rank"] == rank)]
            values = own[value].dropna()
            spread = f" ± {values.std():.2g}" if len(values) > 1 else ""
            cells.append(form(values.mean()) + spread + beside(own) if len(values) else "")
        rows.append(cells)
    heads = [f"R = {rank}" for rank in ranks]
    return markdown(pd.DataFrame(rows, index=pd.Index(names, name="method"), columns=heads))


def verdict(table: pd.DataFrame, value: str) -> str:
    """Say at which ranks each of our methods is below every baseline, and which one is best."""
    means = table.pivot_table(index="method", columns="rank", values=value)
    baselines = means.loc[means.index.isin(BASELINES)]
    lines = []
    for name in [name for name in QUANTILE if name in means.index]:
        if baselines.empty:
            break
        ratio = baselines.min() / means.loc[name]
        texts = [
            f"R = {rank}: {number:.2f} ({baselines[rank].idxmin()})"
            for rank, number in ratio.items()
        ]
        met = "yes" if (ratio > 1).all() else "no"
        lines.append(
            f"* {name} below every baseline at every rank: {met}. Best baseline over it: "
            f"{', '.join(texts)}."
        )
    return "\n".join(lines) + "\n"


def plot_ranks(table: pd.DataFrame, value: str, path: Path) -> None:
    """Draw a mean against the rank, a panel for each scale; controls are dotted."""
    scales = list(dict.fromkeys(table["scale"]))
    figure, axes = subplots(len(scales))
    for scale, axis in zip(scales, np.atleast_1d(axes), strict=True):
        own = table[table["scale"] == scale]
        means = own.pivot_table(index="rank", columns="method", values=value)
        for name in [name for name in METHODS if name in means]:
            width, style = (2.2 if name in QUANTILE else 1.2), (":" if name in CONTROLS else "-")
            axis.plot(means.index, means[name], style, lw=width, marker="o", ms=3, label=name)
        axis.set(xlabel="rank", ylabel=f"mean {value}", yscale="log", title=scale)
    np.atleast_1d(axes)[0].legend(fontsize=6)
    save(figure, path)
