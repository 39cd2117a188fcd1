"""Save a running fit so that a killed one goes on, with the same result bit for bit.

A checkpoint holds everything that the rest of the fit depends on: the seeds of the restarts, the
running restart with its state and history, and the best restart so far. Steps are functions of
the state alone, so the resumed fit makes the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
import warnings
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from polyad.arrays import to_numpy
from polyad.exceptions import CheckpointError, DataWarning, InvalidTypeError, ModelFileError
from polyad.files import read_path
from polyad.fitting.archive import read_archive, write_archive
from polyad.fitting.driver import FitResult

if TYPE_CHECKING:
    from collections.abc import Iterable

S = TypeVar("S")

# Without `every`, a checkpoint is written when the last one took at most this part of the time.
_SHARE_OF_TIME = 0.05


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
        if self.path.is_dir():
            message = (
                f"The checkpoint {self.path} is a folder. Give a file in it, which may not exist."
            )
            raise CheckpointError(message)
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


class CheckpointWriter:
    """Writes the checkpoints of one fit.

    Parameters
    ----------
    checkpoint : Checkpoint
        Where and how often.
    identity : dict
        What makes two fits the same one: method, data digest, parameters.
    """

    def __init__(self, checkpoint: Checkpoint, identity: dict[str, Any]) -> None:
        self._path = checkpoint.path
        self._every = checkpoint.every
        self._identity = identity
        self._cost = 0.0
        self._written_at = time.perf_counter()
        self._warned = False
        if not self._path.parent.is_dir():
            message = (
                f"The folder of the checkpoint {self._path} does not exist. Create it first, so "
                "that the fit cannot lose its work at the end."
            )
            raise CheckpointError(message)

    def read(self) -> dict[str, Any] | None:
        """Return what an earlier run of the same fit saved, or None if there is nothing."""
        if not self._path.exists():
            return None
        try:
            content = read_archive(self._path, "checkpoint")
            saved = dict(content["identity"])
        except (ModelFileError, KeyError, TypeError) as error:
            message = (
                f"{self._path} exists and is not a checkpoint of polyad, so it is left alone. "
                "Choose another path, or delete the file if it is not needed."
            )
            raise CheckpointError(message) from error
        different = [
            f"{key} (saved {saved.get(key)!r}, now {self._identity.get(key)!r})"
            for key in sorted(saved.keys() | self._identity.keys())
            if saved.get(key) != self._identity.get(key)
        ]
        if different:
            message = (
                f"The checkpoint {self._path} belongs to another fit; these differ: "
                f"{', '.join(different)}. Choose another path, or delete the file to start anew."
            )
            raise CheckpointError(message)
        return content

    def due(self, n_iter: int) -> bool:
        """Say whether it is time to write again."""
        if self._every is not None:
            return n_iter % self._every == 0
        return time.perf_counter() - self._written_at >= self._cost / _SHARE_OF_TIME

    def write(self, content: dict[str, Any]) -> None:
        """Write the checkpoint. A full disk is told once and does not end the fit."""
        started = time.perf_counter()
        try:
            write_archive(self._path, "checkpoint", {"identity": self._identity, **content})
        except OSError as error:
            if not self._warned:
                self._warned = True
                message = f"The checkpoint {self._path} could not be written ({error}); going on."
                warnings.warn(message, DataWarning, stacklevel=2)
        self._written_at = time.perf_counter()
        self._cost = self._written_at - started


def pack_result(result: FitResult[Any]) -> dict[str, Any]:
    """Turn a result into arrays and numbers."""
    return {
        "state": None if result.state is result.last else _pack_state(result.state),
        "last": _pack_state(result.last),
        "status": result.status,
        "history": result.history,
        "best_objective": result.best_objective,
    }


def unpack_result(packed: dict[str, Any], state_type: type[S]) -> FitResult[S]:
    """Undo :func:`pack_result`."""
    last = state_type(**packed["last"])
    best = last if packed["state"] is None else state_type(**packed["state"])
    return FitResult(best, packed["status"], packed["history"], last, packed["best_objective"])


def digest(arrays: Iterable[Any]) -> str:
    """Return a short name for the content of some arrays, the same on every machine."""
    sink = hashlib.blake2b(digest_size=16)
    for array in arrays:
        plain = np.ascontiguousarray(to_numpy(array))
        sink.update(f"{plain.dtype.str}{plain.shape}".encode())
        sink.update(plain.data.cast("B") if plain.size else b"")
    return sink.hexdigest()


def _pack_state(state: Any) -> dict[str, Any]:
    return {item.name: _pack_value(getattr(state, item.name)) for item in dataclasses.fields(state)}


def _pack_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_pack_value(item) for item in value)
    return to_numpy(value)
