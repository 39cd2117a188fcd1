"""NonnegativeCP: the scikit-learn surface, and what all with nonnegative factors share."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyad.core.arrays import namespace_of
from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.cp.family import COMMON_CONSTRAINTS, CPFamily, NonnegativeLearned, read_penalties
from polyad.cp.nonnegative.solver import Descent, NonnegativeSolver
from polyad.cp.problem import Problem, build_problem
from polyad.cp.start import (
    NONNEGATIVE_STARTS,
    given_nonnegative_start,
    nonnegative_svd_start,
    without_zeros,
)
from polyad.data.validation import refuse_negative
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError
from polyad.tensor.dense import DenseTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.family import CPLearned
    from polyad.cp.problem import FitData
    from polyad.cp.solver import FactorSolver
    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration


class NonnegativeFamily(CPFamily):
    """Base of the CP decompositions with nonnegative factors."""

    _accepts_nan: ClassVar[bool] = True
    _learns = NonnegativeLearned

    def _read_init(self, problem: FitData, init: Any) -> Any:
        if isinstance(init, str) and init in NONNEGATIVE_STARTS:
            return init
        return given_nonnegative_start(problem, self.n_components, init)

    def _start(self, problem: Any, kind: str, seed: int) -> list[Array]:
        if kind == "svd":
            return self._sized(problem, nonnegative_svd_start(problem, self.n_components, seed))
        return [without_zeros(factor) for factor in super()._start(problem, kind, seed)]

    def _advice_on_nothing(self, problem: Any) -> str:
        tensor = problem.tensor
        stored = tensor.array if isinstance(tensor, DenseTensor) else tensor.values
        xp = namespace_of(stored)
        n_negative, n_nonzero = (
            int(xp.sum(xp.astype(chosen, xp.int64))) for chosen in (stored < 0, stored != 0)
        )
        if not n_negative:
            return super()._advice_on_nothing(problem)
        return (
            f"{n_negative} of its {n_nonzero} nonzero entries are negative, which components that "
            "only add up cannot come near. Use CP, which takes data of any sign; if these are "
            "losses or differences, turn their sign, or subtract another zero level first."
        )

    def _nonnegative_rows(
        self, problem: Problem, learned: CPLearned, sparsity: float, ridge: float | Array
    ) -> Array:
        """Return the exact nonnegative coefficients of samples.

        ``ridge`` is one number, or an array of the data's namespace with one for each component.
        """
        scale = learned.scale
        start = problem.asarray(np.zeros((problem.shape[0], scale.shape[0])))
        others = [problem.asarray(factor) for factor in learned.others]
        # The penalties of a sample are those of the unscaled data.
        weight = sparsity * 2.0**-problem.exponent
        exact = Descent([weight], [ridge], exact=True)
        rows = problem.minimizer([start, *others], 0, exact)
        return rows * problem.asarray(scale)[None, :]

    def _learned(self, solver: FactorSolver[Any], state: Any) -> NonnegativeLearned:
        return NonnegativeLearned(**vars(super()._learned(solver, state)))


@documented
class NonnegativeCP(NonnegativeFamily):
    r"""CP decomposition with nonnegative factors and a squared loss.

    Minimises

    .. math:: \tfrac12 \Big\|X - \sum_{r=1}^R w_r\, a^{(0)}_r \circ a^{(1)}_r \circ \dots\Big\|^2
        + \sum_k \Big(\lambda_k \sum_{ir} A^{(k)}_{ir} + \tfrac{\mu_k}{2} \|A^{(k)}\|^2\Big),
        \qquad A^{(k)} \ge 0

    over the observed entries of a dense or sparse tensor of any order from two up.

    Components that only add up are parts that can be read one by one: spectra, parts of images,
    phenotypes. For counts with many zeros a Poisson loss fits better than a squared one.

    Parameters
    ----------
    {n_components}
    solver : {'hals', 'mu'}, default='hals'
        Coordinate descent, or multiplicative updates (CP-NMU). The first is faster and accepts
        negative entries in the data; the second needs nonnegative data.
    {init, n_init}
        ``'auto'`` is 3 for a search, and 1 otherwise.
    {max_iter}
        An iteration is a sweep over the modes.
    {tol, sparsity}
    ridge : float or sequence of float, default=0.0
        The weight :math:`\mu` of half the sum of the squares of a factor's entries. If one mode is
        penalised, all free modes must be, because scale moves freely between modes.
    {fixed_modes, missing, time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks}
    {verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One nonnegative factor per mode, with columns of length one.
    {components_, kruskal_, labels_, modes_}
    objective_ : float
        The objective of the model, its weights shared out over the factors as they were in the fit.
    {history_, n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    A sweep costs about that of :class:`CP`: inner sweeps of the coordinate descent share one pass
    over the data. The objective never rises. ``transform`` solves the nonnegative least-squares
    problem of each sample exactly, and so does the end of ``fit``: ``fit(X).transform(X)`` equals
    ``fit_transform(X)`` up to rounding, unless mode 0 is fixed, or the final rows were cut
    short. Where a sample has so few observed entries that its best row is not unique, both give
    nearly the shortest.

    References
    ----------
    N. Gillis, F. Glineur, "Accelerated Multiplicative Updates and Hierarchical ALS Algorithms for
    Nonnegative Matrix Factorization", Neural Computation 24 (2012), doi:10.1162/NECO_a_00256.

    Examples
    --------
    >>> from polyad import NonnegativeCP
    >>> from polyad.datasets import make_low_rank
    >>> X, truth = make_low_rank((20, 8, 6), 2, nonnegative=True, random_state=0)
    >>> model = NonnegativeCP(2, random_state=0).fit(X)
    >>> round(model.score(X), 3)
    1.0
    """

    _accepts_nan: ClassVar[bool] = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "solver": [StrOptions({"hals", "mu"})],
        "sparsity": [Interval(Real, 0, None, closed="left"), "array-like"],
        "ridge": [Interval(Real, 0, None, closed="left"), "array-like"],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: str = "hals",
        init: Any = "svd",
        n_init: int | str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-5,
        sparsity: float | Sequence[float] = 0.0,
        ridge: float | Sequence[float] = 0.0,
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
        self.sparsity = sparsity
        self.ridge = ridge
        self.fixed_modes = fixed_modes
        self.missing = missing
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def _problem(self, given: TensorInput) -> Problem:
        if self.solver == "mu":
            advice = (
                "Multiplicative updates can only shrink and stretch numbers that are not negative. "
                "Use solver='hals', which takes data of any sign."
            )
            refuse_negative(given, advice)
            if given.is_sparse and self.missing == "unobserved":
                message = (
                    "solver='mu' does not take sparse data with missing='unobserved'. Use "
                    "solver='hals'."
                )
                raise InvalidInputError(message)
        return build_problem(given.data, self.missing)

    def _solver(self, problem: Problem) -> NonnegativeSolver:
        n_modes, fixed_modes = len(problem.shape), problem.fixed_modes
        sparsity, ridge = read_penalties(self.sparsity, self.ridge, n_modes, fixed_modes)
        return NonnegativeSolver(
            problem, method=self.solver, sparsity=sparsity, ridge=ridge, fixed_modes=fixed_modes
        )

    def _rows(self, problem: Problem, learned: CPLearned) -> Array:
        sparsity, ridge = read_penalties(self.sparsity, self.ridge, len(problem.shape), [])
        return self._nonnegative_rows(problem, learned, sparsity[0], ridge[0])
