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
    Each mode in turn, mode 0 last, by coordinate descent on the rows (``rules.py``).
Stopping
    The driver's. No update raises the objective.
Cost per iteration
    That of nonnegative CP, plus ``O(R)`` per stored similarity and expansion.

Why not :math:`\tfrac{w}{2} \operatorname{tr}(B^\top L B)` alone: scale moves freely between the
modes of a component, and would leave :math:`B` until the term is zero. The term above is that
trace where the other columns have length one. It does not change when scale moves, has the unit of
the squared data, and is quadratic in each factor: a ridge per component for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import Array, to_numpy
from polyad.cp.nonnegative.solver import NonnegativeLeastSquares
from polyad.cp.rules import double
from polyad.cp.similarity.rules import SmoothDescent, Smoothness
from polyad.cp.solver import ALSState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from polyad.cp.problem import Problem


class SimilarityLeastSquares(NonnegativeLeastSquares):
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
