r"""The objective of quantile matrix factorization, with its gradient.

.. math:: \frac1N \sum_{ij} \Delta(x_{ij}, y_{ij})
    + \frac{\lambda c}{2} \big(\mathrm{mean}(\tilde U^2) + \mathrm{mean}(\tilde V^2)\big), \qquad
    y_i = T_{\epsilon, b_i, q_i}(u_i V)

The sum runs over the ``N`` observed entries; ``c`` is the mean divergence of a model that knows the
means of the features only, which makes :math:`\lambda` a number without unit. Each row :math:`u_i
V` is squashed to (0, 1) and transported to equally spaced targets of weights ``b_i``; an entry
becomes the mean of the quantiles ``q_i`` over its part of the plan.

Features are treated in blocks, from the product to the derivative, so that all of a block stays in
the cache. Only the derivative with respect to the product is kept, for the factor of the samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.quantile.maps import learned_maps
from polyad.quantile.parameters import (
    Parameters,
    factor,
    pinned_quantiles,
    pull_factor,
    pull_pinned,
    pull_softmax,
    softmax,
    unconstrained,
)
from polyad.quantile.scores import HeldModel, solve_scores
from polyad.soft.plans import squash
from polyad.transport.rows import RowTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.quantile.features import FeatureTable

    Table = NDArray[np.float64]
    Index = NDArray[np.int64]

# The error of the sums of a plan: derivatives are as wrong as that.
TRANSPORT_TOL = 1e-8
# Numbers of a plan that one block works through, and the most features of a block.
_BLOCK = 1 << 18
_MOST_ROWS = 64
# Columns of a product that one block computes.
_COLUMNS = 512


@dataclass(frozen=True)
class Settings:
    """What the model is."""

    #: Strength of the entropy of the transports.
    epsilon: float
    #: Whether the factors are exponentials.
    nonnegative: bool
    #: The weight of the squares of the unconstrained parameters of the factors, without unit.
    ridge: float


@dataclass(frozen=True)
class Evaluation:
    """What the objective is at some parameters."""

    #: The objective.
    value: float
    #: The mean divergence, without the ridge term.
    divergence: float
    #: The derivatives with respect to each array of the parameters; empty if not asked for.
    gradient: list[Table]
    #: (d, m): of the transports, from which those of similar parameters start.
    potentials: list[Table]


@dataclass(frozen=True)
class Solved:
    """What the objective is with the best scores of all samples for transforms that are held."""

    #: (n, k): those of samples without any entry are zero.
    scores: Table
    #: As of an evaluation.
    value: float
    divergence: float


class Objective(ABC):
    """What the solvers minimise: a function of some arrays, the parameters, for a table of data."""

    #: Which parameters have a row for each feature.
    has_features: ClassVar[tuple[bool, ...]]

    def __init__(self, table: FeatureTable) -> None:
        self.table = table
        self.n_features = table.shape[0]
        #: The mean divergence from a model that knows the means of the features only.
        self.unit = table.unit

    @abstractmethod
    def evaluate(
        self,
        parameters: Sequence[Table],
        potentials: Sequence[Table],
        *,
        rows: Index | None = None,
        with_gradient: bool = True,
    ) -> Evaluation:
        """Return the objective and its gradient; the transports start from the potentials, if any.

        With ``rows`` the parameters belong to these features only, and the objective is an estimate
        of the whole one from them.
        """

    def solved(self, parameters: Sequence[Table], potentials: Sequence[Table]) -> Solved | None:
        """Return the best scores of the samples for all else as it is, if these are free."""
        return None


class QuantileObjective(Objective):
    """That of QMF, whose parameters are :class:`~polyad.quantile.parameters.Parameters`."""

    has_features: ClassVar[tuple[bool, ...]] = (True, False, True, True)

    def __init__(self, table: FeatureTable, settings: Settings, n_quantiles: int) -> None:
        super().__init__(table)
        self.settings = settings
        self.n_quantiles = n_quantiles

    def evaluate(
        self,
        parameters: Sequence[Table],
        potentials: Sequence[Table],
        *,
        rows: Index | None = None,
        with_gradient: bool = True,
    ) -> Evaluation:
        """Return the objective and its gradient."""
        given = Parameters(*parameters)
        start = potentials[0] if len(potentials) else None
        run = _Run(self, given, start, rows, with_gradient=with_gradient)
        d = given.loadings.shape[0]
        run_blocks(run.block, row_blocks(d, self.table.shape[1], self.n_quantiles))
        n_observed = self.table.n_observed * d / self.table.shape[0]
        mean = float(run.totals.sum()) / n_observed
        ridge = self.settings.ridge * self.table.unit
        squares = sum(float(np.mean(free**2)) for free in (given.loadings, given.scores))
        gradient = run.gradient(n_observed, ridge) if with_gradient else []
        return Evaluation(mean + 0.5 * ridge * squares, mean, gradient, [run.potentials])

    def held(self, parameters: Sequence[Table], potentials: Sequence[Table]) -> HeldModel:
        """Return the model of some parameters with its transforms as functions."""
        given, settings, table = Parameters(*parameters), self.settings, self.table
        loadings = factor(given.loadings, nonnegative=settings.nonnegative)
        scores = factor(given.scores, nonnegative=settings.nonnegative).T
        maps = learned_maps(
            *(loadings @ scores.T, table.shares),
            potentials=potentials[0],
            weights=softmax(given.logits),
            quantiles=pinned_quantiles(given.gaps, table.low, table.high)[0],
            epsilon=settings.epsilon,
        )
        per_sample = table.n_observed / table.shape[1]
        ridge = settings.ridge * per_sample / scores.shape[1]
        return HeldModel(maps, loadings, scores, settings.nonnegative, ridge, table.unit)

    def solved(self, parameters: Sequence[Table], potentials: Sequence[Table]) -> Solved:
        """Return the best scores of the samples for all else as it is."""
        held, table = self.held(parameters, potentials), self.table
        scores = solve_scores(table, held)
        model = held.maps.values(held.loadings @ scores.T)
        divergence = table.divergence_sum(model, slice(None)) / table.n_observed
        free = unconstrained(scores, nonnegative=held.nonnegative)
        if table.observed is not None:
            # A sample without any entry has no score that could be penalised.
            free = free * np.asarray(table.observed.any(axis=0))[:, None]
        squares = sum(float(np.mean(part**2)) for part in (Parameters(*parameters).loadings, free))
        penalty = 0.5 * self.settings.ridge * table.unit * squares
        return Solved(scores, divergence + penalty, divergence)


@dataclass(frozen=True)
class Inflated:
    """The divergence of some features from the transforms of their products."""

    #: Its sum over all observed entries.
    total: float
    #: (rows, m): of the transports.
    potentials: Table
    #: With respect to products (rows, n), gaps (rows, m - 1) and logits (rows, m); empty if it was
    #: not asked for.
    gradient: tuple[Table, ...]


def inflate(
    table: FeatureTable,
    rows: slice | Index,
    epsilon: float,
    *,
    product: Table,
    numbers: tuple[Table, Table],
    start: Table | None,
    with_gradient: bool,
) -> Inflated:
    """Compare some features with the soft quantile normalization of their products.

    ``numbers`` are the gaps of the quantiles and the logits of their weights; ``start`` the
    potentials that the transports start from.
    """
    gaps, logits = numbers
    shares = table.shares if len(table.shares) == 1 else table.shares[rows]
    low, high = table.low[rows], table.high[rows]
    weights = softmax(logits)
    quantiles, parts = pinned_quantiles(gaps, low, high)
    squashed = squash(product, shares)
    targets = np.linspace(0.0, 1.0, logits.shape[1])[None]
    transport = RowTransport(squashed.values, targets, shares, weights, epsilon=epsilon)
    potentials = transport.solve(start=start, tol=TRANSPORT_TOL).potentials
    # Rounding may take averages out of the range: features of one value would have gradients.
    model = np.clip(transport.average_targets(potentials, quantiles), low, high)
    total = table.divergence_sum(model, rows)
    if not with_gradient:
        return Inflated(total, potentials, ())
    slope = table.divergence_slope(model, rows)
    pulled = transport.pull_targets(potentials, quantiles, slope)
    by_product, _ = squashed.pull(shares, pulled.x)
    by_gaps = pull_pinned(parts, low, high, pulled.numbers)
    return Inflated(total, potentials, (by_product, by_gaps, pull_softmax(weights, pulled.b)))


class _Run:
    """The arrays of one evaluation."""

    def __init__(
        self,
        objective: QuantileObjective,
        parameters: Parameters,
        potentials: Table | None,
        rows: Index | None,
        *,
        with_gradient: bool,
    ) -> None:
        self.objective = objective
        self.given, self.rows, self.start = parameters, rows, potentials
        self.nonnegative = objective.settings.nonnegative
        self.loadings = factor(parameters.loadings, nonnegative=self.nonnegative)
        self.scores = factor(parameters.scores, nonnegative=self.nonnegative)
        d, n = parameters.loadings.shape[0], parameters.scores.shape[1]
        self.potentials = np.empty_like(parameters.logits)
        self.totals = np.zeros(d)
        self.with_gradient = with_gradient
        if with_gradient:
            self.products = np.empty((d, n))
            self.parts = [
                np.empty_like(p) for p in (parameters.loadings, parameters.gaps, parameters.logits)
            ]

    def block(self, first: int, last: int) -> None:
        """Fill everything that belongs to a block of features."""
        part = slice(first, last)
        own = part if self.rows is None else self.rows[part]
        found = inflate(
            *(self.objective.table, own, self.objective.settings.epsilon),
            product=self.loadings[part] @ self.scores,
            numbers=(self.given.gaps[part], self.given.logits[part]),
            start=None if self.start is None else self.start[part],
            with_gradient=self.with_gradient,
        )
        self.potentials[part], self.totals[first] = found.potentials, found.total
        if self.with_gradient:
            by_loadings, by_gaps, by_logits = self.parts
            self.products[part], by_gaps[part], by_logits[part] = found.gradient
            by_loadings[part] = found.gradient[0] @ self.scores.T

    def gradient(self, n_observed: float, ridge: float) -> list[Table]:
        """Return the gradient of the objective."""
        n = self.scores.shape[1]
        by_scores = np.empty_like(self.scores)

        def multiply(first: int, last: int) -> None:
            by_scores[:, first:last] = self.loadings.T @ self.products[:, first:last]

        run_blocks(multiply, cut(n, _COLUMNS))
        by_loadings, by_gaps, by_logits = (part / n_observed for part in self.parts)
        by_scores /= n_observed
        by_loadings = pull_factor(self.loadings, by_loadings, nonnegative=self.nonnegative)
        by_scores = pull_factor(self.scores, by_scores, nonnegative=self.nonnegative)
        by_loadings += ridge / by_loadings.size * self.given.loadings
        by_scores += ridge / by_scores.size * self.given.scores
        return [by_loadings, by_scores, by_gaps, by_logits]


def row_blocks(d: int, n: int, m: int) -> list[tuple[int, int]]:
    """Cut the features into blocks, by the size of the problem alone."""
    return cut(d, int(np.clip(_BLOCK // (n * m), 1, _MOST_ROWS)))
