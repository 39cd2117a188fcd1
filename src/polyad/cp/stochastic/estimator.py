"""StochasticCP: the scikit-learn surface of stochastic alternating least squares."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from sklearn.utils import check_random_state

from polyad.core.arrays import namespace_of
from polyad.core.sklearn_compat import Interval, StrOptions, fit_context
from polyad.core.threads import thread_limit
from polyad.cp.family import COMMON_CONSTRAINTS, CPLearned, check_rank, read_fixed_modes
from polyad.cp.start import given_start, make_start
from polyad.cp.stochastic.family import (
    BatchedCP,
    unobserved_slices,
)
from polyad.cp.stochastic.graph import read_graph
from polyad.cp.stochastic.solver import (
    BatchedData,
    Counts,
    Settings,
    StochasticSolver,
    broken_batch,
    extended,
)
from polyad.data.batches import Batch, MemorySource, SampleSource, matching
from polyad.data.label_values import joined_labels
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS
from polyad.exceptions import InvalidInputError
from polyad.fitting import FitOptions, FitResult, History
from polyad.fitting.driver import deliver
from polyad.fitting.status import Status
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.cp.problem import FitData
    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration


# Components of this part of the size of a batch are none.
_NOTHING = 1e-12
# The largest weight of a graph, for data of size one.
_LARGEST_WEIGHT = 1e12


@dataclasses.dataclass(frozen=True, kw_only=True)
class StochasticLearned(CPLearned):
    """Components, the batches that moved them, and the largest one: smaller ones move them less."""

    n_steps_: int = saving.attribute(saving.whole(0))
    _largest_batch: int = saving.attribute(saving.whole(0))


@documented
class StochasticCP(BatchedCP):
    r"""CP decomposition by stochastic alternating least squares (SALS), batch by batch.

    Minimises the mean over batches of samples of

    .. math:: \min_X \tfrac12 \Big\|T_b - \sum_{r=1}^R x_r \circ a^{(1)}_r \circ \dots\Big\|^2
        + \tfrac{\lambda}{2} \Big(\|X\|^2 + \sum_k \|A^{(k)}\|^2\Big)
        + \tfrac{\mu}{2} \operatorname{tr}(X^\top L_b X)

    over the factors :math:`A^{(k)}` of the modes other than the samples. For each batch the rows
    :math:`X` are solved for, and each factor moves a part :math:`\eta` of the way to its minimiser
    for the batch. The last term is there with a graph only (GR-SALS).

    Use it for samples that do not fit into memory, that arrive over time, or that are so many that
    a part of them tells the components. Where all data fits, :class:`~polyad.CP` finds a
    minimum of the same loss exactly.

    Parameters
    ----------
    {n_components}
    batch_size : int, default=128
        The most samples of a batch. Have more than there are components, and enough for every
        component to occur in most batches.
    learning_rate : 'auto' or float, default='auto'
        The part of the way :math:`\eta`. ``'auto'`` is :math:`\max(t^{-1/2}, \min(1, 2/n))` at
        step t with n batches per sweep: large at first, in the end an average over half a sweep.
        A number in (0, 1] is that of an exponential average of the minimisers, in which the start
        does not count. The first batch always takes the place of a start that was not given.
    init : {'svd', 'random'}, KruskalTensor, (weights, factors) or list of factors, default='svd'
        Where to start: singular vectors of the first batch, random numbers, or given factors, of
        which that of the samples is not used. A given start counts as one step.
    {n_init}
        With ``init='svd'`` the first start is that one and the others are random.
    {max_iter}
        An iteration is a sweep over the samples.
    tol : float, default=1e-3
        Stop when the best objective of three sweeps is less than this part below the best before
        them. Zero always does ``max_iter`` sweeps.
    ridge : float, default=1e-3
        The weight :math:`\lambda` of the squared rows and factors, in every batch. It has the unit
        of the data: data of tiny entries needs a smaller one, or is scaled.
    shuffle : bool, default=True
        Whether each sweep has its own order. Data in memory is shuffled sample by sample. Of an
        array on disk the blocks are shuffled, of a list of batches the batches; other streams
        come as they are.
    graph : None, 'complete', 'published' or matrix, default=None
        Which samples are similar, and should get similar rows: a symmetric nonnegative matrix of
        shape (n_samples, n_samples), of which the edges inside a batch count: an array,
        scipy.sparse, or a table of pandas, polars or xarray, which is matched by the labels of
        the samples, also of those of batches; ``'complete'``, all samples of a batch; or
        ``'published'``, the matrix and single step of the program of [2]_, whose objective leaves
        the graph out.
    graph_weight : float, default=0.1
        The weight :math:`\mu` of the graph.
    {fixed_modes}
        Mode 0 cannot be fixed.
    {missing}
    time_budget : float, default=None
        Stop after this many seconds, over all restarts. Compiling does not count.
    {random_state}
        Also the order of the samples.
    {n_jobs, warm_start}
        Its steps are counted on.
    {checkpoint}
        It is saved after a sweep; to go on, the data is read once more.
    {callbacks, verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One factor per mode, with columns of length one.
    {components_, kruskal_, labels_, modes_}
    objective_ : float
        The sum of the objectives of all batches over the number of samples, of ``factors_`` and
        without the graph. That of a generator, which cannot be read again, is that of its sweep.
    history_ : History
        The objective, the time and the learning rate at each sweep, the objective of each batch
        taken with the graph and before the batch moved the factors. The row of the start has the
        objective of one batch.
    {n_iter_}
    n_steps_ : int
        The number of batches that moved the factors, those of ``partial_fit`` included.
    {status_}
        A fit of one sweep, as of a generator, ends with ``max_iter`` and does not warn.
    {n_samples_seen_}
        Those of later ``partial_fit`` count too.
    {n_features_in_, feature_names_in_}

    Notes
    -----
    ``fit``, ``transform`` and ``score`` take, besides all that is tensor-like, arrays on disk
    (memory maps, zarr, h5py) and batches: a generator, a list of arrays, any object that can be
    iterated over, or a callable that returns one. At most one block or batch of these is in
    memory. A list or tuple of arrays of order two or more is read as batches, not as samples.

    ``fit`` ends with one more pass over the samples, which makes ``factors_[0]`` what
    ``transform`` gives: the rows without the graph, which has no place for new samples. A
    generator cannot be read again: ``factors_[0]`` then holds the rows for the factors that each
    batch met. The objective may rise; a sweep costs two passes over the data.

    References
    ----------
    .. [1] Y. Cao, S. Das, L. Oeding, H.-W. van Wyk, "Analysis of the Stochastic Alternating Least
       Squares Method for the Decomposition of Random Tensors", arXiv:2004.12530 (2020).
    .. [2] C. Yang, C. Qian, N. Singh, C. Xiao, M. B. Westover, E. Solomonik, J. Sun, "ATD:
       Augmenting CP Tensor Decomposition by Self Supervision", NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import StochasticCP
    >>> X = np.random.default_rng(0).random((200, 5, 4))
    >>> model = StochasticCP(2, batch_size=50, random_state=0).fit(X)
    >>> model.transform(X).shape
    (200, 2)
    """

    _accepts_nan: ClassVar[bool] = True
    _learns = StochasticLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        # A matrix is between the samples of one fit.
        "graph": saving.Codec(
            lambda graph, _: graph if isinstance(graph, str) else None, lambda stored: stored
        )
    }
    n_steps_: int

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "n_init": FIT_CONSTRAINTS["n_init"],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
        "ridge": [Interval(Real, 0, None, closed="left")],
        "shuffle": ["boolean"],
        "graph": [object],
        "graph_weight": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        batch_size: int = 128,
        learning_rate: Any = "auto",
        init: Any = "svd",
        n_init: int = 1,
        max_iter: int = 100,
        tol: float = 1e-3,
        ridge: float = 1e-3,
        shuffle: bool = True,
        graph: Any = None,
        graph_weight: float = 0.1,
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
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.ridge = ridge
        self.shuffle = shuffle
        self.graph = graph
        self.graph_weight = graph_weight
        self.fixed_modes = fixed_modes
        self.missing = missing
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Learn from one more batch of samples, in one step.

        The first call makes a start from the batch. The rows of the batch, for the factors that it
        has moved, are appended to ``factors_[0]``; rows of earlier samples are not computed again:
        ``transform`` does that. Components keep their order, so that features stay comparable.
        ``status_``, ``history_`` and ``objective_`` stay those of the first call or of ``fit``.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            The samples of the batch. NaN marks missing entries of dense data.
        {y, mask}
        """
        if hasattr(self, "factors_"):
            self._validate_params()  # which scikit-learn leaves out for a fitted model
            self._check_same_rank(len(self.weights_), "partial_fit")
            self._take_further(self._validate_new(X, mask=mask))
            return self
        given = self._validate_fit(X, mask=mask)
        source = MemorySource(given, given.shape[0])
        with thread_limit(self.n_jobs):
            solver = self._solver(self._problem_of(source, self.init, n_batches=None))
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            start = self._begin(solver, 0, seed)
            _, loss, state = solver.take_batch(start, next(source.sweep()))
            state = dataclasses.replace(state, loss=loss / given.shape[0])
            history = History()
            for moment in (start, state):
                history.append(solver.objective(moment), 0.0, **solver.diagnostics(moment))
            objective = history.objective[-1]
            if not math.isfinite(objective):
                raise broken_batch()
            result = FitResult(state, Status.MAX_ITER, history, state, objective)
            result = deliver(solver, result, FitOptions())
            with self._all_or_nothing():
                self._keep_result(self._learned(solver, result.delivered), result)
                self._remember(X, given)
        return self

    def _read(self, given: Any, y: Any) -> BatchedData:
        init = self.init
        if self._goes_on:
            self._check_goes_on(given.head)
            init = KruskalTensor(self.weights_, [self.factors_[0], *self._model().others])
        problem = self._problem_of(given, init, n_batches=given.n_batches)
        self._warn_about_content(problem, given.head)
        return problem

    def _problem_of(self, source: SampleSource, init: Any, *, n_batches: int | None) -> BatchedData:
        """Check the parameters against the data and make the problem."""
        sample = source.head.shape[1:]
        # Of one batch of a stream, nobody knows how many samples will follow.
        n_samples = None if n_batches is None else source.n_samples
        check_rank(self.n_components, (n_samples or math.prod(sample), *sample))
        fixed = read_fixed_modes(self.fixed_modes, len(sample) + 1, self.init)
        if 0 in fixed or len(fixed) == len(sample):
            message = (
                f"fixed_modes={list(self.fixed_modes)} leaves nothing to learn or has mode 0: the "
                "rows of the samples are always solved for. Fix some of the other modes, or use "
                "CP; transform finds rows for factors that are all known."
            )
            raise InvalidInputError(message)
        problem = BatchedData(source, self.missing, source.first_informative(), n_batches)
        problem.fixed_modes = fixed
        is_whole = n_samples is not None and isinstance(source, MemorySource)
        labels = source.head.labels[0]
        problem.graph = read_graph(self.graph, n_samples, labels, is_whole=is_whole)
        problem.start = self._read_init(problem, init)
        return problem

    def _solver(self, problem: BatchedData) -> StochasticSolver:
        rate = self.learning_rate
        settings = Settings(
            ridge=float(self.ridge),
            rate=None if isinstance(rate, str) else float(rate),
            graph=problem.graph,
            graph_weight=float(self.graph_weight),
            shuffle=bool(self.shuffle),
            n_batches=problem.n_batches,
            fixed_modes=frozenset(problem.fixed_modes),
        )
        solver = StochasticSolver(problem, settings)
        if problem.graph is not None and solver.graph_weight > _LARGEST_WEIGHT:
            limit = _LARGEST_WEIGHT * settings.graph_weight / solver.graph_weight
            message = (
                f"graph_weight={self.graph_weight} is so large for this data that no digit of it "
                f"would be left: give at most {limit:.3g}."
            )
            raise InvalidInputError(message)
        return solver

    def _warn_about_content(self, problem: FitData, given: TensorInput) -> None:
        data = cast("BatchedData", problem)
        in_memory = isinstance(data.source, MemorySource)
        if in_memory and data.first.is_unobserved:
            message = "The sparse data has no stored entry, so nothing was observed."
            raise InvalidInputError(message)
        if data.first.norm_squared == 0:
            self._warn_about_data("every entry is zero, and so is the decomposition.")
        if not in_memory or given.is_sparse:
            return
        for mode, position in unobserved_slices(given):
            self._warn_about_data(
                f"nothing was observed at position {position} of {given.mode_title(mode)}, the "
                "first such; its row of the factor has no meaning."
            )

    def _warn_about_model(self, problem: BatchedData, learned: CPLearned) -> None:
        """Say so if nothing is left, as the ridge does to data in a tiny unit."""
        first = problem.first
        if self.ridge == 0 or first.norm_squared == 0:
            return
        size = math.sqrt(first.norm_squared) * 2.0**first.exponent
        if float(namespace_of(learned.weights_).max(learned.weights_)) <= _NOTHING * size:
            self._warn_about_data(
                f"every component is zero, but the data is not. ridge={self.ridge} is too large "
                "for entries of this size, or small batches have nothing in common: use a smaller "
                "ridge, scale the data to entries of about one, or take a larger batch_size."
            )

    def _read_init(self, problem: FitData, init: Any) -> Any:
        if isinstance(init, str) and init in ("svd", "random"):
            return init
        return given_start(problem, self.n_components, init, any_samples=True)[1:]

    def _begin(self, solver: StochasticSolver, number: int, seed: int) -> Any:
        data = solver.problem
        if not isinstance(data.start, str):
            n_steps = self.n_steps_ if self._goes_on else 1
            return solver.begin(data.start, seed=seed, n_steps=n_steps)
        generator = np.random.default_rng([seed, 0]) if self.shuffle else None
        problem = data.problem_of(data.source.first_informative(generator))
        factors = make_start(
            problem, self.n_components, data.start if number == 0 else "random", seed
        )
        return solver.begin(factors[1:], seed=seed, n_steps=0)

    def _take_further(self, given: TensorInput) -> None:
        """Move the factors of the model by one batch and append its rows."""
        labels = joined_labels(self.labels_[0], given.labels[0])
        given = dataclasses.replace(given, data=matching(given.data, self.weights_))
        batch = Batch(np.arange(given.shape[0]) + self.n_samples_seen_, given)
        learned: StochasticLearned = self._model()
        counts = Counts(learned.n_steps_, learned._largest_batch)
        with thread_limit(self.n_jobs):
            source = MemorySource(given, given.shape[0])
            solver = self._solver(self._problem_of(source, self.init, n_batches=None))
            model, lengths, counts = extended(solver, batch, self.kruskal_, learned.others, counts)
        self._keep(
            StochasticLearned(
                factors_=list(model.factors),
                weights_=model.weights,
                _lengths=lengths,
                n_steps_=counts.n_steps,
                _largest_batch=counts.largest,
            )
        )
        self.n_samples_seen_ += given.shape[0]
        self.labels_[0] = labels

    def _learned(self, solver: Any, state: Any) -> StochasticLearned:
        return StochasticLearned(
            **vars(super()._learned(solver, state)),
            n_steps_=state.n_steps,
            _largest_batch=state.largest,
        )
