"""Updates that keep a factor nonnegative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from polyad.core.blocks import cut
from polyad.core.threads import run_blocks
from polyad.cp.nonnegative.kernels import descend_rows
from polyad.cp.rules import UpdateRule, determined, double
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.tensor.sparse import SparseTensor

# Work of one call of the kernel, in multiplications: long against the cost of the call.
_BLOCK_WORK = 1 << 20
# Inner sweeps go on while they move a row by more than this part of what the first one did
# (Gillis and Glineur 2012), which costs little beside the pass over the data that they share.
_REDUCTION = 0.01
_INNER_SWEEPS = 30
_EXACT_SWEEPS = 5000


class PenalizedRule(UpdateRule):
    """A nonnegative update with penalties per mode: of sums, and of half the sums of squares.

    The ridge of a mode is a number, or one for each component.
    """

    def __init__(self, sparsity: Sequence[float], ridge: Sequence[float | Array]) -> None:
        self.sparsity = sparsity
        self.ridge = ridge

    def _penalized(self, normal: Array, rhs: Array, mode: int) -> tuple[Array, Array]:
        """Fold the penalties into the normal equations: both are linear in ``a >= 0``."""
        xp = array_namespace(rhs)
        eye = xp.eye(int(rhs.shape[1]), dtype=normal.dtype)
        return normal + self.ridge[mode] * eye, double(rhs) - self.sparsity[mode]


class Descent(PenalizedRule):
    """Coordinate descent on rows (accelerated HALS), all the way to their minimum if ``exact``."""

    def __init__(
        self, sparsity: Sequence[float], ridge: Sequence[float | Array], *, exact: bool = False
    ) -> None:
        super().__init__(sparsity, ridge)
        self.exact = exact
        self.limits = (0.0, _EXACT_SWEEPS) if exact else (_REDUCTION, _INNER_SWEEPS)

    def _penalized(self, normal: Array, rhs: Array, mode: int) -> tuple[Array, Array]:
        """Fold the penalties in; the exact minimum is also made unique."""
        matrices, right = super()._penalized(normal, rhs, mode)
        return determined(matrices) if self.exact else matrices, right

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Descend on all rows with one normal matrix."""
        return self.solve_rows(normal[None, :, :], rhs, current, mode)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Descend on each row with its own normal matrix."""
        matrices, right = self._penalized(normal, rhs, mode)
        return self._descend(matrices, right, current)

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Descend on the rows that have entries, a bounded number of them at a time."""
        result = np.zeros_like(factors[mode])
        for rows, normal, rhs in tensor.observed_normal_equations(factors, mode):
            shifted = normal + shift * np.eye(rhs.shape[1])
            result[rows] = self.solve_rows(shifted, rhs, factors[mode][rows], mode)
        return result

    def _descend(self, normal: Array, rhs: Array, current: Array) -> Array:
        if not is_numpy_array(rhs):
            return _descend_columns(normal, rhs, current, self.limits)
        out = np.array(current, dtype=np.float64, order="C")
        n_rows, n = out.shape
        step = max(1, _BLOCK_WORK // (n * n * 8))
        matrices = np.ascontiguousarray(normal, dtype=np.float64)
        right = np.ascontiguousarray(rhs)
        run_blocks(
            descend_rows,
            ((matrices, right, block, self.limits, out) for block in cut(n_rows, step)),
        )
        return out.astype(current.dtype, copy=False)


def _descend_columns(normal: Array, rhs: Array, current: Array, limits: tuple[float, int]) -> Array:
    """Do what the kernel does with the operations of any array namespace, column by column."""
    xp = array_namespace(rhs)
    n = int(rhs.shape[1])
    columns = [double(current)[:, r] for r in range(n)]
    active = first = None
    for _ in range(limits[1]):
        largest = xp.zeros_like(columns[0])
        for r in range(n):
            diagonal = normal[:, r, r]
            safe = xp.where(diagonal > 0, diagonal, xp.ones_like(diagonal))
            gradient = -rhs[:, r]
            for s in range(n):
                gradient = gradient + normal[:, r, s] * columns[s]
            new = columns[r] - gradient / safe
            new = xp.where((new > 0) & (diagonal > 0), new, xp.zeros_like(new))
            new = new if active is None else xp.where(active, new, columns[r])
            largest = xp.maximum(largest, xp.abs(new - columns[r]) * safe)
            columns[r] = new
        first = largest if first is None else first
        # Each row ends for itself, so that it does not depend on those beside it.
        active = largest > max(limits[0], 1e-13) * first
        if not bool(xp.any(active)):
            break
    return xp.astype(xp.stack(columns, axis=1), current.dtype)


class Multiplication(PenalizedRule):
    """Multiplicative updates (Lee and Seung; CP-NMU): entries shrink or grow, never change sign."""

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Multiply by the ratio of the two parts of the gradient."""
        return self._multiply(rhs, current, mode, double(current) @ normal)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Multiply, with a normal matrix per row."""
        xp = array_namespace(rhs)
        product = xp.matmul(double(current)[:, None, :], normal)[:, 0, :]
        return self._multiply(rhs, current, mode, product)

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Multiply, by the model at the stored entries instead of normal matrices."""
        message = (
            "solver='mu' does not take sparse data with missing='unobserved'. Use solver='hals'."
        )
        raise InvalidInputError(message)

    def _multiply(self, rhs: Array, current: Array, mode: int, product: Array) -> Array:
        xp = array_namespace(rhs)
        below = product + self.ridge[mode] * double(current) + self.sparsity[mode]
        # A denominator of zero belongs to an entry without effect, which may stay as it is.
        ratio = xp.where(below > 0, double(rhs) / xp.where(below > 0, below, 1.0), 1.0)
        return xp.astype(double(current) * ratio, current.dtype)
