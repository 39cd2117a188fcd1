r"""The data of a crowd as two products with one sparse matrix.

With a row for each item and a column for each pair of a worker and a label, which holds how often
that worker gave that label to that item, log-likelihoods of all items are the matrix times a table
(worker and label x class), and expected counts are its transpose times the posteriors. Nothing is
as large as the product of items and workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.crowd.answers import Answers

    Numbers = NDArray[np.float64]

# The largest table of workers x labels x classes, in numbers (2 GiB).
_LARGEST_TABLE = 2**28


class CrowdProblem:
    """Answers, and the items whose class is known (-1 for the others)."""

    def __init__(self, answers: Answers, gold: NDArray[np.intp] | None = None) -> None:
        self.answers = answers
        self.n_items, self.n_workers = answers.shape
        self.n_classes = len(answers.classes)
        self.n_labels = len(answers.labels)
        if self.n_workers * self.n_classes**2 > _LARGEST_TABLE:
            message = (
                f"{self.n_workers} workers and {self.n_classes} classes make confusion tables of "
                f"{self.n_workers * self.n_classes**2:.3g} numbers. Are the labels classes, and "
                "not numbers or free text? Merge rare ones."
            )
            raise InvalidInputError(message)
        columns = answers.workers * self.n_classes + answers.labels
        shape = (self.n_items, self.n_workers * self.n_classes)
        ones = np.ones(self.n_labels)
        self._matrix: Any = csr_array((ones, (answers.items, columns)), shape=shape)
        known = np.full(self.n_items, -1) if gold is None else gold
        self._gold = np.flatnonzero(known >= 0)
        self._gold_classes = known[self._gold]

    def votes(self, workers: NDArray[np.bool_] | None = None) -> Numbers:
        """Return how many workers, of all or some, chose each class for each item."""
        answers = self.answers
        cells = answers.items * self.n_classes + answers.labels
        if workers is not None:
            cells = cells[workers[answers.workers]]
        counted = np.bincount(cells, minlength=self.n_items * self.n_classes)
        return counted.reshape(self.n_items, self.n_classes).astype(np.float64)

    def counts(self, weights: Numbers) -> Numbers:
        """Sum the rows of items over the labels of workers: (workers, labels, columns)."""
        summed = self._matrix.T @ weights
        return np.asarray(summed).reshape(self.n_workers, self.n_classes, -1)

    def posteriors(self, table: Numbers, shares: Numbers) -> tuple[Numbers, float]:
        """Return the probabilities of the classes of each item, and the log-likelihood of all.

        ``table`` (workers, labels, classes) holds logarithms of probabilities of labels, ``shares``
        those of classes before any label.
        """
        logs = self._matrix @ table.reshape(-1, self.n_classes)
        logs += shares
        if len(self._gold):
            told = logs[self._gold, self._gold_classes]
            logs[self._gold] = -np.inf
            logs[self._gold, self._gold_classes] = told
        top = logs.max(axis=1, keepdims=True)
        logs -= top
        np.exp(logs, out=logs)
        sums = logs.sum(axis=1, keepdims=True)
        logs /= sums
        return logs, float(top.sum() + np.log(sums).sum())

    def with_gold(self, posteriors: Numbers) -> Numbers:
        """Return the probabilities with those of known classes made certain."""
        certain = posteriors.copy()
        certain[self._gold] = 0.0
        certain[self._gold, self._gold_classes] = 1.0
        return certain


def vote_shares(problem: CrowdProblem, workers: NDArray[np.bool_] | None = None) -> Numbers:
    """Return the share of votes of each class; items without a vote have those of all items."""
    votes = problem.votes(workers)
    if not votes.any():
        votes = problem.votes()
    sums = votes.sum(axis=1, keepdims=True)
    overall = votes.sum(axis=0) / votes.sum()
    return problem.with_gold(np.where(sums > 0, votes / np.maximum(sums, 1.0), overall))
