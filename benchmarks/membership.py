"""Whole fits of mixed memberships: polyad against scikit-learn's LatentDirichletAllocation.

Both get the same samples of a known model, with the true Dirichlet parameters; the other library
gets them as the counts of categories, sparse, as a document of words, for which the model is the
same. An error is that of the probabilities of categories in components, in the best order. Each
runs on one thread. Imports are inside: each library runs in a process of its own.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], np.ndarray | None]

RANK = 8
CATEGORIES = 4
ALPHA = 0.1
SHAPE = (1000, 1000)
SWEEPS = 20


@dataclass(frozen=True)
class MembershipProblem:
    """Categories (n, p), and the probabilities (p * d, k) that they were drawn from."""

    X: np.ndarray
    theta: np.ndarray

    def error_of(self, found: np.ndarray | None) -> float | None:
        """Return the root mean squared error of probabilities, in the best order."""
        from scipy.optimize import linear_sum_assignment

        if found is None:
            return None
        cost = ((found[:, :, None] - self.theta[:, None, :]) ** 2).sum(axis=0)
        rows, columns = linear_sum_assignment(cost)
        return float(np.sqrt(cost[rows, columns].sum() / self.theta.size))


def problem(n_samples: int, n_variables: int) -> MembershipProblem:
    rng = np.random.default_rng(0)
    theta = rng.dirichlet([0.5] * CATEGORIES, size=(n_variables, RANK)).transpose(0, 2, 1)
    x = rng.dirichlet([ALPHA] * RANK, size=n_samples)
    X = np.empty((n_samples, n_variables), np.int8)
    for j in range(n_variables):
        edges = (x @ theta[j].T).cumsum(axis=1)[:, :-1]
        X[:, j] = (rng.random((n_samples, 1)) > edges).sum(axis=1)
    return MembershipProblem(X, theta.reshape(-1, RANK))


def polyad_run(data: MembershipProblem, rank: int, **options: Any) -> Run:
    from polyad import MixedMembership

    options = {"alpha0": ALPHA * rank, "random_state": 0, "n_jobs": 1, **options}

    def run(n_fits: int) -> np.ndarray:
        for _ in range(n_fits):
            model = MixedMembership(rank, **options).fit(data.X)
        return np.concatenate(model.theta_)

    return run


def growth_run(data: MembershipProblem, rank: int, *, shape: tuple[int, int] = SHAPE) -> Run:
    """Fit data of a shape of its own, with as many sweeps as for all shapes."""
    fit = polyad_run(problem(*shape), rank, max_iter=SWEEPS, tol=0)

    def run(n_fits: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit(n_fits)

    return run


def sklearn_run(data: MembershipProblem, rank: int, *, method: str) -> Run:
    from scipy.sparse import csr_array
    from sklearn.decomposition import LatentDirichletAllocation

    n, p = data.X.shape
    columns = data.X.astype(np.int32) + CATEGORIES * np.arange(p, dtype=np.int32)
    ends = np.arange(n + 1, dtype=np.int32) * p
    counts = csr_array((np.ones(n * p), columns.ravel(), ends), shape=(n, CATEGORIES * p))

    def run(n_fits: int) -> np.ndarray:
        for _ in range(n_fits):
            model = LatentDirichletAllocation(
                rank, doc_topic_prior=ALPHA, learning_method=method, random_state=0
            ).fit(counts)
        blocks = model.components_.reshape(rank, p, CATEGORIES)
        shares = blocks / blocks.sum(axis=2, keepdims=True)
        return shares.transpose(1, 2, 0).reshape(-1, rank)

    return run


LIBRARIES = {
    "polyad": polyad_run,
    "scikit-learn, LDA batch": partial(sklearn_run, method="batch"),
    "scikit-learn, LDA online": partial(sklearn_run, method="online"),
}
#: How the time grows with samples and with columns.
GROWTH = {
    "polyad": growth_run,
    **{
        f"polyad, {n} samples of {p} columns": partial(growth_run, shape=(n, p))
        for n, p in ((2000, 1000), (4000, 1000), (1000, 2000), (1000, 4000))
    },
}
_SIZE = f"{SHAPE[0]} samples of {SHAPE[1]} columns of {CATEGORIES} categories, R={RANK}"
CASES = {
    f"membership: a whole fit, {_SIZE}": LIBRARIES,
    f"membership: growth of {SWEEPS} sweeps from {_SIZE}": GROWTH,
}
