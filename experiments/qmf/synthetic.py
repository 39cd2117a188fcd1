"""Matrices of low rank behind a quantile transform of each feature, as the paper draws them.

Samples are rows here; the paper has them in columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Planted:
    """A matrix and what it was made from.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        The data.
    clean : ndarray of shape (n, d)
        The data before the noise.
    products : ndarray of shape (n, d)
        The products of the factors, before the transforms.
    quantiles : ndarray of shape (d, n)
        The quantiles that each feature was given, increasing.
    """

    X: np.ndarray
    clean: np.ndarray
    products: np.ndarray
    quantiles: np.ndarray


def make_planted(
    n_features: int, n_samples: int, rank: int, seed: int, *, noise: float = 0.0
) -> Planted:
    """Draw a matrix: loadings Poisson(2), scores Dirichlet(1/2), quantile gaps exp(N(0, 1)).

    Parameters
    ----------
    n_features, n_samples, rank : int
        The paper's d, n and k.
    seed : int
        Seeds everything.
    noise : float
        The standard deviation of Gaussian noise, of which the positive part is added.
    """
    rng = np.random.default_rng(seed)
    loadings = rng.poisson(2.0, size=(n_features, rank)).astype(float)
    scores = rng.dirichlet(np.full(rank, 0.5), size=n_samples)
    quantiles = np.cumsum(np.exp(rng.standard_normal((n_features, n_samples))), axis=1)
    products = scores @ loadings.T
    clean = hard_quantiles(products, quantiles)
    error = np.maximum(rng.normal(0.0, noise, size=clean.shape), 0.0) if noise else 0.0
    return Planted(clean + error, clean, products, quantiles)


def hard_quantiles(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Return each column of ``values`` with its r-th smallest entry replaced by its r-th quantile.

    Equal entries get their quantiles in the order in which they stand.

    Parameters
    ----------
    values : ndarray of shape (n, d)
        Samples in rows.
    quantiles : ndarray of shape (d, n)
        Increasing, as many as there are samples.
    """
    order = np.argsort(values, axis=0, kind="stable")
    result = np.empty_like(values)
    np.put_along_axis(result, order, quantiles.T, axis=0)
    return result


def quantiles_at(quantiles: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the values of a weighted quantile function (a step function) at some levels.

    Parameters
    ----------
    quantiles, weights : ndarray of shape (m,)
        Increasing values and their weights, which sum to one.
    levels : ndarray
        Between zero and one.
    """
    position = np.searchsorted(np.cumsum(weights), levels - 1e-12, side="left")
    result: np.ndarray = quantiles[np.minimum(position, len(quantiles) - 1)]
    return result
