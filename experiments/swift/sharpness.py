"""How much of the blur can go: `sharpness` on development articles and development patients.

    POLYAD_DATA=/path/to/data python -m experiments.swift.sharpness --jobs 2

The articles and patients are those on which everything else was chosen (``bbc_develop``, ``ehr``);
those of the evaluations are not touched. A unit fits the training samples of a fold from two
random starts. Of the first: the score of a lasso logistic regression on the sample factor
(accuracy of the class, or area under the precision-recall curve of the outcome); the mean average
precision with which labels that were hidden from new samples are ranked; and how many labels a
component has in effect, the exponential of the entropy of its column. Of both: how alike their
components are. Finished units are kept in ``sharpness.csv``; results go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from sklearn.metrics import average_precision_score

from experiments.classify import Split, lasso_accuracy, lasso_precision
from experiments.runs import Store, command, environment, markdown, run_units, write_section
from experiments.swift import bbc_work, patients
from experiments.swift.articles import Construction
from experiments.swift.bbc_develop import load_settings
from experiments.swift.methods import OURS, Part, fit_features
from polyad.datasets import add_noise
from polyad.metrics import factor_match_score

if TYPE_CHECKING:
    import pandas as pd

    Unit = dict[str, Any]

HERE = Path(__file__).parent
VALUES = (0.0, 0.25, 0.5, 0.75, 1.0)
NOISE = (0.0, 0.2)
OUTCOME = "Hypertension"
COSTS = {"samples": "separate", "features": "cosine"}
# How many of a new sample's labels are hidden, and the fewest that it must have for that.
_HIDDEN, _FEWEST = 0.3, 4


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--max-minutes", type=float, default=120.0)
    return parser.parse_args(arguments)


def do_unit(unit: Unit) -> Unit:
    """Return what came of two fits."""
    is_articles = unit["data"] == "articles"
    parts = _articles(unit) if is_articles else _patients(unit)
    parameters = {"sharpness": unit["sharpness"], "costs": COSTS}
    fits = [
        fit_features(OURS, parts, parameters, n_components=unit["rank"], seed=10 * unit["fold"] + k)
        for k in range(2)
    ]
    (features, model), (_, other) = fits
    split = Split(features, tuple(part.classes for part in parts)).scaled("log")
    scored = lasso_accuracy(split) if is_articles else lasso_precision(split)
    labels = [_effective(np.asarray(factor)) for factor in model.factors_[1:]]
    found = [np.asarray(factor) for factor in model.factors_[1:]]
    others = [np.asarray(factor) for factor in other.factors_[1:]]
    ones = np.ones(unit["rank"])
    return {
        "score": scored["test"],
        "hidden": _hidden(model, parts[2], both=is_articles, seed=unit["fold"]),
        "labels": float(np.mean(labels)),
        "match": float(factor_match_score((ones, found), (ones, others))),
        "n_iter": int(model.n_iter_),
    }


def _articles(unit: Unit) -> list[Part]:
    own = {"pool": "development", "sample": 0, "fold": unit["fold"], "noise": unit["noise"]}
    return bbc_work.make_parts(own, Construction(**load_settings()["construction"]))


def _patients(unit: Unit) -> list[Part]:
    parts = patients.make_parts(patients.DEVELOPMENT, OUTCOME, 0, unit["fold"])
    if not unit["noise"]:
        return parts
    return [
        Part(add_noise(part.tensor, unit["noise"], random_state=0), part.classes, part.labels)
        for part in parts
    ]


def _effective(factor: np.ndarray) -> np.ndarray:
    """Return how many entries each column has in effect."""
    share = factor / np.maximum(factor.sum(axis=0), 1e-300)
    return np.exp(-np.sum(share * np.log(np.maximum(share, 1e-300)), axis=0))


def _hidden(model: Any, part: Part, *, both: bool, seed: int) -> float:
    """Return the mean average precision of labels of the last mode that were hidden.

    They are ranked among all that the sample does not show. With ``both``, the labels of the two
    modes are the same words and are hidden from both.
    """
    generator = np.random.default_rng(seed)
    rows, first, second = part.tensor.coords
    n_samples, _, n_labels = part.tensor.shape
    has = np.zeros((n_samples, n_labels), bool)
    has[rows, second] = True
    hides = has & (generator.random(has.shape) < _HIDDEN) & (has.sum(axis=1) >= _FEWEST)[:, None]
    kept = ~hides[rows, second]
    if both:
        kept &= ~hides[rows, first]
    coords = tuple(row[kept] for row in part.tensor.coords)
    shown = coo_array((part.tensor.data[kept], coords), shape=part.tensor.shape)
    still = np.zeros_like(has)
    still[coords[0], coords[2]] = True
    data = Part(shown, part.classes, part.labels).data(binary=False)
    masses = np.asarray(model.factors_[1]).sum(axis=0)
    scores = np.asarray(model.transform(data)) * masses @ np.asarray(model.factors_[2]).T
    found = [
        average_precision_score(hides[i, ~still[i]], scores[i, ~still[i]])
        for i in range(n_samples)
        if hides[i].any() and still[i].any()
    ]
    return float(np.mean(found))


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "sharpness.csv")
    own = [
        {"data": data, "rank": options.rank, "noise": noise, "fold": fold, "sharpness": value}
        for fold in range(options.folds)
        for noise in NOISE
        for data in ("articles", "patients")
        for value in VALUES
    ]
    run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    body = f"`{command()}`\n\n{environment()}. {_table(store.table(own), options)}"
    write_section(HERE / "RESULTS.md", "Sharpness", body)
    print(body)


def _table(table: pd.DataFrame, options: argparse.Namespace) -> str:
    names = ["score", "hidden", "labels", "match", "n_iter"]
    means = table.groupby(["data", "noise", "sharpness"])[names].mean()
    text = (
        f"Development articles and patients, R = {options.rank}, the default weights, means over "
        f"{options.folds} folds. score: accuracy of articles, PR-AUC of {OUTCOME!r} of patients; "
        "hidden: mean average precision of hidden words or medications of new samples; labels: "
        "effective number in a component; match: factor match of two starts.\n\n"
    )
    return text + markdown(means.reset_index().set_index("data").round(3))


if __name__ == "__main__":
    main()
