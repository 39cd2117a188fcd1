"""Patients: phenotypes that can be read, and the prediction of an outcome from them.

    POLYAD_DATA=/path/to/data python -m experiments.swift.ehr --jobs 2

Synthetic patients (Synthea): 1 where a diagnosis and a medication were recorded in one encounter.
The outcome is a diagnosis that is taken out of the tensor together with every medication that was
ever given for it. The training patients are factorized, the others projected, and a lasso logistic
regression on the patient factor predicts the outcome; the score is the area under the
precision-recall curve. Parameters are chosen on another population (2017). Finished units are kept
in ``ehr.csv``; results go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

import polyad
from experiments.classify import (
    SCALINGS,
    STRENGTHS,
    Split,
    best_of,
    lasso_precision,
    model_precision,
    raw_models,
)
from experiments.lasso import LassoPath
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
from experiments.swift.methods import (
    METHODS,
    OURS,
    Part,
    fit_features,
    method_of,
    settings_at,
)
from experiments.swift.patients import DEVELOPMENT, EVALUATION, N_FOLDS, make_cohort, make_parts
from experiments.tables import mean_table, plot_curves

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SETTINGS = HERE / "ehr_settings.json"
RUNS = HERE / "runs"
PARTS = ("develop", "outcome", "raw", "phenotypes")
RAW = tuple(raw_models(0))
_COSTS = {"samples": "separate", "features": "presence"}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=words, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--outcome", default="Hypertension", help="description of a diagnosis")
    parser.add_argument("--samples", type=int, default=5, help="ways to cut the folds")
    parser.add_argument("--starts", type=int, default=1, help="random starts")
    parser.add_argument("--ranks", type=numbers, default=(5, 10, 20))
    parser.add_argument("--tune-ranks", type=numbers, default=(10,))
    parser.add_argument("--methods", type=words, default=tuple(METHODS))
    parser.add_argument("--phenotypes", type=int, default=8, help="components of the tables")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--max-minutes", type=float, default=120.0, help="per part")
    options = parser.parse_args(arguments)
    strange = [part for part in options.parts if part not in PARTS]
    strange += [name for name in options.methods if name not in METHODS]
    if strange:
        parser.error(f"{strange[0]!r} is not known; parts: {PARTS}; methods: {tuple(METHODS)}")
    return options


def do_unit(unit: Unit) -> Unit:
    """Return the area under the precision-recall curve of a unit."""
    parts = make_parts(unit["cohort"], unit["outcome"], unit["sample"], unit["fold"])
    seed = 1000 * unit["sample"] + 10 * unit["start"] + unit["fold"]
    if unit["method"] in RAW:
        split = Split(_flat(parts), tuple(part.classes for part in parts))
        return best_of(raw_models(seed)[unit["method"]], split, model_precision)
    features, model = fit_features(
        unit["method"], parts, unit["parameters"], n_components=unit["rank"], seed=seed
    )
    split = Split(features, tuple(part.classes for part in parts))
    result: Unit = {"n_iter": int(model.n_iter_), "status": model.status_.value}
    if unit["scaling"] == "all":
        scores = {name: lasso_precision(split.scaled(name))["test"] for name in SCALINGS}
        return {**result, **scores}
    return {**result, **lasso_precision(split.scaled(unit["scaling"]))}


def _flat(parts: list[Part]) -> tuple[csr_array, ...]:
    """Return the unfolded tensors, without the pairs that no training patient has."""
    matrices = []
    for part in parts:
        i, j, k = (row.astype(np.int32) for row in part.tensor.coords)
        n, n_first, n_second = part.tensor.shape
        shape = (n, n_first * n_second)
        matrices.append(csr_array((part.tensor.data, (i, j * n_second + k)), shape=shape))
    seen = np.flatnonzero(np.asarray(matrices[0].sum(axis=0)).ravel())
    return tuple(matrix[:, seen] for matrix in matrices)


def make_units(cohort: str, options: argparse.Namespace, kinds: list[Unit]) -> list[Unit]:
    """Return the units of some kinds."""
    # Development has one way to cut the folds, and one start.
    tuning = cohort == DEVELOPMENT
    return [
        {
            "cohort": cohort,
            "outcome": options.outcome,
            **kind,
            "sample": sample,
            "start": start,
            "fold": fold,
        }
        for kind in kinds
        for sample in range(1 if tuning else options.samples)
        for start in range(1 if tuning else options.starts)
        for fold in range(N_FOLDS)
    ]


def develop(store: Store, options: argparse.Namespace) -> None:
    """Choose parameters and scaling of each method on the other population."""
    settings: dict[str, Any] = {}
    if SETTINGS.exists():
        settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    for name in options.methods:
        grid: list[Unit] = list(method_of(name).grid)
        if name == OURS:
            grid = [{**point, "costs": _COSTS} for point in grid]
        kinds = [
            {"method": name, "rank": rank, "parameters": point, "scaling": "all"}
            for rank in options.tune_ranks
            for point in grid
        ]
        own = make_units(DEVELOPMENT, options, kinds)
        print(f"development: {name}, {len(grid)} settings")
        run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
        means = store.table(own).groupby(["rank", "parameters"])[list(SCALINGS)].mean()
        scaling = str(means.groupby(level="rank").max().mean().idxmax())
        ranks = {}
        for rank in options.tune_ranks:
            best = means.loc[rank][scaling]
            parameters = json.loads(str(best.idxmax()))
            ranks[str(rank)] = {"parameters": parameters, "score": round(float(best.max()), 4)}
        settings[name] = {"scaling": scaling, "ranks": ranks}
    SETTINGS.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def load_settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of some methods."""
    settings: dict[str, Any] = {}
    if SETTINGS.exists():
        settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    absent = [name for name in names if name not in settings]
    if absent:
        message = f"{absent} have no settings yet: run the part 'develop' with them first."
        raise SystemExit(message)
    return settings


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "ehr.csv")
    for part in PARTS:
        if part not in options.parts:
            continue
        print(f"== {part}")
        if part == "develop":
            develop(store, options)
            continue
        body = phenotypes(options) if part == "phenotypes" else _scores(part, store, options)
        title = {"outcome": "prediction", "raw": "classifiers of the raw tensor"}.get(part, part)
        write_section(RESULTS, f"Patients: {title}", f"{_origin(options)}\n\n{body}")
        print(body)


def _scores(part: str, store: Store, options: argparse.Namespace) -> str:
    if part == "raw":
        own = make_units(EVALUATION, options, [{"method": name} for name in RAW])
        run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
        return mean_table(store.table(own).assign(rank=0), list(RAW), RAW[0]).replace("R = 0", "")
    settings = load_settings(options.methods)
    kinds = [
        {"method": name, "rank": rank, **settings_at(settings[name], rank)}
        for name in options.methods
        for rank in options.ranks
    ]
    own = make_units(EVALUATION, options, kinds)
    run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    table, names = store.table(own), list(options.methods)
    plot_curves(table, names, "rank", RUNS / "ehr_rank.png", ylabel="PR-AUC", bold=OURS)
    rows = [
        {"method": name, **settings_at(settings[name], int(rank)), "tuned at": rank}
        for name in names
        for rank in settings[name]["ranks"]
    ]
    chosen = pd.DataFrame(rows).set_index("method")
    return mean_table(table, names, OURS) + "\nSettings:\n\n" + markdown(chosen)


def phenotypes(options: argparse.Namespace) -> str:
    """Return the components of all patients as tables, the ones that speak for the outcome first.

    The number beside a component is its coefficient in a lasso logistic regression of the outcome
    on the standardized patient factor.
    """
    tensor, y = make_cohort(EVALUATION, options.outcome)
    chosen = settings_at(load_settings((OURS,))[OURS], options.phenotypes)
    parameters = dict(chosen["parameters"])
    costs = [parameters["costs"]["samples"], "presence", "presence"]
    parameters["costs"] = costs
    model = polyad.WassersteinCP(options.phenotypes, random_state=0, n_init=3, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        features = np.asarray(model.fit_transform(tensor))
    everyone = Split((features,) * 3, (y,) * 3).scaled(chosen["scaling"])
    path = LassoPath(STRENGTHS).fit(everyone.features[0], y)
    weights = path.coefficients_[STRENGTHS.index(1.0), 0, :-1]
    patients = features / np.maximum(features.sum(axis=1, keepdims=True), 1e-12)
    texts = []
    for number, component in enumerate(np.argsort(-weights), start=1):
        columns = {}
        for mode in ("diagnosis", "medication"):
            top = model.top(int(component), mode, 5)
            share = top / model.factor_table(mode).iloc[:, component].sum()
            columns[mode] = [f"{label} ({part:.2f})" for label, part in share.items()]
        table = pd.DataFrame(columns, index=pd.RangeIndex(1, 6, name=""))
        texts.append(
            f"Phenotype {number}: coefficient {weights[component]:+.2f}, main phenotype of "
            f"{np.mean(patients.argmax(axis=1) == component):.0%} of the patients\n\n"
            + markdown(table)
        )
    return "\n".join(texts)


def _origin(options: argparse.Namespace) -> str:
    tensor, y = make_cohort(EVALUATION, options.outcome)
    size = " x ".join(str(n) for n in tensor.shape)
    return (
        f"`{command()}`\n\n{environment()}. Synthea {EVALUATION}, {size}, {tensor.data.nnz} "
        f"entries, outcome {options.outcome!r}: {y.sum()} of {len(y)} patients (a random score has "
        f"{y.mean():.3f}). {options.samples} ways to cut 5 folds; ± is the standard deviation "
        "between them, differences are paired with 95 % intervals. The cuts share their patients: "
        "the intervals tell of the cuts and starts, not of other patients."
    )


if __name__ == "__main__":
    main()
