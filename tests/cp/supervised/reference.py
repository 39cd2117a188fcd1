"""NumPy twins of the supervised updates, and data whose classes few components do not show."""

import numpy as np


def objective_twin(X, codes, factors, V, c, *, label_weight, label_ridge):
    """The objective as the docstring of the estimator has it; -1 marks samples without a class.

    The columns of the modes but the samples have length one.
    """
    A = factors[0]
    seen = ~np.isnan(X)
    model = np.einsum("ir,jr,kr->ijk", *factors)
    residual = np.sum(np.where(seen, X - model, 0.0) ** 2)
    squares = np.nansum(X**2)
    labelled = codes >= 0
    sigma = np.sqrt(squares / len(X))
    z = A[labelled] / sigma @ V + c
    loss = np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), codes[labelled]])
    return residual / 2 + label_weight / 2 * squares * (loss + label_ridge / 2 * np.sum(V**2))


def sphere_twin(normal, right, columns, n_sweeps):
    """Each column in turn: the best nonnegative one of length one, by its closed form."""
    columns = columns.copy()
    for _ in range(n_sweeps):
        for r in range(columns.shape[1]):
            others = [s for s in range(columns.shape[1]) if s != r]
            target = right[:, r] - columns[:, others] @ normal[others, r]
            target = np.maximum(target, 0)
            columns[:, r] = target / np.linalg.norm(target)
    return columns


def row_twin(normal, right, code, classifier, n_steps):
    """Projected gradient on one row: least squares plus the weighted logistic loss."""
    weights, intercept, strength = classifier
    row = np.ones(len(right))
    step = 1 / np.linalg.eigvalsh(normal + strength * 0.5 * weights @ weights.T)[-1]
    for _ in range(n_steps):
        z = row @ weights + intercept
        p = np.exp(z - z.max())
        p /= p.sum()
        p[code] -= 1
        row = np.maximum(0, row - step * (normal @ row - right + strength * weights @ p))
    return row


def hidden_classes(n_samples=160, n_classes=2, seed=0, noise=0.06):
    """Return data of four strong components and a weak one, which alone knows the classes."""
    generator = np.random.default_rng(seed)
    A = generator.random((n_samples, 5))
    y = generator.integers(0, n_classes, n_samples)
    A[:, 4] = 0.35 * (y + 0.2 * generator.random(n_samples))
    B, C = (generator.random((n, 5)) * (generator.random((n, 5)) < 0.5) + 0.02 for n in (12, 9))
    X = np.einsum("ir,jr,kr->ijk", A, B, C)
    return X + noise * generator.standard_normal(X.shape), y
