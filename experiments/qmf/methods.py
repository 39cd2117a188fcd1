"""Factorizations of nonnegative matrices, all judged by the divergence of the data in its own unit.

Every method gives features of the samples and a reconstruction of the data, of the samples it was
fitted to and of new ones.

Baselines are helped where that is possible without a second thought: the inverse of a fixed
transform is followed by the factor that makes the divergence of each feature smallest (their sums
agree then), and reconstructions are kept in the range of their feature, which QMF knows too.
Neither can raise the divergence of the data that was fitted, but for zeros, whose reconstruction is
half of the smallest positive entry of their feature at least. Reconstructions of new samples may
leave the range, as the new samples may, but stay positive.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from scipy.stats import rankdata
from sklearn.decomposition import NMF
from sklearn.isotonic import IsotonicRegression

from experiments.qmf.curves import make_model, mean_divergence

Fitted = tuple[np.ndarray, np.ndarray]


class Method(Protocol):
    """A factorization: ``fit`` and ``apply`` return features and reconstruction of samples."""

    def fit(self, X: np.ndarray) -> Fitted:
        """Factorize some samples."""
        ...

    def apply(self, X: np.ndarray) -> Fitted:
        """Project new samples."""
        ...


class Transform(Protocol):
    """A fixed transform of the data, and its inverse."""

    def fit(self, X: np.ndarray) -> None:
        """Learn what the transform needs from the training samples."""
        ...

    def forward(self, X: np.ndarray) -> np.ndarray:
        """Transform samples; the result is not negative."""
        ...

    def backward(self, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return transformed samples in the unit of the data; of X only totals may be used."""
        ...


class Identity:
    """No transform."""

    def fit(self, X: np.ndarray) -> None:
        """Learn nothing."""

    def forward(self, X: np.ndarray) -> np.ndarray:
        """Return the samples."""
        return X

    def backward(self, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the samples."""
        return Z


class Logarithm:
    """The logarithm of one plus the data over a unit.

    Parameters
    ----------
    unit : float
        As a part of the mean of the data.
    """

    def __init__(self, unit: float) -> None:
        self.unit = unit

    def fit(self, X: np.ndarray) -> None:
        """Learn the mean."""
        self.unit_ = self.unit * float(X.mean())

    def forward(self, X: np.ndarray) -> np.ndarray:
        """Take logarithms."""
        return np.log1p(X / self.unit_)

    def backward(self, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Take exponentials."""
        return np.expm1(Z) * self.unit_


class Ranks:
    """The rank of an entry among the training samples, over their number, and their quantiles."""

    def fit(self, X: np.ndarray) -> None:
        """Learn the values of each feature and their ranks; equal values share their mean rank."""
        order = np.argsort(X, axis=0, kind="stable")
        self.values_ = np.take_along_axis(X, order, axis=0).T
        self.ranks_ = np.array([rankdata(row) for row in self.values_]) / len(X)

    def forward(self, X: np.ndarray) -> np.ndarray:
        """Return ranks, between those of the neighbours for values that did not occur."""
        pairs = zip(X.T, self.values_, self.ranks_, strict=True)
        return np.stack([np.interp(x, *_distinct(v, r)) for x, v, r in pairs], axis=1)

    def backward(self, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the quantiles at some ranks, between those of the neighbours."""
        pairs = zip(Z.T, self.ranks_, self.values_, strict=True)
        return np.stack([np.interp(z, *_distinct(r, v)) for z, r, v in pairs], axis=1)


def _distinct(first: np.ndarray, second: np.ndarray) -> Fitted:
    """Return pairs whose first entries differ."""
    kept = np.flatnonzero(np.diff(first, prepend=-np.inf) > 0)
    return first[kept], second[kept]


class Frequencies:
    """Shares of a sample times the inverse frequency of a feature (tf-idf).

    All features are present in all samples here: how frequent a feature is, is told by its mean
    share, relative to the mean over features, in place of the number of samples that have it. The
    inverse is given the total of each sample.
    """

    def fit(self, X: np.ndarray) -> None:
        """Learn how frequent each feature is."""
        shares = self._shares(X).mean(axis=0) * X.shape[1]
        self.weights_ = np.log1p(1.0 / np.maximum(shares, 1e-6))

    def forward(self, X: np.ndarray) -> np.ndarray:
        """Return weighted shares, around one."""
        return self._shares(X) * X.shape[1] * self.weights_

    def backward(self, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Undo weights and shares."""
        return Z / self.weights_ / X.shape[1] * X.sum(axis=1, keepdims=True)

    def _shares(self, X: np.ndarray) -> np.ndarray:
        shares: np.ndarray = X / X.sum(axis=1, keepdims=True)
        return shares


class FactorizedTransform:
    """Nonnegative factors of transformed data, for the Kullback-Leibler divergence (scikit-learn).

    The better of two starts counts: from a singular value decomposition, and at random.

    Parameters
    ----------
    transforms : sequence of Transform
        Of several, the one with the lowest divergence of the data is kept.
    rank, seed : int
        The number of components, and the seed of the start.
    max_iter : int
        The largest number of iterations.
    monotone : bool
        Whether the way back ends with the best of all increasing functions of each feature, in
        place of the best factor.
    """

    def __init__(
        self,
        transforms: tuple[Transform, ...],
        rank: int,
        seed: int,
        *,
        max_iter: int = 1000,
        monotone: bool = False,
    ) -> None:
        self.transforms = transforms
        self.rank = rank
        self.seed = seed
        self.max_iter = max_iter
        self.monotone = monotone

    def fit(self, X: np.ndarray) -> Fitted:
        """Factorize some samples."""
        lowest = np.inf
        for transform in self.transforms:
            transform.fit(X)
            Z = transform.forward(X)
            for init in ("nndsvda", "random"):
                model = NMF(
                    self.rank,
                    init=init,
                    solver="mu",
                    beta_loss="kullback-leibler",
                    max_iter=self.max_iter,
                    tol=1e-6,
                    random_state=self.seed,
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of not having converged
                    scores = model.fit_transform(Z)
                back = Back(monotone=self.monotone)
                found = back.fit(X, transform.backward(scores @ model.components_, X))
                divergence = mean_divergence(X, found)
                if divergence < lowest:
                    lowest, result = divergence, (scores, found)
                    self.transform_, self.model_, self.back_ = transform, model, back
        return result

    def apply(self, X: np.ndarray) -> Fitted:
        """Project new samples."""
        scores = self.model_.transform(self.transform_.forward(X))
        raw = self.transform_.backward(scores @ self.model_.components_, X)
        return scores, self.back_.apply(raw)


class TruncatedSVD:
    """The singular value decomposition of the data, without centring.

    Parameters
    ----------
    rank : int
        The number of components.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def fit(self, X: np.ndarray) -> Fitted:
        """Factorize some samples."""
        self.components_ = np.linalg.svd(X, full_matrices=False)[2][: self.rank]
        self.back_ = Back()
        scores = X @ self.components_.T
        return scores, self.back_.fit(X, scores @ self.components_)

    def apply(self, X: np.ndarray) -> Fitted:
        """Project new samples."""
        scores = X @ self.components_.T
        return scores, self.back_.apply(scores @ self.components_)


class Back:
    """The last step of a reconstruction: the best factor of each feature, then its range.

    Parameters
    ----------
    monotone : bool
        Whether the best increasing function takes the place of the factor.
    """

    def __init__(self, *, monotone: bool = False) -> None:
        self.monotone = monotone

    def fit(self, X: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Learn from the training samples and their raw reconstruction; return the final one."""
        low, high = X.min(axis=0), X.max(axis=0)
        positive = np.where(X > 0, X, np.inf).min(axis=0)
        self.floor_ = np.where(np.isfinite(positive), 0.5 * positive, 0.0)
        low = np.where(low > 0, low, self.floor_)
        if self.monotone:
            pairs = zip(raw.T, X.T, strict=True)
            self.functions_ = [
                IsotonicRegression(out_of_bounds="clip").fit(before, after)
                for before, after in pairs
            ]
        else:
            total = np.maximum(raw, self.floor_).sum(axis=0)
            self.factors_ = X.sum(axis=0) / np.maximum(total, np.finfo(float).tiny)
        return np.clip(self.apply(raw), low, high)

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Return the final reconstruction of new samples, which may leave the range."""
        if self.monotone:
            columns = [f.predict(row) for f, row in zip(self.functions_, raw.T, strict=True)]
            found = np.stack(columns, axis=1)
        else:
            found = np.maximum(raw, self.floor_) * self.factors_
        return np.maximum(found, self.floor_)


class Quantile:
    """QMF or QMFQ.

    Parameters
    ----------
    name : {'QMF', 'QMFQ'}
        Which of them.
    rank, seed : int
        The number of components, and the seed of the start.
    parameters : dict
        Of the estimator.
    """

    def __init__(self, name: str, rank: int, seed: int, parameters: dict[str, Any]) -> None:
        self.model_ = make_model(name, rank, seed, parameters)

    def fit(self, X: np.ndarray) -> Fitted:
        """Factorize some samples."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of not having converged: it is recorded
            scores = self.model_.fit_transform(X)
        return scores, self.model_.inverse_transform(scores)

    def apply(self, X: np.ndarray) -> Fitted:
        """Project new samples."""
        scores = self.model_.transform(X)
        return scores, self.model_.inverse_transform(scores)
