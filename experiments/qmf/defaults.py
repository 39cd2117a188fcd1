"""What the defaults do with the omics sets: do fits converge, and which projector is better sooner.

    POLYAD_DATA=/path/to/data python -m experiments.qmf.defaults --jobs 1

* ``time``: QMF as it is, on all samples: how a fit ended, after how many iterations and seconds.
* ``projectors``: QMFQ with both projectors, on the training folds of five: how a fit ended, its
  divergence, and that of the samples left out. Fewer features: one iteration of the nonnegative
  projector is a factorization.

Seconds are those of the processor, on one thread, without compiling. Finished units are kept in
``defaults.csv``; results go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.qmf.cohorts import SCALES, SETS, Preparation, load_cohort
from experiments.qmf.curves import mean_divergence
from experiments.qmf.methods import Quantile
from experiments.qmf.omics import N_FOLDS, split
from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    numbers,
    run_units,
    words,
    write_section,
)

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
PARTS = ("time", "projectors")
PROJECTORS = ("nmf", "svd")
MEASURES = {
    "KL": "{:.4g}",
    "KL of new samples": "{:.4g}",
    "cpu seconds": "{:.1f}",
    "n_iter": "{:.0f}",
}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=words, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--sets", type=words, default=SETS, help=f"some of {','.join(SETS)}")
    parser.add_argument("--ranks", type=numbers, default=(5, 10))
    parser.add_argument("--features", type=int, default=3100, help="of time, of each kind")
    parser.add_argument("--projected", type=int, default=100, help="of projectors, of each kind")
    parser.add_argument("--folds", type=int, default=N_FOLDS, help="so many of the five")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--max-minutes", type=float, default=60.0, help="per part")
    return parser.parse_args(arguments)


def make_units(part: str, options: argparse.Namespace) -> list[Unit]:
    """Return the units of a part."""
    cells = [
        {"part": part, "set": name, "scale": scale, "rank": rank}
        for name in options.sets
        for scale in SCALES
        for rank in options.ranks
    ]
    if part == "time":
        return [{**cell, "method": "QMF", "features": options.features} for cell in cells]
    return [
        {**cell, "method": f"QMFQ {projector}", "features": options.projected, "fold": fold}
        for fold in range(options.folds)
        for cell in cells
        for projector in PROJECTORS
    ]


def do_unit(unit: Unit) -> Unit:
    """Return what a unit measures."""
    cohort, everyone = load_cohort(unit["set"]), np.arange(load_cohort(unit["set"]).n_samples)
    train, test = split(cohort, 0, unit["fold"]) if "fold" in unit else (everyone, everyone[:0])
    preparation = Preparation(unit["scale"], unit["features"]).fit(cohort, train)
    X, new = (preparation.matrix(cohort, samples) for samples in (train, test))
    kind, _, projector = unit["method"].partition(" ")
    parameters = {"projector": projector} if projector else {}
    _warm_up(kind, projector)
    method = Quantile(kind, unit["rank"], 0, parameters)
    started = time.process_time()
    _, found = method.fit(X)
    result = {
        "cpu seconds": time.process_time() - started,
        "status": method.model_.status_.value,
        "n_iter": int(method.model_.n_iter_),
        "shape": list(X.shape),
        "objective": float(method.model_.objective_),
        "KL": mean_divergence(X, found),
    }
    if len(test):
        result["KL of new samples"] = mean_divergence(new, method.apply(new)[1])
    return result


@cache
def _warm_up(kind: str, projector: str) -> None:
    """Compile what a fit needs."""
    parameters = {"projector": projector, "inner_iter": 2} if projector else {}
    X = np.random.default_rng(0).gamma(1.0, size=(12, 6))
    Quantile(kind, 2, 0, {**parameters, "max_iter": 2}).fit(X)


def describe_times(table: pd.DataFrame) -> str:
    """Return how the fits of QMF ended."""
    columns = ["set", "scale", "rank", "status", "n_iter", "cpu seconds", "KL", "objective"]
    rows = table[columns].assign(
        **{name: table[name].map("{:.4g}".format) for name in ("KL", "objective", "cpu seconds")}
    )
    ended = int((table["status"] == "converged").sum())
    return f"{ended} of {len(table)} fits converged.\n\n{markdown(rows.set_index('set'))}"


def describe_projectors(table: pd.DataFrame) -> str:
    """Return means over folds, and in how many cells the one projector is below the other."""
    cells = ["set", "scale", "rank"]
    means = table.groupby([*cells, "method"], sort=False)[list(MEASURES)].mean()
    ended = table["status"].eq("converged").groupby([table[c] for c in (*cells, "method")]).mean()
    shown = pd.DataFrame(
        {name: means[name].map(form.format) for name, form in MEASURES.items()}
        | {"converged": ended.reindex(means.index).map("{:.0%}".format)}
    ).reset_index()
    lines = []
    wide = means.unstack("method")
    for name in ("KL", "KL of new samples", "cpu seconds"):
        ratio = wide[name]["QMFQ nmf"] / wide[name]["QMFQ svd"]
        lines.append(
            f"* {name}: QMFQ svd lower in {int((ratio > 1).sum())} of {len(ratio)} cells; nmf over "
            f"svd {ratio.min():.2f} to {ratio.max():.2f}, median {ratio.median():.2f}."
        )
    return "\n".join(lines) + f"\n\n{markdown(shown.set_index('set'))}"


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "defaults.csv")
    for part in options.parts:
        own = make_units(part, options)
        run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
        table = store.table(own)
        describe = describe_times if part == "time" else describe_projectors
        size = options.features if part == "time" else options.projected
        body = (
            f"`{command()}`\n\n{environment()}. All parameters but the rank are the defaults; at "
            f"most {size} features of each kind. Seconds of the processor, one thread, without "
            f"compiling, on a machine that others use too.\n\n{describe(table)}"
        )
        write_section(RESULTS, f"Defaults: {part}", body)
        print(body)


if __name__ == "__main__":
    main()
