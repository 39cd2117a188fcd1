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
    Each in turn is the exact minimiser for the newest others; a mini-batch moves it a part of the
    way only (the learning rate). Those of the first modes follow from the products that the rows
    were made of, those of the last modes from one contraction of the batch with its rows and the
    first factors: a batch is read twice.
Full batch
    Twins are drawn once and rows stay from sweep to sweep: a row takes the better of the ridge
    solution and the one before. Nothing can raise the objective, and the driver checks it.
Cost per batch
    ``4 N p R`` multiplications for samples of p entries, one Cholesky factorization for the rows
    and one for each factor, nothing of size N x N. Memory: the batch, its twin, and an eighth of
    both for the products.

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
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyad.augmented.rules import (
    RowSystem,
    alignments,
    better_rows,
    grams_of,
    improved_rows,
    moved_factors,
    pulls,
    scale_of,
    unit_columns,
)
from polyad.augmented.signals.steps import like
from polyad.augmented.views import View
from polyad.core.arrays import namespace_of
from polyad.cp.rules import double, epsilon_of
from polyad.cp.solver import balance
from polyad.cp.stochastic.solver import averaging_rate
from polyad.fitting.driver import Solver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from polyad.augmented.problem import AugmentedData
    from polyad.augmented.views import Centre, Projection
    from polyad.core.arrays import Array
    from polyad.data.batches import Batch

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

    def mixed(self, other: Moments, share: float) -> Moments:
        """Return the mean of these and others, which have a share of it."""
        return Moments(**_mixed(self, other, share))


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

    def mixed(self, other: Parts, share: float) -> Parts:
        """Return the mean of these and others, which have a share of it."""
        return Parts(**_mixed(self, other, share))


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


@dataclass(frozen=True)
class FittedBatch:
    """A batch of samples and their twins, with what some factors make of it."""

    views: list[View]
    projections: list[Projection]
    rows: list[Array]
    centre: Centre
    #: The sum of the squares of all samples and twins.
    size: float
    parts: Parts
    #: (n, R): the ridge solutions, for components of length one, in the unit of the data.
    features: Array
    moments: Moments


class AugmentedSolver(Solver[AugmentedState]):
    """What mini-batches and full batches have in common."""

    name = "AugmentedCP"
    patience: ClassVar[int] = 3
    needs_finish: ClassVar[bool] = True

    def __init__(self, problem: AugmentedData, settings: Settings, centre: Centre) -> None:
        self.problem = problem
        self.settings = settings
        self.centre = centre
        #: Whether the centre moves with the samples, because they come only once.
        self.moves_centre = centre.n_samples == 0
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
        zeros = double(self.problem.asarray(np.zeros((n_components, n_components))))
        units = unit_columns(factors, factors)
        return AugmentedState(
            units, self.centre, Moments(zeros, zeros), Parts(), n_steps, 0, seed, 0
        )

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
        wide = double(self.problem.like)
        moments = state.moments
        return replace(
            state,
            factors=[take(factor) for factor in state.factors],
            centre=replace(state.centre, mean=take(state.centre.mean)),
            moments=Moments(like(moments.rows, wide), like(moments.changes, wide)),
            rows=None if state.rows is None else like(state.rows, wide),
            twin_rows=None if state.twin_rows is None else like(state.twin_rows, wide),
        )

    # A batch.

    def fit_rows(
        self,
        projections: Sequence[Projection],
        grams: Sequence[Array],
        before: Sequence[Array] = (),
    ) -> tuple[list[Array], list[Array]]:
        """Return the ridge solutions, and rows of which none is worse than those or before."""
        settings = self.settings
        system = RowSystem(math.prod(grams[1:], start=grams[0]), settings.alpha)
        products = [own.products for own in projections]
        ridge_rows = [system.solve(rhs) for rhs in products]
        rows = list(ridge_rows)
        if len(rows) == 1 or settings.beta == 0:
            return ridge_rows, rows
        if before:
            rows[1] = before[1]
        for mine, other in ((0, 1), (1, 0)):
            own = ridge_rows[mine]
            pull = settings.beta * pulls(own, rows[other], settings.gamma)
            if before:
                own = better_rows(own, before[mine], system, products[mine], pull)
            rows[mine] = improved_rows(own, system, products[mine], pull, rounds=settings.rounds)
        return ridge_rows, rows

    def parts(
        self, projections: Sequence[Projection], rows: Sequence[Array], grams: Sequence[Array]
    ) -> Parts:
        """Return the parts of the objective of a batch, per sample; Grams are of the factors."""
        gram = math.prod(grams[1:], start=grams[0])
        xp = namespace_of(gram)
        n = int(rows[0].shape[0])
        residuals = [
            float(xp.sum(found.squares) + xp.sum(own * (own @ gram - 2.0 * found.products))) / n
            for found, own in zip(projections, rows, strict=True)
        ]
        size = sum(float(xp.sum(own * own)) for own in rows)
        size += sum(float(xp.sum(xp.linalg.diagonal(own))) for own in grams)
        found = Parts(residual=residuals[0], ridge=self.settings.alpha * size / n)
        if len(rows) == 1:
            return found
        alignment, twin_cosine, other_cosine = alignments(rows[0], rows[1], self.settings.gamma)
        return replace(
            found,
            twin_residual=residuals[1],
            alignment=self.settings.beta * alignment / n,
            twin_cosine=twin_cosine,
            other_cosine=other_cosine,
        )

    def projections(self, views: Sequence[View], factors: list[Array]) -> list[Projection]:
        """Return the products of samples and twins with the components."""
        return self.problem.projections(views, factors)

    def fitted(self, views: list[View], centre: Centre, factors: list[Array]) -> FittedBatch:
        """Return the rows of a batch, and what follows from them."""
        projections = self.projections(views, factors)
        grams = grams_of(factors)
        ridge_rows, rows = self.fit_rows(projections, grams)
        scale = scale_of(factors) * centre.unit
        features = ridge_rows[0] * scale[None, :]
        change = ridge_rows[-1] * scale[None, :] - features
        n = int(change.shape[0])
        return FittedBatch(
            views=views,
            projections=projections,
            rows=rows,
            centre=centre,
            size=sum(float(namespace_of(own.squares).sum(own.squares)) for own in projections),
            parts=self.parts(projections, rows, grams),
            features=features,
            moments=Moments(features.T @ features / n, change.T @ change / n),
        )


class MiniBatchSolver(AugmentedSolver):
    """Algorithm 2: each batch moves the factors a part of the way, with twins of its own."""

    promises_descent = False
    measures_start: ClassVar[bool] = False

    def __init__(self, problem: AugmentedData, settings: Settings, centre: Centre) -> None:
        super().__init__(problem, settings, centre)
        # The rows of a stream that cannot be read again, as they were when it passed.
        self._passed: list[tuple[Array, np.ndarray | None]] = []

    def begin(self, factors: list[Array], *, seed: int, n_steps: int) -> AugmentedState:
        """Return the first state; its parts are those of the first batch."""
        state = super().begin(factors, seed=seed, n_steps=n_steps)
        first = self.problem.source.first_informative()
        return replace(state, parts=self._fitted(state, first, seed, 0, 0).parts)

    def step(self, state: AugmentedState) -> AugmentedState:
        """Return the state after one sweep over all batches."""
        shuffled = self.settings.shuffle
        # Counter-based: orders and twins depend on the seed and the number of the sweep alone.
        order = np.random.default_rng([state.seed, state.n_sweeps]) if shuffled else None
        total, n_samples = Parts(), 0
        self._passed.clear()
        for number, batch in enumerate(self.problem.source.sweep(order)):
            state, rows = self.take_batch(state, batch, number)
            n_samples += batch.size
            total = total.mixed(state.parts, batch.size / n_samples)
            if not math.isfinite(total.objective):
                break  # the driver keeps the state before the sweep
            if self.problem.source.reads_once:
                self._passed.append((rows, batch.given.labels[0]))
        return replace(state, n_sweeps=state.n_sweeps + 1, parts=total)

    def take_batch(
        self, state: AugmentedState, batch: Batch, number: int
    ) -> tuple[AugmentedState, Array]:
        """Learn from one batch; return the state, with its parts, and its ridge rows."""
        fitted = self._fitted(state, batch, state.seed, state.n_sweeps, number)
        state = replace(state, centre=fitted.centre, parts=fitted.parts)
        state = replace(state, largest=max(state.largest, batch.size))
        if fitted.size == 0:  # samples that are all the mean move nothing
            return state, fitted.features
        # The first batch replaces the start, however small it is.
        rate = self.rate(state.n_steps + 1)
        share = rate * batch.size / state.largest if state.n_steps else 1.0
        moved = moved_factors(
            fitted.views,
            fitted.projections,
            fitted.rows,
            state.factors,
            self.settings.alpha,
            rate=share,
        )
        return replace(
            state,
            factors=unit_columns(moved, state.factors),
            moments=state.moments.mixed(fitted.moments, share),
            n_steps=state.n_steps + 1,
        ), fitted.features

    def rate(self, number: int) -> float:
        """Return the learning rate of a step, counted from one."""
        return averaging_rate(number, self.settings.rate, self.settings.n_batches)

    def diagnostics(self, state: AugmentedState) -> Mapping[str, float]:
        """Return the parts, and the learning rate of the last batch."""
        found = super().diagnostics(state)
        return {**found, "learning_rate": self.rate(state.n_steps)} if state.n_steps else found

    def finish(self, state: AugmentedState) -> AugmentedState:
        """Return the state with the ridge rows of all samples, the moments and the objective.

        Of a stream that cannot be read again they are those of the factors that its batches met.
        """
        if self.problem.source.reads_once:
            self.sample_labels = [labels for _, labels in self._passed]
            rows = [own for own, _ in self._passed]
            # None if it was interrupted before the end of the first batch.
            return replace(state, rows=namespace_of(*rows).concat(rows)) if rows else state
        self.sample_labels = []
        total, moments, n_samples, size, rows = Parts(), state.moments, 0, 0.0, []
        for number, batch in enumerate(self.problem.source.sweep()):
            fitted = self._fitted(state, batch, state.seed, _LAST_SWEEP, number)
            n_samples += batch.size
            share = batch.size / n_samples
            total = total.mixed(fitted.parts, share)
            moments = moments.mixed(fitted.moments, share)
            size += fitted.size
            rows.append(fitted.features)
            self.sample_labels.append(batch.given.labels[0])
        self.nothing = state.centre.unit**2 * size / n_samples + self.floor
        rows = namespace_of(*rows).concat(rows)
        return replace(state, rows=rows, moments=moments, parts=total)

    def with_rows(self, state: AugmentedState, batch: Batch) -> AugmentedState:
        """Return the state with the ridge rows of one batch."""
        view = View.of(self.problem.matrix(batch.given.data), state.centre, batch.positions)
        fitted = self.fitted([view], state.centre, state.factors)
        return replace(state, rows=fitted.features)

    def _fitted(self, state: AugmentedState, batch: Batch, *key: int) -> FittedBatch:
        """Return what the factors of a state make of a batch; ``key`` seeds its twins."""
        matrices = self.problem.matrices(batch, *key)
        centre = state.centre
        if self.moves_centre:
            before = centre if centre.n_samples else None
            centre = self.problem.moved_centre(before, matrices[0])
        views = self.problem.views(matrices, centre, batch.positions, moves=self.moves_centre)
        return self.fitted(views, centre, state.factors)


class FullBatchSolver(AugmentedSolver):
    """Algorithm 1: all samples at once, with the same twins in every sweep. It only descends."""

    def __init__(self, problem: AugmentedData, settings: Settings, centre: Centre) -> None:
        super().__init__(problem, settings, centre)
        self._views: tuple[int, list[View]] | None = None
        self._projections: tuple[list[Array], list[Projection]] | None = None

    def begin(self, factors: list[Array], *, seed: int, n_steps: int) -> AugmentedState:
        """Return the first state, of factors of the modes from 1 on."""
        state = super().begin(factors, seed=seed, n_steps=n_steps)
        fitted = self.fitted(self._all(seed), self.centre, state.factors)
        return _with_rows(state, fitted.rows, fitted.parts)

    def step(self, state: AugmentedState) -> AugmentedState:
        """Return the state after one update of the rows and of each factor."""
        views = self._all(state.seed)
        before = [own for own in (state.rows, state.twin_rows) if own is not None]
        projections = self.projections(views, state.factors)
        grams = grams_of(state.factors)
        _, rows = self.fit_rows(projections, grams, before)
        # The alignment has a jump where a row loses its direction or gets one, as under a ridge
        # that leaves nothing: such rows are not taken if the jump is upwards.
        if self.parts(projections, rows, grams).objective > state.parts.objective:
            rows = before
        factors = moved_factors(views, projections, rows, state.factors, self.settings.alpha)
        # Which leaves the rows as they are, and lowers the ridge term.
        factors = balance(factors, range(len(factors)))
        parts = self.parts(self.projections(views, factors), rows, grams_of(factors))
        moved = replace(
            state, factors=factors, n_steps=state.n_steps + 1, n_sweeps=state.n_sweeps + 1
        )
        return _with_rows(moved, rows, parts)

    def finish(self, state: AugmentedState) -> AugmentedState:
        """Return the state with the ridge rows of all samples and the moments."""
        fitted = self.fitted(self._all(state.seed), self.centre, state.factors)
        n_samples = int(fitted.features.shape[0])
        self.nothing = self.centre.unit**2 * fitted.size / n_samples + self.floor
        return replace(state, rows=fitted.features, moments=fitted.moments)

    def projections(self, views: Sequence[View], factors: list[Array]) -> list[Projection]:
        """Return those of all samples: a step begins with those that the one before ended with."""
        if self._projections is None or self._projections[0] is not factors:
            self._projections = factors, super().projections(views, factors)
        return self._projections[1]

    def _all(self, seed: int) -> list[View]:
        """Return all samples and their twins; the last ones asked for are kept."""
        if self._views is None or self._views[0] != seed:
            (batch,) = self.problem.source.sweep()
            matrices = self.problem.matrices(batch, seed)
            views = [
                View.of(own, self.centre, batch.positions, np.full(batch.size, np.nan), copy=True)
                for own in matrices
            ]
            self._views = seed, views
            self.sample_labels = [batch.given.labels[0]]
        return self._views[1]


def _with_rows(state: AugmentedState, rows: list[Array], parts: Parts) -> AugmentedState:
    twins = rows[1] if len(rows) > 1 else None
    return replace(state, rows=rows[0], twin_rows=twins, parts=parts)


def _mixed(one: Any, other: Any, share: float) -> dict[str, Any]:
    return {
        name: (1.0 - share) * own + share * getattr(other, name) for name, own in vars(one).items()
    }
