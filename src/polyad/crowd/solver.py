r"""Dawid and Skene's model of a crowd, by expectation maximization in the log domain.

Model
    Item :math:`i` has the class :math:`z_i` with probability :math:`\pi`, and worker :math:`w`
    calls an item of class :math:`k` by label :math:`c` with probability :math:`\theta_{wkc}` [1]_.
    A row :math:`\theta_{wk}` has a Dirichlet prior with parameters :math:`a_k = s_k m_k`: what
    workers have in common, :math:`m_k`, and how much they have in common, :math:`s_k` (labels). The
    one-coin variant has one row for each worker, right or wrong, and all wrong labels are equal.
Without a prior
    Maximise :math:`\sum_i \log \sum_k \pi_k \prod_l \theta_{w_l k c_l}`: posteriors
    :math:`q_{ik}` of classes, then :math:`\theta_{wkc} \propto n_{wkc}`, the expected counts.
With a prior
    Variational: :math:`q(\theta_{wk})` is Dirichlet with parameters :math:`n_{wk} + a_k`, and
    :math:`\log \theta` in the posteriors becomes its mean :math:`\psi(n_{wkc} + a_{kc}) -
    \psi(n_{wk} + s_k)`. This raises a lower bound of the log-likelihood of all labels with
    :math:`\theta` integrated out,

    .. math:: \sum_i \log Z_i - \sum_{wk} \mathrm{KL}(q(\theta_{wk}) \,\|\, p(\theta_{wk}))
        + \log p(\pi) + \log p(a),

    by which the prior can be chosen: for given counts the bound is that of Dirichlet-multinomials,
    which Minka's fixed point raises [2]_. :math:`p(\pi)` adds an item to each class, and
    :math:`p(a)`, Gamma, is what one believes of a class before a label is seen: workers are more
    right than wrong, and alike to about ten labels.
Stopping
    The driver's. The objective, minus the log-likelihood or its bound, never rises.

References
----------
.. [1] A. P. Dawid, A. M. Skene, "Maximum likelihood estimation of observer error-rates using the
   EM algorithm", Applied Statistics 28 (1979).
.. [2] T. P. Minka, "Estimating a Dirichlet distribution", technical report, MIT (2000), eq. 55.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import digamma, gammaln

from polyad.fitting import Solver

if TYPE_CHECKING:
    from polyad.crowd.problem import CrowdProblem, Numbers

Variant = Literal["full", "one-coin"]

# Steps of the fixed point for the prior in an iteration, and the strength that it begins with: more
# than most crowds have, as what a few labels say of a worker is hard to forget.
_PRIOR_STEPS, _FIRST_STRENGTH = 10, 20.0
# The prior has settled in an iteration when its largest change is this part of it.
_SETTLED = 1e-3
# The Gamma prior of the Dirichlet parameters: one more than its shape, and its rate.
_DIAGONAL, _ROW, _RATE = 1.0, 1.0, 0.2
# What was never seen is this likely without a prior: zero would rule out classes for good.
_NEVER = 1e-10
_LARGEST_PARAMETER = 1e6


@dataclass(frozen=True)
class CrowdState:
    """Posteriors of classes, and what they were made with."""

    #: (items, classes).
    posteriors: Numbers
    #: Expected counts (workers, outcomes, rows): labels of classes, or right and wrong of one row.
    counts: Numbers
    #: Dirichlet parameters (outcomes, rows), zero without a prior.
    prior: Numbers
    #: Probabilities of classes (classes,).
    shares: Numbers
    objective: float


class CrowdSolver(Solver[CrowdState]):
    """Counts from posteriors, a prior from counts, posteriors from both.

    ``strength`` is the number of labels that the prior is worth, None to learn it, zero for none.
    """

    name = "DawidSkene"
    least = -math.inf
    scale = 1.0

    def __init__(
        self, problem: CrowdProblem, variant: Variant = "full", strength: float | None = None
    ) -> None:
        self.problem, self.variant = problem, variant
        # Of one class there is nothing to learn.
        self.strength = 0.0 if problem.n_classes == 1 else strength
        numbers = problem.n_labels + problem.n_items + problem.n_workers * problem.n_classes**2
        self.floor = 32 * float(np.finfo(float).eps) * numbers

    def init(self, posteriors: Numbers) -> CrowdState:
        """Return the state after posteriors that come from elsewhere."""
        rows = self.problem.n_classes if self.variant == "full" else 1
        hopes = _hopes(self.problem.n_classes if self.variant == "full" else 2, rows)
        pooled = self._fold(self.problem.counts(posteriors)).sum(axis=0) + hopes
        strength = _FIRST_STRENGTH if self.strength is None else self.strength
        return self._after(posteriors, strength * pooled / pooled.sum(axis=0))

    def step(self, state: CrowdState) -> CrowdState:
        """Return the state after one iteration."""
        return self._after(state.posteriors, state.prior)

    def objective(self, state: CrowdState) -> float:
        """Return minus the log-likelihood, or minus its lower bound if there is a prior."""
        return state.objective

    def _after(self, posteriors: Numbers, prior: Numbers) -> CrowdState:
        problem = self.problem
        counts = self._fold(problem.counts(posteriors))
        if self.strength == 0.0:
            shares = np.maximum(_column_sums(posteriors) / len(posteriors), np.finfo(float).tiny)
            found, likelihood = problem.posteriors(self.table(counts, prior), np.log(shares))
            return CrowdState(found, counts, prior, shares, -likelihood)
        prior = _better_prior(counts, prior, self.strength)
        shares = (_column_sums(posteriors) + 1.0) / (problem.n_items + problem.n_classes)
        logs = _mean_logs(counts, prior)
        found, likelihood = problem.posteriors(self._unfold(logs), np.log(shares))
        bound = likelihood - _divergence(counts, prior, logs) + np.log(shares).sum()
        bound += float(np.sum(_hopes(*prior.shape) * np.log(prior)))
        if self.strength is None:  # else a constant, beside which the rest may be small
            bound -= _RATE * float(prior.sum())
        return CrowdState(found, counts, prior, shares, -float(bound))

    def table(self, counts: Numbers, prior: Numbers) -> Numbers:
        """Return log-probabilities (workers, labels, classes), or their means with a prior."""
        if self.strength == 0.0:
            return self._unfold(np.log(probabilities(counts, prior)))
        return self._unfold(_mean_logs(counts, prior))

    def typical(self, counts: Numbers, prior: Numbers) -> Numbers:
        """Return log-probabilities (labels, classes) of a worker who was never seen."""
        pooled = counts.sum(axis=0) if self.strength == 0.0 else prior
        nothing = np.zeros_like(pooled)
        found: Numbers = self._unfold(np.log(probabilities(pooled[None], nothing)))[0]
        return found

    def confusions(self, counts: Numbers, prior: Numbers) -> Numbers:
        """Return probabilities (workers, labels, classes): the mean of what is known of them."""
        return np.exp(self._unfold(np.log(probabilities(counts, prior))))

    def _fold(self, counts: Numbers) -> Numbers:
        """Return counts (workers, labels, classes) as those of the outcomes of the variant."""
        if self.variant == "full":
            return counts
        right = np.trace(counts, axis1=1, axis2=2)
        return np.stack([right, counts.sum(axis=(1, 2)) - right], axis=1)[:, :, None]

    def _unfold(self, logs: Numbers) -> Numbers:
        """Return logarithms for outcomes of the variant as those (workers, labels, classes)."""
        if self.variant == "full":
            return logs
        n_classes = self.problem.n_classes
        if n_classes == 1:  # nothing can be wrong
            return np.zeros((len(logs), 1, 1))
        wrong = logs[:, 1] - math.log(n_classes - 1)
        same = np.eye(n_classes, dtype=bool)
        return np.where(same, logs[:, 0, :, None], wrong[:, :, None])


def _column_sums(rows: Numbers) -> Numbers:
    """Return the sums of columns, of which there are few."""
    sums: Numbers = np.ascontiguousarray(rows.T).sum(axis=1)
    return sums


def probabilities(counts: Numbers, prior: Numbers) -> Numbers:
    """Return the mean of outcomes after counts; equal ones where nothing is known."""
    known = counts + prior
    sums = known.sum(axis=1, keepdims=True)
    even = 1.0 / known.shape[1]
    found = np.where(sums > 0, known / np.where(sums > 0, sums, 1.0), even)
    found = np.maximum(found, _NEVER)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _hopes(n_outcomes: int, n_rows: int) -> Numbers:
    """Return the shape of the Gamma prior, less one: the right outcome is the likelier one."""
    hopes = np.full((n_outcomes, n_rows), _ROW / n_outcomes)
    hopes[np.arange(n_rows), np.arange(n_rows)] += _DIAGONAL
    return hopes


def _mean_logs(counts: Numbers, prior: Numbers) -> Numbers:
    """Return the means of log-probabilities of Dirichlet distributions."""
    after = counts + prior
    means: Numbers = digamma(after) - digamma(after.sum(axis=1, keepdims=True))
    return means


def _divergence(counts: Numbers, prior: Numbers, logs: Numbers) -> float:
    """Return the sum of KL divergences of what is known after the counts from the prior."""
    after = counts + prior
    gained = np.sum(gammaln(prior) - gammaln(after)) + np.sum(
        gammaln(after.sum(axis=1)) - gammaln(prior.sum(axis=0))
    )
    return float(gained + np.sum(counts * logs))


def _better_prior(counts: Numbers, prior: Numbers, strength: float | None) -> Numbers:
    """Return Dirichlet parameters of a higher bound for given counts, of given strength or any.

    With ``b`` and ``r`` below, ``sum b log a - r sum a`` is below the log-likelihood of counts up
    to a constant, and touches it at the prior that is given.
    """
    hopes, totals = _hopes(*prior.shape), counts.sum(axis=1)
    for _ in range(_PRIOR_STEPS):
        before = prior
        gains = prior * (digamma(counts + prior) - digamma(prior)).sum(axis=0) + hopes
        if strength is None:
            sums = prior.sum(axis=0)
            rates = (digamma(totals + sums) - digamma(sums)).sum(axis=0) + _RATE
            prior = np.minimum(gains / rates, _LARGEST_PARAMETER)
        else:
            prior = strength * gains / gains.sum(axis=0)
        if np.abs(prior - before).max() <= _SETTLED * prior.max():
            break
    return prior
