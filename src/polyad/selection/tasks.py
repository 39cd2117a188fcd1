"""The fits behind a choice of the rank: what each one does, and how they are run."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from polyad.core.sklearn_compat import take_rows
from polyad.core.threads import thread_limit
from polyad.exceptions import InvalidInputError, NumericalError
from polyad.metrics.decomposition import core_consistency, read_kruskal
from polyad.selection.holdout import Holdout, HoldoutOptions, hide_entries
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.data.readers import TensorInput
    from polyad.estimators.kruskal import KruskalResult

logger = logging.getLogger("polyad")

Kind = Literal["heldout", "start", "subsample"]
_KINDS: tuple[Kind, ...] = ("heldout", "start", "subsample")
# Hidden cells are settled when a round moves them by less than this part: most often after three
# to six rounds. Ranks far too large may never settle.
_SETTLED = 1e-2
_MOST_ROUNDS = 20


@dataclass(frozen=True)
class Task:
    """One fit."""

    kind: Kind
    rank: int
    repeat: int
    base_seed: int

    @property
    def data_seed(self) -> int:
        """Decides what a repeat hides or leaves out: the same for all ranks."""
        return self._seed(0)

    @property
    def fit_seed(self) -> int:
        """Decides the start of the fit."""
        return self._seed(self.rank)

    def _seed(self, rank: int) -> int:
        # Numbers of a rank do not depend on which other ranks and methods are tried.
        entropy = [self.base_seed, _KINDS.index(self.kind), rank, self.repeat]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class Plan:
    """What all fits have in common."""

    estimator: KruskalResult
    given: TensorInput
    holdout: HoldoutOptions
    subsample: float
    wants_consistency: bool
    y: Any = None


@dataclass(frozen=True)
class Outcome:
    """What one fit told. The fields that its kind does not fill, or that failed, are None."""

    task: Task
    loss: float | None = None
    consistency: float | None = None
    kruskal: KruskalTensor | None = None
    ending: str = "converged"


class Runner:
    """Runs fits, some at a time, and tells what all of them will cost.

    They run in threads unless a joblib backend is chosen: kernels release the interpreter lock, and
    threads share the data.
    """

    def __init__(self, plan: Plan, *, n_jobs: int | None, verbose: int) -> None:
        self._plan, self._n_jobs, self._verbose = plan, n_jobs, verbose
        workers = Parallel(n_jobs=n_jobs, prefer="threads")._effective_n_jobs()
        self._n_workers = int(workers)
        if workers > 1 and "n_jobs" in plan.estimator.get_params(deep=False):
            plan.estimator.set_params(n_jobs=1)

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Run every fit and return the outcomes in the order of the tasks."""
        # The smallest tells the time of the others.
        first = min(range(len(tasks)), key=lambda k: (tasks[k].rank, tasks[k].repeat, k))
        order = [first, *(k for k in range(len(tasks)) if k != first)]
        ranks = sorted({task.rank for task in tasks})
        self._tell(f"{len(tasks)} fits of rank {', '.join(map(str, ranks))}")
        is_serial = self._n_workers == 1
        found: dict[int, Outcome] = {}
        # Fits in several threads each hold the linear algebra library to one thread and let it go
        # afterwards, which would free it for the others: it is held here until all are done.
        with (
            thread_limit(None if is_serial else 1),
            warnings.catch_warnings(),
            _progress(len(tasks), self._verbose) as bar,
        ):
            warnings.simplefilter("ignore", ConvergenceWarning)
            for some in (order[:1], order[1:]):
                workers = None if self._n_jobs is None else min(self._n_jobs, len(tasks))
                parallel = Parallel(n_jobs=workers, prefer="threads", return_as="generator")
                start = time.perf_counter()
                made = parallel(delayed(run_task)(tasks[k], self._plan) for k in some)
                for k, outcome in zip(some, made, strict=True):
                    found[k] = outcome
                    bar.set_postfix_str(f"rank {outcome.task.rank}", refresh=False)
                    bar.update()
                if some == order[:1] and len(order) > 1:
                    self._estimate(tasks, tasks[first], time.perf_counter() - start)
        return [found[k] for k in range(len(tasks))]

    def _estimate(self, tasks: Sequence[Task], first: Task, seconds: float) -> None:
        """Tell how long all fits will take, by the first one: their time grows with the rank."""
        work = (sum(task.rank for task in tasks) - first.rank) / first.rank
        rest = seconds * max(work / self._n_workers, 1.0)
        self._tell(
            f"the first, of rank {first.rank}, took {seconds:.2g} s: the rest will take about "
            f"{rest:.2g} s, {self._n_workers} at a time, if that grows with the rank"
        )

    def _tell(self, text: str) -> None:
        logger.info("select_rank: %s", text)
        if self._verbose > 0:
            from tqdm.auto import tqdm

            tqdm.write(f"select_rank: {text}.", file=sys.stderr)


def _progress(total: int, verbose: int) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="select_rank", unit="fit", disable=verbose < 1)


def run_task(task: Task, plan: Plan) -> Outcome:
    """Run one fit."""
    try:
        # Once more here, for workers in processes of their own.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return _RUN[task.kind](task, plan)
    except NumericalError:
        return Outcome(task, ending="diverged")


def _run_heldout(task: Task, plan: Plan) -> Outcome:
    if plan.estimator._scores_samples:
        return _run_heldout_samples(task, plan)
    hidden = hide_entries(plan.given.data, plan.holdout, task.data_seed)
    if hidden.is_open:
        model = _fit_around(task, plan, hidden)
    else:
        model = _fit(task, plan, replace(plan.given, data=hidden.train), plan.y)
    expected = model._entry_values(hidden.coords)
    losses = model._entry_loss(hidden.values.astype(np.float64), expected)
    return Outcome(task, loss=float(losses @ hidden.weights), ending=_ending(model))


def _run_heldout_samples(task: Task, plan: Plan) -> Outcome:
    """Fit some of the samples, and score the others."""
    n_samples = plan.given.shape[0]
    order = np.random.default_rng(task.data_seed).permutation(n_samples)
    n_hidden = min(max(1, round(plan.holdout.share * n_samples)), n_samples - 1)
    hidden, kept = (plan.given.take_samples(np.sort(own)) for own in np.split(order, [n_hidden]))
    model: Any = _fit(task, plan, kept, None)
    score = model.score(hidden if hidden.is_labelled else hidden.data)
    return Outcome(task, loss=-float(score), ending=_ending(model))


def _kruskal_of(model: Any) -> KruskalTensor:
    """Return what fits are compared by."""
    return model._compared() if model._scores_samples else read_kruskal(model)


def _fit_around(task: Task, plan: Plan, hidden: Holdout) -> KruskalResult:
    """Fit all cells but the hidden ones, which are filled with what the last fit expects there.

    Each round cannot raise the loss over the other cells: the filled ones add a loss that is
    lowest at the last fit (expectation maximization), because they are filled with the data for
    which it is. For squared error and for counts that is the model itself: ``m - x log m`` is
    lowest at ``m = x``, and is linear in ``x``, so that a fill with the mean is the exact
    expectation. The part of the error that a round leaves is about the part of the entries that
    is hidden.
    """
    expected = np.zeros(hidden.coords.shape[1])
    changes: dict[str, Any] = {}
    for _ in range(_MOST_ROUNDS):
        given = replace(plan.given, data=hidden.filled(expected))
        model = _fit(task, plan, given, plan.y, **changes)
        before = expected
        expected = model._entry_fill(model._entry_values(hidden.coords))
        if np.linalg.norm(expected - before) <= _SETTLED * np.linalg.norm(expected):
            break
        changes = {"init": model.kruskal_}
    return model


def _run_start(task: Task, plan: Plan) -> Outcome:
    # The first start is the estimator's own, often the best; the others are random.
    changes = {"init": "random"} if task.repeat else {}
    model = _fit(task, plan, plan.given, plan.y, **changes)
    kruskal = _kruskal_of(model)
    consistency = None
    if plan.wants_consistency:
        with thread_limit(1):
            consistency = core_consistency(plan.given.data, kruskal)
    return Outcome(task, consistency=consistency, kruskal=kruskal, ending=_ending(model))


def _run_subsample(task: Task, plan: Plan) -> Outcome:
    n_samples = plan.given.shape[0]
    generator = np.random.default_rng(task.data_seed)
    n_kept = subsample_size(n_samples, plan.subsample)
    kept = np.sort(generator.choice(n_samples, n_kept, replace=False))
    y = None if plan.y is None else take_rows(plan.y, kept)
    try:
        model = _fit(task, plan, plan.given.take_samples(kept), y, init="random")
    except InvalidInputError as error:
        message = (
            f"In a fit of {n_kept} of the {n_samples} samples, as method='stability' makes them: "
            f"{error} A matrix between all samples serves a part of them if it is a table and X "
            "has labels; otherwise use another method."
        )
        raise InvalidInputError(message) from error
    weights, factors = _kruskal_of(model)
    # Samples are not compared, so their factor need not be kept.
    kruskal = KruskalTensor(weights, [np.ones((1, len(weights))), *factors[1:]])
    return Outcome(task, kruskal=kruskal, ending=_ending(model))


_RUN = {"heldout": _run_heldout, "start": _run_start, "subsample": _run_subsample}


def subsample_size(n_samples: int, share: float) -> int:
    """Return the number of samples in a subsample."""
    return max(1, round(share * n_samples))


def _fit(task: Task, plan: Plan, given: TensorInput, y: Any, **changes: Any) -> KruskalResult:
    """Fit a fresh copy of the estimator; parameters that it lacks are not changed."""
    model = clone(plan.estimator)
    wanted = {"n_components": task.rank, "random_state": task.fit_seed, **changes}
    has = model.get_params(deep=False)
    model.set_params(**{name: value for name, value in wanted.items() if name in has})
    # A fit of a user's own class may want an array. Not every estimator takes classes.
    model.fit(given if given.is_labelled else given.data, **({} if y is None else {"y": y}))
    fitted: KruskalResult = model
    return fitted


def _ending(model: KruskalResult) -> str:
    return "converged" if model.status_.is_success else str(model.status_.value)
