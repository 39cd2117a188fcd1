"""AugmentedCP: the scikit-learn surface of the augmented CP decomposition (ATD)."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from array_api_compat import array_namespace
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from polyad.augmented.components import Components
from polyad.augmented.problem import (
    AugmentedData,
    Centre,
    flat,
    like,
    read_augmentation,
    read_output,
    read_preprocess,
    squares_of,
)
from polyad.augmented.signals.steps import restored_step, stored_step
from polyad.augmented.solver import (
    AugmentedState,
    FullBatchSolver,
    MiniBatchSolver,
    Moments,
    Settings,
    coefficients,
)
from polyad.core.arrays import to_numpy
from polyad.core.sklearn_compat import Interval, StrOptions, fit_context
from polyad.core.threads import thread_limit
from polyad.cp.family import CPLearned, check_rank
from polyad.cp.problem import build_problem
from polyad.cp.start import given_start, make_start
from polyad.cp.stochastic.family import check_single_pass, joined_batch_labels
from polyad.cp.stochastic.solver import broken_batch
from polyad.data.batches import Batch, MemorySource, SampleSource, matching, open_source
from polyad.data.label_values import joined_labels
from polyad.data.readers import TensorInput, sample_access
from polyad.data.validation import as_tensor_input, read_features
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.estimators.kruskal import KruskalResult
from polyad.exceptions import InvalidInputError, ModelFileError, NumericalError
from polyad.fitting import FitResult, History
from polyad.fitting.identity import digest_of
from polyad.fitting.status import Status
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from polyad.core.arrays import Array
    from polyad.fitting import Iteration
    from polyad.fitting.driver import Clock, FitError

# Samples whose features are made at a time, where no batch_size says so.
_SAMPLES_AT_A_TIME = 256


def _of_a_sample(value: Any, sizes: saving.Sizes) -> str:
    """Ask for a tensor of the shape of a sample."""
    return saving.array(*(f"n{mode}" for mode in range(1, sizes["N"])))(value, sizes)


def _sizes_of_input(value: Any, sizes: saving.Sizes) -> str:
    """Ask for the shape of a sample as it was given."""
    is_shape = isinstance(value, tuple) and len(value) > 0
    return "" if is_shape and all(type(n) is int and n > 0 for n in value) else "is not a shape"


def _names_of_input(value: Any, sizes: saving.Sizes) -> str:
    """Ask for names of the modes of samples as they were given."""
    is_names = isinstance(value, tuple) and all(isinstance(name, str) for name in value)
    is_sound = value is None or (is_names and len(set(value)) == len(value))
    return "" if is_sound else "is not a tuple of names"


def _labels_of_input(value: Any, sizes: saving.Sizes) -> str:
    """Ask for a list of labels, or None, for each mode of samples as they were given."""
    if not isinstance(value, list):
        return "is not a list"
    rules = [saving.nothing_or(saving.labels(f"labels {k}")) for k in range(len(value))]
    found = (rule(own, sizes) for rule, own in zip(rules, value, strict=True))
    return next(filter(None, found), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentedLearned(CPLearned):
    """Components, the mean of the samples, the metric of features, and what they follow from."""

    mean_: Array = saving.attribute(_of_a_sample)
    metric_: Array | None = saving.attribute(saving.nothing_or(saving.array("R", "R")))
    n_steps_: int = saving.attribute(saving.whole(0))
    _largest_batch: int = saving.attribute(saving.whole(0))
    _spread: float = saving.attribute(saving.number(0.0))
    _row_moments: Array = saving.attribute(saving.array("R", "R"))
    _change_moments: Array = saving.attribute(saving.array("R", "R"))


@documented
class AugmentedCP(KruskalResult, Factorization):
    r"""CP features of signals that learn from augmented samples (ATD).

    Each sample :math:`T_n` has a twin :math:`\tilde T_n` that was changed in a way that does not
    matter: noise, a rotation, a shift. Both are decomposed at once, and rows of twins are drawn
    together (self-supervision). With data about its mean and in the unit in which the mean of
    :math:`\|T_n\|^2` is one, a batch of N samples has the objective

    .. math:: \|T - [\![X, A, B, \dots]\!]\|^2 + \|\tilde T - [\![\tilde X, A, B, \dots]\!]\|^2
        + \alpha \big(\|X\|^2 + \|\tilde X\|^2 + \|A\|^2 + \|B\|^2 + \dots\big)
        + \beta \sum_n \Big(\frac{\gamma + 1}{N - 1} \sum_{s \ne n} \cos(x_n, \tilde x_s)
        - \cos(x_n, \tilde x_n)\Big)

    Features of a sample are its ridge projection on the components, in a metric that discounts
    what augmentation changes. They are linear in the sample.

    Parameters
    ----------
    {n_components}
    augment : callable, array or None, default=None
        Makes the twins: ``augment(batch, generator)`` returns a batch of the same shape, of samples
        as they were given and with a NumPy generator as the only source of chance. It is called
        anew for each batch of each sweep. :mod:`polyad.augmented.signals` has some for signals.
        An array has a twin for each sample of ``fit``. None is a plain decomposition.
    preprocess : callable or None, default=None
        ``preprocess(batch)`` makes the tensors that are decomposed, such as short-time Fourier
        features (:mod:`polyad.augmented.signals`), after augmentation. None takes samples as they
        are.
    alpha : float, default=1e-3
        The weight :math:`\alpha` of the squared rows and factors.
    beta : float, default=0.1
        The weight :math:`\beta` of self-supervision: compared with the mean square of a sample.
        Zero is the method without it, "ATD ss-", which still learns from twins.
    gamma : float, default=0.0
        How much more the twins of others push than the own one draws: zero is the same.
    rounds : int, default=1
        The steps that self-supervision takes for the rows of a batch.
    metric : {'auto', 'augmentation'} or None, default='auto'
        The metric of features. ``'augmentation'`` weighs directions down that augmentation
        changes, and makes features uncorrelated, in the order of signal to change, with a mean
        square of one over all of them. None gives the coefficients of the components, of length
        one, in the unit of the data. ``'auto'`` is the first with ``augment`` and None without.
    metric_floor : float, default=0.1
        A change that every direction is taken to have, as a part of the mean change. Large
        numbers discount nothing.
    center : bool, default=True
        Whether the mean of the samples is subtracted first.
    batch_size : int or None, default=128
        The most samples of a batch, two or more. None takes all samples at once, with the same
        twins in every sweep: the objective then never rises (Algorithm 1 of [1]_).
    learning_rate : 'auto' or float, default='auto'
        The part of the way that a batch moves the factors. ``'auto'`` is :math:`\max(t^{-1/2},
        \min(1, 2/n))` at step t with n batches per sweep. A number in (0, 1] is that of an
        exponential average of minimisers, in which the start does not count.
    shuffle : bool, default=True
        Whether each sweep has its own order, as in :class:`~polyad.StochasticCP`.
    init : {'svd', 'random'}, KruskalTensor, (weights, factors) or list of factors, default='svd'
        Where to start: singular vectors of the first batch, random numbers, or given factors, of
        which that of the samples is not used.
    {n_init, max_iter}
        An iteration is a sweep over the samples.
    tol : float, default=1e-3
        Stop when the best objective of three sweeps is less than this part below the best before
        them. Zero always does ``max_iter`` sweeps.
    time_budget : float, default=None
        Stop after this many seconds, over all restarts.
    {random_state}
        Also the order of the samples, and the twins.
    {n_jobs, warm_start}
        Its steps are counted on.
    {checkpoint, callbacks, verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One factor per mode of the tensors that ``preprocess`` makes, with columns of length one;
        that of the samples has their coefficients, whatever the metric.
    {components_, kruskal_}
    mean_ : array of shape (n_1, n_2, ...)
        The mean of the samples, zero with ``center=False``. The components add up to what is left.
    metric_ : array of shape (n_components, n_components) or None
        Takes the coefficients of a sample to its features, ``coefficients @ metric_``.
    {labels_, modes_}
        Those of the tensors, which ``preprocess.labels`` may tell.
    objective_ : float
        The objective of all batches over the number of samples, in the unit of the data.
    history_ : History
        The objective, its parts, the time and the mean cosines of rows with their twins and with
        those of others at each sweep. Of mini-batches it is taken before they move the factors.
    {n_iter_}
    n_steps_ : int
        The number of batches that moved the factors, those of ``partial_fit`` included.
    {status_, n_samples_seen_}
        Those of later ``partial_fit`` count too.
    {n_features_in_, feature_names_in_}

    Notes
    -----
    The decomposition, its updates and the ridge projection are those of [1]_. Ours are: weights
    without unit, data about its mean, damped steps, rates that forget the start, and the metric,
    which is what makes features robust to the changes that augmentation describes.

    ``fit``, ``transform`` and ``score`` take, besides arrays, arrays on disk (memory maps, zarr,
    h5py) and batches: a generator, a list of arrays, any object that can be iterated over, or a
    callable that returns one. At most one batch and its twin are in memory. ``fit`` reads the
    samples once before the first sweep, for their mean, and once after the last, for their rows.

    References
    ----------
    .. [1] C. Yang, C. Qian, N. Singh, C. Xiao, M. B. Westover, E. Solomonik, J. Sun, "ATD:
       Augmenting CP Tensor Decomposition by Self Supervision", NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import AugmentedCP
    >>> X = np.random.default_rng(0).normal(size=(200, 6, 32))
    >>> def noisy(batch, generator):
    ...     return batch + 0.1 * generator.normal(size=batch.shape)
    >>> model = AugmentedCP(4, augment=noisy, max_iter=3, tol=0, random_state=0)
    >>> model.fit_transform(X).shape
    (200, 4)
    """

    _reads_batches: ClassVar[bool] = True
    _learns = AugmentedLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        # An array has the twins of the samples of one fit.
        "augment": saving.Codec(
            lambda augment, _: stored_step(augment) if callable(augment) else None, restored_step
        ),
        "preprocess": saving.Codec(lambda preprocess, _: stored_step(preprocess), restored_step),
    }
    _RULES: ClassVar[dict[str, saving.Rule]] = {
        **KruskalResult._RULES,
        "n_features_in_": saving.whole(1),
        "_input_shape": _sizes_of_input,
        "_input_modes": _names_of_input,
        "_input_labels": _labels_of_input,
    }
    n_steps_: int
    mean_: Array
    metric_: Array | None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **FIT_CONSTRAINTS,
        "augment": [object],
        "preprocess": [object],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "beta": [Interval(Real, 0, None, closed="left")],
        "gamma": [Interval(Real, -1, None, closed="left")],
        "rounds": [Interval(Integral, 1, None, closed="left")],
        "metric": [StrOptions({"auto", "augmentation"}), None],
        "metric_floor": [Interval(Real, 0, None, closed="neither")],
        "center": ["boolean"],
        "batch_size": [Interval(Integral, 2, None, closed="left"), None],
        "learning_rate": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
        "shuffle": ["boolean"],
        "init": [object],
    }

    def __init__(
        self,
        n_components: int = 32,
        *,
        augment: Any = None,
        preprocess: Any = None,
        alpha: float = 1e-3,
        beta: float = 0.1,
        gamma: float = 0.0,
        rounds: int = 1,
        metric: str | None = "auto",
        metric_floor: float = 0.1,
        center: bool = True,
        batch_size: int | None = 128,
        learning_rate: Any = "auto",
        shuffle: bool = True,
        init: Any = "svd",
        n_init: int = 1,
        max_iter: int = 50,
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
        self.augment = augment
        self.preprocess = preprocess
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.rounds = rounds
        self.metric = metric
        self.metric_floor = metric_floor
        self.center = center
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.shuffle = shuffle
        self.init = init
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

    # Fit.

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from one more batch of samples, in one step.

        The first call makes a start from the batch. The mean of the samples moves along. The
        coefficients of the batch are appended to ``factors_[0]``; those of earlier samples are not
        computed again: ``transform`` does that. Components keep their order; the metric of
        features follows the new factors. ``status_``, ``history_`` and ``objective_`` stay those of
        the first call or of ``fit``.

        Parameters
        ----------
        X : array of shape (n_samples, n_1, ...)
            The samples of the batch.
        {y}
        """
        is_first = not hasattr(self, "factors_")
        if is_first:
            given = self._dense(self._validate_fit(X))
        else:
            self._validate_params()  # which scikit-learn leaves out for a fitted model
            self._check_same_rank("partial_fit")
            given = self._dense(self._validate_new(X))
            given = dataclasses.replace(given, data=matching(given.data, self.weights_))
        labels = given.labels[0] if is_first else joined_labels(self.labels_[0], given.labels[0])
        with thread_limit(self.n_jobs):
            problem = self._problem_of(MemorySource(given, given.shape[0]))
            learned = None if is_first else self._model()
            solver = MiniBatchSolver(problem, self._settings(None), self._no_centre(problem))
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            if learned is None:
                problem.start = self._read_init(problem, self.init)
                start = self._begin(solver, 0, seed)
            else:
                start = self._state_of(learned, solver, seed)
            batch = Batch(np.arange(given.shape[0]), given)
            state, _ = solver.take_batch(start, batch, start.n_steps)
            if not math.isfinite(state.parts.objective):
                raise broken_batch()
            moved = self._learned_of(solver, solver.with_rows(state, batch), learned)
            with self._all_or_nothing():
                if is_first:
                    history = History()
                    for moment in (start, state):
                        history.append(solver.objective(moment), 0.0, **solver.diagnostics(moment))
                    result = FitResult(state, Status.MAX_ITER, history, state)
                    result.objective = history.objective[-1]
                    self._keep_result(moved, result)
                    self._remember(X, given)
                else:
                    self._keep(moved)
                    self.n_samples_seen_ += given.shape[0]
                    self.labels_[0] = labels
        return self

    def _open(self, X: Any, mask: Any) -> SampleSource:
        size = self.batch_size
        access = sample_access(X)
        if size is None and access in ("batches", "once"):
            message = (
                "batch_size=None takes all samples at once, but X comes in batches. Give one "
                "array, or a number."
            )
            raise InvalidInputError(message)
        if access == "whole":
            given = self._dense(as_tensor_input(as_tensor_input(X, mask=mask)))
            return MemorySource(given, size or given.shape[0])
        source = open_source(X, int(size or X.shape[0]), allow_nan=False, mask=mask)
        self._dense(source.head)
        if source.reads_once:
            check_single_pass(self.max_iter, self.n_init, self.checkpoint)
        return source

    @staticmethod
    def _dense(given: TensorInput) -> TensorInput:
        if given.is_sparse:
            message = (
                "Sparse data is not taken: augmented samples and samples about their mean have no "
                "zeros. Give X.toarray(), or use StochasticCP."
            )
            raise InvalidInputError(message)
        return given

    def _content(self, given: SampleSource, y: Any) -> dict[str, Any]:
        return {"data": [digest_of(batch.given) for batch in given.sweep()], "y": y}

    def _read(self, given: Any, y: Any) -> AugmentedData:
        problem = self._problem_of(given)
        init = self.init
        if self._goes_on:
            self._check_goes_on(given.head, problem)
            init = KruskalTensor(self.weights_, [self.factors_[0], *self._model().others])
        problem.start = self._read_init(problem, init)
        return problem

    def _problem_of(self, source: SampleSource) -> AugmentedData:
        """Check the parameters against the data and make the problem."""
        shape = source.head.shape[1:]
        augment = read_augmentation(self.augment, source.n_samples, shape)
        if self.metric == "augmentation" and augment is None:
            message = (
                "metric='augmentation' discounts what augmentation changes, but augment=None. "
                "Give an augmentation, or metric=None."
            )
            raise InvalidInputError(message)
        preprocess = read_preprocess(self.preprocess)
        problem = AugmentedData(source, augment, preprocess, center=bool(self.center))
        check_rank(self.n_components, (math.prod(problem.shape), *problem.shape))
        return problem

    def _check_goes_on(self, given: TensorInput, problem: AugmentedData) -> None:
        """Refuse to go on with samples that are not laid out as those of the fit before."""
        self._check_same_rank("warm_start=True")
        self._check_order(given)
        laid_out = self._in_the_shape_of_the_model(given)
        pairs: Any = zip(laid_out.labels[1:], given.labels[1:], strict=True)
        same = laid_out.shape == given.shape and laid_out.modes == given.modes
        same = same and all(a is b or np.array_equal(a, b) for a, b in pairs)
        if not same or problem.shape != tuple(self.mean_.shape):
            message = (
                "warm_start=True goes on from factors whose shape or labels are not those of X, or "
                "are in another order. Bring X to the labels of the model first "
                "(LabelledTensor.align), or use warm_start=False."
            )
            raise InvalidInputError(message)

    def _check_same_rank(self, way: str) -> None:
        """Refuse to go on from a model of more or fewer components."""
        n_earlier = int(self.weights_.shape[0])
        if n_earlier != self.n_components:
            advice = "Use warm_start=False." if way == "warm_start=True" else "Use fit."
            message = (
                f"{way} goes on from a model of {n_earlier} components, but "
                f"n_components={self.n_components}. {advice}"
            )
            raise InvalidInputError(message)

    def _read_init(self, problem: AugmentedData, init: Any) -> Any:
        if isinstance(init, str) and init in ("svd", "random"):
            return init
        example = build_problem(problem.first_tensor(None), "zero", rescale=False)
        return given_start(example, self.n_components, init, any_samples=True)[1:]

    def _n_starts(self, problem: AugmentedData) -> int:
        # Given factors are one start; more of the same would only repeat it.
        return int(self.n_init) if isinstance(problem.start, str) else 1

    def _settings(self, n_batches: int | None) -> Settings:
        rate = self.learning_rate
        return Settings(
            alpha=float(self.alpha),
            beta=float(self.beta),
            gamma=float(self.gamma),
            rounds=int(self.rounds),
            rate=None if isinstance(rate, str) else float(rate),
            shuffle=bool(self.shuffle),
            n_batches=n_batches,
        )

    def _solver(self, problem: AugmentedData) -> FullBatchSolver | MiniBatchSolver:
        source = problem.source
        centre = self._no_centre(problem) if source.reads_once else problem.centre()
        if not source.reads_once and centre.spread == 0:
            self._warn_about_data("all samples are the same, and the decomposition is zero.")
        kind = FullBatchSolver if self.batch_size is None else MiniBatchSolver
        return kind(problem, self._settings(source.n_batches), centre)

    @staticmethod
    def _no_centre(problem: AugmentedData) -> Centre:
        return Centre(0, problem.asarray(np.zeros(math.prod(problem.shape))), 0.0)

    def _begin(self, solver: Any, number: int, seed: int) -> AugmentedState:
        problem = solver.problem
        if not isinstance(problem.start, str):
            n_steps = self.n_steps_ if self._goes_on else 1
            return solver.begin(problem.start, seed=seed, n_steps=n_steps)
        generator = np.random.default_rng([seed, 0]) if self.shuffle else None
        example = build_problem(problem.first_tensor(generator), "zero", rescale=False)
        factors = make_start(example, self.n_components, problem.start, number=number, seed=seed)
        return solver.begin(factors[1:], seed=seed, n_steps=0)

    def _run(
        self, problem: AugmentedData, solver: Any, identity: dict[str, Any], clock: Clock
    ) -> tuple[FitResult[Any], FitError | None]:
        result, broken = super()._run(problem, solver, identity, clock)
        if problem.source.reads_once and (broken or result.status is Status.INTERRUPTED):
            # The samples are gone, and the state is that before them.
            raise broken or KeyboardInterrupt
        return result, broken

    def _report_ending(self) -> None:
        # One sweep was asked for and made: it is no search that could have converged.
        if not (self.max_iter == 1 and self.status_ is Status.MAX_ITER):
            super()._report_ending()

    # What is learned.

    def _learned(self, solver: Any, state: AugmentedState) -> AugmentedLearned:
        return self._learned_of(solver, state, None)

    def _learned_of(
        self, solver: Any, state: AugmentedState, earlier: AugmentedLearned | None
    ) -> AugmentedLearned:
        """Return what a finished state has learned, after what was learned earlier, if it was."""
        found = Components.of(solver.problem, state)
        if earlier is None:
            found = found.canonical()
        else:
            found = found.after(earlier.factors_[0] * earlier.weights_[None, :])
        weights, factors = found.weighted()
        has_metric = self.metric is not None and solver.problem.augment is not None
        mean = state.centre.mean
        return AugmentedLearned(
            factors_=factors,
            weights_=weights,
            _lengths=found.lengths,
            mean_=array_namespace(mean).reshape(mean, solver.problem.shape),
            metric_=found.metric(float(self.metric_floor)) if has_metric else None,
            n_steps_=state.n_steps,
            _largest_batch=state.largest,
            _spread=state.centre.spread,
            _row_moments=found.moments.rows,
            _change_moments=found.moments.changes,
        )

    def _state_of(self, learned: AugmentedLearned, solver: Any, seed: int) -> AugmentedState:
        """Return the state that a model goes on from."""
        begun = solver.begin(learned.factors_[1:], seed=seed, n_steps=learned.n_steps_)
        moments = Moments(learned._row_moments, learned._change_moments)
        mean = flat(learned.mean_[None, ...])[0, :]
        centre = Centre(self.n_samples_seen_, mean, learned._spread)
        return dataclasses.replace(
            begun, centre=centre, moments=moments, largest=learned._largest_batch
        )

    def _remember(self, X: Any, given: TensorInput) -> None:
        self._input_shape = given.shape[1:]
        self._input_modes, self._input_labels = given.modes, list(given.labels[1:])
        super()._remember(X, given)
        if self.preprocess is not None:
            self.modes_, self.labels_ = self._names_of_tensors(given)

    def _described(self, given: SampleSource, solver: Any) -> TensorInput:
        if isinstance(given, MemorySource):
            return given.head
        labels = joined_batch_labels(solver.sample_labels)
        return dataclasses.replace(given.head, labels=(labels, *given.head.labels[1:]))

    def _names_of_tensors(
        self, given: TensorInput
    ) -> tuple[tuple[str, ...] | None, list[np.ndarray | None]]:
        """Return the names and labels of the modes that ``preprocess`` makes."""
        tell = getattr(self.preprocess, "labels", None)
        sizes = [int(n) for n in self.mean_.shape]
        if tell is None or len(given.shape) != 3:
            return None, [given.labels[0], *(None for _ in sizes)]
        channels = given.shape[1] if given.labels[1] is None else given.labels[1]
        modes, labels = tell(channels, given.shape[2])
        if [len(own) for own in labels] != sizes or len(modes) != len(sizes):
            message = (
                f"preprocess.labels tells {len(modes)} modes with {[len(own) for own in labels]} "
                f"labels, but the tensors have the shape {tuple(sizes)}."
            )
            raise InvalidInputError(message)
        samples = "sample" if given.modes is None else given.modes[0]
        return (samples, *modes), [given.labels[0], *map(np.asarray, labels)]

    # What new samples are compared with are samples as they were given.

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        return (int(self.factors_[0].shape[0]), *self._input_shape)

    @property
    def _known_modes(self) -> tuple[str, ...] | None:
        return self._input_modes

    @property
    def _known_labels(self) -> list[np.ndarray | None]:
        return [self.labels_[0], *self._input_labels]

    # Features.

    @property
    def _features_of_fit(self) -> Array:
        rows = self.factors_[0] * self.weights_[None, :]
        return rows if self.metric_ is None else rows @ self.metric_

    def transform(self, X: Any) -> Array:
        """Return the features of new samples, with everything else held as it was learned.

        Parameters
        ----------
        X : array of shape (n_samples, n_1, ...), array on disk, or batches
            New samples. Labelled data is matched by label.

        Returns
        -------
        array of shape (n_samples, n_components)
            The ridge solution of each sample on ``components_``, times ``metric_``.
        """
        parts, labels, learned = [], [], self._model()
        with thread_limit(self.n_jobs):
            for given in self._new_batches(X, for_features=True):
                parts.append(self._features(self._tensors(given.data), learned))
                labels.append(given.labels[0])
        features = parts[0]
        if len(parts) > 1:
            features = array_namespace(features).concat(parts, axis=0)
        return self._named(features, joined_batch_labels(labels))

    def _features(self, problem: Array, learned: AugmentedLearned) -> Array:
        rows = self._coefficients(problem, learned)
        if learned.metric_ is not None:
            rows = rows @ like(learned.metric_, rows)
        return array_namespace(rows).astype(rows, problem.dtype)

    def _coefficients(self, tensors: Array, learned: AugmentedLearned) -> Array:
        """Return the coefficients of samples, in double precision."""
        matrix = flat(tensors)
        about = matrix - flat(like(learned.mean_, matrix)[None, ...])
        return coefficients(about, learned.others, float(self.alpha))

    def _tensors(self, samples: Array) -> Array:
        preprocess = read_preprocess(self.preprocess)
        if preprocess is None:
            return samples
        tensors = read_output(preprocess(samples), samples, "preprocess", same_shape=False)
        if tuple(tensors.shape[1:]) != tuple(self.mean_.shape):
            message = (
                f"preprocess makes samples of shape {tuple(tensors.shape[1:])}, but those of the "
                f"fit had the shape {tuple(self.mean_.shape)}. Use the preprocess of the fit."
            )
            raise InvalidInputError(message)
        return tensors

    def _new_batches(self, X: Any, *, for_features: bool = False) -> Iterator[TensorInput]:
        """Give new samples, in the shape of the model, a batch at a time."""
        check_is_fitted(self)
        size = int(self.batch_size or _SAMPLES_AT_A_TIME)
        if sample_access(X) == "whole":
            given = self._dense(self._validate_new(X, for_features=for_features))
            for batch in MemorySource(given, size).sweep():
                yield batch.given
            return
        for batch in open_source(X, size, allow_nan=False, is_new=for_features).sweep():
            self._dense(batch.given)
            self._check_order(batch.given)
            yield self._in_the_shape_of_the_model(batch.given)

    def inverse_transform(self, X: Array) -> Array:
        """Return the samples that features stand for, as tensors that ``preprocess`` makes.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Features, as ``transform`` returns them.

        Returns
        -------
        array of shape (n_samples, n_1, ...)
            The mean, and the sum of the components, each times its coefficient.
        """
        check_is_fitted(self)
        features = read_features(X, int(self.weights_.shape[0]))
        if self.metric_ is not None:
            xp = array_namespace(self.metric_)
            features = xp.asarray(features, dtype=self.metric_.dtype) @ xp.linalg.pinv(self.metric_)
        return super().inverse_transform(features) + self.mean_[None, ...]

    def score(self, X: Any, y: Any = None) -> float:
        """Return the explained variation of samples about the mean of the fit.

        That is 1 minus the squared error of the ridge solution over the squares about the mean.

        Parameters
        ----------
        X : array of shape (n_samples, n_1, ...), array on disk, or batches
            Samples.
        {y}
        """
        error, total, learned = 0.0, 0.0, self._model()
        with thread_limit(self.n_jobs):
            for given in self._new_batches(X):
                tensors = self._tensors(given.data)
                xp = array_namespace(tensors)
                rows = xp.astype(self._coefficients(tensors, learned), tensors.dtype)
                about = tensors - like(learned.mean_, tensors)[None, ...]
                others = [like(factor, tensors) for factor in learned.factors_[1:]]
                left = about - kruskal_to_dense(None, [rows, *others])
                error += float(xp.sum(squares_of(flat(left))))
                total += float(xp.sum(squares_of(flat(about))))
        if not math.isfinite(error):
            message = "The score is not a finite number: the factors of the model are not."
            raise NumericalError(message)
        if total == 0:
            return 1.0 if error == 0 else 0.0
        return 1.0 - error / total

    def _entry_values(self, coords: np.ndarray) -> np.ndarray:
        mean = to_numpy(self.mean_)[tuple(coords[1:])]
        return super()._entry_values(coords) + mean

    # Files.

    def _check_restored(self) -> None:
        super()._check_restored()
        if len(self._input_labels) != len(self._input_shape) or (
            self._input_modes is not None and len(self._input_modes) != len(self._input_shape) + 1
        ):
            message = "what it says of samples does not fit together"
            raise ModelFileError(message)
        sizes = {None if own is None else len(own) for own in self._input_labels}
        pairs = zip(self._input_labels, self._input_shape, strict=True)
        if any(own is not None and len(own) != size for own, size in pairs):
            message = f"labels of samples, {sizes} of them, do not fit their shape"
            raise ModelFileError(message)
        if self.n_features_in_ != self._input_shape[0]:
            message = "n_features_in_ does not fit the shape of samples"
            raise ModelFileError(message)
        if self.preprocess is None and tuple(self.mean_.shape) != self._input_shape:
            message = "the shape of samples does not fit the factors"
            raise ModelFileError(message)

    # scikit-learn.

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags
