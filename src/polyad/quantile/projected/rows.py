r"""The scores of normalised samples on given loadings.

Problem
    For each sample, minimise :math:`\sum_i z_i \log(z_i / u_i \cdot v) - z_i + u_i \cdot v` over
    :math:`v \ge 0`, or :math:`|z - U v|^2` over all ``v``. The first is convex and solved by Newton
    steps (``fitting/row_newton``), the second by its normal equations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.fitting.row_newton import Rows, RowSource, Rules, minimize_rows
from polyad.threads import run_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Entries of the samples that are solved together, and the most samples.
_BLOCK = 1 << 19
_MOST_SAMPLES = 256


def nonnegative_scores(Z: Table, loadings: Table) -> Table:
    """Return the scores (n, k) of positive samples ``Z`` (d, n) on nonnegative loadings."""
    d, n = Z.shape
    k = loadings.shape[1]
    upper = np.triu_indices(k)
    pairs = loadings[:, upper[0]] * loadings[:, upper[1]]
    total = loadings.sum()
    result = np.empty((n, k))
    size = int(np.clip(_BLOCK // d, 1, _MOST_SAMPLES))
    rules = Rules(0.0, np.zeros(k), is_convex=True)

    def work(first: int, last: int) -> None:
        own = np.ascontiguousarray(Z[:, first:last])
        level = own.sum(axis=0) / total if total > 0 else np.zeros(last - first)
        start = np.repeat(level[:, None], k, axis=1)
        result[first:last] = minimize_rows(_Samples(own, loadings, pairs), start, rules)[0]

    run_blocks(work, ((first, min(first + size, n)) for first in range(0, n, size)))
    return result


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
