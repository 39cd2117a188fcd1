"""A step of QMF against one forward pass of its transforms in OTT-JAX.

polyad makes whole iterations of Adam: products, transports from the potentials of the step before,
divergence, exact gradient of all parameters, update, and the objective. OTT only normalises
products of the same shape to as many quantiles, squashed by itself, with the same ``epsilon``; it
is timed on a part of the features and scaled up. Imports are inside: each library runs in a process
of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], object]

EPSILON = 1e-2
RANK = 10
# Features that OTT is timed on.
SAMPLE = 500


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
SHAPES = ((300, 11500, 16), (256, 500, 16))


def title(n_samples: int, n_features: int, n_quantiles: int) -> str:
    return f"quantile: a step of QMF, {n_features} features of {n_samples}, {n_quantiles} quantiles"
