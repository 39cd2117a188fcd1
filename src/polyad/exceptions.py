"""Errors and warnings: each message says what was given, what is accepted and what to do."""

from __future__ import annotations

import sys
import warnings
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
