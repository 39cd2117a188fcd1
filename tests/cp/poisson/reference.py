"""NumPy twins of the kernels: one row, plain formulas."""

import numpy as np
from scipy.optimize import nnls


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


def newton_step(x, b, pi, damping=1e-13):
    """Return a row after a multiplicative update and a Newton step over nonnegative rows."""
    d, total = pi.sum(axis=0), x.sum()
    pi, x = (pi / d)[x > 0], x[x > 0] / total

    def f(y):
        with np.errstate(divide="ignore"):
            return y.sum() - x @ np.log(pi @ y)

    y = b * d / total
    y = y * ((x / (pi @ y)) @ pi)
    gradient = 1 - (x / (pi @ y)) @ pi
    scaled = pi / (pi @ y)[:, None]
    hessian = (scaled * x[:, None]).T @ scaled
    hessian += damping * np.diag(1 + np.diag(hessian))
    # g . s + s . H s / 2 over y + s >= 0 is a nonnegative least-squares problem in y + s.
    half = np.linalg.cholesky(hessian).T
    step = nnls(half, np.linalg.solve(half.T, hessian @ y - gradient))[0] - y
    length = 1.0
    while True:
        point = (y + length * step) / (y + length * step).sum()
        if f(point) <= f(y) + 1e-4 * length * (gradient @ step):
            return point * total / d
        length /= 2


def best_rows(X, factors, mode, observed=None, sweeps=20_000):
    """Return the rows of a mode after thousands of multiplicative updates (EM), and their f.

    ``f`` is the divergence of each row up to a constant, over its sum. Counts that no component
    explains are left out.
    """
    pi, data = products(factors, mode), unfolded(X, mode)
    seen = np.ones_like(data) if observed is None else unfolded(observed, mode).astype(float)
    d, counted = seen @ pi, (data > 0) & (seen > 0) & (pi.max(axis=1) > 0)
    data = np.where(counted, data, 0.0)
    inverse = np.divide(1.0, d, out=np.zeros_like(d), where=d > 0)
    rows = data.sum(axis=1, keepdims=True) * inverse / pi.shape[1]
    for _ in range(sweeps):
        model = rows @ pi.T
        gain = (np.divide(data, model, out=np.zeros_like(data), where=counted) @ pi) * inverse
        rows *= gain
        # What still grows or shrinks does so by rounding alone.
        if (np.abs(gain - 1.0) * (rows > 1e-13 * rows.max(axis=1, keepdims=True)) < 1e-14).all():
            break
    return rows, row_objectives(data, rows, pi, d)


def row_objectives(data, rows, pi, d):
    """Return the divergence of each row up to a constant, over its sum; infinite if impossible."""
    with np.errstate(divide="ignore"):
        logs = np.where(data > 0, data * np.log(np.where(data > 0, rows @ pi.T, 1.0)), 0.0)
    sums = data.sum(axis=1)
    values = (rows * d).sum(axis=1) - logs.sum(axis=1)
    return np.divide(values, sums, out=np.zeros_like(sums), where=sums > 0)


def gains(x, b, pi):
    """Return by how much a multiplicative update would multiply each entry of a row.

    At the minimum it is one where the row is above zero, and at most one elsewhere; the divergence
    is above its minimum by at most the sum of the row times the largest gain less one.
    """
    d, counted = pi.sum(axis=0), (x > 0) & (pi.max(axis=1) > 0)
    sums = (x[counted] / (pi[counted] @ b)) @ pi[counted]
    return np.divide(sums, d, out=np.zeros_like(d), where=d > 0)


def divergence(X, model):
    positive = X > 0
    logs = X[positive] * np.log(X[positive] / model[positive])
    return model.sum() - X.sum() + logs.sum()
