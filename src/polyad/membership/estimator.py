"""MixedMembership: samples that belong to several components at once, from moments of columns."""

from __future__ import annotations

import dataclasses
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state

from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.estimators.base import ReportSection
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.exceptions import InvalidInputError
from polyad.fitting import FitOptions, Status, fit_best
from polyad.membership.learned import KINDS_CODEC, MembershipLearned, learned_from
from polyad.membership.matching import MATCHINGS
from polyad.membership.parameters import (
    emissions_of,
    factors_of,
    parameters_of_emissions,
    parameters_of_factors,
    rows_of,
    spread_of,
)
from polyad.membership.partitions import (
    BlockSolver,
    PartitionSolver,
    Plan,
    choose_anchors,
    given_anchors,
    partitioned,
    thirds,
)
from polyad.membership.posterior import held_out_likelihood, memberships
from polyad.membership.refine import RefineSolver
from polyad.membership.solver import UPDATES
from polyad.membership.tables import column_names, opened_table
from polyad.membership.variables import Table, find_positions, read_columns, read_samples
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput
    from polyad.estimators import saving

# Folds of the variables of a score.
_FOLDS = 5
# Of the moments before a refinement, whose own iterations may be continued later.
_MOMENTS_FIRST = {"max_iter": 500, "tol": 1e-7}


@documented
class MixedMembership(Factorization):
    r"""Mixed membership model of categories, counts and numbers, from moments (PTPQP).

    Each sample has memberships :math:`x` in components, which sum to one and come from a Dirichlet
    distribution of parameters :math:`\alpha`. Each of its entries comes from one component, drawn
    from the memberships: a category of column j with the probabilities :math:`\theta_{jh}`, a
    count, or a number. The parameters follow from the third moments of three sets of columns, which
    are a nonnegative CP decomposition: no iteration over memberships is needed, and the tensor of
    moments is never formed where that is cheaper.

    Use it for surveys, genotypes, and other tables whose rows are mixtures of types.

    Parameters
    ----------
    {n_components}
    alpha0 : float, default=1.0
        The sum of :math:`\alpha`, from 1e-6 to 1e6. Near zero each sample belongs to one
        component; the larger, the more they mix. A wrong value biases all parameters: compare
        some by ``score`` on new samples, as scikit-learn's ``GridSearchCV`` does. The residual of
        the moments does not tell: it is the smaller, the smaller ``alpha0`` is.
    method : {'tensor-free', 'partitioned'}, default='tensor-free'
        Whether all columns are one block of three sets, at random, or many blocks that share the
        columns of three anchor sets, as in the paper: each is factorized by itself, in parallel,
        and their components are matched by the anchors.
    update : {'nnls', 'pqp', 'eps', 'wnmf'}, default='nnls'
        How factors are updated: by coordinate descent; by the multiplicative step of the paper,
        with its :math:`\Phi` or with one at the level of rounding; or by multiplicative updates
        that look at positive moments only.
    matching : {'assignment', 'procrustes', 'angle'}, default='assignment'
        How components of partitions are matched: by the permutation of the largest cosines, or by
        one of the paper's ways, which need not give a permutation; the assignment then takes its
        place, and ``diagnostics_`` says so.
    n_partitions : int or None, default=None
        The number of partitions; None makes as many as give each as many columns as the anchors.
    anchors : None or three sequences of columns, default=None
        The anchor sets, by name or position. None chooses those whose pair moments have the largest
        k-th singular values.
    kinds : str or dict, default='auto'
        What the columns are: ``'categorical'``, ``'count'`` or ``'real'``, one word for all, or a
        dict from names or positions of columns to words; the others are ``'auto'``. That takes
        text, True and False and categories of pandas as categorical; whole numbers, also those
        stored as floating point, as categorical if they have at most 20 different values, else as
        counts if the smallest is zero and their variance at most 30 times their mean; and other
        numbers as real. Counts are Poisson: ages and incomes are better real.
    refine : bool, default=False
        Whether variational expectation maximization follows the moments, which lowers the error of
        the parameters where samples are few. ``history_`` and ``objective_`` are then those of it.
    {n_init}
        With ``method='partitioned'``, for each partition.
    {max_iter}
        Of sweeps over the three sets, or of ten sweeps over each partition.
    {tol, time_budget, random_state}
        An integer also decides which columns come into which set, which is always the same
        otherwise.
    {n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    theta_ : list of arrays
        For each column, of shape (n_categories, n_components) the probabilities of its categories
        in each component, or of shape (1, n_components) its means.
    alpha_ : array of shape (n_components,)
        The Dirichlet parameters, decreasing.
    kinds_ : list of str
        What each column was taken for.
    categories_ : list of (array or None)
        The categories of each column, in the order of the rows of ``theta_``.
    diagnostics_ : dict
        ``residual``, what the model misses of the moments, as a part of their norm, and
        ``negative_fraction``, the part of the moments that is below zero (None where these would
        cost too much);
        ``smallest_anchor_angle`` between two components, in degrees; ``n_empty_columns`` of factors
        that were zero; and for each partition but the first, whether the ``matching_valid`` was a
        permutation, and whether the sufficient conditions of Theorems 4 and 5 hold (``theorem4``,
        ``theorem5``), with the first partition in the place of the truth.
    {labels_, modes_}
    objective_ : float
        Half the squared distance to the moments, less that of a model of nothing: below zero, and
        the lower the better. With ``refine``, minus the bound of the log-likelihood per entry,
        with real columns in units of their ranges.
    {history_, n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    NaN, None and ``pd.NA`` are missing values. Where the moments are formed, each triple of columns
    is averaged over the samples that have it, which is consistent if values are missing completely
    at random. Where they are not, what is observed is divided by the part of the samples that has
    it, which also asks that the gaps of different columns are independent.

    ``transform`` gives the mode of the posterior of the memberships in the softmax basis, the
    maximum of :math:`\sum_j \log \sum_h x_h \ell_{jh} + \sum_h \alpha_h \log x_h`, to rounding,
    each sample for itself. Categories that the fit has not seen say nothing, with a warning.
    Likelihoods add one observation for each component, which has all categories alike. Counts are
    Poisson, real numbers normal, with one variance for all components.

    A sweep costs the number of entries of X times ``n_components``. An array of whole numbers, also
    a memory map, is read in place, some samples at a time; where these are too many to keep what
    sweeps need of them, the fit starts from that of a part of them.

    References
    ----------
    Z. Tan, S. Mukherjee, "Partitioned Tensor Factorizations for Learning Mixed Membership Models",
    ICML 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import MixedMembership
    >>> rng = np.random.default_rng(0)
    >>> x = rng.dirichlet([0.2, 0.2], 500)
    >>> X = np.where(rng.random((500, 9)) < x[:, :1], "yes", "no")
    >>> model = MixedMembership(2, alpha0=0.4, random_state=0).fit(X)
    >>> model.theta_table(0).round(1)
         0    1
    no   1.0  0.0
    yes  0.0  1.0
    >>> model.transform(X).shape
    (500, 2)
    """

    _accepts_nan: ClassVar[bool] = True
    _score_name: ClassVar[str] = "held-out log-likelihood per entry"
    _scores_samples: ClassVar[bool] = True
    _learns = MembershipLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {"kinds": KINDS_CODEC}
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **FIT_CONSTRAINTS,
        # Beyond these, all is one component for each sample, or one mixture for all.
        "alpha0": [Interval(Real, 1e-6, 1e6, closed="both")],
        "method": [StrOptions({"tensor-free", "partitioned"})],
        "update": [StrOptions(set(UPDATES))],
        "matching": [StrOptions(set(MATCHINGS))],
        "n_partitions": [Interval(Integral, 1, None, closed="left"), None],
        "anchors": ["array-like", None],
        "kinds": [object],
        "refine": ["boolean"],
    }

    theta_: list[np.ndarray]
    alpha_: np.ndarray
    diagnostics_: dict[str, Any]
    _n_samples: int

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha0: float = 1.0,
        method: str = "tensor-free",
        update: str = "nnls",
        matching: str = "assignment",
        n_partitions: int | None = None,
        anchors: Any = None,
        kinds: Any = "auto",
        refine: bool = False,
        n_init: int = 1,
        max_iter: int = 500,
        tol: float = 1e-7,
        time_budget: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha0 = alpha0
        self.method = method
        self.update = update
        self.matching = matching
        self.n_partitions = n_partitions
        self.anchors = anchors
        self.kinds = kinds
        self.refine = refine
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def fit_transform(self, X: Any, y: Any = None, *, mask: Any = None) -> Array:
        """Fit samples and return their memberships.

        Parameters
        ----------
        {X, y, mask}

        Returns
        -------
        array of shape (n_samples, n_components)
            As ``fit(X).transform(X)``.
        """
        self.fit(X, mask=mask)
        return self._named(*self._transformed(X, mask))

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the log-likelihood per observed entry, of entries that had no part in it.

        The columns are cut into five folds. Those of each are predicted from memberships that are
        estimated on the other four, so that memberships that fit too well are of no use.

        Parameters
        ----------
        {X, y, mask}
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            table, learned = self._read_new(given), self._model()
            emissions = emissions_of(*learned.found())
            total, count = held_out_likelihood(table, emissions, learned.alpha_, _FOLDS)
        if not count:
            message = "X has no entry that the model knows anything of: nothing can be scored."
            raise InvalidInputError(message)
        return total / count

    def sample(
        self, n_samples: int = 1, random_state: Any = None
    ) -> tuple[pd.DataFrame, np.ndarray]:
        """Draw samples from the model.

        Parameters
        ----------
        n_samples : int, default=1
            How many.
        random_state : int, RandomState instance or None, default=None
            Seeds the draws.

        Returns
        -------
        X : DataFrame of shape (n_samples, n_features)
            The samples.
        memberships : array of shape (n_samples, n_components)
            What they were drawn from.
        """
        learned = self._model()
        if not isinstance(n_samples, Integral) or isinstance(n_samples, bool) or n_samples < 1:
            message = f"n_samples={n_samples!r} is not a number of samples; give 1 or more."
            raise InvalidInputError(message)
        columns, shares = learned.draw(int(n_samples), check_random_state(random_state))
        table = pd.DataFrame(dict(enumerate(columns)))
        table.columns = pd.Index(self._column_names())
        return table, shares

    def theta_table(self, variable: int | str | None = None) -> pd.DataFrame:
        """Return the parameters of a column, or of all, as a table.

        Parameters
        ----------
        variable : int, str or None, default=None
            The position or name of the column; None stands for all.

        Returns
        -------
        DataFrame
            A column for each component, and a row for each category, or a row ``mean``. Of all
            columns, the rows also have the name of the column.
        """
        learned, names = self._model(), self._column_names()
        tables = {}
        for name, theta, known in zip(names, learned.theta_, learned.categories_, strict=True):
            tables[name] = pd.DataFrame(theta, index=["mean"] if known is None else known)
        if variable is None:
            for table in tables.values():
                table.index = table.index.astype(str)  # numbers and names side by side
            together: pd.DataFrame = pd.concat(tables, names=["variable", "category"])
            return together
        if not isinstance(variable, (str, Integral)):
            message = (
                f"variable={variable!r} is not the name or the position of one column; give one, "
                "or None for all."
            )
            raise InvalidInputError(message)
        return tables[names[int(find_positions(variable, names, "variable")[0])]]

    def _column_names(self) -> list[Any]:
        names = self.labels_[1]
        return list(range(self.n_features_in_)) if names is None else names.tolist()

    def _compared(self) -> KruskalTensor:
        parameters, variables, _ = self._model().found()
        rows = np.concatenate(rows_of(parameters, variables))
        return KruskalTensor(parameters.alpha, [np.ones((1, rows.shape[1])), rows])

    def _report_sections(self) -> list[ReportSection]:
        text = "The probability of each category, or the mean, in each component."
        # What a row is of, in two columns of its own.
        table = self.theta_table().reset_index().set_index("variable")
        shares = pd.DataFrame({"share": self.alpha_ / self.alpha_.sum()}).T
        return [
            ReportSection("Components", "Their shares of all memberships.", table=shares),
            ReportSection("Columns", text, table=table),
        ]

    # What a factorization is made of.

    def _open(self, X: Any, mask: Any) -> TensorInput:
        return opened_table(X, mask, is_new=False)

    def _validate_new(self, X: Any, *, mask: Any = None, for_features: bool = False) -> TensorInput:
        self._model()  # refuses a model that was not fitted
        given = opened_table(X, mask, is_new=for_features)
        self._check_order(given)
        self._check_feature_names_of(X, given, reset=False)
        return self._in_the_shape_of_the_model(given)

    def _read(self, given: TensorInput, y: Any) -> Plan:
        if given.shape[1] < 3 and self.n_components > 1:
            message = (
                f"X has n_features={given.shape[1]}, but moments need three columns or more to "
                "tell components apart."
            )
            raise InvalidInputError(message)
        names = column_names(given)
        table = read_columns(given.data, self.kinds, names)
        seed = int(self.random_state) if isinstance(self.random_state, Integral) else 0
        alpha0 = float(self.alpha0)
        if self.method == "tensor-free" or given.shape[1] < 3:
            if self.anchors is not None or self.n_partitions is not None:
                message = (
                    "anchors and n_partitions belong to method='partitioned'; the method is "
                    "'tensor-free'."
                )
                raise InvalidInputError(message)
            layout = thirds(table.variables, self.n_components, seed)
        else:
            anchors = (
                choose_anchors(table, self.n_components, alpha0, seed)
                if self.anchors is None
                else given_anchors(self.anchors, names)
            )
            layout = partitioned(table, anchors, self.n_components, self.n_partitions, seed)
        if self._goes_on and not self._model().is_of(table.variables, self.n_components):
            message = (
                "warm_start=True goes on from a model of other columns, categories or number of "
                "components. Use warm_start=False."
            )
            raise InvalidInputError(message)
        return Plan(table, layout, alpha0)

    def _read_new(self, given: TensorInput) -> Table:
        names = self._column_names()
        table, strange = read_samples(given.data, self._model().variables(), names)
        for j, found in strange[:3]:
            self._warn_about_data(
                f"column {names[j]!r} has categories that the fit has not seen, "
                f"{', '.join(found[:3])}: they say nothing."
            )
        return table

    def _solver(self, plan: Plan) -> Any:
        if self.refine:
            return RefineSolver(plan, spread_of(plan.table))
        return self._moment_solver(plan)

    def _moment_solver(self, plan: Plan) -> BlockSolver | PartitionSolver:
        kind = BlockSolver if self.method == "tensor-free" else PartitionSolver
        return kind(plan, self.update)

    def _kinds(self, problem: Any) -> list[str]:
        kinds = super()._kinds(problem)
        # Each partition has starts of its own.
        return kinds[:1] if self.method == "partitioned" and not self.refine else kinds

    def _begin(self, solver: Any, number: int, seed: int) -> Any:
        if self._goes_on and number == 0:
            earlier, variables, n_samples = self._model().found()
            alpha = earlier.alpha * (solver.plan.alpha0 / earlier.alpha.sum())
            earlier = dataclasses.replace(earlier, alpha=alpha)
            if isinstance(solver, RefineSolver):
                emissions = emissions_of(earlier, variables, n_samples)
                return solver.init(emissions, alpha, np.zeros((0, 3)))
            return solver.init(factors_of(earlier, solver.plan.layout, variables))
        if isinstance(solver, RefineSolver):
            return self._begin_refinement(solver, seed)
        if isinstance(solver, BlockSolver):
            return solver.random(self.n_components, seed)
        return solver.random(self.n_components, seed, int(self.n_init))

    def _begin_refinement(self, solver: RefineSolver, seed: int) -> Any:
        """Return the state of the parameters that moments give."""
        inner = self._moment_solver(solver.plan)
        budget = None if self.time_budget is None else 0.5 * self.time_budget
        options = FitOptions(**_MOMENTS_FIRST, time_budget=budget)  # type: ignore[arg-type]
        best = fit_best(inner, lambda k, s: self._begin(inner, 1, s), [seed], options)
        if best.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        found, _, matches = parameters_of_factors(best.state.factors, solver.plan, self.matching)  # type: ignore[arg-type]
        table = solver.plan.table
        emissions = emissions_of(found, table.variables, table.n_samples)
        return solver.init(emissions, found.alpha, matches)

    def _learned(self, solver: Any, state: Any) -> MembershipLearned:
        plan = solver.plan
        if isinstance(solver, RefineSolver):
            found = parameters_of_emissions(solver.emissions(state), state.alpha)
            factors = factors_of(found, plan.layout, plan.table.variables)
            _, known, _ = parameters_of_factors(factors, plan, "assignment")
            matches, moments_of = state.matches, self._moment_solver(plan)
        else:
            factors, moments_of = state.factors, solver
            found, known, matches = parameters_of_factors(factors, plan, self.matching)  # type: ignore[arg-type]
        return learned_from(found, plan, {**moments_of.fit_quality(factors), **known}, matches)

    def _features(self, problem: Any, learned: MembershipLearned) -> Array:
        emissions = emissions_of(*learned.found())
        return memberships(problem, emissions, learned.alpha_).astype(problem.dtype)

    @property
    def _features_of_fit(self) -> Array:
        # Tools that look through all attributes expect this of one that is absent.
        message = "The samples of the fit are not kept: use transform."
        raise AttributeError(message)

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        return self._n_samples, len(self.theta_)

    @property
    def _n_features_out(self) -> int:
        return len(self.alpha_)

    @classmethod
    def _sizes(cls, learned: Any) -> saving.Sizes:
        return MembershipLearned.sizes(learned)

    def _check_restored(self) -> None:
        super()._check_restored()
        self._model().check()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.three_d_array = False
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags
