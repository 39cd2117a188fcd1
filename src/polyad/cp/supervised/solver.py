r"""Nonnegative CP whose samples also predict their labels.

Problem
    Minimise

    .. math:: \tfrac12 \|X - \sum_r a_r \circ b_r \circ \dots\|^2 + \text{penalties}
        + \tfrac{\alpha}{2} \|X\|^2 \Big(\tfrac1n \sum_{i \in L}
        \ell\big(y_i;\, \tfrac{1}{\sigma} a_i V + c\big) + \tfrac{\rho}{2} \|V\|^2\Big)

    over nonnegative factors, the weights :math:`V` and the intercept :math:`c`, where
    :math:`L` are the :math:`n` labelled samples, :math:`\ell` is the multinomial logistic loss
    and :math:`\sigma^2 = \|X\|^2 / n_{samples}`. The columns of all modes but the samples have
    length one.
Update
    Each mode in turn, mode 0 last (``rules.py``), then the classifier (``classifier.py``).
Stopping
    The driver's. No update raises the objective.
Cost per iteration
    That of nonnegative CP, plus ``O(n R (R + K))`` per Newton step on the labelled rows, for ``K``
    classes, and ``O(n R K)`` per step of the classifier.

Why the scale is fixed like this:

1. A row of samples and the weights of the classifier could trade scale with the other modes. A
   component that is nearly zero in the data could then carry the labels for nothing. With columns
   of length one the rows are as large as the data that they explain, and a component that explains
   little needs large weights :math:`V`, which the ridge makes dear.
2. :math:`\sigma` and :math:`\|X\|^2` take the unit of the data out: the same :math:`\alpha` and
   :math:`\rho` mean the same for data in other units, and for more samples.

How this differs from Kim et al. (2017): any number of classes, samples without a label, weights
free of units, and a monotone method in place of gradient steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import device

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.cp.rules import double
from polyad.cp.solver import FactorSolver
from polyad.cp.supervised.classifier import fit_logistic, losses, scores
from polyad.cp.supervised.rules import LabelPull, SupervisedDescent
from polyad.tensor.kruskal import column_norms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.cp.problem import Problem
    from polyad.cp.supervised.classifier import Labels

# Steps of the classifier per iteration; it goes on from where it was.
_CLASSIFIER_STEPS = 10


@dataclass(frozen=True)
class SupervisedState:
    """The factors, the squared residual that they leave, and the classifier."""

    factors: list[Array]
    residual: float
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]


class SupervisedSolver(FactorSolver[SupervisedState]):
    """Nonnegative CP with a label term; the ridge acts on the samples, which cannot be fixed."""

    name = "SupervisedCP"
    problem: Problem

    def __init__(
        self,
        problem: Problem,
        labels: Labels,
        *,
        label_weight: float,
        label_ridge: float,
        sparsity: Sequence[float],
        ridge: float,
        fixed_modes: Collection[int] = (),
    ) -> None:
        self.problem = problem
        self.labels = labels
        self.free_modes = [k for k in range(len(problem.shape)) if k not in fixed_modes]
        self.fixed_modes = frozenset(fixed_modes)
        # Data divided by s has samples divided by s and an objective divided by s².
        scale: float = 2.0**problem.exponent
        self.sparsity = [
            weight / (scale if k == 0 else scale * scale) for k, weight in enumerate(sparsity)
        ]
        self.ridge = [ridge, *[0.0] * (len(problem.shape) - 1)]
        self.unit = scale * scale
        self.floor = problem.precision * problem.norm_squared * self.unit
        self.strength = 0.5 * label_weight * problem.norm_squared
        self.label_ridge = label_ridge
        #: The size of an average sample: rows divided by it have no unit.
        self.size = float(np.sqrt(problem.norm_squared / problem.shape[0])) or 1.0
        self.seen = [problem.seen(k) for k in range(len(problem.shape))]

    def init(self, factors: Sequence[Array]) -> SupervisedState:
        """Return the state of given factors, with the classifier that is best for them."""
        placed = self._placed(factors)
        fitted = fit_logistic(self._features(placed), self.labels, self.label_ridge)
        return SupervisedState(placed, self.problem.residual(placed), *fitted)

    def step(self, state: SupervisedState) -> SupervisedState:
        """Return the state after one update of each free mode and of the classifier."""
        factors = list(state.factors)
        residual = self.problem.sweep(factors, self._rule(state), self.fixed_modes)
        fitted = state.weights, state.intercept
        if self.strength > 0:
            fitted = fit_logistic(
                self._features(factors),
                self.labels,
                self.label_ridge,
                fitted,
                max_iter=_CLASSIFIER_STEPS,
            )
        return SupervisedState(factors, residual, *fitted)

    def objective(self, state: SupervisedState) -> float:
        """Return half the squared residual, the penalties and the label term."""
        total = 0.5 * state.residual
        for k in self.free_modes:
            factor = double(state.factors[k])
            xp = namespace_of(factor)
            if self.sparsity[k]:
                total += self.sparsity[k] * float(xp.sum(factor))
            if self.ridge[k]:
                total += 0.5 * self.ridge[k] * float(xp.sum(factor * factor))
        shrinkage = 0.5 * self.label_ridge * float(np.sum(state.weights**2))
        return self.unit * (total + self.strength * (self._label_loss(state) + shrinkage))

    def diagnostics(self, state: SupervisedState) -> Mapping[str, float]:
        """Return the two losses that the objective weighs against each other."""
        total = self.problem.norm_squared
        return {
            "relative_error": (state.residual / total) ** 0.5 if total > 0 else 0.0,
            "label_loss": self._label_loss(state),
        }

    def finish(self, state: SupervisedState) -> SupervisedState:
        """Return the state with the samples at their minimum, and the classifier then at its own.

        The objective is then a function of the factors alone.
        """
        rows, residual = self.problem.fit_samples(state.factors, self._rule(state, exact=True))
        factors = [rows, *state.factors[1:]]
        fitted = fit_logistic(
            self._features(factors), self.labels, self.label_ridge, (state.weights, state.intercept)
        )
        return SupervisedState(factors, residual, *fitted)

    def factors(self, state: SupervisedState) -> list[Array]:
        """Return the factors."""
        return list(state.factors)

    def lengths(self, factors: Sequence[Array]) -> list[Array]:
        """Return ones: samples meet columns of length one in the fit and after it."""
        xp = namespace_of(factors[0])
        return [xp.ones_like(factor[0, :]) for factor in factors]

    def adopt(self, state: SupervisedState) -> SupervisedState:
        """Move the factors of a checkpoint to the namespace, device and type of the data."""
        factors = [self.problem.asarray(factor) for factor in state.factors]
        return SupervisedState(factors, state.residual, state.weights, state.intercept)

    def _rule(self, state: SupervisedState, *, exact: bool = False) -> SupervisedDescent:
        pull = None
        if self.strength > 0:
            weights = state.weights * (self._sizes(state.factors) / self.size)[:, None]
            share = self.strength / len(self.labels)
            pull = LabelPull(self.labels, weights, state.intercept, share)
        return SupervisedDescent(self.sparsity, self.ridge, pull, self.seen, exact=exact)

    def _features(self, factors: Sequence[Array]) -> NDArray[np.float64]:
        """Return the rows of the labelled samples, free of units."""
        xp = namespace_of(factors[0])
        index = xp.asarray(self.labels.positions, device=device(factors[0]))
        rows = to_numpy(double(xp.take(factors[0], index, axis=0)))
        return np.asarray(rows * (self._sizes(factors) / self.size))

    def _sizes(self, factors: Sequence[Array]) -> NDArray[np.float64]:
        """Return how large a component is per unit of its samples: one, unless modes are fixed."""
        sizes = np.ones(int(factors[0].shape[1]))
        for k in self.fixed_modes:
            sizes = sizes * to_numpy(column_norms(double(factors[k])))
        return sizes

    def _label_loss(self, state: SupervisedState) -> float:
        z = scores(self._features(state.factors), state.weights, state.intercept)
        return float(np.mean(losses(z, self.labels.codes)))

    def _placed(self, factors: Sequence[Array]) -> list[Array]:
        """Give the columns of the free modes but the samples length one; the model stays."""
        xp = namespace_of(factors[0])
        result = list(factors)
        for k in self.free_modes:
            seen = self.seen[k]
            even = xp.ones_like(result[k])
            if seen is not None:
                even = even * self.problem.asarray(seen.astype(np.float64))[:, None]
                result[k] = result[k] * even
            if k == 0:
                continue
            lengths = column_norms(result[k])
            alive = lengths > 0
            safe = xp.where(alive, lengths, xp.ones_like(lengths))
            # A column of zeros has no direction: an even one takes its place, without samples.
            even = even / xp.sqrt(xp.sum(even, axis=0))[None, :]
            result[k] = xp.where(alive[None, :], result[k] / safe[None, :], even)
            result[0] = result[0] * lengths[None, :]
        return result
