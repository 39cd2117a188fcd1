r"""Augmented CP (ATD): a decomposition of samples and of their augmented twins at once.

Problem
    Of samples :math:`T_n` about their mean, and twins :math:`\tilde T_n`, in the unit in which the
    mean of :math:`\|T_n\|^2` is one, minimise over a batch of N samples (eq. 11)
    :math:`\|T - [\![X, A, B, \dots]\!]\|^2 + \|\tilde T - [\![\tilde X, A, B, \dots]\!]\|^2
    + \alpha (\|X\|^2 + \|\tilde X\|^2 + \|A\|^2 + \|B\|^2 + \dots) + \beta N L_{ss}`, where
    :math:`N L_{ss} = \sum_n \langle u_n, x_n / \|x_n\| \rangle` with
    :math:`u_n = \frac{\gamma + 1}{N - 1} \sum_{s \ne n} \tilde x_s / \|\tilde x_s\| - \tilde x_n /
    \|\tilde x_n\|`: rows are drawn to their twins and pushed from the twins of others.
Rows
    Start from the ridge solution :math:`V (G + \alpha I)^{-1}` (eq. 2), V the MTTKRP and G the
    product of the Gram matrices. A round (eq. 15) goes to
    :math:`x - \tfrac12 \nabla(x) (G + \alpha I)^{-1}`, or half, a quarter, ... of the way there
    until the loss of the row falls. First X, then :math:`\tilde X` for the new X.
Factors
    Each in turn is the exact minimiser for the newest others, from one contraction of the batch
    with its rows; a mini-batch moves it a part of the way only (the learning rate).
Full batch
    Twins are drawn once and rows stay from sweep to sweep: a row takes the better of the ridge
    solution and the one before. Nothing can raise the objective, and the driver checks it.
Cost per batch
    ``4 N p R`` multiplications for samples of p entries, one Cholesky factorization, nothing of
    size N x N. Memory: the batch, its twin, and ``2 p R``.

How this differs from the paper and its program:

1. Data is about its mean and in its own unit, and the columns of the factors of a mini-batch have
   length one, so that alpha, beta and gamma depend neither on the unit of the data nor on N. The
   beta of the paper is ours times N and the mean of :math:`\|T_n\|^2`.
2. Steps are damped, and what is watched for the end is the objective itself.
3. A row of length zero has no direction, and no part in the self-supervised term; nor has a batch
   of a single sample.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from array_api_compat import array_namespace

from polyad.augmented.problem import like
from polyad.cp.rules import double, epsilon_of
from polyad.cp.solver import balance
from polyad.cp.stochastic.solver import averaging_rate
from polyad.fitting.driver import Solver
from polyad.tensor.kruskal import column_norms
from polyad.tensor.products import contract_columns, khatri_rao, project

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from polyad.augmented.problem import AugmentedData, Centre, View
    from polyad.core.arrays import Array
    from polyad.data.batches import Batch

# Rows of this part of the usual length have no direction.
_NO_LENGTH = 1e-12
# Steps are halved so often before a row stays as it is.
_HALVINGS = 30
# A matrix gets at least this part of its mean diagonal as a ridge, which rounding cannot undo.
_LEAST_RIDGE = 1e-13
# The least part of the squared data that a change of the objective must be to count.
_ROUNDING = 1e-12
# The number of the sweep whose twins tell the moments of a finished fit.
_LAST_SWEEP = 2**31


@dataclass(frozen=True)
class Settings:
    """What a fit with given data still depends on; weights are without unit."""

    alpha: float
    beta: float
    gamma: float
    rounds: int
    #: The learning rate, or None for the one that follows from the number of batches.
    rate: float | None = None
    shuffle: bool = True
    #: The batches of a sweep, if that is known and there will be more than one sweep.
    n_batches: int | None = None


@dataclass(frozen=True)
class Moments:
    """(R, R) second moments of rows, and of differences of rows and their twins.

    Of ridge solutions, for components of length one, in the unit of the data.
    """

    rows: Array
    changes: Array


@dataclass(frozen=True)
class Parts:
    """The parts of the objective of some samples, per sample, and mean cosines of rows."""

    residual: float = 0.0
    twin_residual: float = 0.0
    ridge: float = 0.0
    alignment: float = 0.0
    twin_cosine: float = 0.0
    other_cosine: float = 0.0

    @property
    def objective(self) -> float:
        """The objective per sample."""
        return self.residual + self.twin_residual + self.ridge + self.alignment


@dataclass(frozen=True)
class AugmentedState:
    """The factors of the modes other than the samples, and what the next sweep depends on."""

    #: Of the modes from 1 on.
    factors: list[Array]
    centre: Centre
    moments: Moments
    parts: Parts
    #: The number of batches that have moved the factors; a given start counts as one.
    n_steps: int
    n_sweeps: int
    #: Of the order of samples and of their twins.
    seed: int
    #: The largest batch so far.
    largest: int
    #: (n, R) of a full batch, and of all samples once a fit is finished.
    rows: Array | None = None
    twin_rows: Array | None = None


class RowSystem:
    """The matrix ``Q = G + ridge I`` that all rows of a batch share, factored once."""

    def __init__(self, gram: Array, ridge: float) -> None:
        xp = array_namespace(gram)
        size = float(xp.mean(xp.linalg.diagonal(gram)))
        ridge = max(ridge, _LEAST_RIDGE * (size if size > 0 else 1.0))
        eye = xp.eye(int(gram.shape[0]), dtype=gram.dtype)
        self.matrix = 0.5 * (gram + gram.T) + ridge * eye
        self._root = xp.linalg.solve(xp.linalg.cholesky(self.matrix), eye)

    def solve(self, rhs: Array) -> Array:
        """Return ``rhs Q^-1``."""
        return (rhs @ self._root.T) @ self._root


def directions(rows: Array) -> tuple[Array, Array]:
    """Return the rows divided by their lengths, zero for those that have none, and the lengths."""
    xp = array_namespace(rows)
    lengths = xp.sqrt(xp.sum(rows * rows, axis=1))
    has_length = lengths > _NO_LENGTH * math.sqrt(float(xp.mean(lengths * lengths)))
    safe = xp.where(has_length, lengths, xp.ones_like(lengths))
    units = xp.where(has_length[:, None], rows / safe[:, None], xp.zeros_like(rows))
    return units, xp.where(has_length, lengths, xp.zeros_like(lengths))


def pulls(rows: Array, twins: Array, gamma: float) -> tuple[Array, Array]:
    """Return ``u`` of each row, by the structure of the matrix of pairs, and which rows count.

    Zero where a row or its twin has no direction, and for less than two others.
    """
    xp = array_namespace(rows)
    units, lengths = directions(twins)
    counted = (directions(rows)[1] > 0) & (lengths > 0)
    n_counted = int(xp.sum(xp.astype(counted, xp.int64)))
    if n_counted < 2:
        return xp.zeros_like(rows), xp.zeros_like(counted)
    units = xp.where(counted[:, None], units, xp.zeros_like(units))
    others = xp.sum(units, axis=0)[None, :] - units
    pull = (gamma + 1.0) / (n_counted - 1) * others - units
    return xp.where(counted[:, None], pull, xp.zeros_like(pull)), counted


def row_losses(rows: Array, system: RowSystem, rhs: Array, pull: Array) -> Array:
    """Return the part of the objective that each row decides, ``pull`` being ``beta u``."""
    xp = array_namespace(rows)
    units, _ = directions(rows)
    quadratic = xp.sum(rows * (rows @ system.matrix - 2.0 * rhs), axis=1)
    return quadratic + xp.sum(pull * units, axis=1)


def improved_rows(
    rows: Array, system: RowSystem, rhs: Array, pull: Array, *, rounds: int = 1
) -> Array:
    """Take damped steps of eq. 15 from some rows, each as long as its loss falls."""
    xp = array_namespace(rows)
    ridge_rows = system.solve(rhs)
    best = row_losses(rows, system, rhs, pull)
    for _ in range(rounds):
        units, lengths = directions(rows)
        safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))[:, None]
        # The gradient of <pull, x/|x|> is orthogonal to x.
        slope = (pull - units * xp.sum(units * pull, axis=1)[:, None]) / safe
        slope = xp.where(lengths[:, None] > 0, slope, xp.zeros_like(slope))
        way = ridge_rows - 0.5 * system.solve(slope) - rows
        waiting = xp.sum(pull * pull, axis=1) > 0
        share = 1.0
        for _ in range(_HALVINGS):
            tried = rows + share * way
            losses = row_losses(tried, system, rhs, pull)
            falls = waiting & (losses < best)
            rows = xp.where(falls[:, None], tried, rows)
            best = xp.where(falls, losses, best)
            waiting = waiting & ~falls
            if not bool(xp.any(waiting)):
                break
            share *= 0.5
    return rows


def better_rows(first: Array, second: Array, system: RowSystem, rhs: Array, pull: Array) -> Array:
    """Return of two rows for each sample the one of the lower loss."""
    xp = array_namespace(first)
    losses = [row_losses(rows, system, rhs, pull) for rows in (first, second)]
    return xp.where((losses[0] <= losses[1])[:, None], first, second)


def grams_of(factors: Sequence[Array]) -> list[Array]:
    """Return the Gram matrix of each factor, in double precision."""
    return [double(factor).T @ double(factor) for factor in factors]


def best_factors(
    contracted: Array, factors: Sequence[Array], cross: Array, alpha: float, rate: float = 1.0
) -> list[Array]:
    """Move each factor in turn to its minimiser, or a part of the way, the ``rate``.

    ``contracted`` (R, p) is the sum of the products of rows and samples, ``cross`` (R, R) that of
    rows with themselves. Each mode starts from what is left once the later ones are contracted.
    """
    xp = array_namespace(contracted)
    moved = list(factors)
    sizes = [int(factor.shape[0]) for factor in factors]
    # Of the modes up to k, the later ones contracted.
    left = {len(sizes) - 1: xp.reshape(contracted, (int(contracted.shape[0]), *sizes))}
    for k in range(len(sizes) - 1, 0, -1):
        left[k - 1] = contract_columns(left[k], moved[: k + 1], 0, k)
    grams = grams_of(moved)
    for k in range(len(sizes)):
        rhs = contract_columns(left[k], moved[: k + 1], k, k + 1)
        normal = cross
        for other, gram in enumerate(grams):
            normal = normal if other == k else normal * gram
        target = xp.astype(RowSystem(normal, alpha).solve(double(rhs).T), contracted.dtype)
        moved[k] = target if rate == 1.0 else (1.0 - rate) * moved[k] + rate * target
        grams[k] = grams_of([moved[k]])[0]
    return moved


def unit_columns(factors: Sequence[Array], before: Sequence[Array]) -> list[Array]:
    """Give columns length one; those of length zero stay as they were."""
    xp = array_namespace(factors[0])
    result = []
    for factor, own in zip(factors, before, strict=True):
        lengths = column_norms(factor)
        alive = lengths > 0
        safe = xp.where(alive, lengths, xp.ones_like(lengths))
        result.append(xp.where(alive[None, :], factor / safe[None, :], own))
    return result


class AugmentedSolver(Solver[AugmentedState]):
    """What mini-batches and full batches have in common."""

    name = "AugmentedCP"
    patience: ClassVar[int] = 3
    needs_finish: ClassVar[bool] = True

    def __init__(self, problem: AugmentedData, settings: Settings, centre: Centre) -> None:
        self.problem = problem
        self.settings = settings
        self.centre = centre
        self._set_unit(centre)
        #: The labels of the samples, once the fit is finished.
        self.sample_labels: list[np.ndarray | None] = []

    def _set_unit(self, centre: Centre) -> None:
        views = 1 if self.problem.augment is None else 2
        size = views * centre.unit**2
        self.least = -self.settings.beta * (self.settings.gamma + 2.0) * centre.unit**2
        self.scale = size
        self.floor = max(2.0 * epsilon_of(self.problem.like.dtype), _ROUNDING) * size

    def begin(self, factors: list[Array], *, seed: int, n_steps: int) -> AugmentedState:
        """Return the first state, of factors of the modes from 1 on.

        ``n_steps`` is how many batches they are worth; zero for a start that the first batch
        replaces.
        """
        n_components = int(factors[0].shape[1])
        zeros = self.problem.asarray(np.zeros((n_components, n_components)))
        moments = Moments(double(zeros), double(zeros))
        return AugmentedState(factors, self.centre, moments, Parts(), n_steps, 0, seed, 0)

    @abstractmethod
    def step(self, state: AugmentedState) -> AugmentedState:
        """Return the state after one sweep over all batches."""

    def objective(self, state: AugmentedState) -> float:
        """Return the objective per sample, in the unit of the data."""
        return state.centre.unit**2 * state.parts.objective

    def diagnostics(self, state: AugmentedState) -> Mapping[str, float]:
        """Return the parts of the objective, in the unit of the data, and mean cosines."""
        size, parts = state.centre.unit**2, state.parts
        found = {"residual": size * parts.residual, "ridge": size * parts.ridge}
        if self.problem.augment is None:
            return found
        return {
            **found,
            "twin_residual": size * parts.twin_residual,
            "alignment": size * parts.alignment,
            "twin_cosine": parts.twin_cosine,
            "other_cosine": parts.other_cosine,
        }

    def adopt(self, state: AugmentedState) -> AugmentedState:
        """Move the arrays of a checkpoint to the namespace, device and type of the data."""
        take = self.problem.asarray
        wide = double(take(np.zeros(1)))

        def double_take(array: Array) -> Array:
            return array_namespace(wide).asarray(array, dtype=wide.dtype, device=wide.device)

        centre = replace(state.centre, mean=take(state.centre.mean))
        moments = Moments(double_take(state.moments.rows), double_take(state.moments.changes))
        rows, twins = (
            None if own is None else double_take(own) for own in (state.rows, state.twin_rows)
        )
        factors = [take(factor) for factor in state.factors]
        return replace(
            state, factors=factors, centre=centre, moments=moments, rows=rows, twin_rows=twins
        )

    # A batch.

    def matrices(self, batch: Batch, *key: int) -> list[Array]:
        """Return the samples of a batch, and their twins if there are any."""
        both = [self.problem.matrix(batch.given.data), self.problem.twins(batch, *key)]
        return [own for own in both if own is not None]

    def views(self, matrices: Sequence[Array], centre: Centre, batch: Batch) -> list[View]:
        """Return them about the centre."""
        return [self.problem.view(own, centre, batch.positions) for own in matrices]

    def system(self, factors: Sequence[Array]) -> RowSystem:
        """Return the system of the rows."""
        return RowSystem(gram_of(factors), self.settings.alpha)

    def products(self, views: Sequence[View], factors: Sequence[Array]) -> list[Array]:
        """Return the products of samples with the components."""
        basis = khatri_rao(factors)
        return [double(project(view.matrix, basis).T) for view in views]

    def fit_rows(
        self, products: Sequence[Array], system: RowSystem, before: Sequence[Array] = ()
    ) -> list[Array]:
        """Return the rows of samples and twins; none is worse than the ridge solution or before."""
        rows = [system.solve(rhs) for rhs in products]
        settings = self.settings
        if len(rows) == 1:
            return rows
        if before:
            rows[1] = before[1]
        for mine, other in ((0, 1), (1, 0)):
            own = system.solve(products[mine])
            pull, _ = pulls(own, rows[other], settings.gamma)
            pull = settings.beta * pull
            if before:
                own = better_rows(own, before[mine], system, products[mine], pull)
            if settings.beta > 0:
                own = improved_rows(own, system, products[mine], pull, rounds=settings.rounds)
            rows[mine] = own
        return rows

    def parts(
        self,
        views: Sequence[View],
        rows: Sequence[Array],
        products: Sequence[Array],
        factors: Sequence[Array],
    ) -> Parts:
        """Return the parts of the objective of a batch, per sample."""
        grams = grams_of(factors)
        gram = math.prod(grams[1:], start=grams[0])
        xp = array_namespace(gram)
        n = int(rows[0].shape[0])
        residuals = [
            float(xp.sum(view.squares) + xp.sum(own * (own @ gram - 2.0 * rhs))) / n
            for view, own, rhs in zip(views, rows, products, strict=True)
        ]
        size = sum(float(xp.sum(own * own)) for own in rows)
        size += sum(float(xp.sum(xp.linalg.diagonal(own))) for own in grams)
        found = Parts(residual=residuals[0], ridge=self.settings.alpha * size / n)
        if len(rows) == 1:
            return found
        pull, counted = pulls(rows[0], rows[1], self.settings.gamma)
        units = [xp.where(counted[:, None], directions(own)[0], 0.0 * own) for own in rows]
        alignment = float(xp.sum(units[0] * pull)) / n
        n_counted = max(int(xp.sum(xp.astype(counted, xp.int64))), 2)
        twin = float(xp.sum(units[0] * units[1]))
        every = float(xp.sum(xp.sum(units[0], axis=0) * xp.sum(units[1], axis=0)))
        return replace(
            found,
            twin_residual=residuals[1],
            alignment=self.settings.beta * alignment,
            twin_cosine=twin / n_counted,
            other_cosine=(every - twin) / (n_counted * (n_counted - 1)),
        )

    def moments(
        self, products: Sequence[Array], system: RowSystem, factors: Sequence[Array], unit: float
    ) -> tuple[Array, Moments]:
        """Return the ridge rows of samples, for columns of length one, and their moments."""
        lengths = scale_of(factors)
        rows = [system.solve(rhs) * (lengths * unit)[None, :] for rhs in products]
        n = int(rows[0].shape[0])
        change = rows[1] - rows[0] if len(rows) > 1 else 0.0 * rows[0]
        return rows[0], Moments(rows[0].T @ rows[0] / n, change.T @ change / n)


class MiniBatchSolver(AugmentedSolver):
    """Algorithm 2: each batch moves the factors a part of the way, with twins of its own."""

    promises_descent = False
    measures_start: ClassVar[bool] = False

    def __init__(self, problem: AugmentedData, settings: Settings, centre: Centre) -> None:
        super().__init__(problem, settings, centre)
        #: Whether the centre moves with the samples, because they come only once.
        self.moves_centre = centre.n_samples == 0
        self._passed: list[tuple[Array, np.ndarray | None]] = []

    def step(self, state: AugmentedState) -> AugmentedState:
        """Return the state after one sweep over all batches."""
        shuffled = self.settings.shuffle
        # Counter-based: orders and twins depend on the seed and the number of the sweep alone.
        order = np.random.default_rng([state.seed, state.n_sweeps]) if shuffled else None
        total, n_samples = Parts(), 0
        self._passed.clear()
        for number, batch in enumerate(self.problem.batches(order)):
            state, rows = self.take_batch(state, batch, number)
            total = _weighted(total, n_samples, state.parts, batch.size)
            n_samples += batch.size
            if not math.isfinite(total.objective):
                break  # the driver keeps the state before the sweep
            if self.problem.source.reads_once:
                self._passed.append((rows, batch.given.labels[0]))
        return replace(state, n_sweeps=state.n_sweeps + 1, parts=total)

    def take_batch(
        self, state: AugmentedState, batch: Batch, number: int
    ) -> tuple[AugmentedState, Array]:
        """Learn from one batch; return the state, with its parts, and its ridge rows."""
        centre, factors = state.centre, state.factors
        matrices = self.matrices(batch, state.seed, state.n_sweeps, number)
        if self.moves_centre:
            before = centre if centre.n_samples else None
            centre = self.problem.moved_centre(before, matrices[0])
        views = self.views(matrices, centre, batch)
        products, system = self.products(views, factors), self.system(factors)
        rows = self.fit_rows(products, system)
        parts = self.parts(views, rows, products, factors)
        largest = max(state.largest, batch.size)
        # The first batch replaces the start, however small it is.
        share = batch.size / largest if state.n_steps else 1.0
        n_steps = state.n_steps + 1
        rate = share * averaging_rate(n_steps, self.settings.rate, self.settings.n_batches)
        own, moments = self.moments(products, system, factors, centre.unit)
        if float(array_namespace(views[0].squares).sum(views[0].squares)) > 0:
            factors = self._moved(views, rows, factors, rate)
        else:
            n_steps = state.n_steps
        weight = rate if state.n_steps else 1.0
        moments = Moments(
            (1.0 - weight) * state.moments.rows + weight * moments.rows,
            (1.0 - weight) * state.moments.changes + weight * moments.changes,
        )
        moved = replace(
            state, factors=factors, centre=centre, moments=moments, parts=parts, n_steps=n_steps
        )
        return replace(moved, largest=largest), own

    def with_rows(self, state: AugmentedState, batch: Batch) -> AugmentedState:
        """Return the state with the ridge rows of a batch."""
        matrix = self.problem.matrix(batch.given.data)
        about = self.problem.view(matrix, state.centre).matrix
        rows = coefficients(about, state.factors, self.settings.alpha)
        return replace(state, rows=rows * state.centre.unit)

    def _moved(
        self, views: Sequence[View], rows: Sequence[Array], factors: list[Array], rate: float
    ) -> list[Array]:
        contracted, cross = contract_samples(views, rows)
        moved = best_factors(contracted, factors, cross, self.settings.alpha, rate)
        return unit_columns(moved, factors)

    def diagnostics(self, state: AugmentedState) -> Mapping[str, float]:
        """Return the parts, and the learning rate of the last batch."""
        found = dict(super().diagnostics(state))
        if state.n_steps:
            settings = self.settings
            rate = averaging_rate(state.n_steps, settings.rate, settings.n_batches)
            found["learning_rate"] = rate
        return found

    def begin(self, factors: list[Array], *, seed: int, n_steps: int) -> AugmentedState:
        """Return the first state, of factors of the modes from 1 on."""
        units = unit_columns(factors, factors)
        return super().begin(units, seed=seed, n_steps=n_steps)

    def finish(self, state: AugmentedState) -> AugmentedState:
        """Return the state with the ridge rows of all samples, the moments and the objective.

        Of a stream that cannot be read again they are those of the factors that its batches met.
        """
        if self.problem.source.reads_once:
            self.sample_labels = [labels for _, labels in self._passed]
            if not self._passed:  # interrupted before the end of the first batch
                return state
            xp = array_namespace(self._passed[0][0])
            return replace(state, rows=xp.concat([rows for rows, _ in self._passed], axis=0))
        self.sample_labels = []
        system = self.system(state.factors)
        total, n_samples, features = Parts(), 0, []
        moments, nothing = state.moments, 0.0
        for number, batch in enumerate(self.problem.batches()):
            matrices = self.matrices(batch, state.seed, _LAST_SWEEP, number)
            views = self.views(matrices, state.centre, batch)
            products = self.products(views, state.factors)
            parts = self.parts(views, self.fit_rows(products, system), products, state.factors)
            total = _weighted(total, n_samples, parts, batch.size)
            own, found = self.moments(products, system, state.factors, state.centre.unit)
            share = batch.size / (n_samples + batch.size)
            moments = Moments(
                (1.0 - share) * moments.rows + share * found.rows,
                (1.0 - share) * moments.changes + share * found.changes,
            )
            nothing += sum(float(array_namespace(v.squares).sum(v.squares)) for v in views)
            n_samples += batch.size
            features.append(own)
            self.sample_labels.append(batch.given.labels[0])
        self.nothing = state.centre.unit**2 * nothing / n_samples + self.floor
        rows = array_namespace(features[0]).concat(features, axis=0)
        return replace(state, rows=rows, moments=moments, parts=total)


class FullBatchSolver(AugmentedSolver):
    """Algorithm 1: all samples at once, with the same twins in every sweep. It only descends."""

    def __init__(self, problem: AugmentedData, settings: Settings, centre: Centre) -> None:
        super().__init__(problem, settings, centre)
        self._views: tuple[int, list[View]] | None = None

    def begin(self, factors: list[Array], *, seed: int, n_steps: int) -> AugmentedState:
        """Return the first state, of factors of the modes from 1 on."""
        factors = unit_columns(factors, factors)
        state = super().begin(factors, seed=seed, n_steps=n_steps)
        views = self._all(seed)
        products = self.products(views, factors)
        return self._with_rows(state, self.fit_rows(products, self.system(factors)), products)

    def step(self, state: AugmentedState) -> AugmentedState:
        """Return the state after one update of the rows and of each factor."""
        views = self._all(state.seed)
        before = [own for own in (state.rows, state.twin_rows) if own is not None]
        rows = self.fit_rows(
            self.products(views, state.factors), self.system(state.factors), before
        )
        contracted, cross = contract_samples(views, rows)
        factors = best_factors(contracted, state.factors, cross, self.settings.alpha)
        # Which leaves the rows as they are, and lowers the ridge term.
        factors = balance(factors, range(len(factors)))
        moved = replace(
            state, factors=factors, n_steps=state.n_steps + 1, n_sweeps=state.n_sweeps + 1
        )
        return self._with_rows(moved, rows, self.products(views, factors))

    def finish(self, state: AugmentedState) -> AugmentedState:
        """Return the state with the ridge rows of all samples and the moments."""
        views = self._all(state.seed)
        self.sample_labels = [self.problem.source.head.labels[0]]
        total = sum(float(array_namespace(v.squares).sum(v.squares)) for v in views)
        n_samples = int(views[0].matrix.shape[0])
        self.nothing = state.centre.unit**2 * total / n_samples + self.floor
        products, system = self.products(views, state.factors), self.system(state.factors)
        rows, moments = self.moments(products, system, state.factors, state.centre.unit)
        return replace(state, rows=rows, moments=moments)

    def _all(self, seed: int) -> list[View]:
        """Return all samples and their twins; the last ones asked for are kept."""
        if self._views is None or self._views[0] != seed:
            (batch,) = self.problem.batches()
            self._views = seed, self.views(self.matrices(batch, seed), self.centre, batch)
        return self._views[1]

    def _with_rows(
        self, state: AugmentedState, rows: list[Array], products: list[Array]
    ) -> AugmentedState:
        parts = self.parts(self._all(state.seed), rows, products, state.factors)
        twins = rows[1] if len(rows) > 1 else None
        return replace(state, rows=rows[0], twin_rows=twins, parts=parts)


def contract_samples(views: Sequence[View], rows: Sequence[Array]) -> tuple[Array, Array]:
    """Return the products of rows with samples, and of rows with themselves, of all views."""
    contracted = cross = None
    for view, own in zip(views, rows, strict=True):
        xp = array_namespace(own)
        mine = project(view.matrix.T, xp.astype(own, view.matrix.dtype))
        contracted = mine if contracted is None else contracted + mine
        cross = own.T @ own if cross is None else cross + own.T @ own
    return contracted, cross


def scale_of(factors: Sequence[Array]) -> Array:
    """Return the product of the lengths of the columns over modes, in double precision."""
    lengths = [double(column_norms(factor)) for factor in factors]
    return math.prod(lengths[1:], start=lengths[0])


def gram_of(factors: Sequence[Array]) -> Array:
    """Return the Gram matrix of the components of some factors, in double precision."""
    grams = grams_of(factors)
    return math.prod(grams[1:], start=grams[0])


def coefficients(about: Array, factors: Sequence[Array], alpha: float) -> Array:
    """Return the ridge solutions of samples about the mean (eq. 2), for columns of length one."""
    factors = [like(factor, about) for factor in factors]
    rhs = double(project(about, khatri_rao(factors)).T)
    return RowSystem(gram_of(factors), alpha).solve(rhs) * scale_of(factors)[None, :]


def _weighted(total: Parts, n_total: int, parts: Parts, n: int) -> Parts:
    """Return the mean of parts over the samples so far and some more."""
    share = n / (n_total + n)
    mean = {
        name: (1.0 - share) * own + share * getattr(parts, name)
        for name, own in vars(total).items()
    }
    return Parts(**mean)
