"""What the estimators with nonnegative factors and a squared loss share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from polyad.cp.family import CPFamily, NonnegativeLearned
from polyad.cp.nonnegative.rules import Descent
from polyad.exceptions import InvalidInputError
from polyad.tensor.dense import DenseTensor

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.cp.family import CPLearned
    from polyad.cp.problem import Problem
    from polyad.cp.solver import FactorSolver


class NonnegativeFamily(CPFamily):
    """Base of the CP decompositions with nonnegative factors."""

    _accepts_nan: ClassVar[bool] = True
    _learns = NonnegativeLearned

    def _start(self, problem: Problem, number: int, seed: int) -> list[Array]:
        factors = super()._start(problem, number, seed)
        xp = array_namespace(factors[0])
        if isinstance(problem.start, str):
            # An entry of zero stays zero under multiplication, and is slow to leave otherwise.
            sizes = [xp.abs(factor) for factor in factors]
            return [size + 0.01 * float(xp.mean(size)) for size in sizes]
        if any(bool(xp.any(factor < 0)) for factor in factors):
            message = f"init has negative entries; {type(self).__name__} needs nonnegative factors."
            raise InvalidInputError(message)
        return factors

    def _advice_on_nothing(self, problem: Any) -> str:
        tensor = problem.tensor
        stored = tensor.array if isinstance(tensor, DenseTensor) else tensor.values
        xp = array_namespace(stored)
        n_negative, n_nonzero = (
            int(xp.sum(xp.astype(chosen, xp.int64))) for chosen in (stored < 0, stored != 0)
        )
        if not n_negative:
            return super()._advice_on_nothing(problem)
        return (
            f"{n_negative} of its {n_nonzero} nonzero entries are negative, which components that "
            "only add up cannot come near. Use CP, which takes data of any sign; if these are "
            "losses or differences, turn their sign, or subtract another zero level first."
        )

    def _nonnegative_rows(
        self, problem: Problem, learned: CPLearned, sparsity: float, ridge: float | Array
    ) -> Array:
        """Return the exact nonnegative coefficients of samples.

        ``ridge`` is one number, or an array of the data's namespace with one for each component.
        """
        scale = learned.scale
        start = problem.asarray(np.zeros((problem.shape[0], scale.shape[0])))
        others = [problem.asarray(factor) for factor in learned.others]
        # The penalties of a sample are those of the unscaled data.
        weight = sparsity * 2.0**-problem.exponent
        exact = Descent([weight], [ridge], exact=True)
        rows = problem.minimizer([start, *others], 0, exact)
        return rows * problem.asarray(scale)[None, :]

    def _learned(self, solver: FactorSolver[Any], state: Any) -> NonnegativeLearned:
        return NonnegativeLearned(**vars(super()._learned(solver, state)))
