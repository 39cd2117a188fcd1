r"""Gradient methods for quantile matrix factorization: of QMFQ, and of QMF with batches.

Problem
    See ``problem`` (QMF) and ``projected.problem`` (QMFQ): a smooth function of the unconstrained
    parameters of factors, quantiles and weights.
Update
    Adam with exact gradients, of all features or of one batch of them after another; or
    limited-memory BFGS. The transports start from their potentials of the step before.
Stopping
    The driver's, on the best objective of some iterations, as that of Adam may rise. The learning
    rate is halved when it did not fall for a while.
Cost per iteration
    About one evaluation: two or three Newton steps for the transport of each feature, ``O(d n
    m^2)``, one pass of its adjoint, and three products with the factors, ``O(d n k)``. With
    batches, the objective after an iteration takes another evaluation without gradient.

How this differs from Cuturi, Teboul, Niles-Weed and Vert (2020):

1. The transports are solved by Newton steps to an error of 1e-8, not by Sinkhorn iterations to
   1e-2, which makes the gradients exact (their error is that of the transport).
2. The ridge on the parameters of the factors is relative to the divergence of a constant model, so
   that the unit of the data does not matter.
3. The second moment of Adam is averaged over a hundred steps, not a thousand, with a larger rate:
   fewer than half of the steps are needed.
4. Features that are not in a batch keep their moments, instead of going on with stale ones.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from polyad.fitting.adam import Adam, Moments
from polyad.fitting.driver import Solver
from polyad.fitting.quasi_newton import QuasiNewton, QuasiNewtonState
from polyad.quantile.parameters import joined, parted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.quantile.problem import Evaluation, Objective

    Table = NDArray[np.float64]

S = TypeVar("S")

_ADAM = Adam(0.9, 0.99)
# Iterations without a lower objective after which the rate is halved, and how far it falls at most.
_WAIT = 10
_SMALLER = 0.5
_LEAST_RATE = 1e-3
_MEMORY = 30
# Objectives below this part of that of a constant model are rounding.
_ROUNDING = 1e-14


class QuantileSolver(Solver[S]):
    """A solver whose state has parameters and the potentials of their transports."""

    def __init__(self, objective: Objective, name: str) -> None:
        self.objective_function = objective
        self.name = name
        self.floor = _ROUNDING * objective.unit
        # Times this, gradients have squares that are floats, for any data. A power of two changes
        # no digit.
        self.factor = float(2.0 ** -np.round(np.log2(objective.unit)))

    @abstractmethod
    def init(self, parameters: Sequence[Table], seed: int) -> S:
        """Return the state of some parameters; ``seed`` is for the order of batches."""

    def objective(self, state: Any) -> float:
        """Return the mean divergence plus the ridge term."""
        return float(state.value)

    def finish(self, state: S) -> S:
        """Return the state with the scores of the samples at their minimum."""
        given: Any = state
        found = self.objective_function.solved(given.parameters, given.potentials)
        if found is None:
            return state
        done: S = replace(
            given, scores=found.scores, value=found.value, divergence=found.divergence
        )
        return done

    def transforms(self, state: Any) -> tuple[list[Table], list[Table]]:
        """Return the parameters of a state, and the potentials of its transports."""
        return state.parameters, state.potentials

    def diagnostics(self, state: Any) -> Mapping[str, float]:
        """Return the mean divergence alone."""
        return {"divergence": float(state.divergence)}


@dataclass(frozen=True)
class AdamState:
    """Parameters, what Adam remembers, and everything else that the next iteration depends on."""

    parameters: list[Table]
    potentials: list[Table]
    value: float
    divergence: float
    gradient: list[Table]
    """Of the objective, empty if it is computed for batches."""
    first: list[Table]
    second: list[Table]
    iterations: int
    rate: float
    best: float
    waited: int
    seed: int
    scores: Table | None = None
    """Of the samples (n, k), once the fit is finished: the transforms stay those of the fit."""


class AdamSolver(QuantileSolver[AdamState]):
    """Adam on all features, or on batches of them, all of which an iteration visits once."""

    promises_descent = False
    patience: ClassVar[int] = 20

    def __init__(
        self,
        objective: Objective,
        name: str,
        *,
        learning_rate: float,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(objective, name)
        self.learning_rate = learning_rate
        whole = batch_size is None or batch_size >= objective.n_features
        self.batch_size = None if whole else batch_size

    def init(self, parameters: Sequence[Table], seed: int) -> AdamState:
        """Return the state of some parameters."""
        own = [np.array(part) for part in parameters]
        zeros = [np.zeros_like(part) for part in own]
        found = self._evaluate(own, [])
        return AdamState(
            parameters=own,
            potentials=found.potentials,
            value=found.value,
            divergence=found.divergence,
            gradient=found.gradient,
            first=zeros,
            second=zeros,
            iterations=0,
            rate=self.learning_rate,
            best=found.value,
            waited=0,
            seed=seed,
        )

    def step(self, state: AdamState) -> AdamState:
        """Return the state after an update with all features, or with each batch of them."""
        moved = self._moved(state) if self.batch_size is None else self._visited(state)
        found = self._evaluate(moved.parameters, moved.potentials)
        rate, waited = state.rate, state.waited + 1
        if found.value < state.best:
            waited = 0
        elif waited >= _WAIT:
            rate, waited = max(_SMALLER * rate, _LEAST_RATE * self.learning_rate), 0
        return replace(
            moved,
            potentials=found.potentials,
            value=found.value,
            divergence=found.divergence,
            gradient=found.gradient,
            rate=rate,
            best=min(state.best, found.value),
            waited=waited,
            iterations=state.iterations + 1,
        )

    def diagnostics(self, state: AdamState) -> Mapping[str, float]:
        """Return the mean divergence alone, and the learning rate."""
        return {**super().diagnostics(state), "learning_rate": state.rate}

    def _evaluate(self, parameters: list[Table], potentials: list[Table]) -> Evaluation:
        with_gradient = self.batch_size is None
        return self.objective_function.evaluate(parameters, potentials, with_gradient=with_gradient)

    def _moved(self, state: AdamState) -> AdamState:
        """Return the state after one update with the gradient in it."""
        rate, count = state.rate, state.iterations + 1
        lists = (state.parameters, state.gradient, state.first, state.second)
        moved = [
            _ADAM.step(part, self.factor * gradient, Moments(first, second), rate=rate, count=count)
            for part, gradient, first, second in zip(*lists, strict=True)
        ]
        return replace(
            state,
            parameters=[part for part, _ in moved],
            first=[moments.first for _, moments in moved],
            second=[moments.second for _, moments in moved],
        )

    def _visited(self, state: AdamState) -> AdamState:
        """Return the state after updates with the gradients of all batches, in random order."""
        d, size = self.objective_function.n_features, int(self.batch_size or 1)
        order = np.random.default_rng([state.seed, state.iterations]).permutation(d)
        lists = (state.parameters, state.first, state.second, state.potentials)
        parameters, first, second, potentials = ([part.copy() for part in own] for own in lists)
        has_features = self.objective_function.has_features
        n_batches = -(-d // size)
        for number in range(n_batches):
            rows = np.sort(order[number * size : (number + 1) * size])
            chosen: list[Any] = [rows if has else slice(None) for has in has_features]
            found = self.objective_function.evaluate(
                [part[own] for part, own in zip(parameters, chosen, strict=True)],
                [own[rows] for own in potentials],
                rows=rows,
            )
            for part, new in zip(potentials, found.potentials, strict=True):
                part[rows] = new
            for k, own in enumerate(chosen):
                # A feature is in one batch of each iteration, a sample in all of them.
                count = state.iterations + 1
                if not has_features[k]:
                    count = state.iterations * n_batches + number + 1
                parameters[k][own], (first[k][own], second[k][own]) = _ADAM.step(
                    *(parameters[k][own], self.factor * found.gradient[k]),
                    Moments(first[k][own], second[k][own]),
                    rate=state.rate,
                    count=count,
                )
        return replace(
            state, parameters=parameters, first=first, second=second, potentials=potentials
        )


@dataclass(frozen=True)
class LBFGSState:
    """Parameters, and where the quasi-Newton method is, whose vectors are all of them."""

    parameters: list[Table]
    potentials: list[Table]
    value: float
    divergence: float
    descent: QuasiNewtonState
    """Of the objective times a number that takes its unit away."""
    scores: Table | None = None
    """Of the samples (n, k), once the fit is finished: the transforms stay those of the fit."""


class LBFGSSolver(QuantileSolver[LBFGSState]):
    """Limited-memory BFGS on all features."""

    promises_descent = True
    patience: ClassVar[int] = 5

    def init(self, parameters: Sequence[Table], seed: int) -> LBFGSState:
        """Return the state of some parameters; there are no batches to order."""
        own = [np.array(part) for part in parameters]
        found = self.objective_function.evaluate(own, [])
        value, gradient = self._without_unit(found)
        return LBFGSState(
            parameters=own,
            potentials=found.potentials,
            value=found.value,
            divergence=found.divergence,
            descent=QuasiNewtonState(joined(own), gradient, value),
        )

    def step(self, state: LBFGSState) -> LBFGSState:
        """Return the state after one step; its objective is never higher."""
        shapes = [part.shape for part in state.parameters]
        tried: list[tuple[Table, Evaluation]] = []

        def evaluate(point: Table) -> tuple[float, Table]:
            with np.errstate(all="ignore"):  # a value that is not finite is too far
                found = self.objective_function.evaluate(parted(point, shapes), state.potentials)
            tried.append((point, found))
            return self._without_unit(found)

        new = QuasiNewton(evaluate, memory=_MEMORY).step(state.descent)
        potentials, divergence = state.potentials, state.divergence
        for tried_point, found in tried:
            if np.array_equal(tried_point, new.point):
                potentials, divergence = found.potentials, found.divergence
        return LBFGSState(
            parameters=parted(new.point, shapes),
            potentials=potentials,
            value=new.value / self.factor,
            divergence=divergence,
            descent=new,
        )

    def diagnostics(self, state: LBFGSState) -> Mapping[str, float]:
        """Return the mean divergence alone, and the number of evaluations."""
        return {**super().diagnostics(state), "evaluations": state.descent.evaluations}

    def _without_unit(self, found: Evaluation) -> tuple[float, Table]:
        """Return the value and the gradient as the quasi-Newton method is given them."""
        return self.factor * found.value, self.factor * joined(found.gradient)
