"""Plain NumPy twins of what the kernels compute."""

import numpy as np


def logsumexp(a, axis, keepdims=False):
    """Return what SciPy's function of this name does, with a tenth of its overhead."""
    top = a.max(axis=axis, keepdims=True)
    result = top + np.log(np.exp(a - top).sum(axis=axis, keepdims=True))
    return result if keepdims else result.squeeze(axis)


def squashed(w, a):
    mean = (a * w).sum()
    deviation = np.sqrt((a * (w - mean) ** 2).sum())
    standard = (w - mean) / deviation if deviation > 0 else np.zeros_like(w)
    return 1 / (1 + np.exp(-np.pi / np.sqrt(3) * standard))


def transported(w, a, b, q, epsilon, n_iter=20000):
    """Return T(w) of one feature by Sinkhorn iterations in the logarithmic domain."""
    s, y = squashed(w, a), np.linspace(0, 1, len(b))
    cost = (s[:, None] - y) ** 2 / epsilon
    g = np.zeros(len(b))
    for _ in range(n_iter):
        f = -logsumexp(g + np.log(b) - cost, axis=1)
        new = -logsumexp(f[:, None] + np.log(a)[:, None] - cost, axis=0)
        if np.abs(new - g).max() < 1e-14:
            break
        g = new
    logits = g + np.log(b) - cost
    return np.exp(logits - logsumexp(logits, axis=1, keepdims=True)) @ q


def qmf_loss(X, loadings, scores, gaps, logits, epsilon=0.01, ridge=0.0):
    """Return the objective of QMF with the Kullback-Leibler divergence; ``X`` has features
    first."""
    softmax = lambda z: np.exp(z - logsumexp(z, axis=1, keepdims=True))  # noqa: E731
    guard = 1e-8 * X.max(axis=1, keepdims=True)
    low, high = X.min(axis=1, keepdims=True), X.max(axis=1, keepdims=True)
    levels = np.cumsum(softmax(gaps), axis=1)
    q = low + (high - low) * np.concatenate([np.zeros_like(low), levels], axis=1)
    a = np.full(X.shape[1], 1 / X.shape[1])
    W = np.exp(loadings) @ np.exp(scores)
    B = softmax(logits)
    Y = np.stack([transported(W[i], a, B[i], q[i], epsilon) for i in range(len(X))])
    kl = lambda x, y: x * np.log(x / y) - x + y  # noqa: E731
    unit = kl(X + guard, X.mean(axis=1, keepdims=True) + guard).mean()
    squares = (loadings**2).mean() + (scores**2).mean()
    return kl(X + guard, Y + guard).mean() + 0.5 * ridge * unit * squares
