r"""Which component of one fit is which of another, by the variables that both have.

Each way compares the unit columns of two anchor matrices by their cosines :math:`G`.

``assignment``
    The permutation with the largest sum of cosines. It is one, always.
``angle``
    The nearest column for each (SAM, eq. 7): a permutation if the fits are close (Theorem 4).
``procrustes``
    The nearest column after :math:`G` is replaced by its orthogonal polar factor (OPM, eq. 10): a
    permutation if the fits are close as measured by the smallest singular value (Theorem 5). A
    permutation found so need not be the best one, against Theorem 1: see the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from scipy.optimize import linear_sum_assignment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

Matching = Literal["assignment", "procrustes", "angle"]
MATCHINGS: tuple[Matching, ...] = get_args(Matching)
# Of Theorem 5.
_POLAR_LIMIT = (2.0 - math.sqrt(2.0)) / 4.0


@dataclass(frozen=True)
class Match:
    """How the components of a fit follow those of another.

    Where the wanted way gave no permutation, ``is_valid`` is False and ``order`` that of the
    assignment.
    """

    order: NDArray[np.int64]
    is_valid: bool
    #: Whether the sufficient conditions of Theorems 4 and 5 hold, the reference taken as the truth.
    meets_theorem4: bool
    meets_theorem5: bool


def match_components(reference: Matrix, other: Matrix, method: Matching) -> Match:
    """Return the order in which the columns of ``other`` are those of the reference."""
    mine, theirs = unit_columns(reference), unit_columns(other)
    cosines = theirs.T @ mine
    best = linear_sum_assignment(-cosines.T)[1]
    order = best
    if method == "angle":
        order = np.argmax(cosines, axis=0)
    elif method == "procrustes":
        left, _, right = np.linalg.svd(cosines)
        order = np.argmax(left @ right, axis=0)
    is_valid = len(np.unique(order)) == len(order)
    order = order if is_valid else best
    return Match(
        order, is_valid, _is_near(mine, theirs[:, order]), _is_determined(mine, theirs[:, order])
    )


def unit_columns(matrix: Matrix) -> Matrix:
    """Return the columns at length one; those of zeros stay."""
    lengths = np.linalg.norm(matrix, axis=0)
    return matrix / np.where(lengths > 0, lengths, 1.0)


def smallest_angle(matrix: Matrix) -> float:
    """Return the smallest angle between two columns, in degrees; 90 if there is one only."""
    unit = unit_columns(matrix)
    cosines = unit.T @ unit - 2.0 * np.eye(unit.shape[1])
    largest = min(1.0, max(float(cosines.max()), 0.0))
    return math.degrees(math.acos(largest))


def _is_near(reference: Matrix, other: Matrix) -> bool:
    """Say whether each column is within 1 - cos(angle / 4) of its own: Theorem 4."""
    angle = math.radians(smallest_angle(reference))
    distance = np.linalg.norm(reference - other, axis=0).max()
    return bool(distance < 1.0 - math.cos(angle / 4.0))


def _is_determined(reference: Matrix, other: Matrix) -> bool:
    """Say whether the error is small beside the smallest singular values: Theorem 5."""
    error = np.linalg.svd(reference.T @ (other - reference), compute_uv=False)
    gram = np.linalg.svd(reference.T @ reference, compute_uv=False)
    largest, spread, room = error[0], error[:2].sum(), gram[-2:].sum()
    if largest >= gram[-1] or spread >= room:
        return False
    # The limit of -log(1 - x) / x is one.
    growth = -math.log1p(-spread / room) / spread if spread > 0 else 1.0 / room
    return bool(largest * growth < _POLAR_LIMIT)
