"""QMF: the scikit-learn surface of quantile matrix factorization."""

from __future__ import annotations

import dataclasses
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError, ModelFileError
from polyad.quantile.alternation import AlternatingSolver
from polyad.quantile.family import COMMON_CONSTRAINTS, QuantileFamily, QuantileLearned
from polyad.quantile.parameters import random_parameters, to_gaps, to_logits, unconstrained
from polyad.quantile.problem import QuantileObjective, Settings
from polyad.quantile.scores import HeldModel, solve_scores
from polyad.quantile.solver import AdamSolver, QuantileSolver
from polyad.quantile.start import normalized_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.fitting import Iteration
    from polyad.quantile.features import FeatureTable

    Table = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QMFLearned(QuantileLearned):
    """What QMF learns.

    Besides components and transforms: the lengths that the columns of the loadings had in the fit,
    which the penalty acts on; the weight of the penalty of a sample; and the scores at the end of
    the iterations, from the best of which a sample starts.
    """

    _lengths: Array = saving.attribute(saving.array("R", low=0.0))
    _ridge: float = saving.attribute(saving.number(0.0))
    _known: Array = saving.attribute(saving.array("n0", "R"))
    _used: dict[str, Any] = saving.attribute(
        saving.fields(epsilon=saving.number(1e-12), nonnegative=saving.flag)
    )


@documented
class QMF(QuantileFamily):
    r"""Quantile matrix factorization: low rank up to an increasing transform of each feature.

    Minimises

    .. math:: \frac1N \sum_{ij} \Delta\big(x_{ij},\, T_j(v_i \cdot u_j)\big)

    over the observed entries of a matrix, where :math:`v_i` are the scores of sample ``i``,
    :math:`u_j` the loadings of feature ``j``, and :math:`T_j` an increasing function that is
    learned with them: a soft quantile normalization, which gives the products of a feature the
    distribution with the quantiles ``quantiles_`` and the weights ``quantile_weights_``. The
    quantiles reach from the lowest entry of a feature to its highest.

    Use it for features whose units and scales have nothing to do with each other, or whose scale is
    not known to be the right one for sums of components: expression levels, intensities,
    concentrations, prices. The transforms do not depend on units, but the divergence is counted in
    them: divide each feature by its mean if all should count the same.

    The paper has the features in rows and the samples in columns; here, as everywhere in
    scikit-learn, samples are rows: ``QMF().fit(X)`` is the paper's factorization of ``X.T``,
    ``factors_[1]`` its ``U`` and ``factors_[0]`` the transpose of its ``V``.

    Parameters
    ----------
    {n_components}
    n_quantiles : int, default=16
        The number of quantiles of each feature.
    epsilon : float, default=1e-2
        How soft the quantile normalization is. Products are squashed to (0, 1) first, so that it
        has no unit.
    nonnegative : bool, default=True
        Whether scores and loadings are kept from being negative.
    {divergence}
    solver : {'auto', 'newton', 'adam'}, default='auto'
        ``'newton'`` makes damped Gauss-Newton steps of all features and of all samples in turn,
        which never raise the objective. ``'adam'`` is Adam with exact gradients, as the paper has
        it, also with batches of features. ``'auto'`` is Adam if there is a ``batch_size``, and
        Newton's method otherwise.
    learning_rate : float, default=0.05
        The first size of the updates of Adam. It is halved when the objective stops falling.
    batch_size : int, default=None
        Update after each batch of so many features, which Adam does. An iteration visits all
        features once. By default they are all one batch.
    init : {'normalized', 'random'}, default='normalized'
        Where to start: at factors of the data after all features got the same distribution, found
        by multiplicative updates (by a singular value decomposition if factors may be negative); or
        at random factors and equally spaced quantiles, as the paper does.
    {n_init, max_iter}
    tol : float, default=1e-3
        Stop when the best objective of the last 5 iterations (20 of Adam) is lower than the best
        before by less than this part of it. Zero always does ``max_iter`` iterations.
    ridge : float, default=1e-3
        The weight of the squares of the factors (of their logarithms if they are not negative),
        relative to the divergence of a model that knows the mean of each feature only.
    {time_budget, random_state}
        Also the order of batches.
    {n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The loadings of the features, before their transforms. The scale of a column has no meaning:
        it is undone by the transform.
    {weights_}
    factors_ : list of two arrays
        Of shapes (n_samples, n_components) and (n_features, n_components), with columns of length
        one.
    quantiles_ : array of shape (n_features, n_quantiles)
        Increasing, from the lowest entry of each feature to its highest.
    quantile_weights_ : array of shape (n_features, n_quantiles)
        Positive; each row sums to one.
    potentials_ : array of shape (n_features, n_quantiles)
        Of the transports, which make the transforms functions that new samples can go through.
    reconstruction_err_ : float
        The mean divergence of the data from its reconstruction.
    objective_ : float
        The objective of the model: ``reconstruction_err_`` and the ridge term.
    {kruskal_}
        It is the model before the quantile transforms of the features.
    {labels_, modes_, history_}
        Also ``divergence``, its part without the ridge term, and ``damping`` of the steps, or
        ``learning_rate`` of Adam.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    **Cost.** An iteration takes O(n_samples · (n_components + 2 n_quantiles)²) for each feature;
    one of Adam takes O(n_samples · n_quantiles²), but many more of them are needed. No transport
    plan is kept.

    **Missing entries** have no part in the loss, nor in the transform of their feature.

    **New samples.** The transform of a feature is learned on the samples of the fit, and held for
    new ones; with loadings and transforms held, the best scores of each sample are found by
    Newton's method, also at the end of ``fit``: ``fit(X).transform(X)`` equals
    ``fit_transform(X)`` up to its tolerance. The problem is not convex: the best end of two starts
    counts, and of up to eleven for samples that are not of the fit, the more the fewer features.

    References
    ----------
    M. Cuturi, O. Teboul, J. Niles-Weed, J.-P. Vert, "Supervised Quantile Normalization for Low Rank
    Matrix Factorization", International Conference on Machine Learning (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import QMF
    >>> rng = np.random.default_rng(0)
    >>> W = rng.gamma(1.0, size=(40, 2)) @ rng.gamma(1.0, size=(2, 12))
    >>> X = W ** rng.uniform(0.5, 4.0, size=12)  # low rank up to a power of each feature
    >>> model = QMF(2, tol=1e-2, random_state=0).fit(X)
    >>> model.transform(X[:3]).shape
    (3, 2)
    >>> bool(model.reconstruction_err_ < 0.1 * X.mean())
    True
    """

    _learns = QMFLearned

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "solver": [StrOptions({"auto", "newton", "adam"})],
        "nonnegative": ["boolean"],
        # Beyond that nothing is left of the divergence, and squares of gradients are no floats.
        "ridge": [Interval(Real, 0, 1e12, closed="both")],
        "init": [StrOptions({"normalized", "random"})],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_quantiles: int = 16,
        epsilon: float = 1e-2,
        nonnegative: bool = True,
        divergence: Any = "kl",
        solver: str = "auto",
        learning_rate: float = 0.05,
        batch_size: int | None = None,
        init: str = "normalized",
        n_init: int = 1,
        max_iter: int = 500,
        tol: float = 1e-3,
        ridge: float = 1e-3,
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
        self.nonnegative = nonnegative
        self.divergence = divergence
        self.solver = solver
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.ridge = ridge
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def _solver(self, table: FeatureTable) -> QuantileSolver[Any]:
        settings = Settings(float(self.epsilon), bool(self.nonnegative), float(self.ridge))
        objective = QuantileObjective(table, settings, int(self.n_quantiles))
        size = None if self.batch_size is None else int(self.batch_size)
        if self.solver == "newton" and size is not None:
            message = (
                f"batch_size={self.batch_size} is for solver='adam': solver='newton' moves all "
                "features at once. Use batch_size=None, or solver='auto' or 'adam'."
            )
            raise InvalidInputError(message)
        if self.solver == "adam" or size is not None:
            return AdamSolver(
                objective, "QMF", learning_rate=float(self.learning_rate), batch_size=size
            )
        return AlternatingSolver(objective, "QMF")

    def _first_parameters(self, table: FeatureTable, seed: int) -> list[Table]:
        sizes = int(self.n_components), int(self.n_quantiles)
        nonnegative = bool(self.nonnegative)
        if self.init == "random":
            return list(random_parameters(table.shape, *sizes, nonnegative=nonnegative, seed=seed))
        start = normalized_start(
            *(table, *sizes), nonnegative=nonnegative, epsilon=float(self.epsilon), seed=seed
        )
        return list(start)

    def _earlier_parameters(self) -> list[Table]:
        nonnegative, learned = bool(self.nonnegative), self._model()
        loadings = learned.factors_[1].astype(np.float64) * learned._lengths
        return [
            unconstrained(loadings, nonnegative=nonnegative),
            # Those that the transforms were fitted with, not the best for transforms that are held.
            unconstrained(learned._known, nonnegative=nonnegative).T.copy(),
            to_gaps(np.asarray(learned.quantiles_, dtype=np.float64)),
            to_logits(np.asarray(learned.quantile_weights_, dtype=np.float64)),
        ]

    def _learned(self, solver: QuantileSolver[Any], state: Any) -> QMFLearned:
        objective = cast("QuantileObjective", solver.objective_function)
        held = objective.held(*solver.transforms(state))
        scores = held.known if state.scores is None else state.scores
        fields, order, signs = self._canonical(objective.table, held.maps, scores, held.loadings)
        fields["_used"]["nonnegative"] = self.nonnegative
        return QMFLearned(
            **fields,
            _lengths=np.sqrt((held.loadings**2).sum(axis=0))[order],
            _ridge=held.ridge,
            _known=held.known[:, order] * signs,
        )

    def _scores(self, table: FeatureTable, learned: QMFLearned) -> Table:
        held = HeldModel(
            self._maps(learned),
            learned.factors_[1].astype(np.float64) * learned._lengths,
            learned._known,
            learned._used["nonnegative"],
            learned._ridge,
            learned._unit,
        )
        scores: Table = solve_scores(table, held) * learned._lengths
        return scores

    def _check_restored(self) -> None:
        super()._check_restored()
        learned = self._model()
        lowest = min(learned._known.min(), *map(np.min, learned.factors_))
        if learned._used["nonnegative"] and lowest < 0:
            message = "factors_ or _known has negative numbers"
            raise ModelFileError(message)
