"""Ancestry of 2504 people from a few SNPs, against the super-populations that nobody told.

    POLYAD_DATA=/path/to/data python -m experiments.ptpqp.ancestry

1000 Genomes genotypes (0, 1 or 2 alternative alleles) at the 55 SNPs of the Kidd panel and the 127
of the Seldin panel, 3 to 7 components. Memberships are compared with the five super-populations by
the adjusted Rand index of the largest membership, for everybody and without the Americas, whose
people descend from several of the others, and by the accuracy of logistic regression from
memberships (ten folds; guessing the largest group gives 0.26). How much people mix (``alpha0``) is
chosen for each panel and k without labels, by the score of a fifth of the people who were left out
of the fit: the log-likelihood of genotypes given the others of the same person. Numbers go to
``RESULTS.md`` and ``ancestry.csv``, the bar plot to ``ancestry.png``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import StratifiedKFold, cross_val_score

from experiments.data import data_file
from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    numbers,
    run_units,
    write_section,
)
from polyad import MixedMembership

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
PANELS = {"kidd": "55 SNPs", "seldin": "127 SNPs"}
METHODS = ("moments", "refined", "LDA")
_HELD_OUT = 0.2
_ALPHAS = (0.1, 0.3, 1.0)
_MEASURES = {
    "rand": "adjusted Rand index",
    "rand_without": "without the Americas",
    "accuracy": "accuracy from memberships",
    "held_out": "log-likelihood per genotype",
}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--components", type=numbers, default=(3, 4, 5, 6, 7))
    parser.add_argument("--starts", type=int, default=1, help="seeds of each fit")
    parser.add_argument("--max-minutes", type=float, default=30.0)
    return parser.parse_args(arguments)


def read_panel(panel: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return genotypes (people x SNPs) and what is known of the people."""
    with np.load(data_file(f"popgen/1kg_{panel}_aisnp.npz")) as file:
        people = pd.Index(file["sample"], name="person")
        genotypes = pd.DataFrame(file["dosage"], index=people, columns=file["snp"])
        known = pd.DataFrame(
            {name: file[name] for name in ("population", "superpopulation")}, index=people
        )
    return genotypes, known


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the fits of moments."""
    return [
        {"panel": panel, "method": "moments", "k": k, "alpha0": alpha0, "start": start}
        for panel in PANELS
        for k in options.components
        for alpha0 in _ALPHAS
        for start in range(options.starts)
    ]


def slow_units(table: pd.DataFrame) -> list[Unit]:
    """Return the fits that take minutes: five components of the smaller panel."""
    same = {"panel": "kidd", "k": 5, "alpha0": choice(table, "kidd", 5), "start": 0}
    return [{**same, "method": method} for method in ("refined", "LDA")]


def choice(table: pd.DataFrame, panel: str, k: int) -> float:
    """Return the alpha0 of the highest score of moments."""
    own = table[(table["panel"] == panel) & (table["k"] == k) & (table["method"] == "moments")]
    return float(own.groupby("alpha0")["held_out"].mean().idxmax())


def make_model(unit: Unit) -> Any:
    """Return the model of a unit."""
    if unit["method"] == "LDA":
        prior = unit["alpha0"] / unit["k"]
        return LatentDirichletAllocation(
            unit["k"], doc_topic_prior=prior, max_iter=20, random_state=unit["start"]
        )
    return MixedMembership(
        unit["k"],
        alpha0=unit["alpha0"],
        refine=unit["method"] == "refined",
        max_iter=100,
        random_state=unit["start"],
    )


def as_counts(genotypes: pd.DataFrame) -> np.ndarray:
    """Return indicators of genotypes: a person is a document with a word for each SNP."""
    values = genotypes.to_numpy()
    return (values[:, :, None] == np.arange(3)).reshape(len(values), -1).astype(float)


def do_unit(unit: Unit) -> Unit:
    """Return how the memberships of a fit compare with what is known of people."""
    genotypes, known = read_panel(unit["panel"])
    given = as_counts(genotypes) if unit["method"] == "LDA" else genotypes
    group = known["superpopulation"].to_numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_model(unit)
        memberships = np.asarray(model.fit_transform(given))
        result = {"held_out": _held_out(unit, genotypes)} if unit["method"] != "LDA" else {}
    largest = memberships.argmax(axis=1)
    without = group != "AMR"
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    accuracy = cross_val_score(
        LogisticRegression(C=100.0, max_iter=2000), memberships, group, cv=folds
    )
    return result | {
        "rand": float(adjusted_rand_score(group, largest)),
        "rand_without": float(adjusted_rand_score(group[without], largest[without])),
        "accuracy": float(accuracy.mean()),
    }


def _held_out(unit: Unit, genotypes: pd.DataFrame) -> float:
    """Return the mean log-likelihood of a fifth of the people after a fit to the others."""
    order = np.random.default_rng(unit["start"]).permutation(len(genotypes))
    cut = int(_HELD_OUT * len(order))
    model = make_model(unit).fit(genotypes.iloc[order[cut:]])
    return float(model.score(genotypes.iloc[order[:cut]]))


def describe(table: pd.DataFrame) -> str:
    """Return the measures of each panel and method, means over seeds."""
    texts = []
    means = table.groupby(["panel", "method", "k", "alpha0"])[list(_MEASURES)].mean().reset_index()
    for panel, size in PANELS.items():
        rows = {}
        for method in METHODS:
            own = means[(means["panel"] == panel) & (means["method"] == method)]
            for k, fits in own.groupby("k"):
                line = fits.loc[fits["held_out"].fillna(0.0).idxmax()]
                alpha0 = f"{line['alpha0']:g}"
                shown = ["" if np.isnan(line[name]) else f"{line[name]:.3f}" for name in _MEASURES]
                rows[f"{method}, k = {k}"] = [alpha0, *shown]
        shown = pd.DataFrame.from_dict(rows, orient="index")
        shown.columns = ["alpha0", *_MEASURES.values()]
        shown.index.name = f"{panel}, {size}"
        texts.append(markdown(shown))
    return "\n".join(texts)


def plot(path: Path, alpha0: float) -> None:
    """Draw the memberships of everybody, sorted by population, as stacked bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    genotypes, known = read_panel("seldin")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit = {"method": "moments", "k": 5, "alpha0": alpha0, "start": 0}
        memberships = np.asarray(make_model(unit).fit_transform(genotypes))
    leading = memberships.argmax(axis=1)
    own = memberships[np.arange(len(memberships)), leading]
    order = np.lexsort((-own, leading, known["population"], known["superpopulation"]))
    figure, axis = plt.subplots(figsize=(10, 2.2))
    axis.stackplot(np.arange(len(order)), memberships[order].T, step="mid", lw=0)
    groups = known["superpopulation"].to_numpy()[order]
    edges = np.flatnonzero(np.append(groups[1:] != groups[:-1], True)) + 1
    begins = np.append(0, edges[:-1])
    for edge in edges[:-1]:
        axis.axvline(edge, color="black", lw=0.8)
    axis.set_xticks((begins + edges) / 2, groups[begins])
    axis.set(xlim=(0, len(order)), ylim=(0, 1), ylabel="membership")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "ancestry.csv")
    own = make_units(options)
    run_units(own, do_unit, store, max_minutes=options.max_minutes)
    own += slow_units(store.table(own))
    run_units(own, do_unit, store, max_minutes=options.max_minutes)
    table = store.table(own)
    alpha0 = choice(table, "seldin", 5)
    plot(HERE / "ancestry.png", alpha0)
    body = (
        f"`{command()}`\n\n{environment()}. No setting was chosen by the "
        f"labels.\n\n{describe(table)}\n"
        f"Seldin panel, k = 5, moments, alpha0 = {alpha0:g}; people by super-population and "
        "population:\n\n"
        "![memberships of 2504 people as stacked bars](ancestry.png)"
    )
    write_section(RESULTS, "Ancestry: 1000 Genomes", body)
    print(body)


if __name__ == "__main__":
    main()
