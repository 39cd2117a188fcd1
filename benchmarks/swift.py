"""One iteration of SWIFT: polyad against the paper's algorithm and the direct one.

Both others are in NumPy (:mod:`experiments.swift.reference`) and make 25 Sinkhorn steps, which are
not converged. Everything that a fit does once is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.transport import PENALTY, RHO

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], object]

# What the marginals of the transports may take.
_MEMORY = 2.0**32


@dataclass(frozen=True)
class SwiftProblem:
    """A sparse tensor of counts, and the costs of its modes."""

    tensor: Any
    costs: list[np.ndarray]

    def start(self, rank: int) -> list[np.ndarray]:
        """Return positive factors."""
        generator = np.random.default_rng(1)
        return [generator.uniform(0.1, 1.0, (size, rank)) for size in self.tensor.shape]


def problem(shape: tuple[int, ...], n_nonzeros: int) -> SwiftProblem:
    from scipy.sparse import coo_array

    generator = np.random.default_rng(0)
    cells = np.sort(generator.choice(np.prod(shape), n_nonzeros, replace=False))
    values = generator.poisson(1.0, n_nonzeros) + 1.0
    tensor = coo_array((values, np.unravel_index(cells, shape)), shape=shape)
    costs = []
    for size in shape:
        features = generator.gamma(0.3, 1.0, (size, 30))
        features /= np.linalg.norm(features, axis=1)[:, None]
        cost = np.clip(1 - features @ features.T, 0, None)
        np.fill_diagonal(cost, 0)
        costs.append((cost + cost.T) / 2)
    return SwiftProblem(tensor, costs)


def polyad_run(
    data: SwiftProblem, rank: int, *, inner_iter: int = 1, dtype: Any = np.float64
) -> Run:
    from polyad.core.threads import thread_limit
    from polyad.tensor.sparse import SparseTensor
    from polyad.wasserstein.problem import TransportProblem, TransportSettings
    from polyad.wasserstein.solver import WassersteinSolver

    tensor = SparseTensor(data.tensor.astype(dtype))
    own = TransportProblem(tensor, data.costs, TransportSettings(1 / RHO, PENALTY), _MEMORY)
    solver = WassersteinSolver(own, inner_iter=inner_iter)

    def run(n_iter: int) -> None:
        with thread_limit(2):
            state = solver.init(data.start(rank))
            for _ in range(n_iter):
                state = solver.step(state)

    return run


def reference_run(data: SwiftProblem, rank: int, *, name: str) -> Run:
    from experiments.swift import reference

    iteration = getattr(reference, name)
    dense = data.tensor.toarray()

    def run(n_iter: int) -> None:
        factors = data.start(rank)
        for _ in range(n_iter):
            factors = iteration(dense, data.costs, factors, RHO, PENALTY)

    return run
