"""MeanQMF: the mean of the reconstructions of several fits of QMF."""

from __future__ import annotations

from copy import copy
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import to_numpy
from polyad.core.sklearn_compat import Interval, fit_context, output_config
from polyad.data.validation import read_features
from polyad.exceptions import InvalidInputError
from polyad.fitting import Status
from polyad.quantile.estimator import QMF

if TYPE_CHECKING:
    from polyad.core.arrays import Array


class MeanQMF(MetaEstimatorMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The mean of the reconstructions of several fits of :class:`~polyad.QMF`.

    Fits from different starts differ most where samples are few. For a convex divergence their mean
    is never farther from the data than they are on average; most often it is closer to new samples
    than any of them, and predicts missing entries better. A sample has the scores of all fits. To
    read components, take one fit.

    Parameters
    ----------
    estimator : QMF
        Cloned for each fit, with a seed of its own in place of its ``random_state``.
    n_fits : int, default=4
        The number of fits. Each takes as long as one of ``estimator``.
    random_state : int, RandomState instance or None, default=None
        Where the seeds of the fits come from.

    Attributes
    ----------
    estimators_ : list of QMF
        The fits. Each can be read, drawn and saved by itself. Ctrl-C ends the one that is under
        way, and no further one begins.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import QMF
    >>> from polyad.quantile import MeanQMF
    >>> rng = np.random.default_rng(0)
    >>> W = rng.gamma(1.0, size=(40, 2)) @ rng.gamma(1.0, size=(2, 12))
    >>> X = W ** rng.uniform(0.5, 4.0, size=12)
    >>> model = MeanQMF(QMF(2, tol=1e-2), n_fits=2, random_state=0).fit(X[:30])
    >>> model.transform(X[30:]).shape
    (10, 4)
    >>> bool(model.score(X[30:]) > max(one.score(X[30:]) for one in model.estimators_))
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [QMF],
        "n_fits": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: QMF,
        *,
        n_fits: int = 4,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_fits = n_fits
        self.random_state = random_state

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit from several starts to samples (n_samples, n_features); NaN marks missing entries."""
        if self.estimator.checkpoint is not None:
            message = (
                "estimator has a checkpoint, which all fits would write to. Use checkpoint=None, "
                "or fit them one by one."
            )
            raise InvalidInputError(message)
        generator = check_random_state(self.random_state)
        seeds = generator.randint(2**31 - 1, size=int(self.n_fits)).tolist()
        models = [clone(self.estimator).set_params(random_state=seed) for seed in seeds]
        fitted = []
        for model in models:
            fitted.append(model.fit(X))
            if model.status_ is Status.INTERRUPTED:
                break
        self.estimators_ = fitted
        return self

    def transform(self, X: Any) -> Any:
        """Return the scores of samples in all fits (n_samples, n_fits * n_components), in turn."""
        check_is_fitted(self)
        tables = output_config("transform", self)["dense"] == "pandas"
        # Tables of the fits know the labels of samples, also those of tensors.
        models = [
            copy(model).set_output(transform="pandas" if tables else "default")
            for model in self.estimators_
        ]
        parts = [model.transform(X) for model in models]
        if not tables:
            return np.concatenate(parts, axis=1)
        import pandas as pd

        return pd.concat(parts, axis=1).set_axis(self.get_feature_names_out(), axis=1)

    def inverse_transform(self, X: Any) -> Array:
        """Return the mean of what the scores of each fit stand for, in the unit of the data."""
        check_is_fitted(self)
        scores = np.asarray(to_numpy(read_features(X, self._n_features_out)))
        parts = np.split(scores, len(self.estimators_), axis=1)
        pairs = zip(self.estimators_, parts, strict=True)
        mean: Array = np.mean([model.inverse_transform(part) for model, part in pairs], axis=0)
        return mean

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the mean divergence of samples from the mean of their reconstructions.

        The scores of the samples are fitted to those samples.
        """
        check_is_fitted(self)
        first = self.estimators_[0]
        table = first._read_new(first._validate_new(X))
        parts = [
            model.inverse_transform(np.asarray(model.transform(X))) for model in self.estimators_
        ]
        mean = np.mean(parts, axis=0, dtype=np.float64).T
        return float(-table.divergence_sum(mean, slice(None)) / max(table.n_observed, 1))

    @property
    def n_features_in_(self) -> int:
        """The number of features."""
        return int(self.estimators_[0].n_features_in_)

    @property
    def feature_names_in_(self) -> Any:
        """The names of the columns of a table that the fits were made of."""
        return self.estimators_[0].feature_names_in_

    @property
    def _n_features_out(self) -> int:
        return sum(model.weights_.shape[0] for model in self.estimators_)

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), self.estimator.__sklearn_tags__()
        tags.input_tags = own.input_tags
        tags.transformer_tags = own.transformer_tags
        return tags
