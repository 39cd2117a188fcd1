r"""The objective of QMFQ, with its gradient through two transforms and a projector.

.. math:: \frac1N \sum_{ij} \Delta(x_{ij}, y_{ij}), \qquad
    y = T_{\epsilon, B, Q}\big(\Pi_k(T_{\epsilon, B', Q'}(x))\big)

A feature is first normalised to the quantiles ``Q' = cumsum(exp(R'))`` with weights
``B' = softmax(F')``, which are learned such that the projector :math:`\Pi_k` onto matrices of rank
``k`` loses little; then the transform of QMF brings it back to the unit of the data. There are no
free factors: the projector makes them, always from the same start, because otherwise the objective
would be another one in each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from polyad.core.threads import run_blocks
from polyad.quantile.parameters import pull_softmax, softmax
from polyad.quantile.problem import TRANSPORT_TOL, Evaluation, Objective, inflate, row_blocks
from polyad.soft.plans import squash
from polyad.transport.rows import RowTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.quantile.features import FeatureTable
    from polyad.quantile.projected.projectors import Projection, Projector

    Table = NDArray[np.float64]
    Index = NDArray[np.int64]

# Logarithms of gaps stay where the quantiles do.
_LARGEST_EXPONENT = 100.0


class Transforms(NamedTuple):
    """The unconstrained parameters of both transforms."""

    #: (d, m): ``R'`` and ``F'``, of the transform before the projector.
    deflating_gaps: Table
    deflating_logits: Table
    #: (d, m - 1) and (d, m): ``R`` and ``F``, of the transform after it.
    gaps: Table
    logits: Table


def first_transforms(shape: tuple[int, int], n_quantiles: int) -> Transforms:
    """Return equally spaced quantiles of equal weights for ``shape`` features and samples."""
    d, n = shape
    equal = np.zeros((d, n_quantiles))
    return Transforms(
        np.full((d, n_quantiles), -np.log(n)), equal, np.zeros((d, n_quantiles - 1)), equal
    )


def deflating_quantiles(gaps: Table) -> Table:
    """Return increasing positive quantiles."""
    steps = np.exp(np.clip(gaps, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    result: Table = np.cumsum(steps, axis=1)
    return result


class ProjectedObjective(Objective):
    """The objective of QMFQ; only :meth:`deflate` may have missing entries.

    Its parameters are those of :class:`Transforms`, followed by the start of the projector, which
    has a gradient of zero.
    """

    has_features: ClassVar[tuple[bool, ...]] = (True, True, True, True)

    def __init__(self, table: FeatureTable, projector: Projector, epsilon: float) -> None:
        super().__init__(table)
        self.projector = projector
        self.epsilon = epsilon
        self.inputs = squash(table.shifted, table.shares).values

    def evaluate(
        self,
        parameters: Sequence[Table],
        potentials: Sequence[Table],
        *,
        rows: Index | None = None,
        with_gradient: bool = True,
    ) -> Evaluation:
        """Return both for all features: the projector needs them, and there are no batches."""
        given, start = Transforms(*parameters[:4]), parameters[4:]
        found = [np.empty_like(given.deflating_logits), np.empty_like(given.logits)]
        deflated = self.deflate(given, potentials[0] if len(potentials) else None, found[0])
        projection = self.projector.project(deflated, start, with_pull=with_gradient)
        totals = np.zeros(self.n_features)
        parts = [np.empty_like(self.inputs), np.empty_like(given.gaps), np.empty_like(given.logits)]

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            block = inflate(
                *(self.table, own, self.epsilon),
                product=projection.loadings[own] @ projection.scores,
                numbers=(given.gaps[own], given.logits[own]),
                start=potentials[1][own] if len(potentials) else None,
                with_gradient=with_gradient,
            )
            totals[first], found[1][own] = block.total, block.potentials
            for part, gradient in zip(parts, block.gradient, strict=False):
                part[own] = gradient

        run_blocks(work, self._blocks(given))
        n_observed = self.table.n_observed
        mean = float(totals.sum()) / n_observed
        gradient: list[Table] = []
        if with_gradient:
            by_deflated = projection.pull(parts[0] / n_observed)
            outer = [part / n_observed for part in parts[1:]]
            inner = self._pull_deflated(given, found[0], by_deflated)
            gradient = [*inner, *outer, *(np.zeros_like(part) for part in start)]
        return Evaluation(mean, mean, gradient, found)

    def deflate(self, given: Transforms, start: Table | None, potentials: Table) -> Table:
        """Return the data after the first transform; fill ``potentials`` of its transports."""
        deflated = np.empty_like(self.inputs)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            transport = self._transport(given, own)
            warm = None if start is None else start[own]
            potentials[own] = transport.solve(start=warm, tol=TRANSPORT_TOL).potentials
            quantiles = deflating_quantiles(given.deflating_gaps[own])
            deflated[own] = transport.average_targets(potentials[own], quantiles)

        run_blocks(work, self._blocks(given))
        return deflated

    def projection(self, parameters: Sequence[Table], potentials: Sequence[Table]) -> Projection:
        """Return the factors that the projector makes of given transforms."""
        given = Transforms(*parameters[:4])
        room = np.empty_like(given.deflating_logits)
        deflated = self.deflate(given, potentials[0], room)
        return self.projector.project(deflated, parameters[4:], with_pull=False)

    def _pull_deflated(self, given: Transforms, potentials: Table, gradient: Table) -> list[Table]:
        """Pull a gradient with respect to the deflated data back to gaps and logits."""
        by_gaps, by_logits = np.empty_like(given.deflating_gaps), np.empty_like(potentials)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            quantiles = deflating_quantiles(given.deflating_gaps[own])
            pulled = self._transport(given, own).pull_targets(
                potentials[own], quantiles, gradient[own]
            )
            above = np.cumsum(pulled.numbers[:, ::-1], axis=1)[:, ::-1]
            steps = np.diff(quantiles, axis=1, prepend=0.0)
            by_gaps[own] = above * steps
            by_logits[own] = pull_softmax(softmax(given.deflating_logits[own]), pulled.b)

        run_blocks(work, self._blocks(given))
        return [by_gaps, by_logits]

    def _transport(self, given: Transforms, own: slice) -> RowTransport:
        """Return the transports of some features from the data to the deflating quantiles."""
        weights = softmax(given.deflating_logits[own])
        targets = np.linspace(0.0, 1.0, weights.shape[1])[None]
        shares = self.table.shares if len(self.table.shares) == 1 else self.table.shares[own]
        return RowTransport(self.inputs[own], targets, shares, weights, epsilon=self.epsilon)

    def _blocks(self, given: Transforms) -> list[tuple[int, int]]:
        return row_blocks(*self.table.shape, given.logits.shape[1])


def to_deflating_gaps(quantiles: Table) -> Table:
    """Return gaps of given deflating quantiles."""
    steps = np.diff(quantiles, axis=1, prepend=0.0)
    result: Table = np.log(np.maximum(steps, np.exp(-_LARGEST_EXPONENT)))
    return result
