"""Few samples: what is known of new ones, and what the mean of several fits does.

    POLYAD_DATA=/path/to/data python -m experiments.qmf.new_samples --jobs 1

The sets, scales and folds of ``omics.py`` with fewer features. QMF at rank R from four starts: one
fit, that of the lowest objective, the means of the reconstructions of two and of all four, and one
fit of rank 2R, which has as many scores as two of rank R. NMF and the singular value decomposition
are beside them. *QMF before* is the same fit as QMF; its scores of new samples are the better end
of two starts, as they were before there were more of them.

Two errors of new samples are measured:

* ``new``: scores are fitted to all entries of a sample, which are then compared with the model. It
  is the objective of the scores themselves: more of them are closer, whatever was learned.
* ``hidden``: a fifth of the entries of each new sample are hidden, scores are fitted to the others,
  and the hidden ones are compared with the model. More scores may be worse.

Finished units are kept in ``new_samples.csv``, results go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from experiments.qmf.cohorts import SCALES, SETS, Preparation, load_cohort
from experiments.qmf.curves import divergences, mean_divergence
from experiments.qmf.methods import FactorizedTransform, Identity, Quantile, TruncatedSVD
from experiments.qmf.omics import N_FOLDS, split
from experiments.runs import (
    Store,
    command,
    environment,
    interval,
    markdown,
    numbers,
    run_units,
    words,
    write_section,
)

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
BEFORE = "QMF before"
BEST = "best of 4 QMF"
# The number of fits of each mean; the first is the one called QMF.
MEANS = {"mean of 2 QMF": 2, "mean of 4 QMF": 4}
METHODS = ("NMF", "NMF of 2R", "SVD", BEFORE, "QMF", BEST, *MEANS, "QMF of 2R")
ERRORS = {
    "new: ": "new samples",
    "hidden: ": "hidden entries of new samples",
    "fitted: ": "the samples of the fit",
}
# Half of the iterations that the default makes.
_SETTINGS = {"tol": 3e-3}
_HIDDEN = 0.2
# Multiplicative updates of the scores of samples with hidden entries, and what keeps them positive.
_UPDATES, _TINY = 400, 1e-12
#: What is compared over folds: which method, with which.
PAIRS = (
    ("QMF", "NMF"),
    ("QMF", BEFORE),
    (BEST, BEFORE),
    ("mean of 2 QMF", BEFORE),
    ("mean of 4 QMF", BEFORE),
    ("mean of 4 QMF", "NMF"),
    ("QMF of 2R", BEFORE),
)
# A twentieth is the least that counts as better.
_CLEARLY = 0.95


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=words, default=SETS, help=f"some of {','.join(SETS)}")
    parser.add_argument("--scales", type=words, default=SCALES)
    parser.add_argument("--ranks", type=numbers, default=(5, 10))
    parser.add_argument("--features", type=int, default=60, help="at most, over all kinds")
    parser.add_argument("--folds", type=int, default=N_FOLDS, help=f"so many of the {N_FOLDS}")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--max-minutes", type=float, default=120.0)
    return parser.parse_args(arguments)


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the units: the folds of each cell."""
    return [
        {
            "set": name,
            "scale": scale,
            "rank": rank,
            "features": options.features // len(load_cohort(name).views),
            "fold": fold,
        }
        for fold in range(options.folds)
        for name in options.sets
        for scale in options.scales
        for rank in options.ranks
    ]


def do_unit(unit: Unit) -> Unit:
    """Fit everything to the training folds; return fitted and new divergences by method."""
    cohort = load_cohort(unit["set"])
    train, test = split(cohort, 0, unit["fold"])
    preparation = Preparation(unit["scale"], unit["features"]).fit(cohort, train)
    X, new = preparation.matrix(cohort, train), preparation.matrix(cohort, test)
    return measure(X, new, unit["rank"], unit["fold"])


def measure(X: np.ndarray, new: np.ndarray, rank: int, seed: int) -> Unit:
    """Return the mean divergences of samples of the fit and of new ones, by method."""
    hidden = np.random.default_rng(seed).random(new.shape) < _HIDDEN
    given = X, new, np.where(hidden, np.nan, new)
    models = {
        "NMF": _of_nmf(rank, seed, given),
        "NMF of 2R": _of_nmf(2 * rank, seed, given),
        "SVD": _of_svd(rank, given),
    }
    fits = [Quantile("QMF", rank, 10 * seed + start, _SETTINGS) for start in range(4)]
    found = [_of_quantile(fit, given) for fit in fits]
    models["QMF"] = found[0]
    models[BEST] = found[int(np.argmin([fit.model_.objective_ for fit in fits]))]
    with patch("polyad.quantile.scores._MOST_STARTS", 1):
        models[BEFORE] = [found[0][0], *(fits[0].apply(samples)[1] for samples in given[1:])]
    for name, count in MEANS.items():
        models[name] = [np.mean(parts, axis=0) for parts in zip(*found[:count], strict=True)]
    models["QMF of 2R"] = _of_quantile(Quantile("QMF", 2 * rank, 10 * seed, _SETTINGS), given)
    result: Unit = {}
    for name in METHODS:
        fitted, known, predicted = models[name]
        result[f"fitted: {name}"] = mean_divergence(X, fitted)
        result[f"new: {name}"] = mean_divergence(new, known)
        result[f"hidden: {name}"] = float(divergences(new, predicted)[hidden].mean())
    return result


def _of_quantile(method: Quantile, given: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return the reconstructions of the samples of a fit, of new ones, and of those with gaps."""
    X, *others = given
    return [method.fit(X)[1], *(method.apply(samples)[1] for samples in others)]


def _of_nmf(rank: int, seed: int, given: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    X, new, gaps = given
    method = FactorizedTransform((Identity(),), rank, seed)
    fitted, known = method.fit(X)[1], method.apply(new)[1]
    components, seen = method.model_.components_, ~np.isnan(gaps)
    entries = np.where(seen, gaps, 0.0)
    scores = np.full((len(gaps), rank), entries.sum() / seen.sum() / rank / components.mean())
    for _ in range(_UPDATES):
        ratios = entries / np.maximum(scores @ components, _TINY)
        scores *= ratios @ components.T / np.maximum(seen @ components.T, _TINY)
    return [fitted, known, method.back_.apply(scores @ components)]


def _of_svd(rank: int, given: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    X, new, gaps = given
    method = TruncatedSVD(rank)
    fitted, known = method.fit(X)[1], method.apply(new)[1]
    loadings, raw = method.components_.T, []
    for row in gaps:
        seen = ~np.isnan(row)
        raw.append(loadings @ np.linalg.lstsq(loadings[seen], row[seen])[0])
    return [fitted, known, method.back_.apply(np.array(raw))]


def describe(table: pd.DataFrame) -> str:
    """Return the results as text: means over folds, ratios with intervals, and the target."""
    texts = []
    cells = list(table.groupby(["set", "scale", "rank"], sort=False))
    for start, title in ERRORS.items():
        rows = {
            " ".join(map(str, cell)): [f"{own[start + name].mean():.4g}" for name in METHODS]
            for cell, own in cells
        }
        frame = pd.DataFrame(rows, index=list(METHODS)).T.rename_axis("set, scale, R")
        texts.append(f"Mean KL of {title}:\n\n{markdown(frame)}")
    for start in ("new: ", "hidden: "):
        rows = {
            " ".join(map(str, cell)): [ratio_text(own, start, *pair) for pair in PAIRS]
            for cell, own in cells
        }
        names = [f"{one} over {other}" for one, other in PAIRS]
        frame = pd.DataFrame(rows, index=names).T.rename_axis("set, scale, R")
        title = f"Ratios of the KL of {ERRORS[start]}, with 95 % intervals"
        texts.append(f"{title}:\n\n{markdown(frame)}")
    for start in ("new: ", "hidden: "):
        names = ("QMF", BEST, *MEANS, "QMF of 2R")
        lines = "\n".join(target_line(table, start, name) for name in names)
        texts.append(f"Cells of {len(cells)}, of {ERRORS[start]}:\n\n{lines}\n")
    return "\n".join(texts)


def ratio_text(own: pd.DataFrame, start: str, one: str, other: str) -> str:
    """Return the geometric mean of paired ratios over folds, with its interval."""
    differences = np.log(own[start + one] / own[start + other]).to_numpy()
    mean, low, high = np.exp(interval(differences))
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def target_line(table: pd.DataFrame, start: str, name: str) -> str:
    """Say in how many cells a method is below NMF, and clearly below QMF as it was."""
    names = [start + each for each in METHODS]
    means = table.groupby(["set", "scale", "rank"], sort=False)[names].mean()
    below = means[start + name] < means[f"{start}NMF"]
    clearly = means[start + name] < _CLEARLY * means[start + BEFORE]
    return (
        f"* {name}: below NMF {int(below.sum())}, at least 5 % below {BEFORE} "
        f"{int(clearly.sum())}, both {int((below & clearly).sum())}."
    )


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    units = make_units(options)
    store = Store(HERE / "new_samples.csv")
    run_units(units, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    table = store.table(units)
    text = (
        f"`{command()}`\n\n{environment()}. {options.folds} of {N_FOLDS} folds; at most "
        f"{options.features} features, as many of each kind, those of the largest variance of "
        "logarithms among training samples. QMF with its defaults, but "
        f"tol={_SETTINGS['tol']:g}."
    )
    body = f"{text}\n\n{describe(table)}"
    write_section(RESULTS, f"New samples: {options.features} features", body)
    print(body)


if __name__ == "__main__":
    main()
