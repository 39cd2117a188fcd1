"""The factorizations that are compared, with the settings that development chooses from.

All of them are given the same tensors and random starts. Their own parameters are chosen on
development data, as many settings for each baseline as its method has ideas, and the transform of
the sample factor (`experiments.classify.SCALINGS`) with them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array

import polyad
from polyad import LabelledTensor

if TYPE_CHECKING:
    import pandas as pd

OURS = "WassersteinCP"


@dataclass(frozen=True)
class Method:
    """A factorization.

    Attributes
    ----------
    paper : str
        What the paper calls it.
    estimator : str
        The class in `polyad`.
    fixed : dict
        Parameters that all fits have.
    grid : tuple of dict
        Parameters to choose from.
    binary : bool
        Whether the data is reduced to zero and one.
    supervised : bool
        Whether the fit is told the classes of the training samples.
    max_starts : int
        The largest number of starts: fewer for methods whose fits take long.
    max_rank : int
        The largest rank, likewise.
    """

    paper: str
    estimator: str
    fixed: dict[str, Any] = field(default_factory=dict)
    grid: tuple[dict[str, Any], ...] = ({},)
    binary: bool = False
    supervised: bool = False
    max_starts: int = 1000
    max_rank: int = 1000


EPSILONS = (1.0, 0.3, 0.1, 0.03)
PENALTIES = (0.03, 0.1, 0.3, 1.0)
WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

METHODS: dict[str, Method] = {
    OURS: Method(
        "SWIFT",
        "WassersteinCP",
        grid=tuple(
            {"epsilon": epsilon, "marginal_penalty": penalty}
            for epsilon, penalty in product(EPSILONS, PENALTIES)
        ),
    ),
    "CP": Method(
        "CP-ALS",
        "CP",
        {"init": "random"},
        tuple({"max_iter": n, "ridge": r} for n in (10, 30, 100, 300) for r in (0.0, 0.1)),
    ),
    "NonnegativeCP": Method(
        "CP-NMU",
        "NonnegativeCP",
        {"init": "random", "solver": "mu"},
        tuple({"max_iter": n, "ridge": r} for n in (10, 30, 100, 300) for r in (0.0, 0.1)),
    ),
    "SupervisedCP": Method(
        "Supervised CP",
        "SupervisedCP",
        {"init": "random", "max_iter": 200},
        tuple({"label_weight": weight} for weight in WEIGHTS),
        supervised=True,
    ),
    "SimilarityCP": Method(
        "Similarity based CP",
        "SimilarityCP",
        {"init": "random", "max_iter": 200, "similarities": "presence"},
        tuple({"similarity_weight": weight} for weight in WEIGHTS),
    ),
    "GeneralizedCP gamma": Method(
        "CP-Continuous",
        "GeneralizedCP",
        # The gamma loss is for numbers above zero: zeros are not seen by it.
        {"init": "random", "loss": "gamma", "missing": "unobserved"},
        tuple({"max_iter": n} for n in (10, 30, 100)),
        max_starts=1,
    ),
    "GeneralizedCP bernoulli": Method(
        "CP-Binary",
        "GeneralizedCP",
        {"init": "random", "loss": "bernoulli"},
        tuple({"max_iter": n} for n in (10, 30)),
        binary=True,
        max_starts=1,
        # The projection of new samples takes a minute a fit at rank 40.
        max_rank=20,
    ),
    "PoissonCP": Method(
        "CP-APR",
        "PoissonCP",
        {"init": "random"},
        tuple({"max_iter": n} for n in (5, 10, 20, 50, 200)),
    ),
}


def method_of(name: str) -> Method:
    """Return a method by its name."""
    if name not in METHODS:
        message = f"There is no method {name!r}; there are {list(METHODS)}."
        raise SystemExit(message)
    return METHODS[name]


def settings_at(chosen: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the parameters and the scaling at a rank, those of the nearest that was tuned."""
    tuned = [int(r) for r in chosen["ranks"]]
    # Of two equally near ones, in the ratio of the ranks, the larger.
    nearest = min(tuned, key=lambda r: (round(abs(np.log(r / rank)), 9), -r))
    parameters = chosen["ranks"][str(nearest)]["parameters"]
    return {"parameters": parameters, "scaling": chosen["scaling"]}


@dataclass(frozen=True)
class Part:
    """Samples as a fit needs them."""

    tensor: coo_array
    classes: np.ndarray
    labels: np.ndarray

    def data(self, *, binary: bool) -> LabelledTensor:
        """Return the labelled tensor."""
        tensor = self.tensor
        if binary:
            ones = np.ones_like(tensor.data)
            tensor = coo_array((ones, tensor.coords), shape=tensor.shape)
        return LabelledTensor(
            tensor, modes=("sample", "first", "second"), labels=(self.labels, None, None)
        )


def read_costs(costs: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    """Return the costs of the three modes: samples, and twice that of the features.

    Parameters
    ----------
    costs : dict
        ``samples`` and ``features``: names of `WassersteinCP`, or keys of ``given``.
    given : dict
        Matrices that were made from other data: arrays, or labelled frames for samples.
    """
    samples, features = (given.get(costs[key], costs[key]) for key in ("samples", "features"))
    return [samples, features, features]


def fit_features(
    name: str,
    parts: list[Part],
    parameters: dict[str, Any],
    *,
    n_components: int,
    seed: int,
    given_costs: dict[str, np.ndarray | pd.DataFrame] | None = None,
) -> tuple[tuple[np.ndarray, ...], Any]:
    """Fit the training samples and return the features of all parts, and the model.

    Parameters
    ----------
    name : str
        The method.
    parts : list of Part
        Training, validation and test samples. The latter two are projected, each by itself.
    parameters : dict
        Parameters of the estimator; ``costs`` as in `read_costs`.
    n_components : int
        The rank.
    seed : int
        Of the start.
    given_costs : dict
        Costs that are not made from the data.
    """
    method = method_of(name)
    parameters = {**method.fixed, **parameters}
    if "costs" in parameters:
        parameters["costs"] = read_costs(parameters["costs"], given_costs or {})
    model = getattr(polyad, method.estimator)(
        n_components, random_state=seed, n_jobs=1, **parameters
    )
    data = [part.data(binary=method.binary) for part in parts]
    with warnings.catch_warnings():
        # Fits that are ended by max_iter are meant to be, and some articles have no pair of words.
        warnings.simplefilter("ignore")
        labels = (parts[0].classes,) if method.supervised else ()
        model.fit(data[0], *labels)
        # The training rows as they are in the fit, in the unit of the projected ones.
        first = np.asarray(model.factors_[0]) * np.asarray(model.weights_)
        others = [np.asarray(model.transform(part)) for part in data[1:]]
    return (first, *others), model
