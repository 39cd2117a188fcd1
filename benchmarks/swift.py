"""One iteration of SWIFT: polyad against the paper's algorithm and the direct one.

Both others are in NumPy (:mod:`experiments.swift.reference`) and make 25 Sinkhorn steps, which are
not converged. Everything that a fit does once is left out.

And the time to an objective: polyad against the plain alternation, with the same kernels, of exact
transports and two sweeps over the factors with the marginals held. Both begin where that is after
some iterations, so that they go to the same minimum, and end where it is some later. A whole fit of
`PoissonCP` from random factors says what is fast.
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
# Iterations of the plain alternation before the start, and from there to the objective.
_BEFORE, _AFTER = 20, 40
_MOST_STEPS = 400


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


def records(shape: tuple[int, int, int], n_nonzeros: int, n_topics: int = 10) -> SwiftProblem:
    """Return counts of pairs of codes, all pairs of those that a sample has, with cosine costs."""
    from scipy.sparse import coo_array

    from polyad.transport import cosine_cost

    generator = np.random.default_rng(0)
    topics = [generator.dirichlet(np.full(size, 0.05), n_topics) for size in shape[1:]]
    side = (n_nonzeros / shape[0]) ** 0.5
    places = []
    for sample, mix in enumerate(generator.dirichlet(np.full(n_topics, 0.3), shape[0])):
        n_codes = max(1, int(generator.gamma(4.0, side / 4)))
        drawn = [generator.choice(t.shape[1], 3 * n_codes, p=mix @ t) for t in topics]
        codes = [generator.permutation(np.unique(own))[:n_codes] for own in drawn]
        places.append(np.stack(np.meshgrid([sample], *codes, indexing="ij")).reshape(3, -1))
    coords = tuple(np.concatenate(places, axis=1))
    tensor = coo_array((generator.poisson(0.5, len(coords[0])) + 1.0, coords), shape=shape)
    return SwiftProblem(tensor, [cosine_cost(tensor, mode) for mode in range(3)])


def race_run(data: SwiftProblem, rank: int, *, plain: bool = False) -> Run:
    from polyad.core.threads import thread_limit
    from polyad.tensor.sparse import SparseTensor
    from polyad.wasserstein.problem import TransportProblem, TransportSettings
    from polyad.wasserstein.solver import WassersteinSolver

    class HeldSettings(TransportSettings):
        """Marginals that do not follow the model."""

        follow = 0.0

    tensor, costs = SparseTensor(data.tensor), [None, *data.costs[1:]]

    def make(settings: TransportSettings) -> WassersteinSolver:
        return WassersteinSolver(TransportProblem(tensor, costs, settings, _MEMORY))

    alternation, solver = make(HeldSettings(0.3, 0.3)), make(TransportSettings(0.3, 0.3))
    alternation.extrapolates = False
    with thread_limit(2):
        state = alternation.init(data.start(rank))
        for _ in range(_BEFORE):
            state = alternation.step(state)
        start = state.factors
        for _ in range(_AFTER):
            state = alternation.step(state)
        target = alternation.objective(state)
    racer = alternation if plain else solver

    def run(n_iter: int) -> None:
        with thread_limit(2):
            for _ in range(n_iter):
                state = racer.init(start)
                for _ in range(_MOST_STEPS):
                    if racer.objective(state) <= target:
                        break
                    state = racer.step(state)
                else:
                    message = "The objective was not reached."
                    raise RuntimeError(message)

    return run


def poisson_run(data: SwiftProblem, rank: int) -> Run:
    from polyad import PoissonCP

    def run(n_iter: int) -> None:
        for seed in range(n_iter):
            PoissonCP(rank, init="random", random_state=seed, n_jobs=2).fit(data.tensor)

    return run
