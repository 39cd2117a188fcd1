"""Samples of a known mixed membership model, its exact moments, and how far parameters are off."""

import numpy as np
from scipy.optimize import linear_sum_assignment


def planted(n=500, p=12, d=4, k=3, alpha=0.1, seed=0):
    """Return categories (n, p), parameters (p, d, k) and memberships (n, k)."""
    rng = np.random.default_rng(seed)
    theta = rng.dirichlet([0.5] * d, size=(p, k)).transpose(0, 2, 1)
    x = rng.dirichlet([alpha] * k, size=n)
    edges = np.einsum("jdk,nk->njd", theta, x).cumsum(axis=2)
    y = (rng.random((n, p, 1)) > edges).sum(axis=2)
    return np.minimum(y, d - 1), theta, x


def rows_of(theta, chosen):
    return np.concatenate([theta[j] for j in chosen])


def exact_third(theta, sets, alpha):
    """Return the third moments of a known model."""
    a0 = alpha.sum()
    weights = 2 * alpha / (a0 * (a0 + 1) * (a0 + 2))
    return np.einsum("h,ah,bh,ch->abc", weights, *(rows_of(theta, own) for own in sets))


def best_order(found, truth):
    """Return the order of found components that is nearest to the truth."""
    cost = ((found[:, :, None] - truth[:, None, :]) ** 2).sum(axis=0)
    rows, columns = linear_sum_assignment(cost)
    return rows[np.argsort(columns)]


def rmse(theta_found, theta):
    """Return the error of parameters, whatever the order of components."""
    found, truth = np.concatenate(list(theta_found)), np.concatenate(list(theta))
    return np.sqrt(np.mean((found[:, best_order(found, truth)] - truth) ** 2))


def of_seen(theta, y):
    """Return the parameters of the categories that samples have."""
    return [own[np.unique(column)] for own, column in zip(theta, y.T, strict=True)]
