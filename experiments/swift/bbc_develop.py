"""What is settled on development articles, before the evaluation: everything that is open.

1. The tensor. The paper names neither the words nor the diagonal. A word does not occur together
   with itself, so there is no diagonal. The words are those with which classifiers of the raw
   tensor are best, on average: no factorization has a say. What they reach with the diagonal is
   reported, as the diagonal makes a different problem of it: that of counts of single words.
2. The costs of `WassersteinCP` made from the data: of the articles and of the words.
3. The parameters of every method and the transform of its article factor, at some of the ranks.
   Other ranks take those of the nearest.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.classify import SCALINGS
from experiments.runs import Store, run_units
from experiments.swift.articles import Construction
from experiments.swift.bbc_work import RAW, do_unit, units
from experiments.swift.methods import METHODS, OURS, method_of

if TYPE_CHECKING:
    from argparse import Namespace

    import pandas as pd

SETTINGS = Path(__file__).with_name("bbc_settings.json")
# Table 2 of the paper.
TABLE_2 = {"lasso LR": 0.728, "random forest": 0.628, "MLP": 0.690, "kNN": 0.596}
CONSTRUCTIONS = [
    asdict(Construction(words, diagonal))
    for words in ("tfidf", "frequency")
    for diagonal in (False, True)
]
SAMPLE_COSTS = ("separate", "presence")
FEATURE_COSTS = ("presence", "cosine")
ABLATION = ("random", "one-identity", "separate")
_MIDDLE_RANK = 20


def develop(store: Store, options: Namespace) -> None:
    """Choose the settings on development articles and write them to a file."""
    settings: dict[str, Any] = {}
    # Settings of methods that are not asked for now stay.
    if SETTINGS.exists():
        settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    settings.setdefault("methods", {})
    settings["construction"], settings["raw"] = _choose_construction(store, options)
    for name in options.methods:
        grid = method_of(name).grid
        if name == OURS:
            settings["costs"], settings["cost_scores"] = _choose_costs(store, options, settings)
            grid = tuple({**point, "costs": settings["costs"]} for point in grid)
        settings["methods"][name] = _choose(
            store, options, settings["construction"], name, grid, options.tune_ranks
        )
    if OURS in options.methods:
        # The samples stay as they are: it is the costs between words that are put to the test.
        points = [
            point
            for point in METHODS[OURS].grid
            if point["epsilon"] in (0.3, 0.1) and point["marginal_penalty"] in (0.1, 1.0)
        ]
        settings["ablation"] = {}
        for cost in ABLATION:
            costs = {**settings["costs"], "features": cost}
            grid = tuple({**point, "costs": costs} for point in points)
            settings["ablation"][cost] = _choose(
                store, options, settings["construction"], OURS, grid, (_MIDDLE_RANK,)
            )
    SETTINGS.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    print(f"settings written to {SETTINGS}")


def load_settings() -> dict[str, Any]:
    """Return the settings of the evaluation."""
    if not SETTINGS.exists():
        message = f"{SETTINGS} is missing: run the part 'develop' first."
        raise SystemExit(message)
    settings: dict[str, Any] = json.loads(SETTINGS.read_text(encoding="utf-8"))
    return settings


def _run(
    store: Store, options: Namespace, construction: dict[str, Any], kinds: Any
) -> pd.DataFrame:
    own = list(
        units(
            "develop",
            construction,
            kinds,
            pool="development",
            samples=range(options.tune_samples),
            folds=range(options.tune_folds),
        )
    )
    run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
    return store.table(own)


def _choose_construction(
    store: Store, options: Namespace
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = []
    for construction in CONSTRUCTIONS:
        kinds = [{"method": name} for name in RAW]
        print(f"development: raw data, {construction}")
        means = _run(store, options, construction, kinds).groupby("method")["test"].mean()
        scores = {name: round(float(means[name]), 4) for name in RAW}
        found.append({**construction, **scores, "mean": round(float(means[list(RAW)].mean()), 4)})
    without = [k for k, construction in enumerate(CONSTRUCTIONS) if not construction["diagonal"]]
    return CONSTRUCTIONS[max(without, key=lambda k: found[k]["mean"])], found


def _choose_costs(
    store: Store, options: Namespace, settings: dict[str, Any]
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Compare the costs at the middle rank, each at the better of two penalties."""
    costs = [
        {"samples": samples, "features": features}
        for samples in SAMPLE_COSTS
        for features in FEATURE_COSTS
    ]
    scores = []
    for cost in costs:
        print(f"development: costs {cost}")
        kinds = [
            {
                "method": OURS,
                "rank": _MIDDLE_RANK,
                "parameters": {"epsilon": 0.3, "marginal_penalty": penalty, "costs": cost},
                "scaling": "all",
            }
            for penalty in (0.1, 1.0)
        ]
        table = _run(store, options, settings["construction"], kinds)
        means = table.groupby("parameters")[list(SCALINGS)].mean()
        scores.append({**cost, "accuracy": round(float(means.to_numpy().max()), 4)})
    best = max(range(len(scores)), key=lambda k: scores[k]["accuracy"])
    return costs[best], scores


def _choose(  # noqa: PLR0917
    store: Store,
    options: Namespace,
    construction: dict[str, Any],
    name: str,
    grid: tuple[dict[str, Any], ...],
    ranks: tuple[int, ...],
) -> dict[str, Any]:
    """Return the scaling of a method, and its parameters at each rank, by mean accuracy."""
    ranks = tuple(rank for rank in ranks if rank <= METHODS[name].max_rank)
    print(f"development: {name}, {len(grid)} settings at ranks {ranks}")
    kinds = [
        {"method": name, "rank": rank, "parameters": point, "scaling": "all"}
        for rank in ranks
        for point in grid
    ]
    table = _run(store, options, construction, kinds)
    means = table.groupby(["rank", "parameters"])[list(SCALINGS)].mean()
    # One scaling for all ranks: that of the best mean, each rank at its best parameters.
    scaling = str(means.groupby(level="rank").max().mean().idxmax())
    found = {}
    for rank in ranks:
        own = means.loc[rank][scaling]
        found[str(rank)] = {
            "parameters": json.loads(str(own.idxmax())),
            "accuracy": round(float(own.max()), 4),
        }
    overall = means[scaling].groupby(level="parameters").mean()
    one = {
        "parameters": json.loads(str(overall.idxmax())),
        "accuracy": round(float(overall.max()), 4),
    }
    return {"scaling": scaling, "ranks": found, "for all ranks": one}
