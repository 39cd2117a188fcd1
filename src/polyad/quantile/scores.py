r"""The scores of samples, with loadings and transforms held.

Problem
    For each sample, minimise :math:`\frac1c \sum_i \Delta(x_i, T_i(u_i \cdot v)) + \frac{\rho}{2}
    |\tilde v|^2` over the unconstrained parameters of ``v``, where ``v`` is their exponential if
    it must not be negative.
Update
    Newton steps with Levenberg's damping (``fitting/row_newton``); as transforms are curved,
    Hessians may have negative eigenvalues, whose sizes are taken.
Start
    From the scores of those samples of the fit whose models are nearest to the new sample, and from
    weighted least squares with the products that the transforms would need. The best end is kept.
    There are the more minima, and starts, the fewer features there are; samples of the fit, which
    are at a minimum, need no more than two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.fitting.row_newton import Rows, RowSource, Rules, minimize_rows
from polyad.losses import GaussianLoss, Loss, PoissonLoss
from polyad.quantile.parameters import factor, unconstrained

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.quantile.features import FeatureTable
    from polyad.quantile.maps import FeatureMaps

    Table = NDArray[np.float64]

# Where a divergence has no curvature of its own, the derivative is compared this far away,
# as a part of the range of a feature.
_STEP = 1e-5
# Starts from samples of the fit: as many as have together so many entries, and the most. Chosen on
# 30 adrenal tumours and 30 cell lines: from ten of them instead of one, models of 60 features are
# 3 to 14 % closer to new samples, and those of 300 to 670 are 1 to 4 % closer.
_ENTRIES_OF_STARTS, _MOST_STARTS = 1000, 10
# Samples whose nearest start is at most so many times the end are known from the fit, and get no
# more starts: of those of a fit nine in ten have up to 1.006, of new ones one in twenty up to 1.15.
_KNOWN = 1.02
# Entries of the starts that are solved together, and the most samples.
_BLOCK = 1 << 19
_MOST_SAMPLES = 256
# Differences of two minima that are not rounding.
_CLEARLY = 1e-9
# Scores that least squares would have negative start from this part of the largest one.
_LEAST_PART = 1e-3
# Added to the normal equations, as a part of their diagonal.
_DAMPING = 1e-6


@dataclass(frozen=True)
class HeldModel:
    """What is held while the scores of samples are found."""

    #: The transforms.
    maps: FeatureMaps
    #: (d, k): the factor of the features, as it was in the fit.
    loadings: Table
    #: (n, k): scores of the samples of the fit.
    known: Table
    #: Whether scores are exponentials.
    nonnegative: bool
    #: The weight of the squares of unconstrained parameters, in units of ``unit``.
    ridge: float
    #: The mean divergence from constant features.
    unit: float


def solve_scores(table: FeatureTable, held: HeldModel) -> Table:
    """Return the best scores of each sample (n, k); those of samples without any entry are zero."""
    d, n = table.shape
    upper = np.triu_indices(held.loadings.shape[1])
    pairs = held.loadings[:, upper[0]] * held.loadings[:, upper[1]]
    nearby = held.maps.values(held.loadings @ held.known.T) + table.guard
    result = np.zeros((n, held.loadings.shape[1]))
    n_near = int(np.clip(_ENTRIES_OF_STARTS // d, 1, min(_MOST_STARTS, len(held.known))))
    size = int(np.clip(_BLOCK // (d * (n_near + 1)), 1, _MOST_SAMPLES))

    def work(first: int, last: int) -> None:
        samples = _Samples(table, held, pairs, np.arange(first, last))
        near = held.known[samples.nearest(nearby, n_near)].swapaxes(0, 1)
        found, lowest = _best(samples, np.stack([near[0], samples.least_squares()]))
        is_new = samples.objective(near[0]) > _KNOWN * lowest
        if n_near > 1 and is_new.any():
            strangers = _Samples(table, held, pairs, np.flatnonzero(is_new) + first)
            more, lower = _best(strangers, near[1:, is_new])
            better = lower < lowest[is_new] - _CLEARLY * np.abs(lowest[is_new])
            found[is_new] = np.where(better[:, None], more, found[is_new])
        result[first:last] = np.where(samples.has_entries[:, None], found, 0.0)

    run_blocks(work, cut(n, size))
    return result


def _best(samples: _Samples, starts: Table) -> tuple[Table, Table]:
    """Return the best of the ends (n, k) from some starts (n_starts, n, k), and objectives there.

    All starts of all samples are rows of one minimisation.
    """
    held, columns = samples.held, np.tile(samples.columns, len(starts))
    rows = _Samples(samples.table, held, samples.pairs, columns)
    rules = Rules(-np.inf, np.full(starts.shape[2], held.ridge), is_convex=False)
    free = unconstrained(starts.reshape(columns.size, -1), nonnegative=held.nonnegative)
    ends, values = minimize_rows(rows, free, rules)
    values = values.reshape(starts.shape[:2])
    lowest = np.fmin.reduce(values, axis=0)
    # The first of those that are the lowest, but for rounding.
    best = np.argmax(values <= lowest + _CLEARLY * np.abs(lowest), axis=0)
    found = ends.reshape(starts.shape)[best, np.arange(best.size)]
    return factor(found, nonnegative=held.nonnegative), lowest


class _Samples(RowSource):
    """Some samples, whose objective can be evaluated."""

    def __init__(
        self, table: FeatureTable, held: HeldModel, pairs: Table, columns: NDArray[Any]
    ) -> None:
        self.table, self.held, self.pairs, self.columns = table, held, pairs, columns
        self.entries = np.ascontiguousarray(table.shifted[:, columns])
        self.observed = None if table.observed is None else table.observed[:, columns]
        self.n_rows = columns.size
        self.upper = np.triu_indices(held.loadings.shape[1])

    @property
    def has_entries(self) -> NDArray[np.bool_]:
        """Which samples have any entry."""
        if self.observed is None:
            return np.ones(self.n_rows, dtype=np.bool_)
        return np.asarray(self.observed.any(axis=0))

    def objective(self, scores: Table) -> Table:
        """Return the objective of all samples at some scores."""
        free = unconstrained(scores, nonnegative=self.held.nonnegative)
        found: Table = self.evaluate(np.arange(self.n_rows), free).value
        found += 0.5 * self.held.ridge * (free**2).sum(axis=1)
        return found

    def evaluate(self, index: NDArray[Any], a: Table) -> Rows:
        """Return the objective of some samples at parameters ``a``, with its derivatives."""
        held, table, k = self.held, self.table, a.shape[1]
        scores = factor(a, nonnegative=held.nonnegative)
        model, slope, bend = held.maps.derivatives(held.loadings @ scores.T)
        x, y = self.entries[:, index], model + table.guard
        by_model = np.asarray(table.divergence.derivative(x, y), dtype=np.float64)
        curved = curvature(
            table.divergence, x, y, table.low + table.guard, table.high + table.guard
        )
        terms = np.asarray(table.divergence.value(x, y), dtype=np.float64)
        by_product, curves = by_model * slope, curved * slope**2 + by_model * bend
        if self.observed is not None:
            known = self.observed[:, index]
            terms, by_product, curves = (
                np.where(known, part, 0.0) for part in (terms, by_product, curves)
            )
        gradient = by_product.T @ held.loadings / held.unit
        hessian = np.empty((index.size, k, k))
        above, below = self.upper, self.upper[::-1]
        hessian[:, *above] = curves.T @ self.pairs / held.unit
        hessian[:, *below] = hessian[:, *above]
        if held.nonnegative:
            gradient = scores * gradient
            hessian *= scores[:, :, None] * scores[:, None, :]
            diagonal = np.arange(k)
            hessian[:, diagonal, diagonal] += gradient
        return Rows(terms.sum(axis=0) / held.unit, gradient, hessian)

    def nearest(self, models: Table, count: int) -> NDArray[np.int64]:
        """Return for each sample the numbers of the models (d, n) that are nearest to it."""
        divergence = self.table.divergence
        if self.observed is None:
            sums = cross(divergence, self.entries, models)
        else:
            pairs = zip(self.entries.T, self.observed.T, strict=True)
            sums = np.concatenate(
                [cross(divergence, own[known, None], models[known]) for own, known in pairs]
            )
        return np.argsort(sums, axis=1, kind="stable")[:, :count]

    def least_squares(self) -> Table:
        """Return scores whose products are near those that the transforms would need."""
        held, table = self.held, self.table
        x = np.clip(self.entries - table.guard, table.low, table.high)
        products = held.maps.inverse(x)
        model, slope, _ = held.maps.derivatives(products)
        y = model + table.guard
        weights = slope**2 * np.maximum(
            curvature(
                table.divergence, self.entries, y, table.low + table.guard, table.high + table.guard
            ),
            0.0,
        )
        if self.observed is not None:
            weights = np.where(self.observed, weights, 0.0)
        k = held.loadings.shape[1]
        above, below = self.upper, self.upper[::-1]
        normal = np.empty((self.n_rows, k, k))
        normal[:, *above] = weights.T @ self.pairs
        normal[:, *below] = normal[:, *above]
        right = (weights * products).T @ held.loadings
        diagonal = np.arange(k)
        trace = normal[:, diagonal, diagonal].mean(axis=1, keepdims=True)
        normal[:, diagonal, diagonal] += _DAMPING * trace + np.finfo(np.float64).tiny
        solved = np.asarray(np.linalg.solve(normal, right[:, :, None])[:, :, 0], dtype=np.float64)
        if not held.nonnegative:
            return solved
        largest = np.abs(solved).max(axis=1, keepdims=True, initial=0.0)
        return np.maximum(solved, _LEAST_PART * np.where(largest > 0.0, largest, 1.0))


def curvature(loss: Loss, x: Table, y: Table, low: Table, high: Table) -> Table:
    """Return the second derivative, by differences inside of the range where it is not known."""
    if loss.has_curvature:
        found = loss.curvature(x, y)
    else:
        step = _STEP * np.where(high > low, high - low, 1.0)
        step = np.where(y + step > high, -step, step)
        ahead, here = (np.asarray(loss.derivative(x, at)) for at in (y + step, y))
        found = (ahead - here) / step
    return np.asarray(found, dtype=np.float64)


def cross(loss: Loss, x: Table, y: Table) -> Table:
    """Return the sums over features for all pairs of samples: (d, p) and (d, n) to (p, n)."""
    result: Table
    if isinstance(loss, PoissonLoss):
        own = (x * np.log(x) - x).sum(axis=0)
        result = own[:, None] - x.T @ np.log(y) + y.sum(axis=0)
        return result
    if isinstance(loss, GaussianLoss):
        own, theirs = (x * x).sum(axis=0), (y * y).sum(axis=0)
        result = 0.5 * (own[:, None] + theirs) - x.T @ y
        return result
    columns = (np.broadcast_to(own[:, None], y.shape) for own in x.T)
    values = [np.asarray(loss.value(column, y), dtype=np.float64) for column in columns]
    return np.stack([value.sum(axis=0) for value in values])
