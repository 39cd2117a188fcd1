"""MajorityVote and DawidSkene: what a crowd says of items, and what its workers are worth."""

from __future__ import annotations

import dataclasses
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.sklearn_compat import Interval, StrOptions, fit_context
from polyad.crowd.answers import DEFAULT_COLUMNS, Answers, answers_of, with_gold
from polyad.crowd.family import CrowdEstimator
from polyad.crowd.problem import CrowdProblem, vote_shares
from polyad.crowd.solver import CrowdSolver, CrowdState
from polyad.crowd.start import DECOMPOSERS, majority_start, moment_start
from polyad.data.label_values import find_labels, shown
from polyad.estimators import saving
from polyad.estimators.base import Learned, PolyadEstimator, ReportSection
from polyad.estimators.documentation import documented
from polyad.estimators.iterative import ITERATION_CONSTRAINTS, IterativeEstimator
from polyad.exceptions import InvalidInputError, ModelFileError

if TYPE_CHECKING:
    import pandas as pd

# A report shows so many workers.
_SHOWN_WORKERS = 30
# The least strength of a prior, in labels.
_LEAST_PRIOR = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteLearned(Learned):
    """The classes of items."""

    classes_: np.ndarray = saving.attribute(saving.labels("K"))
    probabilities_: np.ndarray = saving.attribute(saving.array("n0", "K", shares=True))
    class_shares_: np.ndarray = saving.attribute(saving.array("K", shares=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrowdLearned(VoteLearned):
    """The classes of items, and what workers say of each class."""

    worker_counts_: np.ndarray = saving.attribute(saving.array("n1", "rows", "outcomes", low=0.0))
    prior_: np.ndarray = saving.attribute(saving.array("rows", "outcomes", low=0.0))


@documented
class MajorityVote(CrowdEstimator):
    """The class that most workers chose.

    Every label counts once, also several of one worker for one item. Ties go to the class that has
    the larger share of all labels, and then to the earlier one of ``classes_``. An item without
    labels has the shares of all labels.

    Parameters
    ----------
    columns : sequence of three str or None, default=('item', 'worker', 'label')
        The columns of a long table, as for :class:`DawidSkene`.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        What labels can be.
    probabilities_ : array of shape (n_items, n_classes)
        The share of an item's labels that each class has.
    class_shares_ : array of shape (n_classes,)
        The share of all labels that each class has.
    {labels_, modes_, n_samples_seen_}
    n_features_in_ : int
        The number of workers.
    feature_names_in_ : array of str
        The names of workers, if X was a table with a column for each.

    Examples
    --------
    >>> import pandas as pd
    >>> from polyad import MajorityVote
    >>> said = pd.DataFrame({"ann": ["cat", "dog", "cat"], "bob": ["cat", "cat", "cat"],
    ...                      "eve": ["dog", "dog", None]})
    >>> MajorityVote().fit_predict(said).tolist()
    ['cat', 'dog', 'cat']
    """

    _score_name: ClassVar[str] = "share of labels that agree with the vote"
    _learns = VoteLearned
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"columns": ["array-like", None]}
    _RULES: ClassVar[dict[str, saving.Rule]] = {
        name: rule
        for name, rule in PolyadEstimator._RULES.items()
        if name not in ("history_", "n_iter_", "status_", "objective_")
    }

    def __init__(self, *, columns: Any = DEFAULT_COLUMNS) -> None:
        self.columns = columns

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Count the votes.

        Parameters
        ----------
        X : long table, or matrix or table of shape (n_items, n_workers)
            Labels, as for :class:`DawidSkene`.
        y : mapping, Series or array-like, default=None
            Items whose class is known, as for :class:`DawidSkene`: they are told as they are known.
        """
        answers, gold = with_gold(self._answers(X), y)
        problem = CrowdProblem(answers, gold)
        shares = problem.votes().sum(axis=0) / problem.n_labels
        with self._all_or_nothing():
            self._keep(
                VoteLearned(
                    classes_=answers.classes,
                    probabilities_=vote_shares(problem),
                    class_shares_=shares,
                )
            )
            self._remember(X, answers)
        return self

    def _class_probabilities(self, answers: Answers) -> np.ndarray:
        votes = CrowdProblem(answers).votes()
        sums = votes.sum(axis=1, keepdims=True)
        return np.where(sums > 0, votes / np.maximum(sums, 1.0), self.class_shares_)

    def _score_labels(self, answers: Answers) -> float:
        votes = CrowdProblem(answers).votes()
        best = self._best(self._class_probabilities(answers))
        return float(votes[np.arange(len(best)), best].sum() / votes.sum())


@documented
class DawidSkene(CrowdEstimator, IterativeEstimator):
    """The classes of items from labels of workers who err, each in a way of their own.

    Every worker has a table of how often an item of one class is called by another. Tables and
    classes are found together, by expectation maximization. A prior that is learned from the whole
    crowd keeps the tables of workers with few labels near that of all.

    Labels come as one of

    - a long table (pandas or polars) with a row for each label and the columns ``item``, ``worker``
      and ``label``, or those named in ``columns``. A missing label is none.
    - a table with a column for each worker and a row for each item. None and NaN are no label.
    - a matrix of items x workers: dense, where NaN (or None, in an array of objects) is no label
      and every entry of an integer or text array is one; or sparse, where every stored entry is a
      label, zeros too.

    Names and labels are text, whole numbers, dates or booleans. A worker who labels an item twice
    is counted twice. Workers that ``predict`` meets and ``fit`` did not are taken for typical ones.

    Parameters
    ----------
    init : {'majority', 'moments', 'power'}, default='majority'
        Where the fit begins: with the share of votes of each class; or with the moments of three
        groups of workers, decomposed into nonnegative factors (``'moments'``) or by the tensor
        power method (``'power'``), which needs three workers or more.
    variant : {'full', 'one-coin'}, default='full'
        A table for each worker, or only how often the worker is right, whatever the class.
    prior : 'auto', float or None, default='auto'
        How many labels the table of the crowd is worth in that of a worker, 1e-6 to 1e6. ``'auto'``
        learns it for each class, by the marginal likelihood. None and zero are the maximum of the
        likelihood, as Dawid and Skene have it, which overfits where workers have few labels of many
        classes.
    columns : sequence of three str or None, default=('item', 'worker', 'label')
        The columns of items, workers and labels of a long table. None takes every column of a table
        for a worker.
    {n_init}
        The first start has the votes of all workers, or groups by their number modulo three, later
        ones the votes of a random half, or random groups.
    {max_iter, tol, time_budget, random_state, n_jobs, checkpoint, callbacks, verbose}

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        What labels and known classes can be, sorted, or in the order of a pandas Categorical.
    probabilities_ : array of shape (n_items, n_classes)
        The probability of each class for each item of the fit.
    class_shares_ : array of shape (n_classes,)
        The probability of each class before any label.
    worker_counts_ : array of shape (n_workers, n_classes, n_classes)
        How many labels (last) each worker gave to items of each class, as expected; of the one-coin
        variant, (n_workers, 1, 2), right and wrong ones.
    prior_ : array of shape (n_classes, n_classes)
        The labels that the crowd adds to the counts of each worker; zero without a prior.
    confusion_ : array of shape (n_workers, n_classes, n_classes)
        The probability of each label (last) that a worker gives to an item of each class.
    objective_ : float
        Minus the log-likelihood of the labels, or minus a lower bound of their marginal likelihood
        if there is a prior.
    {labels_, modes_, history_, n_iter_, status_, n_samples_seen_}
    n_features_in_ : int
        The number of workers.
    feature_names_in_ : array of str
        The names of workers, if X was a table with a column for each.

    Notes
    -----
    Confidence is that of a model in which workers err independently. Where items are hard for all
    of them it is too high: measure it on items whose class is known.

    References
    ----------
    A. P. Dawid, A. M. Skene, "Maximum likelihood estimation of observer error-rates using the EM
    algorithm", Applied Statistics 28 (1979).

    Y. Zhang, X. Chen, D. Zhou, M. I. Jordan, "Spectral methods meet EM: a provably optimal
    algorithm for crowdsourcing", Journal of Machine Learning Research 17 (2016).

    Examples
    --------
    >>> import pandas as pd
    >>> from polyad import DawidSkene
    >>> said = pd.DataFrame({"item": [1, 1, 1, 2, 2, 2, 3, 3], "worker": list("abcabcab"),
    ...                      "label": ["no", "no", "yes", "yes", "yes", "no", "no", "no"]})
    >>> DawidSkene().fit(said).item_table()["class"].tolist()
    ['no', 'yes', 'no']
    """

    _score_name: ClassVar[str] = "log-likelihood of a label"
    _learns = CrowdLearned
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "init": [StrOptions({"majority", *DECOMPOSERS})],
        "variant": [StrOptions({"full", "one-coin"})],
        "prior": [StrOptions({"auto"}), Interval(Real, 0, 1e6, closed="both"), None],
        "columns": ["array-like", None],
        **ITERATION_CONSTRAINTS,
    }

    worker_counts_: np.ndarray
    prior_: np.ndarray

    def __init__(
        self,
        *,
        init: str = "majority",
        variant: str = "full",
        prior: Any = "auto",
        columns: Any = DEFAULT_COLUMNS,
        n_init: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-7,
        time_budget: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        checkpoint: Any = None,
        callbacks: Any = None,
        verbose: int = 0,
    ) -> None:
        self.init = init
        self.variant = variant
        self.prior = prior
        self.columns = columns
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the classes of items and the tables of workers.

        Parameters
        ----------
        X : long table, or matrix or table of shape (n_items, n_workers)
            Labels, as the class describes them.
        y : mapping, Series or array-like, default=None
            Items whose class is known: a mapping or a Series from item to class, or one class for
            each row of a matrix, None or NaN where it is not known. Items that X does not have are
            left out.
        """
        self._fit(X, None, y)
        self._report_ending()
        return self

    # The things that the skeleton asks for.

    def _open(self, X: Any, mask: Any) -> Answers:
        return self._answers(X)

    def _read(self, given: Answers, y: Any) -> CrowdProblem:
        if self.prior not in ("auto", None, 0) and self.prior < _LEAST_PRIOR:
            message = (
                f"prior={self.prior} is too small to compute with. Give 0 or None for no prior, or "
                f"{_LEAST_PRIOR} labels or more."
            )
            raise InvalidInputError(message)
        problem = CrowdProblem(*with_gold(given, y))
        if self.init in DECOMPOSERS and problem.n_workers < 3:
            message = (
                f"init={self.init!r} splits the workers into three groups, and X has "
                f"{problem.n_workers}. Use init='majority'."
            )
            raise InvalidInputError(message)
        return problem

    def _solver(self, problem: CrowdProblem) -> CrowdSolver:
        strength = None if self.prior == "auto" else float(self.prior or 0.0)
        return CrowdSolver(problem, self.variant, strength)  # type: ignore[arg-type]

    def _begin(self, solver: CrowdSolver, number: int, seed: int) -> CrowdState:
        if self.init == "majority":
            return solver.init(majority_start(solver.problem, number, seed))
        decomposer = DECOMPOSERS[self.init]
        return solver.init(moment_start(solver.problem, decomposer, number, seed))

    def _learned(self, solver: CrowdSolver, state: CrowdState) -> CrowdLearned:
        return CrowdLearned(
            classes_=solver.problem.answers.classes,
            probabilities_=solver.posteriors(state),
            class_shares_=state.shares / state.shares.sum(),
            worker_counts_=np.ascontiguousarray(state.counts.transpose(0, 2, 1)),
            prior_=np.ascontiguousarray(state.prior.T),
        )

    def _described(self, given: Any, solver: CrowdSolver) -> Any:
        return solver.problem.answers

    # What was learned.

    def _tables(self, answers: Answers | None = None) -> tuple[CrowdSolver, np.ndarray, np.ndarray]:
        """Return the solver of a fitted model, and its counts and prior as it has them."""
        check_is_fitted(self)
        if answers is None:
            nobody, shape = np.zeros(0, dtype=np.intp), (0, self.n_features_in_)
            answers = answers_of((nobody,) * 3, shape, (None, None), self.classes_)
        solver = self._solver(CrowdProblem(answers))
        return solver, self.worker_counts_.transpose(0, 2, 1), self.prior_.T

    def _class_probabilities(self, answers: Answers) -> np.ndarray:
        solver, counts, prior = self._tables(answers)
        tables = solver.table(counts, prior), solver.typical(counts, prior)[None]
        return solver.problem.posteriors(np.concatenate(tables), np.log(self.class_shares_))[0]

    @property
    def confusion_(self) -> np.ndarray:
        """The probability of each label (last) that a worker gives to an item of each class."""
        solver, counts, prior = self._tables()
        return np.ascontiguousarray(solver.confusions(counts, prior).transpose(0, 2, 1))

    def _score_labels(self, answers: Answers) -> float:
        solver, counts, prior = self._tables(answers)
        means = np.log(solver.confusions(counts, prior)), solver.typical(counts, prior)[None]
        shares = np.log(self.class_shares_)
        return solver.problem.posteriors(np.concatenate(means), shares)[1] / len(answers.codes)

    def confusion_table(self, worker: Any = None) -> pd.DataFrame:
        """Return how often a worker calls items of each class (rows) by each label (columns).

        Parameters
        ----------
        worker : label or int, default=None
            The name of the worker, or the position if workers have no names. None is a typical
            worker, as the crowd has them.
        """
        import pandas as pd

        solver, counts, prior = self._tables()
        if worker is None:
            table = np.exp(solver.typical(counts, prior))
        else:
            index = self._index(1)
            place = int(find_labels(index, np.array([worker]))[0]) if np.ndim(worker) == 0 else -1
            if place < 0:
                message = (
                    f"worker={worker!r} is not a worker of the fit; these are "
                    f"{shown(index.to_numpy())}."
                )
                raise InvalidInputError(message)
            table = solver.confusions(counts[[place]], prior)[0]
        classes = pd.Index(self.classes_, name="class")
        return pd.DataFrame(table.T, index=classes, columns=pd.Index(self.classes_, name="label"))

    def worker_table(self) -> pd.DataFrame:
        """Return what each worker is worth.

        Returns
        -------
        DataFrame
            One row per worker: the number of ``labels``, the ``reliability``, which is the
            probability that a label is right, and the ``information`` in bits that a label has on
            the class of an item. Who answers at random has none; who is always wrong may have some.
        """
        import pandas as pd

        confusion, shares = self.confusion_, self.class_shares_
        joint = confusion * shares[:, None]
        apart = joint.sum(axis=1, keepdims=True) * shares[:, None]
        ratio = np.where(joint > 0, joint, 1.0) / np.where(joint > 0, apart, 1.0)
        columns = {
            "labels": np.rint(self.worker_counts_.sum(axis=(1, 2))).astype(int),
            "reliability": np.trace(joint, axis1=1, axis2=2),
            "information": np.maximum((joint * np.log2(ratio)).sum(axis=(1, 2)), 0.0),
        }
        return pd.DataFrame(columns, index=self._index(1))

    def _report_sections(self) -> list[ReportSection]:
        workers = self.worker_table().sort_values("labels", ascending=False, kind="stable")
        text = (
            f"The {min(len(workers), _SHOWN_WORKERS)} workers with the most labels, of "
            f"{len(workers)}: how likely a label is right, what it tells of the class in bits, and "
            "how likely an item of each class is called by its name."
        )
        own = np.diagonal(self.confusion_, axis1=1, axis2=2)
        for number, name in enumerate(self.classes_[:10]):
            workers[f"right on {name}"] = own[self._index(1).get_indexer(workers.index), number]
        typical = (
            "What a typical worker calls (columns) an item of each class (rows), in the table of "
            "the crowd."
        )
        return [
            ReportSection("Workers", text, table=workers.head(_SHOWN_WORKERS)),
            ReportSection("Confusions", typical, table=self.confusion_table()),
            *super()._report_sections(),
        ]

    def _check_restored(self) -> None:
        super()._check_restored()
        n_classes = len(self.classes_)
        wanted = (n_classes, n_classes) if self.variant == "full" else (1, 2)
        if self.prior_.shape != wanted:
            message = f"prior_ has the shape {self.prior_.shape}, and not that of the variant"
            raise ModelFileError(message)
        if self.prior not in (None, 0) and n_classes > 1 and not (self.prior_ > 0).all():
            message = "prior_ has numbers that are not above zero"
            raise ModelFileError(message)
