"""NumPy twins of the kernels: one row, plain formulas."""

import numpy as np


def products(factors, mode):
    """Return the Khatri-Rao product of the other factors, one row per cell of a slice."""
    result = np.ones((1, factors[0].shape[1]))
    for k, factor in enumerate(factors):
        if k != mode:
            result = (result[:, None, :] * factor[None, :, :]).reshape(-1, factor.shape[1])
    return result


def unfolded(X, mode):
    return np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1)


def multiplicative(X, factors, mode, sweeps):
    """Return the factor of a mode after some multiplicative updates (Chi and Kolda, eq. 3.1)."""
    pi, data, rows = products(factors, mode), unfolded(X, mode), factors[mode].copy()
    for _ in range(sweeps):
        model = rows @ pi.T
        ratio = np.divide(data, model, out=np.zeros_like(model), where=data > 0)
        rows = rows * (ratio @ pi) / pi.sum(axis=0)
    return rows


def newton_step(x, b, pi, damping=1e-5):
    """Return a row after one projected damped Newton step, in shares of the sum of the row."""
    d, total = pi.sum(axis=0), x.sum()
    y, pi, x = b * d / total, (pi / d)[x > 0], x[x > 0] / total

    def f(y):
        return y.sum() - x @ np.log(pi @ y)

    gradient = 1 - (x / (pi @ y)) @ pi
    distance = np.abs(np.minimum(y, gradient)).max()
    free = (y > min(1e-3, distance)) | (gradient <= 0)
    scaled = pi[:, free] / (pi @ y)[:, None]
    hessian = (scaled * x[:, None]).T @ scaled + damping * np.eye(free.sum())
    direction = -gradient
    direction[free] = -np.linalg.solve(hessian, gradient[free])
    length = 1.0
    while True:
        point = np.maximum(0, y + length * direction)
        decrease = 1e-4 * gradient @ (point - y)
        if f(point / point.sum()) <= f(y) + min(0.0, decrease):
            return point / point.sum() * total / d
        length /= 2


def divergence(X, model):
    positive = X > 0
    logs = X[positive] * np.log(X[positive] / model[positive])
    return model.sum() - X.sum() + logs.sum()
