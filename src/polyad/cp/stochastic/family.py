"""What CP models share whose samples are read in batches: features and scores of any source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace
from sklearn.utils.validation import check_is_fitted

from polyad.core.threads import thread_limit
from polyad.cp.family import CPFamily
from polyad.cp.problem import build_problem
from polyad.cp.solver import ridge_rows
from polyad.cp.stochastic.reading import joined_batch_labels
from polyad.data.batches import open_source
from polyad.data.readers import sample_access
from polyad.exceptions import NumericalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polyad.core.arrays import Array
    from polyad.cp.family import CPLearned
    from polyad.cp.problem import Problem
    from polyad.data.validation import Missing, TensorInput


class BatchedCP(CPFamily):
    """Base of the CP decompositions with a ridge whose samples are read in batches."""

    if TYPE_CHECKING:
        batch_size: int
        missing: Missing
        ridge: float

    def transform(self, X: Any, *, mask: Any = None) -> Array:
        """Return the features of new samples, with the other modes held as they are.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...), array on disk, or batches
            New samples. Labelled data is matched by label.
        mask : array of bool, default=None
            For dense data in memory, True where an entry was observed.

        Returns
        -------
        array of shape (n_samples, n_components)
            The ridge solution of each sample on ``components_``; no graph is used.
        """
        parts, labels, learned = [], [], self._model()
        with thread_limit(self.n_jobs):
            for given in self._new_batches(X, mask, for_features=True):
                parts.append(self._features(self._problem(given), learned))
                labels.append(given.labels[0])
        features = parts[0]
        if len(parts) > 1:
            features = array_namespace(features).concat(parts, axis=0)
        return self._named(features, joined_batch_labels(labels))

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the explained variation of samples: 1 minus the squared error over the squares.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...), array on disk, or batches
            Samples.
        y : None
            Ignored.
        mask : array of bool, default=None
            For dense data in memory, True where an entry was observed.
        """
        error, total, learned = 0.0, 0.0, self._model()
        with thread_limit(self.n_jobs):
            for given in self._new_batches(X, mask):
                problem = self._problem(given)
                others = [problem.asarray(factor) for factor in learned.factors_[1:]]
                unit: float = 4.0**problem.exponent
                error += unit * problem.residual([self._rows(problem, learned), *others])
                total += unit * problem.norm_squared
        if not math.isfinite(error):
            message = "The score is not a finite number: the factors of the model are not."
            raise NumericalError(message)
        if total == 0:
            return 1.0 if error == 0 else 0.0
        return 1.0 - error / total

    def _new_batches(
        self, X: Any, mask: Any, *, for_features: bool = False
    ) -> Iterator[TensorInput]:
        """Give new samples, in the shape of the model, as much as is read at a time."""
        check_is_fitted(self)
        if sample_access(X) == "whole":
            yield self._validate_new(X, mask=mask, for_features=for_features)
            return
        source = open_source(
            X, int(self.batch_size), allow_nan=True, mask=mask, is_new=for_features
        )
        for batch in source.sweep():
            self._check_order(batch.given)
            yield self._in_the_shape_of_the_model(batch.given)

    def _rows(self, problem: Problem, learned: CPLearned) -> Array:
        return ridge_rows(problem, learned.others, learned.scale, self.ridge)

    def _problem(self, given: TensorInput) -> Problem:
        return build_problem(given.data, self.missing)
