r"""SWIFT: a nonnegative CP decomposition under a Wasserstein loss.

Problem
    Minimise eq. 7 (see ``problem``) over the transports of every fibre of every mode and over
    nonnegative factors.
Update
    The transports of all modes to the model as it is; then, with them held, a few sweeps
    of multiplicative updates over the factors (see ``marginals``), mode 0, the samples, last. Both
    lower the objective or leave it, if the transports are exact.
Stopping
    The driver's: relative change of the objective, which is known in closed form.
Cost per iteration
    Transports: ``O(I_n (s + s^2))`` per fibre of ``s`` nonzeros, for each mode. Factors: ``O(R)``
    per cell of the nonzero fibres, per sweep and mode. Memory: a block of fibres per thread, the
    potentials of the nonzeros, and the marginals up to ``memory_limit``.

How this differs from Afshar et al. (2021), "SWIFT":

1. The transports are solved to the end, where 25 of Sinkhorn's steps are off by several percent.
   ``transport="sinkhorn"`` keeps the published schedule.
2. The factor update has the missing factor N in its divisor (eq. 19). Without it every sweep fits
   the sum of the N marginals.
3. The objective is evaluated at every iteration; with exact transports it never rises.
4. Two factor sweeps follow each transport: the same objective is reached in less time.
5. Along a mode nothing need move ("separate"): then samples do not depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyad.cp.solver import FactorSolver, balance
from polyad.fitting.driver import FitOptions, begin, run
from polyad.fitting.status import Status
from polyad.wasserstein.marginals import component_masses, inverse_masses, updated_factor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.wasserstein.problem import Evaluation, TransportProblem

# The objective is a difference of sums as large as the mass of the data.
_ROUNDING = {"float32": 2.0**-20, "float64": 2.0**-44}
# Rows of samples: a round is so many transports, each with so many sweeps; a row is left after a
# round that changed it by less than this part of its largest entry.
_ROW_SWEEPS = 5
_ROUND_LENGTH = 5
_MAX_ROUNDS = 100
_ROW_TOL = 1e-3


@dataclass(frozen=True)
class WassersteinState:
    """The factors, and the potentials from which the transports to their model start."""

    factors: list[Array]
    potentials: list[Array]


class WassersteinSolver(FactorSolver[WassersteinState]):
    """SWIFT: the transports, exact or by some steps, then ``inner_iter`` sweeps over factors."""

    name = "WassersteinCP"
    # The entropy of a transport may be below zero, and with it the objective.
    least = -np.inf
    problem: TransportProblem

    def __init__(
        self, problem: TransportProblem, *, inner_iter: int = 2, fixed_modes: Collection[int] = ()
    ) -> None:
        super().__init__(problem, fixed_modes)
        self.inner_iter = inner_iter
        # A published number of Sinkhorn's steps leaves the transports unsolved.
        self.promises_descent = problem.settings.is_exact
        # The samples come last, as in all of the family.
        self.free_modes.sort(key=lambda mode: mode == 0)
        # The objective of a model of nothing.
        self.scale = len(problem.shape) * problem.settings.penalty * problem.total
        self.floor = _ROUNDING[problem.dtype.name] * self.scale
        # What was found of the latest state is too large to be a part of it. It follows from the
        # state, and is found again where it is lost.
        self._latest: tuple[WassersteinState, Evaluation] | None = None

    def init(self, factors: Sequence[Array]) -> WassersteinState:
        """Return the state of given factors."""
        own = [self.problem.asarray(factor) for factor in factors]
        return WassersteinState(balance(own, self.free_modes), self.problem.cold_potentials())

    def step(self, state: WassersteinState) -> WassersteinState:
        """Return the state after the transports and some sweeps over the factors."""
        found = self._evaluation(state)
        factors = list(state.factors)
        for _ in range(self.inner_iter):
            for mode in self.free_modes:
                factors[mode] = updated_factor(found.marginals, factors, mode)
        # The next evaluation has marginals of its own: these are not held beside them.
        self._latest = None
        return WassersteinState(balance(factors, self.free_modes), found.potentials)

    def objective(self, state: WassersteinState) -> float:
        """Return the value of eq. 7."""
        return self._evaluation(state).objective

    def diagnostics(self, state: WassersteinState) -> Mapping[str, float]:
        """Return how many exact transports missed their tolerance, and the dead components."""
        alive = np.logical_and.reduce([factor.sum(axis=0) > 0 for factor in state.factors])
        unsolved = self._evaluation(state).unsolved
        return {"unsolved": unsolved, "dead": int(np.count_nonzero(~alive))}

    def finish(self, state: WassersteinState) -> WassersteinState:
        """Return the state with the samples at their minimum for the others."""
        self._latest = None
        if 0 not in self.free_modes:
            return state
        rows = solve_rows(self.problem, state.factors[1:])
        return WassersteinState([rows, *state.factors[1:]], state.potentials)

    def factors(self, state: WassersteinState) -> list[Array]:
        """Return the factors in the type of the data."""
        return [factor.astype(self.problem.dtype) for factor in state.factors]

    def adopt(self, state: WassersteinState) -> WassersteinState:
        """Bring the arrays of a checkpoint to the layout that kernels need."""
        factors = [self.problem.asarray(factor) for factor in state.factors]
        potentials = [self.problem.asarray(potential) for potential in state.potentials]
        return WassersteinState(factors, potentials)

    def _evaluation(self, state: WassersteinState) -> Evaluation:
        if self._latest is None or self._latest[0] is not state:
            found = self.problem.evaluate(state.factors, state.potentials)
            self._latest = state, found
        return self._latest[1]


class SampleRowsSolver(WassersteinSolver):
    """The rows of samples for given other factors, by longer steps.

    Near the minimum, the logarithm of the marginals follows that of the model by a part between
    ``phi / (1 + phi)``, which is that of their mass, and ``phi = tau / (tau + 1)``. A step that
    fits the model to the marginals as they are leaves this part of the error. One that is
    ``1 + phi`` times as long leaves none of it in the first case, and never goes too far.
    """

    def __init__(self, problem: TransportProblem) -> None:
        others = range(1, len(problem.shape))
        super().__init__(problem, inner_iter=_ROW_SWEEPS, fixed_modes=others)
        tau = problem.settings.tau
        # Transports that are not solved follow the model in another way.
        self.phi = tau / (tau + 1.0) if problem.settings.is_exact else 0.0

    def step(self, state: WassersteinState) -> WassersteinState:
        """Return the state after the transports and some sweeps over the rows."""
        old, new = self.problem.asarray(state.factors[0]), super().step(state)
        rows = self.problem.asarray(new.factors[0])
        ratio = np.divide(rows, old, out=np.ones_like(rows), where=old > 0)
        return WassersteinState([rows * ratio**self.phi, *new.factors[1:]], new.potentials)


def random_start(problem: TransportProblem, n_components: int, seed: int) -> list[Array]:
    """Return positive random factors."""
    generator = np.random.default_rng(seed)
    # Not near zero: every component can still become anything.
    return [generator.uniform(0.1, 1.0, (size, n_components)) for size in problem.shape]


def of_the_mass_of(problem: TransportProblem, factors: list[Array]) -> list[Array]:
    """Scale factors so that the mass of the model is that of the data."""
    share = (problem.total / float(component_masses(factors).sum())) ** (1.0 / len(factors))
    return [factor * share for factor in factors]


def solve_rows(problem: TransportProblem, others: Sequence[Array]) -> NDArray[np.float64]:
    """Return the rows of samples for given other factors (eq. 20), which is a convex problem.

    They are solved for in batches whose marginals fit into memory, where these would otherwise be
    computed again in every sweep.
    """
    batches = problem.batches()
    if len(batches) == 1:
        return _solve_batch(problem, others)
    rows = np.empty((problem.shape[0], others[0].shape[1]))
    potentials = problem.cold_potentials()
    for samples in batches:
        part, _ = problem.subset(samples, potentials)
        rows[samples] = _solve_batch(part, others)
    return rows


def _solve_batch(problem: TransportProblem, others: Sequence[Array]) -> NDArray[np.float64]:
    """Return the rows of samples.

    Every row starts from its own mass, and is left once it has settled. It does not depend on the
    other samples then, unless their cost couples them: those are left together.
    """
    own = [problem.asarray(factor) for factor in others]
    # The mass of each component for a row of ones: the unit in which rows are compared.
    unit = component_masses(own)
    mass = np.bincount(problem.tensor.coords[0], problem.tensor.values, problem.shape[0])
    if problem.couples_samples:  # a sample of nothing is given some of what others have
        mass = np.where(mass > 0, mass, mass.mean())
    rows = mass[:, None] * inverse_masses(len(unit) * unit)
    part, potentials = problem, problem.cold_potentials()
    left = np.arange(len(rows))
    for _ in range(_MAX_ROUNDS):
        solver = SampleRowsSolver(part)
        state = WassersteinState([rows[left], *own], potentials)
        result = run(solver, begin(solver, state), FitOptions(max_iter=_ROUND_LENGTH, tol=0.0))
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        found = result.last.factors[0]
        change = (np.abs(found - rows[left]) * unit).max(axis=1)
        rows[left] = found
        moves = change > _ROW_TOL * (found * unit).max(axis=1)
        if not moves.any():
            break
        potentials = result.last.potentials
        if not (part.couples_samples or moves.all()):
            part, potentials = part.subset(moves, potentials)
            left = left[moves]
    return rows
