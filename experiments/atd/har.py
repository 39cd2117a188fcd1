"""Activities from the sensors of a phone: features without labels, then a few labels.

    POLYAD_DATA=/path/to/data python -m experiments.atd.har [--parts develop,main,ranks,twins]

Features are learned from the windows of the official training persons, by default from every second
one, since windows overlap by half. Labels are of windows of
test persons. ``persons``: labelled windows of four of them, tested on the other five. ``paper``:
half of all their windows at random, tested on the other half, which knows the persons (windows
overlap by half). Each fit is tested clean, with sensor noise (half a standard deviation of the
channel) and with the phone turned by up to 30 degrees, from 2 labelled windows per class on.
Settings were chosen on the training persons alone (``develop``).
"""

from __future__ import annotations

import argparse
import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from experiments.atd.activities import Windows, read_windows
from experiments.atd.methods import (
    METHODS,
    STFT_PUBLISHED,
    SUPERVISED,
    TWINS,
    Seen,
    classifier,
    learn,
)
from experiments.runs import (
    Store,
    environment,
    interval,
    markdown,
    numbers,
    run_units,
    words,
    write_section,
)
from polyad.augmented.signals import Rotation

if TYPE_CHECKING:
    from collections.abc import Iterator

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
PARTS = ("develop", "main", "ranks", "twins")
RANK, SWEEPS, EVERY = 32, 5, 2
RANKS = (8, 16, 64)
#: The rank that is compared at length besides RANK.
WIDE = 64
#: Labelled windows of each class; 0 is all of them.
LABELS = (2, 5, 10, 50, 0)
_DRAWS = {2: 5, 5: 3, 10: 3, 50: 1, 0: 1}
DISTURBANCES = ("clean", "noise", "rotated")
SPLITS = ("persons", "paper")
SCALES = ("raw", "common", "standardised")
_RANKED = ("AugmentedCP", "ATD as published", "ATD ss-", "SALS", "GR-SALS", "PCA")


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=words, default=PARTS)
    parser.add_argument("--samples", type=int, default=5, help="seeds, of fits and splits")
    parser.add_argument("--ranks", type=numbers, default=RANKS)
    parser.add_argument("--methods", type=words, default=tuple(METHODS))
    parser.add_argument("--sweeps", type=int, default=SWEEPS)
    parser.add_argument("--every", type=int, default=EVERY, help="unlabelled windows: one in ...")
    parser.add_argument("--max-minutes", type=float, default=120.0)
    return parser.parse_args(arguments)


def make_units(part: str, options: argparse.Namespace) -> list[Unit]:
    """Return the fits of a part."""
    kinds: list[Unit] = []
    if part in ("main", "develop"):
        kinds = [{"method": m, "rank": RANK, "twins": METHODS[m]} for m in options.methods]
    elif part == "ranks":
        kinds = [
            {"method": method, "rank": rank, "twins": METHODS[method]}
            for rank in options.ranks
            for method in _RANKED
            if method in options.methods
        ]
    elif part == "twins":
        kinds = [
            {"method": method, "rank": RANK, "twins": twins}
            for method in ("AugmentedCP", "ATD ss-")
            for twins in TWINS
            if twins != METHODS[method]
        ]
    persons = "train" if part == "develop" else "test"
    return [
        {
            **kind,
            "persons": persons,
            "sweeps": options.sweeps,
            "every": options.every,
            "sample": sample,
        }
        for kind in kinds
        for sample in range(options.samples)
    ]


@lru_cache(maxsize=2)
def unlabelled(persons: str, every: int, sample: int) -> tuple[Seen, Windows]:
    """Return what is learned from, and the windows of other persons."""
    train, test = read_windows()
    if persons == "train":  # some of the training persons take the place of the test persons
        rng = np.random.default_rng(sample)
        own = rng.permutation(np.unique(train.person))[:12]
        inside = np.isin(train.person, own)
        train, test = train.take(inside), train.take(~inside)
    own = np.ascontiguousarray(train.signals[::every])
    return Seen(own, STFT_PUBLISHED(own)), test


def disturbed(windows: Windows, scale: np.ndarray, seed: int) -> Iterator[tuple[str, Seen]]:
    """Give windows as they are, with a noisier sensor and of a phone worn askew."""
    rng = np.random.default_rng([1, seed])
    signals = windows.signals
    noise = rng.standard_normal(signals.shape, dtype=np.float32)
    noisy, turned = signals + 0.5 * scale * noise, Rotation(np.pi / 6)(signals, rng)
    for name, own in zip(DISTURBANCES, (signals, noisy, turned), strict=True):
        yield name, Seen(own, STFT_PUBLISHED(own))


def do_unit(unit: Unit) -> Unit:
    """Fit a method, and return its accuracies in all settings."""
    sample = unit["sample"]
    # The official unlabelled windows are the same for all samples.
    chosen = sample if unit["persons"] == "train" else 0
    data, others = unlabelled(unit["persons"], unit["every"], chosen)
    if unit["method"] in SUPERVISED:
        return supervised(unit, others, data.signals.std(axis=(0, 2))[None, :, None])
    fitted = learn(
        unit["method"], unit["rank"], unit["twins"], data, seed=sample, sweeps=unit["sweeps"]
    )
    some = Seen(data.signals[::10], data.tensors[::10])
    size = float(np.sqrt(np.mean(fitted.features(some) ** 2)))
    scale = data.signals.std(axis=(0, 2))[None, :, None]
    features = {
        name: np.asarray(fitted.features(seen), dtype=float)
        for name, seen in disturbed(others, scale, sample)
    }
    found: Unit = {"parameters": fitted.n_parameters}
    for split in SPLITS:
        labelled, tested = split_windows(others, split, sample)
        for name, value in accuracies(features, others.activity, labelled, tested, size).items():
            found[f"{split}/{name}"] = value
    return found


def supervised(unit: Unit, others: Windows, scale: np.ndarray) -> Unit:
    """Return the accuracies of a method that learns from labels alone, one draw of each."""
    tensors, activity = STFT_PUBLISHED(others.signals), others.activity
    learned, found = {}, {}
    for split in SPLITS:
        labelled, tested = split_windows(others, split, unit["sample"])
        for n in LABELS:
            own = few(labelled, activity, n, 0)
            predict, size = classifier(
                unit["method"], unit["rank"], tensors[own], activity[own], unit["sample"]
            )
            learned[split, n] = predict, tested
            found["parameters"] = size
    del tensors
    for name, seen in disturbed(others, scale, unit["sample"]):
        for (split, n), (predict, tested) in learned.items():
            score = float(np.mean(predict(seen.tensors[tested]) == activity[tested]))
            # Features have scales, classifiers none.
            found |= {f"{split}/{name}/{n or 'all'}/{kind}": score for kind in SCALES}
    return found


def split_windows(windows: Windows, split: str, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows that may be labelled, and those that are tested."""
    rng = np.random.default_rng([2, sample])
    if split == "paper":
        order = rng.permutation(len(windows.activity))
        return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    people = rng.permutation(np.unique(windows.person))
    known = np.isin(windows.person, people[: (len(people) - 1) // 2])
    return np.flatnonzero(known), np.flatnonzero(~known)


def accuracies(
    features: dict[str, np.ndarray],
    activity: np.ndarray,
    labelled: np.ndarray,
    tested: np.ndarray,
    size: float,
) -> dict[str, float]:
    """Return the mean accuracy by disturbance, number of labels and scale of features."""
    found: dict[str, list[float]] = {}
    for n_labels in LABELS:
        for draw in range(_DRAWS[n_labels]):
            own = few(labelled, activity, n_labels, draw)
            for scale in SCALES:
                shift, unit = scaling(features["clean"][own], scale, size)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = LogisticRegression(max_iter=150)
                    model.fit((features["clean"][own] - shift) / unit, activity[own])
                for name in DISTURBANCES:
                    score = model.score((features[name][tested] - shift) / unit, activity[tested])
                    key = f"{name}/{n_labels or 'all'}/{scale}"
                    found.setdefault(key, []).append(float(score))
    return {name: float(np.mean(values)) for name, values in found.items()}


def few(labelled: np.ndarray, activity: np.ndarray, n_labels: int, draw: int) -> np.ndarray:
    """Return a number of labelled windows of each class."""
    if n_labels == 0:
        return labelled
    rng = np.random.default_rng([3, draw])
    kept = [
        rng.permutation(labelled[activity[labelled] == kind])[:n_labels]
        for kind in np.unique(activity)
    ]
    return np.concatenate(kept)


def scaling(features: np.ndarray, scale: str, size: float) -> tuple[Any, Any]:
    """Return what is subtracted from features and what they are divided by."""
    if scale == "standardised":
        spread = features.std(axis=0)
        return features.mean(axis=0), np.where(spread > 0, spread, 1.0)
    return 0.0, (size if scale == "common" else 1.0)


def best_scale(table: pd.DataFrame, split: str) -> dict[str, str]:
    """Return the scale of features with the highest mean over all settings, for each method.

    This favours what is compared with: AugmentedCP is always taken as it is.
    """
    chosen = {}
    for method, own in table.groupby("method"):
        means = {
            scale: np.mean(
                [
                    own[f"{split}/{name}/{n or 'all'}/{scale}"].mean()
                    for name in DISTURBANCES
                    for n in LABELS
                ]
            )
            for scale in SCALES
        }
        chosen[str(method)] = max(means, key=lambda scale: means[scale])
    return {**chosen, "AugmentedCP": "raw"}


def accuracy_table(table: pd.DataFrame, split: str, name: str) -> str:
    """Return accuracies in percent by the number of labels, and paired differences to ours."""
    scales = best_scale(table, split)
    means = {
        method: own.set_index("sample").sort_index() for method, own in table.groupby("method")
    }
    ordered = [method for method in METHODS if method in means]
    rows, differences = [], []
    for method in ordered:
        cells, compared = [], []
        for n in LABELS:
            values = {
                own: 100 * means[own][f"{split}/{name}/{n or 'all'}/{scales[own]}"]
                for own in {method, "AugmentedCP"} & set(means)
            }
            mine = values[method]
            cells.append(f"{mine.mean():.1f} ± {mine.std(ddof=1) if len(mine) > 1 else 0:.1f}")
            if "AugmentedCP" in values:
                gap = (values["AugmentedCP"] - mine).dropna().to_numpy()
                mean, low, high = interval(gap)
                compared.append(
                    f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if len(gap) > 1 else f"{mean:+.1f}"
                )
        rows.append([*cells, scales[method], str(len(means[method]))])
        differences.append(compared)
    heads = [f"{n} per class" if n else "all" for n in LABELS]
    index = pd.Index(ordered, name="method")
    text = markdown(pd.DataFrame(rows, index=index, columns=[*heads, "scale", "seeds"]))
    if "AugmentedCP" in ordered:
        others = pd.Index(ordered[1:], name="AugmentedCP minus")
        text += "\n" + markdown(pd.DataFrame(differences[1:], index=others, columns=heads))
    return text


def scale_table(table: pd.DataFrame) -> str:
    """Return parameters and accuracies of all labels by the scale of features, clean."""
    rows = {}
    for method in METHODS:
        own = table[table["method"] == method]
        if len(own):
            cells = [f"{int(own['parameters'].iloc[0]):,}"]
            for split in SPLITS:
                for scale in SCALES:
                    values = 100 * own[f"{split}/clean/all/{scale}"]
                    cells.append(f"{values.mean():.1f}")
            rows[method] = cells
    heads = ["parameters", *(f"{split}, {scale}" for split in SPLITS for scale in SCALES)]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=heads)
    frame.index.name = "method"
    return markdown(frame)


def by_kind(table: pd.DataFrame, column: str) -> str:
    """Return accuracies with 10 labels of each class and with all, by rank or by twins."""
    rows = {}
    for (method, kind), own in table.groupby(["method", column], sort=True):
        cells = []
        for split, n in (("persons", 10), ("persons", "all"), ("paper", "all")):
            for name in DISTURBANCES:
                columns = [f"{split}/{name}/{n}/{scale}" for scale in SCALES]
                chosen = columns[:1] if method == "AugmentedCP" else columns
                cells.append(f"{100 * own[chosen].mean().max():.1f}")
        rows[f"{method}, {kind}"] = [*cells, str(own["sample"].nunique())]
    heads = [
        f"{split}, {n}: {name}"
        for split, n in (("persons", "10"), ("persons", "all"), ("paper", "all"))
        for name in DISTURBANCES
    ]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=[*heads, "seeds"])
    frame.index.name = f"method, {column}"
    return markdown(frame)


def report(store: Store, options: argparse.Namespace) -> None:
    """Write the tables of what is done."""
    tables = {part: store.table(make_units(part, options)) for part in PARTS}
    ranks = tables["ranks"]
    wide = ranks if ranks.empty else ranks[ranks["rank"] == WIDE]
    sections = (
        ("HAR: test persons", "test", RANK, tables["main"]),
        (f"HAR: {WIDE} components, test persons", "test", WIDE, wide),
        ("HAR: development, training persons only", "training", RANK, tables["develop"]),
    )
    for title, persons, rank, table in sections:
        if table.empty:
            continue
        body = f"`python -m experiments.atd.har`; {environment()}. Accuracy in percent, mean and "
        counts = table.groupby("method")["sample"].nunique()
        seeds = f"{counts.min()} to {counts.max()}" if counts.nunique() > 1 else f"{counts.max()}"
        body += f"standard deviation over {seeds} seeds of fits and splits, {persons} persons. "
        body += f"Differences are paired, with 95 % intervals. R = {rank}.\n\n"
        body += "### Parameters and scales of features, clean, all labels\n\n" + scale_table(table)
        for split in SPLITS:
            for name in DISTURBANCES:
                body += f"\n### Split {split}, {name}\n\n" + accuracy_table(table, split, name)
        write_section(RESULTS, title, body)
    for part, column, title in (("ranks", "rank", "ranks"), ("twins", "twins", "twins")):
        if not tables[part].empty and not tables["main"].empty:
            both = pd.concat([tables[part], tables["main"]])
            kept = both[both["method"].isin(set(tables[part]["method"]))]
            write_section(RESULTS, f"HAR: {title}", by_kind(kept, column))


def main(arguments: list[str] | None = None) -> None:
    """Run what is not done, and write the tables."""
    options = read_options(arguments)
    store = Store(HERE / "har.csv")
    for part in options.parts:
        units = make_units(part, options)
        run_units(units, do_unit, store, max_minutes=options.max_minutes)
    report(store, options)


if __name__ == "__main__":
    main()
