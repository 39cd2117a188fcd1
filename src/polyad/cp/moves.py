r"""Split and merge: starts that are made of components, of a smaller or of a finished model.

Alternating methods end in the optimum next to their start. What is left to gain there is often one
component that holds two patterns while two others share one, and no small step leads out of it
(Ueda, Nakano, Ghahramani and Hinton 2000, for mixtures). A *grown* start begins with one
component and splits, again and again, the one that gains most by it. A *move* splits one component
of a finished model and merges two others.

A component owns the share :math:`x_i m_{ir} / m_i` of each entry. The divergence of the model is at
most the sum of those of the shares from their components, which is the bound that multiplicative
updates descend on. So a component that is fitted to its share by two lowers the divergence by at
least what that share gains, and two that are replaced by one raise it by at most what their share
loses. For other losses both are a guide. Entries that are zero or negative own nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.cp.start import of_comfortable_size, positive_margins
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.cp.solver import FactorSolver
    from polyad.tensor.dense import DenseTensor

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]
    Coords = Sequence[NDArray[Any]]

# Entries of dense data that are looked at: those of some samples, evenly spaced.
_MOST_ENTRIES = 1 << 20
# Rounds of the search for what tells the halves of a component apart, and of their improvement.
_CONTRAST_ROUNDS = 8
_SPLIT_ROUNDS = 12
# How far the halves are apart at first, and how much of the whole they keep: no entry is lost.
_FIRST_CONTRAST = 0.9
_KEPT = 0.01
# An entry counts for a component that owns at least this part of it.
_LEAST_SHARE = 0.05
# Iterations of the model between two splits of a grown start.
_GROWING_STEPS = 2
# Ways in which each component is split, of which the best one counts.
_SPLITS = 2
# Pairs that are tried for a merge, for each component: the most alike.
_PAIRS = 2


@dataclass(frozen=True)
class _Mixture:
    """Components as distributions over each mode, and their sums."""

    weights: Vector
    columns: list[Matrix]

    @classmethod
    def of(cls, factors: Sequence[Array]) -> _Mixture:
        wide = [to_numpy(factor).astype(np.float64, copy=False) for factor in factors]
        sums = [factor.sum(axis=0) for factor in wide]
        pairs = zip(wide, sums, strict=True)
        return cls(math.prod(sums), [f / np.where(s > 0, s, 1.0) for f, s in pairs])

    def component(self, r: int, coords: Coords) -> Vector:
        """Return the values of one component at some places."""
        values: Vector = self.weights[r] * _product([c[:, r] for c in self.columns], coords)
        return values

    def factors(self) -> list[Matrix]:
        return [self.columns[0] * self.weights, *self.columns[1:]]


@dataclass(frozen=True)
class _Split:
    """Two components in place of one: how they part its sum, their columns, and the gain."""

    parts: Vector
    columns: list[Matrix]
    gain: float


class _Shares:
    """The positive entries of the data, and what of them the components of a model own."""

    def __init__(self, tensor: DenseTensor | SparseTensor) -> None:
        self.shape = tensor.shape
        tensor = of_comfortable_size(tensor)
        if isinstance(tensor, SparseTensor):
            positive = tensor.values > 0
            self.coords = [row[positive] for row in tensor.coords]
            self.values = tensor.values[positive].astype(np.float64)
            return
        stride = math.ceil(math.prod(self.shape) / _MOST_ENTRIES)
        some = to_numpy(tensor.array[::stride, ...])
        self.coords = list(np.nonzero(some > 0))
        self.values = some[tuple(self.coords)].astype(np.float64)
        self.coords[0] = self.coords[0] * stride

    def divide(self, model: _Mixture) -> None:
        """Share the entries out over the components."""
        total = np.zeros_like(self.values)
        for r in range(len(model.weights)):
            total += model.component(r, self.coords)
        self._ratio = np.divide(self.values, total, out=np.zeros_like(total), where=total > 0)

    def of(self, own: Vector) -> tuple[list[NDArray[Any]], Vector, NDArray[np.bool_]]:
        """Return places and sizes of a share, given the part of the model that owns it."""
        share = self._ratio * own
        kept = share > _LEAST_SHARE * self.values
        return [row[kept] for row in self.coords], share[kept], kept

    def split(self, model: _Mixture, r: int, generator: np.random.Generator) -> _Split | None:
        """Fit two components to the share of one; None if it cannot be parted."""
        coords, values, _ = self.of(model.component(r, self.coords))
        found = _halves(self.shape, coords, values, generator) if values.size else None
        if found is None:
            return None
        columns = []
        for whole, halves in zip(model.columns, found.columns, strict=True):
            parent = whole[:, [r]]
            # Where the share is silent, the halves are as the whole is.
            told = np.where(halves.sum(axis=1, keepdims=True) > 0, halves, parent)
            mixed = (1.0 - _KEPT) * told / told.sum(axis=0) + _KEPT * parent
            columns.append(mixed / mixed.sum(axis=0))
        return _Split(found.parts, columns, found.gain)

    def loss_of_merging(self, model: _Mixture, i: int, j: int) -> float:
        """Return how much worse one component explains what two own."""
        own = model.component(i, self.coords) + model.component(j, self.coords)
        coords, values, kept = self.of(own)
        if not values.size:
            return 0.0
        total = values.sum()
        margins = _margins(self.shape, coords, values)
        two = own[kept] / (model.weights[i] + model.weights[j])
        return float(values @ np.log(two / (_product(margins, coords) / total ** len(margins))))


def grown_start(
    solver: FactorSolver[Any],
    n_components: int,
    seed: int,
    sized: Callable[[list[Array]], list[Array]],
) -> list[Array]:
    """Return the factors of a model that was split from one component up.

    ``sized`` gives factors the size of the data. The smaller models are improved a little by the
    solver's own iterations; a component is looked at once, when it is new.
    """
    shares = _Shares(solver.problem.tensor)
    generator = np.random.default_rng(seed)
    margins = positive_margins(of_comfortable_size(solver.problem.tensor))
    model = _Mixture.of(sized([margin[:, None] for margin in margins]))
    known: list[_Split | None] = []
    while len(model.weights) < n_components:
        shares.divide(model)
        for r in range(len(known), len(model.weights)):
            known.append(shares.split(model, r, generator))
        gains = [-math.inf if split is None else split.gain for split in known]
        best = int(np.argmax(gains))
        split = known[best] or _torn(model, best, generator)
        model = _replaced(model, best, split)
        del known[best]
        if len(model.weights) < n_components:
            state = solver.init([solver.problem.asarray(factor) for factor in model.factors()])
            for _ in range(_GROWING_STEPS):
                state = solver.step(state)
            model = _Mixture.of(solver.factors(state))
    return [solver.problem.asarray(factor) for factor in model.factors()]


def nonnegative_moves(
    tensor: DenseTensor | SparseTensor, factors: Sequence[Array]
) -> Callable[[int], list[Matrix]]:
    """Return what makes the moves from a model: factors with one split and two others merged.

    The first is that with the largest difference of gain and loss; each further one splits the next
    best component, with the pair that is best for it. They follow from the model alone, so that a
    search finds the same for every seed. There are three components at least.
    """
    model = _Mixture.of(factors)
    shares = _Shares(tensor)
    shares.divide(model)
    n_components = len(model.weights)
    losses = {
        pair: shares.loss_of_merging(model, *pair)
        for pair in most_alike(model.columns)[: max(_PAIRS * n_components, 3)]
    }

    def best_split(r: int, generator: np.random.Generator) -> _Split:
        found = [shares.split(model, r, generator) for _ in range(_SPLITS)]
        parted = [split for split in found if split is not None]
        return max(parted or [_torn(model, r, generator)], key=lambda split: split.gain)

    def ranked(turn: int) -> list[tuple[float, int, tuple[int, int], Any]]:
        # The split of a component is made anew when its turn comes: all are as large as two models.
        generator = np.random.default_rng(turn)
        moves = []
        for r in range(n_components):
            before = generator.bit_generator.state
            gain = best_split(r, generator).gain
            pairs = [pair for pair in losses if r not in pair]
            if pairs:
                pair = min(pairs, key=losses.__getitem__)
                moves.append((gain - losses[pair], r, pair, before))
        return sorted(moves, key=lambda move: -move[0])

    first = ranked(0)

    def made(attempt: int) -> list[Matrix]:
        # When all have been tried, they are split in other ways.
        turn, place = divmod(attempt, len(first))
        _, r, (i, j), before = (ranked(turn) if turn else first)[place]
        generator = np.random.default_rng()
        generator.bit_generator.state = before
        split = best_split(r, generator)
        return _replaced(_merged(model, i, j), r, split, gone=[j]).factors()

    return made


def _halves(
    shape: Sequence[int], coords: Coords, values: Vector, generator: np.random.Generator
) -> _Split | None:
    """Fit two components to entries by expectation and maximization.

    They begin on either side of a contrast, a number between -1 and 1 for each entry of each mode,
    that the entries agree on as far as they can: that of a place is drawn to the mean of those of
    the other modes that it occurs with.
    """
    total = values.sum()
    margins = [margin / total for margin in _margins(shape, coords, values)]
    contrasts = [generator.choice([-1.0, 1.0], n) for n in shape]
    agreed = sum(contrast[row] for contrast, row in zip(contrasts, coords, strict=True))
    for _ in range(_CONTRAST_ROUNDS):
        for k, (row, margin) in enumerate(zip(coords, margins, strict=True)):
            agreed -= contrasts[k][row]
            pull = np.bincount(row, values * agreed, shape[k]) / total
            pull = np.divide(pull, margin, out=np.zeros_like(pull), where=margin > 0)
            pull -= pull @ margin
            spread = math.sqrt(pull**2 @ margin)
            # Bounded: a rare place that occurs with another rare one alone would take it all.
            contrasts[k] = np.clip(pull / spread, -1.0, 1.0) if spread > 0 else pull
            agreed += contrasts[k][row]
    sides = np.array([_FIRST_CONTRAST, -_FIRST_CONTRAST])
    columns = [
        margin[:, None] * (1.0 + contrast[:, None] * sides)
        for margin, contrast in zip(margins, contrasts, strict=True)
    ]
    columns = [column / column.sum(axis=0) for column in columns]
    parts = np.full(2, 0.5)
    for _ in range(_SPLIT_ROUNDS):
        first, two = _at(parts, columns, coords)
        owned = values * np.divide(first, two, out=np.full_like(two, 0.5), where=two > 0)
        sums = np.array([owned.sum(), total - owned.sum()])
        if not sums.min() > 0:
            return None
        parts = sums / total
        columns = [
            np.stack(pair, axis=1) / sums
            for pair in zip(
                _margins(shape, coords, owned), _margins(shape, coords, values - owned), strict=True
            )
        ]
    one, two = _product(margins, coords), _at(parts, columns, coords)[1]
    gain = float(values @ np.log(np.divide(two, one, out=np.ones_like(one), where=two > 0)))
    return _Split(parts, columns, gain)


def _at(parts: Vector, columns: Sequence[Matrix], coords: Coords) -> tuple[Vector, Vector]:
    """Return the values of the first of two components at some places, and those of both."""
    first, second = (
        part * _product([c[:, h] for c in columns], coords) for h, part in enumerate(parts)
    )
    return first, first + second


def _torn(model: _Mixture, r: int, generator: np.random.Generator) -> _Split:
    """Return two components that differ from one by chance, for one that gives no reason."""
    columns = [c[:, [r]] * generator.uniform(0.5, 1.5, (len(c), 2)) for c in model.columns]
    sums = [column.sum(axis=0) for column in columns]
    pairs = zip(columns, sums, strict=True)
    return _Split(np.full(2, 0.5), [c / np.where(s > 0, s, 1.0) for c, s in pairs], 0.0)


def most_alike(columns: Sequence[Matrix]) -> list[tuple[int, int]]:
    """Return the pairs of components, those first that are most alike but for the samples."""
    cosines = np.ones((columns[0].shape[1],) * 2)
    for column in columns[1:]:
        lengths = np.sqrt((column**2).sum(axis=0))
        unit = column / np.where(lengths > 0, lengths, 1.0)
        cosines *= np.abs(unit.T @ unit)
    pairs = zip(*np.triu_indices(len(cosines), 1), strict=True)
    return sorted(((int(i), int(j)) for i, j in pairs), key=lambda pair: -cosines[pair])


def _merged(model: _Mixture, i: int, j: int) -> _Mixture:
    """Return a model whose component ``i`` has taken up ``j``, which is left as it is."""
    weights, columns = model.weights.copy(), [column.copy() for column in model.columns]
    weights[i] += weights[j]
    if weights[i] > 0:
        part = model.weights[j] / weights[i]
        for column in columns:
            column[:, i] = (1.0 - part) * column[:, i] + part * column[:, j]
    return _Mixture(weights, columns)


def _replaced(model: _Mixture, r: int, split: _Split, *, gone: Sequence[int] = ()) -> _Mixture:
    """Return a model with the halves of component ``r`` at the end, and without some others."""
    kept = [k for k in range(len(model.weights)) if k != r and k not in gone]
    weights = np.concatenate([model.weights[kept], model.weights[r] * split.parts])
    pairs = zip(model.columns, split.columns, strict=True)
    return _Mixture(weights, [np.hstack([old[:, kept], new]) for old, new in pairs])


def _margins(shape: Sequence[int], coords: Coords, values: Vector) -> list[Vector]:
    """Return the sums of entries over all modes but one."""
    pairs = zip(coords, shape, strict=True)
    return [np.bincount(row, values, n).astype(np.float64) for row, n in pairs]


def _product(columns: Sequence[Vector], coords: Coords) -> Vector:
    """Return the product of vectors of the modes at some places."""
    first, *others = (column[row] for column, row in zip(columns, coords, strict=True))
    return math.prod(others, start=first)
