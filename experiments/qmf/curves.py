"""Fits that are watched: the mean divergence after each iteration, and its time.

The divergence is always the mean over entries of the generalised Kullback-Leibler divergence of
the data from the reconstruction, whatever a method minimises.
"""

from __future__ import annotations

import time
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.decomposition import non_negative_factorization

import polyad

if TYPE_CHECKING:
    from collections.abc import Callable

    Curve = dict[str, list[float]]

# Entries and model values are kept this part of the largest entry of their feature above zero.
_GUARD = 1e-8
# Keeps denominators of updates from zero.
_TINY = 1e-20


def mean_divergence(X: np.ndarray, model: np.ndarray) -> float:
    """Return the mean generalised Kullback-Leibler divergence of data from a model."""
    return float(divergences(X, model).mean())


def divergences(X: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Return the divergence of each entry; both are kept above zero alike."""
    guard = _GUARD * np.maximum(X.max(axis=0), np.finfo(float).tiny)
    x, y = X + guard, model + guard
    ratio = (y - x) / x
    result: np.ndarray = x * (ratio - np.log1p(ratio))
    return result


def checkpoints(n_iter: int) -> list[int]:
    """Return iterations at which to look: all of the first twenty, then ever fewer."""
    later = np.geomspace(20, max(n_iter, 21), 60).astype(int)
    return sorted({*range(1, min(n_iter, 20) + 1), *(k for k in later.tolist() if k <= n_iter)})


def random_factors(
    shape: tuple[int, int], rank: int, scale: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return uniform random factors whose products have about the mean of the data."""
    rng = np.random.default_rng(seed)
    root = 2.0 * np.sqrt(scale / rank)
    left = root * rng.uniform(0.01, 1.0, size=(shape[0], rank))
    return left, root * rng.uniform(0.01, 1.0, size=(rank, shape[1]))


def watched_updates(
    X: np.ndarray,
    rank: int,
    seed: int,
    n_iter: int,
    update: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> tuple[Curve, np.ndarray]:
    """Run multiplicative updates; return what they reach, and their reconstruction.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Samples in rows.
    rank, seed, n_iter : int
        The number of components, the seed of the start, the number of iterations.
    update : callable
        Gets the data, both factors and a number of iterations; returns the new factors.
    """
    W, H = random_factors(X.shape, rank, float(X.mean()), seed)
    curve: Curve = {"iteration": [0], "times": [0.0], "divergence": [mean_divergence(X, W @ H)]}
    spent, done = 0.0, 0
    for goal in checkpoints(n_iter):
        started = time.perf_counter()
        W, H = update(X, W, H, goal - done)
        spent, done = spent + time.perf_counter() - started, goal
        curve["iteration"].append(goal)
        curve["times"].append(spent)
        curve["divergence"].append(mean_divergence(X, W @ H))
    return curve, W @ H


def kl_updates(
    X: np.ndarray, W: np.ndarray, H: np.ndarray, n_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Go on with the updates of scikit-learn's NMF for the Kullback-Leibler divergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of not having converged after so few
        W, H, _ = non_negative_factorization(
            X,
            W.copy(),
            H.copy(),
            n_components=W.shape[1],
            init="custom",
            solver="mu",
            beta_loss="kullback-leibler",
            tol=0.0,
            max_iter=n_iter,
        )
    return W, H


def frobenius_updates(
    X: np.ndarray, W: np.ndarray, H: np.ndarray, n_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Do the updates for squares, which the paper's code uses: scores first, then loadings."""
    for _ in range(n_iter):
        W = W * (X @ H.T) / (W @ (H @ H.T) + _TINY)
        H = H * (W.T @ X) / ((W.T @ W) @ H + _TINY)
    return W, H


def watched_model(model: Any, X: np.ndarray) -> tuple[Curve, np.ndarray]:
    """Fit a QMF or a QMFQ; return its curve, with the time of its start, and its reconstruction.

    The last point is that of the finished model: both solve for the scores of the samples once more
    when the iterations are over.
    """
    stamps: list[float] = []
    model.set_params(callbacks=[lambda _: stamps.append(time.perf_counter())])
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of iterations is given
        scores = model.fit_transform(X)
    ended = time.perf_counter()
    frame = model.history_.to_frame()
    first = stamps[0] - float(frame["seconds"].iloc[1] - frame["seconds"].iloc[0])
    times = np.array([first, *stamps]) - started
    kept = [0, *checkpoints(model.n_iter_)]
    found = model.inverse_transform(scores)
    curve = {
        "iteration": [*kept, int(model.n_iter_) + 1],
        "times": [*times[kept].tolist(), ended - started],
        "divergence": [*frame["divergence"].iloc[kept].tolist(), mean_divergence(X, found)],
    }
    return curve, found


def make_model(name: str, rank: int, seed: int, parameters: dict[str, Any]) -> Any:
    """Return an unfitted QMF or QMFQ that uses one thread."""
    return getattr(polyad, name)(rank, random_state=seed, n_jobs=1, **parameters)


@cache
def compile_models() -> None:
    """Compile or load what the models need, once in a process: no part of their times."""
    X = np.random.default_rng(0).gamma(2.0, size=(6, 5))
    for name, projector in (
        ("QMF", {}),
        ("QMFQ", {"projector": "svd"}),
        ("QMFQ", {"projector": "nmf"}),
    ):
        watched_model(make_model(name, 2, 0, {"n_quantiles": 3, "max_iter": 2, **projector}), X)
