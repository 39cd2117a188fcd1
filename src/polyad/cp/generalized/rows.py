"""The coefficients of samples on given components, for every loss and kind of data.

With the other factors given, each sample is a problem of its own in as many unknowns as there are
components (see ``fitting.row_newton``). Samples are solved in chunks, which do not see each other:
the result for a sample does not depend on the others that are given. If the loss has a unit, each
sample is divided by a power of two close to its size: the smallest is solved as well as the
largest.

Sparse samples whose other entries are zeros have a sum over zeros that is the same function of the
coefficients for all of them. It has a closed form for the Gaussian and the Poisson loss. For other
losses it runs over all cells of a sample or, where these are too many, over a fixed choice of them:
an estimate without bias, as the semi-stratified one of Kolda and Hong (2020). At the stored entries
the loss of a zero is replaced by theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property, partial
from math import ceil, isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from polyad.core.arrays import to_numpy
from polyad.core.threads import as_slices, cut, cut_evenly, run_blocks
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
        solved, sums = minimize_rows(samples, levels[:, None] * direction, rules)
        if known is not None:
            begun = np.ldexp(known[rows] * safe, -exponents[:, None])
            other, lower = minimize_rows(samples, begun, rules)
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
        term = None
        most = _MAX_ROWS
        if isinstance(problem, ZerosProblem):
            term = zero_term(problem.loss, others, exact=exact)
            most = min(most, max(1, _CHUNK // term.n_cells))
        starts = np.searchsorted(problem.tensor.coords[0], np.arange(n_samples + 1))
        n_parts = max(ceil(n_samples / most), ceil(problem.tensor.nnz / _CHUNK))
        for rows in as_slices(cut_evenly(n_samples, ceil(n_samples / n_parts))):
            yield rows, partial(_sparse, problem, others, term, starts, rows)


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
    term: ZeroTerm | None,
    starts: NDArray[Any],
    rows: slice,
) -> EntrySamples:
    """Take some samples out of sparse data."""
    entries = problem.tensor
    chosen = slice(int(starts[rows.start]), int(starts[rows.stop]))
    coords = [row[chosen] for row in entries.coords[1:]]
    inside = starts[rows.start : rows.stop + 1] - starts[rows.start]
    return EntrySamples(problem.loss, others, coords, (entries.values[chosen], inside), term)


class Samples(RowSource):
    """Rows that know the mean and the number of their entries."""

    @abstractmethod
    def means(self) -> tuple[Matrix, Matrix]:
        """Return the mean of the known entries of each row, and their number."""

    @abstractmethod
    def divide(self) -> NDArray[np.int64]:
        """Divide each row by a power of two close to its largest entry; return the exponents."""


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


def pairs(products: Matrix) -> Matrix:
    """Return the products of all pairs of columns, each pair once."""
    left, right = np.tril_indices(products.shape[1])
    return products[:, left] * products[:, right]


def unpacked(packed: Matrix, n_components: int) -> Matrix:
    """Turn sums of pairs into symmetric matrices."""
    left, right = np.tril_indices(n_components)
    full = np.empty((len(packed), n_components, n_components))
    full[:, left, right] = packed
    full[:, right, left] = packed
    return full


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

    def evaluate(self, a: Matrix) -> Rows:
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

    def evaluate(self, a: Matrix) -> Rows:
        """Return the quadratic form of each row."""
        gradient = a @ self._gram
        hessian = np.repeat(self._gram[None], len(a), axis=0)
        return Rows(0.5 * np.einsum("nr,nr->n", a, gradient), gradient, hessian)


class _PoissonZeros(ZeroTerm):
    """The sum of the model: a linear form."""

    def __init__(self, others: Sequence[Matrix]) -> None:
        self._sums = np.prod([factor.sum(axis=0) for factor in others], axis=0)
        self.n_cells = 1

    def evaluate(self, a: Matrix) -> Rows:
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
    shape = [len(factor) for factor in others]
    n_cells = prod(shape)
    if exact or n_cells <= _CHOSEN_CELLS:
        return ZeroTerm(loss, Basis.of(others))
    generator = np.random.default_rng(_SEED)
    products = np.ones((_CHOSEN_CELLS, others[0].shape[1]))
    for factor, size in zip(others, shape, strict=True):
        products *= factor[generator.integers(0, size, _CHOSEN_CELLS)]
    weight = n_cells / _CHOSEN_CELLS
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
    those of each sample begin, with the end as the last; ``term`` is what zeros add, if entries
    that are not stored are zeros.
    """

    def __init__(
        self,
        loss: Loss,
        others: Sequence[Matrix],
        coords: Sequence[NDArray[Any]],
        entries: tuple[Matrix, NDArray[Any]],
        term: ZeroTerm | None,
    ) -> None:
        self._loss, self._others, self._coords, self._term = loss, others, coords, term
        self._values, self._starts = entries
        self.n_rows = len(self._starts) - 1

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

    def _row_of_entries(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self.n_rows), np.diff(self._starts))

    def evaluate(self, index: NDArray[Any], a: Matrix) -> Rows:
        """Return the sums of some rows."""
        n_rows, rank = a.shape
        rows = Rows(np.zeros(n_rows), np.zeros_like(a), np.zeros((n_rows, rank, rank)))
        if self._term is not None:
            rows = self._term.evaluate(a)
        packed = np.zeros((n_rows, rank * (rank + 1) // 2))
        counts = np.diff(self._starts)[index]
        row = np.repeat(np.arange(n_rows), counts)
        place = np.repeat(self._starts[:-1][index] - (np.cumsum(counts) - counts), counts)
        place = place + np.arange(place.size)
        step = max(1, _PAIRS // packed.shape[1])
        for block in as_slices(cut(place.size, step)):
            own, loss, slope, curved = self._entries(place[block], row[block], a)
            target: Any = csr_array(
                (np.ones(own.shape[0]), (row[block], np.arange(own.shape[0]))),
                shape=(n_rows, own.shape[0]),
            )
            rows.value += target @ loss
            rows.gradient += target @ (slope[:, None] * own)
            packed += target @ (curved[:, None] * pairs(own))
        rows.hessian += unpacked(packed, rank)
        return rows

    def _entries(
        self, place: NDArray[Any], row: NDArray[Any], a: Matrix
    ) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """Return the products of some entries, and what they add to the sums of their rows."""
        products = np.ones((place.size, a.shape[1]))
        for factor, own in zip(self._others, self._coords, strict=True):
            products *= factor[own[place]]
        model = np.einsum("pr,pr->p", products, a[row])
        x = self._values[place]
        curved = self._loss.curvature(x, model)
        loss, slope = self._loss.evaluate(x, model)
        if self._term is not None:
            nothing = np.zeros_like(x)
            curved = curved - self._loss.curvature(nothing, model)
            of_zero = self._loss.evaluate(nothing, model)
            loss, slope = loss - of_zero[0], slope - of_zero[1]
        return products, loss, slope, curved
