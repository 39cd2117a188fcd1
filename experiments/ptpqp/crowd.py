"""Labels of crowds: the paper's table, the same sets with what this library adds, and priors.

    POLYAD_DATA=folder python -m experiments.ptpqp.crowd [--peer python-with-crowd-kit]

``paper``: EM from group confusions by PQP, HALS, the power method and joint diagonalization, and
from the majority vote, as the program that the paper builds on has it: groups by the number of a
worker modulo three, ten rounds, all classes equally likely, no prior, and a label that is
impossible for a class says nothing of it; and from the best of many splits of the workers, by
likelihood, decomposed as ``DawidSkene`` does. ``ours``: settings of ``DawidSkene``,
none of which saw a true class. ``drawn``: crowds that were drawn, with few labels and more or fewer
classes. Calibration of confidence is measured on both. ``--peer`` names a Python that has
crowd-kit, for its errors, time of a round and memory. Finished units are kept in ``crowd.csv``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from benchmarks import crowd as benchmark

from experiments.data import data_file
from experiments.runs import Store, command, environment, markdown, run_units, write_section
from polyad import DawidSkene, MajorityVote
from polyad.crowd.answers import read_answers
from polyad.crowd.problem import CrowdProblem, vote_shares
from polyad.crowd.start import by_descent, by_power, moment_start, moments, named_classes
from polyad.membership.alternatives import hals, joint_diagonalization
from polyad.membership.solver import decompose

if TYPE_CHECKING:
    from collections.abc import Sequence

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SETS = {"bluebird": 108, "rte": 800, "trec": 2275, "dog": 807}
PAPER = {
    "PQP": (11.11, 7.75, 30.81, 15.37),
    "HALS": (12.96, 7.75, 31.47, 20.57),
    "TPM": (11.11, 7.62, 31.87, 15.49),
    "NOJD0": (12.04, 8.00, 32.97, 15.49),
    "NOJD1": (12.04, 8.00, 35.91, 15.86),
    "majority": (11.11, 7.12, 30.20, 15.86),
}
_ROUNDS = 10
# The least probability of a label in what moments say of a worker.
_LEAST = 1e-6
SETTINGS: dict[str, dict[str, Any] | None] = {
    "MajorityVote": None,
    "DawidSkene()": {},
    "DawidSkene(init='moments', n_init=8)": {"init": "moments", "n_init": 8},
    "DawidSkene(init='power', n_init=8)": {"init": "power", "n_init": 8},
    "DawidSkene(prior=1)": {"prior": 1.0},
    "DawidSkene(prior=None)": {"prior": None},
    "DawidSkene(prior=None, init='moments', n_init=8)": {
        **{"prior": None, "init": "moments", "n_init": 8},
    },
    "DawidSkene(prior=None, init='moments', n_init=8, max_iter=30)": {
        **{"prior": None, "init": "moments", "n_init": 8, "max_iter": 30},
    },
    "DawidSkene(variant='one-coin')": {"variant": "one-coin"},
}
# Items, workers, classes, labels of an item, how often workers are right, how alike they are.
DRAWN = {
    "2 classes, 5 labels": (500, 100, 2, 5, 0.7, 5.0),
    "4 classes, 5 labels": (500, 50, 4, 5, 0.55, 4.0),
    "10 classes, 3 labels": (1000, 300, 10, 3, 0.65, 10.0),
    "20 classes, 4 labels": (500, 100, 20, 4, 0.6, 5.0),
    "50 classes, 5 labels": (2000, 200, 50, 5, 0.5, 20.0),
}
DRAWN_SETTINGS = (
    *("MajorityVote", "DawidSkene()", "DawidSkene(prior=1)", "DawidSkene(prior=None)"),
    "DawidSkene(variant='one-coin')",
)


# Random starts and sweeps of a decomposition: single starts can lose a class.
_EFFORT = {"n_init": 4, "max_iter": 300}


def _by_pqp(third: np.ndarray, second: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    return decompose(third, len(third), update="pqp", random_state=seed, **_EFFORT).factors


def _by_hals(third: np.ndarray, second: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    factors, weights = hals(third, len(third), random_state=seed, **_EFFORT)
    return [factors[0] * weights, *factors[1:]]


def _by_projections(*, plug_in: bool) -> Any:
    def decompose(third: np.ndarray, second: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        factors, weights = joint_diagonalization(
            third, second, len(third), plug_in=plug_in, random_state=seed
        )
        return [np.abs(factors[0]) * np.abs(weights), *map(np.abs, factors[1:])]

    return decompose


STARTS = {
    "PQP": _by_pqp,
    "HALS": _by_hals,
    "TPM": by_power,
    "NOJD0": _by_projections(plug_in=False),
    "NOJD1": _by_projections(plug_in=True),
}
# The split of the best likelihood, and of how many: that of the paper, and random ones.
BEST_SPLIT, _SPLITS = "init='moments', best of 8 splits", 8
PAPER_STARTS = (*STARTS, "majority", BEST_SPLIT)


def read_set(name: str) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Return the labels of a set, and the true classes of some of its items."""
    labels = pd.read_csv(data_file(f"crowd/{name}_labels.csv"))
    truth = pd.read_csv(data_file(f"crowd/{name}_truth.csv")).set_index("item")["truth"]
    return labels, truth


def draw(name: str, sample: int) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Draw a crowd whose workers make the same mistakes, each more or less often."""
    n_items, n_workers, n_classes, per_item, right, alike = DRAWN[name]
    rng = np.random.default_rng(sample)
    truth = rng.choice(n_classes, size=n_items, p=rng.dirichlet(np.full(n_classes, 3.0)))
    table = np.zeros((n_classes, n_classes))
    for k in range(n_classes):
        table[k] = np.insert((1 - right) * rng.dirichlet(np.full(n_classes - 1, 0.3)), k, right)
    own = [[rng.dirichlet(alike * row + 1e-3) for row in table] for _ in range(n_workers)]
    busy = rng.dirichlet(np.full(n_workers, 0.5)) + 1e-3
    chosen = [
        rng.choice(n_workers, per_item, replace=False, p=busy / busy.sum()) for _ in range(n_items)
    ]
    items, workers = np.repeat(np.arange(n_items), per_item), np.concatenate(chosen)
    sums = np.array(own)[workers, truth[items]].cumsum(axis=1)
    labels = (rng.random((len(items), 1)) * sums[:, -1:] > sums).sum(axis=1)
    frame = pd.DataFrame({"item": items, "worker": workers, "label": labels})
    return frame, pd.Series(truth, index=np.arange(n_items))


def calibration(table: pd.DataFrame, truth: pd.Series[Any]) -> Unit:
    """Return wrong items, mean confidence, and the expected calibration error in ten bins."""
    known = table.loc[truth.index]
    right = (known["class"] == truth).to_numpy()
    confidence = known["confidence"].to_numpy()
    bins = np.minimum((10 * confidence).astype(int), 9)
    gaps = [abs((confidence - right)[bins == b].sum()) for b in range(10)]
    top = confidence >= 0.9
    return {
        "wrong": int((~right).sum()),
        "items": len(right),
        "confidence": float(confidence.mean()),
        "calibration_error": float(sum(gaps) / len(right)),
        "sure": float(top.mean()),
        "sure_and_right": float(right[top].mean()) if top.any() else float("nan"),
    }


def do_unit(unit: Unit) -> Unit:
    """Return the errors of one fit."""
    if unit["part"] == "paper":
        return _paper(unit["set"], unit["method"])
    labels, truth = (
        draw(unit["set"], unit["sample"]) if unit["part"] == "drawn" else read_set(unit["set"])
    )
    setting = SETTINGS[unit["method"]]
    if setting is None:
        return calibration(MajorityVote().fit(labels).item_table(), truth)
    model = DawidSkene(**setting, random_state=0).fit(labels)
    found = {"objective": float(model.objective_), "iterations": model.n_iter_}
    return {**calibration(model.item_table(), truth), **found}


def _paper(name: str, start: str, seed: int = 0) -> Unit:
    """Return the wrong items before and after ten rounds."""
    labels, truth = read_set(name)
    problem = CrowdProblem(read_answers(labels, ("item", "worker", "label")))
    # Moments give the tables of the first of the ten rounds, votes the posteriors before it.
    rounds = _ROUNDS if start == "majority" else _ROUNDS - 1
    if start == "majority":
        starts = [vote_shares(problem)]
    elif start == BEST_SPLIT:
        # The first split is that of the paper; the seed is that of the decomposition, and of the
        # other splits.
        numbers = range(_SPLITS)
        starts = [moment_start(problem, by_descent, number, seed + number) for number in numbers]
    else:
        starts = [published_start(problem, STARTS[start], seed)]
    # What is chosen by its likelihood needs one: nothing is left out of it.
    least = _LEAST if start == BEST_SPLIT else 0.0
    ends = [em_rounds(problem, own, rounds, least) for own in starts]
    best = int(np.argmax([likelihood for _, likelihood in ends]))
    answers = problem.answers
    items = pd.Index(answers.names[0]).get_indexer(truth.index)  # type: ignore[call-overload]
    wrong = [
        int((answers.classes[q[items].argmax(axis=1)] != truth.to_numpy()).sum())
        for q in (starts[best], ends[best][0])
    ]
    return {"wrong_at_start": wrong[0], "wrong": wrong[1], "items": len(items)}


def published_start(problem: CrowdProblem, method: Any, seed: int) -> np.ndarray:
    """Return posteriors by the tables of workers, each compared with both other groups together."""
    groups = np.arange(1, problem.n_workers + 1) % 3
    votes = [problem.votes(groups == g) for g in range(3)]
    tables, shares = named_classes(method(*moments(votes), seed))
    # Columns that sum to the mean number of votes, which is what they are the means of.
    means = [own * vote.sum(axis=1).mean() for own, vote in zip(tables, votes, strict=True)]
    found = np.zeros((problem.n_workers, problem.n_classes, problem.n_classes))
    for g in range(3):
        one, other = (h for h in range(3) if h != g)
        compared = problem.counts(votes[one] + votes[other]) / problem.n_items
        compared = compared @ np.linalg.pinv(shares[:, None] * (means[one] + means[other]).T)
        found[groups == g] = compared[groups == g]
    found = np.maximum(found, _LEAST)
    found /= found.sum(axis=1, keepdims=True)
    return problem.posteriors(np.log(found), np.zeros(problem.n_classes))[0]


def em_rounds(
    problem: CrowdProblem, posteriors: np.ndarray, rounds: int, least: float
) -> tuple[np.ndarray, float]:
    """Return posteriors and likelihood after rounds of tables and posteriors, with even classes.

    A label that is impossible for a class is left out, as the program does, unless there is a least
    probability.
    """
    even, likelihood = np.zeros(problem.n_classes), -np.inf
    for _ in range(rounds):
        table = problem.counts(posteriors)
        table = np.maximum(table / np.maximum(table.sum(axis=1, keepdims=True), 1e-300), least)
        logs = np.log(np.where(table > 0, table, 1.0))
        posteriors, likelihood = problem.posteriors(logs, even)
    return posteriors, likelihood


def make_units(parts: Sequence[str], samples: int) -> list[Unit]:
    """Return the fits."""
    units: list[Unit] = []
    if "paper" in parts:
        units += [
            {"part": "paper", "set": name, "method": start}
            for name in SETS
            for start in PAPER_STARTS
        ]
    if "ours" in parts:
        units += [
            {"part": "ours", "set": name, "method": method} for name in SETS for method in SETTINGS
        ]
    if "drawn" in parts:
        units += [
            {"part": "drawn", "set": name, "method": method, "sample": sample}
            for name in DRAWN
            for method in DRAWN_SETTINGS
            for sample in range(samples)
        ]
    return units


# crowd-kit, in a process of its own.

_PEER = """
import json, sys, time, tracemalloc
import numpy as np
import pandas as pd
from crowdkit.aggregation import DawidSkene
labels = pd.read_csv(sys.argv[1]).rename(columns={"item": "task"})
found = {}
if sys.argv[2] == "error":
    model = DawidSkene(n_iter=100, tol=0)
    found["classes"] = model.fit_predict(labels.astype(str)).to_dict()
    found["rounds"] = len(model.loss_history_)
else:
    labels = labels.astype(sys.argv[2])
    times = []
    for rounds in (1, 6):
        started = time.process_time()
        DawidSkene(n_iter=rounds, tol=-np.inf).fit(labels)
        times.append(time.process_time() - started)
    found["seconds_of_a_round"] = (times[1] - times[0]) / 5
    tracemalloc.start()
    DawidSkene(n_iter=2, tol=-np.inf).fit(labels)
    found["peak_bytes"] = tracemalloc.get_traced_memory()[1]
print(json.dumps(found))
"""
_OWN = """
import json, sys, time, tracemalloc, warnings
import pandas as pd
from polyad import DawidSkene
warnings.simplefilter("ignore")
labels = pd.read_csv(sys.argv[1]).astype(sys.argv[2])
found = {}
for name, prior in (("", "auto"), ("_likelihood", None)):
    times = []
    for rounds in (1, 1, 41):  # the first one compiles
        started = time.process_time()
        DawidSkene(max_iter=rounds, tol=0, prior=prior, n_jobs=1).fit(labels)
        times.append(time.process_time() - started)
    found["seconds_of_a_round" + name] = (times[2] - times[1]) / 40
tracemalloc.start()
DawidSkene(max_iter=2, tol=0, n_jobs=1).fit(labels)
found["peak_bytes"] = tracemalloc.get_traced_memory()[1]
print(json.dumps(found))
"""
# How often times are taken, in turn; the median counts.
_REPEATS = 3


def _asked(python: str, program: str, *arguments: str) -> Unit:
    done = subprocess.run(
        [python, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    found: Unit = json.loads(done.stdout.splitlines()[-1])
    return found


def million(path: Path) -> Path:
    """Write the million labels of the benchmarks."""
    if not path.exists():
        benchmark.problem(*benchmark.SHAPES[-1]).table.to_csv(path, index=False)
    return path


def compare(peer: str, folder: Path) -> str:
    """Measure crowd-kit and this library on the same files, and return a table."""
    rows = []
    for name, n_items in SETS.items():
        found = _asked(peer, _PEER, str(data_file(f"crowd/{name}_labels.csv")), "error")
        truth = read_set(name)[1]
        wrong = sum(found["classes"][str(item)] != str(value) for item, value in truth.items())
        rows.append([f"{100 * wrong / n_items:.2f} %", found["rounds"], "", "", ""])
    files = {"trec": data_file("crowd/trec_labels.csv"), "a million labels": million(folder)}
    names = [*SETS]
    for (title, path), kind in itertools.product(files.items(), ("int64", "str")):
        runs = [
            (_asked(sys.executable, _OWN, str(path), kind), _asked(peer, _PEER, str(path), kind))
            for _ in range(_REPEATS)
        ]
        ratios = [
            statistics.median(theirs[name] / own[name + ending] for own, theirs in runs)
            for name, ending in (("seconds_of_a_round", ""), ("seconds_of_a_round", "_likelihood"))
        ]
        own, theirs = runs[-1]
        memory = theirs["peak_bytes"] / own["peak_bytes"]
        rows.append(["", "", *(f"{ratio:.0f}" for ratio in ratios), f"{memory:.1f}"])
        names.append(f"{title}, {'whole numbers' if kind == 'int64' else 'text'}")
    columns = [
        *("error of crowd-kit, converged", "rounds", "its time of a round over DawidSkene()"),
        *("over DawidSkene(prior=None)", "its memory over ours"),
    ]
    shown = pd.DataFrame(rows, index=pd.Index(names), columns=columns)
    return (
        "Times are those of the processor, one thread each, both in turn, the median of "
        f"{_REPEATS}. Memory is the peak that Python allocates in a second fit of two rounds, with "
        "the reading of the table, whose names and labels are whole numbers or text.\n\n"
        f"{markdown(shown)}"
    )


# Tables.


def percent(table: pd.DataFrame, part: str, methods: Sequence[str], sets: Sequence[str]) -> str:
    """Return errors in per cent, a row for each method and a column for each set."""
    own = table[table["part"] == part]
    share = 100 * own.groupby(["method", "set"])["wrong"].sum()
    share = (share / own.groupby(["method", "set"])["items"].sum()).unstack("set")
    shown = share.reindex(index=methods, columns=list(sets)).map(lambda value: f"{value:.2f}")
    shown.index.name = "error, %"
    return markdown(shown)


def describe(table: pd.DataFrame) -> str:
    """Return the tables of all parts."""
    paper = pd.DataFrame(PAPER, index=list(SETS)).T.map(lambda value: f"{value:.2f}")
    paper.index.name = "the paper, %"
    ours = table[table["part"] != "paper"]
    wide = ours.groupby(["part", "set", "method"], sort=False)[
        ["confidence", "calibration_error", "sure", "sure_and_right"]
    ].mean()
    wanted = wide[wide.index.get_level_values("method").isin(DRAWN_SETTINGS)].reset_index()
    lines = wanted.drop(columns="part").set_index("set").round(3)
    lines.columns = pd.Index(
        ["method", "mean confidence", "calibration error", "share above 0.9", "right of these"]
    )
    return (
        f"The protocol of the paper, {_ROUNDS} rounds:\n\n"
        f"{percent(table, 'paper', PAPER_STARTS, list(SETS))}\n{markdown(paper)}\n"
        "Settings, none of which saw a true class; of several starts the one with the best "
        "likelihood, or bound of it, counts:\n\n"
        f"{percent(table, 'ours', list(SETTINGS), list(SETS))}"
        "\nDrawn crowds, means over samples:\n\n"
        f"{percent(table, 'drawn', DRAWN_SETTINGS, list(DRAWN))}\n"
        "Confidence: its mean, the expected calibration error in ten bins, the share of items "
        f"above 0.9, and how many of these are right:\n\n{markdown(lines)}"
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=5, help="crowds drawn (seeds 0, 1, ...)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--max-minutes", type=float, default=30.0)
    parser.add_argument("--peer", help="a Python that has crowd-kit")
    options = parser.parse_args()
    store, units = (
        Store(HERE / "crowd.csv"),
        make_units(("paper", "ours", "drawn"), options.samples),
    )
    run_units(units, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    body = f"`{command()}`\n\n{environment()}.\n\n{describe(store.table(units))}"
    write_section(RESULTS, "Labels of crowds", body)
    print(body)
    if options.peer:
        from tempfile import gettempdir

        text = compare(options.peer, Path(gettempdir()) / "polyad_million_labels.csv")
        write_section(RESULTS, "Labels of crowds: crowd-kit", f"`{command()}`\n\n{text}")
        print(text)


if __name__ == "__main__":
    main()
