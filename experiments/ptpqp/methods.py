"""All methods on samples of categories: each gives the category probabilities of variables."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.ptpqp.synthetic import Planted, one_hot
from polyad.membership.alternatives import (
    category_probabilities,
    hals,
    joint_diagonalization,
    meld,
    tensor_power,
)
from polyad.membership.moment_tensors import block_moments
from polyad.membership.solver import decompose
from polyad.membership.variables import read_columns

if TYPE_CHECKING:
    from collections.abc import Callable

# Sweeps of the multiplicative updates, as in the reference numbers of the paper's method.
_SWEEPS = 2000
# Passes of the variational fit, twice the default.
_LDA_PASSES = 20

Moments = tuple[np.ndarray, list[np.ndarray]]
Factors = list[np.ndarray]


def _decomposed(update: Any) -> Callable[[Moments, int, float, int], Factors]:
    def run(moments: Moments, k: int, alpha0: float, seed: int) -> Factors:
        return decompose(moments[0], k, update=update, max_iter=_SWEEPS, random_state=seed).factors

    return run


# Methods that are given the same moments of three disjoint thirds of the variables.
OF_MOMENTS: dict[str, Callable[[Moments, int, float, int], Factors]] = {
    "nnls": _decomposed("nnls"),
    "pqp": _decomposed("pqp"),
    "eps": _decomposed("eps"),
    "wnmf": _decomposed("wnmf"),
    "hals": lambda m, k, a, seed: hals(m[0], k, random_state=seed)[0],
    "tpm": lambda m, k, a, seed: tensor_power(*m, k, random_state=seed)[0],
    "nojd0": lambda m, k, a, seed: joint_diagonalization(*m, k, plug_in=False, random_state=seed)[
        0
    ],
    "nojd1": lambda m, k, a, seed: joint_diagonalization(*m, k, random_state=seed)[0],
    "meld0": lambda m, k, a, seed: meld(*m, k, alpha0=a, optimal=False, random_state=seed)[0],
    "meld": lambda m, k, a, seed: meld(*m, k, alpha0=a, random_state=seed)[0],
}
OF_SAMPLES = ("MixedMembership", "refined", "LDA", "uniform")


def estimate(method: str, planted: Planted, seed: int) -> list[np.ndarray]:
    """Return the category probabilities that a method finds."""
    d, k = planted.theta[0].shape
    if method in OF_MOMENTS:
        return _of_moments(method, planted, seed)
    if method == "uniform":
        return [np.full((d, k), 1.0 / d)] * len(planted.theta)
    if method == "LDA":
        return _of_lda(planted, seed)
    from polyad import MixedMembership

    refined = {"refine": True} if method == "refined" else {}
    model = MixedMembership(k, alpha0=planted.alpha0, random_state=seed, **refined)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(planted.Y)
    return with_all_categories(planted.Y, model.theta_, d)


def _of_moments(method: str, planted: Planted, seed: int) -> list[np.ndarray]:
    d, k = planted.theta[0].shape
    n_variables = planted.Y.shape[1]
    table = read_columns(planted.Y, "auto", list(range(n_variables)))
    third = n_variables // 3
    sets = np.split(np.arange(n_variables), [third, 2 * third])
    cube = block_moments(table, sets, planted.alpha0)
    pairs = [
        block_moments(table, [sets[x], sets[y]], planted.alpha0)
        for x, y in ((0, 1), (0, 2), (1, 2))
    ]
    factors = OF_MOMENTS[method]((cube, pairs), k, planted.alpha0, seed)
    theta = [
        block
        for factor, own in zip(factors, sets, strict=True)
        for block in category_probabilities(factor, table.variables.sizes[own])
    ]
    return with_all_categories(planted.Y, theta, d)


def with_all_categories(Y: np.ndarray, theta: Any, d: int) -> list[np.ndarray]:
    """Return probabilities with rows of zeros for categories that no sample has."""
    full = []
    for column, block in zip(Y.T, theta, strict=True):
        rows = np.zeros((d, np.shape(block)[1]))
        rows[np.unique(column)] = np.asarray(block)
        full.append(rows)
    return full


def _of_lda(planted: Planted, seed: int) -> list[np.ndarray]:
    """Fit scikit-learn's variational model to counts: a sample is a document of its categories."""
    from sklearn.decomposition import LatentDirichletAllocation

    d, k = planted.theta[0].shape
    model = LatentDirichletAllocation(
        k, doc_topic_prior=planted.alpha, max_iter=_LDA_PASSES, random_state=seed
    )
    model.fit(one_hot(planted.Y, d))
    return category_probabilities(model.components_.T, [d] * len(planted.theta))
