"""Wasserstein dictionaries: kernels, barycenters and sweeps, against dense matrices and POT.

Kernels are applied to 50 grids of 100 x 100; barycenters are of 50 images of that size, by the same
number of the same projections. Sweeps over codes and atoms are those of 500 images of 28 x 28 and
16 atoms, from the same start to the same loss, ``GOAL``: both libraries make as many as they need
until theirs is not above it, and their errors are the losses that they then have. polyad's time
has its own losses in it, with that of the start; the direct one is told how many sweeps it needs.
The direct one has the dense kernel and plain gradient steps on the duals of Algorithms 1 to 3 of
the paper, with the step that their smoothness allows and duals that go on from block to block.

A first iteration is a sweep of both with one tau: polyad's, with what its start needs, and a direct
one of as many gradient steps as bring it to the same loss. These are longer than their smoothness
allows, by the factor that needs the fewest on these images, one of ``PACES``: with larger ones they
do not converge, and with one the direct iteration takes about as many times as long. The sweeps to
one loss have a factor of one, or, in a row of its own, a larger one with a tau and a number of
steps that suit it, all three chosen on these images.

The images of the sweeps are strokes, on which nothing was tuned but the goal: it is about the
lowest loss that the direct one comes to before it rises again. polyad's settings were chosen on
digits and on the tensors of ``experiments/wdl/proximal.py``, the tau and the number of steps of the
direct one on blobs.

``python -m benchmarks.dictionary --images 500`` tells all losses: the time of the processor that
polyad needs, on one thread, to come to each loss that the direct one has after a sweep.
"""

from __future__ import annotations

import argparse
import time
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
SMALL_SIDE, N_SMALL, RANK, SWEEP_EPSILON, TAU = 28, 500, 16, 0.01, 0.001
# Of the direct sweep: its own tau and the gradient steps of each block, which had the lowest loss
# after some 7 seconds among ten pairs from 0.001 to 1 and from 20 to 400, on 40 blobs; and the most
# sweeps.
DIRECT_TAU, GRADIENT_STEPS, MOST_SWEEPS = 0.003, 100, 12
# Of direct sweeps chosen on the images of the benchmark: tau, steps, multiple of their length.
LONG_STEPS = (0.01, 30, 32.0)
# Of one direct iteration, for each tau: the multiple of the step that needs the fewest of them, and
# how many (``--match``); and what they are searched among, with the part of what polyad's first
# iteration lowers the loss by that the direct one may miss of it.
ITERATIONS = {0.001: (4.0, 112), 0.01: (32.0, 10), 0.1: (64.0, 31)}
PACES, MOST_STEPS, SAME = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0), 800, 1e-4
# The loss that sweeps go on to, for each image.
GOAL = 0.0016


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


def strokes(n_images: int, side: int) -> DictionaryImages:
    """Return images of two bent strokes each, on nothing."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, side)
    along = np.linspace(0, 1, 40)[:, None, None]
    X = np.zeros((n_images, side, side))
    for ends in 0.1 + 0.8 * rng.random((2, 3, n_images, 2)):
        first, middle, last = ends
        # A curve of Bézier, drawn with a round pen.
        points = (1 - along) ** 2 * first + 2 * along * (1 - along) * middle + along**2 * last
        for at in points:
            pen = np.exp(-((t - at[:, :1]) ** 2) / 0.001)[:, :, None]
            X = np.maximum(X, pen * np.exp(-((t - at[:, 1:]) ** 2) / 0.001)[:, None, :])
    X[X < 0.05] = 0.0
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


def polyad_sweeps(data: DictionaryImages, rank: int) -> Run:
    """Return sweeps until the loss is not above the goal."""
    sweep_problem(data.X)  # imports take seconds, too
    return repeated(partial(_until, data, rank, len(data.X) * GOAL))


def _until(data: DictionaryImages, rank: int, goal: float) -> list[np.ndarray]:
    """Return the blocks of the first state whose loss is not above a goal, or of the last."""
    for state in islice(_own(data, rank), 1 + MOST_SWEEPS):
        if state.value <= goal:
            break
    return list(state.blocks)


def _own(data: DictionaryImages, rank: int, tau: float = TAU) -> Iterator[Any]:
    """Give polyad's states from the start on, computed as its estimators do: on all threads."""
    from polyad.core.threads import thread_limit
    from polyad.dictionary.solver import DictionarySolver

    with thread_limit(None):
        problem = sweep_problem(data.X)
        solver = DictionarySolver(problem, (tau, tau), "sweep")
        state = solver.begin(problem.start(rank, "samples", 0))
    while True:
        yield state
        with thread_limit(None):
            state = solver.step(state)


def polyad_iteration(data: DictionaryImages, rank: int, *, tau: float) -> Run:
    """Return the first sweep, with what the start needs."""
    sweep_problem(data.X)  # imports take seconds, too
    return repeated(lambda: list(next(islice(_own(data, rank, tau), 1, None)).blocks))


def direct_iteration(
    data: DictionaryImages, rank: int, *, tau: float, pace: float, steps: int
) -> Run:
    """Return the first direct sweep."""
    return repeated(lambda: next(_direct(data, rank, tau, steps, pace)))


def direct_sweeps(
    data: DictionaryImages,
    rank: int,
    setting: tuple[float, int, float] = (DIRECT_TAU, GRADIENT_STEPS, 1.0),
) -> Run:
    """Algorithms 1 to 3 to the goal: gradient descent on the dual of each block, dense."""
    goal = len(data.X) * GOAL
    values = map(data.error_of, islice(_direct(data, rank, *setting), MOST_SWEEPS))
    n_sweeps = next((k for k, value in enumerate(values, 1) if value <= goal), MOST_SWEEPS)
    return repeated(lambda: next(islice(_direct(data, rank, *setting), n_sweeps - 1, None)))


def _direct(
    data: DictionaryImages,
    rank: int,
    tau: float = DIRECT_TAU,
    steps: int = GRADIENT_STEPS,
    pace: float = 1.0,
) -> Iterator[list[np.ndarray]]:
    """Give codes and atoms after each direct sweep; pace multiplies the step."""
    problem = sweep_problem(data.X)
    codes, atoms = (np.ascontiguousarray(own) for own in problem.start(rank, "samples", 0))
    kernel = np.exp(problem.samples.geometry.cost_matrix() / -SWEEP_EPSILON)
    X = np.ascontiguousarray(data.X.reshape(len(data.X), -1).T)
    sides, dual = (kernel, X), np.zeros_like(X)
    while True:
        of_codes, of_atoms = ((own, steps, pace) for own in (tau, tau * len(data.X)))
        codes, dual = _descend(sides, dual, atoms, codes, of_codes)
        atoms, dual = _descend(sides, dual, codes, atoms, of_atoms)
        yield [codes, atoms]


def _descend(
    sides: tuple[np.ndarray, np.ndarray],
    dual: np.ndarray,
    other: np.ndarray,
    origin: np.ndarray,
    setting: tuple[float, int, float],
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes for atoms, or atoms for codes, and the dual: tau, steps and pace are given."""
    from polyad.dictionary.newton import project_simplex

    (kernel, X), (tau, steps, pace) = sides, setting
    of_codes = len(other) == len(X)
    step = pace / (1.0 / SWEEP_EPSILON + np.linalg.norm(other, 2) ** 2 / tau)

    def recovered() -> np.ndarray:
        pull = dual.T @ other if of_codes else dual @ other
        return project_simplex(origin + pull / tau, axis=int(of_codes))

    for _ in range(steps):
        alpha = np.exp((dual.min(axis=0) - dual) / SWEEP_EPSILON)
        q = alpha * (kernel @ (X / (kernel @ alpha)))
        factor = recovered()
        model = other @ factor.T if of_codes else factor @ other.T
        dual = dual - step * (model - q)
    return recovered(), dual


def race(data: DictionaryImages, seconds: float, tau: float, steps: int) -> None:
    """Print the time of the processor that polyad needs to the losses of the direct sweeps."""
    started, curve = time.process_time(), []
    for number, state in enumerate(_own(data, RANK)):
        took = time.process_time() - started
        curve.append((state.value, took))
        print(f"polyad after {number} sweeps: loss {state.value:.5f}, {took:.1f} s", flush=True)
        if took > seconds:
            break
    spent, lowest, started = 0.0, np.inf, time.process_time()
    for number, blocks in enumerate(_direct(data, RANK, tau, steps), 1):
        spent += time.process_time() - started
        loss = data.error_of(blocks)
        print(f"direct after {number} sweeps: loss {loss:.5f}, {spent:.1f} s", end="", flush=True)
        took = next((own for value, own in curve if loss is not None and value <= loss), None)
        print("" if took is None else f", {spent / took:.1f} times polyad's to as much", flush=True)
        if spent > seconds or (loss is not None and loss > lowest):
            break
        lowest, started = loss, time.process_time()


def match(data: DictionaryImages, tau: float) -> None:
    """Print the steps that a direct sweep needs to the loss of polyad's, for some step sizes."""
    start, first = (state.value for state in islice(_own(data, RANK, tau), 2))
    goal = first + SAME * (start - first)
    print(f"tau {tau}: polyad's loss from {start:.4f} to {first:.4f}", flush=True)
    for pace in PACES:
        fewest, most, steps = 0, None, 25
        while steps <= MOST_STEPS and (most is None or most - fewest > max(1, most // 20)):
            loss = data.error_of(next(_direct(data, RANK, tau, steps, pace)))
            print(f"pace {pace}, {steps} steps: {loss:.4f}", flush=True)
            if loss is not None and loss <= goal:
                most = steps
            else:
                fewest = steps
            steps = 2 * steps if most is None else (fewest + most) // 2
        print(f"pace {pace}: {most or 'not within'} {'' if most else MOST_STEPS} steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dictionary")
    parser.add_argument("--kind", choices=("strokes", "blobs"), default="strokes")
    parser.add_argument("--images", type=int, default=N_SMALL)
    parser.add_argument("--seconds", type=float, default=100.0, help="of the processor, for each")
    parser.add_argument("--direct-tau", type=float, default=DIRECT_TAU)
    parser.add_argument("--direct-steps", type=int, default=GRADIENT_STEPS)
    parser.add_argument("--match", type=float, default=None, help="a tau: steps of one iteration")
    options = parser.parse_args()
    make = strokes if options.kind == "strokes" else images
    data = make(options.images, SMALL_SIDE)
    if options.match is not None:
        match(data, options.match)
        return
    race(data, options.seconds, options.direct_tau, options.direct_steps)


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
_ITERATIONS = {
    f"dictionary: first iteration, 500 images of 28x28, R=16, tau {tau}": (
        partial(strokes, N_SMALL, SMALL_SIDE),
        RANK,
        1,
        {
            "polyad": partial(polyad_iteration, tau=tau),
            "dense gradient steps, NumPy": partial(
                direct_iteration, tau=tau, pace=pace, steps=steps
            ),
        },
    )
    for tau, (pace, steps) in ITERATIONS.items()
}
#: As those of ``benchmarks/cases.py``.
CASES: dict[str, Any] = {
    **_KERNELS,
    **_BARYCENTERS,
    **_ITERATIONS,
    "dictionary: to one loss, 500 images of 28x28, R=16": (
        partial(strokes, N_SMALL, SMALL_SIDE),
        RANK,
        1,
        {
            "polyad": polyad_sweeps,
            "dense gradient steps, NumPy": direct_sweeps,
            "longer dense gradient steps, NumPy": partial(direct_sweeps, setting=LONG_STEPS),
        },
    ),
}

if __name__ == "__main__":
    main()
