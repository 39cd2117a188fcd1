r"""Stochastic alternating least squares (SALS) for the CP decomposition.

Problem
    Minimise, on average over batches of samples :math:`T_b`,
    :math:`J_b = \min_X \tfrac12 \|T_b - [\![X, A, B, \dots]\!]\|^2 + \tfrac{\lambda}{2} (\|X\|^2
    + \|A\|^2 + \|B\|^2 + \dots) + \tfrac{\mu}{2} \operatorname{tr}(X^\top L_b X)` over the factors
    of the modes other than the samples.
Update
    For each batch, the rows :math:`X` are the exact minimiser for the factors as they are. Then
    each other factor in turn moves towards its exact minimiser for the batch and the newest
    factors, :math:`A \leftarrow (1 - \eta) A + \eta A^*`. That is a Newton step of length
    :math:`\eta` on the batch. Then the lengths of the columns of a component are made equal over
    the rows and the free factors, which leaves the model unchanged.
Rate
    The first batch takes the place of a start that was not given (:math:`\eta = 1`). Later
    :math:`\eta_t = \max(t^{-1/2}, \min(1, 2/n))` for n batches per sweep: large steps at first, and
    in the end an average over the last half sweep, whose noise is of the size of that of the
    data. A rate given as a number is that of an exponential average without the start,
    :math:`\eta / (1 - (1-\eta)^t)`, which tends to :math:`\eta`.
Stopping
    The driver's, with patience: the mean of :math:`J_b` per sample, measured before the factors
    move, was no better in the last three sweeps than before them.
Cost per sweep
    Two passes over the data, as for alternating least squares; one batch in memory at a time.

How this differs from the published programs:

1. The start is forgotten at once, not with a part :math:`(1-\eta)^t`.
2. A batch that is smaller than those before moves the factors less, in proportion.
3. Rows without observations in a batch stay as they are, and a batch of zeros moves nothing.
4. The graph is a Laplacian, which makes the rows a convex problem that is solved exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyad.core.arrays import namespace_of, to_numpy
from polyad.cp.problem import FitData, ObservedDense, ObservedSparse, Problem, build_problem
from polyad.cp.rules import LeastSquares, double
from polyad.cp.solver import FactorSolver, balance
from polyad.cp.stochastic.graph import GraphRows
from polyad.exceptions import NumericalError
from polyad.tensor.kruskal import KruskalTensor, column_norms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.stochastic.graph import SampleGraph
    from polyad.data.batches import Batch, SampleSource
    from polyad.data.validation import Missing
    from polyad.tensor.sparse import SparseTensor


class BatchedData(FitData):
    """Data that is read in batches, all divided by the power of two that suits the ``first``.

    ``n_batches`` is the number of those of a sweep, where it is known.
    """

    #: Which samples are similar, if that is known.
    graph: SampleGraph | None = None

    def __init__(
        self, source: SampleSource, missing: Missing, first: Batch, n_batches: int | None = None
    ) -> None:
        problem = build_problem(first.given.data, missing)
        super().__init__(problem.tensor)
        self.source = source
        self.missing = missing
        self.first = problem
        self.n_batches = n_batches
        self.exponent = problem.exponent

    def problem_of(self, batch: Batch) -> Problem:
        """Return the least-squares problem of a batch."""
        data = batch.given.data
        if self.exponent:
            data = data * 2.0**-self.exponent
        return build_problem(data, self.missing, rescale=False)


@dataclass(frozen=True)
class SweepState:
    """The factors of the modes other than the samples, and what the next sweep depends on."""

    #: Of the modes from 1 on, with the weights inside them.
    factors: list[Array]
    #: The number of batches that have moved them; a given start counts as one.
    n_steps: int
    #: The number of sweeps so far.
    n_sweeps: int
    #: Of the shuffling.
    seed: int
    #: The largest batch so far.
    largest: int
    #: The sum of the batch objectives over the number of samples, in the unit of the problem.
    loss: float
    #: (n, R) or None: of all samples, once the fit is finished.
    rows: Array | None = None


@dataclass(frozen=True)
class Settings:
    """What a fit with given data still depends on."""

    #: The weight of the squared rows and factors.
    ridge: float
    #: The learning rate, or None for the one that follows from the number of batches.
    rate: float | None = None
    #: Which samples are similar.
    graph: SampleGraph | None = None
    #: The weight of the penalty of the graph.
    graph_weight: float = 0.0
    #: Whether each sweep has an order of its own.
    shuffle: bool = True
    #: The batches of a sweep, if that is known and there will be more than one sweep.
    n_batches: int | None = None
    #: Modes from 1 on whose factors stay as they are.
    fixed_modes: frozenset[int] = frozenset()


def averaging_rate(number: int, given: float | None, n_batches: int | None) -> float:
    """Return the learning rate of a step, counted from one: a given one, or that of the batches."""
    if given is not None:
        # One minus its power, also for rates that one minus them does not show.
        return 1.0 if given == 1.0 else given / -math.expm1(number * math.log1p(-given))
    least = 0.0 if n_batches is None else min(1.0, 2.0 / n_batches)
    return max(1.0 / math.sqrt(number), least)


class Averaged(LeastSquares):
    """Move a part of the way, the ``rate``, to the least-squares factor."""

    def __init__(self, ridge: float, rate: float) -> None:
        super().__init__(ridge)
        self.rate = rate

    def _towards(self, target: Array, current: Array) -> Array:
        # In this form a rate of one gives the target exactly.
        return (1.0 - self.rate) * current + self.rate * target

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Average the factor before and the solution of least norm."""
        return self._towards(super().solve(normal, rhs, current, mode), current)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Average the rows before and their solutions."""
        return self._towards(super().solve_rows(normal, rhs, current, mode), current)

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Average the rows before and their solutions; rows without entries stay."""
        current = factors[mode]
        target = tensor.observed_least_squares(factors, mode, self.ridge + shift, current)
        return self._towards(target, current)


class StochasticSolver(FactorSolver[SweepState]):
    """CP by mini-batches."""

    name = "StochasticCP"
    promises_descent = False
    measures_start: ClassVar[bool] = False
    patience: ClassVar[int] = 3
    needs_finish: ClassVar[bool] = True
    problem: BatchedData

    def __init__(self, problem: BatchedData, settings: Settings) -> None:
        self.problem = problem
        self.source = problem.source
        self.settings = settings
        self.fixed_modes = settings.fixed_modes
        self.free_modes = [k for k in range(len(problem.shape)) if k not in self.fixed_modes]
        # If the data was divided by s, each of n free factors is by s^(1/n) and the objective by
        # s²: the penalties follow.
        scale: float = 2.0**problem.exponent
        share = scale ** (2.0 / len(self.free_modes) - 2.0)
        self.ridge: float = settings.ridge * share
        self.graph_weight: float = settings.graph_weight * share
        self.unit = scale * scale
        per_sample = problem.first.norm_squared / problem.first.shape[0]
        self.floor = problem.precision * per_sample * self.unit
        # The rows of a stream that cannot be read again, as they were when it passed.
        self._passed: list[tuple[Array, np.ndarray | None]] = []
        #: The labels of the samples, once the factors are finished.
        self.sample_labels: list[np.ndarray | None] = []

    def init(self, factors: Sequence[Array]) -> SweepState:
        """Return the state of the factors of all modes; that of the samples is not used."""
        return self.begin(list(factors[1:]), seed=0, n_steps=0)

    def begin(self, factors: list[Array], *, seed: int, n_steps: int) -> SweepState:
        """Return the first state, of factors of the modes from 1 on.

        ``n_steps`` is how many batches they are worth; zero for a start that the first batch
        replaces.
        """
        first = self.problem.first
        _, loss = self._fit_rows(first, factors, LeastSquares(self.ridge))
        return SweepState(factors, n_steps, 0, seed, 0, loss / first.shape[0])

    def step(self, state: SweepState) -> SweepState:
        """Return the state after one sweep over all batches."""
        state = replace(state, loss=0.0)
        shuffled = self.settings.shuffle
        # Counter-based: the order of a sweep depends on the seed and its number alone.
        generator = np.random.default_rng([state.seed, state.n_sweeps]) if shuffled else None
        total, n_samples = 0.0, 0
        self._passed.clear()
        for batch in self.source.sweep(generator):
            rows, loss, state = self.take_batch(state, batch)
            total, n_samples = total + loss, n_samples + batch.size
            if not math.isfinite(total):
                break  # the driver keeps the state before the sweep
            if self.source.reads_once:
                self._passed.append((rows, batch.given.labels[0]))
        return replace(state, n_sweeps=state.n_sweeps + 1, loss=total / n_samples)

    def take_batch(self, state: SweepState, batch: Batch) -> tuple[Array, float, SweepState]:
        """Learn from one batch; return its rows before the factors moved, its objective, the state.

        The rows are of components of length one. The objective is NaN if the batch broke the
        factors.
        """
        problem = self.problem.problem_of(batch)
        others = state.factors
        rows, loss = self._fit_rows(problem, others, self._row_rule(batch, problem))
        largest = max(state.largest, batch.size)
        lengths = _scale_of(others)
        if problem.norm_squared > 0:
            # The first batch replaces the start, however small it is.
            share = batch.size / largest if state.n_steps else 1.0
            rate = share * self.rate(state.n_steps + 1)
            moved = self._move(problem, [rows, *others], rate)
            others = balance(moved, self.free_modes)[1:]
            state = replace(state, n_steps=state.n_steps + 1)
            if not _is_finite(others):
                loss = math.nan
        return rows * lengths[None, :], loss, replace(state, factors=others, largest=largest)

    def rate(self, number: int) -> float:
        """Return the learning rate of a step, counted from one."""
        return averaging_rate(number, self.settings.rate, self.settings.n_batches)

    def objective(self, state: SweepState) -> float:
        """Return the mean objective, per sample, in the unit of the data."""
        return self.unit * state.loss

    def diagnostics(self, state: SweepState) -> Mapping[str, float]:
        """Return the learning rate of the last batch."""
        return {"learning_rate": self.rate(state.n_steps)} if state.n_steps else {}

    def finish(self, state: SweepState) -> SweepState:
        """Return the state with the rows of all samples for the factors as they are.

        Of a stream that cannot be read again they are the rows for the factors that its batch met,
        and its objective is that of the sweep.
        """
        self.sample_labels = []
        if self.source.reads_once:
            return self._with_passed_rows(state)
        parts: list[Array] = []
        total, nothing, n_samples = 0.0, 0.0, 0
        rule = LeastSquares(self.ridge)
        for batch in self.source.sweep():
            problem = self.problem.problem_of(batch)
            rows, loss = self._fit_rows(problem, state.factors, rule)
            parts.append(rows)
            total, n_samples = total + loss, n_samples + batch.size
            nothing += 0.5 * problem.norm_squared
            self.sample_labels.append(batch.given.labels[0])
        self.nothing = self.unit * nothing / n_samples + self.floor
        rows = namespace_of(parts[0]).concat(parts, axis=0)
        return replace(state, rows=rows, loss=total / n_samples)

    def factors(self, state: SweepState) -> list[Array]:
        """Return all factors of a finished state."""
        return [state.rows, *state.factors]

    def adopt(self, state: SweepState) -> SweepState:
        """Move the factors of a checkpoint to the namespace, device and type of the data."""
        return replace(state, factors=[self.problem.asarray(f) for f in state.factors])

    def _with_passed_rows(self, state: SweepState) -> SweepState:
        if not self._passed:  # interrupted before the end of the first batch
            return state
        lengths = _scale_of(state.factors)
        xp = namespace_of(lengths)
        safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
        self.sample_labels = [labels for _, labels in self._passed]
        rows = xp.concat([rows / safe[None, :] for rows, _ in self._passed], axis=0)
        return replace(state, rows=rows)

    def _row_rule(self, batch: Batch, problem: Problem) -> LeastSquares:
        graph = self.settings.graph
        if graph is None:
            return LeastSquares(self.ridge)
        is_random = self.source.mixes_samples and self.settings.shuffle
        # Samples without observations have no row that neighbours could be similar to.
        seen = _seen_samples(problem)
        matrix = np.zeros((batch.size, batch.size))
        if seen.size:
            inside = graph.matrix(graph.places(batch)[seen], is_random=is_random)
            matrix[np.ix_(seen, seen)] = inside
        return GraphRows(self.ridge, self.graph_weight, matrix, one_step=graph.takes_one_step)

    def _fit_rows(
        self, problem: Problem, others: list[Array], rule: LeastSquares
    ) -> tuple[Array, float]:
        """Return the rows of a batch and its objective with them."""
        start = self._no_rows(problem, others)
        rows, residual = problem.fit_samples([start, *others], rule)
        xp = namespace_of(rows)
        penalised = [rows, *(others[k - 1] for k in self.free_modes if k > 0)]
        size = sum(float(xp.sum(double(factor) ** 2)) for factor in penalised)
        loss = residual + self.ridge * size
        if isinstance(rule, GraphRows):
            loss += rule.weight * rule.penalty(rows)
        return rows, 0.5 * loss

    def _move(self, problem: Problem, factors: list[Array], rate: float) -> list[Array]:
        """Move each free factor but the rows towards its minimiser."""
        rule = Averaged(self.ridge, rate)
        before = list(factors)
        problem.sweep(factors, rule, self.fixed_modes | {0})
        if not isinstance(problem, ObservedDense):
            return factors
        xp = namespace_of(factors[0])
        for mode in range(1, len(factors)):
            others = tuple(k for k in range(len(factors)) if k != mode)
            seen = xp.sum(problem.mask.array, axis=others) > 0
            factors[mode] = xp.where(seen[:, None], factors[mode], before[mode])
        return factors

    def _no_rows(self, problem: Problem, others: Sequence[Array]) -> Array:
        return problem.asarray(np.zeros((problem.shape[0], int(others[0].shape[1]))))


def _is_finite(factors: Collection[Array]) -> bool:
    return all(bool(namespace_of(f).all(namespace_of(f).isfinite(f))) for f in factors)


def _seen_samples(problem: Problem) -> np.ndarray:
    """Return the samples of a batch that have observations."""
    if isinstance(problem, ObservedDense):
        mask = problem.mask.array
        others = tuple(range(1, len(problem.shape)))
        return np.flatnonzero(to_numpy(namespace_of(mask).sum(mask, axis=others)))
    if isinstance(problem, ObservedSparse):
        return np.unique(problem.tensor.coords[0])
    return np.arange(problem.shape[0])


def _scale_of(factors: Collection[Array]) -> Array:
    """Return the product of the lengths of the columns over some modes."""
    product: Any = 1.0
    for factor in factors:
        product = product * column_norms(factor)
    return product


@dataclass(frozen=True)
class Counts:
    """How much a model has seen: the batches that moved it, and the largest of them."""

    n_steps: int
    largest: int


def extended(
    solver: StochasticSolver,
    batch: Batch,
    model: KruskalTensor,
    others: list[Array],
    counts: Counts,
) -> tuple[KruskalTensor, list[Array], Counts]:
    """Return a model that has learned from one more batch, its lengths of columns and the counts.

    ``others`` are the factors of the modes from 1 on in the scale of the fit. The model has columns
    of length one, fixed modes apart, and its components keep their order.
    """
    xp = namespace_of(model.weights)
    exponent, free = solver.problem.exponent, solver.free_modes
    # The data of the batch is divided by 2^exponent, and each of n free factors by its n-th root.
    share = 2.0 ** (-exponent / len(free))
    scaled = [f * share if mode in free else f for mode, f in enumerate(others, start=1)]
    state = SweepState(scaled, counts.n_steps, 0, 0, counts.largest, 0.0)
    _, loss, state = solver.take_batch(state, batch)
    if not math.isfinite(loss):
        raise broken_batch()
    rows, *factors = solver.factors(solver.finish(state))
    units = [
        column_norms(factor) if mode in free else xp.ones_like(model.weights)
        for mode, factor in enumerate(factors, start=1)
    ]
    new_rows = rows * (math.prod(units) * 2.0**exponent)[None, :]
    old_rows = model.factors[0] * model.weights[None, :]
    samples = xp.concat([old_rows, new_rows], axis=0)
    size = column_norms(samples)
    parts = [
        factor / xp.where(length > 0, length, xp.ones_like(length))[None, :]
        for factor, length in zip((samples, *factors), (size, *units), strict=True)
    ]
    lengths = solver.lengths([rows, *factors])[1:]
    return KruskalTensor(size, parts), lengths, Counts(state.n_steps, state.largest)


def broken_batch() -> NumericalError:
    """Return the error of a batch that cannot be learned from."""
    return NumericalError(
        "The batch gave factors that are not finite, so the model is left as it was. Scale the "
        "batch as the data before it was scaled."
    )
