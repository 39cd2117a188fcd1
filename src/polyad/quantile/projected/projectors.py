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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyad.core.blocks import cut
from polyad.core.threads import run_blocks
from polyad.quantile.projected.scores import nonnegative_scores, pull_nonnegative_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Entries of the matrix that a block works on: its arrays stay in the cache.
_BLOCK = 1 << 15
_MOST_BLOCKS = 256
# Added to what is divided by, as a part of the mean of the matrix.
_TINY = 1e-20
# Gaps of eigenvalues below this part of the largest are rounding: the derivative is held there.
_SMALLEST_GAP = 1e-8


@dataclass(frozen=True)
class Projection:
    """A matrix of low rank, and the derivative of how it came about.

    Attributes
    ----------
    loadings : ndarray of shape (d, k)
    scores : ndarray of shape (k, n)
    pull : callable
        Takes the gradient with respect to the product of both, returns that with respect to the
        matrix that was projected.
    """

    loadings: Table
    scores: Table
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
