"""Time of an iteration: against the number of patients, the rank and the Sinkhorn steps.

    POLYAD_DATA=/path/to/data python -m experiments.swift.scaling

As the paper's Figure 5, on synthetic patients: `WassersteinCP` (exact transport, and the published
number of Sinkhorn steps), the paper's algorithm in NumPy, and the direct method of its appendix as
long as that fits into memory. One sweep over the factors follows each transport, for all alike.
Measurements that others on the machine disturb are repeated. Finished measurements are kept in
``scaling.csv``; the figure goes to ``runs/scaling.png``, the numbers to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from benchmarks.quiet import per_iteration, timed
from threadpoolctl import threadpool_limits

from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    numbers,
    run_units,
    write_section,
)
from experiments.swift.patients import EVALUATION, make_cohort
from experiments.swift.reference import (
    direct_bytes,
    direct_iteration,
    published_iteration,
)
from polyad.core.threads import thread_limit
from polyad.tensor import SparseTensor
from polyad.transport import cosine_cost
from polyad.wasserstein.problem import TransportProblem, TransportSettings
from polyad.wasserstein.solver import WassersteinSolver, random_start

if TYPE_CHECKING:
    from scipy.sparse import coo_array

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
RUNS = HERE / "runs"
OURS = ("WassersteinCP, exact", "WassersteinCP, Sinkhorn steps")
PUBLISHED, DIRECT = "published, NumPy", "direct, NumPy"
PANELS = {"patients": "number of patients", "rank": "R", "steps": "Sinkhorn steps"}
# The middle of each panel: what is held while something else varies.
_HELD = {"patients": 250, "rank": 10, "steps": 25}
_RHO, _LAMBDA = 20.0, 1.0
_OUTCOME = "Hypertension"
# Bytes for the marginals.
_MEMORY = 2.0**32


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--patients", type=numbers, default=(60, 125, 250, 500, 960))
    parser.add_argument("--ranks", type=numbers, default=(5, 10, 20, 40))
    parser.add_argument("--steps", type=numbers, default=(1, 10, 20, 50))
    parser.add_argument("--threads", type=int, default=1, help="of each method")
    parser.add_argument("--repeats", type=int, default=3, help="measurements; the median counts")
    parser.add_argument("--memory-gb", type=float, default=4.0, help="limit of the direct method")
    parser.add_argument("--max-minutes", type=float, default=60.0)
    return parser.parse_args(arguments)


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the measurements."""
    common = {"threads": options.threads, "repeats": options.repeats}
    values = {"patients": options.patients, "rank": options.ranks, "steps": options.steps}
    return [
        {"panel": panel, "method": method, **_HELD, panel: value, **common}
        for panel in PANELS
        for value in values[panel]
        for method in (*OURS, PUBLISHED, DIRECT)
        if method != DIRECT or _direct_gb({**_HELD, panel: value}) <= options.memory_gb
    ]


def _direct_gb(unit: Unit) -> float:
    tensor, _ = make_cohort(EVALUATION, _OUTCOME)
    shape = (min(unit["patients"], tensor.shape[0]), *tensor.shape[1:])
    return direct_bytes(shape, unit["rank"]) / 2**30


def make_problem(n_patients: int) -> tuple[coo_array, list[np.ndarray]]:
    """Return the tensor of the first patients, and the costs of its modes."""
    tensor, _ = make_cohort(EVALUATION, _OUTCOME)
    X = tensor.isel(patient=slice(n_patients)).data
    return X, [cosine_cost(X, mode) for mode in range(3)]


def do_unit(unit: Unit) -> Unit:
    """Return the median seconds of an iteration, and the share of disturbed measurements."""
    X, costs = make_problem(unit["patients"])
    if unit["method"] in OURS:
        # Iterations alone: a fit ends with the rows of all samples, which others do not solve for.
        exact = unit["method"] == OURS[0]
        settings = TransportSettings(1.0 / _RHO, _LAMBDA, None if exact else unit["steps"])
        problem = TransportProblem(SparseTensor(X), costs, settings, _MEMORY)
        solver = WassersteinSolver(problem, inner_iter=1)
        start = random_start(problem, unit["rank"], 0)

        def run(n_iter: int) -> None:
            with thread_limit(unit["threads"]):
                state = solver.init(start)
                for _ in range(n_iter):
                    state = solver.step(state)

        seconds, disturbed = per_iteration(run, 4, unit["repeats"])
        return {"iteration": seconds, "disturbed": disturbed}
    dense, generator = X.toarray(), np.random.default_rng(0)
    factors = [generator.uniform(size=(n, unit["rank"])) for n in X.shape]
    iteration = published_iteration if unit["method"] == PUBLISHED else direct_iteration
    with threadpool_limits(unit["threads"]):
        measured = [
            timed(lambda: iteration(dense, costs, factors, _RHO, _LAMBDA, unit["steps"]))
            for _ in range(unit["repeats"])
        ]
    seconds = float(np.median([value for value, _ in measured]))
    return {"iteration": seconds, "disturbed": float(np.mean([not quiet for _, quiet in measured]))}


def describe(table: pd.DataFrame) -> str:
    """Return the times and ratios as text."""
    texts = []
    for panel, title in PANELS.items():
        own = table[table["panel"] == panel]
        seconds = own.pivot_table(index="method", columns=panel, values="iteration", sort=False)
        ratio = seconds / seconds.loc[OURS[0]]
        shown = pd.DataFrame(
            {
                f"{title} = {value}": [
                    "too much memory" if np.isnan(s) else f"{1000 * s:.3g} ms ({r:.3g}x)"
                    for s, r in zip(seconds[value], ratio[value], strict=True)
                ]
                for value in seconds.columns
            },
            index=seconds.index,
        )
        texts.append(markdown(shown))
    if (table["disturbed"] > 0).any():
        texts.append(
            f"{(table['disturbed'] > 0).sum()} of {len(table)} numbers have measurements during "
            "which others used the machine.\n"
        )
    return "\n".join(texts)


def plot(table: pd.DataFrame, path: Path) -> None:
    """Draw the three panels."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharey=True)
    for panel, title, axis in zip(PANELS, PANELS.values(), axes, strict=True):
        own = table[table["panel"] == panel]
        for method in dict.fromkeys(own["method"]):
            line = own[own["method"] == method].sort_values(panel)
            axis.plot(line[panel], line["iteration"], marker="o", label=method)
        axis.set(xlabel=title, yscale="log")
    axes[0].set_ylabel("seconds per iteration")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"figure written to {path}")


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "scaling.csv")
    own = make_units(options)
    # One process: times are measured.
    run_units(own, do_unit, store, jobs=1, max_minutes=options.max_minutes)
    table = store.table(own)
    plot(table, RUNS / "scaling.png")
    tensor, _ = make_cohort(EVALUATION, _OUTCOME)
    size = " x ".join(str(n) for n in tensor.shape[1:])
    held = ", ".join(f"{PANELS[name]} {value}" for name, value in _HELD.items())
    body = (
        f"`{command()}`\n\n{environment()}. Synthea patients x {size}; held where not varied: "
        f"{held}; rho = {_RHO:g}, lambda = {_LAMBDA:g}; medians of {options.repeats}; ratios to "
        f"{OURS[0]} in brackets.\n\n{describe(table)}"
    )
    write_section(RESULTS, "Scaling: time of an iteration", body)
    print(body)


if __name__ == "__main__":
    main()
