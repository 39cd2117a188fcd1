"""The data of a crowd, and the pass over its labels that a round makes.

The log-likelihoods of an item are sums of rows of a table (worker and label x class), and expected
counts are sums of posteriors over the labels of each worker. Nothing is as large as the product of
items and workers, and a round keeps nothing of an item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import cut, cut_into, run_blocks
from polyad.crowd.answers import too_many_pairs
from polyad.crowd.kernels import add_counts, pass_over

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.crowd.answers import Answers

    Numbers = NDArray[np.float64]

# Items of a block, which is the work of a thread, and blocks that have a table of their own.
_BLOCK = 1 << 13
_MOST_TABLES = 8
# The largest table of workers x labels x classes, in numbers (2 GiB).
_LARGEST_TABLE = 2**28


class CrowdProblem:
    """Answers, and the items whose class is known (-1 for the others)."""

    def __init__(self, answers: Answers, gold: NDArray[np.integer[Any]] | None = None) -> None:
        self.answers = answers
        self.n_items, self.n_workers = answers.shape
        self.n_classes = len(answers.classes)
        self.n_labels = len(answers.codes)
        if self.n_workers * self.n_classes**2 > _LARGEST_TABLE:
            raise too_many_pairs(self.n_workers, self.n_classes)
        known = np.zeros(0) if gold is None else gold
        self._labels = answers.starts, answers.codes, known.astype(np.int32)

    def votes(self, workers: NDArray[np.bool_] | None = None) -> Numbers:
        """Return how many workers, of all or some, chose each class for each item."""
        starts, codes, _ = self._labels
        counted = np.empty((self.n_items, self.n_classes))
        for first, last in cut(self.n_items, _BLOCK):
            own = codes[starts[first] : starts[last]]
            cells = np.repeat(np.arange(last - first), np.diff(starts[first : last + 1]))
            cells = cells * self.n_classes + own % self.n_classes
            if workers is not None:
                cells = cells[workers[own // self.n_classes]]
            found = np.bincount(cells, minlength=(last - first) * self.n_classes)
            counted[first:last] = found.reshape(-1, self.n_classes)
        return counted

    def counts(self, weights: Numbers) -> Numbers:
        """Sum the rows of items over the labels of workers: (workers, labels, columns)."""
        summed = np.zeros((self.n_workers * self.n_classes, weights.shape[1]))
        add_counts(*self._labels[:2], np.ascontiguousarray(weights), summed)
        return summed.reshape(self.n_workers, self.n_classes, -1)

    def posteriors(self, table: Numbers, shares: Numbers) -> tuple[Numbers, float]:
        """Return the probabilities of the classes of each item, and the log-likelihood of all.

        ``table`` (workers, labels, classes) holds logarithms of probabilities of labels, ``shares``
        those of classes before any label.
        """
        found, nothing = np.empty((self.n_items, self.n_classes)), np.zeros(0)
        blocks = cut(self.n_items, _BLOCK)
        return found, self._pass(table, shares, [(block, found, nothing) for block in blocks])

    def expected(self, table: Numbers, shares: Numbers) -> tuple[Numbers, Numbers, float]:
        """Return the counts of the posteriors, their sums, and the log-likelihood of all labels.

        That is ``counts(posteriors(...))`` without the posteriors. A block of items has a table of
        its own to add to; these are few where they would be large.
        """
        n_codes, width = self.n_workers * self.n_classes, _even(self.n_classes)
        most = min(_MOST_TABLES, self.n_labels // (2 * n_codes))
        blocks, nothing = cut_into(most, self.n_items), np.zeros((0, 0))
        into = np.zeros((len(blocks), (n_codes + 1) * width))
        works = [(block, nothing, own) for block, own in zip(blocks, into, strict=True)]
        likelihood = self._pass(table, shares, works)
        summed = into.sum(axis=0).reshape(-1, width)[:, : self.n_classes]
        shape = (self.n_workers, self.n_classes, self.n_classes)
        return summed[:-1].reshape(shape), summed[-1], likelihood

    def _pass(self, table: Numbers, shares: Numbers, works: list[tuple[Any, ...]]) -> float:
        """Pass over blocks of items into what is given with each, and return the log-likelihood."""
        spare = _even(self.n_classes) - self.n_classes
        rows = np.pad(table.reshape(-1, self.n_classes), ((0, 0), (0, spare))).ravel()
        logs = rows, np.pad(shares, (0, spare), constant_values=-np.inf)
        likelihoods = np.zeros(len(works))

        def run(number: int) -> None:
            likelihoods[number] = pass_over(self._labels, logs, *works[number])

        run_blocks(run, [(number,) for number in range(len(works))])
        return float(likelihoods.sum())

    def with_gold(self, posteriors: Numbers) -> Numbers:
        """Make the probabilities of known classes certain, in place."""
        known = self._labels[2]
        items = np.flatnonzero(known >= 0)
        posteriors[items] = 0.0
        posteriors[items, known[items]] = 1.0
        return posteriors


def vote_shares(problem: CrowdProblem, workers: NDArray[np.bool_] | None = None) -> Numbers:
    """Return the share of votes of each class; items without a vote have those of all items."""
    votes = problem.votes(workers)
    overall = votes.sum(axis=0)
    if not overall.any():
        votes = problem.votes()
        overall = votes.sum(axis=0)
    overall /= overall.sum()
    for first, last in cut(problem.n_items, _BLOCK):
        own = votes[first:last]
        sums = own.sum(axis=1)
        own /= np.maximum(sums, 1.0)[:, None]
        own[sums == 0] = overall
    return problem.with_gold(votes)


def _even(n_classes: int) -> int:
    """Return the number of columns of a table for kernels."""
    return n_classes + n_classes % 2
