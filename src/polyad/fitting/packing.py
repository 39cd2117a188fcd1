"""What a checkpoint holds of a fit: results as arrays and numbers, and the way back.

What comes back is compared with a state such as the solver itself makes: the same fields, of the
same types and shapes, finite, so that no step and no kernel meets anything else.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.exceptions import ModelFileError, Status
from polyad.fitting.driver import FitResult
from polyad.fitting.history import History

S = TypeVar("S")

_LARGEST_INTEGER = 2**63
_RESULT = {"state", "last", "status", "history", "best_objective"}


def pack_result(result: FitResult[Any]) -> dict[str, Any]:
    """Turn a result into arrays and numbers."""
    return {
        "state": None if result.state is result.last else _pack(result.state),
        "last": _pack(result.last),
        "status": result.status,
        "history": History([_pack(record) for record in result.history]),
        "best_objective": _pack(result.best_objective),
    }


def unpack_result(packed: Any, example: S) -> FitResult[S]:
    """Undo :func:`pack_result`, and refuse what it makes of no state such as the example."""
    _check(isinstance(packed, dict) and packed.keys() == _RESULT, "the parts of a result")
    last = _unpack_state(packed["last"], example)
    state = last if packed["state"] is None else _unpack_state(packed["state"], example)
    _check(packed["status"] is None or isinstance(packed["status"], Status), "the status")
    _check_history(packed["history"])
    best = packed["best_objective"]
    _check(_is_number(best) and not math.isnan(best), "the best objective")
    return FitResult(state, packed["status"], packed["history"], last, best)


def check_seeds(seeds: Any, number: Any, n_seeds: int) -> None:
    """Refuse seeds, and the number of the restart whose turn it is, that no fit has."""
    is_list = isinstance(seeds, list) and len(seeds) == n_seeds
    _check(is_list and all(_is_count(seed) and seed < 2**32 for seed in seeds), "the seeds")
    _check(_is_count(number) and number < n_seeds, "the number of the restart")


def _pack(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value):
        return {item.name: _pack(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _pack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_pack(item) for item in value)
    return to_numpy(value)


def _unpack_state(packed: Any, example: Any) -> Any:
    """Return a state, or a part of one that is a dataclass itself."""
    fields = {item.name: item for item in dataclasses.fields(example)}
    _check(isinstance(packed, dict) and packed.keys() == fields.keys(), "the fields of a state")
    content = dict(packed)
    # Lists that begin empty, such as the memory of a quasi-Newton method, have no example.
    grown = [name for name, item in fields.items() if "like" in item.metadata]
    for name in fields.keys() - grown:
        own = getattr(example, name)
        if dataclasses.is_dataclass(own):
            content[name] = _unpack_state(packed[name], own)
        else:
            _check(_is_alike(packed[name], _pack(own)), name)
    for name in grown:
        items, like = packed[name], _pack(getattr(example, fields[name].metadata["like"]))
        _check(isinstance(items, list) and len(items) == len(packed[grown[0]]), name)
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
