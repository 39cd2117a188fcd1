"""KruskalResult: what users read from a model that is a sum of components."""

from __future__ import annotations

import dataclasses
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.data.validation import read_features
from polyad.estimators import saving
from polyad.estimators.base import Learned, PolyadEstimator
from polyad.exceptions import InvalidInputError, ModelFileError
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

# The largest dense array that a method makes unasked, in numbers (4 GiB of float64).
_LARGEST_DENSE = 2**29


@dataclasses.dataclass(frozen=True, kw_only=True)
class KruskalLearned(Learned):
    """Components: a factor for each mode, with a weight for each column."""

    factors_: list[Array] = saving.attribute(saving.per_mode(saving.array("n", "R")))
    weights_: Array = saving.attribute(saving.array("R", low=0.0))


class KruskalResult(PolyadEstimator):
    """Base of the estimators that learn components."""

    _score_name: ClassVar[str] = "explained variation"
    _max_iter_advice: ClassVar[str] = (
        " If weights_ keep growing, components cancel each other: fewer components stop that, and "
        "so does a small ridge in estimators that have one."
    )
    _learns = KruskalLearned

    factors_: list[Array]
    weights_: Array

    @property
    def _values_are_means(self) -> bool:
        """Whether the values of ``kruskal_`` are means of the data, and not odds or logarithms."""
        return True

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        return tuple(int(factor.shape[0]) for factor in self.factors_)

    @property
    def _n_features_out(self) -> int:
        return int(self.weights_.shape[0])

    @property
    def _features_of_fit(self) -> Array:
        """The features of the samples of the fit."""
        return self.factors_[0] * self.weights_[None, :]

    @property
    def kruskal_(self) -> KruskalTensor:
        """The decomposition as one object, which unpacks as ``weights, factors``."""
        check_is_fitted(self)
        return KruskalTensor(self.weights_, self.factors_)

    @property
    def components_(self) -> Array:
        """The pattern of each component over the modes other than the samples.

        An array of shape ``(n_components, *shape[1:])``, such that ``transform(X) @ components_``
        approximates a matrix ``X``.
        """
        check_is_fitted(self, "factors_")
        tail = self.factors_[1:]
        n_components = int(self.weights_.shape[0])
        self._check_dense_size((n_components, *(int(f.shape[0]) for f in tail)), "components_")
        xp = namespace_of(self.weights_)
        selector = xp.eye(n_components, dtype=self.weights_.dtype)
        return kruskal_to_dense(xp.ones_like(self.weights_), [selector, *tail])

    def factor_table(self, mode: int | str) -> pd.DataFrame:
        """Return the factor of a mode as a table: one row per label, one column per component.

        Parameters
        ----------
        mode : int or str
            The number or the name of the mode.
        """
        import pandas as pd

        number = self._mode_number(mode)
        labels = self.labels_[number]
        factor = to_numpy(self.factors_[number])
        index = pd.Index(np.arange(factor.shape[0]) if labels is None else labels)
        index.name = None if self.modes_ is None else self.modes_[number]
        return pd.DataFrame(factor, index=index, columns=self._component_names())

    def _component_names(self) -> NDArray[np.object_]:
        """Return the names of the components: those of the features, if these are the same."""
        names: NDArray[np.object_] = self.get_feature_names_out()
        return names

    def top(self, component: int, mode: int | str, k: int = 10) -> pd.Series:
        """Return the ``k`` labels of a mode with the largest entries in a component.

        Parameters
        ----------
        component : int
            The number of the component.
        mode : int or str
            The number or the name of the mode.
        k : int
            How many labels; the largest by absolute value come first.
        """
        table = self.factor_table(mode)
        n_components = table.shape[1]
        if not _is_whole(component) or not 0 <= component < n_components:
            message = f"component={component!r} does not exist; there are 0..{n_components - 1}."
            raise InvalidInputError(message)
        if not _is_whole(k) or k < 0:
            message = f"k={k!r} is not a number of labels; give a whole number of zero or more."
            raise InvalidInputError(message)
        column = table.iloc[:, component]
        order = np.argsort(-np.abs(column.to_numpy()), kind="stable")[:k]
        return column.iloc[order]

    def _mode_number(self, mode: int | str) -> int:
        check_is_fitted(self)
        n_modes = len(self.factors_)
        if isinstance(mode, str):
            if self.modes_ is not None and mode in self.modes_:
                return self.modes_.index(mode)
            names = "none" if self.modes_ is None else ", ".join(map(repr, self.modes_))
            message = f"mode={mode!r} is not a name of a mode; the names are: {names}."
            raise InvalidInputError(message)
        if not _is_whole(mode) or not -n_modes <= mode < n_modes:
            message = f"mode={mode!r} does not exist; there are 0..{n_modes - 1}."
            raise InvalidInputError(message)
        return mode % n_modes

    def _check_dense_size(self, shape: Sequence[int], what: str) -> None:
        """Refuse to make an array that would not fit, and say what to use instead."""
        size = 1
        for n in shape:
            size *= int(n)
        if size > _LARGEST_DENSE:
            message = (
                f"{what} of shape {tuple(shape)} would take {size * 8 / 2**30:.3g} GiB. Use the "
                "factors (factors_, factor_table) or single entries (kruskal_.values_at(coords))."
            )
            raise InvalidInputError(message)

    def inverse_transform(self, X: Array) -> Array:
        """Return the samples that features stand for.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Features, as ``transform`` returns them.

        Returns
        -------
        array of shape (n_samples, n_1, ...)
            The sum of the components, each times its feature.
        """
        check_is_fitted(self)
        features = read_features(X, int(self.weights_.shape[0]))
        xp = namespace_of(self.weights_)
        rows = xp.asarray(features, dtype=self.weights_.dtype)
        shape = [int(rows.shape[0]), *(int(factor.shape[0]) for factor in self.factors_[1:])]
        self._check_dense_size(shape, "inverse_transform")
        return kruskal_to_dense(xp.ones_like(self.weights_), [rows, *self.factors_[1:]])

    # The loss of single entries, for the choice of the rank. Methods whose loss is not the squared
    # error override some of the next three.

    def _entry_values(self, coords: np.ndarray) -> np.ndarray:
        """Return what the model says of some entries of the data it was fitted to."""
        return self.kruskal_.values_at(coords).astype(np.float64)

    def _entry_loss(self, values: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the loss of each of some entries for what the fitted model says of them."""
        squares: np.ndarray = (values - expected) ** 2
        return squares

    def _entry_fill(self, expected: np.ndarray) -> np.ndarray:
        """Return the data whose loss is lowest at given entries of the model.

        An entry that is to be left out of a fit without being missing is filled with it, again
        after each fit. That is the mean of the data where the loss is a likelihood of the
        exponential family, whatever its link: then this is expectation maximization. It depends
        on the parameters alone, and is NaN where the estimator takes no such data.
        """
        return expected

    # Files.

    @classmethod
    def _sizes(cls, learned: Any) -> saving.Sizes:
        return saving.sizes_of_factors(learned["factors_"])

    def _check_restored(self) -> None:
        super()._check_restored()
        if any(factor.dtype != self.weights_.dtype for factor in self.factors_):
            message = "weights_ and factors_ are not of the same type"
            raise ModelFileError(message)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
