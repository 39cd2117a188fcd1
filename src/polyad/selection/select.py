"""One call that tries several numbers of components and tells which one the data supports."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from polyad.core.arrays import to_numpy
from polyad.core.threads import resolve_n_jobs
from polyad.data.validation import check_seed
from polyad.exceptions import InvalidInputError
from polyad.selection.checks import (
    check_data,
    check_shares,
    check_sizes,
    check_thresholds,
    largest_rank,
    read_classes,
    read_estimator,
    read_methods,
    read_ranks,
)
from polyad.selection.holdout import HoldoutOptions
from polyad.selection.result import RankSelection, summarize
from polyad.selection.tasks import Plan, Runner, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.estimators.base import PolyadEstimator
    from polyad.selection.result import Method
    from polyad.selection.tasks import Kind, Outcome

# A search goes on at least so far, and ends where neighbours differ by one or by this part.
_AT_LEAST, _FINENESS = 4, 8
# The fits that each method needs. Those that two methods share are made once.
_FITS: dict[str, tuple[Kind, ...]] = {
    "heldout": ("heldout",),
    "stability": ("start", "subsample"),
    "core_consistency": ("start",),
}


def select_rank(  # noqa: PLR0913  (options by keyword, as scikit-learn's cross_validate)
    estimator: PolyadEstimator,
    X: Any,
    ranks: Iterable[int] | Literal["auto"] = "auto",
    *,
    y: Any = None,
    method: Method | Sequence[Method] = "heldout",
    heldout_share: float = 0.1,
    n_repeats: int = 5,
    subsample: float = 0.5,
    min_match: float = 0.9,
    min_consistency: float = 50.0,
    zeros_per_entry: float = 4.0,
    random_state: int | np.random.RandomState | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> RankSelection:
    r"""Compare numbers of components and choose one.

    ``'heldout'``
        Hides a random share of the entries, fits the rest and predicts what was hidden, with the
        loss of the estimator: squared error, or the deviance of counts for
        :class:`polyad.PoissonCP`. Chooses the smallest rank
        whose mean loss is within one standard error of the lowest. All ranks are asked for the
        same hidden entries. Works for every order. Of :class:`polyad.MixedMembership`, whole
        samples are hidden, and the loss is minus its ``score`` of them.
    ``'stability'``
        Fits from several starts, and fits random parts of the samples, and measures how well
        the components agree (factor match score; the mode of the samples is left out for the
        parts). Chooses the largest rank whose two mean scores reach ``min_match``. A matrix has
        no unique components without further constraints, so it needs 3 modes or a nonnegative
        model. The score is a mean over components: among many good ones, a single bad one shows
        little.
    ``'core_consistency'``
        :func:`polyad.metrics.core_consistency` of fits from several starts. Chooses the largest
        rank whose mean reaches ``min_consistency``; a fit below zero counts as zero. For complete
        data of 3 or more modes, and models of the data itself. It is a least-squares measure,
        whatever the loss of the estimator.

    Parameters
    ----------
    estimator : estimator of polyad
        One with ``n_components``, such as :class:`polyad.CP`. It is cloned, never changed; its
        ``n_components`` and ``random_state`` do not matter. With several starts (``n_init``)
        the numbers are less disturbed by local minima.
    X : tensor-like of shape (n_samples, n_1, ...)
        The data. Labels and names of modes count as in a fit, also for a part of the samples.
    ranks : iterable of int or 'auto', default='auto'
        The numbers of components to try. ``'auto'`` tries 1, 2, 4 and so on, twice as many each
        time, as long as the best is the largest, and then those around the best, to an eighth.
    y : array-like of shape (n_samples,), default=None
        The labels of the samples, for an estimator that learns from them. They are never hidden:
        the loss is that of the entries of ``X``. A Series is matched by label as in ``fit``.
    method : {'heldout', 'stability', 'core_consistency'} or list of these, default='heldout'
        How to choose; the first of several decides ``best_rank``.
    heldout_share : float, default=0.1
        The part of the known entries that each repeat hides.
    n_repeats : int, default=5
        How often each rank is fitted for each kind of fit.
    subsample : float, default=0.5
        The part of the samples that the fits of ``'stability'`` see.
    min_match : float, default=0.9
        The factor match score that ``'stability'`` asks for.
    min_consistency : float, default=50.0
        The percentage that ``'core_consistency'`` asks for.
    zeros_per_entry : float, default=4.0
        For sparse data with ``missing='zero'``, how many zeros are hidden for each hidden nonzero;
        see Notes.
    random_state : int, RandomState instance or None, default=None
        Seeds hidden entries, subsamples and starts.
    n_jobs : int, default=None
        How many fits run at once; None means one. Each then uses a single thread. Numbers do not
        depend on it. Fits run in threads; ``joblib.parallel_config`` chooses another backend.
    verbose : int, default=0
        1 tells how many fits there will be and, after the first, how long they will take, and
        shows a progress bar. The logger ``polyad`` is told the same at level INFO.

    Returns
    -------
    RankSelection
        With ``best_rank``, ``best_ranks``, ``reason`` (the decision in words: look for warnings
        there), ``table``, ``plot()`` and ``to_frame()``.

    Notes
    -----
    **Held-out entries of sparse data with implied zeros.** If the estimator has
    ``missing='zero'``, an entry that is taken out of sparse data is not hidden: the fit would be
    told that it is zero. Nor is it sound to fit the nonzeros and some zeros only, as if the rest
    were unobserved: of most samples too little would be known, and levels would be those among
    the cells that were picked. Here the hidden cells, nonzeros and zeros, are filled with what
    the model expects there, fit after fit, until that changes by less than a hundredth, or
    twenty times (expectation maximization). The result is a fit to all cells but the hidden
    ones. Nothing is made dense, and the estimator need not take missing entries. This is exact
    for squared error and for counts: the likelihood of a Poisson model is linear in the data, so
    that an entry filled with its mean has the expected likelihood.

    **Held-out counts.** A count where the model expects zero has an infinite deviance. The
    expectation is taken for a thousandth of the mean at least, so that one such entry is a large
    loss and not the whole result.

    The zeros to hide are drawn from all cells and, as many, from indices that have entries;
    weights make the loss an estimate of the mean over all cells of the tensor.

    In dense data, and with ``missing='unobserved'``, every slice keeps at least one known entry,
    so that no prediction is asked for where nothing is known.

    **Time.** ``n_repeats`` fits for each rank for ``'heldout'`` and ``'core_consistency'``, twice
    as many for ``'stability'``, which shares the first half with ``'core_consistency'``. The time
    of a sweep with missing entries grows with the square of the rank. Sparse data with implied
    zeros is fitted several times instead, each time from the last fit.

    References
    ----------
    S. Wold, "Cross-validatory estimation of the number of components in factor and principal
    components models", Technometrics 20 (1978), doi:10.1080/00401706.1978.10489693.
    A. P. Dempster, N. M. Laird, D. B. Rubin, "Maximum likelihood from incomplete data via the EM
    algorithm", JRSS B 39 (1977), doi:10.1111/j.2517-6161.1977.tb01600.x.

    Examples
    --------
    >>> from polyad import CP
    >>> from polyad.datasets import make_low_rank
    >>> from polyad.selection import select_rank
    >>> X, _ = make_low_rank((15, 12, 10), 2, noise=0.3, random_state=0)
    >>> choice = select_rank(CP(), X, [1, 2, 3], n_repeats=3, random_state=0)
    >>> choice.best_rank
    2
    """
    methods = read_methods(method)
    check_shares(heldout_share=heldout_share, subsample=subsample)
    check_thresholds(min_match=min_match, min_consistency=min_consistency)
    check_sizes(n_repeats=n_repeats, zeros_per_entry=zeros_per_entry)
    prepared = read_estimator(estimator)
    is_auto = isinstance(ranks, str) and ranks == "auto"
    tried = [1] if is_auto else read_ranks(ranks)
    given = check_data(prepared, X, tried, methods, subsample)
    classes = read_classes(y, given)
    missing: Missing = getattr(prepared, "missing", "zero")
    holdout = HoldoutOptions(heldout_share, missing, zeros_per_entry)
    plan = Plan(prepared, given, holdout, subsample, "core_consistency" in methods, classes)
    check_seed(random_state)
    resolve_n_jobs(n_jobs)  # refuses what is no number of jobs
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    kinds = list(dict.fromkeys(kind for name in methods for kind in _FITS[name]))
    runner = Runner(plan, n_jobs=n_jobs, verbose=verbose)

    def outcomes_of(ranks: Sequence[int]) -> list[Outcome]:
        # Kinds in a fixed order; large ranks first, because they take longest.
        order = sorted(ranks, reverse=True)
        tasks = [Task(kind, r, k, seed) for kind in kinds for r in order for k in range(n_repeats)]
        return runner.run(tasks)

    def selection(outcomes: Sequence[Outcome], *, is_complete: bool = False) -> RankSelection:
        table, values = summarize(outcomes, sorted({o.task.rank for o in outcomes}), methods)
        return RankSelection(
            *(methods, table, values, min_match, min_consistency),
            n_unconverged=sum(outcome.ending != "converged" for outcome in outcomes),
            advice=getattr(prepared, "_heldout_advice", ""),
            loss_limit=_loss_limit(prepared, given),
            is_complete=is_complete,
        )

    if is_auto:
        limit = largest_rank(prepared, given.shape, methods, subsample)
        outcomes, is_complete = _search(outcomes_of, selection, limit)
    else:
        outcomes, is_complete = outcomes_of(tried), False
    _report_endings(outcomes)
    return selection(outcomes, is_complete=is_complete)


def _search(
    outcomes_of: Callable[[Sequence[int]], list[Outcome]],
    selection: Callable[[Sequence[Outcome]], RankSelection],
    limit: int,
) -> tuple[list[Outcome], bool]:
    """Try ranks until the best is not the edge of what was tried; say whether none is larger.

    Twice as many each time, because what is beyond the best costs little more than all before;
    then halfway to the neighbours of the best.
    """
    outcomes: list[Outcome] = []
    tried: list[int] = []
    best: int | None = None
    while not tried or (tried[-1] < limit and (tried[-1] < _AT_LEAST or best == tried[-1])):
        rank = min(2 * tried[-1], limit) if tried else 1
        try:
            outcomes += outcomes_of([rank])
        except InvalidInputError:
            # An estimator may take fewer components than a tensor of this shape can have.
            if not tried:
                raise
            limit = tried[-1]
            break
        tried.append(rank)
        best = selection(outcomes).best_rank
    is_complete = best == limit
    while best is not None:
        place = tried.index(best)
        around = zip(tried[max(place - 1, 0) : place + 1], tried[place : place + 2], strict=False)
        halfway = {(a + b) // 2 for a, b in around if b - a > max(1, best // _FINENESS)}
        if not halfway - set(tried):
            break
        new = sorted(halfway - set(tried))
        outcomes += outcomes_of(new)
        tried = sorted([*tried, *new])
        best = selection(outcomes).best_rank
    return outcomes, is_complete


def _loss_limit(estimator: Any, given: TensorInput) -> float:
    """Return the loss above which no model is right, which is known for counts."""
    limit: float = getattr(estimator, "_heldout_limit", math.inf)
    if not math.isfinite(limit):
        return math.inf
    entries = given.data.data if given.is_sparse else to_numpy(given.data)
    known = entries[np.isfinite(entries)]
    return limit if bool((known == np.round(known)).all()) else math.inf


def _report_endings(outcomes: Sequence[Outcome]) -> None:
    """Warn once of all fits that did not converge."""
    endings = [outcome.ending for outcome in outcomes if outcome.ending != "converged"]
    if endings:
        counts = ", ".join(f"{name}: {endings.count(name)}" for name in sorted(set(endings)))
        largest = max(o.task.rank for o in outcomes if o.ending != "converged")
        warnings.warn(
            f"select_rank: {len(endings)} of {len(outcomes)} fits did not converge ({counts}; the "
            f"largest rank among them is {largest}). Ranks above the true one often converge "
            "slowly. If the rank that matters is among them, raise max_iter or tol of the "
            "estimator.",
            ConvergenceWarning,
            stacklevel=3,
        )
