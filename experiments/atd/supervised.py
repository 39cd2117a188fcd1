"""Tensor methods that learn from labels alone, as the paper compares them (appendix D.8).

UMLDA (Lu, Plataniotis, Venetsanopoulos 2008): rank-one projections one after another, each of the
largest Fisher ratio among those that are not correlated with the ones before; 32 of them and a
logistic regression. A mode has as many such directions as entries: once those are used up (18
channels), its vector stays even. STL (Tao et al. 2005) for several classes: a rank-one tensor for
each class, by cross entropy.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

if TYPE_CHECKING:
    from collections.abc import Callable

    Classifier = Callable[[np.ndarray], np.ndarray]

_RIDGE = 1e-2


def umlda(tensors: np.ndarray, labels: np.ndarray, rank: int, *, rounds: int = 2) -> Classifier:
    """Return a classifier of tensors (samples, I, J, K)."""
    mean = tensors.mean(axis=0)
    about = tensors - mean
    projections: list[list[np.ndarray]] = []
    found = np.empty((len(tensors), 0))
    for _ in range(rank):
        vectors = [np.full(n, n**-0.5, tensors.dtype) for n in tensors.shape[1:]]
        for _ in range(rounds):
            for mode in range(3):
                own = _fisher_direction(_contracted(about, vectors, mode), labels, found)
                vectors[mode] = vectors[mode] if own is None else own.astype(tensors.dtype)
        projections.append(vectors)
        found = np.column_stack([found, _contracted(about, vectors, 0) @ vectors[0]])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(found, labels)

    def predict(new: np.ndarray) -> np.ndarray:
        moved = new - mean
        columns = [_contracted(moved, own, 0) @ own[0] for own in projections]
        return np.asarray(model.predict(np.column_stack(columns)))

    return predict


def _contracted(tensors: np.ndarray, vectors: list[np.ndarray], mode: int) -> np.ndarray:
    """Return tensors times the vectors of all modes but one: (samples, entries of it)."""
    n, i, j, k = tensors.shape
    if mode == 2:
        first = vectors[0] @ tensors.reshape(n, i, j * k)
        return np.asarray(vectors[1] @ first.reshape(n, j, k))
    last = (tensors.reshape(-1, k) @ vectors[2]).reshape(n, i, j)
    return np.asarray(last @ vectors[1] if mode == 0 else vectors[0] @ last)


def _fisher_direction(
    rows: np.ndarray, labels: np.ndarray, before: np.ndarray
) -> np.ndarray | None:
    """Return the direction of the largest Fisher ratio that is not correlated with features."""
    rows = rows - rows.mean(axis=0)
    free = np.eye(rows.shape[1])
    if before.shape[1]:
        if before.shape[1] >= rows.shape[1]:
            return None
        free = scipy.linalg.null_space((rows.T @ before).T, rcond=1e-9)
        if not free.size:
            return None
    rows = rows @ free
    means = np.stack([rows[labels == name].mean(axis=0) for name in labels])
    between, within = means.T @ means, (rows - means).T @ (rows - means)
    ridge = _RIDGE * (np.trace(within) + np.trace(between)) / len(within)
    _, vectors = scipy.linalg.eigh(between, within + (ridge + 1e-12) * np.eye(len(within)))
    best = free @ vectors[:, -1]
    return np.asarray(best / np.linalg.norm(best))


def stl(tensors: np.ndarray, labels: np.ndarray, *, seed: int, max_iter: int = 60) -> Classifier:
    """Return a classifier with a rank-one tensor for each class."""
    names, numbers = np.unique(labels, return_inverse=True)
    mean = tensors.mean(axis=0)
    scale = float(np.sqrt(np.mean((tensors - mean) ** 2) * mean.size))
    flat = ((tensors - mean) / scale).reshape(len(tensors), -1)
    shape, n_classes = tensors.shape[1:], len(names)
    edges = np.cumsum([n_classes * n for n in shape])
    rng = np.random.default_rng(seed)
    begin = np.concatenate([rng.standard_normal(edges[-1]), np.zeros(n_classes)])
    hot = np.eye(n_classes)[numbers]

    def unpacked(x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        parts = np.split(x[: edges[-1]], edges[:-1])
        return [own.reshape(n_classes, -1) for own in parts], x[edges[-1] :]

    def logits(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        (a, b, c), offset = unpacked(x)
        basis = np.einsum("ri,rj,rk->rijk", a, b, c, optimize=True).reshape(n_classes, -1)
        return np.asarray(rows @ basis.T.astype(rows.dtype) + offset)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        (a, b, c), _ = unpacked(x)
        found = logits(flat, x)
        total = logsumexp(found, axis=1)
        error = (np.exp(found - total[:, None]) - hot) / len(flat)
        slope = (error.T.astype(flat.dtype) @ flat).reshape(n_classes, *shape)
        slopes = [
            np.einsum("rijk,rj,rk->ri", slope, b, c, optimize=True),
            np.einsum("rijk,ri,rk->rj", slope, a, c, optimize=True),
            np.einsum("rijk,ri,rj->rk", slope, a, b, optimize=True),
        ]
        ridge = 1e-4 * x[: edges[-1]]
        gradient = np.concatenate(
            [np.concatenate([s.ravel() for s in slopes]) + ridge, error.sum(axis=0)]
        )
        value = float(np.mean(total - np.sum(found * hot, axis=1))) + 0.5 * float(
            ridge @ x[: edges[-1]]
        )
        return value, gradient

    best = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": max_iter}).x
    return lambda new: names[
        logits(((new - mean) / scale).reshape(len(new), -1), best).argmax(axis=1)
    ]
