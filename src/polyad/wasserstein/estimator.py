"""WassersteinCP: the scikit-learn surface of SWIFT, and what a user may say of costs."""

from __future__ import annotations

import dataclasses
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.cp.family import CP_CONSTRAINTS, CPFamily, NonnegativeLearned
from polyad.cp.start import NONNEGATIVE_STARTS, given_nonnegative_start, nonnegative_svd_start
from polyad.data.mode_matrices import (
    WeightedSum,
    as_frame,
    check_name,
    entries_of_modes,
    restored_matrices,
    stored_matrices,
)
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError
from polyad.transport.costs import (
    cosine_cost,
    one_identity_cost,
    presence_cost,
    random_cost,
    tfidf_cost,
    validate_cost,
)
from polyad.transport.label_costs import prefix_cost
from polyad.wasserstein.problem import (
    TransportProblem,
    TransportSettings,
    memory_for_marginals,
    read_nonnegative,
)
from polyad.wasserstein.solver import (
    WassersteinSolver,
    of_the_mass_of,
    random_start,
    solve_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.cp.problem import FitData
    from polyad.data.readers import TensorInput
    from polyad.fitting import Iteration
    from polyad.tensor.sparse import SparseTensor

    Cost = NDArray[np.float64] | None

#: How a named cost is made from the data, the mode and a seed.
NAMED: dict[str, Callable[[SparseTensor, int, int], NDArray[np.float64]]] = {
    "cosine": lambda tensor, mode, seed: cosine_cost(tensor.to_coo(), mode),
    "presence": lambda tensor, mode, seed: presence_cost(tensor.to_coo(), mode),
    "tfidf": lambda tensor, mode, seed: tfidf_cost(tensor.to_coo(), mode),
    "one-identity": lambda tensor, mode, seed: one_identity_cost(tensor.shape[mode]),
    "random": lambda tensor, mode, seed: random_cost(tensor.shape[mode], seed + mode),
}
#: The name of the cost that is made from the labels of a mode.
PREFIX = "prefix"
#: The name that says that nothing moves along a mode.
SEPARATE = "separate"

_NAMES = (*NAMED, PREFIX, SEPARATE)
_ACCEPTED = (
    f"Give a name for all modes ({', '.join(map(repr, _NAMES))}), a function, a list "
    "with one entry per mode, or a dict from mode to cost."
)


def is_separate(rule: Any) -> bool:
    """Say whether nothing moves along a mode."""
    return isinstance(rule, str) and rule == SEPARATE


def rules_of(costs: Any, given: TensorInput) -> list[Any]:
    """Return what was said of each mode: a name, a function or a matrix."""
    n_modes = len(given.shape)
    if isinstance(costs, str) or callable(costs):
        return [costs] * n_modes
    rules = {} if costs is None else entries_of_modes("costs", costs, given, _ACCEPTED)
    default = [SEPARATE, *["cosine"] * (n_modes - 1)]
    said = (rules.get(mode) for mode in range(n_modes))
    return [own if rule is None else rule for rule, own in zip(said, default, strict=True)]


def read_cost(rule: Any, given: TensorInput, tensor: SparseTensor, mode: int, seed: int) -> Cost:
    """Return the cost of one mode, or None if nothing moves along it."""
    if is_separate(rule):
        return None
    title = given.mode_title(mode)
    if isinstance(rule, WeightedSum):
        costs = (read_cost(part, given, tensor, mode, seed) for part in rule.parts)
        return np.asarray(rule.of(costs, f"The cost of {title}"))
    if isinstance(rule, str):
        check_name("costs", rule, _NAMES, title)
        is_prefix = rule == PREFIX
        rule = _of_codes(given, mode) if is_prefix else NAMED[rule](tensor, mode, seed)
    elif callable(rule):
        # A copy: what the function does to it is not done to the data.
        rule = rule(tensor.to_coo().copy(), mode)
    return validate_cost(rule, given.shape[mode], labels=given.labels[mode], mode_title=title)


def _of_codes(given: TensorInput, mode: int) -> NDArray[np.float64]:
    """Return the cost of a mode whose labels are codes."""
    labels = given.labels[mode]
    if labels is None or labels.dtype.kind != "U":
        found = "no labels" if labels is None else f"labels of type {labels.dtype}"
        message = (
            f"costs names {PREFIX!r} for {given.mode_title(mode)}, which has {found}. Codes whose "
            "beginnings are their groups are text: give them as the labels of a "
            "polyad.LabelledTensor."
        )
        raise InvalidInputError(message)
    return prefix_cost(labels).to_numpy()


def read_costs(
    rules: Sequence[Any], given: TensorInput, tensor: SparseTensor, seed: int
) -> list[Cost]:
    """Return the cost of each mode."""
    return [read_cost(rule, given, tensor, mode, seed) for mode, rule in enumerate(rules)]


def _stored_costs(costs: Any, model: WassersteinCP) -> Any:
    """Return costs as a file holds them: functions by the matrices that they gave."""
    found = getattr(model, "costs_", [])
    return stored_matrices(costs, found, getattr(model, "modes_", None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WassersteinLearned(NonnegativeLearned):
    """Components, the costs of the modes, and the name of that of the samples, if it has one."""

    costs_: list[Array | None] = saving.attribute(
        saving.per_mode(saving.nothing_or(saving.array("n", "n", low=0.0)))
    )
    _sample_rule: str | None = saving.attribute(saving.one_of(None, *_NAMES))


@documented
class WassersteinCP(CPFamily):
    r"""CP decomposition of sparse nonnegative tensors under a Wasserstein loss (SWIFT).

    Minimises, over nonnegative factors of :math:`\hat X = \sum_r w_r\, a_r \circ b_r \circ \dots`,

    .. math:: \sum_n \sum_j \min_{T \ge 0} \langle C_n, T \rangle + \epsilon \sum T \log T
        + \lambda\, \mathrm{KL}(T 1 \| \hat x^{(n)}_j) + \lambda\, \mathrm{KL}(T^T 1 \| x^{(n)}_j),

    where :math:`x^{(n)}_j` are the fibres of the data along mode :math:`n`: what the model puts in
    the wrong place costs as much as it costs to carry it to the right one. Two words of the same
    meaning, or two codes of the same disease, are near, and a model that mistakes one for the
    other is a good one.

    Use it for counts, zeros and ones, or probabilities with few nonzeros, where entries of a mode
    resemble each other: patient x diagnosis x drug, article x word x word.

    Parameters
    ----------
    {n_components}
    costs : None, str, callable, list or dict, default=None
        The cost :math:`C_n` of moving mass from one entry of a mode to another. For each mode one
        of

        - ``"cosine"``: 1 minus the cosine of the slices of the data;
        - ``"tfidf"``: the same after weighting by inverse document frequency;
        - ``"presence"``: 1 minus the cosine of the sets of samples that have them, and for samples
          of the sets of what they have, as in the paper;
        - ``"prefix"``: from the labels, codes whose beginnings are their groups, as those of ICD
          and ATC (:func:`~polyad.transport.prefix_cost`);
        - ``"one-identity"``: 1 between any two;
        - ``"random"``: random numbers, to see what a cost is worth;
        - ``"separate"``: nothing moves along this mode;
        - a symmetric matrix with a zero diagonal; a labelled data frame is matched by label,
          such as one of :func:`~polyad.transport.taxonomy_cost`,
          :func:`~polyad.transport.embedding_cost` or :func:`~polyad.transport.graph_cost`;
        - a function of the sparse data and the mode that returns such a matrix;
        - a weighted sum of these (:func:`~polyad.transport.mixed_cost`).

        One value for all modes, a list with one for each mode, or a dict from modes to values.
        None, and modes that are not named, have ``"cosine"``, but the samples ``"separate"``: what
        is learned of a sample then does not depend on which others are there. The paper has a cost
        of the samples too.
    epsilon : float, default=0.3
        The weight of the entropy of the transports, in the unit of the costs (the paper's
        :math:`1 / \rho`): mass moves freely over costs well below it. The defaults of this and of
        the next are those that told articles of BBC News apart best (``experiments/swift``).
    marginal_penalty : float, default=0.3
        The weight of the divergences (the paper's :math:`\lambda`): mass is not moved but made or
        lost where moving it costs more than about this.
    sharpness : float, default=0.0
        From 0 to 1, how much of the blur of the entropy is taken out: the entropy is relative to
        :math:`(\hat x x^T / m)^\alpha`, :math:`m` the mass of :math:`x`. At 0, the paper's, the
        model of an entry is spread over all that are near. With more, components name fewer labels.
        On development articles and patients 0.5 took half of the labels or more away, with hidden
        entries ranked about as well but scores no better (``experiments/swift``): the default
        stays the paper's.
    transport : {'exact', 'sinkhorn'}, default='exact'
        Whether transports are solved to the end, or by the published number of steps, for
        comparison, which need ``sharpness=0``.
    sinkhorn_iter : int, default=25
        The number of steps of ``transport='sinkhorn'``.
    inner_iter : int, default=2
        How many sweeps over the factors follow each transport. The paper has one.
    memory_limit : float, default=4.0
        How many gigabytes a fit may take beyond the data. Marginals that do not fit are computed
        again when they are needed.
    {init, n_init}
        ``'auto'`` is 3 for a search, and 1 otherwise.
    {max_iter, tol}
        Where the objective of a model of nothing is larger, it is a part of that.
    {fixed_modes, time_budget, random_state}
        An integer also seeds the cost ``"random"``, which is always the same otherwise.
    {n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One nonnegative factor per mode, with columns of length one.
    {components_, kruskal_}
    costs_ : list of (array of shape (n_k, n_k) or None)
        The costs of the modes; None where nothing moves.
    {labels_, modes_}
    objective_ : float
        The loss of the model.
    {history_}
        Also ``unsolved``, the number of fibres whose exact transport missed its tolerance, and
        ``dead``, that of components that are zero.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    With exact transports the objective never rises. An iteration costs ``O(n_k (s + s^2))`` for
    each fibre of ``s`` nonzeros and each mode, and ``O(n_components)`` for each cell of such a
    fibre; the tensor is never made dense if its nonzero fibres are fewer. The entropy makes the
    loss depend on the unit of the data: where ``epsilon`` is not small against
    ``marginal_penalty``, scale the data to entries of order one. There are no missing entries: NaN
    is refused, and what sparse data does not store is zero. ``score`` is minus the loss per sample,
    which has no best value of 1. Arrays of other namespaces, such as torch, are converted and give
    NumPy arrays.
    ``fit(X).transform(X)`` equals ``fit_transform(X)`` unless mode 0 is fixed. With a cost between
    the samples, the features of a sample depend on the others that are transformed with it, and
    all rows are solved for together after the last iteration, which takes as long as about a
    hundred iterations: for large data keep the samples ``"separate"``.

    References
    ----------
    A. Afshar, K. Yin, S. Yan, C. Qian, J. C. Ho, H. Park, J. Sun, "SWIFT: Scalable Wasserstein
    Factorization for Sparse Nonnegative Tensors", AAAI 2021, doi:10.1609/aaai.v35i8.16811.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import WassersteinCP
    >>> X = np.random.default_rng(0).poisson(0.3, (20, 5, 4))
    >>> model = WassersteinCP(2, random_state=0).fit(X)
    >>> model.transform(X).shape
    (20, 2)
    """

    _score_name: ClassVar[str] = "negative loss per sample"
    _learns = WassersteinLearned
    _codecs: ClassVar[dict[str, saving.Codec]] = {
        "costs": saving.Codec(_stored_costs, restored_matrices)
    }
    costs_: list[Array | None]

    # It changes last digits at most, and a fit that ran out of memory goes on with less.
    _uncounted: ClassVar[frozenset[str]] = CPFamily._uncounted | {"memory_limit"}

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CP_CONSTRAINTS,
        "costs": [object],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "marginal_penalty": [Interval(Real, 0, None, closed="neither")],
        "sharpness": [Interval(Real, 0, 1, closed="both")],
        "transport": [StrOptions({"exact", "sinkhorn"})],
        "sinkhorn_iter": [Interval(Integral, 1, None, closed="left")],
        "inner_iter": [Interval(Integral, 1, None, closed="left")],
        "memory_limit": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        costs: Any = None,
        epsilon: float = 0.3,
        marginal_penalty: float = 0.3,
        sharpness: float = 0.0,
        transport: str = "exact",
        sinkhorn_iter: int = 25,
        inner_iter: int = 2,
        memory_limit: float = 4.0,
        init: Any = "random",
        n_init: int | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-4,
        fixed_modes: Iterable[int] = (),
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Callable[[Iteration], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.costs = costs
        self.epsilon = epsilon
        self.marginal_penalty = marginal_penalty
        self.sharpness = sharpness
        self.transport = transport
        self.sinkhorn_iter = sinkhorn_iter
        self.inner_iter = inner_iter
        self.memory_limit = memory_limit
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.fixed_modes = fixed_modes
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the negative Wasserstein loss of samples, per sample.

        Parameters
        ----------
        {X, y}
        mask : None
            Not supported: a Wasserstein loss needs whole fibres.
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            problem = self._read_new(given)
            rows = self._rows(problem, self._model())
            factors = [problem.asarray(factor) for factor in (rows, *self.factors_[1:])]
            found = problem.evaluate(factors, problem.cold_potentials())
        return -found.objective / given.shape[0]

    def _problem(self, given: TensorInput) -> TransportProblem:
        if self.transport == "sinkhorn" and self.sharpness > 0:
            message = (
                f"transport='sinkhorn' makes the published steps, which have no sharpness, got "
                f"{self.sharpness!r}. Set sharpness=0 or transport='exact'."
            )
            raise InvalidInputError(message)
        tensor = read_nonnegative(given)
        rules = rules_of(self.costs, given)
        moving = [not is_separate(rule) for rule in rules]
        memory = self._memory(tensor, given, moving)  # before costs take some
        costs = read_costs(rules, given, tensor, self._cost_seed())
        problem = self._make_problem(tensor, costs, memory)
        problem.sample_rule = rules[0] if isinstance(rules[0], str) else None
        return problem

    def _read_new(self, given: TensorInput) -> TransportProblem:
        """Make the problem of new samples: only their own cost is made from them."""
        tensor, learned = read_nonnegative(given), self._model()
        costs = list(learned.costs_)
        memory = self._memory(tensor, given, [cost is not None for cost in costs])
        if costs[0] is not None:
            rule = learned._sample_rule or rules_of(self.costs, given)[0]
            self._check_sample_rule(rule, given)
            costs[0] = read_cost(rule, given, tensor, 0, self._cost_seed())
        return self._make_problem(tensor, costs, memory)

    def _check_sample_rule(self, rule: Any, given: TensorInput) -> None:
        """Refuse a matrix that was made for other samples, and a rule that was lost."""
        if is_separate(rule):
            message = (
                "The cost of the samples that the model was fitted with is gone, as a function is "
                "from a model file. Set it again: model.set_params(costs=...)."
            )
            raise InvalidInputError(message)
        parts = rule.parts if isinstance(rule, WeightedSum) else (rule,)
        fixed = any(
            not (isinstance(part, str) or callable(part)) and as_frame(part) is None
            for part in parts
        )
        if fixed and given.shape[0] != len(self.factors_[0]):
            message = (
                f"The cost of the samples is a matrix for the {len(self.factors_[0])} samples of "
                f"the fit, and X has {given.shape[0]}. Give costs for mode 0 as a name or a "
                "function, which can be computed for new samples, as a data frame with their "
                f"labels, or as {SEPARATE!r}."
            )
            raise InvalidInputError(message)

    def _make_problem(self, tensor: SparseTensor, costs: Any, memory: float) -> TransportProblem:
        n_steps = int(self.sinkhorn_iter) if self.transport == "sinkhorn" else None
        sharpness = float(self.sharpness)
        settings = TransportSettings(
            float(self.epsilon), float(self.marginal_penalty), n_steps, sharpness
        )
        return TransportProblem(tensor, costs, settings, memory)

    def _memory(self, tensor: SparseTensor, given: TensorInput, moving: list[bool]) -> float:
        """Return how many bytes are left for marginals."""
        modes = [mode for mode, moves in enumerate(moving) if moves]
        titles = [given.mode_title(mode) for mode in range(len(given.shape))]
        limit = float(self.memory_limit) * 2**30
        return memory_for_marginals(tensor, int(self.n_components), modes, titles, limit)

    def _cost_seed(self) -> int:
        """Return the seed of random costs: the same for a fit and its new samples."""
        seed = self.random_state
        return int(seed) if isinstance(seed, Integral) else 0

    def _rows(self, problem: TransportProblem, learned: WassersteinLearned) -> Array:
        return solve_rows(problem, learned.factors_[1:]).astype(problem.dtype)

    def _solver(self, problem: TransportProblem) -> WassersteinSolver:
        return WassersteinSolver(
            problem, inner_iter=int(self.inner_iter), fixed_modes=problem.fixed_modes
        )

    def _read_init(self, problem: FitData, init: Any) -> Any:
        if isinstance(init, str) and init in NONNEGATIVE_STARTS:
            return init
        return given_nonnegative_start(problem, self.n_components, init)

    def _start(self, problem: Any, kind: str, seed: int) -> list[Array]:
        make = nonnegative_svd_start if kind == "svd" else random_start
        return self._sized(problem, make(problem, self.n_components, seed))

    def _sized(self, problem: Any, factors: list[Array]) -> list[Array]:
        return of_the_mass_of(problem, factors)

    def _check_restored(self) -> None:
        super()._check_restored()
        for cost in self.costs_:
            if cost is not None:
                validate_cost(cost)

    def _learned(self, solver: Any, state: Any) -> WassersteinLearned:
        return WassersteinLearned(
            **vars(super()._learned(solver, state)),
            costs_=solver.problem.costs,
            _sample_rule=solver.problem.sample_rule,
        )

    def _warn_about_model(self, problem: Any, learned: Any) -> None:
        dead = int((learned.weights_ == 0).sum())
        if dead and not problem.is_zero:
            self._warn_about_data(
                f"{dead} of {len(learned.weights_)} components are zero: a component that is zero "
                "in one mode, as a given init may be, stays so."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags
