"""A finished fit as a user gets it: components of length one, with what goes along with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from polyad.augmented.metric import augmentation_metric
from polyad.augmented.rules import gram_of, unit_columns
from polyad.augmented.solver import Moments
from polyad.core.arrays import namespace_of
from polyad.cp.rules import double
from polyad.tensor.alignment import normalize_components, weight_order
from polyad.tensor.kruskal import KruskalTensor, column_norms

if TYPE_CHECKING:
    from polyad.augmented.problem import AugmentedData
    from polyad.augmented.solver import AugmentedState
    from polyad.core.arrays import Array


@dataclass(frozen=True)
class Components:
    """Coefficients of samples on components, which are products of columns of length one."""

    #: (n, R), in the unit of the data.
    rows: Array
    #: Of the modes from 1 on.
    factors: list[Array]
    #: The lengths that their columns had in the fit.
    lengths: list[Array]
    moments: Moments

    @classmethod
    def of(cls, problem: AugmentedData, state: AugmentedState) -> Self:
        """Return those of a finished state."""
        units = unit_columns(state.factors, state.factors)
        lengths = [column_norms(factor) for factor in state.factors]
        return cls(problem.asarray(state.rows), units, lengths, state.moments)

    def canonical(self) -> Components:
        """Return the same with signs and order as all decompositions have them."""
        xp = namespace_of(self.rows)
        ones = xp.ones_like(self.lengths[0])
        tensor = normalize_components(KruskalTensor(ones, [self.rows, *self.factors]))
        order = weight_order(tensor)
        tensor = tensor.take(order)
        index = xp.asarray(order, dtype=xp.int64)
        rows = tensor.factors[0] * tensor.weights[None, :]
        signs = double(xp.sign(xp.sum(rows * xp.take(self.rows, index, axis=1), axis=0)))
        signs = xp.where(signs == 0, xp.ones_like(signs), signs)

        def turned(moments: Array) -> Array:
            moved = xp.take(xp.take(moments, index, axis=0), index, axis=1)
            return moved * signs[:, None] * signs[None, :]

        return Components(
            rows,
            list(tensor.factors[1:]),
            [xp.take(length, index) for length in self.lengths],
            Moments(turned(self.moments.rows), turned(self.moments.changes)),
        )

    def after(self, earlier: Array) -> Components:
        """Return the same, with the rows of earlier samples before the own."""
        return replace(self, rows=namespace_of(earlier).concat([earlier, self.rows], axis=0))

    def weighted(self) -> tuple[Array, list[Array]]:
        """Return the weights, and the factors of all modes with columns of length one."""
        xp = namespace_of(self.rows)
        weights = column_norms(self.rows)
        safe = xp.where(weights > 0, weights, xp.ones_like(weights))
        return weights, [self.rows / safe[None, :], *self.factors]

    def metric(self, floor: float) -> Array:
        """Return the metric that discounts what augmentation changes, in the type of the data."""
        moments = self.moments
        metric = augmentation_metric(gram_of(self.factors), moments.rows, moments.changes, floor)
        return namespace_of(metric).astype(metric, self.rows.dtype)
