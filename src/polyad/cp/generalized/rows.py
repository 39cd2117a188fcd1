"""The coefficients of samples on given components, for every loss and kind of data.

With the other factors given, each sample is a problem of its own in as many unknowns as there are
components (see ``fitting.row_newton``). Samples are solved in chunks, which do not see each other:
the result for a sample does not depend on the others that are given. If the loss has a unit, each
sample is divided by a power of two close to its size: the smallest is solved as well as the
largest.

Sparse samples whose other entries are zeros have a sum over zeros that is the same function of the
coefficients for all of them. It has a closed form for the Gaussian and the Poisson loss. For other
losses it runs over all cells of a sample (``all_cells.py`` looks at them as seldom as it can) or,
where these are too many, over a fixed choice of them: an estimate without bias, as the
semi-stratified one of Kolda and Hong (2020). At the stored entries the loss of a zero is replaced
by theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from math import ceil, isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.core.threads import as_slices, cut, cut_evenly, run_blocks
from polyad.cp.generalized.all_cells import AllCells, QuadraticZeros, pairs, settle, unpacked
from polyad.cp.generalized.entry_blocks import EntryBlock, cut_entries
from polyad.cp.generalized.problem import ObservedProblem, ZerosProblem
from polyad.fitting.row_newton import Rows, RowSource, Rules, minimize_rows
from polyad.losses import GaussianLoss, PoissonLoss
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import gram_product, khatri_rao

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from polyad.cp.generalized.problem import GeneralizedProblem
    from polyad.losses import Loss

    Matrix = NDArray[np.float64]
    Chunk = tuple[slice, Callable[[], "Samples"]]

# Cells, or stored entries, of a chunk of rows, and the rows of one.
_CHUNK = 1 << 18
_MAX_ROWS = 1 << 12
# The part of a minimum by which another one is lower than rounding makes it.
_TOLERANCE = 1e-7
# Powers of two by which a ridge changes with the unit of a sample; beyond, it is all or nothing.
_MAX_POWER = 500.0
# A ridge that leaves next to nothing of a component; a larger one would be infinite.
_MAX_RIDGE = 1e270
# Numbers in the pairwise products of components that are held at a time.
_PAIRS = 1 << 21
# Cells of a sample that stand for all of them where they are too many, and the seed of their
# choice, which is fixed: the features of a sample are always the same.
_CHOSEN_CELLS = 1 << 12
_SEED = 20_200_912
# Cells from which rows begin where all of them are counted, and so many that this is worth it.
_FIRST_CELLS = 1 << 11
_MANY_CELLS = 1 << 14
# The last step, as a part of the row, on some cells, and between two looks at all cells: what is
# left after a Newton step is about its square.
_NEARLY = 1e-3
# A row that some cells make so much larger has its best coefficients at infinity, or they mislead.
_FLIGHT = 1e3
# Numbers in the table of pairs of components of a mode.
_MOST_PAIRS = 1 << 24


def solve_rows(
    problem: GeneralizedProblem,
    others: Sequence[Matrix],
    ridge: float,
    *,
    exact: bool = True,
    known: Matrix | None = None,
) -> Matrix:
    """Return the best coefficients (n_samples, n_components); zeros without observations.

    ``exact`` says whether zeros that are not stored are all visited, rather than some of them. A
    loss that is not convex is also solved from ``known`` coefficients, and the better are kept.
    """
    # Components of length one: the damping of the rows is then the same for all.
    lengths = [np.sqrt(np.sum(factor * factor, axis=0)) for factor in others]
    length = np.prod(lengths, axis=0)
    alive = length > 0
    unit = [
        factor / np.where(own > 0, own, 1.0) * alive
        for factor, own in zip(others, lengths, strict=True)
    ]
    safe = np.where(alive, length, 1.0)
    loss = problem.loss
    # A parameter that follows the unit, as Huber's threshold, would differ between samples.
    degree = loss.degree if loss.divided(2.0) == loss else None
    direction = _start_direction(loss, unit)
    result = np.zeros((problem.shape[0], length.size))

    def work(rows: slice, make: Callable[[], Samples]) -> None:
        samples = make()
        exponents = np.zeros(samples.n_rows, np.int64) if degree is None else samples.divide()
        powers = np.clip((2.0 - (degree or 0.0)) * exponents, -_MAX_POWER, _MAX_POWER)
        with np.errstate(over="ignore"):
            weights = np.exp2(powers)[:, None] * (ridge / safe / safe)
        weights = np.minimum(weights, _MAX_RIDGE)
        rules = Rules(loss.lower, weights, loss.is_convex)
        means, counts = samples.means()
        levels = np.array([_level(loss, *own) for own in zip(means, counts, strict=True)])
        judged = known is not None
        solved, sums = samples.minimize(levels[:, None] * direction, rules, judged=judged)
        if known is not None:
            begun = np.ldexp(known[rows] * safe, -exponents[:, None])
            other, lower = samples.minimize(begun, rules, is_near=True)
            is_better = lower < sums - _TOLERANCE * np.abs(sums)
            solved = np.where(is_better[:, None], other, solved)
        result[rows] = np.ldexp(solved, exponents[:, None]) * (counts > 0)[:, None]

    run_blocks(work, _chunks(problem, unit, exact=exact))
    rescaled: Matrix = result * alive / safe
    return rescaled


def _start_direction(loss: Loss, others: Sequence[Matrix]) -> Matrix:
    """Return the coefficients at which the model is about one everywhere, or zeros.

    Every sample starts from a multiple of it, so that its result depends on nothing else.
    """
    n_components = others[0].shape[1]
    sums = np.prod([factor.sum(axis=0) for factor in others], axis=0)
    if loss.lower == 0:
        mean = float(sums.sum()) / prod(len(factor) for factor in others)
        return np.full(n_components, 1.0 / mean if mean > 0 else 0.0)
    if loss.degree is not None:
        return np.zeros(n_components)
    gram = gram_product(list(others))
    solved: Matrix = np.linalg.lstsq(gram, sums, rcond=1e-6)[0]
    return solved


def _level(loss: Loss, mean: float, count: float) -> float:
    """Return the model value that a sample of some mean and number of entries starts from."""
    level = loss.constant(mean)
    if level is None:
        level = mean if loss.lower == 0 else 0.0
    if not isfinite(level):
        # All entries are at one end of what the loss can say: half an entry of the other kind.
        inside = min(max(mean, 0.5 / max(count, 1.0)), 1.0 - 0.5 / max(count, 1.0))
        level = loss.constant(inside if loss.domain == "zeros and ones" else 0.5 / max(count, 1.0))
    return float(level or 0.0)


def _chunks(
    problem: GeneralizedProblem, others: Sequence[Matrix], *, exact: bool
) -> Iterator[Chunk]:
    """Cut the samples into chunks, each with a function that makes its data."""
    n_samples, n_cells = problem.shape[0], prod(problem.shape[1:])
    if isinstance(problem.tensor, DenseTensor):
        basis = Basis.of(others)
        most = min(_MAX_ROWS, max(1, _CHUNK // n_cells))
        for rows in as_slices(cut_evenly(n_samples, most)):
            yield rows, partial(_dense, problem, basis, rows)
    elif isinstance(problem, ObservedProblem):
        term, cells = None, None
        most = _MAX_ROWS
        if isinstance(problem, ZerosProblem):
            cells = _all_cells(problem, others) if exact else None
            if cells is None:
                term = zero_term(problem.loss, others, exact=exact)
            else:
                term = _chosen_zeros(problem.loss, others, _FIRST_CELLS)
            most = min(most, max(1, _CHUNK // term.n_cells))
        starts = np.searchsorted(problem.tensor.coords[0], np.arange(n_samples + 1))
        n_parts = max(ceil(n_samples / most), ceil(problem.tensor.nnz / _CHUNK))
        for rows in as_slices(cut_evenly(n_samples, ceil(n_samples / n_parts))):
            yield rows, partial(_sparse, problem, others, (term, cells), starts, rows)


def _all_cells(problem: ZerosProblem, others: Sequence[Matrix]) -> AllCells | None:
    """Return the sum over all cells of a sample if they are many and those of each mode few."""
    shape, rank = [len(factor) for factor in others], others[0].shape[1]
    if problem.has_closed_form or len(shape) == 1 or prod(shape) <= _MANY_CELLS:
        return None
    if AllCells.n_places(shape) * rank * (rank + 1) // 2 > _MOST_PAIRS:
        return None
    return AllCells(problem.loss, others)


def _dense(problem: Any, basis: Basis, rows: slice) -> DenseSamples:
    """Take some samples out of dense data."""
    n_rows = rows.stop - rows.start
    data = to_numpy(problem.tensor.array[rows, ...]).reshape(n_rows, -1)
    x = np.multiply(data, 2.0**-problem.exponent, dtype=np.float64)
    observed = None
    if problem.observed is not None:
        observed = to_numpy(problem.observed[rows, ...]).reshape(n_rows, -1)
    return DenseSamples(problem.loss, basis, x, observed)


def _sparse(
    problem: ObservedProblem,
    others: Sequence[Matrix],
    zeros: tuple[ZeroTerm | None, AllCells | None],
    starts: NDArray[Any],
    rows: slice,
) -> EntrySamples:
    """Take some samples out of sparse data."""
    entries = problem.tensor
    chosen = slice(int(starts[rows.start]), int(starts[rows.stop]))
    coords = [row[chosen] for row in entries.coords[1:]]
    inside = starts[rows.start : rows.stop + 1] - starts[rows.start]
    return EntrySamples(problem.loss, others, coords, (entries.values[chosen], inside), zeros)


class Samples(RowSource):
    """Rows that know the mean and the number of their entries."""

    @abstractmethod
    def means(self) -> tuple[Matrix, Matrix]:
        """Return the mean of the known entries of each row, and their number."""

    @abstractmethod
    def divide(self) -> NDArray[np.int64]:
        """Divide each row by a power of two close to its largest entry; return the exponents."""

    def minimize(
        self, start: Matrix, rules: Rules, *, is_near: bool = False, judged: bool = True
    ) -> tuple[Matrix, Matrix]:
        """Return the best coefficients of each row and, if they are to be judged, the sums there.

        ``is_near`` says of the start that it is about where the minimum is.
        """
        return minimize_rows(self, start, rules)


class Basis:
    """The products of the other factors at some cells of a sample, and the pairs of these.

    ``products`` are rows of the Khatri-Rao product, (n_cells, n_components).
    """

    def __init__(self, products: Matrix) -> None:
        self.products = products
        self.n_components = products.shape[1]

    @classmethod
    def of(cls, others: Sequence[Matrix]) -> Basis:
        """Return the basis of all cells of a sample."""
        return cls(khatri_rao(list(others)))

    def blocks(self) -> Iterator[tuple[slice, Matrix, Matrix]]:
        """Yield some cells at a time, with their products and the pairs of these."""
        n_cells, n_components = self.products.shape
        step = max(1, 2 * _PAIRS // (n_components * (n_components + 1)))
        for block in as_slices(cut(n_cells, step)):
            both = self._all_pairs if n_cells <= step else pairs(self.products[block])
            yield block, self.products[block], both

    @cached_property
    def _all_pairs(self) -> Matrix:
        """The pairs of all cells, where they are few: every step of every sample needs them."""
        return pairs(self.products)


def _exponents(sizes: Matrix) -> NDArray[np.int64]:
    """Return the powers of two next to some sizes, zero for zero."""
    return np.frexp(sizes)[1].astype(np.int64)


class DenseSamples(Samples):
    """Samples of dense data: entries ``x`` (n_rows, n_cells), and which of them count."""

    def __init__(
        self, loss: Loss, basis: Basis, x: Matrix, observed: NDArray[np.bool_] | None
    ) -> None:
        self._loss, self._basis, self._x, self._observed = loss, basis, x, observed
        self.n_rows = len(x)

    def means(self) -> tuple[Matrix, Matrix]:
        """Return the mean of the observed entries of each row, and their number."""
        if self._observed is None:
            return self._x.mean(axis=1), np.full(self.n_rows, float(self._x.shape[1]))
        counts = self._observed.sum(axis=1).astype(np.float64)
        sums = np.where(self._observed, self._x, 0.0).sum(axis=1)
        return sums / np.maximum(counts, 1.0), counts

    def divide(self) -> NDArray[np.int64]:
        """Divide each row by its size."""
        known = True if self._observed is None else self._observed
        exponents = _exponents(np.max(np.abs(self._x), axis=1, initial=0.0, where=known))
        self._x = np.ldexp(self._x, -exponents[:, None])
        return exponents

    def evaluate(self, index: NDArray[Any], a: Matrix) -> Rows:
        """Return the sums of some rows."""
        whole = index.size == self.n_rows
        n_components = self._basis.n_components
        value, gradient = np.zeros(len(a)), np.zeros_like(a)
        packed = np.zeros((len(a), n_components * (n_components + 1) // 2))
        for block, products, both in self._basis.blocks():
            x = self._x[:, block] if whole else self._x[index, block]
            model = a @ products.T
            curved = self._loss.curvature(x, model)
            loss, slope = self._loss.evaluate(x, model)
            if self._observed is not None:
                counts = self._observed[:, block] if whole else self._observed[index, block]
                loss, slope, curved = (np.where(counts, own, 0.0) for own in (loss, slope, curved))
            value += loss.sum(axis=1)
            gradient += slope @ products
            packed += curved @ both
        return Rows(value, gradient, unpacked(packed, n_components))


class ZeroTerm:
    """The sum of the loss of zeros over the cells of a sample.

    Each cell of the basis stands for ``weight`` cells. ``known`` is a linear form of the
    coefficients that is added: what is known of all cells, less what the chosen ones say of it.
    """

    def __init__(
        self, loss: Loss, basis: Basis, weight: float = 1.0, known: Matrix | None = None
    ) -> None:
        self._loss, self._basis, self._weight, self._known = loss, basis, weight, known
        #: The cells that are visited for each sample.
        self.n_cells = max(1, len(basis.products))

    def evaluate(self, _index: NDArray[Any], a: Matrix) -> Rows:
        """Return the sum at the coefficients of each row."""
        nothing = np.broadcast_to(0.0, (len(a), self.n_cells))
        whole = DenseSamples(self._loss, self._basis, nothing, None)
        rows = whole.evaluate(np.arange(len(a)), a)
        own = Rows(*(self._weight * part for part in (rows.value, rows.gradient, rows.hessian)))
        if self._known is not None:
            own.value += a @ self._known
            own.gradient += self._known
        return own


class _GaussianZeros(ZeroTerm):
    """Half the squares of the model: a quadratic form."""

    def __init__(self, others: Sequence[Matrix]) -> None:
        self._gram = gram_product(list(others))
        self.n_cells = 1

    def evaluate(self, _index: NDArray[Any], a: Matrix) -> Rows:
        """Return the quadratic form of each row."""
        gradient = a @ self._gram
        hessian = np.repeat(self._gram[None], len(a), axis=0)
        return Rows(0.5 * np.einsum("nr,nr->n", a, gradient), gradient, hessian)


class _PoissonZeros(ZeroTerm):
    """The sum of the model: a linear form."""

    def __init__(self, others: Sequence[Matrix]) -> None:
        self._sums = np.prod([factor.sum(axis=0) for factor in others], axis=0)
        self.n_cells = 1

    def evaluate(self, _index: NDArray[Any], a: Matrix) -> Rows:
        """Return the linear form of each row."""
        rank = a.shape[1]
        gradient = np.repeat(self._sums[None], len(a), axis=0)
        return Rows(a @ self._sums, gradient, np.zeros((len(a), rank, rank)))


def zero_term(loss: Loss, others: Sequence[Matrix], *, exact: bool) -> ZeroTerm:
    """Return the sum of the loss of zeros over the cells of a sample.

    Without a closed form, ``exact`` visits all cells, however many.
    """
    if isinstance(loss, GaussianLoss):
        return _GaussianZeros(others)
    if isinstance(loss, PoissonLoss):
        return _PoissonZeros(others)
    if exact or prod(len(factor) for factor in others) <= _CHOSEN_CELLS:
        return ZeroTerm(loss, Basis.of(others))
    return _chosen_zeros(loss, others, _CHOSEN_CELLS)


def _chosen_zeros(loss: Loss, others: Sequence[Matrix], n_chosen: int) -> ZeroTerm:
    """Return an estimate by so many cells, which are always the same."""
    generator = np.random.default_rng(_SEED)
    products = np.ones((n_chosen, others[0].shape[1]))
    for factor in others:
        products *= factor[generator.integers(0, len(factor), n_chosen)]
    weight = prod(len(factor) for factor in others) / n_chosen
    # Model values of sparse data are small, and there the loss of a zero is nearly its tangent at
    # zero, of which the sum over all cells is known: a control variate.
    slope = _slope_at_zero(loss)
    sums = np.prod([factor.sum(axis=0) for factor in others], axis=0)
    known = slope * (sums - weight * products.sum(axis=0))
    return ZeroTerm(loss, Basis(products), weight, known)


def _slope_at_zero(loss: Loss) -> float:
    """Return the derivative of the loss of a zero at a model of zero, if it is nearly constant."""
    if loss.lower != 0:
        return 0.0
    at_zero, near = (float(loss.derivative(np.zeros(1), np.full(1, m))[0]) for m in (0.0, 0.01))
    return at_zero if abs(near - at_zero) <= 0.1 * abs(at_zero) else 0.0


class EntrySamples(Samples):
    """Samples of sparse data.

    ``coords`` are those of the other modes, sorted by sample; ``entries`` are the values, and where
    those of each sample begin, with the end as the last; ``zeros`` is what zeros add, if entries
    that are not stored are zeros: a sum or, with that over all cells, what to begin with.
    """

    def __init__(
        self,
        loss: Loss,
        others: Sequence[Matrix],
        coords: Sequence[NDArray[Any]],
        entries: tuple[Matrix, NDArray[Any]],
        zeros: tuple[ZeroTerm | None, AllCells | None],
    ) -> None:
        self._loss, self._others, self._coords = loss, others, coords
        self._term: ZeroTerm | QuadraticZeros | None
        self._term, self._cells = zeros
        self._values, self._starts = entries
        self.n_rows = len(self._starts) - 1
        # Every step of every sample needs them.
        is_small = self._values.size * others[0].shape[1] <= _PAIRS
        self._products = self._products_at(slice(None)) if is_small else None

    def means(self) -> tuple[Matrix, Matrix]:
        """Return the mean of the known entries of each row, and their number."""
        counts = np.diff(self._starts).astype(np.float64)
        sums = np.bincount(self._row_of_entries(), self._values, minlength=self.n_rows)
        if self._term is not None:
            counts[:] = prod(len(factor) for factor in self._others)
        return sums / np.maximum(counts, 1.0), counts

    def divide(self) -> NDArray[np.int64]:
        """Divide each row by its size."""
        row = self._row_of_entries()
        largest = np.zeros(self.n_rows)
        np.maximum.at(largest, row, np.abs(self._values))
        exponents = _exponents(largest)
        self._values = np.ldexp(self._values, -exponents[row])
        return exponents

    def minimize(
        self, start: Matrix, rules: Rules, *, is_near: bool = False, judged: bool = True
    ) -> tuple[Matrix, Matrix]:
        """Return the best coefficients, with few looks at all cells if they are many."""
        cells = self._cells
        if cells is None:
            return minimize_rows(self, start, rules)
        first, fled = start, np.zeros(len(start), bool)
        if not is_near:
            first, _ = minimize_rows(self, start, rules, _NEARLY)
            fled = ~(_sizes(first) <= _FLIGHT * _sizes(start)) & (_sizes(start) > 0)
            first = np.where(fled[:, None], start, first)

        def minimize(zeros: QuadraticZeros, chosen: NDArray[Any], begun: Matrix) -> Matrix:
            source, own = self._with(zeros), replace(rules, ridge=rules.ridge[chosen])
            return minimize_rows(_SomeRows(source, chosen), begun, own, _NEARLY)[0]

        a, unsettled = settle(cells, first, minimize)
        a[fled] = start[fled]
        unsettled = np.union1d(unsettled, np.flatnonzero(fled))
        if unsettled.size:
            slow = self._with(ZeroTerm(self._loss, Basis.of(self._others)))
            for k in unsettled[:, None]:  # one by one: they take memory for all of their cells
                own = replace(rules, ridge=rules.ridge[k])
                a[k] = minimize_rows(_SomeRows(slow, k), a[k], own)[0]
        sums = np.full(len(a), np.nan)
        if judged:
            stored = self._with(QuadraticZeros(cells, len(a)))
            sums = stored.evaluate(np.arange(len(a)), a).value + cells.value(a)
            sums += 0.5 * np.sum(rules.ridge * a * a, axis=1)
        return a, sums

    def _with(self, term: ZeroTerm | QuadraticZeros) -> EntrySamples:
        """Return the same samples with another sum of zeros."""
        other = copy(self)
        other._term = term
        return other

    def _row_of_entries(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self.n_rows), np.diff(self._starts))

    def evaluate(self, index: NDArray[Any], a: Matrix) -> Rows:
        """Return the sums of some rows."""
        n_rows, rank = a.shape
        rows = Rows(np.zeros(n_rows), np.zeros_like(a), np.zeros((n_rows, rank, rank)))
        if self._term is not None:
            rows = self._term.evaluate(index, a)
            if self._loss.is_natural:
                rows.value += np.einsum("nr,nr->n", a, self._pull[index])
                rows.gradient += self._pull[index]
                return rows
        packed = np.zeros((n_rows, rank * (rank + 1) // 2))
        whole = index.size == self.n_rows
        for block in self._whole if whole else self._blocks(index):
            products = self._products
            own = self._products_at(block.place) if products is None else products[block.place]
            model = np.empty(len(own))
            for k, begin, end in block.long:
                np.dot(own[begin:end], a[k], out=model[begin:end])
            few = own[block.few]
            model[block.few] = np.einsum("pr,pr->p", few, a[block.of])
            loss, slope, curved = self._terms(self._values[block.place], model)
            is_bent = bool(curved.any())
            rows.value[block.present] += np.add.reduceat(loss, block.first)
            for k, begin, end in block.long:
                part = own[begin:end]
                rows.gradient[k] += slope[begin:end] @ part
                if is_bent:
                    rows.hessian[k] += (curved[begin:end, None] * part).T @ part
            if few.size:
                pull = slope[block.few, None] * few
                rows.gradient[block.short] += np.add.reduceat(pull, block.begins, axis=0)
                if is_bent:
                    bent = curved[block.few, None] * pairs(few)
                    packed[block.short] += np.add.reduceat(bent, block.begins, axis=0)
        rows.hessian += unpacked(packed, rank)
        return rows

    @cached_property
    def _whole(self) -> list[EntryBlock]:
        """The blocks of all rows, which most steps need."""
        return list(self._blocks(np.arange(self.n_rows)))

    def _blocks(self, index: NDArray[Any]) -> Iterator[EntryBlock]:
        """Cut the entries of some rows into blocks of a bounded number of pairs."""
        rank = self._others[0].shape[1]
        return cut_entries(self._starts, index, max(1, 2 * _PAIRS // (rank * (rank + 1))))

    @cached_property
    def _pull(self) -> Matrix:
        """What the entries of each row beyond zero add to its gradient, wherever it is."""
        sums = np.zeros((self.n_rows, self._others[0].shape[1]))
        for k in np.flatnonzero(np.diff(self._starts)):
            place = slice(self._starts[k], self._starts[k + 1])
            known = self._products
            products = self._products_at(place) if known is None else known[place]
            sums[k] = -self._values[place] @ products
        return sums

    def _terms(self, x: Matrix, model: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """Return what entries add to the sum of their row, and its derivatives in the model."""
        if self._term is not None:
            return self._loss.beyond_zero(x, model)
        return *self._loss.evaluate(x, model), self._loss.curvature(x, model)

    def _products_at(self, place: Any) -> Matrix:
        products = np.ones((self._values[place].size, self._others[0].shape[1]))
        for factor, own in zip(self._others, self._coords, strict=True):
            products *= factor[own[place]]
        return products


def _sizes(a: Matrix) -> Matrix:
    sizes: Matrix = np.max(np.abs(a), axis=1)
    return sizes


class _SomeRows(RowSource):
    """Some rows of many."""

    def __init__(self, source: RowSource, chosen: NDArray[Any]) -> None:
        self._source, self._chosen = source, chosen
        self.n_rows = chosen.size

    def evaluate(self, index: NDArray[Any], a: Matrix) -> Rows:
        """Return the sums of some of them."""
        return self._source.evaluate(self._chosen[index], a)
