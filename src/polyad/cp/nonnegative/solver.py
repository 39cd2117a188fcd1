r"""Nonnegative CP with a squared loss.

Problem
    Minimise :math:`\tfrac12 \|X - \sum_r a_r \circ b_r \circ \dots\|^2 + \sum_k \big(\lambda_k
    \sum A^{(k)} + \tfrac{\mu_k}{2} \|A^{(k)}\|^2\big)` over nonnegative factors.
Update
    Each mode in turn, mode 0 last. HALS: coordinate descent on the rows, sweep after sweep while it
    pays, since all sweeps share one pass over the data. MU: one multiplicative step. Then the
    scale of a component is shared out over the modes such that the penalties are smallest.
Stopping
    The driver's. Both updates never raise the objective.
Cost per iteration
    That of alternating least squares, plus ``O(R²)`` per row and inner sweep.

How this differs from the textbook algorithms:

1. HALS works on rows instead of columns, with the same numbers, because rows are independent of
   each other for given normal equations: some that share a normal matrix are swept side by side
   in the cache, and each stops when it has settled.
2. The last update of the samples goes all the way to the minimum, so that ``transform`` agrees.
3. Scales are shared out exactly, so that penalties of different modes have a meaning.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks
from polyad.cp.nonnegative.kernels import descend_rows, descend_shared
from polyad.cp.rules import UpdateRule, determined, double
from polyad.cp.solver import ALSState, LeastSquaresSolver, balance
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.problem import Problem
    from polyad.tensor.sparse import SparseTensor

# Work of one call of the kernel, in multiplications: long against the cost of the call.
_BLOCK_WORK = 1 << 20
# Inner sweeps go on while they move a row by more than this part of what the first one did
# (Gillis and Glineur 2012). Where rows have normal matrices of their own, which take R sums
# for each one of the right-hand side, more of them are worth it.
_REDUCTION = 0.1
_INNER_SWEEPS = 10
_OWN_LIMITS = (0.01, 30)
_EXACT_SWEEPS = 5000
# Halvings of the search for the common slope: enough for double precision.
_HALVINGS = 60
# Penalties below this belong to components that have died out; their scale does not matter.
_DEAD = 1e-100


class PenalizedRule(UpdateRule):
    """A nonnegative update with penalties per mode: of sums, and of half the sums of squares.

    The ridge of a mode is a number, or one for each component.
    """

    def __init__(self, sparsity: Sequence[float], ridge: Sequence[float | Array]) -> None:
        self.sparsity = sparsity
        self.ridge = ridge

    def _penalized(self, normal: Array, rhs: Array, mode: int) -> tuple[Array, Array]:
        """Fold the penalties into the normal equations: both are linear in ``a >= 0``."""
        xp = namespace_of(rhs)
        eye = xp.eye(int(rhs.shape[1]), dtype=normal.dtype)
        right, weight = double(rhs), self.sparsity[mode]
        return normal + self.ridge[mode] * eye, right - weight if weight else right


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
        # A single row may be one of a block of those that have their own.
        is_shared = normal.shape[0] == 1 < rhs.shape[0] and not self.exact
        limits = self.limits if self.exact or is_shared else _OWN_LIMITS
        if not is_numpy_array(rhs):
            return _descend_columns(normal, rhs, current, limits)
        out = np.array(current, dtype=np.float64, order="C")
        n_rows, n = out.shape
        matrices = np.ascontiguousarray(normal, dtype=np.float64)
        right = np.ascontiguousarray(rhs)
        function = descend_shared if is_shared else descend_rows
        given = matrices[0] if is_shared else matrices
        # Several sweeps; side by side they take an eighth of the time.
        step = max(1, _BLOCK_WORK // (n * n * (1 if is_shared else 8)))
        run_blocks(function, ((given, right, block, limits, out) for block in cut(n_rows, step)))
        return out.astype(current.dtype, copy=False)


def _descend_columns(normal: Array, rhs: Array, current: Array, limits: tuple[float, int]) -> Array:
    """Do what the kernel does with the operations of any array namespace, column by column."""
    xp = namespace_of(rhs)
    n = int(rhs.shape[1])
    columns = [double(current)[:, r] for r in range(n)]
    active = first = None
    # A row that begins at its minimum never moves by much less than the rounding of its gradient.
    rounding = xp.finfo(columns[0].dtype).eps * xp.max(xp.abs(rhs), axis=1)
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
        active = (largest > max(limits[0], 1e-13) * first) & (largest > rounding)
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
        xp = namespace_of(rhs)
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
        xp = namespace_of(rhs)
        below = product + self.ridge[mode] * double(current) + self.sparsity[mode]
        # A denominator of zero belongs to an entry without effect, which may stay as it is.
        ratio = xp.where(below > 0, double(rhs) / xp.where(below > 0, below, 1.0), 1.0)
        return xp.astype(double(current) * ratio, current.dtype)


class NonnegativeSolver(LeastSquaresSolver):
    """CP with nonnegative factors; the penalties are one number per mode."""

    name = "NonnegativeCP"
    side_by_side = True

    def __init__(
        self,
        problem: Problem,
        *,
        method: str = "hals",
        sparsity: Sequence[float],
        ridge: Sequence[float],
        fixed_modes: Collection[int] = (),
    ) -> None:
        super().__init__(problem, fixed_modes)
        self.sparsity = [self.scaled(weight, 1) for weight in sparsity]
        self.ridge = [self.scaled(weight, 2) for weight in ridge]
        update = Descent if method == "hals" else Multiplication
        self.rule = update(self.sparsity, self.ridge)

    def init(self, factors: Sequence[Array]) -> ALSState:
        """Return the state of given factors."""
        shared = self._share_out(factors)
        return ALSState(shared, self.problem.residual(shared))

    def step(self, state: ALSState) -> ALSState:
        """Return the state after one update of each free mode."""
        factors = list(state.factors)
        residual = self.problem.sweep(factors, self.rule, self.fixed_modes)
        return ALSState(self._share_out(factors), residual)

    def objective(self, state: ALSState) -> float:
        """Return half the squared residual plus the penalties."""
        xp = namespace_of(state.factors[0])
        total = 0.5 * state.residual
        for k in self.free_modes:
            factor = xp.astype(state.factors[k], xp.float64)
            if self.sparsity[k]:
                total += self.sparsity[k] * float(xp.sum(factor))
            if self.ridge[k]:
                total += 0.5 * self.ridge[k] * float(xp.sum(factor * factor))
        return self.unit * total

    def finish(self, state: ALSState) -> ALSState:
        """Return the state with the samples at their exact minimum for the others."""
        return self._with_samples(state, Descent(self.sparsity, self.ridge, exact=True))

    def _share_out(self, factors: Sequence[Array]) -> list[Array]:
        """Scale the columns of each component over the modes; the model stays the same."""
        balanced = balance(factors, self.free_modes)
        if not any(self.sparsity[k] or self.ridge[k] for k in self.free_modes):
            return balanced
        return share_out(balanced, self.free_modes, self.sparsity, self.ridge)


def share_out(
    factors: Sequence[Array],
    free_modes: Sequence[int],
    sparsity: Sequence[float],
    ridge: Sequence[float],
) -> list[Array]:
    r"""Scale the columns of a component such that its penalties are smallest.

    With scales :math:`e^{t_k}`, :math:`\sum_k t_k = 0`, the penalty of a component is :math:`\sum_k
    \alpha_k e^{t_k} + \tfrac12 \beta_k e^{2 t_k}`, where :math:`\alpha_k` is :math:`\lambda_k`
    times the sum and :math:`\beta_k` is :math:`\mu_k` times the square sum of the column. It is
    convex in :math:`t`; at the minimum all slopes :math:`\alpha_k e^{t_k} + \beta_k e^{2 t_k}` are
    the same number, which is found by halving. Every free mode has a penalty.
    """
    xp = namespace_of(factors[0])
    wide = [xp.astype(factors[k], xp.float64) for k in free_modes]
    linear = [sparsity[k] * xp.sum(f, axis=0) for k, f in zip(free_modes, wide, strict=True)]
    square = [ridge[k] * xp.sum(f * f, axis=0) for k, f in zip(free_modes, wide, strict=True)]
    # Only how they compare counts: penalties of any size, as data of any size makes them.
    size = reduce(xp.maximum, [a + b for a, b in zip(linear, square, strict=True)])
    size = xp.where(size > 0, size, xp.ones_like(size))
    linear, square = [a / size for a in linear], [b / size for b in square]
    alive = xp.ones_like(size) > 0
    for a, b in zip(linear, square, strict=True):
        alive = alive & (a + b > _DEAD)

    def logarithms(slope: Array) -> list[Array]:
        """Solve ``a u + b u² = slope`` for ``log u``, in a form without cancellation."""
        roots = [
            2 * slope / xp.where(alive, a + xp.sqrt(a * a + 4 * b * slope), xp.ones_like(a))
            for a, b in zip(linear, square, strict=True)
        ]
        return [xp.log(xp.where(alive, root, xp.ones_like(root))) for root in roots]

    low = xp.ones_like(linear[0]) * math.log(_DEAD)
    high = -low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = sum(logarithms(xp.exp(middle))) > 0
        low, high = xp.where(above, low, middle), xp.where(above, middle, high)
    scales = logarithms(xp.exp((low + high) / 2))
    # What halving leaves of the sum is taken off evenly, so that the model stays the same.
    rest = sum(scales) / len(scales)
    result = list(factors)
    for k, scale in zip(free_modes, scales, strict=True):
        factor = xp.where(alive, xp.exp(scale - rest), xp.ones_like(scale))
        result[k] = factors[k] * xp.astype(factor, factors[k].dtype)[None, :]
    return result
