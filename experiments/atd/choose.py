"""Settings of AugmentedCP, compared on training persons alone: what its defaults were chosen by.

    POLYAD_DATA=/path/to/data python -m experiments.atd.choose

Of the official training persons twelve are learned from without labels, four have labels and five
are tested, as test persons are in ``experiments.atd.har``: clean, with sensor noise and turned. No
window of a test person is read. One fit is tried with every ``metric_floor``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from experiments.atd import har
from experiments.atd.methods import BATCH, METHODS, STFT_PUBLISHED, TWINS, Seen, learn
from experiments.runs import Store, markdown, run_units, words, write_section
from polyad import AugmentedCP
from polyad.augmented.metric import augmentation_metric
from polyad.augmented.rules import gram_of

Unit = dict[str, Any]

#: The twins and parameters of each setting.
SETTINGS: dict[str, tuple[str, Unit]] = {
    "default": ("ours", {}),
    "channels as they are": ("ours", {"scale_channels": False}),
    "not centred": ("ours", {"center": False}),
    "channels as they are, not centred": ("ours", {"scale_channels": False, "center": False}),
    "beta 0": ("ours", {"beta": 0.0}),
    "beta 0.003": ("ours", {"beta": 0.003}),
    "beta 0.03": ("ours", {"beta": 0.03}),
    "alpha 0.01": ("ours", {"alpha": 0.01}),
    "10 sweeps": ("ours", {"max_iter": 10}),
    "one of ours": ("ours: one of", {}),
    "rotation": ("ours: rotation", {}),
    "noise": ("ours: noise", {}),
    "shift": ("ours: shift", {}),
    "half the noise": ("ours: half the noise", {}),
    "published twins": ("published", {}),
    "rank 64": ("ours", {"n_components": 64}),
    "rank 128": ("ours", {"n_components": 128}),
}
FLOORS = (0.001, 0.005, 0.02, 0.1)
#: The method and rank of what is compared with.
COMPARED: dict[str, tuple[str, int]] = {
    method if rank == har.RANK else f"{method} (rank {rank})": (method, rank)
    for method in ("SALS", "GR-SALS", "ATD as published", "PCA")
    for rank in (har.RANK, 64, 128)
}
#: What the rank of each method is chosen by.
RANKS = ("default", "rank 64", "rank 128", *COMPARED)
LABELS = (5, 10, 50, 0)
_DRAWS = {5: 4, 10: 4, 50: 2, 0: 1}


def coefficients(setting: str, data: Seen, seed: int) -> tuple[AugmentedCP, dict[str, np.ndarray]]:
    """Fit a setting; return the model and the metric of each floor."""
    twins, chosen = SETTINGS[setting]
    options = {"n_components": har.RANK, "max_iter": har.SWEEPS, **chosen}
    model = AugmentedCP(
        augment=TWINS[twins],
        preprocess=STFT_PUBLISHED,
        batch_size=BATCH,
        random_state=seed,
        **options,
    ).fit(data.signals)
    gram = gram_of(model.factors_[1:])
    moments = model._row_moments, model._change_moments
    return model, {f"{floor:g}": augmentation_metric(gram, *moments, floor) for floor in FLOORS}


def do_unit(unit: Unit) -> Unit:
    """Fit a setting on training persons, and return accuracies on others of them."""
    sample = unit["sample"]
    data, others = har.unlabelled("train", har.EVERY, sample)
    scale = data.signals.std(axis=(0, 2))[None, :, None]
    tested = dict(har.disturbed(others, scale, sample))
    features: dict[str, dict[str, np.ndarray]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if unit["setting"] in COMPARED:
            method, rank = COMPARED[unit["setting"]]
            fitted = learn(method, rank, METHODS[method], data, seed=sample, sweeps=har.SWEEPS)
            found = {name: np.asarray(fitted.features(own)) for name, own in tested.items()}
            features = {"standardised": found, "raw": found}
        else:
            model, metrics = coefficients(unit["setting"], data, sample)
            inverse = np.linalg.pinv(model.metric_)
            rows = {name: model.transform(own.signals) @ inverse for name, own in tested.items()}
            for floor, metric in metrics.items():
                features[floor] = {name: own @ metric for name, own in rows.items()}
    labelled, rest = har.split_windows(others, "persons", sample)
    return {
        f"{kind}/{name}": value
        for kind, own in features.items()
        for name, value in accuracies(kind, own, others.activity, labelled, rest).items()
    }


def accuracies(
    kind: str,
    features: dict[str, np.ndarray],
    activity: np.ndarray,
    labelled: np.ndarray,
    tested: np.ndarray,
) -> Unit:
    """Return mean accuracies by disturbance and number of labels."""
    found: dict[str, list[float]] = {}
    for n_labels in LABELS:
        for draw in range(_DRAWS[n_labels]):
            own = har.few(labelled, activity, n_labels, draw)
            shift, unit = har.scaling(features["clean"][own], kind, 1.0)
            model = LogisticRegression(max_iter=150)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit((features["clean"][own] - shift) / unit, activity[own])
            for name in har.DISTURBANCES:
                score = model.score((features[name][tested] - shift) / unit, activity[tested])
                found.setdefault(f"{name}/{n_labels or 'all'}", []).append(float(score))
    return {name: float(np.mean(values)) for name, values in found.items()}


def table(units: pd.DataFrame) -> str:
    """Return mean accuracies in percent by setting and floor."""
    heads = [f"{name}/{n or 'all'}" for name in har.DISTURBANCES for n in LABELS]
    rows = {}
    for setting, own in units.groupby("setting", sort=False):
        kinds = ("raw", "standardised") if setting in COMPARED else tuple(f"{f:g}" for f in FLOORS)
        for kind in kinds:
            means = [100 * own[f"{kind}/{head}"].mean() for head in heads]
            rows[f"{setting}, {kind}"] = [*(f"{m:.1f}" for m in means), f"{np.mean(means):.2f}"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=[*heads, "mean"])
    frame.index.name = "setting, metric_floor or scale"
    return markdown(frame)


def main(arguments: list[str] | None = None) -> None:
    """Run what is not done, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--settings", type=words, default=(*COMPARED, *SETTINGS))
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--max-minutes", type=float, default=120.0)
    options = parser.parse_args(arguments)
    store = Store(Path(__file__).parent / "choose.csv")
    units = [
        {"setting": setting, "sample": sample}
        for sample in range(options.samples)
        for setting in options.settings
    ]
    run_units(units, do_unit, store, max_minutes=options.max_minutes)
    settings = (*("SALS", "PCA"), *(name for name in SETTINGS if not name.startswith("rank")))
    for title, wanted in (("settings", settings), ("ranks", RANKS)):
        if set(wanted) <= set(options.settings):
            own = store.table(unit for unit in units if unit["setting"] in wanted)
            body = "`python -m experiments.atd.choose`: training persons only, accuracy in percent "
            body += "by disturbance and labels of each class, mean over up to "
            body += f"{options.samples} splits.\n\n"
            write_section(har.RESULTS, f"HAR: {title}, training persons only", body + table(own))


if __name__ == "__main__":
    main()
