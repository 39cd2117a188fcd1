"""Classifiers on features: lasso logistic regression along a path of strengths, and others."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from experiments.lasso import LassoPath

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The strengths of the paper (eta), as scikit-learn's C.
STRENGTHS = tuple(10.0**k for k in range(-2, 5))


def _log(features: np.ndarray) -> np.ndarray:
    return np.sign(features) * np.log1p(np.abs(features))


def _root(features: np.ndarray) -> np.ndarray:
    return np.sign(features) * np.sqrt(np.abs(features))


def _profile(features: np.ndarray) -> np.ndarray:
    return features / np.maximum(np.abs(features).sum(axis=1, keepdims=True), 1e-12)


#: What is done with the factor of the samples before it is standardized.
SCALINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda features: features,
    "log": _log,
    "root": _root,
    "profile": _profile,
}


@dataclass(frozen=True)
class Split:
    """Features and classes of the training, validation and test samples."""

    features: tuple[np.ndarray, np.ndarray, np.ndarray]
    classes: tuple[np.ndarray, np.ndarray, np.ndarray]

    def scaled(self, scaling: str) -> Split:
        """Scale each sample by itself, then standardize by the training samples."""
        parts = [SCALINGS[scaling](np.asarray(part, dtype=float)) for part in self.features]
        scaler = StandardScaler().fit(parts[0])
        train, validation, test = (scaler.transform(part) for part in parts)
        return Split((train, validation, test), self.classes)

    def with_few_labels(self, n_labels: int, seed: int) -> Split:
        """Keep the classes of a few training samples only, at least one of each class."""
        train, classes = self.features[0], self.classes[0]
        order = np.random.default_rng(seed).permutation(len(classes))
        first = [order[classes[order] == c][0] for c in np.unique(classes)]
        others = [i for i in order if i not in first]
        kept = np.array([*first, *others][:n_labels])
        return Split((train[kept], *self.features[1:]), (classes[kept], *self.classes[1:]))


def accuracy(found: np.ndarray, classes: np.ndarray) -> float:
    """Return the share of samples whose class is found."""
    return float(np.mean(found == classes))


def lasso_accuracy(split: Split) -> dict[str, float]:
    """Return the accuracy of lasso logistic regression, its strength chosen on the validation.

    Returns
    -------
    dict
        ``test``, ``validation`` and ``strength``. Of equal strengths the strongest penalty counts.
    """
    path = LassoPath(STRENGTHS).fit(split.features[0], split.classes[0])
    scores = [accuracy(found, split.classes[1]) for found in path.predict(split.features[1])]
    chosen = int(np.argmax(scores))
    test = accuracy(path.predict(split.features[2])[chosen], split.classes[2])
    return {"test": test, "validation": scores[chosen], "strength": STRENGTHS[chosen]}


def lasso_precision(split: Split) -> dict[str, float]:
    """Return the area under the precision-recall curve (average precision), two classes 0, 1."""
    path = LassoPath(STRENGTHS).fit(split.features[0], split.classes[0])
    scores = [
        float(average_precision_score(split.classes[1], found[:, 0]))
        for found in path.decisions(split.features[1])
    ]
    chosen = int(np.argmax(scores))
    found = path.decisions(split.features[2])[chosen, :, 0]
    test = float(average_precision_score(split.classes[2], found))
    return {"test": test, "validation": scores[chosen], "strength": STRENGTHS[chosen]}


def best_of(
    models: Sequence[Any], split: Split, score: Callable[[Any, Any, np.ndarray], float]
) -> dict[str, float]:
    """Fit scikit-learn models, keep the first that is best on the validation, test that one."""
    best: dict[str, Any] = {"validation": -np.inf}
    for number, model in enumerate(models):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(split.features[0], split.classes[0])
        value = score(model, split.features[1], split.classes[1])
        if value > best["validation"]:
            best = {"validation": value, "chosen": number, "model": model}
    model = best.pop("model")
    return {**best, "test": score(model, split.features[2], split.classes[2])}


def model_accuracy(model: Any, features: Any, classes: np.ndarray) -> float:
    """Return the accuracy of a fitted model."""
    return accuracy(model.predict(features), classes)


def model_precision(model: Any, features: Any, classes: np.ndarray) -> float:
    """Return the average precision of a fitted model of two classes."""
    return float(average_precision_score(classes, model.predict_proba(features)[:, 1]))


def raw_models(seed: int) -> dict[str, list[Any]]:
    """Return the classifiers of the raw data (Table 2), each with a few settings to choose from."""
    return {
        "lasso LR": [
            OneVsRestClassifier(
                LogisticRegression(l1_ratio=1, C=C, solver="liblinear", random_state=seed)
            )
            for C in (0.01, 0.1, 1.0, 10.0, 100.0)
        ],
        "random forest": [
            RandomForestClassifier(300, min_samples_leaf=leaf, n_jobs=1, random_state=seed)
            for leaf in (1, 3)
        ],
        "MLP": [
            MLPClassifier((32,), alpha=alpha, max_iter=40, random_state=seed)
            for alpha in (1e-3, 1.0)
        ],
        "kNN": [
            KNeighborsClassifier(k, metric=metric)
            for metric in ("cosine", "euclidean")
            for k in (1, 3, 5, 11, 21)
        ],
    }
