r"""Nonnegative CP whose components are smooth over the similarities of a mode.

Problem
    Minimise

    .. math:: \tfrac12 \|X - \sum_r T_r\|^2 + \text{penalties}
        + \sum_n \tfrac{w_n}{2} \sum_r \langle T_r,\, L_n \times_n T_r \rangle,
        \qquad T_r = a^{(0)}_r \circ a^{(1)}_r \circ \dots

    over nonnegative factors, where :math:`L_n` is the normalised Laplacian of mode :math:`n`
    (``laplacian.py``). The inner product is :math:`a^{(n)\top}_r L_n a^{(n)}_r \prod_{k \ne n}
    \|a^{(k)}_r\|^2`: the roughness of the column, times the squared size of the rest of the
    component.
Update
    Each mode in turn, mode 0 last, by coordinate descent on the rows (below).
Stopping
    The driver's. No update raises the objective.
Cost per iteration
    That of nonnegative CP, plus ``O(R)`` per stored similarity and expansion.

Why not :math:`\tfrac{w}{2} \operatorname{tr}(B^\top L B)` alone: scale moves freely between the
modes of a component, and would leave :math:`B` until the term is zero. The term above is that
trace where the other columns have length one. It does not change when scale moves, has the unit of
the squared data, and is quadratic in each factor: a ridge per component for the others.

How an update is made: the roughness of a column is :math:`\tfrac{c}{2} b^\top L b`. Since no
eigenvalue of :math:`L` exceeds two, it lies below its expansion at the present column with the
curvature :math:`2c`. That quadratic does not couple rows: it is folded into the normal equations,
coordinate descent lowers it, and the same is repeated from the new factor. No step raises the
objective, and none but the first needs a pass over the data. In the other modes the roughness of a
component is a ridge of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.cp.nonnegative.solver import Descent, NonnegativeSolver
from polyad.cp.rules import double, like
from polyad.cp.similarity.laplacian import LARGEST_EIGENVALUE, Laplacian
from polyad.cp.solver import ALSState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.cp.problem import Problem
    from polyad.tensor.sparse import SparseTensor

# Expansions per update, while they move the factor by more than this part of its size.
_EXPANSIONS = 10
_REDUCTION = 1e-3


class Smoothness:
    """The roughness of components over the similarities of the modes that have them."""

    def __init__(self, laplacians: Mapping[int, Laplacian], weights: Sequence[float]) -> None:
        self.known = {k: laplacians[k] for k in sorted(laplacians)}
        #: Those that have a say.
        self.laplacians = {
            k: known for k, known in self.known.items() if weights[k] > 0 and known.is_linked
        }
        self.weights = weights

    def value(self, factors: Sequence[NDArray[np.float64]]) -> float:
        """Return the term of the objective."""
        total = 0.0
        for mode, laplacian in self.laplacians.items():
            rough = laplacian.roughness(factors[mode]) * squared_size(factors, mode)
            total += 0.5 * self.weights[mode] * float(np.sum(rough))
        return total

    def ridge(self, factors: Sequence[NDArray[np.float64]], mode: int) -> NDArray[np.float64]:
        """Return the ridge of each component that the other modes' roughness is in a mode."""
        total = np.zeros(factors[0].shape[1])
        for other, laplacian in self.laplacians.items():
            if other != mode:
                rough = laplacian.roughness(factors[other])
                total += self.weights[other] * rough * squared_size(factors, mode, other)
        return total

    def relative(self, factors: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``bᵀ L b / bᵀ b`` by mode and component; zero where there is no similarity."""
        result = np.zeros((len(factors), factors[0].shape[1]))
        for mode, laplacian in self.known.items():
            squares = np.sum(factors[mode] ** 2, axis=0)
            safe = np.where(squares > 0, squares, 1.0)
            result[mode] = laplacian.roughness(factors[mode]) / safe
        return result


def squared_size(factors: Sequence[NDArray[np.float64]], *left_out: int) -> NDArray[np.float64]:
    """Return the squared lengths of the columns, multiplied over all modes but some."""
    sizes = np.ones(factors[0].shape[1])
    for k, factor in enumerate(factors):
        if k not in left_out:
            sizes = sizes * np.sum(factor * factor, axis=0)
    return sizes


class SmoothDescent(Descent):
    """Nonnegative updates with similarities.

    ``factors`` are those of the sweep that uses the rule, as they change. Rows that are not
    ``seen`` stay zero; the others go all the way to their minimum if ``exact``.
    """

    def __init__(
        self,
        sparsity: Sequence[float],
        ridge: Sequence[float],
        smoothness: Smoothness,
        factors: list[Array],
        seen: Sequence[np.ndarray | None],
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(sparsity, ridge, exact=exact)
        self.smoothness = smoothness
        self.factors = factors
        self.seen = seen

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Descend on all rows with one normal matrix."""
        return self.solve_rows(normal[None, :, :], rhs, current, mode)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Descend on all rows, expand the roughness again, and go on from there."""
        matrices, right, own = self._bent(normal, rhs, mode)
        if own is None:
            return self._descend(matrices, right, current)
        seen = self.seen[mode]
        kept = None if seen is None else like(seen.astype(np.float64)[:, None], right)
        rows = current
        for _ in range(_EXPANSIONS):
            before = to_numpy(double(rows))
            pull = like(self._pull(before, own, mode), right)
            rows = self._descend(matrices, right + pull, rows)
            if kept is not None:
                rows = rows * namespace_of(rows).astype(kept, rows.dtype)
            after = to_numpy(double(rows))
            if np.max(np.abs(after - before)) <= _REDUCTION * np.max(after, initial=0.0):
                break
        return rows

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Descend on the rows that have entries, a bounded number of them at a time.

        The normal matrices are not kept, so that the roughness is expanded once.
        """
        result = np.zeros_like(factors[mode])
        eye = np.eye(result.shape[1])
        pull: Any = None
        for rows, normal, rhs in tensor.observed_normal_equations(factors, mode):
            matrices, right, own = self._bent(normal + shift * eye, rhs, mode)
            if own is not None:
                if pull is None:
                    pull = self._pull(factors[mode].astype(np.float64), own, mode)
                right = right + pull[rows]
            result[rows] = self._descend(matrices, right, factors[mode][rows])
        return result

    def _bent(
        self, normal: Array, rhs: Array, mode: int
    ) -> tuple[Array, Array, NDArray[np.float64] | None]:
        """Fold the penalties and the curvature of the roughness into the normal equations.

        Also returns the weight of each column's own roughness, if the mode has similarities.
        """
        matrices, right = self._penalized(normal, rhs, mode)
        plain = [to_numpy(double(factor)) for factor in self.factors]
        curvature = self.smoothness.ridge(plain, mode)
        own = None
        if mode in self.smoothness.laplacians:
            own = self.smoothness.weights[mode] * squared_size(plain, mode)
            curvature = curvature + LARGEST_EIGENVALUE * own
        return matrices + like(np.diag(curvature), right), right, own

    def _pull(
        self, factor: NDArray[np.float64], own: NDArray[np.float64], mode: int
    ) -> NDArray[np.float64]:
        """Return what the expansion at a factor adds to the right-hand side."""
        applied = self.smoothness.laplacians[mode].apply(factor)
        return own * (LARGEST_EIGENVALUE * factor - applied)


class SimilaritySolver(NonnegativeSolver):
    """Nonnegative CP with similarities."""

    name = "SimilarityCP"

    def __init__(self, problem: Problem, smoothness: Smoothness, **options: Any) -> None:
        super().__init__(problem, **options)
        self.smoothness = smoothness
        self.seen = [problem.seen(k) for k in range(len(problem.shape))]

    def init(self, factors: Sequence[Array]) -> ALSState:
        """Return the state of given factors; rows without observations are zero from the start."""
        kept = list(factors)
        for k in self.free_modes:
            seen = self.seen[k]
            if seen is not None:
                kept[k] = kept[k] * self.problem.asarray(seen.astype(np.float64))[:, None]
        return super().init(kept)

    def step(self, state: ALSState) -> ALSState:
        """Return the state after one update of each free mode."""
        factors = list(state.factors)
        rule = SmoothDescent(self.sparsity, self.ridge, self.smoothness, factors, self.seen)
        residual = self.problem.sweep(factors, rule, self.fixed_modes)
        return ALSState(self._share_out(factors), residual)

    def objective(self, state: ALSState) -> float:
        """Return half the squared residual, the penalties and the roughness."""
        plain = [to_numpy(double(factor)) for factor in state.factors]
        return super().objective(state) + self.unit * self.smoothness.value(plain)

    def diagnostics(self, state: ALSState) -> Mapping[str, float]:
        """Return the two parts that the objective weighs against each other."""
        plain = [to_numpy(double(factor)) for factor in state.factors]
        total = self.problem.norm_squared
        return {
            "relative_error": (state.residual / total) ** 0.5 if total > 0 else 0.0,
            "roughness": self.unit * self.smoothness.value(plain),
        }

    def finish(self, state: ALSState) -> ALSState:
        """Return the state with the samples at their exact minimum for the others."""
        factors = list(state.factors)
        rule = SmoothDescent(
            self.sparsity, self.ridge, self.smoothness, factors, self.seen, exact=True
        )
        return self._with_samples(state, rule)
