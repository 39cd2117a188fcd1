"""Every way in which a fit can end, and what to do about it."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """How a fit ended. ``advice`` says what to do: the warning of one that did not converge."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    TIME_BUDGET = "time_budget"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    STALLED = "stalled"
    DIVERGED = "diverged"

    @property
    def advice(self) -> str:
        """What this ending means and what to change."""
        return _ADVICE[self]

    @property
    def is_success(self) -> bool:
        """Whether the fit ended where it was meant to: no warning is given."""
        return self in (Status.CONVERGED, Status.STOPPED)


_ADVICE = {
    Status.CONVERGED: "The objective stopped changing: the fit is complete.",
    Status.MAX_ITER: (
        "The fit used all of its max_iter iterations while the objective was still changing. "
        "Increase max_iter, or loosen tol if the last values of history_ are good enough."
    ),
    Status.TIME_BUDGET: (
        "The time_budget ran out before the fit was done. The best state so far is kept. Increase "
        "time_budget, or go on: with a checkpoint run the same fit again, otherwise fit again with "
        "warm_start=True in estimators that have it."
    ),
    Status.INTERRUPTED: (
        "The fit was interrupted from the keyboard. The best state so far is kept and the "
        "estimator is usable. To go on: with a checkpoint run the same fit again, otherwise fit "
        "again with warm_start=True in estimators that have it."
    ),
    Status.STOPPED: "A callback asked the fit to stop.",
    Status.STALLED: (
        "The objective rose although each step should lower it: the numerical limit of the data "
        "type is reached. Use float64 input, and fewer components or a ridge above zero in "
        "estimators that have them."
    ),
    Status.DIVERGED: (
        "The objective grew beyond its starting value, or beyond that of no model at all. Lower "
        "learning_rate, or raise ridge, in estimators that have them."
    ),
}
