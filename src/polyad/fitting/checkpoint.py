"""Save a running fit so that a killed one goes on, with the same result.

A checkpoint holds everything that the rest of the fit depends on: the seeds of the restarts, the
running restart with its state and history, and the best restart so far. Steps are functions of
the state alone, so the resumed fit makes the same numbers as an uninterrupted one, bit for bit.

What comes back is compared with a state such as the solver itself makes: the same fields, of the
same types and shapes, finite, so that no step and no kernel meets anything else.
"""

from __future__ import annotations

import dataclasses
import math
import os
import stat
import time
import warnings
from contextlib import ExitStack
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.core.files import held, read_path
from polyad.exceptions import CheckpointError, DataWarning, InvalidTypeError, ModelFileError
from polyad.fitting.archive import read_archive, write_archive
from polyad.fitting.driver import FitResult
from polyad.fitting.history import History
from polyad.fitting.identity import digest_of, identify, is_digest
from polyad.fitting.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

S = TypeVar("S")
T = TypeVar("T")

# Whole numbers of a state are below it: counts, seeds.
_LARGEST_INTEGER = 2**63
_RESULT = {"state", "last", "status", "history", "best_objective"}
# Without `every`, a checkpoint is written when the last one took at most this part of the time.
_SHARE_OF_TIME = 0.05
_KEEPS_LIMITS = (
    "A fit of several starts (n_init above one, or a search, as init='search' makes) keeps the "
    "max_iter and tol that it began with, and one whose steps depend on tol keeps that. "
)


class Checkpoint:
    """Where and how often a fit saves itself.

    Parameters
    ----------
    path : path-like
        The file. If it holds a checkpoint of the same fit, the fit goes on from there; if it holds
        anything else, the fit is refused and the file is left alone.
    every : int, optional
        Save after every so many iterations. By default, as often as costs at most about a
        twentieth of the running time.

    Examples
    --------
    >>> from polyad.fitting import Checkpoint
    >>> Checkpoint("night.polyad", every=10)
    Checkpoint('night.polyad', every=10)
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int | None = None) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, Integral)):
            message = f"every={every!r} is a {type(every).__name__}; give a whole number, or None."
            raise InvalidTypeError(message)
        if every is not None and every < 1:
            message = f"every={every} is not a number of iterations; give 1 or more, or None."
            raise CheckpointError(message)
        self.path = read_path(path)
        _check_kind(self.path)
        self.every = every

    @classmethod
    def of(cls, value: object) -> Checkpoint | None:
        """Read the ``checkpoint`` parameter of an estimator: a path, a Checkpoint or None."""
        if value is None or isinstance(value, Checkpoint):
            return value
        if isinstance(value, (str, os.PathLike)):
            return cls(value)
        message = (
            f"checkpoint is a {type(value).__name__}; give a path, a polyad.fitting.Checkpoint, "
            "or None."
        )
        raise InvalidTypeError(message)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, every={self.every})"


def _compared(saved: Any, now: Any) -> str:
    """Return two values of an identity side by side; digests say nothing to a reader."""
    if is_digest(saved) and is_digest(now):
        return "of other content"
    texts = ["something else" if is_digest(value) else repr(value) for value in (saved, now)]
    return f"saved {texts[0]}, now {texts[1]}"


class CheckpointWriter:
    """Reads and writes the checkpoints of one fit, and keeps other fits from doing so meanwhile.

    ``identity`` is what makes two fits the same one: see :mod:`polyad.fitting.identity`.
    """

    def __init__(self, checkpoint: Checkpoint, identity: dict[str, Any]) -> None:
        self.path = checkpoint.path
        self._every = checkpoint.every
        self._identity = identity
        self._cost = 0.0
        self._written_at = time.perf_counter()
        self._warned = False
        self._hold = ExitStack()

    def __enter__(self) -> CheckpointWriter:
        _check_kind(self.path)
        if not self.path.parent.is_dir():
            message = (
                f"The folder of the checkpoint {self.path} does not exist. Create it first, so "
                "that the fit cannot lose its work at the end."
            )
            raise CheckpointError(message)
        try:
            self._hold.enter_context(held(self.path))
        except BlockingIOError as error:
            message = (
                f"The checkpoint {self.path} is in use by another fit that is running. Wait until "
                "it is done, or give each fit a path of its own."
            )
            raise CheckpointError(message) from error
        except OSError as error:
            message = (
                f"The checkpoint {self.path} cannot be written ({error}). Choose a folder that can "
                "be written to, so that the fit cannot lose its work."
            )
            raise CheckpointError(message) from error
        return self

    def __exit__(self, *_error: object) -> None:
        self._hold.close()

    def read(self, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return what an earlier run of the same fit saved, or None if there is nothing.

        ``parse`` makes something of the content, or raises a ModelFileError.
        """
        try:
            if not self.path.exists():
                return None
            content = read_archive(self.path, "checkpoint")
            if content.pop("digest", None) != digest_of(content):
                message = "it is damaged, was edited, or is of an earlier version"
                raise ModelFileError(message)
            self._check_identity(content.pop("identity", None))
            return parse(content)
        except ModelFileError as error:
            message = (
                f"{self.path} exists and is not a checkpoint of this fit that could go on, so it "
                f"is left alone: {str(error).rstrip('.')}. Choose another path, or delete the file "
                "if it is not needed."
            )
            raise CheckpointError(message) from error
        except OSError as error:
            message = f"The checkpoint {self.path} cannot be read ({error}). Choose another path."
            raise CheckpointError(message) from error

    def _check_identity(self, saved: Any) -> None:
        """Refuse the checkpoint of another fit."""
        if not isinstance(saved, dict):
            message = "it does not say which fit it is of"
            raise ModelFileError(message)
        different = {
            key: (saved.get(key), self._identity.get(key))
            for key in sorted(saved.keys() | self._identity.keys())
            if identify(saved.get(key), key) != self._identity.get(key)
        }
        if "class" in different:  # whose parameters are others too
            different = {"class": different["class"]}
        if different:
            shown = [f"{key} ({_compared(*values)})" for key, values in different.items()]
            limits = different.keys() <= {"max_iter", "tol"}
            message = (
                f"The checkpoint {self.path} belongs to another fit; these differ: "
                f"{', '.join(shown)}. {_KEEPS_LIMITS if limits else ''}Choose another path, or "
                "delete the file to start anew."
            )
            raise CheckpointError(message)

    def due(self, n_iter: int) -> bool:
        """Say whether it is time to write again."""
        if self._every is not None:
            return n_iter % self._every == 0
        return time.perf_counter() - self._written_at >= self._cost / _SHARE_OF_TIME

    def write(self, content: dict[str, Any]) -> None:
        """Write the checkpoint. A full disk is told once and does not end the fit."""
        started = time.perf_counter()
        whole = {"identity": self._identity, **content}
        try:
            write_archive(self.path, "checkpoint", {**whole, "digest": digest_of(whole)})
        except OSError as error:
            if not self._warned:
                self._warned = True
                message = f"The checkpoint {self.path} could not be written ({error}); going on."
                warnings.warn(message, DataWarning, stacklevel=2)
        self._written_at = time.perf_counter()
        self._cost = self._written_at - started


def _check_kind(path: Path) -> None:
    """Refuse what is there and could never be a checkpoint: a folder, a device, a pipe."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        message = f"The checkpoint {str(path)!r} has no path that a file could have: {error}."
        raise CheckpointError(message) from error
    except OSError:  # nothing there, or told when the fit starts
        return
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "device, pipe or socket"
        message = (
            f"The checkpoint {path} is a {kind}. Give the path of a file, which may not exist yet."
        )
        raise CheckpointError(message)


def stored_result(result: FitResult[Any]) -> dict[str, Any]:
    """Turn a result into arrays and numbers."""
    return {
        "state": None if result.state is result.last else _stored(result.state),
        "last": _stored(result.last),
        "status": result.status,
        "history": History([_stored(record) for record in result.history]),
        "best_objective": _stored(result.best_objective),
    }


def restored_result(stored: Any, example: S) -> FitResult[S]:
    """Undo :func:`stored_result`, and refuse what it makes of no state such as the example."""
    _check(isinstance(stored, dict) and stored.keys() == _RESULT, "the parts of a result")
    last = _restored_state(stored["last"], example)
    state = last if stored["state"] is None else _restored_state(stored["state"], example)
    _check(stored["status"] is None or isinstance(stored["status"], Status), "the status")
    _check_history(stored["history"])
    best = stored["best_objective"]
    _check(_is_number(best) and not math.isnan(best), "the best objective")
    return FitResult(state, stored["status"], stored["history"], last, best)


def check_seeds(seeds: Any, number: Any, n_seeds: int) -> None:
    """Refuse seeds, and the number of the restart whose turn it is, that no fit has."""
    is_list = isinstance(seeds, list) and len(seeds) == n_seeds
    _check(is_list and all(_is_count(seed) and seed < 2**32 for seed in seeds), "the seeds")
    _check(_is_count(number) and number < n_seeds, "the number of the restart")


def check_starts(starts: Any, number: int) -> None:
    """Refuse records of the restarts before the one whose turn it is that no fit has."""
    _check(isinstance(starts, list) and len(starts) == number, "the starts")
    for position, record in enumerate(starts):
        numbers = dict.fromkeys(("objective", "match", "seconds"), float)
        kinds = {"start": int, "kind": str, "n_iter": int, **numbers}
        sound = isinstance(record, dict) and record.keys() == kinds.keys()
        sound = sound and all(type(record[name]) is kind for name, kind in kinds.items())
        _check(sound and record["start"] == position, "the starts")


def _stored(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value):
        return {item.name: _stored(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _stored(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_stored(item) for item in value)
    return to_numpy(value)


def _restored_state(stored: Any, example: Any) -> Any:
    """Return a state, or a part of one that is a dataclass itself."""
    fields = {item.name: item for item in dataclasses.fields(example)}
    _check(isinstance(stored, dict) and stored.keys() == fields.keys(), "the fields of a state")
    content = dict(stored)
    # Lists that begin empty, such as the memory of a quasi-Newton method, have no example.
    grown = [name for name, item in fields.items() if "like" in item.metadata]
    for name in fields.keys() - grown:
        own = getattr(example, name)
        if dataclasses.is_dataclass(own):
            content[name] = _restored_state(stored[name], own)
        else:
            _check(_is_alike(stored[name], _stored(own)), name)
    for name in grown:
        items, like = stored[name], _stored(getattr(example, fields[name].metadata["like"]))
        _check(isinstance(items, list) and len(items) == len(stored[grown[0]]), name)
        _check(all(_is_alike(item, like) for item in items), name)
    return type(example)(**content)


def _is_alike(value: Any, example: Any) -> bool:
    """Say whether a value could be one of the next states, where an example is of another."""
    if isinstance(example, np.ndarray):
        if not isinstance(value, np.ndarray) or value.dtype != example.dtype:
            return False
        # Potentials that are not known yet are NaN.
        bad = np.isinf(value) if np.isnan(example).any() else ~np.isfinite(value)
        return value.shape == example.shape and not bad.any()
    if isinstance(example, (list, tuple)):
        same = type(value) is type(example) and len(value) == len(example)
        return same and all(map(_is_alike, value, example))
    if isinstance(example, float):
        return _is_number(value) and math.isfinite(value)
    if type(example) is int:
        return _is_count(value)
    return type(value) is type(example)


def _check_history(history: Any) -> None:
    _check(isinstance(history, History) and len(history) > 0, "the history")
    for number, record in enumerate(history):
        _check(all(map(_is_number, record.values())), f"row {number} of the history")
        known = [record.get(name, math.nan) for name in ("objective", "seconds")]
        sound = record.get("iteration") == number and all(map(math.isfinite, known))
        _check(sound and known[1] >= 0, f"row {number} of the history")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    """Say whether a value is a whole number as states have them: counts and seeds."""
    return type(value) is int and 0 <= value < _LARGEST_INTEGER


def _check(is_sound: object, what: str) -> None:
    if not is_sound:
        message = f"{what} in it cannot be of this fit"
        raise ModelFileError(message)
