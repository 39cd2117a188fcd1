r"""The block problems of a dictionary, solved by an interior point method in primal and dual.

Model, codes and atoms
    The samples' model is a tensor of shape ``(N, n)`` or ``(N, n_1, ..., n_d)``, the sum of outer
    products of the columns of a factor for each mode: the codes and the atoms, or the codes and
    the factors of the atoms. A block is a factor ``P``; the model is linear in it, ``L P``, and
    the adjoint ``L* G`` is an MTTKRP. Rows of codes, and columns of the others, are on simplices.
Problem
    :math:`\min_P \sum_i H_{x_i}((L P)_i) + \tfrac\tau2 \|P - P_0\|^2`. With the dual ``G`` of
    ``q = L P``, where ``q`` is the gradient of the conjugates at ``-G``, and slacks ``S`` of the
    bounds, its conditions are (Prop. B.1 and C.1 of the paper, with a path to their solution)

    .. math:: q(G) = L P, \qquad \tau (P - P_0) - L^* G + c = S, \qquad P * S = \mu.

Step
    Newton steps on all three, with ``mu`` falling to zero: the projections of the paper, in whose
    place they are, jump between corners where tau is small; the path does not, and tau may be zero.
    What is left after ``P`` and ``S`` is :math:`\tfrac1\varepsilon (\mathrm{diag}(q) - T^\top
    \mathrm{diag}(x) T) + L W L^*`, with :math:`W = 1 / (\tau + S / P)` up to the sums that are
    kept. It is solved by conjugate gradients, all samples at once, preconditioned by its first and
    last term: these are, row by row, a diagonal matrix and one of the rank of the dictionary.
    In place of ``q`` the diagonal has the logarithmic mean of ``q`` and ``L P`` where that is
    larger: the two agree at the solution, and a step without T and L is then that of Sinkhorn,
    however far ``q`` is off. Codes are a problem for each sample, with a path of their own; they,
    and the losses, are solved for a few samples at a time, which stay in the cache of a thread.
End
    A block ends when its duality gap is below the one that is asked for. Any dual is feasible: its
    value is that of the conjugates, and of the best factor for ``L* G``, a projection. The loss of
    the factor's models is above that of their own dual by what Newton steps still promise: half of
    that is taken for it, as where losses are solved. (Plans with both margins would bound it for
    certain, by a number that falls as its root: to have that below the gap took half of the time.)
    Where rounding keeps the gap above, a block ends when steps promise no more than rounding. After
    each sweep the losses are solved to a part of its gap, those of final codes to rounding.
Why not semismooth Newton and L-BFGS, one for codes and one for atoms
    One method serves all blocks, any tau and any number of modes. Semismooth Newton for the code of
    a sample has a matrix of all cells, ``n^2`` numbers for each cell of the sample to form and
    ``n^3 / 3`` to factorise, in each step; in the ``r`` unknowns of the code the matrix needs as
    many solutions with that one. A step here is a few products with the kernel. First order
    steps come as soon to a rough loss, and not to a low one: ``python -m benchmarks.dictionary``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import namespace_of
from polyad.dictionary.equations import LEAST_MASS, Equations, dots, spread
from polyad.dictionary.loss import Conjugate, Samples, by_samples, grid_axes
from polyad.tensor.products import kruskal_to_dense, mttkrp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.transport.geometry import Geometry

# Losses are known to this part of epsilon for each sample, and what costs round to.
_PRECISION, _ROUNDING = 1e-11, 1e-14
# What a step must bring of what it promises, and how often it is halved for that.
_ARMIJO = 1e-4
_HALVINGS = 25
_SHORTEST = 1e-4
# The residual at which conjugate gradients end, as a part of the first, over the steps so far.
_FORCING = 0.5
# How mu falls after a full step and after a shorter one, the part of the gap that it ends with,
# how near to a bound a step may go, and the least entry that a path begins with.
_FALL, _SLOW_FALL = 0.1, 0.7
_LAST = 0.7
_FULL = 0.9
_TO_THE_BOUND = 0.95
_INSIDE = 1e-3
# The part of a gap that is left by a step that closes it.
_CLOSING = 0.5
# How many times as many steps a sample gets that begins again.
_LONGER = 4
# What steps are held back by, in epsilon, where tau is zero: it moves no solution, and weights
# above one over it would only round.
_DAMPING = 1e-4


@dataclass(frozen=True)
class Effort:
    """How far a problem is solved: the gap, for codes of each sample, and limits of steps."""

    gap: float
    n_steps: int = 40
    n_inner: int = 40
    forcing: float = _FORCING


@dataclass(frozen=True)
class Block:
    """The factor of one mode as the unknown: the model is linear in it.

    ``factors`` has the current one, from which the proximal term is measured; ``pairs`` has the
    products of two columns of the others, which all steps of a block share.
    """

    factors: Sequence[Array]
    mode: int
    tau: float
    grid: tuple[int, ...]
    pairs: Sequence[Array] | None = None

    def paired(self) -> Sequence[Array]:
        """Return the products of two columns, of all pairs of them, of the other factors."""
        if self.pairs is not None:
            return self.pairs
        first, second = np.triu_indices(self.factors[0].shape[1])
        others = [factor for k, factor in enumerate(self.factors) if k != self.mode]
        return [own[:, first] * own[:, second] for own in others]

    @property
    def is_separable(self) -> bool:
        """Whether samples do not depend on each other."""
        return self.mode == 0

    @property
    def simplex(self) -> int:
        """The axis of a factor along which it sums to one."""
        return 1 if self.is_separable else 0

    @property
    def origin(self) -> Array:
        """The current factor."""
        return self.factors[self.mode]

    def take(self, rows: Array) -> Block:
        """Return the codes of some samples."""
        return replace(self, factors=[self.factors[0][rows, :], *self.factors[1:]])

    def model(self, factor: Array) -> Array:
        """Return ``L P``, the models of all samples."""
        others = self.factors
        return dense_model([*others[: self.mode], factor, *others[self.mode + 1 :]], self.grid)

    def adjoint(self, values: Array) -> Array:
        """Return ``L* G``."""
        shape = tuple(factor.shape[0] for factor in self.factors)
        tensor = namespace_of(values).reshape(values, shape)
        return mttkrp(tensor, self.factors, self.mode)

    def best(self, pull: Array) -> Array:
        """Return the factor that is best for an adjoint: a projection, or corners."""
        xp = namespace_of(pull)
        if self.tau > 0:
            return project_simplex(self.origin + pull / self.tau, self.simplex)
        highest = xp.astype(pull == xp.max(pull, axis=self.simplex, keepdims=True), pull.dtype)
        return highest / xp.sum(highest, axis=self.simplex, keepdims=True)

    def total(self, values: Array) -> Array:
        """Return the sum over a factor, for codes that of each sample."""
        xp = namespace_of(values)
        return xp.sum(values, axis=1) if self.is_separable else xp.sum(values)

    def centred(self, weights: Array, values: Array) -> Array:
        """Return ``W (z - c)``, with the ``c`` that keeps the sums of the factor."""
        xp = namespace_of(values)
        mean = xp.sum(weights * values, axis=self.simplex, keepdims=True)
        return weights * (values - mean / xp.sum(weights, axis=self.simplex, keepdims=True))

    def grams(self, weights: Array) -> Array:
        """Return for each row of the factor the matrix ``B diag(w) B'``, where ``L P = P B``."""
        xp = namespace_of(weights)
        rank = self.factors[0].shape[1]
        first, second = np.triu_indices(rank)
        # That of the mode itself is not read.
        unread = (self.origin.shape[0], len(first))
        pairs = list(self.paired())
        pairs.insert(self.mode, xp.empty(unread, dtype=weights.dtype, device=weights.device))
        shape = tuple(factor.shape[0] for factor in self.factors)
        upper = mttkrp(xp.reshape(weights, shape), pairs, self.mode)
        place = np.zeros((rank, rank), dtype=np.int64)
        place[first, second] = place[second, first] = np.arange(len(first))
        return xp.reshape(upper[:, place.ravel()], (-1, rank, rank))


def precision_of(geometry: Geometry) -> float:
    """Return what losses of samples, and gaps of their problems, are known to."""
    return _PRECISION * geometry.epsilon + _ROUNDING * geometry.largest


def dense_model(factors: Sequence[Array], grid: tuple[int, ...]) -> Array:
    """Return the models of all samples, with the grid in the last axes."""
    dense = kruskal_to_dense(None, factors)
    return namespace_of(dense).reshape(dense, (-1, *grid))


def loss_of(samples: Samples, model: Array, start: Array, effort: Effort) -> tuple[Array, Array]:
    """Return the loss of each sample's model, up to the gap from below, and the dual ``G``.

    The loss is ``max -H*(-G) - <G, model>``, by Newton steps; samples end one by one. One that a
    start leads nowhere begins again at zero, whose value is the lowest loss of any model.
    """
    values, dual = (namespace_of(start).empty_like(own) for own in (samples.entropy, start))

    def fill(first: int, last: int) -> None:
        own = slice(first, last)
        parts = samples.take(own), model[own, ...], start[own, ...]
        values[own], dual[own, ...] = _losses(*parts, effort)

    by_samples(fill, start)
    return values, dual


def _losses(samples: Samples, model: Array, start: Array, effort: Effort) -> tuple[Array, Array]:
    """Return what :func:`loss_of` does, of all samples at once."""
    xp = namespace_of(start)
    start = _no_worse_than_zero(samples, model, start)
    values, dual, is_open = _raised(samples, model, start, effort)
    lost = xp.nonzero(is_open)[0]
    if lost.shape[0]:
        longer = replace(effort, n_steps=_LONGER * effort.n_steps)
        own, other = samples.take(lost), model[lost, ...]
        again, moved, _ = _raised(own, other, xp.zeros_like(other), longer)
        is_better = again > values[lost]
        values[lost] = xp.where(is_better, again, values[lost])
        dual[lost, ...] = xp.where(spread(is_better, moved), moved, dual[lost, ...])
    return values, dual


def _no_worse_than_zero(samples: Samples, model: Array, start: Array) -> Array:
    """Return potentials to begin with: zero where those that are given have a lower value."""
    xp = namespace_of(start)
    at_start = Conjugate.at(samples, -start).value + xp.sum(start * model, axis=grid_axes(start))
    return xp.where(spread(at_start <= -samples.least, start), start, xp.zeros_like(start))


def _raised(
    samples: Samples, model: Array, start: Array, effort: Effort
) -> tuple[Array, Array, Array]:
    """Return the value of the dual after Newton steps, the dual, and which samples are not done."""
    xp = namespace_of(start)
    axes = grid_axes(start)
    epsilon = samples.geometry.epsilon
    result, values = xp.asarray(start, copy=True), xp.zeros_like(samples.entropy)
    unfinished = xp.ones_like(values) > 0
    rows, dual = xp.arange(start.shape[0]), start
    conjugate = Conjugate.at(samples, -dual)
    for step in range(effort.n_steps):
        value = conjugate.value + xp.sum(dual * model, axis=axes)
        right = conjugate.mean - model
        equations = Equations(conjugate, model, None, None)
        direction = epsilon * equations.solve(right, _FORCING / (1 + step), effort.n_inner)
        promise = equations.dot(right, direction)
        # What sums of this size round to; a step that changes no more than that is as good as any.
        slack = 1e-14 * (1.0 + xp.abs(value))
        length = xp.ones_like(promise)
        for _ in range(_HALVINGS):
            moved = dual + spread(length, dual) * direction
            conjugate = Conjugate.at(samples, -moved)
            reached = conjugate.value + xp.sum(moved * model, axis=axes)
            is_short = ~(reached <= value - _ARMIJO * length * promise + slack)
            if not bool(xp.any(is_short)):
                break
            length = xp.where(is_short, 0.25 * length, length)
            if bool(xp.any(length < _SHORTEST)):
                # Equations that are singular but for rounding: a step of Sinkhorn never fails.
                direction = xp.where(
                    spread(is_short & (length < _SHORTEST), dual),
                    _sinkhorn_step(right, model, epsilon),
                    direction,
                )
                length = xp.where(length < _SHORTEST, xp.ones_like(length), length)
                promise = xp.where(is_short, equations.dot(right, direction), promise)
        if bool(xp.any(is_short)):  # no length is right: those stay where they are
            moved = xp.where(spread(is_short, dual), dual, moved)
            reached = xp.where(is_short, value, reached)
            conjugate = Conjugate.at(samples, -moved)
        dual = moved
        result[rows, ...] = dual
        values[rows] = -reached
        # What is left of the gap, unless the value has come to where it is rounding.
        is_open = (0.5 * promise > effort.gap) & (value - reached > slack)
        unfinished[rows] = is_open | is_short
        if not bool(xp.any(is_open)):
            break
        if not bool(xp.all(is_open)):
            kept = xp.nonzero(is_open)[0]
            rows, dual, model = rows[kept], dual[kept, ...], model[kept, ...]
            samples, conjugate = samples.take(kept), conjugate.take(kept)
    return values, result, unfinished


@dataclass(frozen=True)
class _Path:
    """Where the path of a block problem is: dual, factor, slacks, and what they give."""

    dual: Array
    factor: Array
    slack: Array
    model: Array
    conjugate: Conjugate
    adjoint: Array

    def take(self, rows: Array) -> _Path:
        """Return the part of some samples."""
        parts = (self.dual, self.factor, self.slack, self.model)
        dual, factor, slack, model = (own[rows, ...] for own in parts)
        conjugate = self.conjugate.take(rows)
        return _Path(dual, factor, slack, model, conjugate, self.adjoint[rows, ...])

    def unless(self, fails: Array, other: _Path) -> _Path:
        """Return this place, and the other one where, for all or for each sample, this fails."""
        xp = namespace_of(self.dual)

        def chosen(mine: Array, theirs: Array) -> Array:
            return xp.where(spread(fails, mine), theirs, mine)

        dual = chosen(self.dual, other.dual)
        return _Path(
            dual,
            chosen(self.factor, other.factor),
            chosen(self.slack, other.slack),
            chosen(self.model, other.model),
            Conjugate.at(self.conjugate.samples, -dual),
            chosen(self.adjoint, other.adjoint),
        )


def solve_block(
    samples: Samples, block: Block, start: Array, effort: Effort
) -> tuple[Array, Array]:
    """Return the factor that solves a block problem, and the dual ``G``.

    ``start`` is a dual from before, best that of the current model.
    """
    block = replace(block, pairs=block.paired())
    if not block.is_separable:
        return _solved(samples, block, start, effort)
    xp = namespace_of(start)
    factor, dual = xp.empty_like(block.origin), xp.empty_like(start)

    def fill(first: int, last: int) -> None:
        own = slice(first, last)
        parts = samples.take(own), block.take(own), start[own, ...]
        factor[own, :], dual[own, ...] = _solved(*parts, effort)

    by_samples(fill, start)
    return factor, dual


def _solved(samples: Samples, block: Block, start: Array, effort: Effort) -> tuple[Array, Array]:
    """Follow the path of one block problem, or of those of the codes of some samples."""
    xp = namespace_of(start)
    factor = _inside(block.origin, block.simplex)
    adjoint = block.adjoint(start)
    # The slacks of the best corners; their mean product is where the path is joined.
    pull = adjoint - block.tau * (factor - block.origin)
    corner = xp.max(pull, axis=block.simplex, keepdims=True) - pull
    n_bounds = factor.shape[1] if block.is_separable else factor.shape[0] * factor.shape[1]
    mu = block.total(factor * corner) / n_bounds
    least = xp.full_like(mu, _LAST * effort.gap / n_bounds)
    precision = precision_of(samples.geometry)
    mu = xp.maximum(mu, least)
    path = _Path(
        start,
        factor,
        _rows(mu) / factor,
        block.model(factor),
        Conjugate.at(samples, -start),
        adjoint,
    )
    is_full, gap = mu > 0, xp.full_like(mu, math.inf)
    dual_result, factor_result = xp.asarray(start, copy=True), xp.asarray(factor, copy=True)
    rows: Any = xp.arange(start.shape[0])
    for step in range(effort.n_steps):
        mu = xp.maximum(xp.where(is_full, _FALL * mu, _SLOW_FALL * mu), least)
        nearer = replace(effort, forcing=_FORCING / (1 + step))
        path, promise, length = _follow(samples, block, path, mu, nearer)
        is_full = length > _FULL
        if block.is_separable:
            dual_result[rows, ...], factor_result[rows, ...] = path.dual, path.factor
        else:
            dual_result, factor_result = path.dual, path.factor
        products = block.total(path.factor * path.slack)
        mu = products / n_bounds
        before, gap = gap, _gap(block, path, promise)
        # Steps that promise no more than rounding go on for as long as they close the gap.
        goes_on = (products > effort.gap) | (0.5 * promise > precision) | ~is_full
        goes_on = goes_on | (gap < _CLOSING * before)
        is_open = goes_on & ~(gap <= effort.gap) & (length > _SHORTEST)
        if not bool(xp.any(is_open)):
            break
        if block.is_separable and not bool(xp.all(is_open)):
            kept = xp.nonzero(is_open)[0]
            parts = (rows, mu, least, is_full, gap)
            rows, mu, least, is_full, gap = (own[kept] for own in parts)
            samples, block, path = samples.take(kept), block.take(kept), path.take(kept)
    return factor_result, dual_result


def _gap(block: Block, path: _Path, promise: Array) -> Array:
    """Return about the duality gap of where a step led that promised so much of the dual.

    The dual has the best factor for its adjoint (eq. 89), or the best corner where tau is zero:
    that part is exact. The other one is the divergence of the loss between ``L P`` and ``q``: about
    half of what the next step will promise, which is less than of the last one. It is no less than
    epsilon times that of the entropy, whose curvature in ``q`` is the smaller one.
    """
    xp = namespace_of(path.dual)
    best = block.best(path.adjoint)
    moved, at_best = path.factor - block.origin, best - block.origin
    slope = path.adjoint * (best - path.factor)
    of_factor = block.total(slope + 0.5 * block.tau * (moved * moved - at_best * at_best))
    mean = path.conjugate.mean
    high = xp.maximum(xp.maximum(mean, path.model), xp.full_like(mean, LEAST_MASS**2))
    missed = path.model - mean
    apart = path.conjugate.samples.geometry.epsilon * dots(missed, missed / high)
    apart = apart if block.is_separable else xp.sum(apart)
    return of_factor + 0.5 * xp.maximum(promise, apart)


def _follow(
    samples: Samples, block: Block, path: _Path, mu: Array, effort: Effort
) -> tuple[_Path, Array, Array]:
    """Make one step towards the point of the path at ``mu``.

    Returns the new place, what the step promises of the dual, and how much of it was made.
    """
    xp = namespace_of(path.dual)
    epsilon = samples.geometry.epsilon
    target = _rows(mu)
    weights = 1.0 / (block.tau + _DAMPING * epsilon + path.slack / path.factor)
    pull = path.adjoint - block.tau * (path.factor - block.origin) + target / path.factor
    alone = block.centred(weights, pull)
    right = path.conjugate.mean - path.model - block.model(alone)
    equations = Equations(path.conjugate, path.model, block, weights)
    direction = epsilon * equations.solve(right, effort.forcing, effort.n_inner)
    promise = equations.dot(right, direction)
    lifted = block.adjoint(direction)
    move = alone + block.centred(weights, lifted)
    slacken = target / path.factor - path.slack - path.slack / path.factor * move
    length = xp.minimum(_longest(block, path.factor, move), _longest(block, path.slack, slacken))
    size = _residual(block, equations, weights, path, target)
    for _ in range(_HALVINGS):
        dual = path.dual + spread(length, path.dual) * direction
        factor = path.factor + _rows(length) * move
        # Sums are kept but for rounding, which weights of many sizes make more of.
        factor = factor / xp.sum(factor, axis=block.simplex, keepdims=True)
        slack = path.slack + _rows(length) * slacken
        adjoint = path.adjoint + _rows(length) * lifted
        trial = _Path(
            dual, factor, slack, block.model(factor), Conjugate.at(samples, -dual), adjoint
        )
        is_long = ~(_residual(block, equations, weights, trial, target) <= size)
        if not bool(xp.any(is_long)):
            return trial, promise, length
        length = xp.where(is_long, 0.5 * length, length)
    # No length is right: those stay where they are.
    return trial.unless(is_long, path), promise, xp.where(is_long, 0.0 * length, length)


def _residual(
    block: Block, equations: Equations, weights: Array, path: _Path, target: Array
) -> Array:
    """Return the size of what is left of the three conditions, in the measure of a step's start."""
    missed = path.conjugate.mean - path.model
    epsilon = path.conjugate.samples.geometry.epsilon
    of_model = epsilon * equations.dot(missed, equations.inverse * missed)
    pull = path.adjoint - block.tau * (path.factor - block.origin) + path.slack
    off = path.factor * path.slack - target
    # As squares: the product with the pull itself would be lost in the rounding of its mean.
    centred = block.centred(weights, pull)
    return (
        of_model
        + block.total(centred * centred / weights)
        + block.total(off * off / (path.factor * path.slack + target))
    )


def _longest(block: Block, values: Array, change: Array) -> Array:
    """Return how much of a change leaves numbers above zero, up to all of it."""
    xp = namespace_of(values)
    one = xp.ones_like(values)
    limits = xp.where(change < 0, -_TO_THE_BOUND * values / xp.where(change < 0, change, one), one)
    least = xp.min(limits, axis=1) if block.is_separable else xp.min(limits)
    return xp.minimum(least, xp.ones_like(least))


def _inside(factor: Array, axis: int) -> Array:
    """Return a factor on the simplices that is away from their bounds."""
    n = factor.shape[axis]
    xp = namespace_of(factor)
    raised = xp.maximum(factor, xp.full_like(factor, _INSIDE / n))
    return raised / xp.sum(raised, axis=axis, keepdims=True)


def _rows(numbers: Array) -> Array:
    """Return numbers of samples, or one of all, in a shape to multiply a factor by."""
    return numbers[:, None] if numbers.ndim else numbers


def _sinkhorn_step(right: Array, model: Array, epsilon: float) -> Array:
    """Return the change of the dual that makes the second margins those of the model."""
    xp = namespace_of(model)
    tiny = xp.full_like(model, LEAST_MASS**2)
    return epsilon * xp.log(xp.maximum(right + model, tiny) / xp.maximum(model, tiny))


def project_simplex(values: Array, axis: int) -> Array:
    """Return the nearest points whose entries are not negative and sum to one along an axis."""
    xp = namespace_of(values)
    n = values.shape[axis]
    ordered = xp.flip(xp.sort(values, axis=axis), axis=axis)
    shape = (1, n) if axis == 1 else (n, 1)
    count = xp.reshape(xp.arange(1, n + 1, dtype=values.dtype), shape)
    excess = (xp.cumulative_sum(ordered, axis=axis) - 1.0) / count
    # The entries above their own excess are the first ones.
    last = xp.sum(xp.astype(ordered > excess, xp.int64), axis=axis, keepdims=True) - 1
    shift = xp.take_along_axis(excess, last, axis=axis)
    return xp.maximum(values - shift, xp.zeros_like(values))
