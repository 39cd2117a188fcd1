r"""How likely entries are for each component, and what that says of the memberships of a sample.

An entry of a sample comes from one component, which is drawn from the memberships: its likelihood
is :math:`\sum_h x_h \ell_{jh}`, where :math:`\ell_{jh}` is the probability of its category, a
Poisson probability or a normal density. The memberships of a sample are the mode of their posterior
in the softmax basis: the maximum of

.. math:: \sum_j \log(\ell_j \cdot x) + \sum_h \alpha_h \log x_h

over the simplex. It is concave, and its maximum is inside, and unique, for every :math:`\alpha >
0`. (In the basis of :math:`x` itself :math:`\alpha_h - 1` would stand for :math:`\alpha_h`, and
below one there is no maximum.) Newton's method in relative steps :math:`x (1 + v)`, along the
simplex, with the gradient and the second derivative in relative steps

.. math:: g = \alpha + \sum_j r_j, \quad H = \mathrm{diag}(\alpha) + \sum_j r_j r_j^T, \quad
    r_{jh} = \ell_{jh} x_h / (\ell_j \cdot x).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from polyad.core.threads import cut, run_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.membership.variables import Table, Variables

    Matrix = NDArray[np.float64]

# Likelihoods that are held at a time, of some samples, all variables and all components (16 MB).
_LIKELIHOODS_AT_A_TIME = 1 << 21
# Steps of expectation maximization before Newton's: they find the neighbourhood.
_FIRST_STEPS = 4
_NEWTON_STEPS = 100
# The square of a step, as measured by the second derivative, after which none is needed.
_SETTLED = 1e-20
# A step goes at most this part of the way to the boundary.
_WITHIN = 0.95


@dataclass(frozen=True)
class Emissions:
    """What each component says of each variable."""

    variables: Variables
    #: Probabilities of the categories of all categorical variables (rows, k), above zero.
    probabilities: Matrix
    #: Means of the other variables (number of them, k).
    means: Matrix
    #: Of the normal ones, one for each of the means; those of counts are not used.
    variances: Matrix

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the rows of each categorical variable begin."""
        sizes = self.variables.named_sizes
        return np.cumsum(sizes) - sizes

    def likelihoods(self, table: Table, block: tuple[int, int]) -> tuple[Matrix, Matrix]:
        """Return likelihoods (samples, variables, k), and what their logarithms are less by.

        What is missing has ones. Categorical variables come first, whatever their places.
        """
        rows = slice(*block)
        codes = table.categories_at(rows)
        like = self.probabilities[np.maximum(codes, 0) + self.starts]
        if table.has_missing:
            like[codes < 0] = 1.0
        shift = np.zeros(codes.shape)
        if not len(self.means):
            return like, shift
        values = table.values[rows].astype(np.float64)
        logs = self._logs(np.nan_to_num(values))
        logs[np.isnan(values)] = 0.0
        highest = logs.max(axis=2)
        return (
            np.concatenate([like, np.exp(logs - highest[:, :, None])], axis=1),
            np.concatenate([shift, highest], axis=1),
        )

    def _logs(self, values: Matrix) -> Matrix:
        """Return the logarithms of the densities of numbers."""
        is_count = self.variables.is_count
        logs: Matrix = np.empty((*values.shape, self.means.shape[1]))
        counted, mean = values[:, is_count, None], self.means[is_count]
        logs[:, is_count] = counted * np.log(mean) - mean - gammaln(counted + 1.0)
        measured, mean = values[:, ~is_count, None], self.means[~is_count]
        variance = self.variances[~is_count][:, None]
        logs[:, ~is_count] = -0.5 * (
            (measured - mean) ** 2 / variance + np.log(2.0 * np.pi * variance)
        )
        return logs

    def blocks(self, n_samples: int) -> list[tuple[int, int]]:
        """Cut samples into blocks whose likelihoods fit memory."""
        width = len(self.variables.kinds) * self.probabilities.shape[1]
        return cut(n_samples, max(1, _LIKELIHOODS_AT_A_TIME // width))


def memberships(table: Table, emissions: Emissions, alpha: Matrix) -> Matrix:
    """Return the memberships of samples (n, k), each for itself."""
    found: Matrix = np.empty((table.n_samples, len(alpha)))

    def solve(first: int, last: int) -> None:
        like, _ = emissions.likelihoods(table, (first, last))
        found[first:last] = posterior_mode(like, alpha)

    run_blocks(solve, emissions.blocks(table.n_samples))
    return found


def posterior_mode(like: Matrix, alpha: Matrix) -> Matrix:
    """Return the mode for likelihoods (n, p, k)."""
    found: Matrix = np.tile(alpha / alpha.sum(), (len(like), 1))
    for _ in range(_FIRST_STEPS):
        grown = alpha + _responsibilities(like, found).sum(axis=1)
        found = grown / grown.sum(axis=1, keepdims=True)
    active = np.arange(len(like))
    for _ in range(_NEWTON_STEPS):
        moved, size = _newton_step(like, found[active], alpha)
        found[active] = moved
        going = size > _SETTLED
        if not going.any():
            break
        active, like = active[going], like[going] if not going.all() else like
    return found


def _newton_step(like: Matrix, x: Matrix, alpha: Matrix) -> tuple[Matrix, Matrix]:
    """Return better memberships, and the square of the full step."""
    parts = _responsibilities(like, x)
    gradient = alpha + parts.sum(axis=1)
    second = np.matmul(parts.transpose(0, 2, 1), parts) + np.diag(alpha)
    both = np.linalg.solve(second, np.stack([gradient, x], axis=2))
    free, along = both[:, :, 0], both[:, :, 1]
    # The multiplier keeps the sum of x v at zero.
    multiplier = (x * free).sum(axis=1) / (x * along).sum(axis=1)
    step = free - multiplier[:, None] * along
    size = (step * gradient).sum(axis=1)
    downwards = np.maximum(-step.min(axis=1), 1e-300)
    length = np.minimum(1.0, _WITHIN / downwards)
    before = _value(like, x, alpha)
    moved = x * (1.0 + length[:, None] * step)
    for _ in range(30):
        short = _value(like, moved, alpha) < before + 0.25 * length * size
        # Below rounding nothing can be compared, and a full step is the best.
        short &= size > 1e-12 * np.abs(before)
        if not short.any():
            break
        length = np.where(short, 0.5 * length, length)
        moved = x * (1.0 + length[:, None] * step)
    return moved / moved.sum(axis=1, keepdims=True), size


def _responsibilities(like: Matrix, x: Matrix) -> Matrix:
    """Return how much of each entry comes from each component."""
    total = np.matmul(like, x[:, :, None])
    parts: Matrix = like * x[:, None, :] / total
    return parts


def _value(like: Matrix, x: Matrix, alpha: Matrix) -> Matrix:
    """Return the logarithm of the posterior, but for a constant."""
    total: Matrix = np.log(np.matmul(like, x[:, :, None])[:, :, 0]).sum(axis=1)
    return total + np.log(x) @ alpha


def held_out_likelihood(
    table: Table, emissions: Emissions, alpha: Matrix, n_folds: int
) -> tuple[float, int]:
    """Return the log-likelihood of all entries and their number.

    The entries of a fold of the variables are predicted from memberships that are estimated on the
    other folds, so that no entry has a part in its own prediction.
    """
    n_variables = len(table.variables.kinds)
    folds = np.arange(n_variables) % min(n_folds, n_variables)
    blocks = emissions.blocks(table.n_samples)
    sums, counts = np.zeros(len(blocks)), np.zeros(len(blocks), dtype=np.int64)

    def add(k: int) -> None:
        like, shift = emissions.likelihoods(table, blocks[k])
        is_seen = observed_entries(table, blocks[k])
        counts[k] = is_seen.sum()
        for fold in np.unique(folds):
            inside = folds == fold
            x = posterior_mode(like[:, ~inside], alpha)
            logs = np.log(np.matmul(like[:, inside], x[:, :, None])[:, :, 0]) + shift[:, inside]
            sums[k] += logs[is_seen[:, inside]].sum()

    run_blocks(add, ((k,) for k in range(len(blocks))))
    return float(sums.sum()), int(counts.sum())


def observed_entries(table: Table, block: tuple[int, int]) -> NDArray[np.bool_]:
    """Say which entries are there, categorical variables first."""
    rows = slice(*block)
    codes = table.categories_at(rows)
    return np.concatenate([codes >= 0, ~np.isnan(table.values[rows])], axis=1)
