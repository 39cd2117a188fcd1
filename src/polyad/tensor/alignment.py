"""Canonical form of a decomposition, and how well two decompositions agree.

A CP decomposition is unique at best up to the order of its components, the scale that moves
between the modes of a component, and pairs of signs. The canonical form fixes all three, and a
match between two decompositions undoes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device
from scipy.optimize import linear_sum_assignment

from polyad.core.arrays import namespace_of, to_numpy
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.kruskal import KruskalTensor, as_kruskal, column_norms

if TYPE_CHECKING:
    from collections.abc import Collection


# Entries of a column of length one that no weight of a usable model can make matter.
_NEGLIGIBLE = 1e-100


def normalize_components(tensor: KruskalTensor, fixed_modes: Collection[int] = ()) -> KruskalTensor:
    """Fix scale and sign of the components.

    Columns have length one and weights are positive. In every mode but the first the entry of
    largest size in a column is positive; the first mode, the samples, takes the sign that remains.
    Modes in ``fixed_modes`` (not all) are left as they are: their scale stays in them and the
    weights come from the other modes.
    """
    xp = namespace_of(tensor.weights)
    free = [mode for mode in range(tensor.ndim) if mode not in fixed_modes]
    factors = list(tensor.factors)
    weights = tensor.weights
    for mode in free:
        lengths = column_norms(factors[mode])
        safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
        column = factors[mode] / safe[None, :]
        # What is left of a start that died out is far below rounding, and slow to compute with.
        factors[mode] = xp.where(xp.abs(column) < _NEGLIGIBLE, xp.zeros_like(column), column)
        weights = weights * lengths
    # Signs move to the first free mode, which is that of the samples unless it is fixed.
    remaining = _signs(weights)
    for mode in free[1:]:
        flips = _leading_signs(factors[mode])
        factors[mode] = factors[mode] * flips[None, :]
        remaining = remaining * flips
    factors[free[0]] = factors[free[0]] * remaining[None, :]
    return KruskalTensor(xp.abs(weights), factors)


def weight_order(tensor: KruskalTensor) -> list[int]:
    """Return the components by decreasing weight; equal ones keep their order."""
    return [int(r) for r in np.argsort(-to_numpy(tensor.weights), kind="stable")]


def canonicalize_components(tensor: KruskalTensor) -> KruskalTensor:
    """Bring a decomposition to the one form that all its equivalent forms share.

    Columns have length one; weights are positive and decreasing, and equal ones keep their order.
    In every mode but the first the entry of largest size in a column is positive; the first mode,
    the samples, takes the sign that remains.

    Parameters
    ----------
    tensor : KruskalTensor
        The decomposition.
    """
    normalized = normalize_components(tensor)
    return normalized.take(weight_order(normalized))


@dataclass(frozen=True)
class Matching:
    """How the components of one decomposition correspond to those of another.

    Attributes
    ----------
    permutation : array of int
        ``permutation[i]`` is the component of the second decomposition that matches component
        ``components[i]`` of the first.
    components : array of int
        The matched components of the first decomposition, in order. All of them, unless the
        second has fewer.
    similarities : array of float
        The similarity of each matched pair, at most 1.
    score : float
        The mean of the similarities: the factor match score.
    """

    permutation: np.ndarray
    components: np.ndarray
    similarities: np.ndarray
    score: float


def match_components(
    first: Any,
    second: Any,
    *,
    weights: bool = False,
    skip_modes: Collection[int] = (),
) -> Matching:
    r"""Match the components of two decompositions one to one, optimally.

    The similarity of two components is the product over the modes of the cosines between their
    columns, which is the cosine between the two rank-one tensors: signs that cancel between modes
    do no harm, and signs that do not are seen. With ``weights`` it is multiplied by
    :math:`1 - |w - w'| / \max(w, w')`. With ``skip_modes`` the sign of a component is free, because
    a mode that is not compared may take it.

    Parameters
    ----------
    first, second : KruskalTensor, fitted model or (weights, factors)
        Decompositions of tensors of the same shape (except in ``skip_modes``).
    weights : bool
        Whether components of different weight match less.
    skip_modes : collection of int
        Modes that are not compared, for example the samples of two different data sets.
    """
    if not isinstance(weights, bool | np.bool_):
        message = f"weights={weights!r} is a {type(weights).__name__}; give True or False."
        raise InvalidTypeError(message)
    first, second = as_kruskal(first), as_kruskal(second)
    skipped = _mode_numbers(skip_modes, first.ndim)
    modes = [mode for mode in range(first.ndim) if mode not in skipped]
    theirs = second.shape
    if first.ndim != second.ndim or any(first.shape[k] != theirs[k] for k in modes) or not modes:
        message = (
            f"tensors of shape {first.shape} and {theirs} cannot be matched on the modes {modes}: "
            "they need the same modes of the same size. Leave a mode out with skip_modes."
        )
        raise InvalidInputError(message)
    one, two = _numpy(first).normalized(), _numpy(second).normalized()
    similarity = np.sign(one.weights)[:, None] * np.sign(two.weights)[None, :]
    for mode in modes:
        similarity = similarity * (one.factors[mode].T @ two.factors[mode])
    if skip_modes:
        # The sign of a mode that is not compared is free to make up for the others.
        similarity = np.abs(similarity)
    if skipped:
        similarity = np.abs(similarity)
    if weights:
        ours, others = np.abs(one.weights)[:, None], np.abs(two.weights)[None, :]
        larger = np.maximum(ours, others)
        gap = np.abs(ours - others) / np.where(larger > 0, larger, 1.0)
        similarity = similarity * (1.0 - gap)
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    found = np.minimum(similarity[rows, columns], 1.0)
    return Matching(columns, rows, found, float(found.mean()))


def factor_match_score(
    first: Any,
    second: Any,
    *,
    weights: bool = False,
    skip_modes: Collection[int] = (),
) -> float:
    """Return how well two decompositions agree: 1 if they are the same, about 0 if unrelated.

    See :func:`match_components`. If one has fewer components, only those count.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.tensor import KruskalTensor, factor_match_score
    >>> a = KruskalTensor(np.ones(2), [np.eye(2), np.eye(2)])
    >>> b = KruskalTensor(np.ones(2), [-np.eye(2)[:, ::-1], -np.eye(2)[:, ::-1]])
    >>> factor_match_score(a, b)
    1.0
    """
    return match_components(first, second, weights=weights, skip_modes=skip_modes).score


def _mode_numbers(modes: Collection[int], n_modes: int) -> set[int]:
    """Return the modes counted from the front."""
    if any(not -n_modes <= mode < n_modes for mode in modes):
        message = f"skip_modes={list(modes)} has a mode outside 0..{n_modes - 1}."
        raise InvalidInputError(message)
    return {mode % n_modes for mode in modes}


def _signs(values: Any) -> Any:
    """Return 1 or -1 for each number; zero counts as positive."""
    xp = namespace_of(values)
    ones = xp.ones_like(values)
    return xp.where(values < 0, -ones, ones)


def _leading_signs(matrix: Any) -> Any:
    """Return the sign of the first entry of largest size in each column."""
    xp = namespace_of(matrix)
    # Of several entries of largest size one must decide, or both signs of a column would stay.
    first = xp.argmax(xp.abs(matrix), axis=0)
    rows = xp.arange(matrix.shape[0], device=device(matrix))
    leading = xp.where(rows[:, None] == first[None, :], matrix, xp.zeros_like(matrix))
    return _signs(xp.sum(leading, axis=0))


def _numpy(tensor: KruskalTensor) -> KruskalTensor:
    return KruskalTensor(
        to_numpy(tensor.weights).astype(float),
        [to_numpy(factor).astype(float) for factor in tensor.factors],
    )
