"""PoissonCP: the scikit-learn surface of alternating Poisson regression."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import rel_entr

from polyad.core.arrays import Array, to_numpy
from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.cp.family import COMMON_CONSTRAINTS, CPFamily, NonnegativeLearned
from polyad.cp.poisson.problem import CountProblem, Method, build_problem
from polyad.cp.poisson.solver import PoissonSolver, of_the_sum_of, random_start
from polyad.cp.start import NONNEGATIVE_STARTS, given_nonnegative_start, nonnegative_svd_start
from polyad.data.validation import refuse_negative
from polyad.estimators.documentation import documented

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from polyad.cp.problem import FitData
    from polyad.cp.solver import FactorSolver
    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration

# The least expectation of a held-out count, in parts of the mean of the model: a count where
# nothing is expected costs a lot, and not everything.
_LEAST_EXPECTED = 1e-3


@documented
class PoissonCP(CPFamily):
    r"""CP decomposition of counts by alternating Poisson regression (CP-APR).

    Maximises the Poisson likelihood of a nonnegative model, which is to minimise the divergence

    .. math:: \sum_i m_i - x_i + x_i \log\frac{x_i}{m_i}, \qquad
        m = \sum_{r=1}^R w_r\, a^{(0)}_r \circ a^{(1)}_r \circ \dots, \quad w, a \ge 0

    over the observed entries of a dense or sparse tensor of any order from two up.

    Use it for counts, above all for those with many zeros: events, visits, words, messages. Data
    that is not negative and not whole is accepted, as a divergence. For data of any sign, or with
    noise of even size, use :class:`~polyad.CP`.

    Parameters
    ----------
    {n_components}
    solver : {'mu', 'pdnr'}, default='mu'
        How the rows of a factor are improved: by multiplicative updates, which are cheap, or by
        Newton steps, which need far fewer iterations to a precise optimum and give exact zeros.
    {init, n_init}
        ``'auto'`` is 3 for a search, and 1 otherwise, as for one component of complete data.
    {max_iter}
        An iteration is a sweep over the modes.
    {tol}
        See ``kkt`` in ``history_`` for how stationary the result is.
    inner_iter : int, default=10
        The most updates of a row in one iteration.
    {fixed_modes, missing, time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks}
    {verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One nonnegative factor per mode, with columns of length one.
    {components_, kruskal_, labels_, modes_}
    objective_ : float
        The divergence of the model: half the deviance, and the negative log-likelihood up to a
        constant.
    {history_}
        Also ``kkt``, the largest violation of the optimality conditions,
        ``max |min(B, gradient)|``, of the modes before their updates; and ``inner_iter``, the inner
        sweeps of the iteration over all modes.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    An inner sweep costs ``O(nonzeros · R)`` per mode, for dense data too. The objective never
    rises, and no row of the samples holds a count impossible that the components can explain.
    Slices without an observed count have rows of zero. The fit runs in double precision on NumPy
    memory: float32 data gives float32 factors, and arrays of other namespaces, such as torch, are
    converted and give NumPy arrays.
    ``fit(X).transform(X)`` equals ``fit_transform(X)`` up to the tolerance of the row problems,
    unless mode 0 is fixed, the final rows were cut short, or a sample has so few counts that its
    best row is not unique.

    References
    ----------
    E. C. Chi, T. G. Kolda, "On Tensors, Sparsity, and Nonnegative Factorizations", SIAM Journal on
    Matrix Analysis and Applications 33 (2012), doi:10.1137/110859063.

    S. Hansen, T. Plantenga, T. G. Kolda, "Newton-based Optimization for Kullback-Leibler
    Nonnegative Tensor Factorizations", Optimization Methods and Software 30 (2015),
    doi:10.1080/10556788.2015.1009977.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import PoissonCP
    >>> X = np.random.default_rng(0).poisson(2.0, (20, 5, 4))
    >>> model = PoissonCP(2, random_state=0).fit(X)
    >>> model.transform(X).shape
    (20, 2)
    >>> bool((model.factors_[1] >= 0).all())
    True
    """

    _accepts_nan: ClassVar[bool] = True
    _score_name: ClassVar[str] = "explained deviance"
    _learns = NonnegativeLearned
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "solver": [StrOptions({"mu", "pdnr"})],
        "inner_iter": [Interval(Integral, 1, None, closed="left")],
    }

    # The mean deviance of a Poisson count is at most 1.17, at a mean of 1.35.
    _heldout_limit: ClassVar[float] = 1.5
    _heldout_advice: ClassVar[str] = (
        "Counts that vary more than those of a Poisson model do that: try "
        "GeneralizedCP(loss='negative-binomial'), logarithms (entries='log') or presence."
    )

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: Method = "mu",
        init: Any = "search",
        n_init: int | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-5,
        inner_iter: int = 10,
        fixed_modes: Iterable[int] = (),
        missing: Missing = "zero",
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Callable[[Iteration], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.inner_iter = inner_iter
        self.fixed_modes = fixed_modes
        self.missing = missing
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the explained deviance of samples, as scikit-learn's ``d2_tweedie_score``.

        It is 1 minus the deviance of the model over that of the best constant, which is the mean
        of ``X``: 1 is perfect, 0 is no better than the mean. Counts in cells that the model holds
        impossible make it strongly negative. The features of the samples are fitted to those
        samples, so that the score of new samples seldom falls with more components.

        Parameters
        ----------
        {X, y, mask}
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            problem = self._problem(given)
            others = [problem.asarray(factor) for factor in self.factors_[1:]]
            rows = problem.asarray(self._rows(problem, self._model()))
            divergence = problem.divergence([rows, *others])
        worst = problem.constant_divergence()
        rounding = 1e-12 * problem.total
        if worst <= rounding:
            return 1.0 if divergence <= rounding else 0.0
        return 1.0 - divergence / worst

    def _entry_loss(
        self, values: NDArray[np.float64], expected: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the deviance of each entry.

        A count where the model expects nothing would cost infinitely much, and alone decide every
        comparison of models: the expectation is taken for a small part of the mean at least.
        """
        means = [to_numpy(factor).mean(axis=0, dtype=np.float64) for factor in self.factors_]
        mean = float(np.sum(to_numpy(self.weights_) * np.prod(means, axis=0)))
        bounded = np.maximum(expected, _LEAST_EXPECTED * mean)
        terms = rel_entr(values, bounded) - values + bounded
        # Each term is a distance; rounding can make a perfect one slightly negative.
        deviance: NDArray[np.float64] = 2.0 * np.maximum(terms, 0.0)
        return deviance

    def _rows(self, problem: CountProblem, learned: NonnegativeLearned) -> Array:
        others = [problem.asarray(factor) for factor in learned.factors_[1:]]
        start = np.zeros((problem.shape[0], learned.weights_.shape[0]))
        return problem.solve([start, *others], 0).astype(problem.dtype)

    def _problem(self, given: TensorInput) -> CountProblem:
        advice = (
            "A Poisson model is for counts and other numbers that are not negative; CP takes data "
            "of any sign."
        )
        refuse_negative(given, advice)
        return build_problem(given.data, self.missing)

    def _solver(self, problem: CountProblem) -> PoissonSolver:
        return PoissonSolver(
            problem,
            method=self.solver,
            inner_iter=int(self.inner_iter),
            fixed_modes=problem.fixed_modes,
        )

    def _read_init(self, problem: FitData, init: Any) -> Any:
        if isinstance(init, str) and init in NONNEGATIVE_STARTS:
            return init
        return given_nonnegative_start(problem, self.n_components, init)

    def _kinds(self, problem: Any) -> list[str]:
        kinds = super()._kinds(problem)
        # One component has one minimum, the product of the margins, if every cell counts.
        has_one_end = self.n_components == 1 and problem.observed is None
        return kinds[:1] if has_one_end and self.n_init == "auto" else kinds

    def _start(self, problem: Any, kind: str, seed: int) -> list[Array]:
        make = nonnegative_svd_start if kind == "svd" else random_start
        return self._sized(problem, make(problem, self.n_components, seed))

    def _sized(self, problem: Any, factors: list[Array]) -> list[Array]:
        return of_the_sum_of(problem, factors)

    def _learned(self, solver: FactorSolver[Any], state: Any) -> NonnegativeLearned:
        return NonnegativeLearned(**vars(super()._learned(solver, state)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags
