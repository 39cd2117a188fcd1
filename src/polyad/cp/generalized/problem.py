"""The data of a generalized fit: what is accepted, in which unit, and the sums of a loss over it.

Four kinds share the interface of :class:`GeneralizedProblem`: dense NumPy data, with or without a
mask, in tiles; dense data of other namespaces; sparse data of which only the stored entries were
observed; and sparse data whose other entries are zeros.

Data of a loss that has a unit is divided by a power of two close to its mean size if that is far
from one, which is exact; the loss follows (``Loss.divided``). ``exponent`` remembers it, and
``unit`` is what a sum of the loss has to be multiplied by.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import coo_array

from polyad.core.arrays import Array, to_numpy
from polyad.cp.problem import FitData
from polyad.fitting.quasi_newton import QuasiNewton
from polyad.tensor.dense import DenseTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.losses import Loss
    from polyad.tensor.sparse import SparseTensor

    Matrix = NDArray[np.float64]

# Mean sizes of the data, as powers of two, for which EPSILON is small enough as it is.
_COMFORTABLE = 10
_CONSTANT_STEPS = 100
# The part of a sum that is rounding, and the loss of an entry that is as good as none.
_ROUNDING = 1e-12
_ALIKE = 1e-9


class GeneralizedProblem(FitData, ABC):
    """Data, as a loss sees it, which is for data divided by two to the ``exponent``.

    Dense data is kept in its unit, sparse data as the loss sees it.
    """

    #: The number of observed entries, and their mean.
    n_observed: int
    mean: float
    #: The sum of what ``loss.evaluate`` leaves out.
    offset: float
    #: Whether ``evaluate`` can be afforded.
    is_exact: bool = True

    def __init__(self, tensor: DenseTensor | SparseTensor, loss: Loss, exponent: int) -> None:
        super().__init__(tensor)
        self.loss = loss
        self.exponent = exponent
        self.unit = float(2.0 ** (exponent * (loss.degree or 0.0)))

    @abstractmethod
    def evaluate(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss over the observed entries, and its gradient in each factor."""

    @abstractmethod
    def evaluate_constant(self, m: float) -> tuple[float, float]:
        """Return the sum of the loss, and its derivative, if every model value is the same."""

    @abstractmethod
    def observed_slices(self, mode: int) -> NDArray[np.bool_] | None:
        """Say of each slice of a mode whether it has observations; None if all have."""

    @property
    def is_zero(self) -> bool:
        """Whether every entry is zero and a model of zeros says so."""
        return super().is_zero and float(self.loss.mean(np.zeros(1))[0]) == 0.0

    @property
    def is_unobserved(self) -> bool:
        """Whether no entry was observed."""
        return self.n_observed == 0

    def asarray(self, array: Array) -> Array:
        """Bring an array to NumPy memory and double precision, in which the fit runs."""
        return np.require(to_numpy(array), np.float64, ("C", "A", "W"))

    def result(self, array: Matrix) -> Array:
        """Bring an array to the namespace, device and number type of the data."""
        return super().asarray(array)

    def constant(self) -> tuple[float, float]:
        """Return the best model value for all entries together, and the sum of the loss there."""
        loss = self.loss
        best = loss.constant(self.mean)
        if best is None:
            method = QuasiNewton(self._at_constant, loss.lower)
            state = method.begin(np.array([max(self.mean, loss.lower)]))
            for _ in range(_CONSTANT_STEPS):
                state = method.step(state)
            best = float(state.point[0])
        if not math.isfinite(best):
            # All entries are at one end of what the loss can say: there it is right.
            return best, 0.0
        return best, self.evaluate_constant(best)[0]

    def rounding(self) -> float:
        """Return a sum of the loss that is no different from zero.

        It is a tiny part of the sum at a constant that is clearly wrong, half of the best one, in
        the unit that the loss itself has.
        """
        best, sum_there = self.constant()
        if self.is_zero:
            return abs(sum_there) + _ALIKE * self.n_observed
        if not math.isfinite(best):
            # Certain data, such as all ones: what is left of the loss falls forever.
            return _ALIKE * self.n_observed
        return _ROUNDING * (abs(self.offset) + abs(self.evaluate_constant(0.5 * best)[0]))

    def _at_constant(self, point: Matrix) -> tuple[float, Matrix]:
        value, slope = self.evaluate_constant(float(point[0]))
        return value, np.array([slope])

    def unobserved_slices(self) -> list[tuple[int, int]]:
        """Return the modes of dense data that have slices without observations, and the first."""
        if not isinstance(self.tensor, DenseTensor):
            return []
        seen = [self.observed_slices(mode) for mode in range(len(self.shape))]
        return [
            (mode, int(np.argmin(own)))
            for mode, own in enumerate(seen)
            if own is not None and not own.all()
        ]


def find_exponent(data: Any, loss: Loss, *, zeros: bool) -> int:
    """Return the power of two to divide data by, or zero if it has no unit or a good one."""
    if loss.degree is None:
        return 0
    stored = data.data if isinstance(data, coo_array) else data
    xp = array_namespace(stored)
    known = ~xp.isnan(stored)
    n_known = int(xp.sum(xp.astype(known, xp.int64)))
    total = float(xp.sum(xp.where(known, xp.abs(stored), xp.zeros_like(stored)), dtype=xp.float64))
    cells = math.prod(data.shape) if zeros and isinstance(data, coo_array) else n_known
    exponent = math.frexp(total / cells)[1] if total > 0 else 0
    return exponent if abs(exponent) > _COMFORTABLE else 0
