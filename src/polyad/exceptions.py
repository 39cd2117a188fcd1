"""Errors, warnings, and every way in which a fit can end.

Each message says what was given, what is accepted and what to do. The advice of a
:class:`Status` is the text of the warning that a fit gives when it did not converge.
"""

from __future__ import annotations

import sys
import warnings
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_WRAPPERS = ("polyad", "sklearn", "joblib")


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn, pointing at the code that called polyad, through scikit-learn's wrappers too."""
    level = 1
    frame: FrameType | None = sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _WRAPPERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class PolyadError(Exception):
    """Base class of every error that polyad raises on purpose."""


class InvalidInputError(PolyadError, ValueError):
    """The data or a parameter has an unusable value."""


class InvalidTypeError(PolyadError, TypeError):
    """The data or a parameter has an unusable type."""


class MissingPackageError(PolyadError, ImportError):
    """An optional package is needed and not installed."""


class NumericalError(PolyadError, ArithmeticError):
    """A computation produced a number that is not finite."""


class ModelFileError(PolyadError, ValueError):
    """A file is not a polyad archive, is damaged, or is of a newer version."""


class CheckpointError(PolyadError, ValueError):
    """A checkpoint is of another fit, damaged, in use, or in a place that cannot be written."""


class UnknownLabelWarning(UserWarning):
    """Labels were dropped because the model or the tensor does not know them."""


class DataWarning(UserWarning):
    """The data is usable but probably not what was meant."""


class TransportWarning(RuntimeWarning):
    """A transport was not solved to the tolerance that was asked for."""


class Status(Enum):
    """How a fit ended. ``advice`` says what to do about it."""

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
        "Increase max_iter, or loosen tol if the last values of history_ are good enough. If "
        "weights_ keep growing, components cancel each other: fewer components stop that, and so "
        "does a small ridge in estimators that have one."
    ),
    Status.TIME_BUDGET: (
        "The time_budget ran out before the fit was done. The best state so far is kept. Increase "
        "time_budget, or go on: with a checkpoint run the same fit again, otherwise fit again with "
        "warm_start=True."
    ),
    Status.INTERRUPTED: (
        "The fit was interrupted from the keyboard. The best state so far is kept and the "
        "estimator is usable. To go on: with a checkpoint run the same fit again, otherwise fit "
        "again with warm_start=True."
    ),
    Status.STOPPED: "A callback asked the fit to stop.",
    Status.STALLED: (
        "The objective rose although each step should lower it: the numerical limit of the data "
        "type is reached. Use float64 input, fewer components, or a ridge above zero in estimators "
        "that have one."
    ),
    Status.DIVERGED: (
        "The objective grew beyond its starting value, or beyond that of no model at all. Lower "
        "learning_rate, or raise ridge, in estimators that have them."
    ),
}
