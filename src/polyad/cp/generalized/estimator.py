"""GeneralizedCP: the scikit-learn surface of CP with any loss."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.utils import check_random_state

from polyad.core.arrays import namespace_of
from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.cp.family import COMMON_CONSTRAINTS, CPFamily, CPLearned
from polyad.cp.generalized.adam import AdamOptions, AdamSolver
from polyad.cp.generalized.problem import ZerosProblem, build_problem, scaled_ridge
from polyad.cp.generalized.rows import solve_rows
from polyad.cp.generalized.solver import QuasiNewtonSolver
from polyad.cp.generalized.start import of_the_level_of, random_start
from polyad.cp.problem import FitData
from polyad.cp.start import (
    NONNEGATIVE_STARTS,
    given_start,
    make_start,
    names_of,
    nonnegative_svd_start,
)
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError, PolyadError
from polyad.losses.names import read_loss, restored_loss, stored_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.generalized.problem import GeneralizedProblem
    from polyad.cp.solver import FactorSolver
    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration
    from polyad.losses import Loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneralizedLearned(CPLearned):
    """Components, and how the data of the fit was treated: new samples are in the same way.

    That is the power of two that it was divided by, and whether the rows of samples visit all zeros
    that are not stored.
    """

    _exponent: int = saving.attribute(saving.whole(-1100, 1023))
    _exact_rows: bool = saving.attribute(saving.flag)


@documented
class GeneralizedCP(CPFamily):
    r"""CP decomposition with the loss that the data asks for (GCP).

    Minimises

    .. math:: \sum_i f(x_i, m_i) + \tfrac{\lambda}{2} \sum_k \|A^{(k)}\|^2, \qquad
        m = \sum_{r=1}^R w_r\, a^{(0)}_r \circ a^{(1)}_r \circ \dots

    over the observed entries of a dense or sparse tensor of any order from two up. Losses that
    need :math:`m \ge 0` keep all factors from being negative.

    ========================  ====================  ====================================
    ``loss``                  entries               what a model value :math:`m` is
    ========================  ====================  ====================================
    ``'gaussian'``            any                   the mean
    ``'huber'``               any, with outliers    the middle
    ``'poisson'``             not negative, counts  the mean, not negative
    ``'poisson-log'``         not negative, counts  the logarithm of the mean
    ``'negative-binomial'``   not negative, counts  odds; the mean over ``failures``
    ``'bernoulli-odds'``      0 and 1               odds of a one, not negative
    ``'bernoulli-logit'``     0 and 1               logarithm of the odds of a one
    ``'gamma'``               above zero            the mean, not negative
    ``'rayleigh'``            above zero            the mean, not negative
    ``'beta'``                not negative          the mean, not negative
    ========================  ====================  ====================================

    ``'bernoulli'`` is short for ``'bernoulli-odds'``. Some papers call the decomposition with
    ``'gamma'`` CP-Continuous and with ``'bernoulli'`` CP-Binary. Losses with parameters are given
    as objects of :mod:`polyad.losses`, for example ``loss=HuberLoss(0.5)``, and so are
    losses of your own, ``loss=CustomLoss(value, derivative)``.

    Use it when squared error is the wrong loss. For squared error, :class:`~polyad.CP` and
    :class:`~polyad.NonnegativeCP` are quicker, and :class:`~polyad.PoissonCP` is for sparse counts.

    Parameters
    ----------
    {n_components}
    loss : str or Loss, default='gaussian'
        How a model value misses an entry. Data that the loss is not made for is refused.
    solver : {'auto', 'lbfgs', 'adam'}, default='auto'
        ``'lbfgs'`` is a quasi-Newton method with exact gradients. ``'adam'`` is for sparse data
        whose other entries are zeros: stochastic gradients over random cells, and an objective that
        is estimated from a fixed sample. ``'auto'`` takes it where all cells are too many to visit.
    init : {'random', 'svd', 'split', 'search'}, KruskalTensor, pair or list, default='random'
        Where to start: random numbers whose model has the level of the data, singular vectors (for
        ``'gaussian'``, ``'huber'``, and losses whose factors are not negative), or given factors,
        with or without weights.
        ``'split'`` is for factors that are not negative, as in :class:`~polyad.PoissonCP`.
        ``'search'`` spends ``n_init`` fits on one start and then on moves from the best model so
        far; factors of any sign need ``solver='lbfgs'`` for it.
        With the other names the first fit is that one and further ones are random.
    {n_init}
        ``'auto'`` is 3 for a search, and 1 otherwise.
    {max_iter, tol}
    ridge : float, default=0.0
        The weight :math:`\lambda` of the squared factors. It keeps model values finite where the
        data would have them grow forever, as logarithms of odds do.
    batch_size : int, default=None
        For ``'adam'``: the cells of one update. None chooses by the number of rows of the factors.
    learning_rate : float, default=0.1
        For ``'adam'``: the size of the first updates, as a part of the size of the entries of a
        factor. It falls when an epoch does not lower the objective.
    epoch_iter : int, default=100
        For ``'adam'``: the updates of one epoch. An iteration is an epoch, or several if the first
        fail.
    {fixed_modes, missing, time_budget, random_state}
        Also the random cells of ``'adam'``.
    {n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One factor per mode, with columns of length one.
    {components_}
        It is on the scale of the model values.
    {kruskal_}
        Its entries are the model values.
    {labels_, modes_}
    objective_ : float
        The objective of the model. With ``solver='adam'`` it is an estimate, from the random cells
        that all iterations and starts are compared by; ``standard_error`` in ``history_`` tells
        how good the estimates are.
    {history_}
        Also ``kkt``, the largest violation of the optimality conditions, in the unit of the fit;
        and ``evaluations``, the evaluations of the objective so far. For ``'adam'`` instead:
        ``standard_error``, of the objective, and ``learning_rate``.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    An iteration costs about one evaluation of the objective and its gradients, ``O(size · R)`` for
    dense data and ``O(entries · R)`` per mode for sparse data. The objective never rises. The fit
    runs in double precision; float32 data gives float32 factors.

    Sparse data whose other entries are zeros is never made dense. ``'gaussian'`` and ``'poisson'``
    have closed forms for the zeros; other losses visit all cells in each iteration, if these are
    not more than 20 million, and random ones otherwise (``'adam'``). ``transform``, and the end of
    ``fit``, find features of the former to a millionth of a sample's largest, with a few looks at
    all of its cells where they are many; for the latter they take a fixed choice of 4096 zeros of a
    sample for all of them, which has no bias but an error. That costs about a millisecond per
    sample: mind it with millions of them.

    ``fit(X).transform(X)`` equals ``fit_transform(X)`` up to the tolerance of the row problems,
    unless mode 0 is fixed. Losses that are not convex in the model value (``'bernoulli-odds'``,
    ``'gamma'``, ``'rayleigh'``, ``'negative-binomial'``, ``'beta'`` with beta below one) can have
    several best rows for a sample, of which ``transform`` may find another than the fit.

    References
    ----------
    D. Hong, T. G. Kolda, J. A. Duersch, "Generalized Canonical Polyadic Tensor Decomposition", SIAM
    Review 62 (2020), doi:10.1137/18M1203626.

    T. G. Kolda, D. Hong, "Stochastic Gradients for Large-Scale Tensor Decomposition", SIAM Journal
    on Mathematics of Data Science 2 (2020), doi:10.1137/19M1266265.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import GeneralizedCP
    >>> X = np.random.default_rng(0).random((20, 5, 4)) < 0.3
    >>> model = GeneralizedCP(2, loss="bernoulli", random_state=0).fit(X)
    >>> model.transform(X).shape
    (20, 2)
    >>> bool((model.factors_[1] >= 0).all())
    True
    """

    _accepts_nan: ClassVar[bool] = True
    _score_name: ClassVar[str] = "explained deviance"
    _learns = GeneralizedLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        "loss": saving.Codec(lambda loss, _: stored_loss(loss), restored_loss)
    }
    # A step goes on until it lowers the objective by more than tol, and so depends on it.
    _uncounted: ClassVar[frozenset[str]] = CPFamily._uncounted - {"tol"}

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "loss": [object],
        "solver": [StrOptions({"auto", "lbfgs", "adam"})],
        "ridge": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "epoch_iter": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        loss: str | Loss = "gaussian",
        solver: Literal["auto", "lbfgs", "adam"] = "auto",
        init: Any = "random",
        n_init: int | str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-7,
        ridge: float = 0.0,
        batch_size: int | None = None,
        learning_rate: float = 0.1,
        epoch_iter: int = 100,
        fixed_modes: Iterable[int] = (),
        missing: Missing = "zero",
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Callable[[Iteration], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.loss = loss
        self.solver = solver
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.ridge = ridge
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.epoch_iter = epoch_iter
        self.fixed_modes = fixed_modes
        self.missing = missing
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def inverse_transform(self, X: Array) -> Array:
        """Return the data that features stand for: the mean of each entry.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Features, as ``transform`` returns them.

        Returns
        -------
        array of shape (n_samples, n_1, ...)
            On the scale of the data, such as probabilities for binary data. The model values
            themselves, such as odds, are the sum of ``components_``, each times its feature.
            A mean that is too large for the number type, as an exponential may be where nothing
            was observed, is given as the largest number of that type, with a ``DataWarning``.
        """
        values = super().inverse_transform(X)
        with np.errstate(over="ignore"):
            means = read_loss(self.loss).mean(values)
        xp = namespace_of(means)
        too_large = means == math.inf
        if not bool(xp.any(too_large)):
            return means
        largest = float(xp.finfo(means.dtype).max)
        self._warn_about_data(
            f"{int(xp.sum(xp.astype(too_large, xp.int64)))} of {math.prod(means.shape)} means are "
            f"above {largest:.3g}, the largest number of their type, and are given as that number. "
            "Nothing in the data bounds them: fit with a ridge above zero."
        )
        return xp.where(too_large, xp.full_like(means, largest), means)

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the explained deviance of samples.

        It is 1 minus the sum of the loss over that of the best constant model: 1 is perfect, 0 is
        no better than a constant. The features of the samples are fitted to those samples, so that
        the score of new samples seldom falls with more components. Where the cells of sparse data
        are too many to visit, the sum is estimated from a fixed sample of them.

        Parameters
        ----------
        {X, y, mask}
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            problem = self._read_new(given)
            others = [problem.asarray(factor) for factor in self.factors_[1:]]
            rows = problem.asarray(self._rows(problem, self._model()))
            deviance = _deviance(problem, [rows, *others])
            worst, rounding = problem.constant[1], problem.rounding()
        if worst <= rounding:
            return 1.0 if deviance <= rounding else 0.0
        return float(1.0 - deviance / worst)

    @property
    def _values_are_means(self) -> bool:
        return read_loss(self.loss).has_means

    def _entry_loss(self, values: np.ndarray, expected: np.ndarray) -> np.ndarray:
        loss = read_loss(self.loss)
        losses: np.ndarray = loss.value(values, np.maximum(expected, loss.lower))
        return losses

    def _entry_fill(self, expected: np.ndarray) -> np.ndarray:
        loss = read_loss(self.loss)
        mean = loss.mean(np.maximum(expected, loss.lower))
        # Zeros and ones have no mean among them.
        return np.where(loss.accepts(mean), mean, np.nan)

    def _rows(self, problem: GeneralizedProblem, learned: GeneralizedLearned) -> Array:
        # The rows alone share the division of the data by its unit.
        ridge = scaled_ridge(problem, float(self.ridge), 1)
        rows = solve_rows(
            problem,
            [problem.asarray(factor) for factor in learned.others],
            ridge,
            exact=learned._exact_rows,
        )
        return problem.result(rows * problem.asarray(learned.scale))

    def _problem(self, given: TensorInput) -> GeneralizedProblem:
        return build_problem(given, self.missing, read_loss(self.loss))

    def _read_new(self, given: TensorInput) -> GeneralizedProblem:
        return build_problem(given, self.missing, read_loss(self.loss), self._model()._exponent)

    def _solver(self, problem: GeneralizedProblem) -> FactorSolver[Any]:
        if self.solver == "lbfgs" and self.batch_size is not None:
            message = (
                f"batch_size={self.batch_size} is for solver='adam': solver='lbfgs' needs the "
                "gradient of all cells. Use batch_size=None."
            )
            raise InvalidInputError(message)
        if self.solver == "adam" and not isinstance(problem, ZerosProblem):
            message = (
                "solver='adam' draws random cells of sparse data whose other entries are zeros, "
                "which this data is not. Use solver='lbfgs', whose gradients are exact."
            )
            raise InvalidInputError(message)
        if self.solver == "lbfgs" and not problem.is_exact:
            message = (
                f"The sparse data has {problem.n_observed:.3g} cells, zeros that are not stored "
                f"among them, and loss={problem.loss.name!r} would visit each of them in every "
                "iteration. Use solver='adam', or fit with missing='unobserved' if the zeros are "
                "not known to be zeros."
            )
            raise InvalidInputError(message)
        if isinstance(problem, ZerosProblem) and (self.solver == "adam" or not problem.is_exact):
            return self._adam_solver(problem)
        return QuasiNewtonSolver(
            problem,
            ridge=float(self.ridge),
            fixed_modes=problem.fixed_modes,
            tol=float(self.tol),
        )

    def _adam_solver(self, problem: ZerosProblem) -> AdamSolver:
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        options = AdamOptions(
            batch_size=None if self.batch_size is None else int(self.batch_size),
            learning_rate=float(self.learning_rate),
            epoch_iter=int(self.epoch_iter),
            tol=float(self.tol),
            seed=int(seed),
        )
        return AdamSolver(
            problem,
            ridge=float(self.ridge),
            fixed_modes=problem.fixed_modes,
            options=options,
        )

    def _read_init(self, problem: FitData, init: Any) -> Any:
        loss = read_loss(self.loss)
        if isinstance(init, str):
            names = NONNEGATIVE_STARTS if self._is_nonnegative else self._free_starts(problem)
            if init in names:
                return init
            message = (
                f"init={init!r} is not understood for loss={loss.name!r}. Give {names_of(names)}, "
                "a KruskalTensor, a pair (weights, factors) or a list of factors."
            )
            raise InvalidInputError(message)
        factors = given_start(problem, self.n_components, init)
        for mode, factor in enumerate(factors):
            bad = np.argwhere(factor < loss.lower)
            if bad.size:
                place = tuple(int(k) for k in bad[0])
                message = (
                    f"init has the negative number {factor[place]:.6g} at {place} of the factor "
                    f"of mode {mode}. A model with loss={loss.name!r} starts from factors that are "
                    "not negative."
                )
                raise InvalidInputError(message)
        return factors

    def _free_starts(self, problem: Any) -> list[str]:
        """Return the names of starts of a loss whose factors have any sign."""
        names = ["random"] if problem.loss.degree is None else ["svd", "random"]
        # A search looks at what every cell pulls.
        return [*names, "search"] if problem.is_exact and self.solver != "adam" else names

    def _first_of_search(self, problem: Any) -> str:
        has_vectors = self._is_nonnegative or problem.loss.degree is not None
        return "svd" if has_vectors else "random"

    @property
    def _is_nonnegative(self) -> bool:
        return read_loss(self.loss).lower == 0

    def _start(self, problem: Any, kind: str, seed: int) -> list[Array]:
        if kind in ("random", "move"):
            return random_start(problem, self.n_components, seed)
        data = FitData(problem.tensor)
        if problem.loss.lower == 0:
            return self._sized(problem, nonnegative_svd_start(data, self.n_components, seed))
        start = make_start(data, self.n_components, kind, seed)
        return [problem.asarray(factor) for factor in start]

    def _sized(self, problem: Any, factors: list[Array]) -> list[Array]:
        return of_the_level_of(problem, [problem.asarray(factor) for factor in factors])

    def _learned(self, solver: Any, state: Any) -> GeneralizedLearned:
        return GeneralizedLearned(
            **vars(super()._learned(solver, state)),
            _exponent=int(solver.problem.exponent),
            _exact_rows=bool(solver.problem.is_exact),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            takes_negative = bool(read_loss(self.loss).accepts(np.array([-1.0]))[0])
        except PolyadError:  # told by fit
            takes_negative = True
        tags.input_tags.positive_only = not takes_negative
        return tags


def _deviance(problem: GeneralizedProblem, factors: list[Array]) -> float:
    """Return the sum of the loss at a model, estimated where it has too many cells."""
    if isinstance(problem, ZerosProblem) and not problem.is_exact:
        return float(AdamSolver(problem).init(factors).objective)
    return problem.value(factors)
