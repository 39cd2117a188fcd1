"""Figure 6: WCPDL of random tensors with noise, for several tau: error against time.

The tensor is a sum of outer products of ten random factors, with uniform noise from 0 to 10.

``python -m experiments.wdl.proximal --shapes 100x100x500,100x100x1000``
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from experiments.runs import Store, command, environment, markdown, run_units, words, write_section
from polyad import WassersteinCPDictionary
from polyad.tensor import kruskal_to_dense

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parent
TAUS = (0.0, 0.01, 0.1, 1.0)
RANK, NOISE = 10, 10.0


def tensor(shape: str) -> np.ndarray:
    """Return samples of the paper's Figure 6, which are the last mode of its shapes."""
    height, width, n_samples = map(int, shape.split("x"))
    rng = np.random.default_rng(0)
    factors = [rng.random((n, RANK)) for n in (n_samples, height, width)]
    return kruskal_to_dense(None, factors) + rng.uniform(0.0, NOISE, (n_samples, height, width))


def work(unit: dict[str, Any]) -> dict[str, Any]:
    """Fit once; return the loss and the relative error after each sweep, by time of the process."""
    X = tensor(unit["shape"])
    shares = X / X.sum(axis=(1, 2), keepdims=True)
    size = float(np.linalg.norm(shares))
    curve: list[tuple[float, float, float]] = []
    measuring, started = 0.0, time.process_time()

    def look(record: Any) -> None:
        nonlocal measuring
        now = time.process_time()
        codes, *atoms = record.state.blocks
        model = kruskal_to_dense(None, [codes, *atoms])
        error = float(np.linalg.norm(model - shares)) / size
        curve.append((round(now - started - measuring, 1), record.objective, error))
        measuring += time.process_time() - now

    model = WassersteinCPDictionary(
        RANK,
        tau=unit["tau"],
        tol=unit["tol"],
        max_iter=unit["sweeps"],
        random_state=0,
        callbacks=look,
        verbose=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    return {
        "cpu": round(time.process_time() - started - measuring, 1),
        "loss": model.objective_,
        "error": curve[-1][2],
        "n_iter": model.n_iter_,
        "ended": model.status_.name.lower(),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "curve": json.dumps([[round(x, 8) for x in point] for point in curve]),
    }


def draw(table: pd.DataFrame, shapes: tuple[str, ...]) -> None:
    """Draw the loss against time, a panel for each shape."""
    figure = Figure(figsize=(5 * len(shapes), 3.6), layout="constrained")
    for panel, shape in zip(np.ravel(figure.subplots(1, len(shapes))), shapes, strict=True):
        for row in table[table["shape"] == shape].itertuples():
            points = np.array(json.loads(row.curve) if isinstance(row.curve, str) else row.curve)
            panel.plot(points[:, 0], points[:, 1], marker="o", ms=3, label=f"tau = {row.tau:g}")
        panel.set(xlabel="seconds of the processor", ylabel="loss", title=shape, yscale="log")
        panel.legend()
    figure.savefig(FOLDER / f"proximal_{shapes[0]}.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=words, default=("100x100x500", "100x100x1000"))
    parser.add_argument("--taus", type=words, default=tuple(map(str, TAUS)))
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--max-minutes", type=float, default=60.0)
    options = parser.parse_args()
    units = [
        {"shape": shape, "tau": float(tau), "sweeps": options.sweeps, "tol": options.tol}
        for shape in options.shapes
        for tau in options.taus
    ]
    store = Store(FOLDER / "proximal.csv")
    run_units(units, work, store, max_minutes=options.max_minutes)
    table = store.table(units)
    draw(table, options.shapes)
    shown = table[["shape", "tau", "n_iter", "ended", "cpu", "loss", "error", "peak_gb"]].copy()
    shown["loss"] = shown["loss"].map("{:.6f}".format)
    shown["error"] = shown["error"].map("{:.5f}".format)
    shown.columns = [
        "shape",
        "tau",
        "sweeps",
        "ended by",
        "CPU-seconds",
        "loss",
        "error",
        "peak GB",
    ]
    text = (
        f"`{command()}`\n\n{environment()}\n\n"
        f"![loss against time](proximal_{options.shapes[0]}.png)\n\n"
        f"Sums of {RANK} outer products of uniform factors with uniform noise from 0 to {NOISE:g}, "
        f"{RANK} atoms, squared distance, epsilon 'auto', the same start for every tau. The error "
        "is that of the mixtures relative to the samples of mass one, in the Frobenius norm.\n\n"
        f"{markdown(shown.set_index('shape'))}"
    )
    title = f"Figure 6: tau of WCPDL, {' and '.join(options.shapes)}"
    write_section(FOLDER / "RESULTS.md", title, text)


if __name__ == "__main__":
    main()
