"""Augmented CP once more, in plain NumPy and in the words of the paper: slow, and short."""

import numpy as np


def khatri_rao(factors):
    columns = []
    for r in range(factors[0].shape[1]):
        column = np.ones(1)
        for factor in factors:
            column = np.kron(column, factor[:, r])
        columns.append(column)
    return np.stack(columns, axis=1)


def pair_matrix(n, gamma):
    """The matrix G of the paper: -1/N on the diagonal, c elsewhere."""
    c = (gamma + 1) / (n * (n - 1))
    return c * np.ones((n, n)) - (c + 1 / n) * np.eye(n)


def normalized(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def alignment(rows, twins, gamma):
    """The self-supervised loss, as a trace."""
    return np.trace(normalized(rows).T @ pair_matrix(len(rows), gamma) @ normalized(twins))


def objective(samples, twins, rows, factors, alpha, beta, gamma):
    """Eq. 11, with the beta of the paper; samples and twins are matrices."""
    basis = khatri_rao(factors)
    residual = ((samples - rows[0] @ basis.T) ** 2).sum() + ((twins - rows[1] @ basis.T) ** 2).sum()
    size = sum((own**2).sum() for own in (*rows, *factors))
    return residual + alpha * size + beta * alignment(*rows, gamma)


def example(seed=0, n=8, shape=(4, 5, 6), rank=3):
    """The data of the regression numbers: factors, samples and twins, in this order."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, rank)) for size in shape]
    samples = rng.standard_normal((n, *shape)).reshape(n, -1)
    twins = samples + 0.1 * rng.standard_normal((n, *shape)).reshape(n, -1)
    return factors, samples, twins
