"""What the quantile factorizations share: the data of a fit, scores, learned transforms.

A member says what is minimised and what a result is made of.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Hashable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import to_numpy
from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.data.validation import read_features
from polyad.estimators import saving
from polyad.estimators.base import Curve, ReportSection
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.estimators.kruskal import KruskalLearned, KruskalResult
from polyad.exceptions import InvalidInputError, InvalidTypeError, ModelFileError
from polyad.losses.names import restored_loss, stored_loss
from polyad.quantile.features import (
    FeatureTable,
    check_divergence,
    entry_guard,
    feature_table,
    gaps_of,
    read_divergence,
    read_matrix,
    sample_table,
    weak_features,
)
from polyad.quantile.maps import FeatureMaps, quantile_frame, transform_frame
from polyad.tensor.alignment import normalize_components, weight_order
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput
    from polyad.quantile.solver import QuantileSolver

    Table = NDArray[np.float64]

#: Potentials are of the size of the squared cost between squashed numbers, which is at most one.
POTENTIALS = saving.array("n1", "n_quantiles", low=-1e9, high=1e9)
# Products of a feature whose variance is below this part of their squares are constant.
_FLAT = 1e-12
#: The constraints of the parameters that every member has.
COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    **FIT_CONSTRAINTS,
    "n_quantiles": [Interval(Integral, 2, None, closed="left")],
    # Below that, differences of potentials are rounding; above, those of values are.
    "epsilon": [Interval(Real, 1e-12, 1e12, closed="both")],
    "divergence": [object],
    "solver": [StrOptions({"adam", "lbfgs"})],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileLearned(KruskalLearned):
    """Components, and the transform of each feature.

    ``_centres`` and ``_rates`` standardise products before they are squashed; ``_guard`` is added
    to the entries of a feature before logarithms are taken; ``_unit`` is the divergence of a model
    that knows the means of the features only; ``_used`` has the parameters of the fit that its
    result depends on afterwards: those of the estimator may be set to others for the next fit.
    """

    quantiles_: Array = saving.attribute(saving.array("n1", "n_quantiles", increasing=True))
    quantile_weights_: Array = saving.attribute(saving.array("n1", "n_quantiles", shares=True))
    potentials_: Array = saving.attribute(POTENTIALS)
    reconstruction_err_: float = saving.attribute(saving.number(finite=False))
    _centres: Array = saving.attribute(saving.array("n1"))
    _rates: Array = saving.attribute(saving.array("n1", low=0.0))
    _guard: Array = saving.attribute(saving.array("n1", low=0.0))
    _unit: float = saving.attribute(saving.number(math.ulp(0.0)))
    _used: dict[str, Any] = saving.attribute(saving.fields(epsilon=saving.number(1e-12)))


class QuantileFamily(KruskalResult, Factorization):
    """Base of the quantile factorizations."""

    _accepts_nan: ClassVar[bool] = True
    _score_name: ClassVar[str] = "negative mean divergence"
    _learns = QuantileLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        "divergence": saving.Codec(
            lambda given, _: stored_loss(given, "divergence"),
            lambda stored: restored_loss(stored, "divergence"),
        )
    }
    quantiles_: Array
    quantile_weights_: Array
    potentials_: Array
    reconstruction_err_: float

    if TYPE_CHECKING:  # the parameters that every member has besides those of all factorizations
        n_quantiles: int
        epsilon: float
        divergence: Any
        solver: str
        learning_rate: float

    @abstractmethod
    def _first_parameters(self, table: FeatureTable, seed: int) -> list[Table]:
        """Return the parameters that a fit starts from."""

    @abstractmethod
    def _earlier_parameters(self) -> list[Table]:
        """Return the parameters of the last fit, for a warm start."""

    @abstractmethod
    def _scores(self, table: FeatureTable, learned: Any) -> Table:
        """Return the scores of samples (n, k), with everything else held."""

    def inverse_transform(self, X: Array) -> Array:
        """Return the data that features stand for, in the unit of the data.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Features, as ``transform`` returns them.

        Returns
        -------
        array of shape (n_samples, n_features)
            The products of features and components, each column through the transform of its
            feature.
        """
        check_is_fitted(self)
        learned = self._model()
        rows = np.asarray(to_numpy(read_features(X, int(self.weights_.shape[0]))), dtype=float)
        with thread_limit(self.n_jobs):
            products = learned.factors_[1].astype(np.float64) @ rows.T
            return np.ascontiguousarray(self._maps(learned).values(products).T, dtype=self._dtype)

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return minus the mean divergence of samples from their reconstruction.

        Higher is better and 0 is perfect. The features of the samples are fitted to those samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : None
            Ignored.
        mask : array of bool of shape (n_samples, n_features), default=None
            True where an entry was observed.
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            table, learned = self._read_new(given), self._model()
            return -self._mean_divergence(table, learned, self._scores(table, learned))

    def transform_table(self, feature: int | str, *, n_points: int = 50) -> pd.DataFrame:
        """Return the learned transform of a feature as a table.

        Parameters
        ----------
        feature : int or str
            The number or the name of the feature.
        n_points : int, default=50
            Rows of the table.

        Returns
        -------
        DataFrame
            Columns: ``before``, products of the factors over the range of the fit; ``after``, what
            the transform makes of them, in the unit of the data; ``slope``, its derivative over its
            mean over that range: above one, differences are inflated, below one deflated.
        """
        if not isinstance(n_points, Integral) or isinstance(n_points, bool) or n_points < 2:
            message = f"n_points={n_points!r} is not a number of rows; give 2 or more."
            raise InvalidInputError(message)
        row = self._feature_number(feature)
        products = self._products()[row]
        return transform_frame(self._maps(self._model()), row, products, int(n_points))

    def quantile_table(self) -> pd.DataFrame:
        """Return the learned quantiles of all features as a table.

        Returns
        -------
        DataFrame
            One row per feature: its quantiles ``q0``, ``q1``, ... in the unit of the data, their
            weights ``b0``, ``b1``, ..., and ``inflation``: the logarithm, to the base 2, of the
            mean slope of the transform over the upper half of the samples over that of the lower
            half. It is positive where large values were inflated, and negative where they were
            deflated.
        """
        check_is_fitted(self)
        return quantile_frame(self._maps(self._model()), self._products(), self._feature_labels())

    def _transform_curves(self, features: Any, max_features: int) -> list[Curve]:
        table = self.quantile_table()
        if features is None:
            strongest = np.argsort(-np.abs(table["inflation"].to_numpy()), kind="stable")
            chosen = strongest[: max(max_features, 0)].tolist()
        else:
            chosen = np.ravel(np.asarray(features, dtype=object)).tolist()
        curves = []
        for feature in chosen:
            curve = self.transform_table(feature)
            title = str(table.index[self._feature_number(feature)])
            curves.append(Curve(title, curve["before"].to_numpy(), curve["after"].to_numpy()))
        return curves

    def _report_sections(self) -> list[ReportSection]:
        text = (
            "From the products of scores and loadings, to the right, to the unit of the data, "
            "upwards. Differences are inflated where a curve is steeper than the grey line."
        )
        caption = "The transforms of the features that are bent most"
        return [ReportSection("Transforms", text, self._transform_curves(None, 12), caption)]

    def _learned_tables(self) -> dict[str, np.ndarray]:
        return {
            "quantiles": self.quantiles_,
            "quantile_weights": self.quantile_weights_,
            "inflation": self.quantile_table()["inflation"].to_numpy(),
        }

    # What a factorization is made of.

    def _read(self, given: TensorInput, y: Any) -> FeatureTable:
        divergence = read_divergence(self.divergence)
        data = read_matrix(given, divergence, type(self).__name__)
        self._check_sizes(given.shape)
        table = feature_table(data, divergence)
        check_divergence(divergence, table)
        for message in (*gaps_of(given, table), *weak_features(table)):
            self._warn_about_data(message)
        return table

    def _check_sizes(self, shape: tuple[int, ...]) -> None:
        """Refuse a rank that no matrix of this shape has, and a warm start from another one."""
        if self.n_components > min(shape):
            message = (
                f"n_components={self.n_components} is too large: a matrix of n_samples={shape[0]}, "
                f"n_features={shape[1]} has rank at most {min(shape)}. Use fewer components."
            )
            raise InvalidInputError(message)
        if not self._goes_on:
            return
        earlier = tuple(len(factor) for factor in self.factors_)
        sizes = self.weights_.shape[0], self.quantiles_.shape[1]
        if earlier != shape or sizes != (self.n_components, self.n_quantiles):
            message = (
                f"warm_start=True goes on from a model of shape {earlier} with {sizes[0]} "
                f"components and {sizes[1]} quantiles, but X has the shape {shape}, "
                f"n_components={self.n_components} and n_quantiles={self.n_quantiles}. Use "
                "warm_start=False."
            )
            raise InvalidInputError(message)

    def _read_new(self, given: TensorInput) -> FeatureTable:
        divergence, learned = read_divergence(self.divergence), self._model()
        data = read_matrix(given, divergence, type(self).__name__)
        quantiles = np.asarray(learned.quantiles_, dtype=np.float64)
        guard = learned._guard[:, None]
        return sample_table(data, quantiles[:, :1], quantiles[:, -1:], guard, divergence)

    def _begin(self, solver: QuantileSolver[Any], number: int, seed: int) -> Any:
        if self._goes_on and number == 0:
            return solver.init(self._earlier_parameters(), seed)
        table = solver.objective_function.table
        return solver.init(self._first_parameters(table, seed), seed)

    def _features(self, problem: FeatureTable, learned: QuantileLearned) -> Array:
        return self._scores(problem, learned).astype(learned.weights_.dtype)

    def _canonical(
        self, table: FeatureTable, maps: FeatureMaps, scores: Table, loadings: Table
    ) -> tuple[dict[str, Any], list[int], Table]:
        """Return the fields of :class:`QuantileLearned`, and the order and signs of components."""
        tensor = normalize_components(KruskalTensor(np.ones(scores.shape[1]), [scores, loadings]))
        order = weight_order(tensor)
        tensor = tensor.take(order)
        turned = (tensor.factors[1] * loadings[:, order]).sum(axis=0)
        fields = {
            "factors_": [np.ascontiguousarray(part, dtype=table.dtype) for part in tensor.factors],
            "weights_": tensor.weights.astype(table.dtype),
            "quantiles_": maps.quantiles,
            "quantile_weights_": maps.weights,
            "potentials_": maps.potentials,
            "_centres": maps.centres,
            "_rates": maps.rates,
            "_guard": table.guard[:, 0],
            "_unit": table.unit,
            "_used": {"epsilon": float(self.epsilon)},
        }
        known = QuantileLearned(**fields, reconstruction_err_=math.nan)
        features = known.factors_[0] * known.weights_[None, :]
        fields["reconstruction_err_"] = self._mean_divergence(table, known, features)
        return fields, order, np.where(turned < 0.0, -1.0, 1.0)

    def _mean_divergence(
        self, table: FeatureTable, learned: QuantileLearned, scores: Table
    ) -> float:
        """Return the mean divergence of samples from what scores stand for."""
        with np.errstate(invalid="ignore"):  # scores that are not finite end the fit, and are told
            products = learned.factors_[1].astype(np.float64) @ scores.T.astype(np.float64)
        model = self._maps(learned).values(products)
        return table.divergence_sum(model, slice(None)) / max(table.n_observed, 1)

    def _maps(self, learned: QuantileLearned) -> FeatureMaps:
        """Return the learned transforms."""
        return FeatureMaps(
            *(learned._centres, learned._rates, learned.potentials_, learned.quantile_weights_),
            np.asarray(learned.quantiles_, dtype=np.float64),
            learned._used["epsilon"],
        )

    def _products(self) -> Table:
        """Return the products of the factors for the samples of the fit (d, n)."""
        check_is_fitted(self)
        scores = self._features_of_fit.astype(np.float64)
        result: Table = self.factors_[1].astype(np.float64) @ scores.T
        return result

    def _comparable(self) -> KruskalTensor:
        # The transform of a feature undoes the scale of its loadings. Times its mean slope, the
        # deviation of what comes out of it over that of the products, they are in the unit of the
        # data: those of a factorization without transforms if these are straight lines.
        tensor = super()._comparable()
        scores = tensor.factors[0].astype(np.float64) * tensor.weights
        given = tensor.factors[1].astype(np.float64)
        sizes = given**2 @ (scores**2).mean(axis=0)
        scores -= scores.mean(axis=0)
        before = np.sum((given @ (scores.T @ scores / len(scores))) * given, axis=1)
        varies = before > _FLAT * sizes  # products that are all the same have no slope
        quantiles, shares = (
            np.asarray(own, dtype=np.float64) for own in (self.quantiles_, self.quantile_weights_)
        )
        middle = np.sum(shares * quantiles, axis=1, keepdims=True)
        after = np.sum(shares * (quantiles - middle) ** 2, axis=1)
        slopes = np.sqrt(np.where(varies, after / np.where(varies, before, 1.0), 0.0))
        loadings = given * slopes[:, None]
        scale = np.linalg.norm(loadings, axis=0)
        safe = np.where(scale > 0.0, scale, 1.0)
        return KruskalTensor(tensor.weights * scale, [tensor.factors[0], loadings / safe])

    def _check_restored(self) -> None:
        super()._check_restored()
        learned = self._model()
        # A guard above zero belongs to a divergence of positive numbers.
        if (learned.quantiles_[learned._guard > 0] < 0).any():
            message = "quantiles_ has negative numbers, which its divergence does not take"
            raise ModelFileError(message)

    @property
    def _dtype(self) -> Any:
        return self.factors_[0].dtype

    def _feature_labels(self) -> Any:
        import pandas as pd

        labels = self.labels_[1]
        if labels is None and hasattr(self, "feature_names_in_"):
            labels = self.feature_names_in_
        return pd.Index(np.arange(len(self.factors_[1])) if labels is None else labels)

    def _feature_number(self, feature: int | str) -> int:
        check_is_fitted(self)
        labels = self._feature_labels()
        if isinstance(feature, Integral) and not isinstance(feature, bool):
            if -len(labels) <= feature < len(labels):
                return int(feature) % len(labels)
        elif isinstance(feature, Hashable) and feature in labels:
            return int(labels.get_indexer_for([feature])[0])
        message = (
            f"feature={feature!r} does not exist; there are {len(labels)}, numbered from 0"
            f"{'' if labels.dtype.kind in 'iu' else f', such as {labels[0]!r}'}."
        )
        raise InvalidInputError(message)

    def _entry_values(self, coords: np.ndarray) -> np.ndarray:
        model = self._maps(self._model()).values(self._products())
        return np.asarray(model[coords[1], coords[0]])

    def _entry_loss(self, values: np.ndarray, expected: np.ndarray) -> np.ndarray:
        divergence = read_divergence(self.divergence)
        guard = entry_guard(np.max(values, initial=0.0), divergence)
        losses: np.ndarray = divergence.value(values + guard, expected + guard)
        return losses

    @property
    def _values_are_means(self) -> bool:
        return False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.three_d_array = False
        try:
            positive = read_divergence(self.divergence).lower == 0
        except (InvalidInputError, InvalidTypeError):  # told by fit
            positive = False
        tags.input_tags.positive_only = positive
        return tags
