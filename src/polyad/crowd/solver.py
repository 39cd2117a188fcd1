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

from polyad.crowd.kernels import fill_rises, fill_slopes
from polyad.fitting import Solver

if TYPE_CHECKING:
    from polyad.crowd.problem import CrowdProblem, Numbers

Variant = Literal["full", "one-coin"]

# Steps of the fixed point for the prior in an iteration, and the strength that it begins with: more
# than most crowds have, as what a few labels say of a worker is hard to forget.
_PRIOR_STEPS, _FIRST_STRENGTH = 10, 20.0
# The prior has settled in an iteration when its largest change is this part of it.
_SETTLED = 1e-3
# The Gamma prior of the Dirichlet parameters: its shape less one, and its rate.
_DIAGONAL, _ROW, _RATE = 1.0, 1.0, 0.2
# What was never seen is this likely without a prior: zero would rule out classes for good.
_NEVER = 1e-10
_LARGEST_PARAMETER = 1e6


@dataclass(frozen=True)
class CrowdState:
    """What posteriors of classes are made with, and what they come to."""

    #: Counts (workers, outcomes, rows): labels of classes, or right and wrong of one row.
    counts: Numbers
    #: Dirichlet parameters (outcomes, rows), zero without a prior.
    prior: Numbers
    #: Probabilities of classes (classes,).
    shares: Numbers
    #: The counts of the posteriors, and their sums (classes,).
    expected: Numbers
    sizes: Numbers
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
        counts, sizes = self._fold(self.problem.counts(posteriors)), np.einsum("ik->k", posteriors)
        del posteriors  # as large as all that follows
        hopes = _hopes(*counts.shape[1:])
        pooled = counts.sum(axis=0) + hopes
        strength = _FIRST_STRENGTH if self.strength is None else self.strength
        return self._after(counts, sizes, strength * pooled / pooled.sum(axis=0))

    def step(self, state: CrowdState) -> CrowdState:
        """Return the state after one iteration."""
        return self._after(state.expected, state.sizes, state.prior)

    def objective(self, state: CrowdState) -> float:
        """Return minus the log-likelihood, or minus its lower bound if there is a prior."""
        return state.objective

    def posteriors(self, state: CrowdState) -> Numbers:
        """Return the probabilities of the classes of each item."""
        table = self.table(state.counts, state.prior)
        return self.problem.posteriors(table, np.log(state.shares))[0]

    def _after(self, counts: Numbers, sizes: Numbers, prior: Numbers) -> CrowdState:
        problem = self.problem
        if self.strength == 0.0:
            shares = np.maximum(sizes / problem.n_items, np.finfo(float).tiny)
            logs, gained = self.table(counts, prior), 0.0
        else:
            prior, known = _better_prior(counts, prior, self.strength)
            shares = (sizes + 1.0) / (problem.n_items + problem.n_classes)
            logs = self._unfold(known.mean_logs)
            gained = np.log(shares).sum() - known.divergence()
            gained += np.sum(_hopes(*prior.shape) * np.log(prior))
            if self.strength is None:  # else a constant, beside which the rest may be small
                gained -= _RATE * prior.sum()
        found, sums, likelihood = problem.expected(logs, np.log(shares))
        return CrowdState(
            counts, prior, shares, self._fold(found), sums, -float(likelihood + gained)
        )

    def table(self, counts: Numbers, prior: Numbers) -> Numbers:
        """Return log-probabilities (workers, labels, classes), or their means with a prior."""
        if self.strength == 0.0:
            return self._unfold(np.log(probabilities(counts, prior)))
        return self._unfold(_Rows(counts, counts.sum(axis=1), prior).mean_logs)

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


def _digamma(x: Numbers) -> Numbers:
    found = np.empty_like(x, order="C")
    fill_slopes(x.ravel(), found.reshape(-1))
    return found


def _gamma_rises(x: Numbers, added: Numbers) -> float:
    """Return the sum of the rises of the log-gamma function from each ``x`` by what is added."""
    found = np.empty(added.size)
    fill_rises(np.broadcast_to(x, added.shape).ravel(), added.ravel(), found)
    return float(found.sum())


class _Rows:
    """What is known of the rows of workers: Dirichlet distributions after counts."""

    def __init__(self, counts: Numbers, totals: Numbers, prior: Numbers) -> None:
        self.counts, self.totals = counts, totals
        self.prior, self.sums = prior, prior.sum(axis=0)
        self.slopes, self.total_slopes = _digamma(counts + prior), _digamma(totals + self.sums)

    @property
    def mean_logs(self) -> Numbers:
        """The means of log-probabilities (workers, outcomes, rows)."""
        means: Numbers = self.slopes - self.total_slopes[:, None]
        return means

    def divergence(self) -> float:
        """Return the sum of KL divergences from the prior."""
        gained = _gamma_rises(self.sums, self.totals) - _gamma_rises(self.prior, self.counts)
        return gained + float(np.sum(self.counts * self.mean_logs))

    def better_prior(self, strength: float | None) -> Numbers:
        """Return Dirichlet parameters of a higher bound, of given strength or any.

        With ``b`` and ``r`` below, ``sum b log a - r sum a`` is below the log-likelihood of counts
        up to a constant, and touches it at the prior that is given.
        """
        slopes = np.einsum("wor->or", self.slopes - _digamma(self.prior))
        gains = self.prior * slopes + _hopes(*self.prior.shape)
        if strength is not None:
            return np.asarray(strength * gains / gains.sum(axis=0))
        rates = np.einsum("wr->r", self.total_slopes - _digamma(self.sums)) + _RATE
        return np.asarray(np.minimum(gains / rates, _LARGEST_PARAMETER))


def _better_prior(counts: Numbers, prior: Numbers, strength: float | None) -> tuple[Numbers, _Rows]:
    """Return Dirichlet parameters of a higher bound for given counts, and the rows with them."""
    totals = np.einsum("wor->wr", counts)  # many times as fast as the sum over a short axis
    rows = _Rows(counts, totals, prior)
    for _ in range(_PRIOR_STEPS):
        before, prior = prior, rows.better_prior(strength)
        rows = _Rows(counts, totals, prior)
        if np.abs(prior - before).max() <= _SETTLED * prior.max():
            break
    return prior, rows
