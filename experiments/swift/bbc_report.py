"""Tables and figures of the BBC News experiment."""

from __future__ import annotations

import pandas as pd

from experiments.runs import interval, markdown
from experiments.swift.bbc_develop import TABLE_2
from experiments.swift.methods import METHODS, OURS
from experiments.tables import difference_text, mean_table, sample_means

# Table 1 and Table 5 of the paper, by rank.
PAPER = {
    OURS: {5: 0.759, 10: 0.781, 20: 0.803, 30: 0.815, 40: 0.818},
    "CP": {5: 0.521, 10: 0.571, 20: 0.675, 30: 0.671, 40: 0.671},
    "NonnegativeCP": {5: 0.484, 10: 0.493, 20: 0.581, 30: 0.600, 40: 0.650},
    "SupervisedCP": {5: 0.506, 10: 0.625, 20: 0.631, 30: 0.665, 40: 0.662},
    "SimilarityCP": {5: 0.518, 10: 0.648, 20: 0.638, 30: 0.662, 40: 0.673},
    "GeneralizedCP gamma": {5: 0.403, 10: 0.481, 20: 0.528, 30: 0.559, 40: 0.543},
    "GeneralizedCP bernoulli": {5: 0.746, 10: 0.743, 20: 0.737, 30: 0.756, 40: 0.743},
    "PoissonCP": {5: 0.675, 10: 0.768, 20: 0.753, 30: 0.743, 40: 0.746},
    "random": {5: 0.621, 10: 0.693, 20: 0.684, 30: 0.712, 40: 0.684},
    "one-identity": {5: 0.709, 10: 0.775, 20: 0.793, 30: 0.775, 40: 0.771},
}


def raw_table(table: pd.DataFrame, ours: pd.DataFrame) -> str:
    """Return the accuracies of the classifiers of the raw tensor (Table 2)."""
    means = sample_means(table, ["method"])
    means.columns = means.columns.get_level_values(0)
    rows = {}
    ranks = sorted(ours["rank"].unique()) if len(ours) else []
    for name, paper in TABLE_2.items():
        if name in means:
            rows[name] = [f"{means[name].mean():.3f}", f"{paper:.3f}"]
            for rank in ranks:
                own = sample_means(ours[ours["rank"] == rank], ["rank"])[rank]
                both = pd.concat([means[name], own], axis=1).dropna().to_numpy()
                rows[name].append(difference_text(interval(both[:, 0] - both[:, 1])))
    heads = ["accuracy", "paper", *(f"minus {OURS} R={rank}" for rank in ranks)]
    return markdown(pd.DataFrame.from_dict(rows, orient="index", columns=heads))


def few_labels_table(table: pd.DataFrame, names: list[str]) -> str:
    """Return the accuracies of classifiers that were given a few classes only.

    Factorizations that were given the classes of all training articles are left out.
    """
    names = [name for name in names if not METHODS[name].supervised]
    texts = []
    for column in [name for name in table.columns if name.startswith("labels_")]:
        body = mean_table(table.assign(test=table[column]), names, OURS)
        texts.append(f"{column.removeprefix('labels_')} labelled training articles:\n\n{body}")
    return "\n".join(texts)
