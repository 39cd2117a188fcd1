"""Wasserstein dictionaries: kernels, barycenters and sweeps, against dense matrices and POT.

Kernels are applied to 50 grids of 100 x 100; barycenters are of 50 images of that size, by the same
number of the same projections; a sweep over codes and atoms is that of 500 images of 28 x 28 and 16
atoms, from the same start. The direct one has the dense kernel and plain gradient steps on the
duals of Algorithms 1 to 3 of the paper, with the step that their smoothness allows; it makes as
many sweeps as it needs to polyad's loss after one, a number that is found before. Their errors are
these losses. Imports are inside: each library runs in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[[int], Any]

SIDE, N_IMAGES = 100, 50
EPSILON = {"sqeuclidean": 0.01, "euclidean": 0.02}
# Of each method of POT: epsilon, and the steps that are compared; those of logarithms are slow.
BARYCENTERS = {"sinkhorn": (0.01, 20), "sinkhorn_log": (0.002, 2)}
SMALL_SIDE, N_SMALL, RANK, SWEEP_EPSILON, TAU = 28, 500, 16, 0.01, 0.1
# Gradient steps of each block of the direct sweep, the quickest of 20, 100 and 400 in one run of
# each; and the most sweeps.
GRADIENT_STEPS, MOST_SWEEPS = 100, 12


@dataclass(frozen=True)
class DictionaryImages:
    """Images of mass one, and what is measured of a result, if anything."""

    X: np.ndarray

    def error_of(self, result: Any) -> float | None:
        """Return the loss of factors, above the lowest."""
        if not isinstance(result, list):
            return None
        problem = sweep_problem(self.X)
        return problem.value([np.ascontiguousarray(own) for own in result], [])[0]


def images(n_images: int, side: int) -> DictionaryImages:
    """Return images of three blobs each, with background."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, side)
    X = np.full((n_images, side, side), 1e-3)
    for at in rng.random((3, n_images, 2)):
        rows = np.exp(-((t - at[:, :1]) ** 2) / 0.005)
        X += rows[:, :, None] * np.exp(-((t - at[:, 1:]) ** 2) / 0.005)[:, None, :]
    return DictionaryImages(X / X.sum(axis=(1, 2), keepdims=True))


def repeated(once: Callable[[], Any]) -> Run:
    def run(n_iter: int) -> Any:
        result = None
        for _ in range(n_iter):
            result = once()
        return result

    return run


def polyad_kernel(data: DictionaryImages, _rank: int, *, metric: str) -> Run:
    from polyad.transport import grid_geometry

    geometry = grid_geometry((SIDE, SIDE), epsilon=EPSILON[metric], metric=metric)
    values = data.X + 1e-5
    return repeated(lambda: geometry.apply(values))


def dense_kernel(data: DictionaryImages, _rank: int, *, metric: str) -> Run:
    from polyad.transport import grid_geometry

    geometry = grid_geometry((SIDE, SIDE), epsilon=EPSILON[metric], metric=metric)
    kernel = np.exp(geometry.cost_matrix() / -EPSILON[metric])
    flat = np.ascontiguousarray(data.X.reshape(N_IMAGES, -1).T) + 1e-5
    return repeated(lambda: kernel @ flat)


def polyad_barycenter(data: DictionaryImages, _rank: int, *, epsilon: float, steps: int) -> Run:
    import warnings

    from polyad.dictionary import wasserstein_barycenter

    def once() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wasserstein_barycenter(data.X, epsilon=epsilon, tol=0.0, max_iter=steps)

    return repeated(once)


def pot_barycenter(
    data: DictionaryImages, _rank: int, *, epsilon: float, steps: int, method: str
) -> Run:
    import ot

    # POT's kernel is that of the squared distance, with its own regularisation.
    return repeated(
        lambda: ot.bregman.convolutional_barycenter2d(
            data.X, epsilon, method=method, numItermax=steps, stopThr=0.0, warn=False
        )
    )


def sweep_problem(X: np.ndarray) -> Any:
    """Return polyad's problem of some images."""
    from polyad.dictionary.loss import Samples
    from polyad.dictionary.solver import DictionaryProblem
    from polyad.transport import grid_geometry

    geometry = grid_geometry(X.shape[1:], epsilon=SWEEP_EPSILON)
    return DictionaryProblem(Samples.of(X, geometry), (X[0].size,))


def polyad_sweep(data: DictionaryImages, rank: int) -> Run:
    from polyad.dictionary.solver import DictionarySolver

    problem = sweep_problem(data.X)
    solver = DictionarySolver(problem, (TAU, TAU), "sweep")
    start = solver.begin(problem.start(rank, "samples", 0))

    def run(n_iter: int) -> list[np.ndarray]:
        for _ in range(n_iter):
            state = solver.step(start)
        return state.blocks

    return run


def direct_sweeps(data: DictionaryImages, rank: int) -> Run:
    """Algorithms 1 to 3 to polyad's loss: gradient descent on the dual of each block, dense."""
    problem = sweep_problem(data.X)
    start = [np.ascontiguousarray(own) for own in problem.start(rank, "samples", 0)]
    kernel = np.exp(problem.samples.geometry.cost_matrix() / -SWEEP_EPSILON)
    X = data.X.reshape(N_SMALL, -1).T
    goal = data.error_of(polyad_sweep(data, rank)(1))

    def sweeps() -> Iterator[list[np.ndarray]]:
        (codes, atoms), dual = start, np.zeros_like(X)
        while True:
            codes, dual = _descend(kernel, X, dual, atoms, codes, tau=TAU)
            atoms, dual = _descend(kernel, X, dual, codes, atoms, tau=TAU * N_SMALL)
            yield [codes, atoms]

    values = map(data.error_of, islice(sweeps(), MOST_SWEEPS))
    n_sweeps = next((k for k, value in enumerate(values, 1) if value <= goal), MOST_SWEEPS)
    return repeated(lambda: next(islice(sweeps(), n_sweeps - 1, None)))


def _descend(
    kernel: np.ndarray,
    X: np.ndarray,
    dual: np.ndarray,
    other: np.ndarray,
    origin: np.ndarray,
    *,
    tau: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes for atoms, or atoms for codes, and the dual."""
    from polyad.dictionary.newton import project_simplex

    of_codes = len(other) == len(X)
    step = 1.0 / (1.0 / SWEEP_EPSILON + np.linalg.norm(other, 2) ** 2 / tau)

    def recovered() -> np.ndarray:
        pull = dual.T @ other if of_codes else dual @ other
        return project_simplex(origin + pull / tau, axis=int(of_codes))

    for _ in range(GRADIENT_STEPS):
        alpha = np.exp((dual.min(axis=0) - dual) / SWEEP_EPSILON)
        q = alpha * (kernel @ (X / (kernel @ alpha)))
        factor = recovered()
        model = other @ factor.T if of_codes else factor @ other.T
        dual = dual - step * (model - q)
    return recovered(), dual


_KERNELS = {
    f"dictionary: kernel of {metric}, 50 grids of 100x100": (
        partial(images, N_IMAGES, SIDE),
        1,
        50,
        {
            "polyad": partial(polyad_kernel, metric=metric),
            "dense matrix, NumPy": partial(dense_kernel, metric=metric),
        },
    )
    for metric in EPSILON
}
_BARYCENTERS = {
    f"dictionary: {steps} steps of a barycenter, 50 images of 100x100, epsilon {epsilon}": (
        partial(images, N_IMAGES, SIDE),
        1,
        2,
        {
            "polyad": partial(polyad_barycenter, epsilon=epsilon, steps=steps),
            "pot": partial(pot_barycenter, epsilon=epsilon, steps=steps, method=method),
        },
    )
    for method, (epsilon, steps) in BARYCENTERS.items()
}
#: As those of ``benchmarks/cases.py``.
CASES: dict[str, Any] = {
    **_KERNELS,
    **_BARYCENTERS,
    "dictionary: a sweep, 500 images of 28x28, R=16": (
        partial(images, N_SMALL, SMALL_SIDE),
        RANK,
        1,
        {"polyad": polyad_sweep, "dense gradient steps, NumPy": direct_sweeps},
    ),
}
