"""What counts as a finding: errors that are not ours, warnings nobody asked for, wrong numbers."""

from __future__ import annotations

import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import InvalidParameterError

from polyad.exceptions import DataWarning, PolyadError, TransportWarning, UnknownLabelWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPECTED_WARNINGS = (ConvergenceWarning, DataWarning, TransportWarning, UnknownLabelWarning)
SHORTEST_MESSAGE = 20


class FoundError(Exception):
    """Something that must not happen."""


class RefusedError(Exception):
    """An error of ours: the case ends here, and all is well if nothing was done before."""


@contextmanager
def judged(what: str) -> Iterator[None]:
    """Run a piece of a case: errors of ours become ``RefusedError``, all others a finding."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            yield
        except (FoundError, RefusedError):
            raise
        except Exception as error:
            refuses = isinstance(error, PolyadError | InvalidParameterError)
            refuses &= len(str(error)) >= SHORTEST_MESSAGE
            message = f"{what}: {_told(error)}"
            raise (RefusedError if refuses else FoundError)(message) from error
    for warning in heard:
        # scikit-learn tells those who fit a table and transform an array, joblib our workers.
        theirs = any(
            text in str(warning.message) for text in ("valid feature names", "Loky-backed")
        )
        expected = theirs or issubclass(warning.category, EXPECTED_WARNINGS)
        where = f"{Path(warning.filename).name}:{warning.lineno}"
        demand(expected, f"{what}: {warning.category.__name__} {warning.message} at {where}")


@contextmanager
def promised(what: str) -> Iterator[None]:
    """Run what must work once a model is fitted: a refusal is a finding too."""
    try:
        with judged(what):
            yield
    except RefusedError as error:
        raise FoundError(str(error)) from error


def _told(error: BaseException) -> str:
    """Return what an error says, and the last place of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/polyad/" in frame.filename]
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__} {' '.join(str(error).split())[:240]}{where}"


def demand(holds: object, what: str) -> None:
    if not holds:
        raise FoundError(what)


def same_bits(first: Any, second: Any, what: str) -> None:
    """Demand that two nested results are the same, bit for bit."""
    if isinstance(first, list | tuple):
        demand(len(first) == len(second), f"{what}: other lengths")
        for one, two in zip(first, second, strict=True):
            same_bits(one, two, what)
        return
    one, two = np.asarray(first), np.asarray(second)
    demand(one.shape == two.shape and one.dtype == two.dtype, f"{what}: other shape or type")
    same = np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
    demand(same, same or f"{what}: differ by {_apart(one, two):.3g} of {_size(one):.3g}")


def close(first: Any, second: Any, tol: float, what: str, scale: float = 0.0) -> None:
    """Demand that two arrays agree, relative to the larger of their size and ``scale``."""
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    demand(one.shape == two.shape, f"{what}: shapes {one.shape} and {two.shape}")
    size, apart = max(_size(one), _size(two), scale), _apart(one, two)
    demand(apart <= tol * size, f"{what}: differ by {apart:.3g} of {size:.3g}")


def finite(value: Any, what: str) -> None:
    """Demand that every number in a nested result is finite."""
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            finite(item, what)
    elif isinstance(value, np.ndarray | float) and np.asarray(value).dtype.kind == "f":
        demand(np.isfinite(value).all(), f"{what} is not finite: {np.ravel(value)[:6]}")


def _apart(one: np.ndarray, two: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(float) - two.astype(float))
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))


def _size(array: np.ndarray) -> float:
    return float(np.abs(array.astype(float)).max(initial=0.0))
