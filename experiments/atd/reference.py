"""What the published program of ATD computes, kept for comparison: not the rule that is derived.

Written after reading the program (github ycq091044/ATD). Where it differs from the paper (N samples
in a batch, R components): the pull between samples and twins has the weight 1/N off the diagonal
and -0.01 on it; only the first R samples of a batch feel it; its projector is the identity less a
matrix of ones; both sets of rows are moved from where the other began; each factor meets the others
as they were averaged.
"""

from __future__ import annotations

import numpy as np


def pulled_rows(
    products: np.ndarray, rows: np.ndarray, twins: np.ndarray, inverse: np.ndarray, epsilon: float
) -> np.ndarray:
    """Return the rows of a batch after the published step of self-supervision."""
    n, rank = rows.shape
    first = min(n, rank)
    units = twins / np.linalg.norm(twins, axis=1, keepdims=True)
    pull = units.mean(axis=0) - (1 / n + 0.01) * units[:first]
    # A row times the identity less ones: each entry less the sum of all.
    pull = pull - pull.sum(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows[:first], axis=1, keepdims=True)
    moved = rows.copy()
    moved[:first] = (products[:first] - epsilon / lengths * pull) @ inverse
    return moved


def published_step(
    factors: list[np.ndarray],
    samples: np.ndarray,
    twins: np.ndarray,
    rate: float,
    *,
    alpha: float = 1e-3,
    epsilon: float = 2.0,
) -> list[np.ndarray]:
    """Return the three factors after one batch and its twins: (samples, I, J, K) each."""
    rank = factors[0].shape[1]
    ridge = alpha * np.eye(rank)
    basis = np.einsum("ir,jr,kr->ijkr", *factors, optimize=True).reshape(-1, rank)
    flat = [own.reshape(len(own), -1) for own in (samples, twins)]
    products = [own @ basis for own in flat]
    grams = [factor.T @ factor for factor in factors]
    inverse = np.linalg.inv(grams[0] * grams[1] * grams[2] + ridge)
    begun = [own @ inverse for own in products]
    rows = [
        pulled_rows(products[k], begun[k], begun[1 - k], inverse, epsilon).astype(samples.dtype)
        for k in (0, 1)
    ]
    contracted = (rows[0].T @ flat[0] + rows[1].T @ flat[1]).reshape(rank, *samples.shape[1:])
    cross = rows[0].T @ rows[0] + rows[1].T @ rows[1]
    for mode, letters in enumerate(("rijk,jr,kr->ir", "rijk,ir,kr->jr", "rijk,ir,jr->kr")):
        others = [factors[k] for k in range(3) if k != mode]
        rhs = np.einsum(letters, contracted, *others, optimize=True)
        normal = cross * (others[0].T @ others[0]) * (others[1].T @ others[1]) + ridge
        best = np.linalg.solve(normal, rhs.T).T
        factors = list(factors)
        factors[mode] = ((1 - rate) * factors[mode] + rate * best).astype(samples.dtype)
    return factors


def ridge_rows(samples: np.ndarray, factors: list[np.ndarray], alpha: float = 1e-3) -> np.ndarray:
    """Return the features of samples (eq. 2): the ridge projection on the components."""
    rank = factors[0].shape[1]
    basis = np.einsum("ir,jr,kr->ijkr", *factors, optimize=True).reshape(-1, rank)
    gram = (basis.T @ basis).astype(np.float64)
    products = samples.reshape(len(samples), -1) @ basis
    return np.linalg.solve(gram + alpha * np.eye(rank), products.T.astype(np.float64)).T
