"""The one iteration loop of the library.

A method is a :class:`Solver`: ``step`` makes the next state, ``objective`` measures it, ``finish``
makes the last one. Stopping, history, time budget, callbacks, progress, Ctrl-C and the guard
against numbers that are not finite are written here and nowhere else.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from polyad.core.compiled import compile_seconds
from polyad.core.threads import OutOfTimeError, ended_when
from polyad.exceptions import InvalidTypeError, NumericalError
from polyad.fitting.history import History
from polyad.fitting.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

logger = logging.getLogger("polyad")

S = TypeVar("S")

# A rise must be clear of rounding to count; the lowest of many objectives is a lucky one.
_CLEAR_OF_ROUNDING = 4.0
# A method without a promise of descent has diverged when it is this much worse than its start.
_DIVERGENCE_FACTOR = 1e3
# A fit has so many iterations before it may be given up, if what it has to beat is lower by more
# than so many times the last of them. Chosen on moves of the patients and contacts of
# experiments/optima, of which it gave up none that would have succeeded.
_HOPEFUL_ITERATIONS = 5
_HOPEFUL_STEPS = 20.0
# The final step may go on for this part of the time budget after its end.
_FINISHING = 0.1


class Clock:
    """Counts the seconds since it was made, without those in which kernels were compiled."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._compiled = compile_seconds()

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._started - self.compiling()

    def compiling(self) -> float:
        """Return the seconds in which kernels were compiled."""
        return compile_seconds() - self._compiled

    def tell_compiling(self) -> None:
        """Log the time that does not count."""
        if self.compiling() > 0:
            logger.info(
                "Compiling took %.1f s, which do not count as time of the fit; what was compiled "
                "is kept for the next one.",
                self.compiling(),
            )


class Solver(ABC, Generic[S]):
    """The mathematics of a method, free of loops and of scikit-learn.

    States are dataclasses of arrays and numbers. ``step`` never changes the state it is given, so
    that an interrupted step loses nothing.
    """

    #: Shown by the progress bar and in errors.
    name: str
    #: Whether the objective never rises; the driver then stops as soon as it does.
    promises_descent: bool = True
    #: Objectives that differ by less than this differ by rounding only.
    floor: float = 0.0
    #: No objective is lower, so that one this low ends the fit; minus infinity if nobody knows.
    least: float = 0.0
    #: Changes are compared with the objective, or with this if it is larger: for objectives that
    #: may pass zero on their way down.
    scale: float = 0.0
    #: Whether the objective of the start is comparable with those of iterations. If not, it is only
    #: shown: the first iteration takes the place of the start.
    measures_start: ClassVar[bool] = True
    #: The fit has converged when the best objective of so many iterations is no better than the
    #: best before them. More than one is for objectives with noise.
    patience: ClassVar[int] = 1
    #: Whether nothing can be delivered before ``finish``: it then counts whatever it gives, and
    #: however long it takes, which is about the time of an iteration.
    needs_finish: ClassVar[bool] = False
    #: Whether the end of the time budget ends an iteration that is under way, of which nothing is
    #: kept: for those that may take many seconds.
    gives_up_steps: ClassVar[bool] = False
    #: Whether several fits may run at once, each on a thread: nothing is kept between calls.
    side_by_side: ClassVar[bool] = False
    #: How much worse than the last iteration the finished state may be, beside rounding.
    finish_cost: float = 0.0
    #: The objective of a model of zeros, once the fit is finished: one above it has diverged.
    nothing: float = math.inf

    @abstractmethod
    def step(self, state: S) -> S:
        """Return the state after one iteration."""

    @abstractmethod
    def objective(self, state: S) -> float:
        """Return the number that the method minimises."""

    def finish(self, state: S) -> S:
        """Return the state that is delivered after the last iteration, with its own objective.

        It is no step: a fit that is prolonged goes on from the state before it.
        """
        return state

    def diagnostics(self, state: S) -> Mapping[str, float]:
        """Return further numbers for the history."""
        return {}

    def adopt(self, state: S) -> S:
        """Bring a state that was read from a checkpoint to where the data is."""
        return state


@dataclass(frozen=True)
class Iteration:
    """What a callback is given after each iteration.

    Attributes
    ----------
    method : str
        The name of the method.
    number : int
        The number of the iteration, from 1.
    objective : float
        The objective after it.
    seconds : float
        The time since the start, over all runs if the fit was resumed.
    state : object
        The state of the solver; read it, do not change it.
    history : History
        Everything before.
    """

    method: str
    number: int
    objective: float
    seconds: float
    state: Any
    history: History


@dataclass(frozen=True)
class FitOptions:
    """How long a fit runs and who watches it.

    Parameters
    ----------
    max_iter : int
        The largest number of iterations.
    tol : float
        Stop when an iteration lowers the objective by less than ``tol`` times its value, or when
        the objective is within the solver's floor of the least possible. Zero runs all of
        ``max_iter``.
    time_budget : float, optional
        Stop when the clock is at this many seconds.
    callbacks : sequence of callable
        Called with an :class:`Iteration` after each; one that returns ``True`` stops the fit.
    verbose : int
        See :class:`~polyad.fitting.driver.Progress`.
    clock : Clock
        Of the fit, restarts and final step included; by default it starts now.
    to_beat : float
        An objective that is known to be possible. A fit whose last iterations are too small to come
        below it is given up, with None for its status.
    """

    max_iter: int = 100
    tol: float = 1e-5
    time_budget: float | None = None
    callbacks: tuple[Callable[[Iteration], object], ...] = ()
    verbose: int = 0
    clock: Clock = field(default_factory=Clock)
    to_beat: float = math.inf


@dataclass
class FitResult(Generic[S]):
    """How a fit ended.

    Attributes
    ----------
    state : object
        The best state of the iterations.
    status : Status or None
        How it ended; None while it runs, and if it was given up.
    history : History
        The iterations.
    last : object
        The state from which a resumed run goes on. It differs from ``state`` only for methods
        whose objective may rise.
    best_objective : float
        The objective of ``state``.
    delivered : object
        What the user gets: the finished state, or ``state`` if that is better. Until
        :func:`deliver` has made it, None.
    objective : float
        The objective of ``delivered``, by which restarts are compared.
    """

    state: S
    status: Status | None
    history: History
    last: S
    best_objective: float = field(default=math.inf)
    delivered: S | None = None
    objective: float = field(default=math.inf)


class FitError(NumericalError):
    """A step produced a number that is not finite. ``result`` holds the last finite state."""

    def __init__(self, message: str, result: FitResult[Any]) -> None:
        super().__init__(message)
        self.result = result


def read_callbacks(callbacks: Any) -> tuple[Callable[[Iteration], object], ...]:
    """Return the callbacks that a user gave: one, several or None."""
    each = () if callbacks is None else (callbacks,) if callable(callbacks) else tuple(callbacks)
    for callback in each:
        if not callable(callback):
            message = (
                f"callbacks has {callback!r}, a {type(callback).__name__}; give functions of one "
                "argument, a polyad.fitting.Iteration."
            )
            raise InvalidTypeError(message)
    return each


def begin(solver: Solver[S], state: S) -> FitResult[S]:
    """Return the result of zero iterations, from which :func:`run` goes on."""
    objective = solver.objective(state)
    mark = objective if solver.measures_start else math.inf
    run_so_far = FitResult(state, None, History(), state, mark)
    if not math.isfinite(objective):
        message = (
            f"The objective of {solver.name} is {objective} at the start. Scale the data or give "
            "another init."
        )
        raise FitError(message, run_so_far)
    run_so_far.history.append(objective, 0.0, **solver.diagnostics(state))
    return run_so_far


def run(
    solver: Solver[S],
    result: FitResult[S],
    options: FitOptions,
    *,
    save: Callable[[FitResult[S]], None] | None = None,
) -> FitResult[S]:
    """Iterate until something stops the fit; return the result, updated in place.

    It goes on from that of :func:`begin` or of a checkpoint. ``save`` is called after each
    iteration, to write a checkpoint if it is time to.
    """
    history = result.history
    earlier = history.seconds - options.clock.seconds()
    bar = Progress(
        solver.name, total=options.max_iter, done=history.n_iter, verbose=options.verbose
    )
    endings = _Endings(solver, options)
    for objective in history.objective:
        endings.add(objective)
    with bar:
        try:
            while True:
                result.status = endings.status()
                if result.status is None and _is_out_of_time(solver, result, options):
                    result.status = Status.TIME_BUDGET
                if result.status is not None or endings.is_hopeless():
                    break
                objective = _advance(solver, result, options, earlier)
                endings.add(objective)
                bar.update(history.n_iter, objective)
                if save is not None:
                    save(result)
                if _stopped_by_callback(solver, result, objective, options):
                    result.status = Status.STOPPED
                    break
        except KeyboardInterrupt:
            result.status = Status.INTERRUPTED
        except OutOfTimeError:
            result.status = Status.TIME_BUDGET
    return result


def deliver(solver: Solver[S], result: FitResult[S], options: FitOptions) -> FitResult[S]:
    """Finish the best state, and take the finished one unless it is worse.

    It is taken within rounding too, because it is what new samples are treated like. An interrupt,
    the end of the time budget, or a final step that breaks down leaves the state as the iterations
    left it.
    """
    result.delivered, result.objective = result.state, result.best_objective
    try:
        finished = _finished(solver, result.state, options)
        objective = float(solver.objective(finished))
    except KeyboardInterrupt:
        if solver.needs_finish:
            raise
        result.status = Status.INTERRUPTED
        return result
    except OutOfTimeError:
        result.status = Status.TIME_BUDGET
        return result
    except FitError:
        result.status = Status.DIVERGED
        return result
    # A comparison with NaN is False.
    allowed = result.best_objective + solver.floor + solver.finish_cost
    if solver.needs_finish or objective <= allowed:
        result.delivered, result.objective = finished, objective
    if result.status in (Status.CONVERGED, Status.MAX_ITER) and objective > solver.nothing:
        result.status = Status.DIVERGED
    return result


def _finished(solver: Solver[S], state: S, options: FitOptions) -> S:
    """Return the finished state, or raise as soon as there is no time for it."""
    budget, clock = options.time_budget, options.clock
    if budget is None or solver.needs_finish:
        return solver.finish(state)
    limit = budget + _FINISHING * budget
    if clock.seconds() >= limit:
        raise OutOfTimeError
    with ended_when(lambda: clock.seconds() >= limit):
        return solver.finish(state)


def _advance(solver: Solver[S], result: FitResult[S], options: FitOptions, earlier: float) -> float:
    """Make a step and record it, at the time of the clock and what came earlier."""
    history, clock, budget = result.history, options.clock, options.time_budget
    if solver.gives_up_steps and budget is not None:
        with ended_when(lambda: clock.seconds() >= budget):
            state = solver.step(result.last)
    else:
        state = solver.step(result.last)
    objective = float(solver.objective(state))
    if not math.isfinite(objective):
        message = (
            f"Iteration {history.n_iter + 1} of {solver.name} gave the objective {objective}; the "
            "state before it is kept. Scale the data, add a ridge, or use fewer components."
        )
        raise FitError(message, result)
    seconds = earlier + clock.seconds()
    rose = solver.promises_descent and _is_rise(solver, objective, result.best_objective)
    history.append(objective, seconds, **solver.diagnostics(state))
    result.last = state
    # Within rounding the later state of a descent method is as good and is the more settled one.
    if objective < result.best_objective or (solver.promises_descent and not rose):
        result.state, result.best_objective = state, min(objective, result.best_objective)
    return objective


def earlier_end(solver: Solver[Any], result: FitResult[Any], options: FitOptions) -> int | None:
    """Return after how many iterations a fit would have ended that has done more, or None."""
    endings = _Endings(solver, options)
    for n_iter, objective in enumerate(result.history.objective[:-1]):
        endings.add(objective)
        if endings.status() is not None:
            return n_iter
    return None


def _is_out_of_time(solver: Solver[Any], result: FitResult[Any], options: FitOptions) -> bool:
    """Say whether the time budget has no room for another iteration."""
    if options.time_budget is None:
        return False
    last_step = np.diff([record["seconds"] for record in result.history.records[-2:]])
    # The final step, if there is no model without it, takes about as long as another.
    kept_back = float(last_step.sum()) if solver.needs_finish else 0.0
    return options.clock.seconds() + kept_back >= options.time_budget


class _Endings:
    """Says when a fit is over, from its objectives alone, so that a resumed run agrees.

    It keeps of the objectives what the rules look at: to add one takes as long as the first.
    """

    def __init__(self, solver: Solver[Any], options: FitOptions) -> None:
        self._solver, self._options = solver, options
        self._n_objectives = 0
        self._first = self._previous = self._best_before = math.inf
        # Those that the patience of the solver reaches back to; the best before them is known.
        self._recent: deque[float] = deque()

    def add(self, objective: float) -> None:
        """Take in the objective of the start, or of the next iteration."""
        self._n_objectives += 1
        if self._n_objectives == 1 and not self._solver.measures_start:
            return
        if not self._recent:
            self._first = objective
        if len(self._recent) == self._solver.patience:
            self._previous = self._recent.popleft()
            self._best_before = min(self._best_before, self._previous)
        self._recent.append(objective)

    def status(self) -> Status | None:
        """Return how the fit has ended, or None if it has not."""
        solver, tol = self._solver, self._options.tol
        if self._recent:
            first, last, settled = self._first, self._recent[-1], min(self._recent)
            best = min(self._best_before, settled)
            if tol > 0 and solver.promises_descent and _is_rise(solver, last, best):
                return Status.STALLED
            if not solver.promises_descent and last - first > _DIVERGENCE_FACTOR * abs(first):
                return Status.DIVERGED
            if tol > 0 and self._is_settled(settled):
                # To come to rest above the start is no success.
                rest = max(tol * max(abs(first), solver.scale), solver.floor)
                is_worse = solver.measures_start and settled > first + rest
                return Status.DIVERGED if is_worse else Status.CONVERGED
            if tol > 0 and last <= solver.least + solver.floor:
                return Status.CONVERGED
        return Status.MAX_ITER if self._n_objectives > self._options.max_iter else None

    def is_hopeless(self) -> bool:
        """Say whether many more iterations like the last one would not be enough."""
        if self._n_objectives <= _HOPEFUL_ITERATIONS or not self._recent:
            return False
        last = self._recent[-1]
        return last - self._options.to_beat > _HOPEFUL_STEPS * (self._previous - last)

    def _is_settled(self, last: float) -> bool:
        """Say whether the last iterations brought nothing."""
        solver = self._solver
        if self._best_before == math.inf:  # there are no more than the last ones
            return False
        if solver.patience == 1:
            before, change = self._previous, abs(self._previous - last)
        else:
            before, change = self._best_before, self._best_before - last
        # Differences below the floor are rounding, and rounding never ends.
        tol = self._options.tol
        return change <= max(tol * max(abs(before), solver.scale), solver.floor)


def _is_rise(solver: Solver[Any], objective: float, best: float) -> bool:
    return objective > best + _CLEAR_OF_ROUNDING * solver.floor


def _stopped_by_callback(
    solver: Solver[Any], result: FitResult[Any], objective: float, options: FitOptions
) -> bool:
    history = result.history
    news = Iteration(solver.name, history.n_iter, objective, history.seconds, result.last, history)
    # Every callback hears of every iteration, also of the one at which another asks to stop.
    answers = [callback(news) for callback in options.callbacks]
    return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)


class Progress:
    """Show a running fit: nothing, a bar (``verbose=1``), or a bar and log lines (2)."""

    def __init__(self, title: str, *, total: int, done: int, verbose: int) -> None:
        self._title = title
        self._log = verbose >= 2
        self._bar: Any = None
        self._compiled = compile_seconds()
        if verbose >= 1:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, initial=done, desc=title, unit="it", leave=True)

    def update(self, iteration: int, objective: float) -> None:
        """Tell of one more iteration."""
        if self._bar is not None:
            compiled, self._compiled = self._compiled, compile_seconds()
            self._bar.start_t += self._compiled - compiled  # no time of an iteration
            self._bar.set_postfix_str(f"objective={objective:.6g}", refresh=False)
            self._bar.update()
        if self._log:
            logger.info("%s: iteration %d, objective %.9g", self._title, iteration, objective)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
