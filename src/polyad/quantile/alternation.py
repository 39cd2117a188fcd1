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
from polyad.quantile.kernels import Along, Curves, Steps, step_block, transform_block
from polyad.quantile.parameters import Parameters, factor, pinned_quantiles, to_logits
from polyad.quantile.scores import curvature
from polyad.quantile.solver import QuantileSolver
from polyad.soft.plans import squash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from polyad.quantile.problem import QuantileObjective

    Table = NDArray[np.float64]
    Tables = NDArray[np.float64]

# Numbers of derivatives that a block of features has.
_BLOCK = 1 << 19
_MOST_ROWS = 256
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
# Steps along the last one that are shorter than this part of it are none.
_ROUNDING = 1e-9
# How slowly steps begin farther ahead, counted in steps.
_INERTIA = 1.5
# What has a row for each feature, and derivatives that nobody asks for.
_OF_FEATURES = ("loadings", "gaps", "logits")
_NO_TABLES = np.empty((0, 0, 0))
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
    streaks: Table
    """(d,): of the features, steps since the last that did not go on the way it had come."""
    sample_streaks: Table
    """(n,): of the samples."""
    scores: Table | None = None
    """Of the samples (n, k), once the fit is finished: the transforms stay those of the fit."""

    @property
    def potentials(self) -> list[Table]:
        """Those that go with the levels as logits of weights."""
        return [np.zeros_like(self.parameters[3])]


class _Place(NamedTuple):
    """Some features at some parameters: one row for each."""

    #: (rows,): the objective of each feature, and its divergence alone.
    values: Table
    divergences: Table
    #: (rows, n): the derivative with respect to model values, and the weights of squares for it.
    by_model: Table
    curved: Table
    #: (rows, n): the slopes of the transforms with means and deviations held, and what goes in.
    slope: Table
    standard: Table


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
            streaks=np.zeros(levels.shape[0]),
            sample_streaks=np.zeros(given.scores.shape[1]),
        )

    def step(self, state: AlternatingState) -> AlternatingState:
        """Return the state after a step of all features, and one of all samples.

        Each feature and each sample begins ahead, along its last step (Nesterov), the farther the
        longer its steps have gone on the way they came. If all that ends higher, they begin anew.
        """
        if state.streaks.any() or state.sample_streaks.any():
            moved = self._moved_ahead(state)
            if moved.value < state.value:
                return moved
        return replace(
            self._moved(state),
            earlier=state.parameters,
            streaks=np.ones_like(state.streaks),
            sample_streaks=np.ones_like(state.sample_streaks),
        )

    def _moved_ahead(self, state: AlternatingState) -> AlternatingState:
        streaks = [
            state.sample_streaks if name == "scores" else state.streaks[:, None]
            for name in Parameters._fields
        ]
        ways = [now - before for now, before in zip(state.parameters, state.earlier, strict=True)]
        ahead = [
            now + streak / (streak + _INERTIA) * way
            for now, streak, way in zip(state.parameters, streaks, ways, strict=True)
        ]
        moved = self._moved(replace(state, parameters=ahead))
        # What turns back has gone too far (the gradient's restart of O'Donoghue and Candes); what
        # stayed where it began, but for rounding, is at a wall.
        onward = Parameters(
            *(
                (new - old - _ROUNDING * way) * way
                for new, old, way in zip(moved.parameters, ahead, ways, strict=True)
            )
        )
        of_features = sum(getattr(onward, name).sum(axis=1) for name in _OF_FEATURES)
        of_samples = onward.scores.sum(axis=0)
        return replace(
            moved,
            earlier=state.parameters,
            streaks=np.where(of_features > 0.0, state.streaks + 1.0, 0.0),
            sample_streaks=np.where(of_samples > 0.0, state.sample_streaks + 1.0, 0.0),
        )

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
        # Memory that may not be written to would have kernels compiled once more.
        self.given = Parameters(
            *(np.require(part, np.float64, ["C", "W"]) for part in state.parameters)
        )
        self.new = Parameters(*(part.copy() for part in state.parameters))
        d, n = self.table.shape
        self.k, self.m = self.given.loadings.shape[1], self.given.logits.shape[1]
        self.unit_factor = unit_factor
        ridge = self.settings.ridge * self.table.unit * self.table.n_observed * unit_factor
        self.feature_ridge, self.sample_ridge = ridge / (d * self.k), ridge / (n * self.k)
        self.scores = factor(self.given.scores, nonnegative=self.settings.nonnegative)
        self.damping = state.damping.copy()
        self.targets = np.linspace(0.0, 1.0, self.m)
        self.blocks = _blocks_of(d, n * (self.k + 2 * self.m))
        # Of each feature its objective, and its divergence alone, after its step.
        self.values, self.divergences = np.empty(d), np.empty(d)
        # The derivative with respect to products, and the curvature with transforms held.
        self.by_product, self.curves = np.empty((d, n)), np.empty((d, n))

    # Features.

    def move_features(self, first: int, last: int) -> None:
        """Move the parameters of a block of features, those that are the better for it."""
        own = slice(first, last)
        given, k, m = self._rows_of(self.given, own), self.k, self.m
        jacobian = np.empty((last - first, k + 2 * m - 1, self.scores.shape[1]))
        here = self._locate(own, given, jacobian)
        step, promised = self._steps(own, given, here, jacobian)
        moved = given._replace(
            loadings=given.loadings + step[:, :k],
            gaps=given.gaps + step[:, k : k + m - 1],
            logits=given.logits + step[:, k + m - 1 :],
        )
        there = self._locate(own, moved, _NO_TABLES)
        better = there.values <= here.values
        self.damping[own] = _next_damping(self.damping[own], here.values - there.values, promised)
        if not better.all():
            there = _Place(*(_chosen(better, *pair) for pair in zip(there, here, strict=True)))
        for name in _OF_FEATURES:
            old, new = getattr(given, name), getattr(moved, name)
            getattr(self.new, name)[own] = _chosen(better, new, old)
        self.values[own], self.divergences[own] = there.values, there.divergences
        held = there.by_model * there.slope
        total = held.sum(axis=1, keepdims=True)
        moment = (held * there.standard).sum(axis=1, keepdims=True)
        self.by_product[own] = held - self._shares(own) * (total + there.standard * moment)
        self.curves[own] = there.curved * there.slope**2

    def _rows_of(self, given: Parameters, own: slice) -> Parameters:
        """Return the parameters of some features, and of all samples."""
        return given._replace(**{name: getattr(given, name)[own] for name in _OF_FEATURES})

    def _shares(self, own: slice) -> Table:
        shares = self.table.shares
        return shares if len(shares) == 1 else shares[own]

    def _locate(self, own: slice, given: Parameters, tables: Tables) -> _Place:
        """Return some features at some parameters; fill the derivatives of their transforms."""
        model, slope, standard = self._transform(own, given, tables)
        by_model, curved = self._of_divergence(own, model)
        totals = self.table.divergences(model, own).sum(axis=1) * self.unit_factor
        values = totals + 0.5 * self.feature_ridge * (given.loadings**2).sum(axis=1)
        return _Place(values, totals, by_model, curved, slope, standard)

    def _transform(
        self, own: slice, given: Parameters, tables: Tables
    ) -> tuple[Table, Table, Table]:
        """Return transforms of products of some features, slopes, and products standardised."""
        table, nonnegative = self.table, self.settings.nonnegative
        loadings = factor(given.loadings, nonnegative=nonnegative)
        products = loadings @ self.scores
        quantiles, parts = pinned_quantiles(given.gaps, table.low[own], table.high[own])
        curves = Curves(
            *(given.logits, quantiles, self.targets, self.settings.epsilon, self._shares(own))
        )
        along = Along(self.scores, loadings if nonnegative else np.ones_like(loadings), parts)
        out = np.empty_like(products), np.empty_like(products), np.empty_like(products)
        transform_block(curves, products, along, out, tables)
        return out

    def _steps(
        self, own: slice, given: Parameters, here: _Place, jacobian: Tables
    ) -> tuple[Table, Table]:
        """Return steps of the parameters of some features, and what they promise."""
        rows, size = jacobian.shape[:2]
        by_penalty = np.zeros((rows, size))
        by_penalty[:, : self.k] = self.feature_ridge * given.loadings
        of_transforms = (np.arange(size) >= self.k).astype(np.float64)
        steps = Steps(
            *(here.by_model, here.curved, by_penalty, self.feature_ridge * (1.0 - of_transforms)),
            *(self.damping[own], _SLOWNESS * of_transforms),
            np.ones(size) if self.settings.nonnegative else of_transforms,
        )
        step, promised = np.empty((rows, size)), np.empty(rows)
        step_block(jacobian, steps, _OF_LARGEST, step, promised)
        return step, promised

    def _of_divergence(self, own: slice, model: Table) -> tuple[Table, Table]:
        """Return its derivative at model values, and the weights of squares that stand for it.

        The square of weight ``derivative / (y - x)`` has that derivative, and its minimum at the
        entry. The curvature of a logarithm far from the entry would hardly let a model value leave
        zero.
        """
        table = self.table
        by_model = table.divergence_slope(model, own) * self.unit_factor
        guard = table.guard[own]
        x, y = table.shifted[own], model + guard
        apart = np.abs(y - x) > _NEAR * np.maximum(np.abs(x), np.abs(y))
        curved = by_model / np.where(apart, y - x, 1.0)
        if not apart.all():
            near = np.nonzero(~apart)
            ends = ((end[own] + guard)[near[0], 0] for end in (table.low, table.high))
            curved[near] = curvature(table.divergence, x[near], y[near], *ends) * self.unit_factor
        curved = np.maximum(curved, 0.0)
        if table.observed is not None:
            curved = np.where(table.observed[own], curved, 0.0)
        return by_model, curved

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
        before = float(self.values.sum()) + 0.5 * self.sample_ridge * float((free**2).sum())
        damping, divergences = state.sample_damping, self.divergences
        after, new = before, free
        for _ in range(_ATTEMPTS):
            damped = hessian.copy()
            damped[:, index, index] += damping * size
            step = -np.linalg.solve(damped, gradient[:, :, None])[:, :, 0]
            tried, found = free + step, np.empty_like(divergences)
            self._measure(tried, found)
            ridge = 0.5 * self.sample_ridge * float((tried**2).sum())
            value = float((self.values + (found - self.divergences)).sum()) + ridge
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
            gradient[own] = self.by_product[:, own].T @ loadings
            sums = self.curves[:, own].T @ pairs
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
            model, _, _ = self._transform(own, self._rows_of(self.new, own), _NO_TABLES)
            out[own] = self.table.divergences(model, own).sum(axis=1) * self.unit_factor

        run_blocks(measure, self.blocks)


def _next_damping(damping: Table, gain: Table, promised: Table) -> Table:
    """Return the damping after steps that gained something and had promised something."""
    share = gain / np.where(promised > 0.0, promised, 1.0)
    grown = np.where(share < _POOR, _AFTER_POOR, np.where(share > _GOOD, _AFTER_GOOD, 1.0))
    # A comparison with NaN is False.
    result: Table = damping * np.where(gain >= 0.0, grown, _AFTER_FAILURE)
    return np.clip(result, _LEAST_DAMPING, 1.0 / _LEAST_DAMPING)


def _chosen(rows: NDArray[np.bool_], new: Table, old: Table) -> Table:
    """Return the new rows where they are wanted, and the old ones elsewhere."""
    return np.where(rows.reshape(-1, *([1] * (old.ndim - 1))), new, old)


def _blocks_of(d: int, size: int) -> list[tuple[int, int]]:
    """Cut the features into blocks, by the size of the problem alone."""
    return cut(d, int(np.clip(_BLOCK // size, 1, _MOST_ROWS)))
