"""What the quantile factorizations share: fit, restarts, checkpoints, scores, learned transforms.

A member says what is minimised and what a result is made of. Everything else is here, without
mathematics.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import to_numpy
from polyad.core.sklearn_compat import Interval, StrOptions, fit_context
from polyad.core.threads import thread_limit
from polyad.data.validation import read_features
from polyad.estimators import saving
from polyad.estimators.base import TensorEstimator
from polyad.exceptions import InvalidInputError, InvalidTypeError, Status
from polyad.fitting import Checkpoint, FitOptions, FitResult, Iteration, Resumable, fit_best
from polyad.fitting.clock import Clock
from polyad.fitting.driver import FitError, read_callbacks
from polyad.fitting.identity import fit_identity
from polyad.quantile.checks import check_divergence, gaps_of, read_matrix, weak_features
from polyad.quantile.divergence import needs_positive, read_divergence, stored_divergence
from polyad.quantile.features import FeatureTable, entry_guard, feature_table, sample_table
from polyad.quantile.maps import FeatureMaps
from polyad.quantile.tables import quantile_frame, transform_frame
from polyad.tensor.alignment import normalize_components, weight_order
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.data.validation import TensorInput
    from polyad.quantile.solver import QuantileSolver

    Table = NDArray[np.float64]

#: Potentials are of the size of the squared cost between squashed numbers, which is at most one.
POTENTIALS = saving.array("n1", "n_quantiles", low=-1e9, high=1e9)
#: The constraints of the parameters that every member has.
COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "n_quantiles": [Interval(Integral, 2, None, closed="left")],
    # Below that, differences of potentials are rounding; above, those of values are.
    "epsilon": [Interval(Real, 1e-12, 1e12, closed="both")],
    "divergence": [object],
    "solver": [StrOptions({"adam", "lbfgs"})],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "n_init": [Interval(Integral, 1, 10**6, closed="both")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "time_budget": [Interval(Real, 0, None, closed="neither"), None],
    "random_state": ["random_state"],
    "n_jobs": [Integral, None],
    "warm_start": ["boolean"],
    "checkpoint": [object],
    "callbacks": ["array-like", callable, None],
    "verbose": ["verbose"],
}


class QuantileFamily(TensorEstimator):
    """Base of the quantile factorizations."""

    _accepts_nan: ClassVar[bool] = True
    _score_name: ClassVar[str] = "negative mean divergence"

    _learned: ClassVar[dict[str, saving.Rule]] = {
        "quantiles_": saving.array("n1", "n_quantiles", increasing=True),
        "quantile_weights_": saving.array("n1", "n_quantiles", shares=True),
        "potentials_": POTENTIALS,
        "reconstruction_err_": saving.number(finite=False),
        "_centres": saving.array("n1"),
        "_rates": saving.array("n1", low=0.0),
        "_guard": saving.array("n1", low=0.0),
        "_unit": saving.number(math.ulp(0.0)),
    }
    quantiles_: Array
    quantile_weights_: Array
    potentials_: Array
    reconstruction_err_: float
    # Products are standardised with these before they are squashed.
    _centres: Array
    _rates: Array
    # What is added to the entries of a feature before logarithms are taken, and the divergence of
    # a model that knows the means of the features only.
    _guard: Array
    _unit: float
    # The parameters of the fit that its result depends on afterwards: those of the estimator may be
    # set to others for the next fit.
    _lasting: ClassVar[tuple[str, ...]] = ()
    _used: dict[str, Any]

    if TYPE_CHECKING:  # the parameters that every member has
        n_components: int
        n_quantiles: int
        epsilon: float
        divergence: Any
        solver: str
        learning_rate: float
        n_init: int
        max_iter: int
        tol: float
        time_budget: float | None
        random_state: int | np.random.RandomState | None
        n_jobs: int | None
        warm_start: bool
        checkpoint: Any
        callbacks: Sequence[Callable[[Iteration], object]] | None
        verbose: int

    @abstractmethod
    def _solver(self, table: FeatureTable) -> QuantileSolver[Any]:
        """Make the solver of some data."""

    @abstractmethod
    def _first_parameters(self, table: FeatureTable, seed: int) -> list[Table]:
        """Return the parameters that a fit starts from."""

    @abstractmethod
    def _earlier_parameters(self) -> list[Table]:
        """Return the parameters of the last fit, for a warm start."""

    @abstractmethod
    def _keep(self, solver: QuantileSolver[Any], state: Any) -> tuple[Table, Table]:
        """Keep what a fit has learned; return the factors of samples and features."""

    @abstractmethod
    def _scores(self, table: FeatureTable) -> Table:
        """Return the scores of samples (n, k), with everything else held."""

    def fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Factorize a matrix.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data. NaN marks missing entries.
        y : None
            Ignored.
        mask : array of bool of shape (n_samples, n_features), default=None
            True where an entry was observed.
        """
        self._fit(X, mask)
        self._report_ending()
        return self

    def fit_transform(self, X: Any, y: Any = None, *, mask: Any = None) -> Array:
        """Factorize a matrix and return the features of its samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data.
        y : None
            Ignored.
        mask : array of bool of shape (n_samples, n_features), default=None
            True where an entry was observed.

        Returns
        -------
        array of shape (n_samples, n_components)
            The factor of the samples times the weights.
        """
        self._fit(X, mask)
        self._report_ending()
        return self._named(self.factors_[0] * self.weights_[None, :], self.labels_[0])

    def transform(self, X: Any, *, mask: Any = None) -> Array:
        """Return the features of new samples, with everything else held as it was learned.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New samples. Labelled data is matched by label.
        mask : array of bool of shape (n_samples, n_features), default=None
            True where an entry was observed.

        Returns
        -------
        array of shape (n_samples, n_components)
            The coefficients of each sample on ``components_``.
        """
        given = self._validate_new(X, mask=mask, for_features=True)
        with thread_limit(self.n_jobs):
            scores = self._scores(self._new_table(given))
        return self._named(scores.astype(self._dtype), given.labels[0])

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
        rows = np.asarray(to_numpy(read_features(X, int(self.weights_.shape[0]))), dtype=float)
        with thread_limit(self.n_jobs):
            products = self.factors_[1].astype(np.float64) @ rows.T
            return np.ascontiguousarray(self._maps().values(products).T, dtype=self._dtype)

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
            table = self._new_table(given)
            return -self._mean_divergence(table, self._scores(table))

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
        return transform_frame(self._maps(), row, products, int(n_points))

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
        return quantile_frame(self._maps(), self._products(), self._feature_labels())

    @fit_context(prefer_skip_nested_validation=True)
    def _fit(self, X: Any, mask: Any) -> None:
        clock = Clock()
        read_callbacks(self.callbacks)
        Checkpoint.of(self.checkpoint)
        divergence = read_divergence(self.divergence)
        given = self._validate_fit(X, mask=mask)
        data = read_matrix(given, divergence, type(self).__name__)
        self._check_sizes(given.shape)
        identity = fit_identity(type(self), self.get_params(deep=False), {"data": given})
        with thread_limit(self.n_jobs):
            table = feature_table(data, divergence)
            check_divergence(divergence, table)
            for message in (*gaps_of(given, table), *weak_features(table)):
                self._warn_about_data(message)
            solver = self._solver(table)
            broken: FitError | None = None
            try:
                result = self._run(solver, table, identity, clock)
            except FitError as error:
                broken, result = error, error.result
            with self._storing(result, broken):
                self._store(solver, table, result, data.dtype)
        self._remember(X, given)
        self.n_samples_seen_ = given.shape[0]
        if broken is not None:
            raise broken

    def _check_sizes(self, shape: tuple[int, ...]) -> None:
        """Refuse a rank that no matrix of this shape has, and a warm start from another one."""
        if self.n_components > min(shape):
            message = (
                f"n_components={self.n_components} is too large: a matrix of n_samples={shape[0]}, "
                f"n_features={shape[1]} has rank at most {min(shape)}. Use fewer components."
            )
            raise InvalidInputError(message)
        if not (self.warm_start and hasattr(self, "factors_")):
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

    def _run(
        self,
        solver: QuantileSolver[Any],
        table: FeatureTable,
        identity: dict[str, Any],
        clock: Clock,
    ) -> FitResult[Any]:
        """Fit from each start and return the best."""
        is_warm = self.warm_start and hasattr(self, "factors_")

        def start(number: int, seed: int) -> Any:
            warm = is_warm and number == 0
            first = self._earlier_parameters() if warm else self._first_parameters(table, seed)
            return solver.init(first, seed)

        generator = check_random_state(self.random_state)
        seeds = [int(seed) for seed in generator.randint(2**31 - 1, size=self.n_init)]
        options = FitOptions(
            max_iter=self.max_iter,
            tol=self.tol,
            time_budget=self.time_budget,
            callbacks=read_callbacks(self.callbacks),
            verbose=int(self.verbose),
            clock=clock,
        )
        checkpoint = Checkpoint.of(self.checkpoint)
        resumable = None
        if checkpoint is not None:
            resumable = Resumable(
                checkpoint, identity, lambda: solver.init(self._first_parameters(table, 0), 0)
            )
        return fit_best(solver, start, seeds, options, resumable=resumable)

    def _store(
        self, solver: QuantileSolver[Any], table: FeatureTable, result: FitResult[Any], dtype: Any
    ) -> None:
        """Bring a result to canonical form and keep it."""
        self._guard, self._unit = table.guard[:, 0], table.unit
        lasting = {name: getattr(self, name) for name in self._lasting}
        self._used = {"epsilon": float(self.epsilon), **lasting}
        scores, loadings = self._keep(solver, result.delivered)
        tensor = normalize_components(KruskalTensor(np.ones(scores.shape[1]), [scores, loadings]))
        order = weight_order(tensor)
        tensor = tensor.take(order)
        turned = (tensor.factors[1] * loadings[:, order]).sum(axis=0)
        self._reorder(order, np.where(turned < 0.0, -1.0, 1.0))
        self.weights_ = tensor.weights.astype(dtype)
        self.factors_ = [np.ascontiguousarray(factor, dtype=dtype) for factor in tensor.factors]
        self.history_ = result.history
        self.status_ = result.status or Status.DIVERGED
        self.n_iter_ = result.history.n_iter
        self.objective_ = result.objective
        self.reconstruction_err_ = self._mean_divergence(
            table, self.factors_[0] * self.weights_[None, :]
        )

    def _reorder(self, order: list[int], signs: Table) -> None:
        """Bring what a member keeps for each component into another order, with other signs."""

    def _mean_divergence(self, table: FeatureTable, scores: Table) -> float:
        """Return the mean divergence of samples from what scores stand for."""
        model = self._maps().values(
            self.factors_[1].astype(np.float64) @ scores.T.astype(np.float64)
        )
        return table.divergence_sum(model, slice(None)) / max(table.n_observed, 1)

    def _maps(self) -> FeatureMaps:
        """Return the learned transforms."""
        return FeatureMaps(
            *(self._centres, self._rates, self.potentials_, self.quantile_weights_),
            np.asarray(self.quantiles_, dtype=np.float64),
            self._used["epsilon"],
        )

    def _products(self) -> Table:
        """Return the products of the factors for the samples of the fit (d, n)."""
        check_is_fitted(self)
        scores = (self.factors_[0] * self.weights_[None, :]).astype(np.float64)
        result: Table = self.factors_[1].astype(np.float64) @ scores.T
        return result

    def _saved_parameter(self, name: str, value: Any) -> Any:
        if name == "divergence":
            return stored_divergence(value)
        return super()._saved_parameter(name, value)

    @classmethod
    def _restored_parameter(cls, name: str, stored: Any) -> Any:
        return stored_divergence(stored) if name == "divergence" else stored

    @property
    def _dtype(self) -> Any:
        return self.factors_[0].dtype

    def _new_table(self, given: TensorInput) -> FeatureTable:
        """Return the table of new samples."""
        divergence = read_divergence(self.divergence)
        data = read_matrix(given, divergence, type(self).__name__)
        quantiles = np.asarray(self.quantiles_, dtype=np.float64)
        return sample_table(
            data, quantiles[:, :1], quantiles[:, -1:], self._guard[:, None], divergence
        )

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
        model = self._maps().values(self._products())
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
            positive = needs_positive(read_divergence(self.divergence))
        except (InvalidInputError, InvalidTypeError):  # told by fit
            positive = False
        tags.input_tags.positive_only = positive
        return tags
