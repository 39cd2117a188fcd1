"""The updates of augmented CP: rows of samples by damped steps, factors by least squares.

Rows and matrices of the size of the components are in double precision, data in its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from array_api_compat import is_numpy_array
from scipy.linalg.lapack import dtrtri

from polyad.augmented.views import contract_parts, contract_samples, first_inner
from polyad.core.arrays import namespace_of
from polyad.cp.rules import double
from polyad.tensor.kruskal import column_norms
from polyad.tensor.products import contract_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.augmented.views import Projection, View
    from polyad.core.arrays import Array

# Rows of this part of the usual length have no direction.
_NO_LENGTH = 1e-12
# Steps are halved so often before a row stays as it is.
_HALVINGS = 30
# A step that promises less than this part of the loss of its row is not tried.
_NO_GAIN = 1e-13
# A matrix gets at least this part of its mean diagonal as a ridge, which rounding cannot undo.
_LEAST_RIDGE = 1e-13


class RowSystem:
    """The matrix ``Q = G + ridge I`` that all rows of a batch share, factored once."""

    def __init__(self, gram: Array, ridge: float) -> None:
        xp = namespace_of(gram)
        size = float(xp.mean(xp.linalg.diagonal(gram)))
        ridge = max(ridge, _LEAST_RIDGE * (size if size > 0 else 1.0))
        eye = xp.eye(int(gram.shape[0]), dtype=gram.dtype)
        self.matrix = 0.5 * (gram + gram.T) + ridge * eye
        lower = xp.linalg.cholesky(self.matrix)
        if is_numpy_array(gram):  # a triangular matrix needs no elimination
            self._root = dtrtri(lower, lower=1)[0]
        else:
            self._root = xp.linalg.solve(lower, eye)

    def solve(self, rhs: Array) -> Array:
        """Return ``rhs Q^-1``."""
        return (rhs @ self._root.T) @ self._root


def directions(rows: Array) -> tuple[Array, Array]:
    """Return the rows divided by their lengths, zero for those that have none, and the lengths."""
    xp = namespace_of(rows)
    squares = xp.vecdot(rows, rows)
    least = _NO_LENGTH**2 * float(xp.mean(squares))
    lengths = xp.sqrt(xp.where(squares > least, squares, xp.zeros_like(squares)))
    return rows * _inverse(lengths)[:, None], lengths


def _inverse(lengths: Array) -> Array:
    """Return one over each length, zero for none."""
    xp = namespace_of(lengths)
    return xp.where(lengths > 0, 1.0 / xp.where(lengths > 0, lengths, 1.0), 0.0)


def _pairs(rows: Array, twins: Array) -> tuple[Array, Array, Array, int]:
    """Return the directions of rows and of twins, zero unless both have one, which, how many."""
    (units, lengths), (twin_units, twin_lengths) = directions(rows), directions(twins)
    xp = namespace_of(rows)
    counted = (lengths > 0) & (twin_lengths > 0)
    n_counted = int(xp.count_nonzero(counted))
    if n_counted < int(rows.shape[0]):
        zeros = xp.zeros_like(units)
        units = xp.where(counted[:, None], units, zeros)
        twin_units = xp.where(counted[:, None], twin_units, zeros)
    return units, twin_units, counted, n_counted


def pulls(rows: Array, twins: Array, gamma: float) -> Array:
    """Return ``u`` of each row, by the structure of the matrix of pairs.

    Zero where a row or its twin has no direction, and for less than two others.
    """
    xp = namespace_of(rows)
    _, units, counted, n_counted = _pairs(rows, twins)
    if n_counted < 2:
        return xp.zeros_like(rows)
    push = (gamma + 1.0) / (n_counted - 1)
    pull = push * xp.sum(units, axis=0)[None, :] - (push + 1.0) * units
    if n_counted < int(rows.shape[0]):
        pull = xp.where(counted[:, None], pull, xp.zeros_like(pull))
    return pull


def alignments(rows: Array, twins: Array, gamma: float) -> tuple[float, float, float]:
    """Return the sum of ``<u, x/|x|>``, and the mean cosines with the own twin and with others."""
    xp = namespace_of(rows)
    units, twin_units, _, n_counted = _pairs(rows, twins)
    if n_counted < 2:
        return 0.0, 0.0, 0.0
    own = float(xp.sum(units * twin_units))
    others = float(xp.sum(xp.sum(units, axis=0) * xp.sum(twin_units, axis=0))) - own
    push = (gamma + 1.0) / (n_counted - 1)
    return push * others - own, own / n_counted, others / (n_counted * (n_counted - 1))


def row_losses(rows: Array, system: RowSystem, rhs: Array, pull: Array) -> Array:
    """Return the part of the objective that each row decides, ``pull`` being ``beta u``."""
    xp = namespace_of(rows)
    units, _ = directions(rows)
    return xp.vecdot(rows, rows @ system.matrix - 2.0 * rhs) + xp.vecdot(pull, units)


def improved_rows(
    rows: Array, system: RowSystem, rhs: Array, pull: Array, *, rounds: int = 1
) -> Array:
    """Take damped steps of eq. 15 from some rows, each as long as its loss falls."""
    xp = namespace_of(rows)
    rows = xp.asarray(rows, copy=True)
    for _ in range(rounds):
        units, lengths = directions(rows)
        along, product = xp.vecdot(units, pull), rows @ system.matrix
        best = xp.vecdot(rows, product - 2.0 * rhs) + along
        # The gradient of <pull, x/|x|> is orthogonal to x; a row without length has no part.
        slope = (pull - units * along[:, None]) * _inverse(lengths)[:, None]
        gradient = 2.0 * (product - rhs) + slope
        way = -0.5 * system.solve(gradient)
        # What a small step along it would bring, for a whole step: nothing if that is rounding.
        gain, size = -xp.vecdot(way, gradient), xp.abs(best) + xp.vecdot(xp.abs(rhs), xp.abs(rows))
        waiting = xp.nonzero(gain > _NO_GAIN * size)[0]
        share = 1.0
        for _ in range(_HALVINGS):
            if waiting.shape[0] == 0:
                break
            tried = rows[waiting, ...] + share * way[waiting, ...]
            losses = row_losses(tried, system, rhs[waiting, ...], pull[waiting, ...])
            falls = losses < best[waiting]
            taken = waiting[falls]
            rows[taken, ...], best[taken] = tried[falls, ...], losses[falls]
            waiting = waiting[~falls]
            share *= 0.5
    return rows


def better_rows(first: Array, second: Array, system: RowSystem, rhs: Array, pull: Array) -> Array:
    """Return of two rows for each sample the one of the lower loss."""
    xp = namespace_of(first)
    losses = [row_losses(rows, system, rhs, pull) for rows in (first, second)]
    return xp.where((losses[0] <= losses[1])[:, None], first, second)


def grams_of(factors: Sequence[Array]) -> list[Array]:
    """Return the Gram matrix of each factor, in double precision."""
    return [double(factor).T @ double(factor) for factor in factors]


def moved_factors(
    views: Sequence[View],
    projections: Sequence[Projection],
    rows: Sequence[Array],
    factors: Sequence[Array],
    alpha: float,
    *,
    rate: float = 1.0,
) -> list[Array]:
    """Move each factor in turn to its minimiser, or a part of the way, the ``rate``.

    Those of the outer modes follow from the products that rows were made of, since the factors of
    the inner modes are still the same, so that samples are read once more and no more often.
    """
    place, cross = first_inner(factors), sum(own.T @ own for own in rows)
    outer, inner = factors[:place], factors[place:]
    if outer:
        normal = math.prod(grams_of(inner), start=cross)
        contracted = contract_parts(views, projections, rows)
        outer = best_factors(contracted, outer, normal, alpha, rate)
    normal = math.prod(grams_of(outer), start=cross)
    contracted = contract_samples(views, rows, outer)
    return [*outer, *best_factors(contracted, inner, normal, alpha, rate)]


def best_factors(
    contracted: Array, factors: Sequence[Array], cross: Array, alpha: float, rate: float = 1.0
) -> list[Array]:
    """Move the factors of some modes in turn, as all are moved.

    ``contracted`` (R, p) is the sum of the products of samples with rows and all other factors,
    ``cross`` (R, R) that of those with themselves. Each mode starts from what is left once the
    later ones are contracted.
    """
    xp = namespace_of(contracted)
    moved = list(factors)
    sizes = [int(factor.shape[0]) for factor in factors]
    # Of the modes up to k, the later ones contracted.
    left = {len(sizes) - 1: xp.reshape(contracted, (int(contracted.shape[0]), *sizes))}
    for k in range(len(sizes) - 1, 0, -1):
        left[k - 1] = contract_columns(left[k], moved[: k + 1], 0, k)
    grams = grams_of(moved)
    for k in range(len(sizes)):
        rhs = contract_columns(left[k], moved[: k + 1], k, k + 1)
        normal = cross
        for other, gram in enumerate(grams):
            normal = normal if other == k else normal * gram
        target = xp.astype(RowSystem(normal, alpha).solve(double(rhs).T), contracted.dtype)
        moved[k] = target if rate == 1.0 else (1.0 - rate) * moved[k] + rate * target
        grams[k] = grams_of([moved[k]])[0]
    return moved


def unit_columns(factors: Sequence[Array], before: Sequence[Array]) -> list[Array]:
    """Give columns length one; those of length zero stay as they were."""
    xp = namespace_of(factors[0])
    result = []
    for factor, own in zip(factors, before, strict=True):
        lengths = column_norms(factor)
        alive = lengths > 0
        safe = xp.where(alive, lengths, xp.ones_like(lengths))
        result.append(xp.where(alive[None, :], factor / safe[None, :], own))
    return result


def scale_of(factors: Sequence[Array]) -> Array:
    """Return the product of the lengths of the columns over modes, in double precision."""
    lengths = [double(column_norms(factor)) for factor in factors]
    return math.prod(lengths[1:], start=lengths[0])


def gram_of(factors: Sequence[Array]) -> Array:
    """Return the Gram matrix of the components of some factors, in double precision."""
    grams = grams_of(factors)
    return math.prod(grams[1:], start=grams[0])
