"""The model of a crowd as a reader would write it down: loops, no logarithms saved, no matrices."""

import itertools
import math

import numpy as np
from scipy.special import digamma, gammaln


def planted(n_items=60, n_workers=7, n_classes=3, share=0.6, right=0.75, seed=0):
    """Return items, workers, labels and the true classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_classes, size=n_items)
    tables = np.full((n_workers, n_classes, n_classes), (1 - right) / (n_classes - 1))
    tables[:, np.arange(n_classes), np.arange(n_classes)] = right
    tables = np.array([[rng.dirichlet(8 * row + 0.05) for row in table] for table in tables])
    asked = np.argwhere(rng.random((n_items, n_workers)) < share)
    labels = [rng.choice(n_classes, p=tables[w, truth[i]]) for i, w in asked]
    return asked[:, 0], asked[:, 1], np.array(labels), truth


def em_step(items, workers, labels, q, n_workers):
    """One round without a prior: shares and tables from posteriors, then posteriors."""
    n_items, n_classes = q.shape
    shares = [sum(q[i, k] for i in range(n_items)) / n_items for k in range(n_classes)]
    counts = np.zeros((n_workers, n_classes, n_classes))
    for i, w, c in zip(items, workers, labels, strict=True):
        for k in range(n_classes):
            counts[w, k, c] += q[i, k]
    tables = counts / counts.sum(axis=2, keepdims=True)
    new, likelihood = np.zeros_like(q), 0.0
    for i in range(n_items):
        for k in range(n_classes):
            own = [
                tables[w, k, c] for j, w, c in zip(items, workers, labels, strict=True) if i == j
            ]
            new[i, k] = shares[k] * math.prod(own)
        likelihood += math.log(new[i].sum())
        new[i] /= new[i].sum()
    return new, likelihood, counts


def marginal_bound(counts, prior, logs):
    """Minus the KL divergences of Dirichlet(counts + prior) from Dirichlet(prior), row by row."""
    total = 0.0
    for worker in counts:
        for own, before in zip(worker.T, prior.T, strict=True):  # the row of a class
            after = own + before
            total -= gammaln(after.sum()) - gammaln(after).sum()
            total += gammaln(before.sum()) - gammaln(before).sum()
            total -= ((after - before) * (digamma(after) - digamma(after.sum()))).sum()
    return total


def enumerated(items, workers, labels, tables, shares, n_items):
    """Posteriors by adding up the probability of every assignment of classes to items."""
    n_classes = len(shares)
    sums = np.zeros((n_items, n_classes))
    for classes in itertools.product(range(n_classes), repeat=n_items):
        own = math.prod(shares[k] for k in classes)
        for i, w, c in zip(items, workers, labels, strict=True):
            own *= tables[w, classes[i], c]
        for i, k in enumerate(classes):
            sums[i, k] += own
    return sums / sums.sum(axis=1, keepdims=True), math.log(sums[0].sum())
