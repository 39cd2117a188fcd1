"""Random parameters of an estimator, drawn from its ``_parameter_constraints``."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from polyad import losses
from tests.fuzz.data import Rng, Wish, chance, pick

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.data import Data

    Drawn = dict[str, Any]
    # Draws a parameter, given the data, the parameters so far, and the rules of this one.
    Special = Callable[[Rng, Data, Drawn, list[Any]], Any]

# What each estimator is for; GeneralizedCP is for what its loss is for.
WISHES = {
    "CP": Wish(),
    "NonnegativeCP": Wish("nonnegative"),
    "PoissonCP": Wish("nonnegative"),
    "StochasticCP": Wish(),
    "AugmentedCP": Wish(missing=False),
    "SupervisedCP": Wish("nonnegative"),
    "SimilarityCP": Wish("nonnegative"),
    "WassersteinCP": Wish("nonnegative", missing=False),
    "QMF": Wish("nonnegative", n_modes=2),
    "QMFQ": Wish("nonnegative", n_modes=2, missing=False),
    "MixedMembership": Wish(n_modes=2),
    "WassersteinDictionary": Wish("nonnegative", missing=False),
    "WassersteinCPDictionary": Wish("nonnegative", missing=False),
}

# Not drawn: they are what the checks set, or change nothing that can be seen.
LEFT_ALONE = {
    *("checkpoint", "callbacks", "verbose", "time_budget", "n_jobs", "warm_start"),
    *("random_state", "memory_limit", "n_components", "loss"),
}

ENDLESS = 10**30
# What no parameter of any estimator means, and what a few do.
NONSENSE = (
    *(True, False, -1, 0, 1.5, -0.5, float("nan"), float("inf"), -float("inf"), "x", "", None),
    *([], [1], {}, object(), np.array(2), np.array([1.0, -1.0]), 2j, ENDLESS, 1e300, b"svd", print),
    *(np.int64(2), np.float32(0.5), np.bool_(True), (1, 2), {"a": 1}),
)

# Numbers of steps and sizes, which decide how long a case takes; and other numbers.
SIZES = {
    "n_components": (1, 1, 2, 2, 3, 4),
    "max_iter": (1, 2, 3, 6, 12),
    "n_init": (1, 1, 1, 2),
    "n_quantiles": (2, 3, 5, 16),
    "sinkhorn_iter": (1, 2, 5),
    "inner_iter": (1, 2, 5, 10, 20),
    "batch_size": (1, 2, 5, 128),
    "epoch_iter": (1, 5, 20),
    "n_partitions": (1, 1, 2),
    "rounds": (1, 1, 3),
}
NUMBERS = (1e-300, 1e-12, 1e-3, 0.01, 0.1, 0.1, 0.3, 0.5, 1.0, 1.0, 10.0, 1e3, 1e12, 1e300)


def wild(rng: Rng, low: float = 0.0, high: float | None = None) -> float:
    """Return a number of an interval, mostly of ordinary size."""
    number = low + pick(rng, NUMBERS[2:-2] if chance(rng, 0.85) else NUMBERS)
    return number if high is None else min(number, high)


def _init(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    if object not in rules:
        return pick(rng, sorted(rules[0].options))
    if chance(rng, 0.7):
        return pick(rng, ("svd", "random", "search"))
    factors = [rng.random((n, drawn["n_components"])) for n in data.values.shape]
    factors[-1][:, 0] *= pick(rng, (1.0, 1.0, 1.0, 0.0))
    factors[0] *= pick(rng, (1.0, 1.0, 1.0, 1e6))
    return factors


def _fixed_modes(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    given = isinstance(drawn["init"], list) and chance(rng, 0.4)
    return [int(rng.integers(data.values.ndim))] if given else ()


def _penalty(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    most = next(rule.right for rule in rules if isinstance(rule, Interval))
    number = 0.0 if chance(rng, 0.6) else wild(rng, high=most)
    return [number] * data.values.ndim if "array-like" in rules and chance(rng, 0.2) else number


def _symmetric(rng: Rng, n: int) -> np.ndarray:
    matrix = rng.random((n, n)) * pick(rng, (1.0, 1.0, 1e-6, 1e6)) * (rng.random((n, n)) < 0.7)
    return (matrix + matrix.T) * (1.0 - np.eye(n))


def _matrices(*names: Any) -> Special:
    """Return how to draw a name for all modes, or a matrix of one mode."""

    def draw(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
        mode = int(rng.integers(1, data.values.ndim))
        matrix = {mode: _symmetric(rng, data.values.shape[mode])}
        return pick(rng, names) if chance(rng, 0.6) else matrix

    return draw


def _graph(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    return pick(rng, (None, None, "complete", "published", _symmetric(rng, len(data.values))))


def _noise(batch: np.ndarray, rng: Rng) -> np.ndarray:
    """An augmentation."""
    return batch + (0.1 * batch.std() * rng.standard_normal(batch.shape)).astype(batch.dtype)


def _transport(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    # The published steps have no sharpness.
    sharp = drawn.get("sharpness", 0.0) > 0
    return "exact" if sharp else pick(rng, sorted(rules[0].options))


def _epsilon(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    """Numbers that are small against the steps of a grid take dictionaries long."""
    rule = pick(rng, rules)
    if isinstance(rules[0], StrOptions):
        return pick(rng, ("auto", "auto", 1.0, 100.0))
    return wild(rng, float(rule.left), rule.right)


def _metric(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    rule = pick(rng, rules)
    if rule == "array-like":
        return _symmetric(rng, int(np.prod(data.values.shape[1:])))
    return None if rule is None else pick(rng, sorted(rule.options))


def _augment(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    return pick(rng, (None, _noise, _noise, np.nan_to_num(data.values[:, ...])))


class AbsoluteDivergence:
    """A divergence of one's own: smooth absolute differences."""

    def __repr__(self) -> str:
        return "AbsoluteDivergence()"

    def value(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sqrt(1e-3 + (y - x) ** 2)

    def derivative(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (y - x) / np.sqrt(1e-3 + (y - x) ** 2)


# How parameters are drawn that their constraints say too little about.
SPECIAL: dict[str, Special] = {
    "init": _init,
    "fixed_modes": _fixed_modes,
    **dict.fromkeys(("sparsity", "ridge", "similarity_weight"), _penalty),
    "similarities": _matrices("cosine", "presence", None),
    "costs": _matrices(None, "cosine", "presence", "tfidf", "one-identity", "random", "separate"),
    "graph": _graph,
    "augment": _augment,
    "tau": lambda rng, *_: pick(rng, (0.0, 0.1, (0.01, 1.0))),
    "axis_weights": lambda *_: None,
    "epsilon": _epsilon,
    "transport": _transport,
    "metric": _metric,
    "preprocess": lambda *_: None,
    "kinds": lambda rng, *_: pick(rng, ("auto", "auto", "categorical", "real", {0: "real"})),
    "anchors": lambda rng, *_: pick(rng, (None, [[0], [1], [2]])),
    "divergence": lambda rng, *_: pick(rng, ("kl", "frobenius", AbsoluteDivergence())),
    "tol": lambda rng, *_: pick(rng, (0.0, 1e-12, 1e-5, 1e-3, 1.0)),
    # Larger ones diverge, which is told.
    "learning_rate": lambda rng, *_: pick(rng, (1e-3, 0.05, 0.1, 0.3, 1.0)),
}


def _square(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    return (x - m) ** 2


def _twice(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    return 2 * (m - x)


#: Losses with the sign of the data that they are for.
LOSSES: dict[str, tuple[str, Callable[[Rng], Any] | None]] = {
    "gaussian": ("any", lambda rng: losses.CustomLoss(_square, _twice)),
    "huber": ("any", lambda rng: losses.HuberLoss(wild(rng))),
    "poisson": ("nonnegative", None),
    "poisson-log": ("nonnegative", None),
    "negative-binomial": ("nonnegative", lambda rng: losses.NegativeBinomialLoss(3)),
    "bernoulli-odds": ("binary", None),
    "bernoulli-logit": ("binary", None),
    "gamma": ("positive", None),
    "rayleigh": ("positive", None),
    "beta": ("nonnegative", lambda rng: losses.BetaDivergenceLoss(pick(rng, (0.1, 0.9, 1.5)))),
}


def draw_loss(rng: Rng) -> tuple[Any, str]:
    """Return a loss, as a name or an object, and the sign of the data it is for."""
    name = pick(rng, list(LOSSES))
    sign, make = LOSSES[name]
    return (make(rng) if make is not None and chance(rng, 0.3) else name), sign


def random_parameters(rng: Rng, estimator: type, data: Data) -> tuple[Drawn, str | None]:
    """Return parameters, and the name of the one that is nonsense, if one is."""
    constraints, shape = estimator._parameter_constraints, data.values.shape
    most = int(np.prod(shape)) // max(shape) if chance(rng, 0.95) else 99
    drawn: Drawn = {"n_components": min(most, pick(rng, SIZES["n_components"]))}
    for name in sorted(set(constraints) - LEFT_ALONE, key=lambda name: (name != "init", name)):
        # Most cases keep some defaults, so that no parameter hides another.
        if name in ("init", "max_iter", "tol") or chance(rng, 0.5):
            drawn[name] = _one(rng, name, constraints[name], data, drawn)
    if not chance(rng, 0.08):
        return drawn, None
    broken = pick(rng, sorted(set(constraints) - {"callbacks", "verbose", "checkpoint"}))
    nonsense = pick(rng, NONSENSE)
    # So many iterations are made where they are asked for: nobody would see the end of it.
    is_endless = broken.endswith("_iter") and nonsense is ENDLESS
    return {**drawn, broken: -1 if is_endless else nonsense}, broken


def _one(rng: Rng, name: str, rules: list[Any], data: Data, drawn: Drawn) -> Any:
    if name in SPECIAL:
        return SPECIAL[name](rng, data, drawn, rules)
    rule = pick(rng, rules)
    if rule is None:
        return None
    if isinstance(rule, StrOptions):
        return pick(rng, sorted(rule.options))
    if isinstance(rule, Interval) and rule.type is not Integral:
        return wild(rng, float(rule.left), rule.right)
    if rule == "boolean":
        return chance(rng, 0.5)
    return pick(rng, SIZES[name]) * pick(rng, (1, 1, np.int64(1)))
