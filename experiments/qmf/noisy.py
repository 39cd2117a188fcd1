"""The larger noisy study of the paper's Figure 4, with error bars.

    python -m experiments.qmf.noisy --jobs 2

Eight matrices of 256 samples and 500 features, of rank 10 behind a quantile transform of each
feature, plus the positive part of Gaussian noise of standard deviation 10. Varied: the batches of
QMF, the inner iterations of QMFQ, the number of quantiles of both. Also told is the divergence of
the data without its noise, which no method has seen. Finished fits are kept in ``noisy.csv``;
figures go to ``runs/``, numbers to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.qmf.curves import (
    compile_models,
    kl_updates,
    make_model,
    mean_divergence,
    watched_model,
    watched_updates,
)
from experiments.qmf.figures import save, subplots
from experiments.qmf.synthetic import make_planted
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
    from collections.abc import Sequence

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
RUNS = HERE / "runs"
PANELS = {
    "batch": "batches of QMF",
    "inner": "inner iterations of QMFQ",
    "quantiles": "number of quantiles",
}
BASE = "NMF KL"
NOISE = 10.0
# What is held while something else varies.
_HELD = {"n_quantiles": 16, "inner_iter": 100}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=8, help="matrices drawn (seeds 0, 1, ...)")
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--individuals", type=int, default=256)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--batches", type=numbers, default=(32, 128), help="besides all features")
    parser.add_argument("--inner", type=numbers, default=(10, 30, 100))
    parser.add_argument("--quantiles", type=numbers, default=(8, 16, 32))
    parser.add_argument("--updates", type=int, default=1000, help="iterations of NMF")
    parser.add_argument("--iterations", type=int, default=300, help="of QMF, at most")
    parser.add_argument("--outer", type=int, default=100, help="iterations of QMFQ, at most")
    parser.add_argument("--panels", type=words, default=tuple(PANELS))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--max-minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    strange = [name for name in options.panels if name not in PANELS]
    if strange:
        parser.error(f"{strange[0]!r} is not known; panels: {tuple(PANELS)}")
    return options


def make_kinds(options: argparse.Namespace) -> dict[str, list[Unit]]:
    """Return the fits of each panel, without their matrices."""
    held = _HELD["n_quantiles"]
    qmf = {"method": "QMF", "n_quantiles": held, "iterations": options.iterations}
    qmfq = {"method": "QMFQ", "n_quantiles": held, "iterations": options.outer}
    nmf = {"method": BASE, "iterations": options.updates}
    inner = {"inner_iter": _HELD["inner_iter"]}
    kinds = {
        "batch": [qmf, *({**qmf, "batch_size": size} for size in options.batches)],
        "inner": [{**qmfq, "inner_iter": inner_iter} for inner_iter in options.inner],
        "quantiles": [
            {**kind, "n_quantiles": m}
            for kind in (qmf, {**qmfq, **inner})
            for m in options.quantiles
        ],
    }
    return {panel: [nmf, *kinds[panel]] for panel in PANELS if panel in options.panels}


def make_units(kinds: Sequence[Unit], options: argparse.Namespace) -> list[Unit]:
    """Return the fits of some kinds, each of them once."""
    size = {"features": options.features, "individuals": options.individuals, "rank": options.rank}
    distinct = {json.dumps(kind, sort_keys=True): kind for kind in kinds}
    return [
        {**kind, **size, "sample": sample}
        for sample in range(options.samples)
        for kind in distinct.values()
    ]


def do_unit(unit: Unit) -> Unit:
    """Return the curve of a fit, and the divergence of the data without its noise."""
    compile_models()
    size = unit["features"], unit["individuals"], unit["rank"]
    planted = make_planted(*size, unit["sample"], noise=NOISE)
    X, rank, seed, n_iter = planted.X, unit["rank"], unit["sample"], unit["iterations"]
    if unit["method"] == BASE:
        result = _result(*watched_updates(X, rank, seed, n_iter, kl_updates), planted.clean)
        return {**result, "n_iter": n_iter}
    names = ("n_quantiles", "inner_iter", "batch_size")
    parameters = {name: unit[name] for name in names if name in unit}
    if "batch_size" in unit:  # only Adam takes batches
        parameters["solver"] = "adam"
    if "inner_iter" in parameters:  # of the nonnegative projector alone
        parameters["projector"] = "nmf"
    model = make_model(unit["method"], rank, seed, {"max_iter": n_iter, **parameters})
    result = _result(*watched_model(model, X), planted.clean)
    return {**result, "n_iter": int(model.n_iter_), "status": model.status_.value}


def _result(curve: dict[str, list[float]], model: np.ndarray, clean: np.ndarray) -> Unit:
    without = mean_divergence(clean, model)
    return {**curve, "last": curve["divergence"][-1], "without_noise": without}


def title_of(unit: Unit) -> str:
    """Return what a kind of fit is called in tables and figures."""
    if unit["method"] == BASE:
        return BASE
    texts = [f"m = {unit['n_quantiles']}"]
    if unit["method"] == "QMF":
        size = unit.get("batch_size")
        texts.append("all features" if size is None else f"batches of {size}")
    else:
        texts.append(f"{unit['inner_iter']} inner")
    return f"{unit['method']}, {', '.join(texts)}"


def panel_table(store: Store, kinds: Sequence[Unit], options: argparse.Namespace) -> pd.DataFrame:
    """Return the finished fits of a panel with their titles."""
    parts = []
    for kind in kinds:
        part = store.table(make_units([kind], options))
        parts.append(part.assign(title=title_of(kind)))
    return pd.concat(parts)


def describe(table: pd.DataFrame) -> str:
    """Return divergences with their spread, and ratios to NMF with intervals, as text."""
    rows = {}
    base = table[table["title"] == BASE].set_index("sample")
    for title in dict.fromkeys(table["title"]):
        own = table[table["title"] == title].set_index("sample")
        rows[title] = {
            "mean KL": _spread(own["last"]),
            f"{BASE} over it": _ratio(base["last"], own["last"]),
            "KL of the data without noise": _spread(own["without_noise"]),
            f"{BASE} over that": _ratio(base["without_noise"], own["without_noise"]),
            "iterations": f"{own['n_iter'].median():.0f}",
            "seconds": f"{own['times'].map(lambda times: times[-1]).median():.1f}",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "method"
    return markdown(frame)


def _spread(values: pd.Series) -> str:
    return f"{values.mean():.4g} ± {values.std():.2g}"


def _ratio(base: pd.Series, own: pd.Series) -> str:
    """Return the geometric mean of paired ratios and its interval."""
    logs = np.log((base / own).dropna().to_numpy())
    mean, low, high = np.exp(interval(logs))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def mean_curve(own: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return iterations, and mean and standard deviation of the divergences over the matrices.

    A fit that ended before others keeps its last divergence.
    """
    steps = sorted({step for row in own["iteration"] for step in row})
    lines = [np.interp(steps, row["iteration"], row["divergence"]) for _, row in own.iterrows()]
    spread = np.std(lines, axis=0, ddof=1) if len(lines) > 1 else np.zeros(len(steps))
    return np.array(steps), np.mean(lines, axis=0), spread


def plot(tables: dict[str, pd.DataFrame], path: Path) -> None:
    """Draw mean curves with error bars, a panel for each thing that varies (Figure 4)."""
    figure, axes = subplots(len(tables))
    for (panel, table), axis in zip(tables.items(), np.atleast_1d(axes), strict=True):
        for title in dict.fromkeys(table["title"]):
            steps, mean, spread = mean_curve(table[table["title"] == title])
            line = axis.errorbar(
                steps + 1, mean, yerr=spread, errorevery=4, lw=1.2, elinewidth=0.6, label=title
            )
            line[0].set_alpha(0.9)
        axis.set(xlabel="outer iteration + 1", xscale="log", yscale="log", title=PANELS[panel])
        axis.legend(fontsize=6)
    np.atleast_1d(axes)[0].set_ylabel("mean KL")
    save(figure, path)


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "noisy.csv")
    kinds = make_kinds(options)
    own = make_units([kind for panel in kinds.values() for kind in panel], options)
    run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    tables = {panel: panel_table(store, list(part), options) for panel, part in kinds.items()}
    plot(tables, RUNS / "noisy.png")
    texts = [f"{PANELS[panel]}:\n\n{describe(table)}" for panel, table in tables.items()]
    noise = _noise_share(options)
    body = (
        f"`{command()}`\n\n{environment()}. d = {options.features} features, n = "
        f"{options.individuals} samples, k = {options.rank}, noise: positive part of a Gaussian of "
        f"standard deviation {NOISE:g} ({noise}); {options.samples} matrices (seeds 0, 1, ...), ± "
        "is the standard deviation over them; ratios are geometric means of paired ratios with "
        f"95 % intervals. {options.updates} iterations of NMF, at most {options.iterations} of QMF "
        f"and {options.outer} of QMFQ. Seconds are medians of one thread each, on a machine that "
        "others use too.\n\n" + "\n".join(texts)
    )
    write_section(RESULTS, "Noisy: Figure 4", body)
    print(body)


def _noise_share(options: argparse.Namespace) -> str:
    """Return how large the data is, and how far it is from itself without noise, for the first."""
    size = options.features, options.individuals, options.rank
    planted = make_planted(*size, 0, noise=NOISE)
    far = mean_divergence(planted.X, planted.clean)
    return f"the mean entry is {planted.X.mean():.1f}, the KL of data from truth {far:.2f}"


if __name__ == "__main__":
    main()
