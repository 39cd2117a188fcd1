"""Random parameters of an estimator, drawn from its ``_parameter_constraints``."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from polyad.cp import generalized
from tests.fuzz.data import Rng, Wish, chance, pick

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.data import Data

    Drawn = dict[str, Any]
    Special = Callable[[Rng, Data, Drawn, list[Any]], Any]

# Never drawn: they are what the oracles set, or change nothing that can be seen.
LEFT_ALONE = {"checkpoint", "callbacks", "verbose", "time_budget", "n_jobs", "warm_start"}
LEFT_ALONE |= {"random_state", "memory_limit"}

# What no parameter of any estimator means by mistake.
NONSENSE = (
    *(True, False, -1, 0, 1.5, -0.5, float("nan"), float("inf"), -float("inf"), "x", "", None),
    *([], [1], {}, object(), np.array(2), np.array([1.0, -1.0]), 2j, 10**30, 1e300, b"svd", print),
    *(np.int64(2), np.float32(0.5), np.bool_(True), (1, 2), {"a": 1}),
)

# Numbers of steps and sizes, which decide how long a case takes.
SIZES = {
    "n_components": (1, 1, 2, 2, 3, 4),
    "max_iter": (1, 2, 3, 6, 12),
    "n_init": (1, 1, 1, 2),
    "n_quantiles": (2, 3, 5, 16),
    "n_inner": (1, 5, 20),
    "sinkhorn_iter": (1, 2, 5),
    "inner_iter": (1, 2, 10),
    "batch_size": (1, 2, 5, 128),
    "n_samples": (1, 10, 100),
    "epoch_iter": (1, 5, 20),
}
NUMBERS = (1e-300, 1e-12, 1e-3, 0.01, 0.1, 0.1, 0.3, 0.5, 1.0, 1.0, 10.0, 1e3, 1e12, 1e300)


def wild(rng: Rng, low: float, high: float | None) -> float:
    """Return a number of an interval, mostly of ordinary size."""
    ordinary = NUMBERS[2:-2] if chance(rng, 0.85) else NUMBERS
    number = low + pick(rng, ordinary)
    return number if high is None else min(number, high)


# Parameters that their constraints tell nothing about, by their name.


def _init(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    rank = drawn["n_components"]
    if object not in rules:
        return pick(rng, sorted(rules[0].options))
    if chance(rng, 0.7):
        return pick(rng, ("svd", "random", "random"))
    factors = [rng.random((n, rank)) for n in data.values.shape]
    if chance(rng, 0.2):
        factors[-1][:, 0] = 0.0
    if chance(rng, 0.1):
        factors[0] *= 1e30
    return factors


def _fixed_modes(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    if isinstance(drawn.get("init"), list) and chance(rng, 0.4):
        return [int(rng.integers(data.values.ndim))]
    return ()


def _per_mode(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    if chance(rng, 0.6):
        return 0.0
    number = wild(rng, 0.0, None)
    return [number] * data.values.ndim if "array-like" in rules and chance(rng, 0.4) else number


def _symmetric(rng: Rng, n: int) -> np.ndarray:
    matrix = rng.random((n, n)) * pick(rng, (1.0, 1.0, 1e-6, 1e6)) * (rng.random((n, n)) < 0.7)
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _matrices(names: tuple[Any, ...]) -> Special:
    def draw(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
        if chance(rng, 0.6):
            return pick(rng, names)
        mode = int(rng.integers(1, data.values.ndim))
        return {mode: _symmetric(rng, data.values.shape[mode])}

    return draw


def _graph(rng: Rng, data: Data, drawn: Drawn, rules: list[Any]) -> Any:
    known = pick(rng, (None, None, "complete", "published", "matrix"))
    return _symmetric(rng, data.values.shape[0]) if known == "matrix" else known


class AbsoluteDivergence:
    """A divergence of one's own: smooth absolute differences."""

    def __repr__(self) -> str:
        return "AbsoluteDivergence()"

    def value(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sqrt(1e-3 + (y - x) ** 2)

    def derivative(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (y - x) / np.sqrt(1e-3 + (y - x) ** 2)


LOSSES = {
    "gaussian": "any",
    "huber": "any",
    "poisson": "nonnegative",
    "poisson-log": "nonnegative",
    "negative-binomial": "nonnegative",
    "bernoulli-odds": "binary",
    "bernoulli-logit": "binary",
    "gamma": "positive",
    "rayleigh": "positive",
    "beta": "nonnegative",
}
LOSS_OBJECTS: dict[str, Callable[[Rng], Any]] = {
    "huber": lambda rng: generalized.HuberLoss(wild(rng, 0.0, None)),
    "beta": lambda rng: generalized.BetaDivergenceLoss(pick(rng, (0.5, 0.1, 1.5, 0.9))),
    "negative-binomial": lambda rng: generalized.NegativeBinomialLoss(pick(rng, (1, 3, 0.5))),
    "gaussian": lambda rng: generalized.CustomLoss(_square, _twice),
}


def _square(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    return (x - m) ** 2


def _twice(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    return 2 * (m - x)


def draw_loss(rng: Rng) -> tuple[Any, str]:
    """Return a loss, as a name or an object, and the sign of the data it is for."""
    name = pick(rng, list(LOSSES))
    is_object = name in LOSS_OBJECTS and chance(rng, 0.3)
    return (LOSS_OBJECTS[name](rng) if is_object else name), LOSSES[name]


SPECIAL: dict[str, Special] = {
    "init": _init,
    "fixed_modes": _fixed_modes,
    "sparsity": _per_mode,
    "ridge": _per_mode,
    "similarity_weight": _per_mode,
    "similarities": _matrices(("cosine", "presence", None)),
    "costs": _matrices((None, "cosine", "presence", "tfidf", "one-identity", "random", "separate")),
    "graph": _graph,
    "divergence": lambda rng, data, drawn, rules: pick(
        rng, ("kl", "frobenius", AbsoluteDivergence())
    ),
    "tol": lambda rng, data, drawn, rules: pick(rng, (0.0, 1e-12, 1e-5, 1e-3, 1.0)),
}


def random_parameters(rng: Rng, estimator: type, data: Data) -> tuple[dict[str, Any], str | None]:
    """Return parameters, and the name of the one that is nonsense, if one is."""
    constraints = estimator._parameter_constraints
    shape = data.values.shape
    largest = int(np.prod(shape)) // max(shape) if chance(rng, 0.95) else 99
    drawn: Drawn = {"n_components": min(largest, pick(rng, SIZES["n_components"]))}
    free = set(constraints) - LEFT_ALONE - {"n_components", "loss"}
    for name in sorted(free, key=lambda name: (name != "init", name)):
        # Most cases differ from the defaults in a few parameters only, so that none hides another.
        if name in ("max_iter", "tol", "init") or name in SIZES or chance(rng, 0.5):
            drawn[name] = _one(rng, name, constraints[name], data, drawn)
    if not chance(rng, 0.08):
        return drawn, None
    broken = pick(rng, sorted(set(constraints) - {"callbacks", "verbose", "checkpoint"}))
    return {**drawn, broken: pick(rng, NONSENSE)}, broken


def _one(rng: Rng, name: str, rules: list[Any], data: Data, drawn: Drawn) -> Any:
    if name in SIZES:
        found = pick(rng, SIZES[name])
        optional = None in rules and chance(rng, 0.5)
        return None if optional else pick(rng, (found, found, found, np.int64(found)))
    if name in SPECIAL:
        return SPECIAL[name](rng, data, drawn, rules)
    rule = pick(rng, rules)
    if isinstance(rule, StrOptions):
        return pick(rng, sorted(rule.options))
    if isinstance(rule, Interval) and rule.type is not Integral:
        return wild(rng, float(rule.left), rule.right)
    if rule == "boolean":
        return chance(rng, 0.5)
    message = f"tests/fuzz/parameters.py does not know how to draw {name}: {rules}"
    raise NotImplementedError(message)


# What each estimator is for.
WISHES = {
    "CP": Wish(),
    "NonnegativeCP": Wish("nonnegative"),
    "PoissonCP": Wish("nonnegative"),
    "StochasticCP": Wish(),
    "SupervisedCP": Wish("nonnegative"),
    "SimilarityCP": Wish("nonnegative"),
    "WassersteinCP": Wish("nonnegative", missing=False),
    "QMF": Wish("nonnegative", n_modes=2),
    "QMFQ": Wish("nonnegative", n_modes=2, missing=False),
}
