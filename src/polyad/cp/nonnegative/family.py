"""What the estimators with nonnegative factors and a squared loss share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from polyad.cp.family import CPFamily
from polyad.cp.nonnegative.rules import Descent
from polyad.estimators import saving
from polyad.exceptions import InvalidInputError
from polyad.tensor.dense import DenseTensor

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.cp.problem import Problem


class NonnegativeFamily(CPFamily):
    """Base of the CP decompositions with nonnegative factors."""

    _accepts_nan: ClassVar[bool] = True
    _learned: ClassVar[dict[str, saving.Rule]] = saving.NONNEGATIVE

    def _start(self, problem: Problem, init: Any, number: int, seed: int) -> list[Array]:
        factors = super()._start(problem, init, number, seed)
        xp = array_namespace(factors[0])
        if isinstance(init, str):
            # An entry of zero stays zero under multiplication, and is slow to leave otherwise.
            sizes = [xp.abs(factor) for factor in factors]
            return [size + 0.01 * float(xp.mean(size)) for size in sizes]
        if any(bool(xp.any(factor < 0)) for factor in factors):
            message = f"init has negative entries; {type(self).__name__} needs nonnegative factors."
            raise InvalidInputError(message)
        return factors

    def _advice_on_nothing(self, solver: Any) -> str:
        tensor = solver.problem.tensor
        stored = tensor.array if isinstance(tensor, DenseTensor) else tensor.values
        xp = array_namespace(stored)
        n_negative, n_nonzero = (
            int(xp.sum(xp.astype(chosen, xp.int64))) for chosen in (stored < 0, stored != 0)
        )
        if not n_negative:
            return super()._advice_on_nothing(solver)
        return (
            f"{n_negative} of its {n_nonzero} nonzero entries are negative, which components that "
            "only add up cannot come near. Use CP, which takes data of any sign; if these are "
            "losses or differences, turn their sign, or subtract another zero level first."
        )

    def _nonnegative_rows(self, problem: Problem, sparsity: float, ridge: float | Array) -> Array:
        """Return the exact nonnegative coefficients of samples.

        ``ridge`` is one number, or an array of the data's namespace with one for each component.
        """
        others, scale = self._others()
        start = problem.asarray(np.zeros((problem.shape[0], self._n_features_out)))
        others = [problem.asarray(factor) for factor in others]
        # The penalties of a sample are those of the unscaled data.
        weight = sparsity * 2.0**-problem.exponent
        exact = Descent([weight], [ridge], exact=True)
        rows = problem.minimizer([start, *others], 0, exact)
        return rows * problem.asarray(scale)[None, :]
