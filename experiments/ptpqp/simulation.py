"""Error of the parameters: the simulation of section 6.1, Figure 1 of the paper.

    python -m experiments.ptpqp.simulation

25 variables of 4 categories, memberships of 3 to 20 components, 100 to 5000 samples, categories
replaced by random ones with probability 0, 0.05 or 0.1. All methods of moments are given the same
moments, of three disjoint thirds of the variables (8, 8 and 9), with the true sum of the Dirichlet
parameters; `MixedMembership` and scikit-learn's `LatentDirichletAllocation` are given the samples.
The error is the root mean square over all category probabilities, after the assignment of
components that makes it smallest. Finished units are kept in ``simulation.csv``; numbers go to
``RESULTS.md``, the figure to ``simulation.png``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.ptpqp.methods import OF_MOMENTS, OF_SAMPLES, estimate
from experiments.ptpqp.synthetic import make_planted, rmse
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
METHODS = (*OF_MOMENTS, *OF_SAMPLES)
_VARIABLES, _CATEGORIES = 25, 4
_CONTAMINATIONS = (0.0, 0.05, 0.1)
# The largest number of samples, and contaminations, of methods that are slow (the variational model
# takes half a minute for 5000 samples) or variants of another.
_LIMITS = {
    "LDA": (1000, (0.0,)),
    "refined": (1000, (0.0,)),
    **dict.fromkeys(("eps", "wnmf", "nojd0", "meld0"), (5000, (0.0,))),
}
# Mean errors of the paper's updates over three other seeds (specification, e).
REFERENCE = {
    (3, 1000, 0.0): 0.0237,
    (3, 5000, 0.0): 0.0102,
    (3, 5000, 0.1): 0.0263,
    (5, 5000, 0.0): 0.0166,
    (10, 5000, 0.0): 0.0315,
}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--components", type=numbers, default=(3, 5, 10, 20))
    parser.add_argument("--sizes", type=numbers, default=(100, 200, 500, 1000, 5000))
    parser.add_argument(
        "--samples",
        type=int,
        default=3,
        help="models drawn (seeds 0, 1, ...); 0 only writes tables",
    )
    parser.add_argument("--methods", type=words, default=METHODS)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--max-minutes", type=float, default=30.0)
    return parser.parse_args(arguments)


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the fits."""
    return [
        {"method": method, "k": k, "n": n, "contamination": share, "sample": sample}
        for sample in range(options.samples)
        for k in options.components
        for n in options.sizes
        for share in _CONTAMINATIONS
        for method in options.methods
        if _is_wanted(method, n, share)
    ]


def _is_wanted(method: str, n: int, share: float) -> bool:
    most, shares = _LIMITS.get(method, (n, _CONTAMINATIONS))
    return n <= most and share in shares


def do_unit(unit: Unit) -> Unit:
    """Return the error of a fit."""
    planted = make_planted(
        unit["n"],
        _VARIABLES,
        _CATEGORIES,
        unit["k"],
        unit["sample"],
        contamination=unit["contamination"],
    )
    return {"rmse": rmse(estimate(unit["method"], planted, unit["sample"]), planted.theta)}


def describe(table: pd.DataFrame) -> str:
    """Return a table of mean errors, with the range over models, for each contamination and k."""
    texts = []
    for (share, k), own in table.groupby(["contamination", "k"]):
        spread = own.groupby(["method", "n"])["rmse"].agg(["mean", "min", "max"])
        rows = {}
        sizes = sorted(own["n"].unique())
        for method in [name for name in METHODS if name in set(own["method"])]:
            rows[method] = [_cell(spread, method, n) for n in sizes]
        shown = pd.DataFrame.from_dict(rows, orient="index", columns=[f"n = {n}" for n in sizes])
        shown.index.name = f"k = {k}, contamination {share:g}"
        texts.append(markdown(shown))
    return "\n".join(texts)


def _cell(spread: pd.DataFrame, method: str, n: int) -> str:
    if (method, n) not in spread.index:
        return ""
    mean, low, high = spread.loc[(method, n)]
    return f"{mean:.4f} [{low:.4f}, {high:.4f}]"


def summarize(table: pd.DataFrame) -> str:
    """Return how the methods rank: the mean over k and models of errors over that of pqp."""
    means = table.groupby(["contamination", "n", "k", "sample", "method"])["rmse"].mean()
    wide = means.unstack("method")
    ratio = wide.div(wide["pqp"], axis=0)
    shown = ratio.groupby(["contamination", "n"]).mean().T
    names = [name for name in METHODS if name in shown.index]
    shown = shown.loc[names].map(lambda value: "" if pd.isna(value) else f"{value:.2f}")
    shown.columns = [f"n = {n}, {share:g}" for share, n in shown.columns]
    shown.index.name = "error over that of pqp"
    return markdown(shown)


def compare(table: pd.DataFrame) -> str:
    """Return the errors beside the reference numbers."""
    rows = []
    for (k, n, share), reference in REFERENCE.items():
        own = table[(table["k"] == k) & (table["n"] == n) & (table["contamination"] == share)]
        means = own.groupby("method")["rmse"].mean()
        shown = [f"{means[name]:.4f}" if name in means else "" for name in ("pqp", "nnls", "meld")]
        rows.append([f"{reference:.4f}", *shown])
    index = pd.Index([f"k = {k}, n = {n}, contamination {c:g}" for k, n, c in REFERENCE])
    columns = ["reference, pqp", "pqp", "nnls", "meld"]
    return markdown(pd.DataFrame(rows, index=index, columns=columns))


def plot(table: pd.DataFrame, path: Path) -> None:
    """Draw errors against the number of samples, a panel for each number of components."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    clean = table[table["contamination"] == 0.0]
    ks = sorted(clean["k"].unique())
    figure, axes = plt.subplots(
        1, len(ks), figsize=(3.2 * len(ks), 3.6), sharey=True, squeeze=False
    )
    for k, axis in zip(ks, axes[0], strict=True):
        own = clean[clean["k"] == k].groupby(["method", "n"])["rmse"].agg(["mean", "min", "max"])
        for number, method in enumerate(METHODS):
            if method not in own.index:
                continue
            line = own.loc[method]
            color = f"C{number % 10}"
            style = "-" if number < 10 else "--"
            axis.plot(line.index, line["mean"], style, color=color, lw=1.2, label=method)
            axis.fill_between(line.index, line["min"], line["max"], color=color, alpha=0.12, lw=0)
        axis.set(title=f"k = {k}", xscale="log", yscale="log", xlabel="samples")
    axes[0, 0].set_ylabel("root mean square error")
    axes[0, 0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "simulation.csv")
    own = make_units(options)
    run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    table = store.table(make_units(read_options([])))
    plot(table, HERE / "simulation.png")
    models = table.groupby(["method", "k", "n", "contamination"]).size()
    body = (
        f"`{command()}`\n\n{environment()}. {_VARIABLES} variables of {_CATEGORIES} categories; "
        f"means over {models.min()} to {models.max()} drawn models and, in brackets, their range. "
        "Ratios are of the same models; means of different rows can be of different ones.\n\n"
        f"{summarize(table)}\n{compare(table)}\n{describe(table)}\n"
        "![errors against the number of samples, without contamination](simulation.png)"
    )
    write_section(RESULTS, "Simulation: error of the parameters", body)
    print(body)


if __name__ == "__main__":
    main()
