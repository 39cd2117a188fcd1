"""A step of QMF against one forward pass of its transforms in OTT-JAX.

polyad makes whole iterations of Adam: products, transports from the potentials of the step before,
divergence, exact gradient of all parameters, update, and the objective. OTT only normalises
products of the same shape to as many quantiles, squashed by itself, with the same ``epsilon``; it
is timed on a part of the features and scaled up. Imports are inside: each library runs in a process
of its own.

And the time to an objective: QMF by its default solver until it is where Adam, with the limit of
iterations that it had as the default, ends by the same ``tol``. Both are whole fits, from the same
start, with the last scores of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyad.fitting import Iteration

    Run = Callable[[int], object]

EPSILON = 1e-2
RANK = 10
# Features that OTT is timed on.
SAMPLE = 500
# Samples, features and ranks of the races, and the most iterations of Adam.
RACE, RACE_RANKS = (100, 470), (5, 10)
_ADAM_ITERATIONS = 2000


@dataclass(frozen=True)
class QuantileProblem:
    """Samples and features of low rank up to a power of each feature."""

    X: np.ndarray
    n_quantiles: int

    def share(self, library: str) -> float:
        """Return the factor by which the time of a library is scaled up."""
        n_features = self.X.shape[1]
        return 1.0 if library == "polyad" else n_features / min(n_features, SAMPLE)


def problem(n_samples: int, n_features: int, n_quantiles: int) -> QuantileProblem:
    rng = np.random.default_rng(0)
    products = rng.gamma(0.5, size=(n_samples, RANK)) @ rng.gamma(0.5, size=(RANK, n_features))
    return QuantileProblem(products ** rng.uniform(0.5, 3.0, n_features), n_quantiles)


@dataclass(frozen=True)
class RaceProblem:
    """Samples and features of low rank behind a quantile transform of each feature."""

    X: np.ndarray


def race_problem(rank: int) -> RaceProblem:
    from experiments.qmf.synthetic import make_planted

    return RaceProblem(make_planted(RACE[1], RACE[0], rank, 0).X)


def adam_run(data: RaceProblem, rank: int) -> Run:
    from polyad import QMF

    model = QMF(rank, solver="adam", max_iter=_ADAM_ITERATIONS, random_state=0, n_jobs=2)
    # Whatever is compiled, is now.
    QMF(rank, solver="adam", max_iter=2, tol=0).fit(data.X)

    def run(n_iter: int) -> Any:
        for _ in range(n_iter):
            model.fit(data.X)
        return model

    return run


def race_run(data: RaceProblem, rank: int) -> Run:
    from polyad import QMF

    goal: float = adam_run(data, rank)(1).history_.objective[-1]

    def is_there(iteration: Iteration) -> bool:
        return iteration.objective <= goal

    def run(n_iter: int) -> None:
        for _ in range(n_iter):
            model = QMF(rank, tol=0, callbacks=[is_there], random_state=0, n_jobs=2).fit(data.X)
            if model.history_.objective[-1] > goal:
                message = "The objective was not reached."
                raise RuntimeError(message)

    return run


def polyad_run(data: QuantileProblem, rank: int) -> Run:
    from polyad.core.threads import thread_limit
    from polyad.quantile.features import feature_table, read_divergence
    from polyad.quantile.parameters import random_parameters
    from polyad.quantile.problem import QuantileObjective, Settings
    from polyad.quantile.solver import AdamSolver

    table = feature_table(data.X, read_divergence("kl"))
    objective = QuantileObjective(
        table, Settings(EPSILON, nonnegative=True, ridge=1e-3), data.n_quantiles
    )
    solver = AdamSolver(objective, "QMF", learning_rate=0.05)
    start = random_parameters(table.shape, rank, data.n_quantiles, nonnegative=True, seed=0)
    with thread_limit(2):
        first = solver.init(start, 0)

    def run(n_iter: int) -> None:
        state = first
        with thread_limit(2):
            for _ in range(n_iter):
                state = solver.step(state)

    return run


def ott_run(data: QuantileProblem, rank: int) -> Run:
    import jax

    jax.config.update("jax_enable_x64", val=True)
    import jax.numpy as jnp
    from ott.tools import soft_sort

    rng = np.random.default_rng(0)
    n_rows = min(data.X.shape[1], SAMPLE)
    products = np.exp(rng.uniform(-0.5, 0.5, (n_rows, rank))) @ np.exp(
        rng.uniform(-0.5, 0.5, (rank, data.X.shape[0]))
    )
    x = jnp.asarray(products)
    quantiles = jnp.linspace(0.0, 1.0, data.n_quantiles)

    def function(values: Any) -> Any:
        return soft_sort.quantile_normalization(values, quantiles, axis=1, epsilon=EPSILON)

    compiled = jax.jit(function)

    def run(n_iter: int) -> None:
        for _ in range(n_iter):
            jax.block_until_ready(compiled(x))

    return run


LIBRARIES = {"polyad": polyad_run, "OTT, transforms forward only": ott_run}
RACERS = {"polyad": race_run, "Adam": adam_run}
SHAPES = ((300, 11500, 16), (256, 500, 16))


def title(n_samples: int, n_features: int, n_quantiles: int) -> str:
    return f"quantile: a step of QMF, {n_features} features of {n_samples}, {n_quantiles} quantiles"


def race_title(rank: int) -> str:
    return f"QMF to an objective, {RACE[0]} samples x {RACE[1]} features, R={rank}"
