"""From what a user says of costs to a matrix for each mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.costs import (
    as_frame,
    cosine_cost,
    one_identity_cost,
    presence_cost,
    random_cost,
    tfidf_cost,
    validate_cost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.data.validation import TensorInput
    from polyad.tensor.sparse import SparseTensor

    Cost = NDArray[np.float64] | None

#: How a named cost is made from the data, the mode and a seed.
NAMED: dict[str, Callable[[SparseTensor, int, int], NDArray[np.float64]]] = {
    "cosine": lambda tensor, mode, seed: cosine_cost(tensor.to_coo(), mode),
    "presence": lambda tensor, mode, seed: presence_cost(tensor.to_coo(), mode),
    "tfidf": lambda tensor, mode, seed: tfidf_cost(tensor.to_coo(), mode),
    "one-identity": lambda tensor, mode, seed: one_identity_cost(tensor.shape[mode]),
    "random": lambda tensor, mode, seed: random_cost(tensor.shape[mode], seed + mode),
}
SEPARATE = "separate"


def is_separate(rule: Any) -> bool:
    """Say whether nothing moves along a mode."""
    return isinstance(rule, str) and rule == SEPARATE


def rules_of(costs: Any, given: TensorInput) -> list[Any]:
    """Return what was said of each mode.

    Parameters
    ----------
    costs : None, str, callable, mapping or sequence
        What was given to the estimator.
    given : TensorInput
        The data.
    """
    n_modes = len(given.shape)
    default = [SEPARATE, *["cosine"] * (n_modes - 1)]
    if costs is None:
        return default
    if isinstance(costs, str) or callable(costs):
        return [costs] * n_modes
    if isinstance(costs, Mapping):
        rules: dict[int, Any] = {}
        for key, rule in costs.items():
            mode = _mode_number(key, given)
            if mode in rules:
                message = (
                    f"costs names {given.mode_title(mode)} twice: {', '.join(map(repr, costs))}."
                )
                raise InvalidInputError(message)
            rules[mode] = default[mode] if rule is None else rule
        return [rules.get(mode, default[mode]) for mode in range(n_modes)]
    if isinstance(costs, list | tuple):
        if len(costs) != n_modes:
            message = f"costs has {len(costs)} entries; the data has {n_modes} modes, one for each."
            raise InvalidInputError(message)
        return [own if rule is None else rule for rule, own in zip(costs, default, strict=True)]
    message = (
        f"costs of type {type(costs).__name__} are not understood. Give a name for all modes "
        f"({', '.join(map(repr, (*NAMED, SEPARATE)))}), a function, a list with one entry per "
        "mode, or a dict from mode to cost."
    )
    raise InvalidTypeError(message)


def _mode_number(key: Any, given: TensorInput) -> int:
    n_modes = len(given.shape)
    if isinstance(key, str) and given.modes is not None and key in given.modes:
        return given.modes.index(key)
    is_number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    if is_number and -n_modes <= key < n_modes:
        return int(key) % n_modes
    names = "" if given.modes is None else f" or one of {', '.join(map(repr, given.modes))}"
    message = f"costs has the mode {key!r}; the data has the modes 0..{n_modes - 1}{names}."
    raise InvalidInputError(message)


def read_cost(rule: Any, given: TensorInput, tensor: SparseTensor, mode: int, seed: int) -> Cost:
    """Return the cost of one mode, or None if nothing moves along it.

    Parameters
    ----------
    rule : str, callable or matrix
        What was said of the mode.
    given : TensorInput
        The data, for its labels.
    tensor : SparseTensor
        Its nonzeros.
    mode : int
        The mode.
    seed : int
        Of random costs.
    """
    if is_separate(rule):
        return None
    if isinstance(rule, str):
        if rule not in NAMED:
            message = (
                f"costs names {rule!r} for {given.mode_title(mode)}. Known names are "
                f"{', '.join(map(repr, (*NAMED, SEPARATE)))}."
            )
            raise InvalidInputError(message)
        rule = NAMED[rule](tensor, mode, seed)
    elif callable(rule):
        # A copy: what the function does to it is not done to the data.
        rule = rule(tensor.to_coo().copy(), mode)
    return validate_cost(
        rule, given.shape[mode], labels=given.labels[mode], mode_title=given.mode_title(mode)
    )


def read_costs(
    rules: Sequence[Any], given: TensorInput, tensor: SparseTensor, seed: int
) -> list[Cost]:
    """Return the cost of each mode."""
    return [read_cost(rule, given, tensor, mode, seed) for mode, rule in enumerate(rules)]


def portable_rules(costs: Any, found: Sequence[Cost], modes: Sequence[str] | None) -> Any:
    """Return costs without functions, which a model file does not hold.

    A function is replaced by the cost that it gave in the fit. That of the samples is left out: it
    is of no use for other samples.

    Parameters
    ----------
    costs : None, str, callable, mapping or sequence
        What was given to the estimator.
    found : sequence of (ndarray or None)
        The cost of each mode in the fit; empty if there was none.
    modes : sequence of str, optional
        The names of the modes.
    """
    if costs is None or isinstance(costs, str):
        return costs
    if callable(costs):
        return dict(list(enumerate(found))[1:])
    rules = dict(costs) if isinstance(costs, Mapping) else dict(enumerate(costs))
    kept: dict[Any, Any] = {}
    for key, rule in rules.items():
        if callable(rule):
            mode = modes.index(key) if modes and isinstance(key, str) else key
            if not found or mode % len(found) == 0:
                continue
            kept[key] = found[mode]
        elif rule is None or isinstance(rule, str):
            kept[key] = rule
        else:
            frame = as_frame(rule)
            kept[key] = np.asarray(rule) if frame is None else frame
    return kept
