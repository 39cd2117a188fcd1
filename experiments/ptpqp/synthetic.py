"""Mixed membership models with known parameters, their samples, and the error of an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALPHA = 0.1


@dataclass(frozen=True)
class Planted:
    """Samples (n, p) of categories 0..d-1, and the category probabilities (d, k) of variables."""

    Y: np.ndarray
    theta: list[np.ndarray]
    alpha: float

    @property
    def alpha0(self) -> float:
        """The sum of the Dirichlet parameters."""
        return self.alpha * self.theta[0].shape[1]


def make_planted(
    n: int,
    p: int,
    d: int,
    k: int,
    seed: int,
    *,
    contamination: float = 0.0,
    part: int = 0,
) -> Planted:
    """Draw the model of section 6.1 of the paper and samples of it.

    Columns of theta are Dirichlet(1/2, ..., 1/2), memberships Dirichlet(0.1, ..., 0.1); with the
    probability ``contamination`` a category is drawn evenly (the authors' code, specification c9).
    Other parts are other samples of the same model.
    """
    random = np.random.default_rng(seed)
    theta = [random.dirichlet(np.full(d, 0.5), size=k).T for _ in range(p)]
    random = np.random.default_rng([seed, part])
    memberships = random.dirichlet(np.full(k, _ALPHA), size=n)
    Y = np.empty((n, p), dtype=np.int8)
    for j in range(p):
        chances = (1 - contamination) * memberships @ theta[j].T + contamination / d
        passed = chances.cumsum(axis=1) < random.uniform(size=(n, 1))
        Y[:, j] = np.minimum(passed.sum(axis=1), d - 1)
    return Planted(Y, theta, _ALPHA)


def rmse(theta: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """Return the root mean square error of all category probabilities, components assigned."""
    found, true = np.concatenate(list(theta)), np.concatenate(list(truth))
    squares = ((found[:, :, None] - true[:, None, :]) ** 2).sum(axis=0)
    rows, columns = linear_sum_assignment(squares)
    return float(np.sqrt(squares[rows, columns].sum() / true.size))


def one_hot(Y: np.ndarray, d: int) -> np.ndarray:
    """Return indicators (n, p d) of categories."""
    return (Y[:, :, None] == np.arange(d)).reshape(len(Y), -1).astype(float)
