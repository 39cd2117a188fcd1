"""NumPy twins of the transport kernels, and problems for them."""

import numpy as np
from scipy.optimize import minimize

from polyad.transport import SparseFibres


def log_sum(z, axis):
    largest = z.max(axis=axis, keepdims=True)
    return np.squeeze(largest, axis) + np.log(np.exp(z - largest).sum(axis=axis))


def divergence(a, b):
    positive = a > 0
    return np.sum(a[positive] * np.log(a[positive] / b[positive])) - a.sum() + b.sum()


def random_problem(size, n_fibres, n_nonzeros, seed=0, scale=1.0):
    """Return a cost with entries up to one, sparse fibres, and dense ones of like mass."""
    generator = np.random.default_rng(seed)
    features = generator.gamma(0.3, size=(size, 12)) + 1e-3
    features /= np.linalg.norm(features, axis=1)[:, None]
    cost = np.clip(1 - features @ features.T, 0, 1)
    np.fill_diagonal(cost, 0)
    X = np.zeros((size, n_fibres))
    for j in range(n_fibres):
        n = n_nonzeros if np.isscalar(n_nonzeros) else n_nonzeros[j % len(n_nonzeros)]
        where = generator.choice(size, n, replace=False)
        X[where, j] = generator.poisson(1.0, n) + 1.0
    xhat = generator.gamma(0.5, size=(n_fibres, size)) + 1e-3
    return (cost + cost.T) / 2, X * scale, xhat * scale


def published(cost, X, xhat, rho, penalty, n_steps):
    """Return U, V and Delta after the published steps (spec section b), dense, on all columns."""
    K = np.exp(-rho * cost - 1)
    phi = penalty * rho / (penalty * rho + 1)
    U = np.full(X.shape, 1 / len(X))
    for _ in range(n_steps):
        V = (X / (K.T @ U)) ** phi
        U = (xhat.T / (K @ V)) ** phi
    V = (X / (K.T @ U)) ** phi
    return U, V, U * (K @ V)


def value_of_plan(T, cost, x, xhat, rho, penalty):
    entropy = np.sum(T[T > 0] * np.log(T[T > 0]))
    marginals = divergence(T.sum(axis=1), xhat) + divergence(T.sum(axis=0), x)
    return np.sum(cost * T) + entropy / rho + penalty * marginals


def dual_value(log_v, rows, cost, x, xhat, rho, penalty):
    """Return the dual at the best u for v: a lower bound of the minimum."""
    tau = rho * penalty
    logs = -rho * cost[:, rows] - 1 + log_v
    log_u = tau / (tau + 1) * (np.log(xhat) - log_sum(logs, 1))
    sent = penalty * np.sum(xhat * np.exp(-log_u / tau))
    received = penalty * np.sum(x[rows] * np.exp(-log_v / tau))
    total = np.exp(log_sum(log_u + log_sum(logs, 1), 0)) / rho
    return penalty * (xhat.sum() + x.sum()) - sent - received - total


def residual(log_v, rows, cost, x, xhat, rho, penalty):
    """Return max |g| of spec section h, in the log domain."""
    phi = rho * penalty / (rho * penalty + 1)
    logs = -rho * cost[:, rows] - 1
    log_u = phi * (np.log(xhat) - log_sum(logs + log_v, 1))
    return np.abs(log_v - phi * (np.log(x[rows]) - log_sum(logs + log_u[:, None], 0))).max()


def brute_force(cost, x, xhat, rho, penalty):
    """Minimise over the logarithm of the plan, on the columns that can be reached."""
    rows = np.flatnonzero(x)
    shape = (len(xhat), len(rows))

    def objective(logs):
        T = np.exp(logs.reshape(shape))
        full = np.zeros(cost.shape)
        full[:, rows] = T
        gradient = (
            cost[:, rows]
            + (logs.reshape(shape) + 1) / rho
            + penalty * np.log(T.sum(axis=1) / xhat)[:, None]
            + penalty * np.log(T.sum(axis=0) / x[rows])
        )
        return value_of_plan(full, cost, x, xhat, rho, penalty), (gradient * T).ravel()

    start = np.log(np.outer(xhat, x[rows]) / x.sum() + 1e-6).ravel()
    options = {"maxiter": 5000, "maxfun": 50000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30}
    done = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return np.exp(done.x.reshape(shape)).sum(axis=1), done.fun


def fibres_of(X):
    return SparseFibres.from_matrix(X)
