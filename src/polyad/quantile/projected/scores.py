r"""The scores of normalised samples on given loadings, and their derivative.

Problem
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

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.blocks import cut
from polyad.core.threads import run_blocks
from polyad.fitting.row_newton import Rows, RowSource, Rules, minimize_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Entries of the samples that are solved together, and the most samples.
_BLOCK = 1 << 19
_MOST_SAMPLES = 256
# Added to the diagonal of scaled Hessians: loadings that are next to dependent have no derivative.
_RIDGE = 1e-10


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
    size = int(np.clip(_BLOCK // d, 1, _MOST_SAMPLES))
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
