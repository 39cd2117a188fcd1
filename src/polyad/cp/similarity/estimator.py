"""SimilarityCP: the scikit-learn surface."""

from __future__ import annotations

import dataclasses
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from polyad.core.arrays import Array, to_numpy
from polyad.core.sklearn_compat import Interval
from polyad.cp.family import COMMON_CONSTRAINTS, NonnegativeLearned, read_penalties, read_weights
from polyad.cp.nonnegative.estimator import NonnegativeFamily
from polyad.cp.problem import Problem, build_problem
from polyad.cp.rules import double, like
from polyad.cp.similarity.laplacian import read_laplacians
from polyad.cp.similarity.solver import SimilaritySolver, Smoothness, squared_size
from polyad.data.mode_matrices import restored_matrices, stored_matrices
from polyad.estimators import saving
from polyad.estimators.documentation import documented

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityLearned(NonnegativeLearned):
    """Components, and the roughness of each in each mode."""

    roughness_: np.ndarray = saving.attribute(saving.array("N", "R", low=0.0))


@documented
class SimilarityCP(NonnegativeFamily):
    r"""Nonnegative CP decomposition that draws similar entries of a mode to the same components.

    Minimises

    .. math:: \tfrac12 \Big\|X - \sum_{r=1}^R T_r\Big\|^2
        + \sum_n \frac{w_n}{2} \sum_r \rho_{nr} \|T_r\|^2
        + \sum_k \Big(\lambda_k \sum_{ir} A^{(k)}_{ir} + \tfrac{\mu_k}{2} \|A^{(k)}\|^2\Big)

    over nonnegative factors, where :math:`T_r = a^{(0)}_r \circ a^{(1)}_r \circ \dots` is a
    component. The roughness of its column :math:`b = a^{(n)}_r` in mode :math:`n` is
    :math:`\rho_{nr} = b^\top L\, b\, /\, b^\top b`, where :math:`L` is the normalised Laplacian of
    the similarities :math:`S` of that mode:

    .. math:: b^\top L\, b = \tfrac12 \sum_{ij} S_{ij} \Big(\frac{b_i}{\sqrt{d_i}} -
        \frac{b_j}{\sqrt{d_j}}\Big)^2, \qquad d_i = \sum_j S_{ij} .

    The roughness is 0 if similar entries have the same part in the component,
    and at most 2. Where the other columns have length one, the term is the usual
    :math:`\tfrac{w}{2} \operatorname{tr}(B^\top L B)`; in this form it does not depend on how the
    scale of a component is shared between its modes.

    Use it if it is known which features belong together: codes of one chapter of a
    classification, words of one topic, neighbouring places. Components then hold whole groups of
    features and differ from each other more. If nothing is known, use :class:`NonnegativeCP`.

    Parameters
    ----------
    {n_components}
    similarities : {'cosine', 'presence'}, sequence, dict or None, default='cosine'
        The similarities of the entries of each mode but the samples: a name for all modes, a
        sequence with one entry per mode (None for the samples), or a dict from the number or name
        of a mode to its entry. An entry is None, a name, or a symmetric matrix of nonnegative
        numbers: an array, scipy.sparse, or a table of pandas, polars or xarray, which is matched
        by its labels. The diagonal does not count. ``'cosine'`` compares what the samples have at
        two entries, summed over the other modes; ``'presence'`` only whether they have anything
        there. A matrix ``C`` of cosine distances, as for SWIFT, is given as ``1 - C``.
    similarity_weight : float or sequence of float, default=0.1
        The weight :math:`w`, for all modes or for each. It has no unit.
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
    roughness_ : array of shape (n_modes, n_components)
        The roughness :math:`\rho` of each component over the similarities of each mode; zero for
        modes without.
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One nonnegative factor per mode, with columns of length one.
    {components_, kruskal_, labels_, modes_}
    objective_ : float
        The objective of the model, its weights shared out over the factors as they were in the fit.
    {history_}
        Also the relative error and the roughness term.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    A sweep costs that of :class:`NonnegativeCP` plus a few products of the similarities with a
    factor; sparse similarities stay sparse, and those computed from the data are never formed. The
    objective never rises. ``transform`` solves the penalised nonnegative least-squares problem of
    each sample exactly, and so does the end of ``fit``.

    The idea is that of Kim et al.: similar features in the same component make components
    distinct. The term is the standard one of graph-regularised factorization (Cai et al.), made
    independent of scale; it is not claimed to be identical with theirs. The SWIFT paper has the
    method as a baseline.

    References
    ----------
    Y. Kim, R. El-Kareh, J. Sun, H. Yu, X. Jiang, "Discriminative and Distinct Phenotyping by
    Constrained Tensor Factorization", Scientific Reports 7 (2017),
    doi:10.1038/s41598-017-01139-y.

    D. Cai, X. He, J. Han, T. S. Huang, "Graph Regularized Nonnegative Matrix Factorization for
    Data Representation", IEEE Transactions on Pattern Analysis and Machine Intelligence 33
    (2011), doi:10.1109/TPAMI.2010.231.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import SimilarityCP
    >>> from polyad.datasets import make_low_rank
    >>> X, truth = make_low_rank((20, 6, 5), 2, nonnegative=True, noise=0.3, random_state=0)
    >>> pairs = np.kron(np.eye(3), np.ones((2, 2)))  # entries 0 and 1, 2 and 3, 4 and 5
    >>> free = SimilarityCP(2, similarities={1: pairs}, similarity_weight=1e-6, random_state=0)
    >>> bound = SimilarityCP(2, similarities={1: pairs}, similarity_weight=2.0, random_state=0)
    >>> rough = [model.fit(X).roughness_[1].sum() for model in (free, bound)]
    >>> bool(rough[1] < rough[0])
    True
    """

    _learns = SimilarityLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        "similarities": saving.Codec(lambda given, _: stored_matrices(given), restored_matrices)
    }
    roughness_: np.ndarray

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "similarities": [object],
        "similarity_weight": [Interval(Real, 0, None, closed="left"), "array-like"],
        "sparsity": [Interval(Real, 0, None, closed="left"), "array-like"],
        "ridge": [Interval(Real, 0, None, closed="left"), "array-like"],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        similarities: Any = "cosine",
        similarity_weight: float | Sequence[float] = 0.1,
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
        self.similarities = similarities
        self.similarity_weight = similarity_weight
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
        return build_problem(given.data, self.missing)

    def _read(self, given: TensorInput, y: Any) -> Problem:
        problem = cast("Problem", super()._read(given, y))
        weights = read_weights("similarity_weight", self.similarity_weight, len(given.shape))
        problem.smoothness = Smoothness(read_laplacians(given, self.similarities), weights)
        return problem

    def _solver(self, problem: Problem) -> SimilaritySolver:
        fixed_modes = problem.fixed_modes
        sparsity, ridge = read_penalties(self.sparsity, self.ridge, len(problem.shape), fixed_modes)
        return SimilaritySolver(
            problem, problem.smoothness, sparsity=sparsity, ridge=ridge, fixed_modes=fixed_modes
        )

    def _learned(self, solver: Any, state: Any) -> SimilarityLearned:
        learned = super()._learned(solver, state)
        factors = [to_numpy(double(factor)) for factor in learned.factors_]
        roughness = solver.smoothness.relative(factors)
        return SimilarityLearned(**vars(learned), roughness_=roughness)

    def _rows(self, problem: Problem, learned: SimilarityLearned) -> Array:
        n_modes = len(problem.shape)
        sparsity, ridge = read_penalties(self.sparsity, self.ridge, n_modes, [])
        weights = read_weights("similarity_weight", self.similarity_weight, n_modes)
        others = learned.others
        # The roughness of a component is a ridge of its samples, times its size in the fit.
        size = squared_size([to_numpy(double(factor)) for factor in others])
        rough = ridge[0] + size * (np.asarray(weights) @ learned.roughness_)
        total = like(rough, problem.asarray(others[0]))
        return self._nonnegative_rows(problem, learned, sparsity[0], total)
