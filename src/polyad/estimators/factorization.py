"""Factorization: how every estimator that gives features of samples fits and transforms.

A room, a folder such as ``cp/``, says five things: what its data is (``_read``), what
minimises it (``_solver``), where that begins (``_begin``), what is learned (``_learned``), and what
the features of samples are (``_features``). How the fit runs is in ``estimators/iterative.py``;
warm starts and features are here, without mathematics.
"""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.sklearn_compat import Interval, output_config
from polyad.core.threads import thread_limit
from polyad.estimators.documentation import documented
from polyad.estimators.iterative import ITERATION_CONSTRAINTS, IterativeEstimator

if TYPE_CHECKING:
    import numpy as np

    from polyad.data.readers import TensorInput

#: The constraints of the parameters that every factorization has.
FIT_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "warm_start": ["boolean"],
    **ITERATION_CONSTRAINTS,
}


@documented
class Factorization(ClassNamePrefixFeaturesOutMixin, TransformerMixin, IterativeEstimator):
    """Base of the estimators that are fitted by iterations and give features of samples."""

    if TYPE_CHECKING:
        n_components: int
        warm_start: bool

    # The fifth thing that a room gives.

    @abstractmethod
    def _features(self, problem: Any, learned: Any) -> Array:
        """Return the features of the samples of a problem."""

    # What a room may change.

    def _read_new(self, given: TensorInput) -> Any:
        """Return the problem of new samples, by default as that of a fit."""
        return self._read(given, None)

    @property
    def _goes_on(self) -> bool:
        """Whether a fit goes on from the one before."""
        return bool(self.warm_start) and self.__sklearn_is_fitted__()

    @property
    @abstractmethod
    def _features_of_fit(self) -> Array:
        """The features of the samples of the fit."""

    def fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Factorize samples.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            Dense, sparse or labelled data; mode 0 holds the samples. NaN marks missing entries of
            dense data, where the class takes them.
        {y, mask}
        """
        self._fit(X, mask)
        self._report_ending()
        return self

    def fit_transform(self, X: Any, y: Any = None, *, mask: Any = None) -> Array:
        """Factorize samples and return their features.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            The data, as in ``fit``.
        {y, mask}

        Returns
        -------
        array of shape (n_samples, n_components)
            The features of each sample; of components, its row of factors times the weights.
        """
        self._fit(X, mask)
        self._report_ending()
        return self._named(self._features_of_fit, self.labels_[0])

    def transform(self, X: Any, *, mask: Any = None) -> Array:
        """Return the features of new samples, with everything else held as it was learned.

        Parameters
        ----------
        {X, mask}

        Returns
        -------
        array of shape (n_samples, n_components)
            The best coefficients of each sample on ``components_``.
        """
        return self._named(*self._transformed(X, mask))

    def _transformed(self, X: Any, mask: Any) -> tuple[Array, np.ndarray | None]:
        """Return the features of new samples, and their labels."""
        given = self._validate_new(X, mask=mask, for_features=True)
        with thread_limit(self.n_jobs):
            return self._features(self._read_new(given), self._model()), given.labels[0]

    def _named(self, features: Array, labels: np.ndarray | None) -> Any:
        """Give features the labels of their samples, if ``set_output`` asks for a pandas table.

        scikit-learn, which turns features into tables, does not know labels of tensors. Numbers
        below the rounding of the largest feature of a sample are zero: 3e-46 says nothing else.
        """
        xp = namespace_of(features)
        sizes = xp.abs(features)
        rounding = xp.finfo(features.dtype).eps * xp.max(sizes, axis=1, keepdims=True)
        features = xp.where(sizes < rounding, xp.zeros_like(features), features)
        if labels is None or output_config("transform", self)["dense"] != "pandas":
            return features
        import pandas as pd

        index = pd.Index(labels, name=None if self.modes_ is None else self.modes_[0])
        return pd.DataFrame(to_numpy(features), index=index, columns=self.get_feature_names_out())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
