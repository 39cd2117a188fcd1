"""What CP models share whose samples are read in batches: features, scores, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import namespace_of
from polyad.core.threads import thread_limit
from polyad.cp.family import CPFamily
from polyad.cp.problem import build_problem
from polyad.cp.solver import ridge_rows
from polyad.data.batches import MemorySource, open_source
from polyad.data.label_values import joined_text
from polyad.data.readers import sample_access
from polyad.exceptions import InvalidInputError, NumericalError
from polyad.fitting.identity import digest_of
from polyad.fitting.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.family import CPLearned
    from polyad.cp.problem import Problem
    from polyad.data.batches import SampleSource
    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import FitResult
    from polyad.fitting.driver import Clock, FitError


def check_single_pass(max_iter: int, n_init: int, checkpoint: Any) -> None:
    """Refuse to read a stream more often than it can be read."""
    again = {
        f"max_iter={max_iter} asks for several sweeps": max_iter > 1,
        f"n_init={n_init} asks for several fits": n_init > 1,
        "a checkpoint compares the data before the fit": checkpoint is not None,
    }
    for what, is_asked in again.items():
        if is_asked:
            message = (
                f"X is an iterator, which can be read once, but {what}. Use max_iter=1, n_init=1 "
                "and no checkpoint, or give something that can be read again: an array on disk, a "
                "list of batches, or a callable that opens the stream, such as lambda: "
                "read_batches(path)."
            )
            raise InvalidInputError(message)


def joined_batch_labels(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Join the labels of the samples of several batches, which all have them or have none."""
    known = [labels for labels in parts if labels is not None]
    return joined_text(known) if known else None


def unobserved_slices(given: TensorInput) -> Iterator[tuple[int, int]]:
    """Give the modes of dense data that have slices of NaN only, and the first such slice."""
    xp = namespace_of(given.data)
    unknown = xp.isnan(given.data)
    modes = range(len(given.shape))
    for mode in modes:
        empty = xp.all(unknown, axis=tuple(k for k in modes if k != mode))
        if bool(xp.any(empty)):
            yield mode, int(xp.argmax(xp.astype(empty, xp.uint8)))


class BatchedCP(CPFamily):
    """Base of the CP decompositions with a ridge whose samples are read in batches."""

    _reads_batches: ClassVar[bool] = True

    if TYPE_CHECKING:
        batch_size: Any
        missing: Missing
        ridge: float

    def _open(self, X: Any, mask: Any) -> SampleSource:
        source = open_source(X, int(self.batch_size), allow_nan=self._accepts_nan, mask=mask)
        if source.reads_once:
            check_single_pass(self.max_iter, self._n_fits(), self.checkpoint)
        return source

    def _content(self, given: SampleSource, y: Any) -> dict[str, Any]:
        return {"data": [digest_of(batch.given) for batch in given.sweep()], "y": y}

    def _run(
        self, problem: Any, solver: Any, identity: dict[str, Any], clock: Clock
    ) -> tuple[FitResult[Any], FitError | None]:
        result, broken = super()._run(problem, solver, identity, clock)
        if problem.source.reads_once and (broken or result.status is Status.INTERRUPTED):
            # The samples are gone, and the state is that before them.
            raise broken or KeyboardInterrupt
        return result, broken

    def _described(self, given: SampleSource, solver: Any) -> TensorInput:
        if isinstance(given, MemorySource):
            return given.head
        labels = joined_batch_labels(solver.sample_labels)
        return dataclasses.replace(given.head, labels=(labels, *given.head.labels[1:]))

    def _check_goes_on(self, given: TensorInput) -> None:
        """Refuse to go on with samples that are not laid out as those of the fit before."""
        self._check_same_rank(len(self.weights_))
        self._check_order(given)
        laid_out = self._in_the_shape_of_the_model(given)
        same = laid_out.shape == given.shape and laid_out.modes == given.modes
        pairs: Any = zip(laid_out.labels[1:], given.labels[1:], strict=True)
        if not same or any(a is not b and not np.array_equal(a, b) for a, b in pairs):
            message = (
                "warm_start=True goes on from factors whose labels are not those of X, or are in "
                "another order. Bring X to the labels of the model first (LabelledTensor.align), "
                "or use warm_start=False."
            )
            raise InvalidInputError(message)

    def _report_ending(self) -> None:
        # One sweep was asked for and made: it is no search that could have converged.
        if not (self.max_iter == 1 and self.status_ is Status.MAX_ITER):
            super()._report_ending()

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
            The features of each sample: its ridge solution on ``components_``; no graph is used.
        """
        parts, labels, learned = [], [], self._model()
        with thread_limit(self.n_jobs):
            for given in self._new_batches(X, mask, for_features=True):
                parts.append(self._features(self._problem(given), learned))
                labels.append(given.labels[0])
        features = parts[0]
        if len(parts) > 1:
            features = namespace_of(features).concat(parts, axis=0)
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

    def _remember(self, X: Any, given: TensorInput) -> None:
        super()._remember(X, given)
        names = given.labels[1]
        is_table = len(given.shape) == 2 and given.modes is None and names is not None
        if is_table and sample_access(X) != "whole":
            # scikit-learn, which knows tables, does not know batches of them.
            self.feature_names_in_ = np.asarray(names, dtype=object)

    def _new_batches(
        self, X: Any, mask: Any, *, for_features: bool = False
    ) -> Iterator[TensorInput]:
        """Give new samples, in the shape of the model, as much as is read at a time."""
        check_is_fitted(self)
        if sample_access(X) == "whole":
            yield self._validate_new(X, mask=mask, for_features=for_features)
            return
        source = open_source(
            X, int(self.batch_size), allow_nan=self._accepts_nan, mask=mask, is_new=for_features
        )
        for batch in source.sweep():
            self._check_order(batch.given)
            yield self._in_the_shape_of_the_model(batch.given)

    def _rows(self, problem: Problem, learned: CPLearned) -> Array:
        return ridge_rows(problem, learned.others, learned.scale, self.ridge)

    def _problem(self, given: TensorInput) -> Problem:
        return build_problem(given.data, self.missing)
