"""The data of a crowd, and the two passes over its labels that a round makes.

The log-likelihoods of an item are sums of rows of a table (worker and label x class), and expected
counts are sums of posteriors over the labels of each worker. Nothing is as large as the product of
items and workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.crowd.kernels import add_counts, fill_posteriors
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.crowd.answers import Answers

    Numbers = NDArray[np.float64]

# Items of a block, which is the work of a thread.
_BLOCK = 1 << 13
# The largest table of workers x labels x classes, in numbers (2 GiB).
_LARGEST_TABLE = 2**28


class CrowdProblem:
    """Answers, and the items whose class is known (-1 for the others)."""

    def __init__(self, answers: Answers, gold: NDArray[np.integer[Any]] | None = None) -> None:
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
        # Sorted by item; the limit above leaves room in half the bytes.
        order = np.argsort(answers.items, kind="stable")
        codes = answers.workers.astype(np.int32) * np.int32(self.n_classes)
        codes += answers.labels.astype(np.int32)
        self._codes = codes[order]
        self._starts = np.zeros(self.n_items + 1, dtype=np.int64)
        np.cumsum(np.bincount(answers.items, minlength=self.n_items), out=self._starts[1:])
        self._known = np.full(self.n_items, -1) if gold is None else gold.astype(np.int64)

    def votes(self, workers: NDArray[np.bool_] | None = None) -> Numbers:
        """Return how many workers, of all or some, chose each class for each item."""
        answers = self.answers
        cells = answers.items.astype(np.int64) * self.n_classes + answers.labels
        if workers is not None:
            cells = cells[workers[answers.workers]]
        counted = np.bincount(cells, minlength=self.n_items * self.n_classes)
        return counted.reshape(self.n_items, self.n_classes).astype(np.float64)

    def counts(self, weights: Numbers) -> Numbers:
        """Sum the rows of items over the labels of workers: (workers, labels, columns)."""
        summed = np.zeros((self.n_workers * self.n_classes, weights.shape[1]))
        add_counts(self._starts, self._codes, np.ascontiguousarray(weights), summed)
        return summed.reshape(self.n_workers, self.n_classes, -1)

    def posteriors(self, table: Numbers, shares: Numbers) -> tuple[Numbers, float]:
        """Return the probabilities of the classes of each item, and the log-likelihood of all.

        ``table`` (workers, labels, classes) holds logarithms of probabilities of labels, ``shares``
        those of classes before any label.
        """
        logs = np.ascontiguousarray(table.reshape(-1, self.n_classes), dtype=np.float64)
        found = np.empty((self.n_items, self.n_classes))
        blocks = cut(self.n_items, _BLOCK)
        likelihoods = np.zeros(len(blocks))
        labels, flat = (self._starts, self._codes, self._known), found.reshape(-1)

        def fill(number: int) -> None:
            likelihoods[number] = fill_posteriors(labels, logs, shares, flat, blocks[number])

        run_blocks(fill, [(number,) for number in range(len(blocks))])
        return found, float(likelihoods.sum())

    def with_gold(self, posteriors: Numbers) -> Numbers:
        """Return the probabilities with those of known classes made certain."""
        certain = posteriors.copy()
        items = np.flatnonzero(self._known >= 0)
        certain[items] = 0.0
        certain[items, self._known[items]] = 1.0
        return certain


def vote_shares(problem: CrowdProblem, workers: NDArray[np.bool_] | None = None) -> Numbers:
    """Return the share of votes of each class; items without a vote have those of all items."""
    votes = problem.votes(workers)
    if not votes.any():
        votes = problem.votes()
    sums = votes.sum(axis=1, keepdims=True)
    overall = votes.sum(axis=0) / votes.sum()
    return problem.with_gold(np.where(sums > 0, votes / np.maximum(sums, 1.0), overall))
