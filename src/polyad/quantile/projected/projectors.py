r"""Projectors onto matrices of low rank, with their derivatives.

``NMFProjector``
    A fixed number of multiplicative updates for the Kullback-Leibler divergence from a fixed start,
    :math:`V \leftarrow V \circ U^T(Z / UV) / U^T 1`, then :math:`U` likewise (Lee and Seung); then
    the best scores of the loadings that they end with, because these are what a new sample has too
    (the paper takes the scores of the last update). The derivative is that of this very
    computation, in reverse. Memory: all factors on the way, ``O(inner_iter (d + n) k)``.
``SVDProjector``
    The truncated singular value decomposition, :math:`Z P` with the projector ``P`` onto the
    leading eigenvectors of :math:`A = Z^T Z`. With eigenvalues :math:`\lambda` and eigenvectors
    ``E``, the derivative of ``P`` is :math:`E (\Phi \circ E^T dA\, E) E^T`, where :math:`\Phi_{ij}
    = 1 / (\lambda_i - \lambda_j)` for pairs of which one is kept and one is not.

The scores of normalised samples on given loadings
    For each sample, minimise :math:`\sum_i z_i \log(z_i / u_i \cdot v) - z_i + u_i \cdot v` over
    :math:`v \ge 0`, or :math:`|z - U v|^2` over all ``v``. The first is convex and solved by Newton
    steps (``fitting/row_newton``), the second by its normal equations.
Derivative
    Of the first, by the implicit function theorem: where :math:`v` is positive, :math:`h(U, v, z) =
    \sum_i u_i (1 - z_i / p_i) = 0` with :math:`p = U v`. For a gradient ``g`` with respect to ``v``
    let :math:`H \lambda = g`, with the Hessian :math:`H = \sum_i u_i u_i^T z_i / p_i^2` of the
    positive ones. Then the gradient with respect to :math:`z_i` is :math:`u_i \cdot \lambda / p_i`,
    and that with respect to :math:`u_i` is :math:`-(1 - z_i / p_i) \lambda - (u_i \cdot \lambda)
    (z_i / p_i^2)\, v`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.fitting.row_newton import Rows, RowSource, Rules, minimize_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Entries of the samples that are solved together, and the most samples.
_SAMPLE_BLOCK = 1 << 19
_MOST_SAMPLES = 256
# Added to the diagonal of scaled Hessians: loadings that are next to dependent have no derivative.
_RIDGE = 1e-10
# Entries of the matrix that a block works on: its arrays stay in the cache.
_BLOCK = 1 << 15
_MOST_BLOCKS = 256
# Added to what is divided by, as a part of the mean of the matrix.
_TINY = 1e-20
# Gaps of eigenvalues below this part of the largest are rounding: the derivative is held there.
_SMALLEST_GAP = 1e-8


def nonnegative_scores(Z: Table, loadings: Table, start: Table | None = None) -> Table:
    """Return the scores (n, k) of positive samples ``Z`` (d, n) on nonnegative loadings.

    They are the only ones, wherever they start from; but near ones are found sooner.
    """
    k = loadings.shape[1]
    pairs = _pairs(loadings)
    total = loadings.sum()
    result = np.empty((Z.shape[1], k))
    rules = Rules(0.0, np.zeros(k), is_convex=True)

    def work(first: int, last: int) -> None:
        own = np.ascontiguousarray(Z[:, first:last])
        if start is None:
            level = own.sum(axis=0) / total if total > 0 else np.zeros(last - first)
            near = np.repeat(level[:, None], k, axis=1)
        else:
            near = start[first:last]
        result[first:last] = minimize_rows(_Samples(own, loadings, pairs), near, rules)[0]

    run_blocks(work, _sample_blocks(Z.shape))
    return result


def pull_nonnegative_scores(
    Z: Table, loadings: Table, scores: Table, gradient: Table
) -> tuple[Table, Table]:
    """Return the gradients with respect to ``Z`` (d, n) and the loadings, by that of the scores."""
    pairs = _pairs(loadings)
    blocks = _sample_blocks(Z.shape)
    by_z = np.empty_like(Z)
    parts = np.empty((len(blocks), *loadings.shape))

    def work(first: int, last: int) -> None:
        own = Z[:, first:last]
        values = scores[first:last]
        with np.errstate(all="ignore"):  # a gradient that is not finite ends the fit, and is told
            found = _Samples(own, loadings, pairs).evaluate(np.arange(last - first), values)
            solved = _solve_free(found.hessian, gradient[first:last], values > 0.0)
            product = loadings @ values.T
            by_own = loadings @ solved.T / product
            by_z[:, first:last] = by_own
            ratio = own / product
            parts[first // blocks[0][1]] = (ratio - 1.0) @ solved - (by_own * ratio) @ values

    run_blocks(work, blocks)
    return by_z, parts.sum(axis=0)


def _solve_free(hessian: Table, gradient: Table, free: NDArray[np.bool_]) -> Table:
    """Solve ``H x = g`` of each sample for the free coefficients; the others are zero."""
    both = free[:, :, None] & free[:, None, :]
    own = np.where(both, hessian, 0.0)
    size = np.sqrt(np.einsum("nii->ni", own))
    size = np.where(size > 0.0, size, 1.0)
    # Scaled to a diagonal of ones; what is next to singular is no direction that data decides.
    scaled = own / (size[:, :, None] * size[:, None, :])
    index = np.arange(free.shape[1])
    scaled[:, index, index] = 1.0 + _RIDGE
    right = np.where(free, gradient, 0.0) / size
    result: Table = np.linalg.solve(scaled, right[:, :, None])[:, :, 0] / size
    return result


def _pairs(loadings: Table) -> Table:
    """Return the products of all pairs of columns, each pair once."""
    upper = np.triu_indices(loadings.shape[1])
    return loadings[:, upper[0]] * loadings[:, upper[1]]


def _sample_blocks(shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Cut the samples into blocks of equal size, but for the last."""
    d, n = shape
    size = int(np.clip(_SAMPLE_BLOCK // d, 1, _MOST_SAMPLES))
    return cut(n, size)


def linear_scores(Z: Table, loadings: Table) -> Table:
    """Return the least-squares scores (n, k) of samples ``Z`` (d, n)."""
    solved = np.linalg.lstsq(loadings.T @ loadings, loadings.T @ Z, rcond=1e-14)[0]
    return np.ascontiguousarray(solved.T, dtype=np.float64)


class _Samples(RowSource):
    """The divergence of some samples from products with the loadings."""

    def __init__(self, Z: Table, loadings: Table, pairs: Table) -> None:
        self.Z, self.loadings, self.pairs = Z, loadings, pairs
        self.n_rows = Z.shape[1]

    def evaluate(self, index: NDArray[Any], a: Table) -> Rows:
        """Return the divergence of some samples at scores ``a``, with its derivatives."""
        k = a.shape[1]
        own, product = self.Z[:, index], self.loadings @ a.T
        ratio = own / product
        value = (product - own * np.log(product)).sum(axis=0)
        hessian = np.empty((index.size, k, k))
        upper = np.triu_indices(k)
        hessian[:, upper[0], upper[1]] = (ratio / product).T @ self.pairs
        hessian[:, upper[1], upper[0]] = hessian[:, upper[0], upper[1]]
        return Rows(value, (1.0 - ratio).T @ self.loadings, hessian)


@dataclass(frozen=True)
class Projection:
    """A matrix of low rank, and the derivative of how it came about."""

    #: (d, k)
    loadings: Table
    #: (k, n)
    scores: Table
    #: Takes the gradient with respect to the product of both, returns that with respect to the
    #: matrix that was projected.
    pull: Callable[[Table], Table]


class Projector(ABC):
    """Finds a matrix of low rank near a given one."""

    @abstractmethod
    def start(self, shape: tuple[int, int], seed: int) -> list[Table]:
        """Return the arrays from which every projection begins."""

    @abstractmethod
    def project(self, Z: Table, start: Sequence[Table], *, with_pull: bool = True) -> Projection:
        """Project a matrix (d, n); ``pull`` may only be called if it was asked for."""


@dataclass(frozen=True)
class NMFProjector(Projector):
    """Nonnegative factors, by ``inner_iter`` multiplicative updates of both."""

    n_components: int
    inner_iter: int

    def start(self, shape: tuple[int, int], seed: int) -> list[Table]:
        """Return random loadings and scores."""
        generator = np.random.default_rng(seed)
        d, n = shape
        loadings = generator.uniform(0.01, 1.01, (d, self.n_components))
        return [loadings, generator.uniform(0.01, 1.01, (self.n_components, n))]

    def project(self, Z: Table, start: Sequence[Table], *, with_pull: bool = True) -> Projection:
        """Run the updates, and solve for the scores."""
        run = self.updated(Z, start, remember=with_pull)
        loadings, scores = run.U, nonnegative_scores(Z, run.U, run.V.T)

        def pull(gradient: Table) -> Table:
            by_scores = gradient.T @ loadings
            by_z, by_loadings = pull_nonnegative_scores(Z, loadings, scores, by_scores)
            return by_z + run.pull(gradient @ scores + by_loadings)

        return Projection(loadings, np.ascontiguousarray(scores.T), pull)

    def updated(self, Z: Table, start: Sequence[Table], *, remember: bool = False) -> Updates:
        """Run the updates alone."""
        run = Updates(Z, *start)
        for _ in range(self.inner_iter):
            run.update(remember=remember)
        return run


class Updates:
    """Multiplicative updates of ``U`` and ``V``, remembered to be gone through in reverse."""

    def __init__(self, Z: Table, U: Table, V: Table) -> None:
        self.Z, self.U, self.V = Z, U, V
        self.tiny = _TINY * float(Z.mean()) + np.finfo(np.float64).tiny
        d, n = Z.shape
        step = max(1, _BLOCK // n, -(-d // _MOST_BLOCKS))
        self.rows_of_block: int = step
        self.blocks = cut(d, step)
        # For each update: the factors before it, and what they were multiplied by.
        self.trail: list[tuple[Table, Table, Table, Table]] = []

    def update(self, *, remember: bool) -> None:
        """Make one update of the scores, then one of the loadings."""
        U, V, Z = self.U, self.V, self.Z
        parts = np.empty((len(self.blocks), *V.shape))

        def gather(first: int, last: int) -> None:
            own = U[first:last]
            np.matmul(own.T, Z[first:last] / (own @ V + self.tiny), out=parts[self._number(first)])

        run_blocks(gather, self.blocks)
        growth_v = parts.sum(axis=0) / (U.sum(axis=0)[:, None] + self.tiny)
        new_v = V * growth_v
        growth_u = np.empty_like(U)
        total = new_v.sum(axis=1) + self.tiny

        def grow(first: int, last: int) -> None:
            ratio = Z[first:last] / (U[first:last] @ new_v + self.tiny)
            growth_u[first:last] = ratio @ new_v.T / total

        run_blocks(grow, self.blocks)
        if remember:
            self.trail.append((U, V, growth_u, growth_v))
        self.U, self.V = U * growth_u, new_v

    def pull(self, by_u: Table) -> Table:
        """Return the gradient with respect to ``Z`` for one with respect to the last loadings."""
        by_v = np.zeros_like(self.V)
        by_z = np.zeros_like(self.Z)
        after = self.V
        for U, V, growth_u, growth_v in reversed(self.trail):
            by_u, by_v = self._pull_loadings((U, after, growth_u), by_u, by_v, by_z)
            by_u, by_v = self._pull_scores((U, V, growth_v), by_u, by_v, by_z)
            after = V
        return by_z

    def _pull_loadings(
        self, before: tuple[Table, Table, Table], by_new: Table, by_v: Table, by_z: Table
    ) -> tuple[Table, Table]:
        """Undo ``U' = U growth`` with ``growth = (Z / UV) V' / V 1``; add to ``by_z``."""
        U, V, growth = before
        total = V.sum(axis=1) + self.tiny
        by_sums = by_new * U / total
        by_u = by_new * growth
        parts = np.empty((len(self.blocks), *V.shape))

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            product = U[own] @ V + self.tiny
            ratio = self.Z[own] / product
            by_ratio = by_sums[own] @ V / product
            by_z[own] += by_ratio
            by_product = -by_ratio * ratio
            by_u[own] += by_product @ V.T
            parts[self._number(first)] = by_sums[own].T @ ratio + U[own].T @ by_product

        run_blocks(work, self.blocks)
        by_total = -(by_sums * growth).sum(axis=0)
        return by_u, by_v + parts.sum(axis=0) + by_total[:, None]

    def _pull_scores(
        self, before: tuple[Table, Table, Table], by_u: Table, by_new: Table, by_z: Table
    ) -> tuple[Table, Table]:
        """Undo ``V' = V growth`` with ``growth = U' (Z / UV) / U' 1``; add to ``by_z``."""
        U, V, growth = before
        by_sums = by_new * V / (U.sum(axis=0)[:, None] + self.tiny)
        by_u = by_u - (by_sums * growth).sum(axis=1)
        parts = np.empty((len(self.blocks), *V.shape))

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            product = U[own] @ V + self.tiny
            ratio = self.Z[own] / product
            by_ratio = U[own] @ by_sums / product
            by_z[own] += by_ratio
            by_product = -by_ratio * ratio
            by_u[own] += ratio @ by_sums.T + by_product @ V.T
            parts[self._number(first)] = U[own].T @ by_product

        run_blocks(work, self.blocks)
        return by_u, by_new * growth + parts.sum(axis=0)

    def _number(self, first: int) -> int:
        """Return the number of the block that begins somewhere."""
        return first // self.rows_of_block


@dataclass(frozen=True)
class SVDProjector(Projector):
    """The nearest matrix of some rank, by the truncated singular value decomposition."""

    n_components: int

    def start(self, shape: tuple[int, int], seed: int) -> list[Table]:
        """Return nothing: the projection does not begin anywhere."""
        return []

    def project(self, Z: Table, start: Sequence[Table], *, with_pull: bool = True) -> Projection:
        """Decompose the smaller of ``Z' Z`` and ``Z Z'``."""
        is_wide = Z.shape[0] < Z.shape[1]
        tall = Z.T if is_wide else Z
        values, vectors = np.linalg.eigh(tall.T @ tall)
        values, vectors = values[::-1], np.ascontiguousarray(vectors[:, ::-1])
        kept = vectors[:, : self.n_components]

        def pull(gradient: Table) -> Table:
            by_tall = _pull_projection(
                tall, values, vectors, gradient.T if is_wide else gradient, kept.shape[1]
            )
            return by_tall.T if is_wide else by_tall

        inside = tall @ kept
        loadings, scores = (kept, inside.T) if is_wide else (inside, kept.T)
        return Projection(np.ascontiguousarray(loadings), np.ascontiguousarray(scores), pull)


def _pull_projection(Z: Table, values: Table, vectors: Table, gradient: Table, rank: int) -> Table:
    """Pull a gradient with respect to ``Z P`` back to ``Z`` (d, n), d not below n."""
    kept, others = vectors[:, :rank], vectors[:, rank:]
    by_projector = Z.T @ gradient
    between = kept.T @ (by_projector + by_projector.T) @ others
    largest = float(values[0]) if values[0] > 0.0 else 1.0
    gaps = (values[:rank, None] - values[None, rank:]) / largest
    # Where two eigenvalues are equal, the vectors kept are a matter of rounding.
    between *= gaps / (gaps**2 + _SMALLEST_GAP**2) / largest
    result: Table = (gradient @ kept) @ kept.T
    # The derivative with respect to A is symmetric; half of it counts twice.
    inside = Z @ kept, Z @ others
    result += inside[0] @ (between @ others.T) + inside[1] @ (between.T @ kept.T)
    return result
