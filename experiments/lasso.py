"""Lasso logistic regression along a path of strengths, fast for a few dozen features.

For each class against the rest and each strength C, from strong to weak penalties,

    minimise  C * sum_i log(1 + exp(f_i)) - t_i f_i  +  sum_j |w_j|,   f = b + X w,

by proximal Newton steps (Gram matrix, coordinate descent, line search), each started from the
solution before. The intercept b is not penalised. Classes that can be separated have no finite
solution at weak penalties: the number of steps is limited, for all features alike.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_MAX_STEPS = 40
_MAX_SWEEPS = 60
_TOLERANCE = 1e-6


class LassoPath:
    """The coefficients of all strengths.

    Parameters
    ----------
    strengths : sequence of float
        The values of C, from small (a strong penalty) to large.

    Attributes
    ----------
    classes_ : array
        The classes, sorted.
    coefficients_ : array of shape (n_strengths, n_classes, n_features + 1)
        The last number of each row is the intercept. Two classes have one row.
    """

    def __init__(self, strengths: tuple[float, ...]) -> None:
        self.strengths = strengths

    def fit(self, X: np.ndarray, y: np.ndarray) -> LassoPath:
        """Fit each class against the rest."""
        self.classes_ = np.unique(y)
        shown = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        design = np.ascontiguousarray(np.column_stack([X, np.ones(len(X))]), dtype=np.float64)
        C = np.asarray(self.strengths, dtype=np.float64)
        paths = [_path(design, (y == c).astype(np.float64), C) for c in shown]
        self.coefficients_ = np.stack(paths, axis=1)
        return self

    def decisions(self, X: np.ndarray) -> np.ndarray:
        """Return the linear scores, of shape (n_strengths, n_samples, n_classes or 1)."""
        w = self.coefficients_
        return np.einsum("ij,scj->sic", X, w[:, :, :-1]) + w[:, None, :, -1]

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the classes, of shape (n_strengths, n_samples)."""
        scores = self.decisions(X)
        if len(self.classes_) == 2:
            return self.classes_[(scores[:, :, 0] > 0).astype(int)]
        return self.classes_[scores.argmax(axis=2)]


def objective(X: np.ndarray, t: np.ndarray, w: np.ndarray, C: float) -> float:
    """Return the value that is minimised, for one class; the last of ``w`` is the intercept."""
    f = X @ w[:-1] + w[-1]
    return float(C * (np.logaddexp(0.0, f) - t * f).sum() + np.abs(w[:-1]).sum())


@njit(cache=True, nogil=True)
def _path(X, t, strengths):
    n, d = X.shape
    w = np.zeros(d)
    found = np.empty((len(strengths), d))
    for s in range(len(strengths)):
        C = strengths[s]
        f = X @ w
        value = _value(f, t, w, C)
        for _ in range(_MAX_STEPS):
            p = 1.0 / (1.0 + np.exp(-f))
            gradient = C * (X.T @ (p - t))
            weighted = X * np.sqrt(C * np.maximum(p * (1.0 - p), 1e-6)).reshape(n, 1)
            z = _quadratic(weighted.T @ weighted, gradient, w)
            move = z - w
            predicted = gradient @ move + np.abs(z[:-1]).sum() - np.abs(w[:-1]).sum()
            if predicted > -_TOLERANCE * value:
                break
            along = X @ move
            step, accepted = 1.0, False
            for _ in range(20):
                trial = w + step * move
                trial_value = _value(f + step * along, t, trial, C)
                if trial_value <= value + 0.01 * step * predicted:
                    accepted = True
                    break
                step *= 0.5
            if not accepted:
                break
            w, f, value = trial, f + step * along, trial_value
        found[s] = w
    return found


@njit(cache=True, nogil=True)
def _value(f, t, w, C):
    total = 0.0
    for i in range(len(f)):
        total += max(f[i], 0.0) + np.log1p(np.exp(-abs(f[i]))) - t[i] * f[i]
    return C * total + np.abs(w[:-1]).sum()


@njit(cache=True, nogil=True)
def _quadratic(H, gradient, w):
    """Minimise gradient @ (z - w) + (z - w)' H (z - w) / 2 + |z| by coordinate descent."""
    d = len(w)
    z = w.copy()
    slope = gradient.copy()
    for _ in range(_MAX_SWEEPS):
        largest = 0.0
        for j in range(d):
            h = H[j, j] + 1e-10
            target = z[j] - slope[j] / h
            if j < d - 1:
                target = np.sign(target) * max(abs(target) - 1.0 / h, 0.0)
            change = target - z[j]
            if change != 0.0:
                z[j] = target
                slope += change * H[j]
                largest = max(largest, h * change * change)
        if largest < 1e-9:
            break
    return z
