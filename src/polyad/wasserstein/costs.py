"""From what a user says of costs to a matrix for each mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyad.data.mode_matrices import check_name, entries_of_modes
from polyad.transport.costs import (
    cosine_cost,
    one_identity_cost,
    presence_cost,
    random_cost,
    tfidf_cost,
    validate_cost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
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
#: The name that says that nothing moves along a mode.
SEPARATE = "separate"

_ACCEPTED = (
    f"Give a name for all modes ({', '.join(map(repr, (*NAMED, SEPARATE)))}), a function, a list "
    "with one entry per mode, or a dict from mode to cost."
)


def is_separate(rule: Any) -> bool:
    """Say whether nothing moves along a mode."""
    return isinstance(rule, str) and rule == SEPARATE


def rules_of(costs: Any, given: TensorInput) -> list[Any]:
    """Return what was said of each mode: a name, a function or a matrix."""
    n_modes = len(given.shape)
    if isinstance(costs, str) or callable(costs):
        return [costs] * n_modes
    rules = {} if costs is None else entries_of_modes("costs", costs, given, _ACCEPTED)
    default = [SEPARATE, *["cosine"] * (n_modes - 1)]
    said = (rules.get(mode) for mode in range(n_modes))
    return [own if rule is None else rule for rule, own in zip(said, default, strict=True)]


def read_cost(rule: Any, given: TensorInput, tensor: SparseTensor, mode: int, seed: int) -> Cost:
    """Return the cost of one mode, or None if nothing moves along it."""
    if is_separate(rule):
        return None
    title = given.mode_title(mode)
    if isinstance(rule, str):
        check_name("costs", rule, (*NAMED, SEPARATE), title)
        rule = NAMED[rule](tensor, mode, seed)
    elif callable(rule):
        # A copy: what the function does to it is not done to the data.
        rule = rule(tensor.to_coo().copy(), mode)
    return validate_cost(rule, given.shape[mode], labels=given.labels[mode], mode_title=title)


def read_costs(
    rules: Sequence[Any], given: TensorInput, tensor: SparseTensor, seed: int
) -> list[Cost]:
    """Return the cost of each mode."""
    return [read_cost(rule, given, tensor, mode, seed) for mode, rule in enumerate(rules)]
