"""Checks of the parameters that depend on the shape of the data."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_rank(n_components: int, shape: Sequence[int]) -> None:
    """Refuse more components than any tensor of this shape can need."""
    limit = math.prod(shape) // max(shape)
    if n_components > limit:
        # The wording of scikit-learn, which its users search for.
        features = f", n_features={shape[1]}" if len(shape) == 2 else ""
        message = (
            f"n_components={n_components} is too large: a tensor of shape {tuple(shape)} "
            f"(n_samples={shape[0]}{features}) has rank at most {limit}, the product of all sizes "
            "but the largest. Use fewer components."
        )
        raise InvalidInputError(message)


def read_fixed_modes(fixed_modes: Iterable[int], n_modes: int, init: Any) -> list[int]:
    """Return the fixed modes, counted from zero; their factors must come from ``init``."""
    modes = list(fixed_modes) if np.iterable(fixed_modes) else [fixed_modes]
    for mode in modes:
        if not isinstance(mode, Integral) or isinstance(mode, bool):
            message = (
                f"fixed_modes has {mode!r}, a {type(mode).__name__}; give the numbers of modes, "
                f"0..{n_modes - 1}."
            )
            raise InvalidTypeError(message)
    modes = [int(mode) for mode in modes]
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


def read_weights(name: str, value: Any, n_modes: int) -> list[float]:
    """Return a weight for each mode, of one for all or one for each."""
    try:
        weights = np.asarray(value, dtype=float)
    except (OverflowError, TypeError, ValueError):  # told below, as other shapes are
        weights = np.zeros(0)
    each = np.full(n_modes, weights) if weights.ndim == 0 else weights
    if each.shape != (n_modes,) or not (np.isfinite(each).all() and (each >= 0).all()):
        message = (
            f"{name}={value!r:.100} is not usable for {n_modes} modes: give one nonnegative "
            "number, or one for each mode."
        )
        raise InvalidInputError(message)
    return [float(weight) for weight in each]


def read_penalties(
    sparsity: Any, ridge: Any, n_modes: int, fixed_modes: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Return the penalties of each mode; those of fixed modes do not count."""
    both = []
    for name, value in (("sparsity", sparsity), ("ridge", ridge)):
        each = read_weights(name, value, n_modes)
        both.append([0.0 if k in fixed_modes else each[k] for k in range(n_modes)])
    penalised = [k for k in range(n_modes) if both[0][k] + both[1][k] > 0]
    bare = [k for k in range(n_modes) if k not in penalised and k not in fixed_modes]
    if penalised and bare:
        message = (
            f"The modes {penalised} are penalised and {bare} are not: scale would move to the "
            "latter until nothing is left to penalise. Give those a small ridge too."
        )
        raise InvalidInputError(message)
    return both[0], both[1]
