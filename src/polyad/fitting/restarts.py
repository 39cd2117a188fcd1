"""Several starts, the best one kept, all of it resumable.

What comes of them is defined one after another. Where a solver allows it and nobody watches, as
many as there are threads run side by side: those that are made of the best one so far as if none of
the others were better, to be thrown away if one is. So the numbers do not depend on the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from polyad.core.threads import (
    OutOfTimeError,
    current_threads,
    ended_when,
    run_blocks,
    thread_limit,
)
from polyad.exceptions import CheckpointError, ModelFileError
from polyad.fitting.checkpoint import (
    CheckpointWriter,
    check_seeds,
    check_starts,
    restored_result,
    stored_result,
)
from polyad.fitting.driver import (
    FitError,
    FitOptions,
    FitResult,
    Solver,
    begin,
    deliver,
    earlier_end,
    run,
)
from polyad.fitting.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.fitting.checkpoint import Checkpoint

S = TypeVar("S")

_CONTENT = {"seeds", "number", "running", "best", "starts"}
#: The kind of a restart that begins where the best one so far ended, changed by `make`.
MOVE = "move"


@dataclass(frozen=True)
class Resumable:
    """Where a fit saves itself, and what makes it the same fit when it is started again.

    Attributes
    ----------
    checkpoint : Checkpoint
        Where and how often.
    identity : dict
        See :mod:`polyad.fitting.identity`.
    example : callable
        Makes some state of the fit, with which those of a checkpoint are compared.
    """

    checkpoint: Checkpoint
    identity: dict[str, Any]
    example: Callable[[], Any]


@dataclass(frozen=True)
class Moves(Generic[S]):
    """The kinds of restarts, and how one is made of the best before it.

    Attributes
    ----------
    kinds : list of str
        The kind of each restart, for its record. One that is called 'move' is made by ``make``, or
        as any other if there is nothing yet to move from, and is given up when it plainly ends
        above the best.
    make : callable, optional
        Returns, for the delivered state of the best one so far, a function that makes the first
        state of a restart of the number of moves that were tried before.
    match : callable, optional
        Returns how alike the components of two delivered states are, at most 1.
    """

    kinds: list[str]
    make: Callable[[S], Callable[[int], S]] | None = None
    match: Callable[[S, S], float] | None = None


def fit_best(
    solver: Solver[S],
    start: Callable[[int, int], S],
    seeds: Sequence[int],
    options: FitOptions,
    *,
    moves: Moves[S] | None = None,
    resumable: Resumable | None = None,
) -> FitResult[S]:
    """Fit once for each seed, finish each, and return the one that delivers the lowest objective.

    Parameters
    ----------
    solver : Solver
        The method.
    start : callable
        Makes the first state from the number of the restart and its seed.
    seeds : sequence of int
        One per restart. A resumed fit uses the seeds of its checkpoint.
    options : FitOptions
        When to stop. The clock, and with it the time budget, is shared by all restarts.
    moves : Moves, optional
        The kind of each restart, and how those are made that begin with the best one so far.
    resumable : Resumable, optional
        Where to save the running fit.

    Returns
    -------
    FitResult
        The best one. Its ``history.starts`` tells of all.
    """
    fit = _Restarts(solver, start, list(seeds), options, moves or Moves(["start"] * len(seeds)))
    if resumable is None:
        return _fit_all(fit)
    with CheckpointWriter(resumable.checkpoint, resumable.identity) as fit.writer:
        fit.resume(resumable.example)
        return _fit_all(fit)


def _fit_all(fit: _Restarts) -> FitResult[Any]:
    """Run the restarts that are left, and return the best of all."""
    ending = None
    try:
        while fit.number < len(fit.seeds) and ending is None:
            status = fit.run_next()
            if status in (Status.INTERRUPTED, Status.TIME_BUDGET, Status.STOPPED):
                ending = status
    except KeyboardInterrupt:
        # Between two iterations, while a restart was being made, or in a final step without which
        # there is no model: that is then made again, and the next interrupt ends it.
        fit.keep(range(fit.number, len(fit.seeds)))
        if fit.best is None:
            raise
        ending = Status.INTERRUPTED
    fit.options.clock.tell_compiling()
    result = fit.finished()
    result.history.starts = fit.starts
    # What ended the fit is told, also if an earlier restart was the best one.
    result.status = result.status if ending is None else ending
    return result


class _Restarts:
    """The restarts of one fit: which are under way, and the best so far."""

    def __init__(
        self,
        solver: Solver[Any],
        start: Callable[[int, int], Any],
        seeds: list[int],
        options: FitOptions,
        moves: Moves[Any],
    ) -> None:
        self.solver = solver
        self.start = start
        self.seeds = seeds
        self.options = options
        self.moves = moves
        #: A record of each restart that is over, as `History.starts` has them.
        self.starts: list[dict[str, Any]] = []
        self.number = 0
        self.best: FitResult[Any] | None = None
        self.error: FitError
        self.writer: CheckpointWriter | None = None
        # Those under way, by their numbers: how far they are, as they were last saved, and which
        # broke down or have been finished.
        self._running: dict[int, FitResult[Any]] = {}
        self._saved: dict[str, Any] = {}
        self._errors: dict[int, FitError] = {}
        self._finished: set[int] = set()
        # The moves from the best one.
        self._moved: tuple[FitResult[Any], Callable[[int], Any]] | None = None
        self._is_halted = False
        self._lock = Lock()

    def resume(self, example: Callable[[], Any]) -> None:
        """Take over what an earlier run saved."""
        if self.writer is None:
            return
        self.writer.read(lambda saved: self._take_over(saved, example()))
        if self._running and len(self.seeds) == 1:
            self._check_length(self._running[0])
        if self.best is not None:
            # What is delivered is not saved: it follows from the state.
            deliver(self.solver, self.best, self.options)

    def _take_over(self, saved: dict[str, Any], example: Any) -> None:
        if saved.keys() != _CONTENT:
            message = "it has other parts than a checkpoint"
            raise ModelFileError(message)
        check_seeds(saved["seeds"], saved["number"], len(self.seeds))
        check_starts(saved["starts"], saved["number"])
        names = {str(number): number for number in range(saved["number"], len(self.seeds))}
        if not (isinstance(saved["running"], dict) and saved["running"].keys() <= names.keys()):
            message = "the restarts under way in it cannot be of this fit"
            raise ModelFileError(message)
        self.seeds, self.number = saved["seeds"], saved["number"]
        self.starts, self._saved = saved["starts"], dict(saved["running"])
        for name, stored in self._saved.items():
            self._running[names[name]] = self._restored(stored, example)
        self.best = None if saved["best"] is None else self._restored(saved["best"], example)

    def _check_length(self, result: FitResult[Any]) -> None:
        """Refuse a checkpoint that is longer than the fit that is asked for."""
        options = self.options
        end = earlier_end(self.solver, result, options)
        if end is not None and self.writer is not None:
            n_iter = result.history.n_iter
            message = (
                f"The checkpoint {self.writer.path} has {n_iter} iterations, but with max_iter="
                f"{options.max_iter} and tol={options.tol} the fit ends after {end}. Give the "
                "max_iter and tol that it was made with, or a larger max_iter and a smaller tol "
                "to go on, or fit anew with another path."
            )
            raise CheckpointError(message)

    def run_next(self) -> Status | None:
        """Run the restarts whose turn it is, keep the best, and return how they ended."""
        n_threads = current_threads()
        is_watched = bool(self.options.callbacks) or self.options.verbose > 0
        at_once = n_threads if self.solver.side_by_side and not is_watched else 1
        last = min(self.number + at_once, len(self.seeds))
        if self.best is None:
            # A move waits for a model to be made of.
            later = filter(self._is_move, range(self.number + 1, last))
            last = next(later, last)
        numbers = range(self.number, last)
        share = max(1, n_threads // len(numbers))
        run_blocks(self._run, [(number, share) for number in numbers])
        return self.keep(numbers)

    def _run(self, number: int, n_threads: int) -> None:
        """Run a restart to its end, unless it breaks down or finds no time to begin."""
        try:
            with thread_limit(n_threads):
                if number not in self._running:
                    self._running[number] = self._begun(number)
                result = self._running[number]
                save = partial(self._save, number)
                run(self.solver, result, self._options_of(number), save=save)
                self._is_halted |= result.status is Status.INTERRUPTED
                self._save(number, result, is_over=True)
                if not self._is_halted:
                    self._finish(number)
        except FitError as error:
            # A restart that broke down is no reason to throw away one that did not.
            self._running[number], self._errors[number] = error.result, error
        except OutOfTimeError:
            pass
        except BaseException:
            self._is_halted = True
            raise

    def _options_of(self, number: int) -> FitOptions:
        """Return the options of a restart; a move has the best one to beat."""
        # Where one of several is interrupted, all end.
        callbacks = self.options.callbacks or (lambda _: self._is_halted,)
        options = replace(self.options, callbacks=callbacks)
        if self._is_move(number) and self.best is not None and self.solver.promises_descent:
            options = replace(options, to_beat=self.best.best_objective)
        return options

    def _finish(self, number: int) -> None:
        """Make what a restart delivers, which is its last state if it was given up."""
        result = self._running[number]
        if result.status is None and self.best is not None:
            result.delivered, result.objective = result.state, result.best_objective
        else:
            deliver(self.solver, result, self.options)
        self._finished.add(number)

    def keep(self, numbers: Iterable[int]) -> Status | None:
        """Finish restarts in their order, keep the best, and return how they ended."""
        status = None
        for number in numbers:
            if number not in self._running:
                # There was no time for it, or a better model than it was made of has been found.
                is_dropped = self._is_move(number) and number > min(numbers)
                return status if is_dropped or self._is_halted else Status.TIME_BUDGET
            if number not in self._errors and number not in self._finished:
                self._finish(number)
            result = self._running.pop(number)
            status = self._judged(number, result)
            self.number = number + 1
        return Status.INTERRUPTED if self._is_halted else status

    def _judged(self, number: int, result: FitResult[Any]) -> Status | None:
        """Note how a restart ended, and take it for the best one if it is."""
        self._saved.pop(str(number), None)
        self._finished.discard(number)
        error = self._errors.pop(number, None)
        record = {
            "start": number,
            "kind": self.moves.kinds[number],
            "objective": math.nan if error is not None else float(result.objective),
            "match": math.nan,
            "n_iter": result.history.n_iter,
            "seconds": float(result.history.seconds),
        }
        if error is not None:
            self.error = error
            self.starts.append(record)
            return Status.DIVERGED
        if self.best is not None and self.moves.match is not None:
            record["match"] = float(self.moves.match(result.delivered, self.best.delivered))
        if self.best is None or result.objective < self.best.objective:
            # Each is compared with the one that beat it, the best one with itself.
            if self.best is not None:
                self._best_record()["match"] = record["match"]
            record["match"] = 1.0
            self.best = result
            for later in [other for other in self._running if self._is_move(other)]:
                del self._running[later]
                self._saved.pop(str(later), None)
                self._errors.pop(later, None)
                self._finished.discard(later)
        self.starts.append(record)
        return result.status

    def _best_record(self) -> dict[str, Any]:
        known = [record for record in self.starts if not math.isnan(record["objective"])]
        return min(known, key=lambda record: float(record["objective"]))

    def _is_move(self, number: int) -> bool:
        return self.moves.kinds[number] == MOVE

    def _begun(self, number: int) -> FitResult[Any]:
        """Begin a restart; a later one is given up when the time is over."""
        budget, clock = self.options.time_budget, self.options.clock
        if budget is None or self.best is None:
            return begin(self.solver, self._first_state(number))
        with ended_when(lambda: clock.seconds() >= budget):
            return begin(self.solver, self._first_state(number))

    def _first_state(self, number: int) -> Any:
        """Return the state that a restart begins with."""
        make = self.moves.make
        if not self._is_move(number) or self.best is None or make is None:
            return self.start(number, self.seeds[number])
        best = self._best_record()["start"]
        with self._lock:
            if self._moved is None or self._moved[0] is not self.best:
                self._moved = self.best, make(self.best.delivered)
        return self._moved[1](sum(map(self._is_move, range(best + 1, number))))

    def finished(self) -> FitResult[Any]:
        """Return the best restart, or raise the error of the last one if none went well."""
        if self.best is None:
            deliver(self.solver, self.error.result, self.options)
            raise self.error
        return self.best

    def _save(self, number: int, result: FitResult[Any], *, is_over: bool = False) -> None:
        """Write a checkpoint when it is time to, and when a restart is over."""
        if self.writer is None:
            return
        with self._lock:
            if not (is_over or self.writer.due(result.history.n_iter)):
                return
            self._saved[str(number)] = stored_result(result)
            self.writer.write(
                {
                    "seeds": self.seeds,
                    "number": self.number,
                    "starts": self.starts,
                    "running": self._saved,
                    "best": None if self.best is None else stored_result(self.best),
                }
            )

    def _restored(self, stored: Any, example: Any) -> FitResult[Any]:
        result = restored_result(stored, example)
        same = result.state is result.last
        result.last = self.solver.adopt(result.last)
        result.state = result.last if same else self.solver.adopt(result.state)
        return result
