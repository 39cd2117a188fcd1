"""Checks of the parameters that depend on the shape of the data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_rank(n_components: int, shape: Sequence[int]) -> None:
    """Refuse more components than any tensor of this shape can need.

    Parameters
    ----------
    n_components : int
        What was asked for.
    shape : sequence of int
        Of the data.
    """
    limit = math.prod(shape) // max(shape)
    if n_components > limit:
        message = (
            f"n_components={n_components} is too large: a tensor of shape {tuple(shape)} "
            f"(n_samples={shape[0]}, n_features={shape[1]}) has rank at most {limit}, the "
            "product of all sizes but the largest. Use fewer components."
        )
        raise InvalidInputError(message)


def read_fixed_modes(fixed_modes: Iterable[int], n_modes: int, init: Any) -> list[int]:
    """Return the fixed modes, counted from zero.

    Parameters
    ----------
    fixed_modes : iterable of int
        What was asked for; negative modes count from the end.
    n_modes : int
        Of the data.
    init : object
        Where the factors of the fixed modes must come from.
    """
    modes = [int(mode) for mode in fixed_modes]
    if any(not -n_modes <= mode < n_modes for mode in modes):
        message = f"fixed_modes={modes} has a mode outside 0..{n_modes - 1}."
        raise InvalidInputError(message)
    fixed = sorted({mode % n_modes for mode in modes})
    if len(fixed) == n_modes:
        message = f"fixed_modes={modes} leaves nothing to fit: free at least one mode."
        raise InvalidInputError(message)
    if fixed and isinstance(init, str):
        message = f"fixed_modes={modes} keeps factors of init, but init={init!r} has none."
        raise InvalidInputError(message)
    return fixed
