"""Data of low rank up to an increasing transform of each feature."""

import numpy as np


def planted(n_samples=80, n_features=160, n_components=8, seed=0):
    """Return the toy of the paper's figures 5 and 6, samples first, without noise.

    Loadings are Poisson with mean 2, scores Dirichlet with parameter 1/2; then each feature gets
    the quantiles of cumulated exponentials of normal gaps, as many as there are samples.
    """
    rng = np.random.default_rng(seed)
    loadings = rng.poisson(2, (n_features, n_components)).astype(float)
    scores = rng.dirichlet(np.full(n_components, 0.5), n_samples).T
    products = loadings @ scores
    quantiles = np.cumsum(np.exp(rng.normal(size=(n_features, n_samples))), axis=1)
    ranks = np.argsort(np.argsort(products, axis=1, kind="stable"), axis=1)
    return np.take_along_axis(quantiles, ranks, axis=1).T


def small(n_samples=15, n_features=8, seed=0):
    """Return a small matrix of positive numbers on wild scales."""
    rng = np.random.default_rng(seed)
    products = rng.gamma(1.0, size=(n_samples, 2)) @ rng.gamma(1.0, size=(2, n_features))
    return products ** rng.uniform(0.5, 3.0, n_features) * 10.0 ** rng.integers(-2, 3, n_features)
