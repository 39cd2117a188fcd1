"""Time of whole fits: the runtime experiment of section 6.1, and how time grows.

    python -m experiments.ptpqp.runtime

1000 variables of 4 categories and 1000 samples, 4, 8 and 12 components: the whole model at once,
without forming its tensor, and 30 to 200 partitions, as the paper has it. Then time against the
number of variables and of samples. Then whole fits of data on disk, larger than the memory that a
fit takes: a process of its own maps the file and tells its peak memory, without the pages of the
file. Finished measurements are kept in ``runtime.csv``; numbers go to ``RESULTS.md``, a figure to
``runtime.png``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from experiments.ptpqp.methods import with_all_categories
from experiments.ptpqp.synthetic import make_planted, rmse
from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    numbers,
    run_units,
    write_section,
)
from polyad import MixedMembership

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
_CATEGORIES = 4
# Seconds with 100 partitions on a laptop, serial (section 6.1).
PAPER = {4: 210, 8: 240, 12: 300}
_SEED, _ROWS_AT_A_TIME = 0, 20_000


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--components", type=numbers, default=(4, 8, 12))
    parser.add_argument("--partitions", type=numbers, default=(30, 40, 50, 100, 200))
    parser.add_argument("--variables", type=numbers, default=(250, 500, 1000, 2000, 4000))
    parser.add_argument("--sizes", type=numbers, default=(1000, 2000, 4000, 8000, 16000))
    parser.add_argument(
        "--disk", type=numbers, default=(100_000, 1_000_000), help="samples on disk"
    )
    parser.add_argument("--max-minutes", type=float, default=30.0)
    return parser.parse_args(arguments)


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the measurements."""
    base = {"panel": "partitions", "n": 1000, "p": 1000}
    units = [
        {**base, "k": k, "partitions": r}
        for k in options.components
        for r in (1, *options.partitions)
    ]
    grow = {"k": 8, "partitions": 1}
    units += [{"panel": "variables", "n": 1000, "p": p, **grow} for p in options.variables]
    units += [{"panel": "samples", "n": n, "p": 1000, **grow} for n in options.sizes]
    units += [{"panel": "disk", "n": n, "p": 1000, **grow} for n in options.disk]
    return units


def do_unit(unit: Unit) -> Unit:
    """Return the processor seconds of a fit with one thread, and the error of its parameters."""
    if unit["panel"] == "disk":
        return _on_disk(unit)
    planted = make_planted(unit["n"], unit["p"], _CATEGORIES, unit["k"], _SEED)
    model = make_model(unit["k"], planted.alpha0, unit["partitions"])
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        # Kernels are compiled before the clock starts.
        make_model(unit["k"], planted.alpha0, 1).set_params(max_iter=2).fit(planted.Y[:200, :60])
        started = time.process_time()
        model.fit(planted.Y)
        took = time.process_time() - started
    theta = with_all_categories(planted.Y, model.theta_, _CATEGORIES)
    return {"fit": took, "iterations": int(model.n_iter_), "rmse": rmse(theta, planted.theta)}


def make_model(k: int, alpha0: float, n_partitions: int) -> MixedMembership:
    """Return the whole model, or one in partitions."""
    if n_partitions == 1:
        return MixedMembership(k, alpha0=alpha0, n_jobs=1, random_state=0)
    return MixedMembership(
        k,
        alpha0=alpha0,
        method="partitioned",
        n_partitions=n_partitions,
        n_jobs=1,
        random_state=0,
    )


def _on_disk(unit: Unit) -> Unit:
    """Write samples to a file, and fit them in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npy"
        shape = (unit["n"], unit["p"])
        file = np.lib.format.open_memmap(path, mode="w+", dtype=np.int8, shape=shape)
        for part, first in enumerate(range(0, unit["n"], _ROWS_AT_A_TIME)):
            rows = min(_ROWS_AT_A_TIME, unit["n"] - first)
            drawn = make_planted(rows, unit["p"], _CATEGORIES, unit["k"], _SEED, part=part)
            file[first : first + rows] = drawn.Y
        file.flush()
        del file
        program = [sys.executable, "-m", "experiments.ptpqp.runtime", "--fit-file", str(path)]
        done = subprocess.run(
            [*program, str(unit["k"])], capture_output=True, text=True, check=True
        )
    numbers_told = [float(word) for word in done.stdout.split()[-5:]]
    names = ("fit", "iterations", "rmse", "megabytes", "megabytes_before")
    size = {"file_megabytes": unit["n"] * unit["p"] / 2**20}
    return dict(zip(names, numbers_told, strict=True)) | size


def fit_file(path: str, k: int) -> None:
    """Fit a file of samples; print seconds, sweeps, error, and memory at its peak and before."""
    Y = np.load(path, mmap_mode="r")
    planted = make_planted(1, Y.shape[1], _CATEGORIES, k, _SEED)
    model = make_model(k, planted.alpha0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = np.ascontiguousarray(Y[:200, :60])
        make_model(k, planted.alpha0, 1).set_params(max_iter=2).fit(small)
        memory = [own_megabytes()]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                memory.append(own_megabytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        started = time.process_time()
        model.fit(Y)
        took = time.process_time() - started
        done.set()
        watcher.join()
    print(took, model.n_iter_, rmse(model.theta_, planted.theta), max(memory), memory[0])


def own_megabytes() -> float:
    """Return the memory of this process, without pages of files, which the system may drop."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


def describe(table: pd.DataFrame) -> str:
    """Return the measurements as text."""
    texts = []
    own = table[table["panel"] == "partitions"]
    rows = {}
    for r in sorted(own["partitions"].unique()):
        line = own[own["partitions"] == r].set_index("k")
        name = "whole, tensor-free" if r == 1 else f"{r} partitions"
        rows[name] = [f"{line['fit'][k]:.2f} s, {line['rmse'][k]:.4f}" for k in sorted(line.index)]
    shown = pd.DataFrame.from_dict(rows, orient="index")
    shown.columns = [f"k = {k}" for k in sorted(own["k"].unique())]
    shown.loc["paper, 100 partitions"] = [f"{PAPER[k]} s" for k in sorted(own["k"].unique())]
    shown.index.name = "p = 1000, n = 1000: time, error"
    texts.append(markdown(shown))
    for panel, letter, title in (("variables", "p", "variables"), ("samples", "n", "samples")):
        line = table[table["panel"] == panel].sort_values(letter)
        each = line["fit"] / line["iterations"] / line[letter]
        shown = pd.DataFrame(
            {
                "seconds": line["fit"].map("{:.2f}".format),
                "sweeps": line["iterations"].astype(int),
                f"microseconds per sweep and {title[:-1]}": (1e6 * each).map("{:.1f}".format),
                "error": line["rmse"].map("{:.4f}".format),
            }
        )
        shown.index = pd.Index(line[letter], name=f"{title}, k = 8")
        texts.append(markdown(shown))
    line = table[table["panel"] == "disk"]
    if len(line):
        shown = pd.DataFrame(
            {
                "file": line["file_megabytes"].map("{:.0f} MB".format),
                "sweeps": line["iterations"].astype(int),
                "seconds": line["fit"].map("{:.0f}".format),
                "error": line["rmse"].map("{:.5f}".format),
                "peak memory": line["megabytes"].map("{:.0f} MB".format),
                "before the fit": line["megabytes_before"].map("{:.0f} MB".format),
            }
        )
        shown.index = pd.Index(line["n"], name="samples on disk, p = 1000, k = 8")
        texts.append(markdown(shown))
        texts.append(
            "Whole fits of samples on disk, with that of a part of them which they start from. "
            "Memory is that of the process without the pages of the mapped file, five times a "
            "second."
        )
    return "\n".join(texts)


def plot(table: pd.DataFrame, path: Path) -> None:
    """Draw the time of a sweep against the number of variables and of samples."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True)
    for axis, (panel, letter) in zip(axes, (("variables", "p"), ("samples", "n")), strict=True):
        line = table[table["panel"] == panel].sort_values(letter)
        seconds = line["fit"] / line["iterations"]
        axis.plot(line[letter], seconds, "o-", label="seconds of a sweep")
        # Through the largest size.
        slope = seconds.iloc[-1] / line[letter].iloc[-1]
        axis.plot(line[letter], slope * line[letter], "k:", label="linear")
        axis.set(xscale="log", yscale="log", xlabel=panel)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    """Run what the command line asks for."""
    if sys.argv[1:2] == ["--fit-file"]:
        fit_file(sys.argv[2], int(sys.argv[3]))
        return
    options = read_options()
    store = Store(HERE / "runtime.csv")
    own = make_units(options)
    # One process: times are measured.
    run_units(own, do_unit, store, jobs=1, max_minutes=options.max_minutes)
    table = store.table(own)
    plot(table, HERE / "runtime.png")
    body = (
        f"`{command()}`\n\n{environment()}. Seconds of one "
        "processor, which others on the machine disturb less than those of a clock; one thread; "
        "without the time that compiles kernels.\n\n"
        f"{describe(table)}\n\n![time of a sweep against variables and samples](runtime.png)"
    )
    write_section(RESULTS, "Runtime", body)
    print(body)


if __name__ == "__main__":
    main()
