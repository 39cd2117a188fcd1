"""Sparse data with known components, and plain sums over all of its cells."""

import numpy as np
from scipy.sparse import coo_array

from polyad.cp.generalized.problem import ZerosProblem
from polyad.tensor.sparse import SparseTensor


def planted(shape, rank, n_events, *, binary=False, seed=0):
    """Return counts of events that fall into the cells of a low-rank nonnegative model."""
    generator = np.random.default_rng(seed)
    factors = [generator.gamma(0.3, size=(n, rank)) + 1e-3 for n in shape]
    factors = [factor / factor.sum(axis=0) for factor in factors]
    component = generator.integers(rank, size=n_events)
    coords = np.empty((len(shape), n_events), np.int64)
    for k, factor in enumerate(factors):
        for r in range(rank):
            chosen = component == r
            coords[k, chosen] = generator.choice(shape[k], size=chosen.sum(), p=factor[:, r])
    points, counts = np.unique(coords, axis=1, return_counts=True)
    values = np.ones(points.shape[1]) if binary else counts.astype(float)
    return coo_array((values, tuple(points)), shape=shape), factors


def random_sparse(shape, n_draws, *, seed=0):
    generator = np.random.default_rng(seed)
    coords = tuple(generator.integers(n, size=n_draws) for n in shape)
    tensor = coo_array((generator.poisson(2.0, n_draws) + 1.0, coords), shape=shape)
    tensor.sum_duplicates()
    return tensor


def positive_start(tensor, rank, seed=1):
    """Return positive factors of a model with the mean of the data."""
    generator = np.random.default_rng(seed)
    factors = [generator.uniform(0.1, 1.0, (n, rank)) for n in tensor.shape]
    mass = np.prod([factor.sum(axis=0) for factor in factors], axis=0).sum()
    share = (max(tensor.data.sum(), 1.0) / mass) ** (1 / len(factors))
    return [factor * share for factor in factors]


def problem_of(tensor, loss):
    return ZerosProblem(SparseTensor(tensor), loss, 0)


def dense_model(factors):
    result = np.ones((1, factors[0].shape[1]))
    for factor in factors:
        result = (result[:, None, :] * factor[None, :, :]).reshape(-1, factor.shape[1])
    return result.sum(axis=1).reshape([len(factor) for factor in factors])


def exact_sum(loss, tensor, factors):
    return float(np.sum(loss.value(tensor.toarray(), dense_model(factors))))


def exact_gradient(loss, tensor, factors):
    """Return the gradient of the sum over all cells in each factor."""
    slopes = loss.derivative(tensor.toarray(), dense_model(factors))
    gradients = []
    for mode, factor in enumerate(factors):
        columns = []
        for r in range(factor.shape[1]):
            part = np.moveaxis(slopes, mode, 0)
            for k in reversed([k for k in range(len(factors)) if k != mode]):
                part = part @ factors[k][:, r]
            columns.append(part)
        gradients.append(np.stack(columns, axis=1))
    return gradients
