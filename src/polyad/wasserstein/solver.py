r"""SWIFT: a nonnegative CP decomposition under a Wasserstein loss.

Problem
    Minimise eq. 7 (see ``problem``) over the transports of every fibre of every mode and over
    nonnegative factors.
Update
    The transports of all modes to the model as it is; then a few sweeps of multiplicative updates
    over the factors (see ``marginals``), mode 0, the samples, last. Both lower the objective or
    leave it, if the transports are exact. What the sweeps changed is then done again, and so is,
    to a power that grows from step to step, what changed since the sweeps of the step before
    (Nesterov's momentum, in the logarithms). Where that does not lower the objective as well as the
    steps before, the sweeps alone are taken if they are better, and the momentum begins anew.
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
4. Several factor sweeps follow each transport. In them the marginals follow the model by the power
   that is sure (see ``marginals``), where the paper holds them; and steps are extrapolated. The
   same objective is reached with a quarter of the transports.
5. Along a mode nothing need move ("separate"): then samples do not depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
# A step is done again to a power of at most one, which is halved where that fails and then grows.
# What changed since the step before is done again to the power k / (k + 5) in the k-th step of a
# run; no entry is changed by more than this factor. A step that lowers the objective by less than
# this part of what the one before did is compared with the sweeps alone: it may be at the other
# side of a valley.
_GROWTH, _LAG = 1.4, 5.0
_MAX_CHANGE = 10.0
_POOR_PART = 0.1
# Rows of samples: a round is so many transports, each with so many sweeps; a row is left after a
# round that changed it by less than this part of its largest entry.
_ROW_SWEEPS = 10
_ROUND_LENGTH = 2
_MAX_ROUNDS = 250
_ROW_TOL = 5e-4


@dataclass(frozen=True)
class WassersteinState:
    """The factors, and the potentials from which the transports to their model start."""

    factors: list[Array]
    potentials: list[Array]
    #: Where the sweeps of the last step ended.
    swept: list[Array]
    #: The power to which the next step is done again, the steps since the momentum began, and by
    #: how much the last step lowered the objective.
    power: float = 1.0
    age: int = 0
    gain: float = 0.0


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
        self.extrapolates = problem.settings.is_exact
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
        own = balance([self.problem.asarray(factor) for factor in factors], self.free_modes)
        return WassersteinState(own, self.problem.cold_potentials(), own)

    def step(self, state: WassersteinState) -> WassersteinState:
        """Return the state after the transports, some sweeps over the factors and more of that."""
        found = self._evaluation(state)
        swept = list(state.factors)
        for _ in range(self.inner_iter):
            for mode in self.free_modes:
                swept[mode] = updated_factor(found.marginals, swept, mode)
        objective, potentials = found.objective, found.potentials
        # The next evaluation has marginals of its own: these are not held beside them.
        self._latest = None
        del found
        swept = balance(swept, self.free_modes)
        plain = WassersteinState(swept, potentials, swept)
        if not self.extrapolates:
            return plain
        age = state.age + 1
        inertia = age / (age + _LAG)
        farther = [
            _farther((new, old, before), (state.power, inertia))
            for new, old, before in zip(swept, state.factors, state.swept, strict=True)
        ]
        more = replace(plain, factors=balance(farther, self.free_modes), age=age)
        power = min(_GROWTH * state.power, 1.0)
        gain = objective - self._evaluation(more).objective
        if not gain > _POOR_PART * state.gain:
            self._latest = None
            less = objective - self._evaluation(plain).objective
            if not gain > less:
                return self._renamed(replace(plain, power=state.power / 2, gain=less))
            power = state.power
        return self._renamed(replace(more, power=power, gain=gain))

    def _renamed(self, state: WassersteinState) -> WassersteinState:
        """Return a state; what was found last is of it if it has the same factors."""
        if self._latest is not None and self._latest[0].factors is state.factors:
            self._latest = state, self._latest[1]
        return state

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
        return replace(state, factors=[rows, *state.factors[1:]])

    def factors(self, state: WassersteinState) -> list[Array]:
        """Return the factors in the type of the data."""
        return [factor.astype(self.problem.dtype) for factor in state.factors]

    def adopt(self, state: WassersteinState) -> WassersteinState:
        """Bring the arrays of a checkpoint to the layout that kernels need."""
        factors = [self.problem.asarray(factor) for factor in state.factors]
        potentials = [self.problem.asarray(potential) for potential in state.potentials]
        swept = [self.problem.asarray(factor) for factor in state.swept]
        return replace(state, factors=factors, potentials=potentials, swept=swept)

    def _evaluation(self, state: WassersteinState) -> Evaluation:
        if self._latest is None or self._latest[0] is not state:
            found = self.problem.evaluate(state.factors, state.potentials)
            self._latest = state, found
        return self._latest[1]


def _farther(ends: tuple[Array, Array, Array], powers: tuple[float, float]) -> NDArray[np.float64]:
    """Return ``new (new / old)^p (new / before)^q`` within bounds, where there was something."""
    new, *others = ends
    least, change = 1.0 / _MAX_CHANGE, np.ones_like(new)
    for old, power in zip(others, powers, strict=True):
        ratio = np.divide(new, old, out=np.ones_like(new), where=old > 0)
        change = np.clip(change * np.clip(ratio**power, least, _MAX_CHANGE), least, _MAX_CHANGE)
    farther: NDArray[np.float64] = new * change
    return farther


class SampleRowsSolver(WassersteinSolver):
    """The rows of samples for given other factors.

    No step is extrapolated: whether that is for the better is decided for all rows together, and a
    row would depend on the others.
    """

    def __init__(self, problem: TransportProblem) -> None:
        others = range(1, len(problem.shape))
        super().__init__(problem, inner_iter=_ROW_SWEEPS, fixed_modes=others)
        self.extrapolates = False


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
        factors = [rows[left], *own]
        state = WassersteinState(factors, potentials, factors)
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
