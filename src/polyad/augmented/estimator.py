"""AugmentedCP: the scikit-learn surface of the augmented CP decomposition (ATD)."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from polyad.augmented.learned import (
    AugmentedLearned,
    labels_of_input,
    names_of_input,
    sizes_of_input,
)
from polyad.augmented.problem import (
    AugmentedData,
    Preprocess,
    channel_scales,
    first_batch,
    read_augmentation,
    read_preprocess,
    tensor_names,
)
from polyad.augmented.report import feature_sizes, maps
from polyad.augmented.signals.steps import like, restored_step, stored_step
from polyad.augmented.solver import FullBatchSolver, MiniBatchSolver, Settings
from polyad.core.arrays import namespace_of
from polyad.core.sklearn_compat import Interval, StrOptions, fit_context
from polyad.core.threads import thread_limit
from polyad.cp.family import check_rank
from polyad.cp.problem import build_problem
from polyad.cp.solver import ridge_rows
from polyad.cp.start import given_start, make_start
from polyad.cp.stochastic.family import BatchedCP
from polyad.cp.stochastic.solver import broken_batch
from polyad.data.batches import Batch, MemorySource, matching, open_source
from polyad.data.label_values import joined_labels
from polyad.data.readers import sample_access
from polyad.data.validation import as_tensor_input, read_features
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS
from polyad.exceptions import InvalidInputError, ModelFileError
from polyad.fitting import FitResult, History
from polyad.fitting.status import Status
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from polyad.augmented.solver import AugmentedState
    from polyad.core.arrays import Array
    from polyad.cp.problem import Problem
    from polyad.data.batches import SampleSource
    from polyad.data.readers import TensorInput
    from polyad.estimators.base import ReportSection
    from polyad.fitting import Iteration

# A batch of so many samples has all of them.
_ALL = 2**40
# Samples whose features are made at a time, where no batch_size says so.
_SAMPLES_AT_A_TIME = 256


@documented
class AugmentedCP(BatchedCP):
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
    beta : float, default=0.01
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
    metric_floor : float, default=0.005
        A change that every direction is taken to have, as a part of the mean change. Large
        numbers discount nothing.
    center : bool, default=True
        Whether the mean of the samples is subtracted first.
    scale_channels : bool, default=True
        Whether each channel, an entry of mode 1, is divided by its standard deviation in the first
        batch before ``preprocess``, so that logarithms of recordings in volts and in microvolts
        are the same. Without ``preprocess`` samples are never scaled.
    batch_size : int or None, default=128
        The most samples of a batch, two or more. None takes all samples at once, with the same
        twins in every sweep: the objective then never rises (Algorithm 1 of [1]_).
    learning_rate : 'auto' or float, default='auto'
        The part of the way that a batch moves the factors. ``'auto'`` is :math:`\max(t^{-1/2},
        \min(1, 2/n))` at step t with n batches per sweep. A number in (0, 1] is that of an
        exponential average of minimisers, in which the start does not count.
    shuffle : bool, default=True
        Whether each sweep has its own order, as in :class:`~polyad.StochasticCP`.
    init : {'random', 'svd'}, KruskalTensor, (weights, factors) or list of factors, default='random'
        Where to start: random numbers, singular vectors of the first batch, which are a poor start
        with more components than a mode has entries, or given factors, of which that of the
        samples is not used.
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
    channel_scales_ : array of shape (n_1,) or None
        What channels are divided by before ``preprocess``.
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
    With a metric, feature k (``augmentedcpk``) is a mixture of all components and not component k
    (``componentk`` in factor tables): ``inverse_transform(np.eye(n_components)) - mean_`` has the
    pattern of each feature.

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
    >>> model = AugmentedCP(4, augment=noisy, random_state=0)
    >>> model.fit_transform(X).shape
    (200, 4)
    """

    _learns = AugmentedLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        # An array has the twins of the samples of one fit.
        "augment": saving.Codec(
            lambda augment, _: stored_step(augment) if callable(augment) else None, restored_step
        ),
        "preprocess": saving.Codec(lambda preprocess, _: stored_step(preprocess), restored_step),
    }
    _RULES: ClassVar[dict[str, saving.Rule]] = {
        **BatchedCP._RULES,
        "n_features_in_": saving.whole(1),
        "_input_shape": sizes_of_input,
        "_input_modes": names_of_input,
        "_input_labels": labels_of_input,
    }
    n_steps_: int
    mean_: Array
    metric_: Array | None
    channel_scales_: Array | None

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
        "scale_channels": ["boolean"],
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
        beta: float = 0.01,
        gamma: float = 0.0,
        rounds: int = 1,
        metric: str | None = "auto",
        metric_floor: float = 0.005,
        center: bool = True,
        scale_channels: bool = True,
        batch_size: int | None = 128,
        learning_rate: Any = "auto",
        shuffle: bool = True,
        init: Any = "random",
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
        self.scale_channels = scale_channels
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
        earlier = self._model() if hasattr(self, "factors_") else None
        given = self._read_batch(X, earlier)
        with thread_limit(self.n_jobs):
            scales = None if earlier is None else earlier.channel_scales_
            problem = self._problem_of(MemorySource(given, given.shape[0]), scales)
            solver = MiniBatchSolver(problem, self._settings(None), problem.no_centre())
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            problem.start = self._read_init(problem, self.init)
            start = self._begin(solver, 0, seed)
            if earlier is not None:
                start = earlier.resumed(start, self.n_samples_seen_)
            batch = Batch(np.arange(given.shape[0]), given)
            state, _ = solver.take_batch(start, batch, start.n_steps)
            if not math.isfinite(state.parts.objective):
                raise broken_batch()
            learned = self._learned_after(earlier, problem, solver.with_rows(state, batch))
        with self._all_or_nothing():
            if earlier is None:
                begun = dataclasses.replace(start, centre=state.centre)
                self._keep_first(solver, learned, [begun, state])
                self._remember(X, given)
            else:
                self.labels_[0] = joined_labels(self.labels_[0], given.labels[0])
                self.n_samples_seen_ += given.shape[0]
                self._keep(learned)
        return self

    def _read_batch(self, X: Any, earlier: AugmentedLearned | None) -> TensorInput:
        if earlier is None:
            return _dense(self._validate_fit(X))
        self._validate_params()  # which scikit-learn leaves out for a fitted model
        self._check_same_rank(len(self.weights_), "partial_fit")
        given = _dense(self._validate_new(X))
        joined_labels(self.labels_[0], given.labels[0])  # which may be refused
        return dataclasses.replace(given, data=matching(given.data, self.weights_))

    def _keep_first(
        self, solver: MiniBatchSolver, learned: AugmentedLearned, states: list[AugmentedState]
    ) -> None:
        history = History()
        for state in states:
            history.append(solver.objective(state), 0.0, **solver.diagnostics(state))
        objective = history.objective[-1]
        result = FitResult(states[-1], Status.MAX_ITER, history, states[-1], objective=objective)
        self._keep_result(learned, result)

    def _open(self, X: Any, mask: Any) -> SampleSource:
        _refuse_mask(mask)
        access = sample_access(X)
        if access == "whole":
            given = _dense(as_tensor_input(X))
            return MemorySource(given, self.batch_size or given.shape[0])
        if self.batch_size is None and access == "blocks":
            whole = open_source(X, _ALL, allow_nan=False, mask=mask).head
            return MemorySource(whole, whole.shape[0])
        if self.batch_size is None:
            message = (
                "batch_size=None takes all samples at once, but X comes in batches. Give one "
                "array, or a number."
            )
            raise InvalidInputError(message)
        source = super()._open(X, mask)
        _dense(source.head)
        return source

    def _read(self, given: Any, y: Any) -> Any:
        problem = self._problem_of(given, self.channel_scales_ if self._goes_on else None)
        init = self.init
        if self._goes_on:
            self._check_goes_on(given.head)
            init = KruskalTensor(self.weights_, [self.factors_[0], *self._model().others])
        problem.start = self._read_init(problem, init)
        return problem

    def _problem_of(self, source: SampleSource, scales: Array | None) -> AugmentedData:
        """Check the parameters against the data and make the problem.

        ``scales`` are those of channels if they are known.
        """
        augment = read_augmentation(self.augment, source.n_samples, source.head.shape[1:])
        if self.metric == "augmentation" and augment is None:
            message = (
                "metric='augmentation' discounts what augmentation changes, but augment=None. "
                "Give an augmentation, or metric=None."
            )
            raise InvalidInputError(message)
        function = read_preprocess(self.preprocess)
        if function is None or not self.scale_channels:
            scales = None
        elif scales is None:
            scales = channel_scales(first_batch(source))
        preprocess = Preprocess(function, scales)
        problem = AugmentedData(source, augment, preprocess, center=bool(self.center))
        check_rank(self.n_components, (math.prod(problem.shape), *problem.shape))
        return problem

    def _read_init(self, problem: Any, init: Any) -> Any:
        if isinstance(init, str) and init in ("svd", "random"):
            return init
        example = build_problem(problem.first_tensor(None), "zero", rescale=False)
        return given_start(example, self.n_components, init, any_samples=True)[1:]

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
        centre = problem.no_centre() if source.reads_once else problem.centre()
        if centre.n_samples and centre.spread == 0:
            self._warn_about_data("all samples are the same, and the decomposition is zero.")
        kind = FullBatchSolver if self.batch_size is None else MiniBatchSolver
        return kind(problem, self._settings(problem.n_batches), centre)

    def _begin(self, solver: Any, number: int, seed: int) -> Any:
        problem = solver.problem
        if not isinstance(problem.start, str):
            n_steps = self.n_steps_ if self._goes_on else 1
            return solver.begin(problem.start, seed=seed, n_steps=n_steps)
        generator = np.random.default_rng([seed, 0]) if self.shuffle else None
        example = build_problem(problem.first_tensor(generator), "zero", rescale=False)
        factors = make_start(
            example, self.n_components, problem.start if number == 0 else "random", seed
        )
        return solver.begin(factors[1:], seed=seed, n_steps=0)

    # What is learned.

    def _learned(self, solver: Any, state: AugmentedState) -> AugmentedLearned:
        return self._learned_after(None, solver.problem, state)

    def _learned_after(
        self, earlier: AugmentedLearned | None, problem: AugmentedData, state: AugmentedState
    ) -> AugmentedLearned:
        has_metric = self.metric is not None and problem.augment is not None
        floor = float(self.metric_floor) if has_metric else None
        return AugmentedLearned.of(problem, state, earlier, floor)

    def _warn_about_model(self, problem: AugmentedData, learned: AugmentedLearned) -> None:
        """Say so if nothing is left, as a ridge does that is too large."""
        if learned._spread > 0 and learned.is_nothing:
            self._warn_about_data(
                f"every component is zero, but the data is not. alpha={self.alpha} is too large: "
                "use a smaller one."
            )

    def _remember(self, X: Any, given: TensorInput) -> None:
        self._input_shape = given.shape[1:]
        self._input_modes, self._input_labels = given.modes, list(given.labels[1:])
        super()._remember(X, given)
        if self.preprocess is not None:
            self.modes_, self.labels_ = tensor_names(self.preprocess, given, self.mean_.shape)

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
        rows = super()._features_of_fit
        return rows if self.metric_ is None else rows @ self.metric_

    def _problem(self, given: TensorInput) -> Problem:
        function = read_preprocess(self.preprocess)
        tensors = Preprocess(function, self.channel_scales_)(given.data)
        if tuple(tensors.shape[1:]) != tuple(self.mean_.shape):
            message = (
                f"preprocess makes samples of shape {tuple(tensors.shape[1:])}, but those of the "
                f"fit had the shape {tuple(self.mean_.shape)}. Use the preprocess of the fit."
            )
            raise InvalidInputError(message)
        return build_problem(tensors - like(self.mean_, tensors)[None, ...], "zero")

    def _rows(self, problem: Any, learned: Any) -> Array:
        return ridge_rows(problem, learned.others, learned.scale, float(self.alpha))

    def _features(self, problem: Any, learned: AugmentedLearned) -> Array:
        rows = super()._features(problem, learned)
        return rows if learned.metric_ is None else rows @ like(learned.metric_, rows)

    def _new_batches(
        self, X: Any, mask: Any, *, for_features: bool = False
    ) -> Iterator[TensorInput]:
        """Give new samples a batch at a time, because ``preprocess`` may make more of them."""
        _refuse_mask(mask)
        for given in super()._new_batches(X, None, for_features=for_features):
            whole = _dense(given)
            size = self.batch_size or _SAMPLES_AT_A_TIME
            yield from (batch.given for batch in MemorySource(whole, size).sweep())

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
            xp = namespace_of(self.metric_)
            features = xp.asarray(features, dtype=self.metric_.dtype) @ xp.linalg.pinv(self.metric_)
        return super().inverse_transform(features) + self.mean_[None, ...]

    def _report_sections(self) -> list[ReportSection]:
        sections = [] if len(self.factors_) < 3 else [maps(self)]
        return sections if self.metric_ is None else [*sections, feature_sizes(self)]

    # Files.

    def _check_restored(self) -> None:
        super()._check_restored()
        labels, shape, modes = self._input_labels, self._input_shape, self._input_modes
        sizes = [n if own is None else len(own) for own, n in zip(labels, shape, strict=False)]
        is_sound = [len(labels), *sizes] == [len(shape), *shape]
        is_sound &= modes is None or len(modes) == len(shape) + 1
        is_sound &= self.n_features_in_ == shape[0]
        is_sound &= self.preprocess is not None or tuple(self.mean_.shape) == shape
        scales = self.channel_scales_
        is_sound &= scales is None or len(scales) == shape[0]
        if not is_sound:
            message = "what it says of samples does not fit together"
            raise ModelFileError(message)

    # scikit-learn.

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags


def _refuse_mask(mask: Any) -> None:
    if mask is not None:
        message = (
            "A mask was given, but AugmentedCP takes no missing entries. Fill or drop them, and "
            "leave out the mask; StochasticCP takes one."
        )
        raise InvalidInputError(message)


def _dense(given: TensorInput) -> TensorInput:
    if given.is_sparse:
        message = (
            "Sparse data is not taken: augmented samples and samples about their mean have no "
            "zeros. Give X.toarray(), or use StochasticCP."
        )
        raise InvalidInputError(message)
    return given
