"""IterativeEstimator: how every estimator that is fitted by iterations fits.

A room, a folder such as ``cp/``, says what its data is (``_read``), what minimises it
(``_solver``), where that begins (``_begin``) and what is learned (``_learned``). Restarts,
checkpoints, time budgets, threads and endings are here, without mathematics; what is made of the
fit, features or classes, is a subclass's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.utils import check_random_state

from polyad.core.sklearn_compat import Interval, fit_context
from polyad.core.threads import thread_limit
from polyad.estimators.base import Learned, PolyadEstimator
from polyad.fitting import (
    Checkpoint,
    FitOptions,
    FitResult,
    Iteration,
    Moves,
    Resumable,
    fit_best,
)
from polyad.fitting.driver import Clock, FitError, Solver, read_callbacks
from polyad.fitting.identity import UNCOUNTED, fit_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from polyad.data.readers import TensorInput

#: The constraints of the parameters that every fit by iterations has.
ITERATION_CONSTRAINTS: dict[str, list[Any]] = {
    "n_init": [Interval(Integral, 1, 10**6, closed="both")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "time_budget": [Interval(Real, 0, None, closed="neither"), None],
    "random_state": ["random_state"],
    "n_jobs": [Integral, None],
    "checkpoint": [object],
    "callbacks": ["array-like", callable, None],
    "verbose": ["verbose"],
}


class IterativeEstimator(PolyadEstimator, ABC):
    """Base of the estimators that are fitted by iterations."""

    #: Parameters that a checkpoint need not agree with.
    _uncounted: ClassVar[frozenset[str]] = UNCOUNTED

    if TYPE_CHECKING:
        n_init: int | str
        max_iter: int
        tol: float
        time_budget: float | None
        random_state: int | np.random.RandomState | None
        n_jobs: int | None
        checkpoint: Any
        callbacks: Sequence[Callable[[Iteration], object]] | None
        verbose: int

    # What a room gives.

    @abstractmethod
    def _read(self, given: Any, y: Any) -> Any:
        """Return the problem of training data, after refusing what cannot be fitted."""

    @abstractmethod
    def _solver(self, problem: Any) -> Solver[Any]:
        """Return the solver of a problem."""

    @abstractmethod
    def _begin(self, solver: Any, number: int, seed: int) -> Any:
        """Return the state that restart ``number`` begins with."""

    @abstractmethod
    def _learned(self, solver: Any, state: Any) -> Learned:
        """Return what a state has learned, in canonical form."""

    # What a room may change.

    def _open(self, X: Any, mask: Any) -> Any:
        """Return training data as ``_read`` takes it."""
        return self._validate_fit(X, mask=mask)

    def _content(self, given: Any, y: Any) -> dict[str, Any]:
        """Return the data that makes two fits the same one for a checkpoint."""
        return {"data": given, "y": y}

    def _described(self, given: Any, solver: Any) -> TensorInput:
        """Return training data with the labels that are known after the fit."""
        described: TensorInput = given
        return described

    def _kinds(self, problem: Any) -> list[str]:
        """Return the kind of each start, by which ``history_`` tells of it."""
        init = getattr(self, "init", None)
        first = init if isinstance(init, str) else "random"
        return [first, *["random"] * (self._n_fits() - 1)]

    def _n_fits(self) -> int:
        """Return how often ``n_init`` asks to fit."""
        return int(self.n_init)

    def _moves(self, solver: Any, state: Any) -> Callable[[int], Any]:
        """Return what makes starts from a state, given how many were made before.

        Only for a room that has starts of the kind 'move'.
        """
        raise NotImplementedError

    def _match(self, solver: Any, one: Any, other: Any) -> float:
        """Return how alike the components of two delivered states are, 1 if they are the same."""
        return math.nan

    def _warn_about_model(self, problem: Any, learned: Any) -> None:
        """Warn of a model that is of no use."""

    @fit_context(prefer_skip_nested_validation=True)
    def _fit(self, X: Any, mask: Any, y: Any = None) -> None:
        clock = Clock()
        read_callbacks(self.callbacks)
        Checkpoint.of(self.checkpoint)
        given = self._open(X, mask)
        identity = self._identity(given, y)
        with thread_limit(self.n_jobs):
            problem = self._read(given, y)
            solver = self._solver(problem)
            result, broken = self._run(problem, solver, identity, clock)
            with self._all_or_nothing():
                learned = self._learned(solver, result.delivered)
                self._keep_result(learned, result, broken)
                self._remember(X, self._described(given, solver))
            self._warn_about_model(problem, learned)
        if broken is not None:
            raise broken

    def _identity(self, given: Any, y: Any) -> dict[str, Any]:
        """Return what must be the same for a checkpoint to be of the same fit."""
        if self.checkpoint is None:
            return {}
        parameters = {**self.get_params(deep=False), "n_init": self._n_fits()}
        return fit_identity(type(self), parameters, self._content(given, y), self._uncounted)

    def _run(
        self, problem: Any, solver: Any, identity: dict[str, Any], clock: Clock
    ) -> tuple[FitResult[Any], FitError | None]:
        """Fit from each start; return the best, and the error of a fit that broke down."""
        generator = check_random_state(self.random_state)
        kinds = self._kinds(problem)
        seeds = generator.randint(2**31 - 1, size=len(kinds))
        options = FitOptions(
            max_iter=self.max_iter,
            tol=self.tol,
            time_budget=self.time_budget,
            callbacks=read_callbacks(self.callbacks),
            verbose=int(self.verbose),
            clock=clock,
        )

        def start(number: int, seed: int) -> Any:
            return self._begin(solver, number, seed)

        moves = Moves(kinds, partial(self._moves, solver), partial(self._match, solver))
        checkpoint = Checkpoint.of(self.checkpoint)
        resumable = None
        if checkpoint is not None:
            # Any state will do to compare with; that of a further restart is quickly made.
            resumable = Resumable(checkpoint, identity, lambda: start(len(kinds), 0))
        try:
            best = fit_best(
                solver, start, seeds.tolist(), options, moves=moves, resumable=resumable
            )
        except FitError as error:
            return error.result, error
        return best, None
