"""Few samples: what is known of new ones, and what the mean of several fits does.

    POLYAD_DATA=/path/to/data python -m experiments.qmf.new_samples --jobs 1

The sets, scales and folds of ``omics.py`` with fewer features. QMF at rank R from two
starts: one fit, the mean of the reconstructions of both, and one fit of rank 2R, which has as many
scores as both. NMF and the singular value decomposition are beside them.

The scores of new samples are fitted to the entries that are then compared with the model: with more
scores they are closer, whatever was learned. The mean of two fits has the scores of both, and is to
be compared with one fit that has as many. How entries are predicted that no score has seen, is not
measured here.

Finished units are kept in ``new_samples.csv``, results go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.qmf.cohorts import SCALES, SETS, Preparation, load_cohort
from experiments.qmf.curves import mean_divergence
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

if TYPE_CHECKING:
    from experiments.qmf.methods import Method

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
MEAN = "mean of 2 QMF"
METHODS = ("NMF", "NMF of 2R", "SVD", "QMF", MEAN, "QMF of 2R")
# Half of the iterations that the default makes.
_SETTINGS = {"tol": 3e-3}
#: What is compared over folds: which method, with which.
PAIRS = (
    ("QMF", "NMF"),
    ("QMF", "SVD"),
    (MEAN, "QMF"),
    ("QMF of 2R", MEAN),
    ("QMF of 2R", "NMF of 2R"),
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
    """Return the mean divergence of samples of the fit and of new ones, by method."""
    both = {
        "NMF": _apply(FactorizedTransform((Identity(),), rank, seed), X, new),
        "NMF of 2R": _apply(FactorizedTransform((Identity(),), 2 * rank, seed), X, new),
        "SVD": _apply(TruncatedSVD(rank), X, new),
        "QMF of 2R": _apply(Quantile("QMF", 2 * rank, seed, _SETTINGS), X, new),
    }
    one, other = (
        _apply(Quantile("QMF", rank, 10 * seed + start, _SETTINGS), X, new) for start in range(2)
    )
    both["QMF"] = one
    both[MEAN] = 0.5 * (one[0] + other[0]), 0.5 * (one[1] + other[1])
    result: Unit = {}
    for name in METHODS:
        fitted, found = both[name]
        result[f"fitted: {name}"] = mean_divergence(X, fitted)
        result[f"new: {name}"] = mean_divergence(new, found)
    return result


def _apply(method: Method, X: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the reconstructions of the samples of a fit and of new ones."""
    _, fitted = method.fit(X)
    _, found = method.apply(new)
    return fitted, found


def describe(table: pd.DataFrame) -> str:
    """Return the results as text: means over folds, ratios with intervals, and the target."""
    texts = []
    for start, title in (("new: ", "new samples"), ("fitted: ", "the samples of the fit")):
        rows = {
            " ".join(map(str, cell)): [f"{own[start + name].mean():.4g}" for name in METHODS]
            for cell, own in table.groupby(["set", "scale", "rank"], sort=False)
        }
        frame = pd.DataFrame(rows, index=list(METHODS)).T.rename_axis("set, scale, R")
        texts.append(f"Mean KL of {title}:\n\n{markdown(frame)}")
    rows = {
        " ".join(map(str, cell)): [
            *(ratio_text(own, "new", *pair) for pair in PAIRS),
            ratio_text(own, "fitted", MEAN, "QMF"),
        ]
        for cell, own in table.groupby(["set", "scale", "rank"], sort=False)
    }
    names = [f"{one} over {other}" for one, other in PAIRS]
    names.append(f"{MEAN} over QMF, samples of the fit")
    frame = pd.DataFrame(rows, index=names).T.rename_axis("set, scale, R")
    texts.append(f"Ratios of the KL of new samples, with 95 % intervals:\n\n{markdown(frame)}")
    texts.extend(target_line(table, name) for name in ("QMF", MEAN, "QMF of 2R"))
    return "\n".join(texts)


def ratio_text(own: pd.DataFrame, of: str, one: str, other: str) -> str:
    """Return the geometric mean of paired ratios over folds, with its interval."""
    differences = np.log(own[f"{of}: {one}"] / own[f"{of}: {other}"]).to_numpy()
    mean, low, high = np.exp(interval(differences))
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def target_line(table: pd.DataFrame, name: str) -> str:
    """Say in which cells a method is below NMF, and clearly below one fit of QMF, at rank R."""
    means = table.groupby(["set", "scale", "rank"], sort=False)[
        [f"new: {each}" for each in METHODS]
    ].mean()
    below = means[f"new: {name}"] < means["new: NMF"]
    text = f"* {name} is below NMF in {int(below.sum())} of {len(below)} cells"
    if name == "QMF":
        return f"{text}.\n"
    clearly = means[f"new: {name}"] < _CLEARLY * means["new: QMF"]
    text += (
        f", at least 5 % below QMF in {int(clearly.sum())}, both in {int((below & clearly).sum())}"
    )
    return f"{text}.\n"


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
    write_section(RESULTS, "New samples: the mean of several fits", body)
    print(body)


if __name__ == "__main__":
    main()
