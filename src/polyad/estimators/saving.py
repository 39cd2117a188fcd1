"""What a model file may hold: a rule for each attribute that a model learns.

A class declares what it learns by a dataclass, whose fields have a rule each (:func:`attribute`),
and that is all: ``save`` writes what is declared, and ``load`` refuses what is missing, is not
declared or breaks its rule. Rules have sizes as symbols. Those of the factors are known: ``R``
components, ``N`` modes, ``n0``, ``n1``, ... entries of the modes, and ``n`` for the mode of
:func:`per_mode`. Another symbol stands for the size where it is first met, and must be the same
wherever else it occurs. Files come from strangers, and kernels believe the sizes that they are
given.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.exceptions import ModelFileError
from polyad.fitting.checkpoint import check_starts
from polyad.fitting.history import History
from polyad.fitting.status import Status

Sizes = dict[str, int]
#: Says what is wrong with a value, nothing if it is sound.
Rule = Callable[[Any, Sizes], str]

# Weights that sum to one do so up to the rounding of single precision.
_ROUNDING = 1e-4
_LARGEST = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Codec:
    """How a file holds a parameter: ``pack`` may look at the model, ``unpack`` undoes it."""

    pack: Callable[[Any, Any], Any]
    unpack: Callable[[Any], Any]


def attribute(rule: Rule) -> Any:
    """Return a field of a dataclass of what a model learns, with its rule."""
    return dataclasses.field(metadata={"rule": rule})


def check_learned(
    learned: Mapping[str, Any],
    rules: Mapping[str, Rule],
    sizes_of: Callable[[Mapping[str, Any]], Sizes],
) -> None:
    """Refuse what lacks of the attributes that a class learns, and what breaks its rules."""
    lacking = sorted(
        name for name, rule in rules.items() if name not in learned and rule(_ABSENT, {})
    )
    if lacking:
        message = f"it lacks {', '.join(lacking)}"
        raise ModelFileError(message)
    sizes = sizes_of(learned)
    for name, rule in rules.items():
        problem = rule(learned[name], sizes) if name in learned else ""
        if problem:
            message = f"{name} {problem}"
            raise ModelFileError(message)


def sizes_of_factors(factors: Any) -> Sizes:
    """Return the sizes of a model, which its factors tell."""
    if not isinstance(factors, list) or len(factors) < 2:
        message = "factors_ is not a list of two matrices or more"
        raise ModelFileError(message)
    if not all(isinstance(factor, np.ndarray) and factor.ndim == 2 for factor in factors):
        message = "factors_ has what is not a matrix"
        raise ModelFileError(message)
    if not all(factor.size for factor in factors):
        message = "factors_ has a matrix without entries"
        raise ModelFileError(message)
    shape = {f"n{mode}": factor.shape[0] for mode, factor in enumerate(factors)}
    return {**shape, "N": len(factors), "R": factors[0].shape[1]}


_ABSENT = object()


def optional(rule: Rule) -> Rule:
    """Allow an attribute to be absent; where it is there, it follows the rule."""
    return lambda value, sizes: "" if value is _ABSENT else rule(value, sizes)


def nothing_or(rule: Rule) -> Rule:
    """Allow None."""
    return lambda value, sizes: "" if value is None else rule(value, sizes)


def any_of(*rules: Rule) -> Rule:
    """Ask for what follows one rule or another; tells what the last one says."""

    def check(value: Any, sizes: Sizes) -> str:
        problems = [rule(value, sizes) for rule in rules]
        return "" if "" in problems else problems[-1]

    return check


def array(
    *shape: str,
    low: float = -math.inf,
    high: float = math.inf,
    increasing: bool = False,
    shares: bool = False,
) -> Rule:
    """Ask for finite floating-point numbers.

    Parameters
    ----------
    *shape : str
        Symbols of the sizes.
    low, high : float
        Between which all numbers are.
    increasing : bool
        Whether no number of a row is below the one before it.
    shares : bool
        Whether the numbers of a row are not negative and sum to one.
    """

    def check(value: Any, sizes: Sizes) -> str:
        if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64):
            return f"is {_kind(value)} and not an array of floating-point numbers"
        if len(value.shape) != len(shape) or any(
            sizes.setdefault(symbol, size) != size
            for symbol, size in zip(shape, value.shape, strict=True)
        ):
            return f"has the shape {value.shape}, which does not fit the rest of the model"
        if not np.isfinite(value).all():
            return "has numbers that are not finite"
        if value.size and not (low <= value.min() and value.max() <= high):
            return f"has numbers below {low} or above {high}"
        if increasing and (np.diff(value, axis=-1) < 0).any():
            return "has numbers that decrease"
        if shares and ((value < 0).any() or (np.abs(value.sum(axis=-1) - 1.0) > _ROUNDING).any()):
            return "has rows that are not shares of one"
        return ""

    return check


def per_mode(rule: Rule, *, first: int = 0) -> Rule:
    """Ask for a list with one item for each mode, from ``first`` on."""

    def check(value: Any, sizes: Sizes) -> str:
        if not isinstance(value, list) or len(value) != sizes["N"] - first:
            return "is not a list with an item for each mode"
        for mode, item in enumerate(value, start=first):
            problem = rule(item, {**sizes, "n": sizes[f"n{mode}"]})
            if problem:
                return f"of mode {mode} {problem}"
        return ""

    return check


def parts(kind: type[list[Any]] | type[tuple[Any, ...]], *rules: Rule) -> Rule:
    """Ask for a list or tuple of items that each have their own rule."""

    def check(value: Any, sizes: Sizes) -> str:
        if type(value) is not kind or len(value) != len(rules):
            return f"is not a {kind.__name__} of {len(rules)} items"
        found = (rule(item, sizes) for rule, item in zip(rules, value, strict=True))
        return next(filter(None, found), "")

    return check


def fields(**rules: Rule) -> Rule:
    """Ask for a dict that has at least these keys."""

    def check(value: Any, sizes: Sizes) -> str:
        if not isinstance(value, dict) or not value.keys() >= rules.keys():
            return f"is not a dict with {', '.join(rules)}"
        found = ((key, rule(value[key], sizes)) for key, rule in rules.items())
        return next((f"[{key!r}] {problem}" for key, problem in found if problem), "")

    return check


def number(low: float = -math.inf, *, finite: bool = True) -> Rule:
    """Ask for a float, finite unless said otherwise, and not below ``low``."""

    def check(value: Any, sizes: Sizes) -> str:
        if type(value) is not float or math.isnan(value):
            return f"is {_kind(value)} and not a number"
        is_sound = value >= low and (math.isfinite(value) or not finite)
        return "" if is_sound else f"is {value}, which is out of range"

    return check


def whole(low: int, high: int = _LARGEST) -> Rule:
    """Ask for a whole number within a range."""

    def check(value: Any, sizes: Sizes) -> str:
        if type(value) is not int:
            return f"is {_kind(value)} and not a whole number"
        return "" if low <= value <= high else "is out of range"

    return check


def size_of(symbol: str) -> Rule:
    """Ask for a size of the model."""

    def check(value: Any, sizes: Sizes) -> str:
        if type(value) is not int:
            return f"is {_kind(value)} and not a whole number"
        return "" if value == sizes.get(symbol) else "does not fit the factors"

    return check


def one_of(*accepted: Any) -> Rule:
    """Ask for one of some values, of the same type."""

    def check(value: Any, sizes: Sizes) -> str:
        found = any(type(value) is type(own) and value == own for own in accepted)
        return "" if found else f"is not one of {', '.join(map(repr, accepted))}"

    return check


def flag(value: Any, sizes: Sizes) -> str:
    """Ask for True or False."""
    return "" if isinstance(value, bool) else f"is {_kind(value)} and not True or False"


def labels(symbol: str, *, kinds: str = "UiufbcMm", unique: bool = True) -> Rule:
    """Ask for an array of text, numbers or dates."""

    def check(value: Any, sizes: Sizes) -> str:
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in kinds
        # Of other numbers pandas makes no index.
        if not is_array or not value.dtype.isnative or value.dtype == np.float16:
            return f"is {_kind(value)} and not an array of labels"
        if value.shape != (sizes.setdefault(symbol, value.size),):
            return f"has the shape {value.shape}, which does not fit the rest of the model"
        if value.dtype.kind in "fcMm" and np.isnan(value).any():
            return "has a label that is missing"
        if unique and len(np.unique(value)) < value.size:
            return "has a label more than once"
        return ""

    return check


def mode_labels(value: Any, sizes: Sizes) -> str:
    """Ask for the labels of each mode, or None where it has none."""
    # Only the labels of modes other than the samples are looked up.
    problem = per_mode(nothing_or(labels("n", unique=False)))(value, sizes)
    later = value[1:] if not problem else []
    repeated = any(own is not None and len(np.unique(own)) < len(own) for own in later)
    return problem or ("has a label more than once in a mode" if repeated else "")


def mode_names(value: Any, sizes: Sizes) -> str:
    """Ask for a different name for each mode."""
    if value is None:
        return ""
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        return "is not a tuple of names"
    return "" if len(set(value)) == len(value) == sizes["N"] else "is not one name for each mode"


def history(value: Any, sizes: Sizes) -> str:
    """Ask for a history of numbers, whose length is the number of iterations and one."""
    if not isinstance(value, History):
        return f"is {_kind(value)} and not a history"
    sizes["n_iter"] = value.n_iter
    for position, record in enumerate(value):
        # NaN is a number here: not every method knows every diagnostic of its start.
        if not all(
            type(item) is float or not whole(-_LARGEST)(item, sizes) for item in record.values()
        ):
            return "has what is not a number"
        if not record.keys() >= {"iteration", "objective", "seconds"}:
            return "has an iteration without iteration, objective and seconds"
        if record["iteration"] != position:
            return "has iterations that are not numbered from 0"
    try:
        check_starts(value.starts, len(value.starts))
    except ModelFileError:
        return "has starts that are not those of a fit"
    return ""


def status(value: Any, sizes: Sizes) -> str:
    """Ask for the ending of a fit."""
    return "" if isinstance(value, Status) else f"is {_kind(value)} and not a status"


def _kind(value: Any) -> str:
    """Return what a value is, in a few words."""
    if value is _ABSENT:
        return "absent"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name[:40]}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def stored_value(value: Any) -> Any:
    """Turn values of parameters and attributes into what an archive holds."""
    if hasattr(value, "weights") and hasattr(value, "factors"):  # of TensorLy too
        value = {"weights": value.weights, "factors": list(value.factors)}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None  # a running generator is not part of what was learned
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, History):
        return History([stored_value(record) for record in value], value.starts)
    if isinstance(value, dict):
        return {key: stored_value(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset, range)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return type(value)(stored_value(item) for item in value)
    if hasattr(value, "__array_namespace__") or type(value).__module__.startswith("torch"):
        value = to_numpy(value)
        is_text = value.dtype == object and all(isinstance(item, str) for item in value.flat)
        return value.astype(str) if is_text else value
    return value


#: Of the parameters that files hold as they are.
PLAIN = Codec(lambda value, _: stored_value(value), lambda stored: stored)
