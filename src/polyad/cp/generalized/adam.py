r"""Stochastic gradients for generalized CP of sparse data with implied zeros.

Problem
    Minimise :math:`\sum f(x, m) + \tfrac{\lambda}{2} (\|A\|^2 + \|B\|^2 + \dots)` over all cells
    of a sparse tensor, of which those that are not stored are zeros. They are too many to visit.
Update
    Adam with gradients over random cells (see ``random_cells``), corrected by what is known of all
    cells without a sample (the control variate there), and projected onto the lower bound of
    the loss. A step is an epoch of many such updates, kept if it lowers the objective.
Objective
    Estimated, without bias, from one sample that is drawn at the start and kept, so that it
    is the same function of the factors all along. Its standard error is in the history.
Stopping
    The driver's. An epoch that did not lower the objective worthwhile makes the learning rate
    smaller. An epoch that raised it is forgotten too. A step is over when the objective fell by
    more than the tolerance, or when the smallest rate was tried in vain.
Cost per update
    ``O(samples · R · N)`` and ``O(rows · R)``. Memory: the coordinates of the stored cells once
    more, a table of two to four numbers for each, five copies of the factors, and some samples.

How this differs from Kolda and Hong (2020):

1. The control variate. Without it most of the noise comes from the zeros.
2. The second moment is averaged over ten updates, not a thousand: rows of sparse data have
   gradients that change by orders of magnitude while the fit goes on. The rate falls by 0.3 and not
   0.1 at a failure, also after a success too small to be worth the time.
3. The rate is relative to the size of the entries of each factor, so that it has no unit.
4. Cells are shared out between stored and others by what either adds to the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from polyad.core.threads import cut_into, run_blocks
from polyad.cp.generalized import kernels
from polyad.cp.generalized.kernels import Sample, Terms
from polyad.cp.generalized.problem import scaled_ridge
from polyad.cp.generalized.random_cells import (
    Sampler,
    Strata,
    Tangent,
    known_gradient,
    model_sum,
    sum_over_all,
    tangent_at,
)
from polyad.cp.generalized.rows import solve_rows
from polyad.cp.solver import FactorSolver, balance
from polyad.fitting.adam import Adam, Moments, Rule, adam_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.cp.generalized.problem import ZerosProblem

    Matrix = NDArray[np.float64]

_ADAM = Adam(0.9, 0.9)
# What the rate is multiplied by after an epoch that failed, and how often.
_RATE_DECAY = 0.3
_MAX_FAILURES = 4
# An epoch that lowers the objective by less than this part of it is not worth its time.
_MIN_GAIN = 1e-4
# By default an update draws this many cells, and some for each row of the factors that has any.
_MIN_BATCH = 1 << 14
_CELLS_PER_ROW = 4
# Cells of the sample that the objective is estimated from: all stored ones if they are not more.
_STORED_OF_OBJECTIVE = 1 << 19
_UNSTORED_OF_OBJECTIVE = 1 << 18
# The least part of a sample that either kind of cell has.
_MIN_SHARE = 1 / 16
# Cells of one block: long against handing it to a thread.
_BLOCK = 1 << 13
# Bytes of the samples that are drawn ahead, and the most of them.
_AHEAD_BYTES = 1 << 25
_MAX_AHEAD = 32
# What samples are for: different purposes, different cells.
_GRADIENT, _OBJECTIVE = 0, 1


@dataclass(frozen=True)
class AdamState:
    """Factors, the memory of Adam, and everything that the next epoch depends on."""

    factors: list[Array]
    first: list[Array]
    """The running mean of the gradient of each factor."""
    second: list[Array]
    """The running mean of its square."""
    objective: float
    standard_error: float
    unstored_share: float
    """The part of a sample that is drawn from the cells that are not stored."""
    rate: float
    failures: int
    updates: int
    """The updates that made these factors."""
    drawn: int
    """The samples that were drawn, those of failed epochs too."""
    units: list[float]
    """The size of the entries of each factor at the start, of which the rate is a part."""
    tangent: list[float]
    seed: int


@dataclass(frozen=True)
class AdamOptions:
    """How a sampled fit goes."""

    #: Cells for one update. If there are no more, all are used and the gradient is exact. By
    #: default some for each row of the factors, and not too few.
    batch_size: int | None = None
    #: The size of the first updates, as a part of the size of the entries of a factor.
    learning_rate: float = 0.1
    #: The updates of one epoch.
    epoch_iter: int = 100
    #: The tolerance of the driver, which a step tries to exceed.
    tol: float = 1e-5
    #: Of the samples, not negative. Fits from several starts share it, so that their objectives
    #: compare.
    seed: int = 0


class AdamSolver(FactorSolver[AdamState]):
    """Generalized CP of sparse data by stochastic gradients; the ridge is in its unit."""

    name = "GeneralizedCP"

    problem: ZerosProblem

    def __init__(
        self,
        problem: ZerosProblem,
        *,
        ridge: float = 0.0,
        fixed_modes: Collection[int] = (),
        options: AdamOptions | None = None,
    ) -> None:
        self.problem = problem
        self.loss = problem.loss
        self.least = problem.loss.least
        self.free_modes = [k for k in range(len(problem.shape)) if k not in fixed_modes]
        self.fixed_modes = frozenset(fixed_modes)
        self.ridge = scaled_ridge(problem, ridge, len(self.free_modes))
        self.options = options or AdamOptions()
        rows = min(sum(problem.shape), problem.tensor.nnz)
        default = max(_MIN_BATCH, _CELLS_PER_ROW * rows)
        self.batch_size = self.options.batch_size or default
        listed = max(self.batch_size, _UNSTORED_OF_OBJECTIVE)
        self.strata = Strata(problem.tensor, listed)
        self._judges: dict[int, tuple[Sampler, Sample]] = {}

    def init(self, factors: Sequence[Array]) -> AdamState:
        """Return the state of given factors."""
        own = [np.array(factor, np.float64) for factor in factors]
        for mode in self.free_modes:
            np.maximum(own[mode], self.loss.lower, out=own[mode])
        own = balance(own, self.free_modes)
        cells = float(self.strata.n_stored + self.strata.n_unstored)
        tangent = tangent_at(self.loss, model_sum(own) / cells)
        state = AdamState(
            factors=own,
            first=[np.zeros_like(factor) for factor in own],
            second=[np.zeros_like(factor) for factor in own],
            objective=0.0,
            standard_error=0.0,
            unstored_share=0.5,
            rate=self.options.learning_rate,
            failures=0,
            updates=0,
            drawn=0,
            units=_sizes(own),
            tangent=list(tangent),
            seed=self.options.seed,
        )
        return self._judged(state)

    def step(self, state: AdamState) -> AdamState:
        """Return the state after an epoch, or after several if the first of them fail."""
        begun = state.objective
        while True:
            least = state.failures >= _MAX_FAILURES
            state = self._chosen(state, self._epoch(state))
            if least or begun - state.objective > self.options.tol * abs(begun):
                return state

    def objective(self, state: AdamState) -> float:
        """Return the estimated sum of the loss over all cells, plus half the ridge term."""
        return self.problem.unit * state.objective

    def diagnostics(self, state: AdamState) -> Mapping[str, float]:
        """Return the standard error of the objective and the learning rate."""
        return {
            "standard_error": self.problem.unit * state.standard_error,
            "learning_rate": state.rate,
        }

    def finish(self, state: AdamState) -> AdamState:
        """Return the state with the samples at their minimum, judged by the same cells."""
        if 0 not in self.free_modes:
            return state
        rows = solve_rows(
            self.problem,
            state.factors[1:],
            self.ridge,
            exact=self.problem.is_exact,
            known=None if self.loss.is_convex else state.factors[0],
        )
        return self._judged(replace(state, factors=[rows, *state.factors[1:]]))

    def factors(self, state: AdamState) -> list[Array]:
        """Return the factors in the type of the data."""
        return [self.problem.result(factor) for factor in state.factors]

    def adopt(self, state: AdamState) -> AdamState:
        """Bring the arrays of a checkpoint to the layout that kernels need."""
        return replace(
            state,
            factors=[np.ascontiguousarray(array, np.float64) for array in state.factors],
            first=[np.ascontiguousarray(array, np.float64) for array in state.first],
            second=[np.ascontiguousarray(array, np.float64) for array in state.second],
        )

    def _chosen(self, before: AdamState, after: AdamState) -> AdamState:
        """Return the better of the states before and after an epoch, with the rate that follows."""
        # NaN is not better.
        gain = before.objective - after.objective
        kept = after if gain > 0 else replace(before, drawn=after.drawn)
        worthwhile = max(_MIN_GAIN, self.options.tol) * abs(before.objective)
        if gain > worthwhile or before.failures >= _MAX_FAILURES:
            return kept
        return replace(kept, rate=_RATE_DECAY * before.rate, failures=before.failures + 1)

    def _judged(self, state: AdamState) -> AdamState:
        """Return a state with its objective and what else the sample for it says."""
        if state.seed not in self._judges:
            sampler = Sampler(self.strata, _STORED_OF_OBJECTIVE, _UNSTORED_OF_OBJECTIVE, _OBJECTIVE)
            self._judges = {state.seed: (sampler, sampler.draw(state.seed, 0))}
        sampler, sample = self._judges[state.seed]
        tangent = Tangent(*state.tangent)
        stack = np.concatenate(state.factors)
        model, terms, slopes = (np.empty(sampler.n_cells) for _ in range(3))

        def fill(first: int, last: int) -> None:
            kernels.model_values(stack, sample.rows, (first, last), model)
            x, m = sample.values[first:last], model[first:last]
            terms[first:last] = self.loss.value(x, m) - tangent.value(m)
            slopes[first:last] = np.abs((self.loss.derivative(x, m) - tangent.slope(m)) * m)

        with np.errstate(all="ignore"):
            run_blocks(fill, _blocks(sampler.n_cells))
            objective = sampler.total(terms) + sum_over_all(tangent, state.factors)
            size = sum(float(np.sum(state.factors[k] ** 2)) for k in self.free_modes)
            return replace(
                state,
                objective=objective + 0.5 * self.ridge * size,
                standard_error=sampler.standard_error(terms),
                unstored_share=_share(sampler, slopes),
            )

    def _sampler(self, unstored_share: float) -> Sampler:
        strata = self.strata
        if strata.n_stored + strata.n_unstored <= self.batch_size:
            return Sampler(strata, strata.n_stored, strata.n_unstored, _GRADIENT)
        n_unstored = max(1, round(unstored_share * self.batch_size))
        n_stored = max(1, self.batch_size - n_unstored)
        return Sampler(strata, n_stored, n_unstored, _GRADIENT)

    def _epoch(self, state: AdamState) -> AdamState:
        """Return the state after some updates at the rate of the state."""
        sampler = self._sampler(state.unstored_share)
        run = _Run(self, state, sampler)
        ahead = sampler.how_many(_AHEAD_BYTES, _MAX_AHEAD)
        last = state.drawn + self.options.epoch_iter
        with np.errstate(all="ignore"):
            for first in range(state.drawn, last, ahead):
                counters = range(first, min(first + ahead, last))
                for sample in sampler.draw_many(state.seed, counters):
                    run.update(sample)
        return self._judged(
            replace(
                state,
                factors=run.split(run.stack),
                first=run.split(run.moments.first),
                second=run.split(run.moments.second),
                updates=run.updates,
                drawn=last,
            )
        )


class _Run:
    """The arrays of an epoch while it runs."""

    def __init__(self, solver: AdamSolver, state: AdamState, sampler: Sampler) -> None:
        self.loss, self.ridge = solver.loss, solver.ridge
        self.tangent = Tangent(*state.tangent)
        self.sampler = sampler
        self.offsets = solver.strata.offsets
        self.stack = np.concatenate(state.factors)
        self.moments = Moments(
            np.concatenate(state.first).reshape(-1), np.concatenate(state.second).reshape(-1)
        )
        self.updates = state.updates
        self.rates = [state.rate * unit for unit in state.units]
        self._next = self.stack.copy()
        self._model, self._slopes = np.empty(sampler.n_cells), np.empty(sampler.n_cells)
        self._sample_blocks = _blocks(sampler.n_cells)
        # Rows are cut so that a block has its share of the cells, if these are spread evenly.
        per_mode = len(self._sample_blocks)
        self._row_blocks = [
            (mode, first, last)
            for mode in solver.free_modes
            for first, last in cut_into(per_mode, *self.offsets[[mode + 1, mode]].tolist())
        ]

    def split(self, stack: Matrix) -> list[Array]:
        """Return the rows of each mode, each in memory of its own."""
        whole = stack.reshape(self.stack.shape)
        return [part.copy() for part in np.split(whole, self.offsets[1:-1])]

    def update(self, sample: Sample) -> None:
        """Make one update of Adam."""
        self.updates += 1
        run_blocks(partial(self._fill_slopes, sample), self._sample_blocks)
        factors = np.split(self.stack, self.offsets[1:-1])
        known = known_gradient(self.tangent, factors, self.ridge)
        rules = [_ADAM.rule(rate, self.updates, self.loss.lower) for rate in self.rates]
        terms = Terms(self.stack, sample, self._slopes, known)
        run_blocks(partial(self._move_rows, terms, rules), self._row_blocks)
        self.stack, self._next = self._next, self.stack

    def _move_rows(self, terms: Terms, rules: list[Rule], mode: int, first: int, last: int) -> None:
        """Write a block of rows after the update."""
        gradient = kernels.gradient_rows_3 if len(rules) == 3 else kernels.gradient_rows
        gradient(terms, (mode, first, last), self._next)
        rank = self.stack.shape[1]
        adam_entries(
            self.stack.reshape(-1),
            (first * rank, last * rank),
            rules[mode],
            self.moments,
            self._next.reshape(-1),
        )

    def _fill_slopes(self, sample: Sample, first: int, last: int) -> None:
        """Fill the derivatives at a block of cells, less what is known of them, weighted."""
        kernels.model_values(self.stack, sample.rows, (first, last), self._model)
        m = self._model[first:last]
        slopes = self.loss.derivative(sample.values[first:last], m) - self.tangent.slope(m)
        np.multiply(slopes, self.sampler.weights[first:last], out=self._slopes[first:last])


def _share(sampler: Sampler, slopes: Matrix) -> float:
    """Return which part of the cells to draw from those that are not stored."""
    weighted = sampler.weights * slopes
    stored = float(np.sum(weighted[: sampler.n_stored]))
    unstored = float(np.sum(weighted[sampler.n_stored :]))
    share = unstored / (stored + unstored) if stored + unstored > 0 else 0.5
    return min(max(share, _MIN_SHARE), 1 - _MIN_SHARE) if np.isfinite(share) else 0.5


def _sizes(factors: Sequence[Matrix]) -> list[float]:
    """Return the root mean square of the entries of each factor; one for a factor of zeros."""
    return [float(np.linalg.norm(factor)) / factor.size**0.5 or 1.0 for factor in factors]


def _blocks(n_cells: int) -> list[tuple[int, int]]:
    return cut_into(round(n_cells / _BLOCK), n_cells)
