"""The method in plain NumPy, dense and slow: the oracle of the tests."""

import numpy as np
from scipy.special import logsumexp

from polyad.tensor import fold, khatri_rao, unfold
from polyad.transport import cosine_cost


def column_marginals(cost, epsilon, penalty, x, xhat, sharpness=0.0):
    """Return the row sums of the optimal plan between a model column and a data column."""
    out = np.zeros_like(xhat)
    support, alive = x > 0, xhat > 0
    if not support.any() or not alive.any():
        return out
    tau = penalty / epsilon
    phi = tau / (tau + 1)
    log_x, log_xhat = np.log(x[support]), np.log(xhat[alive])
    # Relative to what the entropy is: the measure (xhat x' / m)^sharpness.
    reference = log_xhat[:, None] + log_x - np.log(x.sum())
    log_kernel = -cost[np.ix_(alive, support)] / epsilon - 1 + sharpness * (1 + reference)

    def residual(a):
        log_kv = logsumexp(log_kernel + a, axis=1)
        log_u = phi * (log_xhat - log_kv)
        log_ku = logsumexp(log_kernel + log_u[:, None], axis=0)
        return a - phi * (log_x - log_ku), log_kv, log_u, log_ku

    a = np.zeros(support.sum())
    found = residual(a)
    for _ in range(500):
        g, log_kv, log_u, log_ku = found
        if np.abs(g).max() < 1e-12:
            break
        rows = np.exp(log_kernel + a - log_kv[:, None])
        columns = np.exp(log_kernel + log_u[:, None] - log_ku)
        step = -np.linalg.solve(np.eye(len(a)) - phi**2 * columns.T @ rows, g)
        size = 1.0
        while True:
            found = residual(a + size * step)
            if np.abs(found[0]).max() < np.abs(g).max() or size < 1e-6:
                break
            size /= 2
        a = a + size * step
    out[alive] = np.exp(found[2] + found[1])
    return out


def marginals(X, model, costs, epsilon, penalty, sharpness=0.0):
    """Return the row marginals of each mode, as tensors."""
    found = []
    for mode, cost in enumerate(costs):
        if cost is None:
            tau = penalty / epsilon
            both = (X > 0) & (model > 0)
            own, theirs = np.where(both, X, 1.0), np.where(both, model, 1.0)
            logs = tau * np.log(own) + (tau + sharpness) * np.log(theirs) + sharpness - 1
            found.append(np.where(both, np.exp(logs / (1 + 2 * tau)), 0.0))
            continue
        data, columns = unfold(X, mode), unfold(model, mode)
        result = [
            column_marginals(cost, epsilon, penalty, x, xhat, sharpness)
            for x, xhat in zip(data.T, columns.T, strict=True)
        ]
        found.append(fold(np.array(result).T, mode, X.shape))
    return found


def model_of(factors):
    return fold(factors[0] @ khatri_rao(factors[1:]).T, 0, [len(f) for f in factors])


def objective(X, factors, costs, epsilon, penalty, sharpness=0.0):
    """Return eq. 7 at the optimal transports, in its closed form."""
    model = model_of(factors)
    moved = sum(part.sum() for part in marginals(X, model, costs, epsilon, penalty, sharpness))
    both = (penalty + sharpness * epsilon) * model.sum() + penalty * X.sum()
    return X.ndim * both - (2 * penalty + epsilon) * moved


def sweeps(X, factors, costs, weights, inner_iter):
    """Return the factors after the transports and some sweeps of multiplicative updates."""
    epsilon, penalty, sharpness = (*weights, 0.0)[:3]
    # The power by which marginals follow the model at least, in what bounds the objective.
    follow = (penalty + sharpness * epsilon) / (2 * penalty + epsilon)
    model = model_of(factors)
    total = sum(marginals(X, model, costs, *weights))
    total = np.divide(total, model**follow, out=np.zeros_like(model), where=model > 0)
    factors = list(factors)
    for _ in range(inner_iter):
        for mode in (*range(1, X.ndim), 0):
            others = [f for k, f in enumerate(factors) if k != mode]
            below = model_of(factors) ** (1 - follow)
            ratio = unfold(np.divide(total, below, out=np.zeros_like(below), where=below > 0), mode)
            step = ratio @ khatri_rao(others) / X.ndim / np.prod([f.sum(axis=0) for f in others], 0)
            factors[mode] = factors[mode] * step * (step ** (follow / (1 - follow))).clip(0.1, 10)
    return factors


def balanced(factors):
    """Return factors of the same model, the columns of a component equally long in all modes."""
    lengths = [np.linalg.norm(factor, axis=0) for factor in factors]
    common = np.prod(lengths, axis=0) ** (1 / len(factors))
    return [factor * common / length for factor, length in zip(factors, lengths, strict=True)]


def iterations(X, factors, costs, weights, inner_iter, n_iter):
    """Return the factors after some iterations, with the objective before each and at the end."""
    factors = last = balanced(factors)
    power, age, gain = 1.0, 0, 0.0
    found = [objective(X, factors, costs, *weights)]
    for _ in range(n_iter):
        swept = balanced(sweeps(X, factors, costs, weights, inner_iter))
        age += 1
        farther = []
        for new, old, before in zip(swept, factors, last, strict=True):
            # What is zero stays zero.
            again = (new / np.where(old > 0, old, 1)) ** power
            momentum = (new / np.where(before > 0, before, 1)) ** (age / (age + 5))
            farther.append(new * np.clip(again.clip(0.1, 10) * momentum.clip(0.1, 10), 0.1, 10))
        farther = balanced(farther)
        ends = [objective(X, end, costs, *weights) for end in (farther, swept)]
        is_good = found[-1] - ends[0] > 0.1 * gain
        last = swept
        if not is_good and ends[0] >= ends[1]:
            factors, power, age = swept, power / 2, 0
        else:
            factors, power = farther, min(1.4 * power, 1.0) if is_good else power
        found.append(ends[0] if factors is farther else ends[1])
        gain = found[-2] - found[-1]
    return factors, found


def small_data(shape=(12, 6, 5), seed=0, density=0.3):
    """Return counts with empty slices and fibres, and their cosine costs."""
    generator = np.random.default_rng(seed)
    factors = [generator.gamma(0.4, 1.0, (size, 3)) for size in shape]
    model = model_of(factors)
    X = generator.poisson(model * density * model.size / model.sum()).astype(float)
    X[2] = 0.0
    return X, [cosine_cost(X, mode) for mode in range(X.ndim)]


def start_for(X, rank=3, seed=1):
    generator = np.random.default_rng(seed)
    return [generator.uniform(0.2, 1.0, (size, rank)) for size in X.shape]
