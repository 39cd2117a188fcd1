"""CP: the scikit-learn surface of alternating least squares."""

from __future__ import annotations

import dataclasses
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from array_api_compat import device

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.sklearn_compat import Interval, fit_context
from polyad.core.threads import thread_limit
from polyad.cp.family import COMMON_CONSTRAINTS, CPFamily, CPLearned
from polyad.cp.problem import CompleteProblem, Problem, build_problem
from polyad.cp.solver import AlternatingLeastSquares, OnlineSums, add_batch, ridge_rows, sums_of_fit
from polyad.data.label_values import joined_labels
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError, NumericalError
from polyad.tensor.dense import DenseTensor
from polyad.tensor.kruskal import KruskalTensor, column_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration


@dataclasses.dataclass(frozen=True, kw_only=True)
class CPLearnedOnline(CPLearned):
    """What CP learns: components, and the sums of ``partial_fit``, None before the first."""

    _online_sums: tuple[list[Array], list[Array]] | None = saving.attribute(
        saving.nothing_or(
            saving.parts(
                tuple,
                saving.per_mode(saving.array("n", "R"), first=1),
                saving.per_mode(saving.array("R", "R"), first=1),
            )
        )
    )


@documented
class CP(CPFamily):
    r"""CP decomposition by alternating least squares (CANDECOMP/PARAFAC).

    Minimises

    .. math:: \tfrac12 \Big\|X - \sum_{r=1}^R w_r\, a^{(0)}_r \circ a^{(1)}_r \circ \dots\Big\|^2
        + \tfrac{\lambda}{2} \sum_k \|A^{(k)}\|^2

    over the observed entries of a dense or sparse tensor of any order from two up.

    Use it for data with symmetric noise of even size, and as the baseline of everything else. For
    counts, binary data or data whose zeros are structural, squared error is the wrong loss.

    Parameters
    ----------
    {n_components}
    init : {'svd', 'random', 'search'}, KruskalTensor, pair or list of factors, default='svd'
        Where to start: leading singular vectors of each unfolding, random numbers, or given
        factors, with or without weights. ``'search'`` spends ``n_init`` fits on singular vectors
        and then on moves from the best model so far, each of which splits a component and merges
        two others. With the other names the first fit is that one and further ones are random.
    {n_init}
        ``'auto'`` is 3 for a search, and 1 otherwise.
    {max_iter}
        An iteration is a sweep over the modes.
    {tol}
    ridge : float, default=0.0
        The weight :math:`\lambda` of the squared factors. It keeps components from growing against
        each other when the tensor has no best approximation.
    {fixed_modes, missing, time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks}
    {verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One factor per mode, with columns of length one. In every mode but the first the largest
        entry of a column is positive.
    {components_, kruskal_, labels_, modes_}
    objective_ : float
        The objective of the model; of its ridge term, with the weights shared out over the factors
        as they were in the fit.
    {history_, n_iter_, status_, n_samples_seen_}
        Those of later ``partial_fit`` count too.
    {n_features_in_, feature_names_in_}

    Notes
    -----
    A sweep costs ``O(size · R)`` for dense data, in two passes over it, and ``O(nnz · R)`` per mode
    for sparse data, which is never made dense. The objective never rises. A sweep visits the modes
    other than the samples first and the samples last.
    ``fit(X).transform(X)`` equals ``fit_transform(X)`` up to rounding, unless mode 0 is fixed,
    or the final rows were cut short.

    References
    ----------
    T. G. Kolda, B. W. Bader, "Tensor Decompositions and Applications", SIAM Review 51 (2009),
    doi:10.1137/07070111X.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import CP
    >>> X = np.random.default_rng(0).random((20, 5, 4))
    >>> model = CP(2, random_state=0).fit(X)
    >>> model.transform(X).shape
    (20, 2)
    """

    _accepts_nan: ClassVar[bool] = True
    _learns = CPLearnedOnline

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "ridge": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        init: Any = "svd",
        n_init: int | str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-5,
        ridge: float = 0.0,
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
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
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

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Learn from further samples without the earlier ones.

        The first call is ``fit``. A later one computes the rows of the new samples, appends them to
        ``factors_[0]``, and updates the other factors by sums over all samples seen. Rows of
        earlier samples are not computed again: ``transform`` does that. Components keep their
        order, so that features stay comparable. ``status_``, ``history_`` and ``objective_`` stay
        those of the first fit.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            New samples. A missing entry (NaN) is filled by what the model expects there.
        {y, mask}
        """
        if not hasattr(self, "factors_"):
            return self.fit(X, mask=mask)
        self._check_same_rank(len(self.weights_), "partial_fit")
        if self.missing == "unobserved" or list(self.fixed_modes):
            message = (
                "partial_fit is for complete data and free modes: it keeps sums that mix all "
                "entries of a sample. Fit all samples at once with missing='unobserved' or "
                "fixed_modes."
            )
            raise InvalidInputError(message)
        given = self._validate_new(X, mask=mask)
        labels = joined_labels(self.labels_[0], given.labels[0])
        with thread_limit(self.n_jobs):
            learned = self._with_samples(given, self._model())
        self._keep(learned)
        self.n_samples_seen_ += given.shape[0]
        self.labels_[0] = labels
        return self

    def _with_samples(self, given: TensorInput, learned: CPLearnedOnline) -> CPLearnedOnline:
        """Return what is learned from further samples."""
        xp = namespace_of(learned.weights_)
        others, scale = learned.others, learned.scale
        safe = xp.where(scale > 0, scale, xp.ones_like(scale))
        old_rows = learned.factors_[0] * (learned.weights_ / safe)[None, :]
        data = self._like_the_model(given)
        problem = build_problem(data, "zero", rescale=False)
        rows = self._rows(problem, learned)
        if not isinstance(problem, CompleteProblem):
            model = self.inverse_transform(rows)
            filled = xp.where(xp.isnan(data), model, data)
            problem = CompleteProblem(DenseTensor(filled))
        sums = sums_of_fit([old_rows, *others], self.ridge)
        if learned._online_sums is not None:
            sums = OnlineSums(*learned._online_sums)
        sums, factors = add_batch(problem, sums, [rows / safe[None, :], *others], self.ridge)
        if not all(bool(xp.all(xp.isfinite(factor))) for factor in factors):
            message = (
                "The batch gave factors that are not finite, so the model is left as it was. Scale "
                "the batch as the data of the fit was scaled."
            )
            raise NumericalError(message)
        factors[0] = xp.concat([old_rows, factors[0]], axis=0)
        tensor = KruskalTensor(xp.ones_like(learned.weights_), factors).normalized()
        return CPLearnedOnline(
            factors_=list(tensor.factors),
            weights_=tensor.weights,
            _lengths=[column_norms(factor) for factor in factors[1:]],
            _online_sums=(sums.rhs, sums.normal),
        )

    def _like_the_model(self, given: TensorInput) -> Any:
        """Bring a batch to the namespace, device and number type of the model."""
        xp = namespace_of(self.weights_)
        if given.is_sparse and xp is np:
            return given.data.astype(self.weights_.dtype)
        if given.is_sparse:
            message = (
                "A sparse batch was given to a model of torch or other arrays. Fit NumPy data "
                "first, or give a dense batch."
            )
            raise InvalidInputError(message)
        own = namespace_of(given.data) is xp
        data = given.data if own else to_numpy(given.data)
        return xp.asarray(data, dtype=self.weights_.dtype, device=device(self.weights_))

    def _problem(self, given: TensorInput) -> Problem:
        return build_problem(given.data, self.missing)

    def _solver(self, problem: Problem) -> AlternatingLeastSquares:
        return AlternatingLeastSquares(problem, ridge=self.ridge, fixed_modes=problem.fixed_modes)

    def _learned(self, solver: Any, state: Any) -> CPLearnedOnline:
        return CPLearnedOnline(**vars(super()._learned(solver, state)), _online_sums=None)

    def _rows(self, problem: Problem, learned: CPLearned) -> Array:
        return ridge_rows(problem, learned.others, learned.scale, self.ridge)
