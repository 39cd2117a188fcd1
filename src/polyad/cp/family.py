"""What the estimators of the CP family share: fit, transform, restarts, checkpoints.

A member says which problem its data makes, which solver minimises it and how the rows of new
samples are found. Everything else is here, without mathematics.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

from array_api_compat import array_namespace
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from polyad.core.sklearn_compat import Interval, StrOptions, fit_context
from polyad.core.threads import thread_limit
from polyad.cp.parameters import check_rank, read_fixed_modes
from polyad.cp.start import given_start, make_start
from polyad.data.validation import read_features
from polyad.estimators import saving
from polyad.estimators.base import TensorEstimator
from polyad.exceptions import InvalidInputError, NumericalError, Status
from polyad.fitting import Checkpoint, FitOptions, FitResult, Iteration, Resumable, fit_best
from polyad.fitting.clock import Clock
from polyad.fitting.driver import FitError, read_callbacks
from polyad.fitting.identity import UNCOUNTED, fit_identity
from polyad.tensor.alignment import normalize_components, weight_order
from polyad.tensor.kruskal import KruskalTensor, column_norms
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from polyad.core.arrays import Array
    from polyad.cp.problem import FitData
    from polyad.cp.solver import FactorSolver
    from polyad.data.validation import Missing, TensorInput

#: The constraints of the parameters that every member has.
COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "init": [object],
    "n_init": [Interval(Integral, 1, 10**6, closed="both")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "fixed_modes": ["array-like", set, frozenset],
    "missing": [StrOptions({"zero", "unobserved"})],
    "time_budget": [Interval(Real, 0, None, closed="neither"), None],
    "random_state": ["random_state"],
    "n_jobs": [Integral, None],
    "warm_start": ["boolean"],
    "checkpoint": [object],
    "callbacks": ["array-like", callable, None],
    "verbose": ["verbose"],
}


# Weights below this part of the norm of the data are nothing.
_NOTHING = 1e-10


class CPFamily(TensorEstimator):
    """Base of the CP decompositions."""

    _learned: ClassVar[dict[str, saving.Rule]] = {
        "_lengths": saving.per_mode(saving.array("R", low=0.0), first=1),
    }
    #: Parameters that a checkpoint need not agree with.
    _uncounted: ClassVar[frozenset[str]] = UNCOUNTED

    # The lengths that the columns of the modes other than the samples had during the fit.
    _lengths: list[Array]

    if TYPE_CHECKING:  # the parameters that every member has
        n_components: int
        init: Any
        n_init: int
        max_iter: int
        tol: float
        fixed_modes: Iterable[int]
        missing: Missing
        time_budget: float | None
        random_state: int | np.random.RandomState | None
        n_jobs: int | None
        warm_start: bool
        checkpoint: Any
        callbacks: Sequence[Callable[[Iteration], object]] | None
        verbose: int

    @abstractmethod
    def _problem(self, given: TensorInput) -> FitData:
        """Make the problem of some data."""

    def _new_problem(self, given: TensorInput) -> FitData:
        """Make the problem of new samples, by default as that of a fit."""
        return self._problem(given)

    @abstractmethod
    def _solver(self, problem: Any, fixed_modes: list[int]) -> FactorSolver[Any]:
        """Make the solver of a problem; one with side information has ``_informed_solver``."""

    @abstractmethod
    def _rows(self, problem: Any) -> Array:
        """Return the coefficients of samples on the components."""

    def _informed_solver(
        self, given: TensorInput, y: Any, problem: Any, fixed_modes: list[int]
    ) -> FactorSolver[Any]:
        """Make the solver of a problem; members with side information read it here."""
        return self._solver(problem, fixed_modes)

    def _read_init(self, problem: FitData, init: Any, carrier: int = 0) -> Any:
        """Return the name of a start, or the factors of a given one, its weights in a mode."""
        if isinstance(init, str) and init in ("svd", "random"):
            return init
        return given_start(problem, self.n_components, init, carrier)

    def fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Decompose a tensor.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            Dense, sparse or labelled data; mode 0 holds the samples. NaN marks missing entries of
            dense data.
        y : None
            Ignored.
        mask : array of bool, default=None
            For dense data, True where an entry was observed.
        """
        self._fit(X, mask)
        self._report_ending()
        return self

    def fit_transform(self, X: Any, y: Any = None, *, mask: Any = None) -> Array:
        """Decompose a tensor and return the features of its samples.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            The data.
        y : None
            Ignored.
        mask : array of bool, default=None
            For dense data, True where an entry was observed.

        Returns
        -------
        array of shape (n_samples, n_components)
            The factor of the samples times the weights.
        """
        self._fit(X, mask)
        self._report_ending()
        return self._named(self.factors_[0] * self.weights_[None, :], self.labels_[0])

    def transform(self, X: Any, *, mask: Any = None) -> Array:
        """Return the features of new samples, with the other modes held as they are.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            New samples. Labelled data is matched by label.
        mask : array of bool, default=None
            For dense data, True where an entry was observed.

        Returns
        -------
        array of shape (n_samples, n_components)
            The best coefficients of each sample on ``components_``.
        """
        features, labels = self._features(X, mask)
        return self._named(features, labels)

    def _features(self, X: Any, mask: Any) -> tuple[Array, np.ndarray | None]:
        """Return the features of new samples, and their labels."""
        given = self._validate_new(X, mask=mask, for_features=True)
        with thread_limit(self.n_jobs):
            problem = self._new_problem(given)
            return self._rows(problem) * 2.0**problem.exponent, given.labels[0]

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
        xp = array_namespace(self.weights_)
        rows = xp.asarray(features, dtype=self.weights_.dtype)
        shape = [int(rows.shape[0]), *(int(factor.shape[0]) for factor in self.factors_[1:])]
        self._check_dense_size(shape, "inverse_transform")
        return kruskal_to_dense(xp.ones_like(self.weights_), [rows, *self.factors_[1:]])

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the explained variation of samples: 1 minus the squared error over the squares.

        The features of the samples are fitted to those samples, so that the score of new samples
        seldom falls with more components, even beyond the true rank.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            Samples.
        y : None
            Ignored.
        mask : array of bool, default=None
            For dense data, True where an entry was observed.
        """
        return self._explained_variation(X, mask)

    @fit_context(prefer_skip_nested_validation=True)
    def _fit(self, X: Any, mask: Any, y: Any = None) -> None:
        clock = Clock()
        read_callbacks(self.callbacks)
        Checkpoint.of(self.checkpoint)
        earlier = self.kruskal_ if self.warm_start and hasattr(self, "factors_") else None
        given = self._validate_fit(X, mask=mask)
        check_rank(self.n_components, given.shape)
        fixed = read_fixed_modes(self.fixed_modes, len(given.shape), self.init)
        if earlier is not None and earlier.shape != given.shape:
            further = "partial_fit for further samples, or " if hasattr(self, "partial_fit") else ""
            message = (
                f"warm_start=True goes on from a model of shape {earlier.shape}, but X has the "
                f"shape {given.shape}. Use {further}warm_start=False."
            )
            raise InvalidInputError(message)
        if earlier is not None and earlier.n_components != self.n_components:
            message = (
                f"warm_start=True goes on from a model of {earlier.n_components} components, but "
                f"n_components={self.n_components}. Use warm_start=False."
            )
            raise InvalidInputError(message)
        identity = self._identity(given, y)
        with thread_limit(self.n_jobs):
            problem = self._problem(given)
            if self.missing == "unobserved" and given.is_sparse and given.data.nnz == 0:
                message = "The sparse data has no stored entry, so nothing was observed."
                raise InvalidInputError(message)
            for mode, position in problem.unobserved_slices():
                title = given.mode_title(mode)
                self._warn_about_data(
                    f"nothing was observed at position {position} of {title}, the first such; its "
                    "row of the factor is zero."
                )
            if problem.is_zero:
                self._warn_about_data("every entry is zero, and so is the decomposition.")
            solver = self._informed_solver(given, y, problem, fixed)
            broken: FitError | None = None
            try:
                start = self.init if earlier is None else earlier
                result = self._run(solver, start, identity, clock)
            except FitError as error:
                broken, result = error, error.result
            with self._storing(result, broken):
                self._store(solver, result)
            self._warn_about_nothing(solver)
        self._remember(X, given)
        self.n_samples_seen_ = given.shape[0]
        if broken is not None:
            raise broken

    def _warn_about_nothing(self, solver: Any) -> None:
        """Say so if the model is zero everywhere, but the data is not."""
        if self._values_are_means and not solver.problem.is_zero and self._is_nothing(solver):
            self._warn_about_data(
                f"every component is zero, but the data is not. {self._advice_on_nothing(solver)}"
            )

    def _is_nothing(self, solver: Any) -> bool:
        """Say whether the model is zero, compared with the data."""
        problem = solver.problem
        size: float = math.sqrt(problem.norm_squared) * 2.0**problem.exponent
        sizes = math.prod((column_norms(factor) for factor in self.factors_), start=self.weights_)
        largest = float(array_namespace(sizes).max(sizes))
        return largest <= _NOTHING * size

    def _advice_on_nothing(self, solver: Any) -> str:
        """Return what can leave nothing, and what to do."""
        return (
            "A penalty that is too large for entries of this size does that, and so does an init "
            "with zeros: use smaller penalties, scale the data to entries of about one, or use "
            "another init."
        )

    def _run(
        self, solver: FactorSolver[Any], init: Any, identity: dict[str, Any], clock: Clock
    ) -> FitResult[Any]:
        """Fit from each start and return the best."""
        problem = solver.problem
        init = self._read_init(problem, init, solver.free_modes[0])

        def start(number: int, seed: int) -> Any:
            return self._begin(solver, init, number, seed)

        # Given factors are one start; more of the same would only repeat it.
        n_starts = self.n_init if isinstance(init, str) else 1
        generator = check_random_state(self.random_state)
        seeds = [int(seed) for seed in generator.randint(2**31 - 1, size=n_starts)]
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
            resumable = Resumable(checkpoint, identity, lambda: self._begin(solver, "random", 0, 0))
        return fit_best(solver, start, seeds, options, resumable=resumable)

    def _identity(self, data: Any, y: Any = None) -> dict[str, Any]:
        """Return what must be the same for a checkpoint to be of the same fit."""
        parameters = self.get_params(deep=False)
        return fit_identity(type(self), parameters, {"data": data, "y": y}, self._uncounted)

    def _begin(self, solver: FactorSolver[Any], init: Any, number: int, seed: int) -> Any:
        """Return the state that a restart begins with."""
        return solver.init(self._start(solver.problem, init, number, seed))

    def _start(self, problem: Any, init: Any, number: int, seed: int) -> list[Array]:
        """Return the factors that a restart begins with."""
        return make_start(problem, self.n_components, init, number=number, seed=seed)

    def _explained_variation(self, X: Any, mask: Any) -> float:
        """Return 1 minus the squared error of samples over their squares."""
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            problem: Any = self._problem(given)
            others = [problem.asarray(factor) for factor in self.factors_[1:]]
            residual = problem.residual([self._rows(problem), *others])
        if not math.isfinite(residual):
            message = "The score is not a finite number: the factors of the model are not."
            raise NumericalError(message)
        if problem.norm_squared == 0:
            return 1.0 if residual == 0 else 0.0
        return float(1.0 - residual / problem.norm_squared)

    def _store(self, solver: FactorSolver[Any], result: FitResult[Any]) -> None:
        """Bring a result to canonical form and keep it."""
        factors = solver.factors(result.delivered)
        xp = array_namespace(factors[0])
        weights = xp.ones_like(factors[0][0, :]) * 2.0**solver.problem.exponent
        tensor = normalize_components(KruskalTensor(weights, factors), solver.fixed_modes)
        order = [] if solver.fixed_modes else weight_order(tensor)
        tensor = tensor.take(order) if order else tensor
        self.weights_, self.factors_ = tensor.weights, list(tensor.factors)
        # The ridge of a sample depends on the lengths that the other factors had in the fit.
        lengths = solver.lengths(factors)[1:]
        index = xp.asarray(order, dtype=xp.int64)
        self._lengths = [xp.take(length, index) if order else length for length in lengths]
        self.history_ = result.history
        self.status_ = result.status or Status.DIVERGED
        self.n_iter_ = result.history.n_iter
        self.objective_ = result.objective

    def _others(self) -> tuple[list[Array], Array]:
        """Return the other factors in the scale of the fit, and that scale."""
        scaled = [
            factor * length[None, :]
            for factor, length in zip(self.factors_[1:], self._lengths, strict=True)
        ]
        return scaled, math.prod(self._lengths)
