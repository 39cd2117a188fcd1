r"""Variational expectation maximization, from where the moments left the parameters.

Problem
    Maximise a lower bound of the likelihood of the samples, with :math:`q(x_i)` a Dirichlet
    distribution of parameters :math:`\gamma_i`: the sum over samples of

    .. math:: \sum_j \log \sum_h \ell_{ijh} e^{E_q \log x_{ih}}
        - \mathrm{KL}(q(x_i) \,\|\, \mathrm{Dirichlet}(\alpha)),

    plus one pseudo-observation for each component and categorical variable, spread evenly over its
    categories. Parameters :math:`\alpha` stay.
Update
    The parameters of each component from the parts of the entries that were due to it, then some
    rounds of :math:`\gamma_{ih} = \alpha_h + \sum_j r_{ijh}`. Each is a maximum over what it
    changes: the bound never falls. The objective is minus the bound per observed entry, with real
    columns in units of their ranges: neither it nor rounding depends on what these are.
Cost per iteration
    ``O(n p k)``, a few times; memory for a block of samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln, psi

from polyad.core.threads import run_blocks
from polyad.fitting import Solver
from polyad.membership.posterior import Emissions, observed_entries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.membership.partitions import Plan

    Matrix = NDArray[np.float64]

# Rounds over the memberships of a block in an iteration.
_ROUNDS = 3
#: Observations that are made up for each component and categorical variable.
PSEUDO_COUNT = 1.0
#: Variances are no smaller than this part of that of the whole column.
LEAST_VARIANCE = 1e-4


@dataclass(frozen=True)
class RefineState:
    """Parameters, memberships, the bound, and the sums that the next parameters follow from."""

    probabilities: Matrix
    means: Matrix
    variances: Matrix
    gamma: Matrix
    #: The parameters of the Dirichlet distribution, which stay.
    alpha: Matrix
    #: What was told of the matching of each partition before.
    matches: Matrix
    #: Of the parts of entries due to each component: rows of categories, and numbers.
    counts: Matrix
    weights: Matrix
    sums: Matrix
    squares: Matrix
    bound: float


class RefineSolver(Solver[RefineState]):
    """Variational EM of a mixed membership model."""

    name = "MixedMembership"
    least = -np.inf

    def __init__(self, plan: Plan, spread: Matrix) -> None:
        table, own = plan.table, plan.table.variables
        numbers = ~own.is_categorical
        self._low = np.where(own.is_count, 0.0, own.ranges[numbers, 0])
        self._span = np.where(own.is_count, 1.0, own.span()[numbers])
        self._pseudo_counts = (PSEUDO_COUNT / np.repeat(own.named_sizes, own.named_sizes))[:, None]
        values = (table.values.astype(np.float64) - self._low) / self._span
        self.plan, self.table = plan, replace(table, values=values)
        #: Variances of the columns of numbers, in their units.
        self.spread = spread / self._span**2
        seen = (table.codes.astype(np.int64) - table.first >= 0).sum() if table.codes.size else 0
        self.n_observed = max(1, int(seen + (~np.isnan(table.values)).sum()))
        self.scale = 1.0
        self.floor = 1e-12

    def init(self, emissions: Emissions, alpha: Matrix, matches: Matrix) -> RefineState:
        """Return the state of given parameters, with their best memberships."""
        gamma = np.tile(alpha + 1.0, (self.table.n_samples, 1))
        means = (emissions.means - self._low[:, None]) / self._span[:, None]
        scaled = replace(emissions, means=means, variances=emissions.variances / self._span**2)
        return self._expect(scaled, gamma, alpha, matches)

    def step(self, state: RefineState) -> RefineState:
        """Return the state after new parameters and then new memberships."""
        return self._expect(self._maximized(state), state.gamma, state.alpha, state.matches)

    def objective(self, state: RefineState) -> float:
        """Return minus the bound per observed entry."""
        return -state.bound / self.n_observed

    def emissions(self, state: RefineState) -> Emissions:
        """Return the parameters of a state, in the units of the data."""
        means = self._low[:, None] + self._span[:, None] * state.means
        variances = self._span**2 * state.variances
        return Emissions(self.table.variables, state.probabilities, means, variances)

    def _maximized(self, state: RefineState) -> Emissions:
        """Return the parameters of the largest bound for the parts of the entries."""
        own = self.table.variables
        sizes = own.named_sizes
        counts = state.counts + self._pseudo_counts
        owner = np.repeat(np.arange(len(sizes)), sizes)
        totals = np.zeros((len(sizes), counts.shape[1]))
        np.add.at(totals, owner, counts)
        probabilities = counts / totals[owner] if len(counts) else counts
        weights = np.maximum(state.weights, 1e-300)
        # A component that has no part in a variable keeps its mean.
        means = np.where(state.weights > 1e-12, state.sums / weights, state.means)
        means = own.above_least(means)
        # About the new means: E y² - 2 m E y + m².
        around = state.squares - (2 * means * state.sums - means**2 * state.weights).sum(axis=1)
        variances = around / np.maximum(state.weights.sum(axis=1), 1e-300)
        variances = np.maximum(variances, LEAST_VARIANCE * self.spread)
        return Emissions(own, probabilities, means, variances)

    def _expect(
        self, emissions: Emissions, gamma: Matrix, alpha: Matrix, matches: Matrix
    ) -> RefineState:
        """Return the state of given parameters, after some rounds over the memberships."""
        blocks = emissions.blocks(self.table.n_samples)
        found = np.empty_like(gamma)
        parts: list[Any] = [None] * len(blocks)

        def expect(k: int) -> None:
            rows = slice(*blocks[k])
            like, shift = emissions.likelihoods(self.table, blocks[k])
            seen = observed_entries(self.table, blocks[k])
            own = gamma[rows]
            for _ in range(_ROUNDS):
                own = alpha + _shares(like, seen, own)[0].sum(axis=1)
            found[rows] = own
            shares, logs = _shares(like, seen, own)
            bound = (logs + shift * seen).sum() - _divergence(own, alpha)
            parts[k] = (*self._sums(blocks[k], shares), bound)

        run_blocks(expect, ((k,) for k in range(len(blocks))))
        counts, weights, sums, squares, bound = (sum(own) for own in zip(*parts, strict=True))
        if len(emissions.probabilities):
            bound += float((self._pseudo_counts * np.log(emissions.probabilities)).sum())
        return RefineState(
            *(emissions.probabilities, emissions.means, emissions.variances, found, alpha, matches),
            *(counts, weights, sums, squares, float(bound)),
        )

    def _sums(self, block: tuple[int, int], shares: Matrix) -> tuple[Matrix, ...]:
        """Return what parameters follow from: sums over the samples of a block."""
        table, n_components = self.table, shares.shape[2]
        sizes = table.variables.named_sizes
        codes = table.categories_at(slice(*block))
        rows = (np.maximum(codes, 0) + np.cumsum(sizes) - sizes).ravel()
        named, numbers = shares[:, : len(sizes)], shares[:, len(sizes) :]
        counts = np.empty((int(sizes.sum()), n_components))
        for h in range(n_components):
            counts[:, h] = np.bincount(rows, named[:, :, h].ravel(), minlength=len(counts))
        values = np.nan_to_num(table.values[slice(*block)].astype(np.float64))[:, :, None]
        weighted = numbers * values
        squares = (weighted * values).sum(axis=(0, 2))
        return counts, numbers.sum(axis=0), weighted.sum(axis=0), squares


def _shares(like: Matrix, seen: NDArray[np.bool_], gamma: Matrix) -> tuple[Matrix, Matrix]:
    """Return the parts of observed entries due to components, and the logarithms of their sums."""
    mean_logs = psi(gamma) - psi(gamma.sum(axis=1, keepdims=True))
    highest = mean_logs.max(axis=1)
    scale = np.exp(mean_logs - highest[:, None])
    total = np.matmul(like, scale[:, :, None])
    shares = like * scale[:, None, :] / total * seen[:, :, None]
    return shares, (np.log(total[:, :, 0]) + highest[:, None]) * seen


def _divergence(gamma: Matrix, alpha: Matrix) -> float:
    """Return the sum over samples of KL(Dirichlet(gamma) | Dirichlet(alpha))."""
    total = gamma.sum(axis=1)
    mean_logs = psi(gamma) - psi(total)[:, None]
    constant = gammaln(total) - gammaln(gamma).sum(axis=1)
    prior = gammaln(alpha.sum()) - gammaln(alpha).sum()
    return float((constant - prior + ((gamma - alpha) * mean_logs).sum(axis=1)).sum())
