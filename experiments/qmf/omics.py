"""Real data: how well it is reconstructed, and whether the factors tell its classes apart.

    POLYAD_DATA=/path/to/data python -m experiments.qmf.omics --jobs 2

Breast cancer (expression, methylation and microRNA side by side), acute lymphoblastic leukaemia and
Golub's leukaemias, on the scale of their measurements and on that of their logarithms
(``cohorts.py`` says how they are made nonnegative). QMF and QMFQ against NMF, NMF of fixed
transforms, and the singular value decomposition, at equal rank (``methods.py`` says how
reconstructions get the unit of the data).

* ``reconstruct``: all samples. The divergence, and the purity of clusters of the factors.
* ``predict``: five folds. Everything is fitted to the training folds; the others are projected:
  their divergence, and the accuracy of a logistic regression on the factors.

Finished units are kept in ``omics.csv``; figures go to ``runs/``, results to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

from experiments.qmf.cohorts import SCALES, SETS, Cohort, Preparation, load_cohort
from experiments.qmf.curves import divergences, mean_divergence
from experiments.qmf.omics_methods import METHODS, make_method
from experiments.qmf.omics_report import describe, plot_ranks
from experiments.runs import Store, command, environment, numbers, run_units, words, write_section

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
RUNS = HERE / "runs"
PARTS = ("reconstruct", "predict")
N_FOLDS = 5


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=words, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--sets", type=words, default=SETS, help=f"some of {','.join(SETS)}")
    parser.add_argument("--scales", type=words, default=SCALES)
    parser.add_argument("--methods", type=words, default=METHODS)
    parser.add_argument("--ranks", type=numbers, default=(2, 5, 10, 20))
    parser.add_argument("--predict-ranks", type=numbers, default=(5, 10))
    parser.add_argument("--samples", type=int, default=1, help="ways to cut the folds")
    parser.add_argument("--starts", type=int, default=1, help="random starts of reconstruct")
    parser.add_argument("--features", type=int, default=3100, help="at most, of each kind")
    parser.add_argument("--quantiles", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=300, help="of QMF, at most")
    parser.add_argument("--outer", type=int, default=100, help="iterations of QMFQ, at most")
    parser.add_argument("--inner", type=int, default=50, help="updates in an iteration of QMFQ")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--max-minutes", type=float, default=120.0, help="per part")
    options = parser.parse_args(arguments)
    for given, known in (
        (options.parts, PARTS),
        (options.sets, SETS),
        (options.scales, SCALES),
        (options.methods, METHODS),
    ):
        strange = [name for name in given if name not in known]
        if strange:
            parser.error(f"{strange[0]!r} is not known; there are {known}")
    return options


def make_units(part: str, options: argparse.Namespace) -> list[Unit]:
    """Return the units of a part."""
    settings = {
        name: getattr(options, name)
        for name in ("features", "quantiles", "iterations", "outer", "inner")
    }
    repeats = (
        [{"start": start} for start in range(options.starts)]
        if part == "reconstruct"
        else [
            {"sample": sample, "fold": fold}
            for sample in range(options.samples)
            for fold in range(N_FOLDS)
        ]
    )
    return [
        {"part": part, "set": name, "scale": scale, "method": method, "rank": rank}
        | settings
        | repeat
        for repeat in repeats
        for name in options.sets
        for scale in options.scales
        for rank in (options.ranks if part == "reconstruct" else options.predict_ranks)
        for method in options.methods
    ]


def do_unit(unit: Unit) -> Unit:
    """Return what a unit measures."""
    cohort = load_cohort(unit["set"])
    preparation = Preparation(unit["scale"], unit["features"])
    if unit["part"] == "reconstruct":
        return reconstruct(cohort, preparation, unit)
    return predict(cohort, preparation, unit)


def reconstruct(cohort: Cohort, preparation: Preparation, unit: Unit) -> Unit:
    """Factorize all samples."""
    everyone = np.arange(cohort.n_samples)
    X = preparation.fit(cohort, everyone).matrix(cohort, everyone)
    method = make_method(unit["method"], unit, X.shape, unit["start"])
    scores, found = method.fit(X)
    terms = divergences(X, found)
    result: Unit = {"KL": float(terms.mean()), "shape": list(X.shape), **_ending(method)}
    means = np.broadcast_to(X.mean(axis=0), X.shape)
    result["KL of means"] = mean_divergence(X, means)
    for name, columns in preparation.columns().items():
        result[f"KL of {name}"] = float(terms[:, columns].mean())
    for name, classes in cohort.classes.items():
        known = classes != ""
        clusters = find_clusters(scores[known], len(np.unique(classes[known])))
        result[f"purity: {name}"] = purity(clusters, classes[known])
        result[f"rand: {name}"] = float(adjusted_rand_score(classes[known], clusters))
    return result


def predict(cohort: Cohort, preparation: Preparation, unit: Unit) -> Unit:
    """Factorize the training folds, project the test fold, predict its classes."""
    train, test = split(cohort, unit["sample"], unit["fold"])
    X = preparation.fit(cohort, train).matrix(cohort, train)
    new = preparation.matrix(cohort, test)
    method = make_method(unit["method"], unit, X.shape, 100 * unit["sample"] + unit["fold"])
    scores, found = method.fit(X)
    new_scores, new_found = method.apply(new)
    result: Unit = {"KL": mean_divergence(X, found), **_ending(method)}
    result["KL of new samples"] = mean_divergence(new, new_found)
    for name, classes in cohort.classes.items():
        here, there = classes[train] != "", classes[test] != ""
        guess = classify(scores[here], classes[train][here], new_scores[there])
        result[f"accuracy: {name}"] = float(np.mean(guess == classes[test][there]))
        balanced = balanced_accuracy_score(classes[test][there], guess)
        result[f"balanced: {name}"] = float(balanced)
    return result


def _ending(method: Any) -> Unit:
    """Return how the iterations of a method ended."""
    model = getattr(method, "model_", None)
    if model is None:
        return {}
    status = getattr(model, "status_", None)
    told = {} if status is None else {"status": status.value}
    return {"n_iter": int(model.n_iter_), **told}


def split(cohort: Cohort, sample: int, fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test samples; each fold has its share of every class."""
    joint = np.array(["/".join(texts) for texts in zip(*cohort.classes.values(), strict=True)])
    order = np.random.default_rng(sample).permutation(len(joint))
    # Samples of one class, and of one combination of classes, follow each other and are dealt out.
    order = order[np.argsort(joint[order], kind="stable")]
    dealt = np.arange(len(joint)) % N_FOLDS == fold
    return np.sort(order[~dealt]), np.sort(order[dealt])


def find_clusters(scores: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return k-means clusters of standardized features."""
    standard = StandardScaler().fit_transform(scores)
    return KMeans(n_clusters, n_init=50, random_state=0).fit_predict(standard)


def purity(clusters: np.ndarray, classes: np.ndarray) -> float:
    """Return the share of samples whose class is the most frequent one of their cluster."""
    counts = pd.crosstab(clusters, classes).to_numpy()
    return float(counts.max(axis=1).sum() / counts.sum())


def classify(scores: np.ndarray, classes: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the classes that a logistic regression finds for new samples."""
    scaler = StandardScaler().fit(scores)
    model = LogisticRegression(max_iter=5000).fit(scaler.transform(scores), classes)
    return np.asarray(model.predict(scaler.transform(new)))


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "omics.csv")
    for part in PARTS:
        if part not in options.parts:
            continue
        print(f"== {part}")
        own = make_units(part, options)
        run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
        table = store.table(own)
        for name in options.sets:
            body = (
                f"{_origin(name, part, options)}\n\n{describe(part, table[table['set'] == name])}"
            )
            value = "KL" if part == "reconstruct" else "KL of new samples"
            plot_ranks(table[table["set"] == name], value, RUNS / f"{name}_{part}.png")
            write_section(RESULTS, f"{name.capitalize()}: {part}", body)
            print(body)


def _origin(name: str, part: str, options: argparse.Namespace) -> str:
    cohort = load_cohort(name)
    kinds = ", ".join(
        f"{min(view.values.shape[1], options.features)} of {view.values.shape[1]} {kind}"
        for kind, view in cohort.views.items()
    )
    classes = []
    for title, texts in cohort.classes.items():
        found, counts = np.unique(texts[texts != ""], return_counts=True)
        pairs = [f"{text} {count}" for text, count in zip(found, counts, strict=True)]
        classes.append(f"{title}: {', '.join(pairs)}")
    repeats = (
        f"{options.starts} starts"
        if part == "reconstruct"
        else f"{options.samples} ways to cut {N_FOLDS} folds"
    )
    return (
        f"`{command()}`\n\n{environment()}. {cohort.n_samples} samples; features: {kinds} (of the "
        f"largest variance of logarithms among training samples); classes: {'; '.join(classes)}. "
        f"{options.quantiles} quantiles; at most {options.iterations} iterations of QMF, "
        f"{options.outer} of QMFQ with {options.inner} updates each; seeds: {repeats}. Every kind "
        "of measurement has mean one."
    )


if __name__ == "__main__":
    main()
