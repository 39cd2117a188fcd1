"""Several starts, the best one kept, all of it resumable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from polyad.core.threads import OutOfTimeError, ended_when
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
    from collections.abc import Callable, Sequence

    from polyad.fitting.checkpoint import Checkpoint

S = TypeVar("S")

_CONTENT = {"seeds", "number", "current", "best", "starts"}
#: The kind of a restart that begins where the best one so far ended, changed by `move`.
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
        as any other if there is nothing yet to move from.
    make : callable, optional
        Returns the first state of a restart from the delivered state of the best one so far, the
        number of moves from it that were tried before, and a seed.
    """

    kinds: list[str]
    make: Callable[[S, int, int], S] | None = None


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
        while fit.number < len(fit.seeds):
            status = fit.run_current()
            if status in (Status.INTERRUPTED, Status.TIME_BUDGET, Status.STOPPED):
                ending = status
                break
            fit.number += 1
            fit.current = None
    except KeyboardInterrupt:
        # Between two iterations, while a restart was being made, or in a final step without which
        # there is no model: that is then made again, and the next interrupt ends it.
        fit.keep_current()
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
    """The restarts of one fit: which one is running, and the best so far."""

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
        self.current: FitResult[Any] | None = None
        self.best: FitResult[Any] | None = None
        self.error: FitError
        self.writer: CheckpointWriter | None = None

    def resume(self, example: Callable[[], Any]) -> None:
        """Take over what an earlier run saved."""
        if self.writer is None:
            return
        self.writer.read(lambda saved: self._take_over(saved, example()))
        if self.current is not None and len(self.seeds) == 1:
            self._check_length(self.current)
        if self.best is not None:
            # What is delivered is not saved: it follows from the state.
            deliver(self.solver, self.best, self.options)

    def _take_over(self, saved: dict[str, Any], example: Any) -> None:
        if saved.keys() != _CONTENT:
            message = "it has other parts than a checkpoint"
            raise ModelFileError(message)
        check_seeds(saved["seeds"], saved["number"], len(self.seeds))
        check_starts(saved["starts"], saved["number"])
        self.seeds, self.number = saved["seeds"], saved["number"]
        self.starts = saved["starts"]
        self.current = self._restored(saved["current"], example)
        self.best = self._restored(saved["best"], example)

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

    def run_current(self) -> Status | None:
        """Run the restart whose turn it is, and keep it if it is the best."""
        try:
            if self.current is None:
                self.current = self._begun()
            run(self.solver, self.current, self.options, save=self._save_if_due)
        except FitError as error:
            # A restart that broke down is no reason to throw away one that did not.
            self.error = error
            self._record(error.result, math.nan)
            return Status.DIVERGED
        except OutOfTimeError:
            return Status.TIME_BUDGET
        self._save()
        self.keep_current()
        return self.current.status

    def keep_current(self) -> None:
        """Finish the running restart, and make it the best one if it is."""
        if self.current is None:
            return
        deliver(self.solver, self.current, self.options)
        if self.best is None or self.current.objective < self.best.objective:
            self.best = self.current
        self._record(self.current, self.current.objective)

    def _begun(self) -> FitResult[Any]:
        """Begin the restart; a later one is given up when the time is over."""
        budget, clock = self.options.time_budget, self.options.clock
        if budget is None or self.best is None:
            return begin(self.solver, self._first_state())
        with ended_when(lambda: clock.seconds() >= budget):
            return begin(self.solver, self._first_state())

    def _first_state(self) -> Any:
        """Return the state that the restart whose turn it is begins with."""
        seed, make = self.seeds[self.number], self.moves.make
        if self.moves.kinds[self.number] == MOVE and self.best is not None and make is not None:
            known = [record for record in self.starts if not math.isnan(record["objective"])]
            best = min(known, key=lambda record: record["objective"])
            later = [record for record in self.starts if record["start"] > best["start"]]
            tried = sum(record["kind"] == MOVE for record in later)
            return make(self.best.delivered, tried, seed)
        return self.start(self.number, seed)

    def _record(self, result: FitResult[Any], objective: float) -> None:
        """Note how a restart ended; one that was ended twice, by interrupts, is noted once."""
        record = {
            "start": self.number,
            "kind": self.moves.kinds[self.number],
            "objective": float(objective),
            "n_iter": result.history.n_iter,
            "seconds": float(result.history.seconds),
        }
        self.starts = [*(old for old in self.starts if old["start"] != self.number), record]

    def finished(self) -> FitResult[Any]:
        """Return the best restart, or raise the error of the last one if none went well."""
        if self.best is None:
            deliver(self.solver, self.error.result, self.options)
            raise self.error
        return self.best

    def _save_if_due(self, result: FitResult[Any]) -> None:
        if self.writer is not None and self.writer.due(result.history.n_iter):
            self._save()

    def _save(self) -> None:
        if self.writer is None:
            return
        self.writer.write(
            {
                "seeds": self.seeds,
                "number": self.number,
                "starts": self.starts,
                "current": None if self.current is None else stored_result(self.current),
                "best": None if self.best is None else stored_result(self.best),
            }
        )

    def _restored(self, stored: Any, example: Any) -> FitResult[Any] | None:
        if stored is None:
            return None
        result = restored_result(stored, example)
        same = result.state is result.last
        result.last = self.solver.adopt(result.last)
        result.state = result.last if same else self.solver.adopt(result.state)
        return result
