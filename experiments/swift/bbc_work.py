"""The units of the BBC News experiment, and what is done for each."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from experiments.classify import (
    SCALINGS,
    Split,
    best_of,
    lasso_accuracy,
    model_accuracy,
    raw_models,
)
from experiments.swift import articles
from experiments.swift.articles import N_FOLDS, Construction
from experiments.swift.methods import Part, fit_features
from polyad.datasets import add_noise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scipy.sparse import coo_array

    Unit = dict[str, Any]

NOISE_LEVELS = (0.10, 0.20, 0.30)
FEW_LABELS = (25, 50, 100)
RAW = tuple(raw_models(0))


def units(
    part: str,
    construction: dict[str, Any],
    kinds: Iterable[Unit],
    *,
    pool: str = "evaluation",
    samples: Sequence[int],
    starts: int = 1,
    folds: Sequence[int] = tuple(range(N_FOLDS)),
) -> Iterator[Unit]:
    """Yield the units of some kinds: every sample, start and fold of each."""
    for kind in kinds:
        for sample in samples:
            for start in range(starts):
                for fold in folds:
                    repeats = {"pool": pool, "sample": sample, "start": start, "fold": fold}
                    yield {"part": part, "construction": construction, **kind, **repeats}


def do_unit(unit: Unit) -> Unit:
    """Return the accuracies of a unit."""
    construction = Construction(**unit["construction"])
    parts = make_parts(unit, construction)
    if unit["method"] in RAW:
        return _raw(unit, parts)
    features, model = fit_features(
        unit["method"],
        parts,
        unit["parameters"],
        n_components=unit["rank"],
        seed=_seed(unit),
        given_costs=_given_costs(unit, construction),
    )
    split = Split(features, tuple(part.classes for part in parts))
    result: Unit = {"n_iter": int(model.n_iter_), "status": model.status_.value}
    if unit["scaling"] == "all":
        for scaling in SCALINGS:
            result[scaling] = lasso_accuracy(split.scaled(scaling))["test"]
        return result
    split = split.scaled(unit["scaling"])
    result.update(lasso_accuracy(split))
    for n_labels in unit.get("few_labels", ()):
        few = split.with_few_labels(n_labels, seed=_seed(unit))
        result[f"labels_{n_labels}"] = lasso_accuracy(few)["test"]
    return result


def make_parts(unit: Unit, construction: Construction) -> list[Part]:
    """Return the training, validation and test articles of a unit."""
    tensor, chosen = _sample_tensor(
        unit["pool"], unit["sample"], construction, unit.get("noise", 0.0)
    )
    parts = []
    for own in articles.split(chosen, unit["sample"], unit["fold"]):
        rows = np.searchsorted(chosen, own)
        parts.append(Part(_take(tensor, rows), articles.classes(own), own))
    return parts


@lru_cache(maxsize=16)
def _sample_tensor(
    pool: str, sample: int, construction: Construction, noise: float
) -> tuple[coo_array, np.ndarray]:
    """Return the tensor of the 400 articles, with noise in training and test articles alike."""
    chosen = articles.draw_sample(pool, sample)
    tensor = articles.make_tensor(chosen, construction)
    return (add_noise(tensor, noise, random_state=sample) if noise else tensor), chosen


def _take(tensor: coo_array, rows: np.ndarray) -> coo_array:
    position = np.full(tensor.shape[0], -1)
    position[rows] = np.arange(len(rows))
    own = position[tensor.coords[0]] >= 0
    coords = (position[tensor.coords[0][own]], tensor.coords[1][own], tensor.coords[2][own])
    return type(tensor)((tensor.data[own], coords), shape=(len(rows), *tensor.shape[1:]))


def _given_costs(unit: Unit, construction: Construction) -> dict[str, Any]:
    """Return the costs that the parameters name and that are not made from the tensor."""
    named = unit["parameters"].get("costs", {}).values()
    if "development" not in named:
        return {}
    return {"development": articles.word_costs(articles.pools()[0], construction)}


def _seed(unit: Unit) -> int:
    return 1000 * unit["sample"] + 10 * unit["start"] + unit["fold"]


def _raw(unit: Unit, parts: list[Part]) -> Unit:
    """Classify the flattened tensor."""
    features = []
    for part in parts:
        # liblinear takes 32-bit indices only.
        i, j, k = (row.astype(np.int32) for row in part.tensor.coords)
        n, n_words, _ = part.tensor.shape
        shape = (n, n_words * n_words)
        features.append(csr_array((part.tensor.data, (i, j * n_words + k)), shape=shape))
    # Pairs that no training article has tell a classifier nothing.
    seen = np.flatnonzero(np.asarray(features[0].sum(axis=0)).ravel())
    used = tuple(part[:, seen] for part in features)
    split = Split(used, tuple(part.classes for part in parts))
    return best_of(raw_models(_seed(unit))[unit["method"]], split, model_accuracy)
