"""QMFQ: the scikit-learn surface of quantile normalization before and after a projection."""

from __future__ import annotations

import dataclasses
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from polyad.core.sklearn_compat import Interval, StrOptions, container_adapter
from polyad.core.threads import thread_limit
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError, ModelFileError
from polyad.quantile.family import (
    COMMON_CONSTRAINTS,
    POTENTIALS,
    QuantileFamily,
    QuantileLearned,
)
from polyad.quantile.maps import FeatureMaps, learned_maps
from polyad.quantile.parameters import empirical_gaps, pinned_quantiles, softmax, to_gaps, to_logits
from polyad.quantile.projected.problem import (
    ProjectedObjective,
    Transforms,
    deflating_quantiles,
    first_transforms,
    to_deflating_gaps,
)
from polyad.quantile.projected.projectors import (
    NMFProjector,
    Projector,
    SVDProjector,
    linear_scores,
    nonnegative_scores,
)
from polyad.quantile.solver import AdamSolver, LBFGSSolver, QuantileSolver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.fitting import Iteration
    from polyad.quantile.features import FeatureTable

    Table = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QMFQLearned(QuantileLearned):
    """What QMFQ learns.

    Besides components and transforms: the transforms before the projection, for which the data is
    standardised by ``_data_centres`` and ``_data_rates``, and the fixed start of the projector.
    """

    normalizing_quantiles_: Array = saving.attribute(
        saving.array("n1", "n_quantiles", low=0.0, increasing=True)
    )
    normalizing_weights_: Array = saving.attribute(saving.array("n1", "n_quantiles", shares=True))
    normalizing_potentials_: Array = saving.attribute(POTENTIALS)
    _data_centres: Array = saving.attribute(saving.array("n1"))
    _data_rates: Array = saving.attribute(saving.array("n1", low=0.0))
    _start: list[Array] = saving.attribute(
        saving.any_of(
            saving.parts(list),
            saving.parts(list, saving.array("n1", "R", low=0.0), saving.array("R", "n0", low=0.0)),
        )
    )
    _used: dict[str, Any] = saving.attribute(
        saving.fields(epsilon=saving.number(1e-12), projector=saving.one_of("nmf", "svd"))
    )


@documented
class QMFQ(QuantileFamily):
    r"""Low rank between two learned quantile normalizations of each feature.

    Minimises

    .. math:: \frac1N \sum_{ij} \Delta\Big(x_{ij},\, T_j\big(\Pi_k(T'(X))_{ij}\big)\Big),

    where :math:`T'` brings each feature to learned quantiles, :math:`\Pi_k` is a projector onto
    matrices of rank ``k`` (nonnegative factors, or a truncated singular value decomposition), and
    :math:`T_j` brings each feature back to the unit of the data. Unlike in :class:`~polyad.QMF` the
    factors are not free: they are those of the normalized data. So the features of a new sample
    cost no more than its normalization and a projection, and :math:`T'` is a normalization that is
    made for low rank, to use before any other method (see :meth:`normalize`).

    The paper has the features in rows and the samples in columns; here, as everywhere in
    scikit-learn, samples are rows.

    Parameters
    ----------
    {n_components}
    n_quantiles : int, default=16
        The number of quantiles of each feature, in both normalizations.
    epsilon : float, default=1e-2
        How soft the quantile normalizations are. Values are squashed to (0, 1) first, so that it
        has no unit.
    projector : {'svd', 'nmf'}, default='svd'
        A truncated singular value decomposition, whose factors have any sign; or multiplicative
        updates for nonnegative factors with the Kullback-Leibler divergence, from a fixed random
        start, followed by the best scores of the loadings: parts that add up, which take several
        times longer and fit less closely, but by whose scores samples are clustered more often by
        known classes.
    inner_iter : int, default=100
        For ``'nmf'``: the number of updates.
    {divergence}
    solver : {'adam', 'lbfgs'}, default='adam'
        Adam, or limited-memory BFGS. Both use exact gradients.
    learning_rate : float, default=0.1
        The first size of the updates of Adam. It is halved when the objective stops falling.
    {n_init}
        The starts are those of the projector; a singular value decomposition has none, and is
        fitted once.
    {max_iter}
    tol : float, default=1e-3
        Stop when the best objective of the last 20 iterations (5 for L-BFGS) is lower than the best
        before by less than this part of it. Zero always does ``max_iter`` iterations.
    time_budget : float, default=None
        Stop after this many seconds, over all restarts. Compiling does not count.
    {random_state}
        It is that of the start of ``'nmf'``.
    {n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The loadings of the normalized features; not negative with ``projector='nmf'``.
    {weights_}
    factors_ : list of two arrays
        Of shapes (n_samples, n_components) and (n_features, n_components), with columns of length
        one.
    normalizing_quantiles_ : array of shape (n_features, n_quantiles)
        Of the first normalization: increasing, positive, without a unit.
    normalizing_weights_, normalizing_potentials_ : arrays of shape (n_features, n_quantiles)
        The weights of those quantiles, and the potentials of their transports.
    quantiles_ : array of shape (n_features, n_quantiles)
        Of the second: increasing, from the lowest entry of each feature to its highest.
    quantile_weights_, potentials_ : arrays of shape (n_features, n_quantiles)
        The weights of those quantiles, and the potentials of their transports.
    reconstruction_err_ : float
        The mean divergence of the data from its reconstruction.
    objective_ : float
        The objective of the model: the same, but for rounding.
    {kruskal_}
        It is the model before the quantile transforms of the features.
    {labels_, modes_, history_}
        Also ``learning_rate``, or ``evaluations`` for L-BFGS.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    An iteration with ``projector='nmf'`` takes ``inner_iter`` updates and one pass back through
    them, about ``10 inner_iter`` products of the size of the data with the factors, and memory for
    ``2 inner_iter (n_samples + n_features) n_components`` numbers. Missing entries are not
    accepted: :class:`~polyad.QMF` leaves them out.

    The derivative of a singular value decomposition is infinite where the last singular value that
    is kept equals the first that is not; it is held back there.

    References
    ----------
    M. Cuturi, O. Teboul, J. Niles-Weed, J.-P. Vert, "Supervised Quantile Normalization for Low Rank
    Matrix Factorization", International Conference on Machine Learning (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import QMFQ
    >>> rng = np.random.default_rng(0)
    >>> W = rng.gamma(1.0, size=(40, 2)) @ rng.gamma(1.0, size=(2, 12))
    >>> X = W ** rng.uniform(0.5, 4.0, size=12)  # low rank up to a power of each feature
    >>> model = QMFQ(2, tol=1e-2).fit(X)
    >>> model.transform(X[:3]).shape
    (3, 2)
    >>> model.normalize(X[:3]).shape
    (3, 12)
    """

    _accepts_nan: ClassVar[bool] = False
    _learns = QMFQLearned
    normalizing_quantiles_: Array
    normalizing_weights_: Array
    normalizing_potentials_: Array

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "projector": [StrOptions({"svd", "nmf"})],
        "inner_iter": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_quantiles: int = 16,
        epsilon: float = 1e-2,
        projector: str = "svd",
        inner_iter: int = 100,
        divergence: Any = "kl",
        solver: str = "adam",
        learning_rate: float = 0.1,
        n_init: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-3,
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Callable[[Iteration], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_quantiles = n_quantiles
        self.epsilon = epsilon
        self.projector = projector
        self.inner_iter = inner_iter
        self.divergence = divergence
        self.solver = solver
        self.learning_rate = learning_rate
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def normalize(self, X: Any) -> Any:
        """Return samples after the first normalization, before the projection.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples. Labelled data is matched by label.

        Returns
        -------
        array of shape (n_samples, n_features)
            Positive numbers without a unit; a table if ``set_output`` asks for one.
        """
        given = self._validate_new(X)
        with thread_limit(self.n_jobs):
            normalized = self._normalized(self._read_new(given), self._model())
        values = np.ascontiguousarray(normalized.T, self._dtype)
        adapter = container_adapter("transform", self)
        if adapter is None:
            return values
        table = adapter.create_container(values, X, columns=self._feature_labels())
        if given.labels[0] is not None and adapter.container_lib == "pandas":
            table.index = given.labels[0]
        return table

    def _n_fits(self) -> int:
        # All starts of a singular value decomposition are the same, but for that of a warm start.
        most = super()._n_fits() if self.projector == "nmf" else 1 + self._goes_on
        return min(super()._n_fits(), most)

    def _objective(self, table: FeatureTable) -> ProjectedObjective:
        rank = int(self.n_components)
        is_nmf = self.projector == "nmf"
        projector: Projector = (
            NMFProjector(rank, int(self.inner_iter)) if is_nmf else SVDProjector(rank)
        )
        return ProjectedObjective(table, projector, float(self.epsilon))

    def _solver(self, table: FeatureTable) -> QuantileSolver[Any]:
        if table.observed is not None:
            message = (
                "X has entries that are not observed, which a projector cannot leave out. Use "
                "QMF, which leaves them out, or fill them first."
            )
            raise InvalidInputError(message)
        objective = self._objective(table)
        if self.solver == "adam":
            return AdamSolver(objective, "QMFQ", learning_rate=float(self.learning_rate))
        return LBFGSSolver(objective, "QMFQ")

    def _first_parameters(self, table: FeatureTable, seed: int) -> list[Table]:
        transforms = first_transforms(table.shape, int(self.n_quantiles))
        transforms = transforms._replace(gaps=empirical_gaps(table, int(self.n_quantiles)))
        return [*transforms, *self._objective(table).projector.start(table.shape, seed)]

    def _earlier_parameters(self) -> list[Table]:
        learned = self._model()
        return [
            to_deflating_gaps(np.asarray(learned.normalizing_quantiles_, dtype=np.float64)),
            to_logits(np.asarray(learned.normalizing_weights_, dtype=np.float64)),
            to_gaps(np.asarray(learned.quantiles_, dtype=np.float64)),
            to_logits(np.asarray(learned.quantile_weights_, dtype=np.float64)),
            *learned._start,
        ]

    def _learned(self, solver: QuantileSolver[Any], state: Any) -> QMFQLearned:
        objective = cast("ProjectedObjective", solver.objective_function)
        table, parameters, potentials = objective.table, state.parameters, state.potentials
        given = Transforms(*parameters[:4])
        projection = objective.projection(parameters, potentials)
        inner = learned_maps(
            *(table.shifted - table.guard, table.shares),
            potentials=potentials[0],
            weights=softmax(given.deflating_logits),
            quantiles=deflating_quantiles(given.deflating_gaps),
            epsilon=float(self.epsilon),
        )
        quantiles, _ = pinned_quantiles(given.gaps, table.low, table.high)
        maps = learned_maps(
            *(projection.loadings @ projection.scores, table.shares),
            potentials=potentials[1],
            weights=softmax(given.logits),
            quantiles=quantiles,
            epsilon=float(self.epsilon),
        )
        fields, _, _ = self._canonical(table, maps, projection.scores.T, projection.loadings)
        fields["_used"]["projector"] = self.projector
        return QMFQLearned(
            **fields,
            normalizing_quantiles_=inner.quantiles,
            normalizing_weights_=inner.weights,
            normalizing_potentials_=inner.potentials,
            _data_centres=inner.centres,
            _data_rates=inner.rates,
            _start=parameters[4:],
        )

    def _scores(self, table: FeatureTable, learned: QMFQLearned) -> Table:
        loadings = learned.factors_[1].astype(np.float64)
        normalized = self._normalized(table, learned)
        if learned._used["projector"] == "nmf":
            return nonnegative_scores(normalized, loadings)
        return linear_scores(normalized, loadings)

    def _learned_tables(self) -> dict[str, np.ndarray]:
        return {
            **super()._learned_tables(),
            "normalizing_quantiles": self.normalizing_quantiles_,
            "normalizing_weights": self.normalizing_weights_,
        }

    def _normalized(self, table: FeatureTable, learned: QMFQLearned) -> Table:
        """Return samples (d, n) after the first normalization."""
        maps = FeatureMaps(
            *(learned._data_centres, learned._data_rates, learned.normalizing_potentials_),
            *(learned.normalizing_weights_, learned.normalizing_quantiles_),
            learned._used["epsilon"],
        )
        return maps.values(table.shifted - table.guard)

    def _check_restored(self) -> None:
        super()._check_restored()
        learned = self._model()
        is_nmf = learned._used["projector"] == "nmf"
        if is_nmf != bool(learned._start) or (is_nmf and min(map(np.min, self.factors_)) < 0):
            message = "_start and factors_ are not those of its projector"
            raise ModelFileError(message)
