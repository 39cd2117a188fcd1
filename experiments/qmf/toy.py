"""The toy of the paper's Figures 5 and 6: loss curves, and learned against true quantiles.

    python -m experiments.qmf.toy

A matrix of rank 8 behind a hard quantile transform of each of its 160 features, 80 samples. NMF
(scikit-learn's updates for the Kullback-Leibler divergence, and those for squares, which the code
of the paper uses), QMF and QMFQ with 8 quantiles and the same rank. Finished fits are kept in
``toy.csv``; figures go to ``runs/``, numbers to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.qmf.curves import (
    compile_models,
    frobenius_updates,
    kl_updates,
    make_model,
    watched_model,
    watched_updates,
)
from experiments.qmf.figures import save, subplots
from experiments.qmf.synthetic import Planted, make_planted, quantiles_at
from experiments.runs import Store, command, environment, markdown, run_units, words, write_section

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
RUNS = HERE / "runs"
RANK, N_QUANTILES = 8, 8
UPDATES = {"NMF KL": kl_updates, "NMF squares": frobenius_updates}
# The paper's settings: Adam from a random start, learning rate 0.01; the others are the defaults.
_PAPER = {"solver": "adam", "init": "random", "learning_rate": 0.01, "tol": 0.0}
MODELS: dict[str, tuple[str, Unit]] = {
    "QMF": ("QMF", {}),
    "QMF random start": ("QMF", _PAPER),
    "QMFQ": ("QMFQ", {"projector": "nmf"}),
    "QMFQ SVD": ("QMFQ", {"projector": "svd"}),
}
METHODS = (*UPDATES, *MODELS)
BASE = "NMF KL"
#: The factor that QMF is to be below NMF.
TARGET = 5.0


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=8, help="matrices drawn (seeds 0, 1, ...)")
    parser.add_argument("--features", type=int, default=160)
    parser.add_argument("--individuals", type=int, default=80)
    parser.add_argument("--iterations", type=int, default=1000, help="at most, of every method")
    parser.add_argument("--methods", type=words, default=METHODS)
    parser.add_argument("--max-minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    strange = [name for name in options.methods if name not in METHODS]
    if strange:
        parser.error(f"{strange[0]!r} is not known; methods: {METHODS}")
    return options


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the fits."""
    size = {"features": options.features, "individuals": options.individuals}
    return [
        {"method": name, **size, "iterations": options.iterations, "sample": sample}
        for sample in range(options.samples)
        for name in options.methods
    ]


def do_unit(unit: Unit) -> Unit:
    """Return the curve of a fit, and what became of the quantiles."""
    compile_models()
    planted = make_planted(unit["features"], unit["individuals"], RANK, unit["sample"])
    seed, n_iter = unit["sample"], unit["iterations"]
    if unit["method"] in UPDATES:
        curve, _ = watched_updates(planted.X, RANK, seed, n_iter, UPDATES[unit["method"]])
        return {**curve, "last": curve["divergence"][-1]}
    name, settings = MODELS[unit["method"]]
    parameters = {"n_quantiles": N_QUANTILES, "max_iter": n_iter, **settings}
    model = make_model(name, RANK, seed, parameters)
    curve, _ = watched_model(model, planted.X)
    result = {**curve, "last": curve["divergence"][-1], "n_iter": int(model.n_iter_)}
    result |= {"status": model.status_.value, "distance": _distance(planted, model)}
    result |= {"quantiles": model.quantiles_[0].tolist()}
    result |= {"weights": model.quantile_weights_[0].tolist()}
    if name == "QMFQ":
        result["normalizing_quantiles"] = model.normalizing_quantiles_[0].tolist()
        result["normalizing_weights"] = model.normalizing_weights_[0].tolist()
    return result


def _distance(planted: Planted, model: Any) -> float:
    return quantile_distance(planted, model.quantiles_, model.quantile_weights_)


def quantile_distance(planted: Planted, quantiles: np.ndarray, weights: np.ndarray) -> float:
    """Return how far quantiles are from the true ones: the median over the features.

    Of each feature, the mean distance of the two quantile functions (Wasserstein distance), as a
    part of the standard deviation of the feature.

    Parameters
    ----------
    planted : Planted
        The data and its true quantiles.
    quantiles, weights : ndarray of shape (d, m)
        What is compared with them.
    """
    n = planted.quantiles.shape[1]
    # The weights of a learned distribution do not end where the steps of the true one do.
    levels = (np.arange(16 * n) + 0.5) / (16 * n)
    distances = []
    for true, own, shares in zip(planted.quantiles, quantiles, weights, strict=True):
        there = quantiles_at(true, np.full(n, 1.0 / n), levels)
        distances.append(np.abs(quantiles_at(own, shares, levels) - there).mean() / true.std())
    return float(np.median(distances))


def even_distance(planted: Planted, m: int) -> float:
    """Return the distance of m quantiles of equal weight that are made from the true ones."""
    levels = (np.arange(m) + 0.5) / m
    n = planted.quantiles.shape[1]
    even = np.full(n, 1.0 / n)
    middle = np.array([quantiles_at(true, even, levels) for true in planted.quantiles])
    return quantile_distance(planted, middle, np.full_like(middle, 1.0 / m))


def describe(table: pd.DataFrame) -> str:
    """Return the last divergences, their ratios to NMF's, times and quantile distances as text."""
    last = table.pivot_table(index="sample", columns="method", values="last")
    seconds = table.assign(total=[times[-1] for times in table["times"]])
    total = seconds.pivot_table(index="sample", columns="method", values="total")
    rows: dict[str, dict[str, str]] = {}
    for name in [name for name in METHODS if name in last]:
        ratio = last[BASE] / last[name] if BASE in last else last[name] * np.nan
        own = table[table["method"] == name]
        rows[name] = {
            "mean KL": f"{last[name].mean():.4g} ± {last[name].std():.2g}",
            f"{BASE} over it: mean": f"{ratio.mean():.1f}",
            "lowest": f"{ratio.min():.1f}",
            "seconds": f"{total[name].median():.2f}",
            f"seconds to {BASE}'s last": _reached(table, name),
            "iterations": f"{_iterations(own).median():.0f}",
        }
        if "distance" in own and own["distance"].notna().any():
            rows[name]["quantile distance"] = f"{own['distance'].mean():.3f}"
    frame = pd.DataFrame.from_dict(rows, orient="index").fillna("")
    frame.index.name = "method"
    return markdown(frame) + "\n" + _verdict(last)


def _iterations(own: pd.DataFrame) -> pd.Series:
    # The last point of a curve of ours is not an iteration but the finished model.
    ours = own["method"].isin(MODELS).astype(int)
    return own["iteration"].map(lambda steps: steps[-1]) - ours


def _reached(table: pd.DataFrame, name: str) -> str:
    """Return the median time until a method is below the last divergence of NMF, if it ever is."""
    goals = table[table["method"] == BASE].set_index("sample")["last"]
    times = []
    for _, row in table[table["method"] == name].iterrows():
        below = np.asarray(row["divergence"]) <= goals.get(row["sample"], -np.inf)
        times.append(row["times"][int(below.argmax())] if below.any() else np.inf)
    median = float(np.median(times))
    return f"{median:.2f}" if np.isfinite(median) else "never"


def _verdict(last: pd.DataFrame) -> str:
    if not {"QMF", BASE} <= set(last):
        return ""
    ratio = (last[BASE] / last["QMF"]).dropna()
    met = int((ratio >= TARGET).sum())
    return (
        f"Target, QMF at least {TARGET:g}x below {BASE}: met on {met} of {len(ratio)} matrices "
        f"(lowest ratio {ratio.min():.1f}).\n"
    )


def plot_losses(table: pd.DataFrame, path: Path) -> None:
    """Draw the divergence against the iteration and against the time (Figure 5)."""
    figure, (left, right) = subplots(2)
    for number, name in enumerate(name for name in METHODS if name in set(table["method"])):
        own = table[table["method"] == name]
        for repeat, (_, row) in enumerate(own.iterrows()):
            style = {"color": f"C{number}", "lw": 1.0, "alpha": 0.8}
            style |= {"label": name} if repeat == 0 else {}
            left.plot(np.asarray(row["iteration"]) + 1, row["divergence"], **style)
            right.plot(row["times"], row["divergence"], **style)
    left.set(xlabel="outer iteration + 1", ylabel="mean KL", xscale="log", yscale="log")
    right.set(xlabel="seconds", xscale="log", yscale="log")
    left.legend(fontsize=7)
    save(figure, path)


def plot_quantiles(table: pd.DataFrame, options: argparse.Namespace, path: Path) -> None:
    """Draw true and learned quantiles of the first feature of the first matrix (Figure 6)."""
    planted = make_planted(options.features, options.individuals, RANK, 0)
    figure, (left, right) = subplots(2)
    n = options.individuals
    left.step((np.arange(n) + 1) / n, planted.quantiles[0], label="true", color="black", lw=2)
    own = table[(table["sample"] == 0) & table["method"].isin(MODELS)]
    for number, (_, row) in enumerate(own.iterrows()):
        style = {"color": f"C{number}", "label": row["method"], "marker": "o", "ms": 3, "lw": 1}
        left.step(np.cumsum(row["weights"]), row["quantiles"], **style)
        if isinstance(row.get("normalizing_quantiles"), list):
            levels = np.cumsum(row["normalizing_weights"])
            right.step(levels, row["normalizing_quantiles"], **style)
    left.set(xlabel="level", ylabel="quantile of the first feature")
    right.set(xlabel="level", ylabel="normalizing quantile (no unit)", yscale="log")
    left.legend(fontsize=7)
    right.legend(fontsize=7)
    save(figure, path)


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "toy.csv")
    own = make_units(options)
    # One process: times are measured.
    run_units(own, do_unit, store, jobs=1, max_minutes=options.max_minutes)
    table = store.table(own)
    plot_losses(table, RUNS / "toy_losses.png")
    plot_quantiles(table, options, RUNS / "toy_quantiles.png")
    even = even_distance(make_planted(options.features, options.individuals, RANK, 0), N_QUANTILES)
    body = (
        f"`{command()}`\n\n{environment()}. d = {options.features} features, n = "
        f"{options.individuals} samples, k = {RANK}, m = {N_QUANTILES} quantiles, seeds 0 to "
        f"{options.samples - 1} draw the matrices and start the methods; ± is the standard "
        "deviation over them. One thread each; seconds (medians) include the start of a fit, on a "
        "machine that others use too. Quantile distance: Wasserstein distance of learned from true "
        "quantiles as a part of the standard deviation of a feature, median over features; "
        f"{N_QUANTILES} quantiles of equal weight made from the true ones have {even:.3f}.\n\n"
        f"{describe(table)}"
    )
    write_section(RESULTS, "Toy: Figures 5 and 6", body)
    print(body)


if __name__ == "__main__":
    main()
