"""How the factor of a mode follows from its normal equations.

A problem makes the normal equations of a mode: one matrix for all rows if every entry is known,
one matrix per row otherwise. A rule solves them, with or without constraints and penalties.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import device, is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks
from polyad.tensor.kernels import SINGULAR, shift_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.tensor.sparse import SparseTensor


# Work of one call of the kernel, in multiplications: long against the cost of the call.
_SHIFT_WORK = 1 << 20


class UpdateRule(ABC):
    """Minimise ``½ tr(A N Aᵀ) - tr(A Bᵀ)`` plus penalties over the rows of a factor ``A``."""

    #: Whether ``solve`` is the better one for those rows of ``solve_rows`` that have all entries.
    prefers_shared: ClassVar[bool] = False

    @abstractmethod
    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Return the new factor, by the normal matrix (R, R) of all rows and the right sides."""

    @abstractmethod
    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Return the new factor; as ``solve``, with ``normal`` of shape (n, R, R)."""

    @abstractmethod
    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Return the new factor for the stored entries of a sparse tensor.

        ``shift`` is added to the diagonals: at the level of rounding, for rows whose entries are
        where the model is nothing.
        """


class LeastSquares(UpdateRule):
    """No constraint; ``ridge`` weighs half the squared factor."""

    prefers_shared = True

    def __init__(self, ridge: float = 0.0) -> None:
        self.ridge = ridge

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Return the solution of least norm."""
        return solve_normal(normal, rhs, self.ridge)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Solve one small system per row."""
        xp = namespace_of(rhs)
        ridged = normal + self.ridge * xp.eye(int(rhs.shape[1]), dtype=normal.dtype)
        solved = xp.linalg.solve(determined(ridged), double(rhs)[:, :, None])[:, :, 0]
        return xp.astype(solved, rhs.dtype)

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Solve one small system per row that has entries."""
        nothing = np.zeros_like(factors[mode])
        return tensor.observed_least_squares(factors, mode, self.ridge + shift, nothing)


def solve_normal(normal: Array, rhs: Array, ridge: float) -> Array:
    """Return the ``A`` of least norm that minimises ``tr(A N Aᵀ) - 2 tr(A Bᵀ) + ridge |A|²``.

    ``N`` is symmetric and may be singular, as it is for redundant components. Directions whose
    eigenvalue is lost in rounding get no part of the solution.
    """
    xp = namespace_of(rhs)
    if not bool(xp.all(xp.isfinite(normal))):
        # Eigenvectors of this cannot be had; the driver tells of an objective that is not finite.
        return xp.full_like(rhs, math.nan)
    eigenvalues, vectors = xp.linalg.eigh(double(normal))
    eigenvalues = eigenvalues + ridge
    rank = int(normal.shape[0])
    # The right-hand side has the precision of the data: what it says of directions below that is
    # noise, which a division by their eigenvalue would blow up.
    cutoff = float(xp.max(xp.abs(eigenvalues))) * rank * epsilon_of(rhs.dtype)
    kept = eigenvalues > cutoff
    inverse = xp.where(kept, 1.0 / xp.where(kept, eigenvalues, 1.0), 0.0)
    solution = ((double(rhs) @ vectors) * inverse[None, :]) @ vectors.T
    return xp.astype(solution, rhs.dtype)


def determined(normal: Array) -> Array:
    """Return normal matrices (n, R, R), with a shift for those that do not determine their row.

    The solution is then nearly the shortest. The shift of a row follows from its own matrix, by the
    rule that sparse data has, so that the row does not depend on those beside it.
    """
    if is_numpy_array(normal):
        shifted = np.array(normal, dtype=np.float64, order="C")
        step = max(1, _SHIFT_WORK // shifted.shape[1] ** 3)
        run_blocks(shift_rows, ((shifted, block) for block in cut(len(shifted), step)))
        return shifted
    xp = namespace_of(normal)
    diagonal = xp.linalg.diagonal(normal)
    is_zero = diagonal == 0
    finite = xp.where(xp.isfinite(normal), normal, xp.zeros_like(normal))
    least = xp.linalg.eigvalsh(finite + _diagonals(xp.astype(is_zero, normal.dtype)))[:, 0]
    mean = xp.mean(diagonal, axis=1)
    shift = xp.where(least > SINGULAR * xp.max(diagonal, axis=1), 0.0 * mean, SINGULAR * mean)
    return normal + _diagonals(xp.where(is_zero, xp.ones_like(diagonal), shift[:, None]))


def _diagonals(values: Array) -> Array:
    """Return a diagonal matrix for each row."""
    xp = namespace_of(values)
    return values[:, :, None] * xp.eye(int(values.shape[1]), dtype=values.dtype)


def double(array: Array) -> Array:
    """Return the array in float64, in which small systems are solved and sums are made."""
    if isinstance(array, np.ndarray):  # a quick way, for fits of small data
        return array.astype(np.float64, copy=False)
    xp = namespace_of(array)
    return xp.astype(array, xp.float64, copy=False)


def like(array: np.ndarray, reference: Array) -> Array:
    """Bring a NumPy array to the namespace and device of another, in its own number type."""
    return namespace_of(reference).asarray(array, device=device(reference))


def epsilon_of(dtype: Any) -> float:
    """Return the rounding unit of a number type of any namespace."""
    return 2.0**-23 if "float32" in str(dtype) else 2.0**-52
