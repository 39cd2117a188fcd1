r"""Damped Gauss-Newton steps for quantile matrix factorization, of features and samples in turn.

Problem
    That of ``problem``. A plan of transport is that of its own sums: whatever the numbers
    :math:`h_j = \log b_j + g_j / \epsilon`, the *levels*, are, :math:`p_j \propto \exp(h_j - (s -
    y_j)^2 / \epsilon)` belongs to the weights ``b`` that the plan sums to. So the levels are free
    parameters in place of the logits of the weights, the minimum is the same, and no transport is
    solved in an iteration: weights and potentials are read from the plan at the end.
Update
    Of the loadings, gaps and levels of each feature with the scores held, where features do not see
    each other; then of the scores of all samples, which see each other only through the means and
    deviations of products. The Hessian is that of Gauss and Newton, ``J' diag(curvature) J``; the
    size of the gradient is added for parameters that are exponents, which keeps their steps below
    about one, and Levenberg's damping, by how good the last step of the feature was. Transforms are
    slowed down: where they settle before the factors do, the fit ends higher.
Stopping
    The driver's. The objective never rises: what is not lower is not taken.
Cost per iteration
    For each feature the products of its derivatives, ``O(n (k + 2m)^2)``, a system of ``k + 2m``
    unknowns, and two evaluations of its transform; for the samples ``O(d n k^2)`` and an evaluation
    or two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.quantile.kernels import Maps, Steps, differentiate_block, step_block
from polyad.quantile.maps import FeatureMaps
from polyad.quantile.parameters import Parameters, factor, pinned_quantiles, to_logits
from polyad.quantile.scores import curvature
from polyad.quantile.solver import QuantileSolver
from polyad.soft.plans import STEEPNESS, Squashed, squash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.quantile.problem import QuantileObjective

    Table = NDArray[np.float64]

# Numbers of derivatives that a block of features has.
_BLOCK = 1 << 18
_MOST_ROWS = 64
_COLUMNS = 256
# By how much of their own curvature transforms are slowed down. Chosen on 100 samples and 470 genes
# of the leukaemias (ALL), on both scales: with less a fit ends higher, with more it takes longer.
_SLOWNESS = 3.0
# Damping: at first, the least, what is added as a part of the largest curvature, and by how much it
# changes after steps that did what they promised, hardly did, or did not lower anything.
_FIRST_DAMPING, _LEAST_DAMPING, _OF_LARGEST = 1e-2, 1e-6, 1e-3
_GOOD, _POOR = 0.7, 0.3
_AFTER_GOOD, _AFTER_POOR, _AFTER_FAILURE = 0.3, 1.5, 4.0
# Model values that differ by less than this part of them from their entries are these.
_NEAR = 1e-6
# How slowly steps begin farther ahead, counted in steps.
_INERTIA = 3.0
# Attempts at the scores of all samples in an iteration.
_ATTEMPTS = 8


@dataclass(frozen=True)
class AlternatingState:
    """Parameters, with levels in place of the logits of weights, and the damping of their steps."""

    parameters: list[Table]
    damping: Table
    """(d,): of the features."""
    sample_damping: float
    value: float
    divergence: float
    earlier: list[Table]
    """The parameters before the last step."""
    streak: int
    """Steps since the last that began where the one before ended."""
    scores: Table | None = None
    """Of the samples (n, k), once the fit is finished: the transforms stay those of the fit."""

    @property
    def potentials(self) -> list[Table]:
        """Those that go with the levels as logits of weights."""
        return [np.zeros_like(self.parameters[3])]


class _Local(NamedTuple):
    """Some features at some parameters, with what the step of the samples needs."""

    #: (rows,): the objective of each feature, and its divergence alone.
    values: Table
    divergences: Table
    #: (rows, n): the derivative with respect to products, and the curvature with transforms held.
    by_product: Table
    curves: Table


class AlternatingSolver(QuantileSolver[AlternatingState]):
    """Gauss-Newton steps of features and samples in turn."""

    promises_descent = True
    patience: ClassVar[int] = 5

    def init(self, parameters: Sequence[Table], seed: int) -> AlternatingState:
        """Return the state of some parameters, whose transports are solved once."""
        found = self.objective_function.evaluate(parameters, [], with_gradient=False)
        given = Parameters(*(np.array(part) for part in parameters))
        epsilon = self._problem.settings.epsilon
        levels = given.logits + found.potentials[0] / epsilon
        levels -= levels.mean(axis=1, keepdims=True)
        own = list(given._replace(logits=levels))
        return AlternatingState(
            parameters=own,
            damping=np.full(levels.shape[0], _FIRST_DAMPING),
            sample_damping=_FIRST_DAMPING,
            value=found.value,
            divergence=found.divergence,
            earlier=own,
            streak=0,
        )

    def step(self, state: AlternatingState) -> AlternatingState:
        """Return the state after a step of all features, and one of all samples.

        It begins ahead of the state, along the last step (Nesterov), unless that ends higher.
        """
        if state.streak > 0:
            share = state.streak / (state.streak + _INERTIA)
            ahead = [
                now + share * (now - before)
                for now, before in zip(state.parameters, state.earlier, strict=True)
            ]
            moved = self._moved(replace(state, parameters=ahead))
            if moved.value < state.value:
                return replace(moved, earlier=state.parameters, streak=state.streak + 1)
        return replace(self._moved(state), earlier=state.parameters, streak=1)

    def _moved(self, state: AlternatingState) -> AlternatingState:
        with np.errstate(all="ignore"):  # what is not finite is never lower
            sweep = _Sweep(self._problem, self.factor, state)
            run_blocks(sweep.move_features, sweep.blocks)
            return sweep.with_samples_moved()

    def diagnostics(self, state: AlternatingState) -> Mapping[str, float]:
        """Return the mean divergence alone, and the damping of a feature in the middle."""
        return {**super().diagnostics(state), "damping": float(np.median(state.damping))}

    def transforms(self, state: AlternatingState) -> tuple[list[Table], list[Table]]:
        """Return parameters with logits of weights, and the potentials of their transports."""
        given, settings = Parameters(*state.parameters), self._problem.settings
        shares, m = self._problem.table.shares, given.logits.shape[1]
        loadings, scores = (
            factor(part, nonnegative=settings.nonnegative)
            for part in (given.loadings, given.scores)
        )
        weights = np.empty_like(given.logits)
        targets = np.linspace(0.0, 1.0, m)[:, None]

        def sum_plans(first: int, last: int) -> None:
            own = shares if len(shares) == 1 else shares[first:last]
            s = squash(loadings[first:last] @ scores, own).values[:, None, :]
            exponents = given.logits[first:last, :, None] - (s - targets) ** 2 / settings.epsilon
            plans = np.exp(exponents - exponents.max(axis=1, keepdims=True))
            plans /= plans.sum(axis=1, keepdims=True)
            weights[first:last] = (plans * own[:, None, :]).sum(axis=2)

        run_blocks(sum_plans, _blocks_of(len(weights), m * scores.shape[1]))
        logits = to_logits(weights)
        potentials = settings.epsilon * (given.logits - logits)
        potentials -= (weights * potentials).sum(axis=1, keepdims=True)
        return list(given._replace(logits=logits)), [potentials]

    @property
    def _problem(self) -> QuantileObjective:
        return cast("QuantileObjective", self.objective_function)


class _Sweep:
    """The arrays of one iteration; objectives are sums, times a factor that takes the unit away."""

    def __init__(
        self, problem: QuantileObjective, unit_factor: float, state: AlternatingState
    ) -> None:
        self.table, self.settings, self.state = problem.table, problem.settings, state
        self.given = Parameters(*state.parameters)
        self.new = Parameters(*(part.copy() for part in state.parameters))
        d, n = self.table.shape
        self.k, self.m = self.given.loadings.shape[1], self.given.logits.shape[1]
        self.unit_factor = unit_factor
        ridge = self.settings.ridge * self.table.unit * self.table.n_observed * unit_factor
        self.feature_ridge, self.sample_ridge = ridge / (d * self.k), ridge / (n * self.k)
        self.scores = factor(self.given.scores, nonnegative=self.settings.nonnegative)
        self.damping = state.damping.copy()
        self.local = _Local(np.empty(d), np.empty(d), np.empty((d, n)), np.empty((d, n)))
        self.blocks = _blocks_of(d, n * (self.k + 2 * self.m))

    # Features.

    def move_features(self, first: int, last: int) -> None:
        """Move the parameters of a block of features, those that are the better for it."""
        own = slice(first, last)
        given = self.given._replace(
            **{name: getattr(self.given, name)[own] for name in ("loadings", "gaps", "logits")}
        )
        k, m, damping = self.k, self.m, self.damping[own]
        here, step, promised = self._differentiate(own, given)
        moved = given._replace(
            loadings=given.loadings + step[:, :k],
            gaps=given.gaps + step[:, k : k + m - 1],
            logits=given.logits + step[:, k + m - 1 :],
        )
        there = self._locate(own, moved)
        better = there.values <= here.values
        self.damping[own] = _next_damping(damping, here.values - there.values, promised)
        for out, old, new in zip(self.local, here, there, strict=True):
            chosen = better.reshape(-1, *([1] * (old.ndim - 1)))
            out[own] = np.where(chosen, new, old)
        for name in ("loadings", "gaps", "logits"):
            old, new = getattr(given, name), getattr(moved, name)
            getattr(self.new, name)[own] = np.where(better[:, None], new, old)

    def _differentiate(self, own: slice, given: Parameters) -> tuple[_Local, Table, Table]:
        """Return some features where they are, steps of their parameters, and what they promise."""
        table, k = self.table, self.k
        shares, squashed, maps, parts = self._transforms(own, given)
        rows, n = squashed.values.shape
        out = np.empty((rows, n)), np.empty((rows, n)), np.empty((rows, k + 2 * self.m - 1, n))
        differentiate_block(_numbers(maps), squashed.values, parts, out, k)
        model, slope, jacobian = out
        slope *= STEEPNESS * squashed.values * (1.0 - squashed.values) * squashed.rate
        # Of products, which are standardised: without what a mean and a deviation take away.
        standard, scores = squashed.standard, self.scores
        means = shares @ scores.T
        moments = (shares * standard) @ scores.T
        by_loadings = jacobian[:, :k]
        np.multiply(standard[:, None, :], moments[:, :, None], out=by_loadings)
        np.subtract(scores[None] - means[:, :, None], by_loadings, out=by_loadings)
        by_loadings *= slope[:, None, :]
        loadings = factor(given.loadings, nonnegative=self.settings.nonnegative)
        if self.settings.nonnegative:
            by_loadings *= loadings[:, :, None]
        by_model, curved = self._of_divergence(own, model)
        size = jacobian.shape[1]
        by_penalty = np.zeros((rows, size))
        by_penalty[:, :k] = self.feature_ridge * given.loadings
        of_transforms = (np.arange(size) >= k).astype(np.float64)
        steps = Steps(
            *(by_model, curved, by_penalty, self.feature_ridge * (1.0 - of_transforms)),
            *(self.damping[own], _SLOWNESS * of_transforms),
            np.ones(size) if self.settings.nonnegative else of_transforms,
        )
        step, promised = np.empty((rows, size)), np.empty(rows)
        step_block(jacobian, steps, _OF_LARGEST, step, promised)
        totals = table.divergences(model, own).sum(axis=1) * self.unit_factor
        local = self._local(given, totals, (shares, standard), (by_model, curved, slope))
        return local, step, promised

    def _locate(self, own: slice, given: Parameters) -> _Local:
        """Return some features at other parameters."""
        shares, squashed, maps, _ = self._transforms(own, given)
        loadings = factor(given.loadings, nonnegative=self.settings.nonnegative)
        model, slope, _ = maps.derivatives(loadings @ self.scores)
        by_model, curved = self._of_divergence(own, model)
        totals = self.table.divergences(model, own).sum(axis=1) * self.unit_factor
        return self._local(given, totals, (shares, squashed.standard), (by_model, curved, slope))

    def _transforms(
        self, own: slice, given: Parameters
    ) -> tuple[Table, Squashed, FeatureMaps, Table]:
        """Return shares of samples, squashed products, transforms and parts of some features."""
        shares = self.table.shares if len(self.table.shares) == 1 else self.table.shares[own]
        products = factor(given.loadings, nonnegative=self.settings.nonnegative) @ self.scores
        squashed = squash(products, shares)
        quantiles, parts = pinned_quantiles(given.gaps, self.table.low[own], self.table.high[own])
        maps = FeatureMaps(
            (shares * products).sum(axis=1),
            squashed.rate[:, 0],
            self.settings.epsilon * given.logits,
            np.ones_like(given.logits),
            quantiles,
            self.settings.epsilon,
        )
        return shares, squashed, maps, parts

    def _of_divergence(self, own: slice, model: Table) -> tuple[Table, Table]:
        """Return its derivative at model values, and the weights of squares that stand for it.

        The square of weight ``derivative / (y - x)`` has that derivative, and its minimum at the
        entry. The curvature of a logarithm far from the entry would hardly let a model value leave
        zero.
        """
        table = self.table
        by_model = table.divergence_slope(model, own) * self.unit_factor
        guard = table.guard[own]
        ends = table.low[own] + guard, table.high[own] + guard
        x, y = table.shifted[own], model + guard
        apart = np.abs(y - x) > _NEAR * np.maximum(np.abs(x), np.abs(y))
        curved = np.where(
            apart,
            by_model / np.where(apart, y - x, 1.0),
            curvature(table.divergence, x, y, *ends) * self.unit_factor,
        )
        curved = np.maximum(curved, 0.0)
        if table.observed is not None:
            curved = np.where(table.observed[own], curved, 0.0)
        return by_model, curved

    def _local(
        self,
        given: Parameters,
        totals: Table,
        standardised: tuple[Table, Table],
        derivatives: tuple[Table, Table, Table],
    ) -> _Local:
        (shares, standard), (by_model, curved, slope) = standardised, derivatives
        by_held = by_model * slope
        total = by_held.sum(axis=1, keepdims=True)
        moment = (by_held * standard).sum(axis=1, keepdims=True)
        values = totals + 0.5 * self.feature_ridge * (given.loadings**2).sum(axis=1)
        by_product = by_held - shares * (total + standard * moment)
        return _Local(values, totals, by_product, curved * slope**2)

    # Samples.

    def with_samples_moved(self) -> AlternatingState:
        """Return the state after a step of the scores, damped until the objective is lower."""
        state, nonnegative = self.state, self.settings.nonnegative
        free = self.given.scores.T
        gradient, hessian = self._sample_derivatives()
        if nonnegative:
            index = np.arange(self.k)
            gradient *= self.scores.T
            hessian *= self.scores.T[:, :, None] * self.scores.T[:, None, :]
            hessian[:, index, index] += np.abs(gradient)
        gradient += self.sample_ridge * free
        index = np.arange(self.k)
        hessian[:, index, index] += self.sample_ridge
        size = hessian[:, index, index]
        size = size + _OF_LARGEST * size.max(axis=1, keepdims=True)
        size = np.where(size > 0.0, size, 1.0)
        before = float(self.local.values.sum()) + 0.5 * self.sample_ridge * float((free**2).sum())
        damping, divergences = state.sample_damping, self.local.divergences
        after, new = before, free
        for _ in range(_ATTEMPTS):
            damped = hessian.copy()
            damped[:, index, index] += damping * size
            step = -np.linalg.solve(damped, gradient[:, :, None])[:, :, 0]
            tried, found = free + step, np.empty_like(divergences)
            self._measure(tried, found)
            ridge = 0.5 * self.sample_ridge * float((tried**2).sum())
            value = float((self.local.values + (found - self.local.divergences)).sum()) + ridge
            promised = -0.5 * float((gradient * step).sum())
            gain = before - value
            damping = float(_next_damping(np.array(damping), np.array(gain), np.array(promised)))
            if value <= before:
                after, new, divergences = value, tried, found
                break
        scale = self.table.n_observed * self.unit_factor
        levels = self.new.logits - self.new.logits.mean(axis=1, keepdims=True)
        return replace(
            state,
            parameters=list(self.new._replace(scores=np.ascontiguousarray(new.T), logits=levels)),
            damping=self.damping,
            sample_damping=damping,
            value=after / scale,
            divergence=float(divergences.sum()) / scale,
        )

    def _sample_derivatives(self) -> tuple[Table, Table]:
        """Return gradients (n, k) and Hessians (n, k, k) with respect to scores."""
        loadings = factor(self.new.loadings, nonnegative=self.settings.nonnegative)
        upper = np.triu_indices(self.k)
        pairs = loadings[:, upper[0]] * loadings[:, upper[1]]
        n = self.scores.shape[1]
        gradient, hessian = np.empty((n, self.k)), np.empty((n, self.k, self.k))

        def multiply(first: int, last: int) -> None:
            own = slice(first, last)
            gradient[own] = self.local.by_product[:, own].T @ loadings
            sums = self.local.curves[:, own].T @ pairs
            hessian[own, upper[0], upper[1]] = sums
            hessian[own, upper[1], upper[0]] = sums

        run_blocks(multiply, cut(n, _COLUMNS))
        return gradient, hessian

    def _measure(self, free: Table, out: Table) -> None:
        """Fill the divergences of all features for other scores."""
        nonnegative = self.settings.nonnegative
        self.scores = factor(np.ascontiguousarray(free.T), nonnegative=nonnegative)

        def measure(first: int, last: int) -> None:
            own = slice(first, last)
            given = self.new._replace(
                **{name: getattr(self.new, name)[own] for name in ("loadings", "gaps", "logits")}
            )
            _, _, maps, _ = self._transforms(own, given)
            model = maps.values(factor(given.loadings, nonnegative=nonnegative) @ self.scores)
            out[own] = self.table.divergences(model, own).sum(axis=1) * self.unit_factor

        run_blocks(measure, self.blocks)


def _next_damping(damping: Table, gain: Table, promised: Table) -> Table:
    """Return the damping after steps that gained something and had promised something."""
    share = gain / np.where(promised > 0.0, promised, 1.0)
    grown = np.where(share < _POOR, _AFTER_POOR, np.where(share > _GOOD, _AFTER_GOOD, 1.0))
    # A comparison with NaN is False.
    result: Table = damping * np.where(gain >= 0.0, grown, _AFTER_FAILURE)
    return np.clip(result, _LEAST_DAMPING, 1.0 / _LEAST_DAMPING)


def _numbers(maps: FeatureMaps) -> Maps:
    return maps._numbers


def _blocks_of(d: int, size: int) -> list[tuple[int, int]]:
    """Cut the features into blocks, by the size of the problem alone."""
    return cut(d, int(np.clip(_BLOCK // size, 1, _MOST_ROWS)))
