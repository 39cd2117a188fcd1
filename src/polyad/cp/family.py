"""What the estimators of the CP family share: parameters, data, start, and what is learned.

Of the five things that a room gives (``estimators/factorization.py``), a member is left with three:
which problem its data makes (``_problem``), which solver minimises it (``_solver``), and how the
rows of samples are found (``_rows``).
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import namespace_of
from polyad.core.sklearn_compat import StrOptions
from polyad.core.threads import thread_limit
from polyad.cp.moves import grown_start, nonnegative_moves
from polyad.cp.signed_moves import signed_moves
from polyad.cp.solver import FactorSolver
from polyad.cp.start import given_start, make_start, of_the_size_of
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.estimators.kruskal import KruskalLearned, KruskalResult
from polyad.exceptions import InvalidInputError, InvalidTypeError, NumericalError
from polyad.tensor.alignment import factor_match_score, normalize_components, weight_order
from polyad.tensor.kruskal import KruskalTensor, column_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.core.arrays import Array
    from polyad.cp.problem import FitData
    from polyad.data.readers import TensorInput

#: The constraints of the parameters that every member has.
CP_CONSTRAINTS: dict[str, list[Any]] = {
    **FIT_CONSTRAINTS,
    "n_init": [*FIT_CONSTRAINTS["n_init"], StrOptions({"auto"})],
    "init": [object],
    "fixed_modes": ["array-like", set, frozenset],
}
#: And of the members whose sparse data may have entries that were not observed.
COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    **CP_CONSTRAINTS,
    "missing": [StrOptions({"zero", "unobserved"})],
}

# The fits of a search without another number: about twice the time of one.
_SEARCH = 3
# Weights below this part of the norm of the data are nothing.
_NOTHING = 1e-10


def check_rank(n_components: int, shape: Sequence[int]) -> None:
    """Refuse more components than any tensor of this shape can need."""
    limit = math.prod(shape) // max(shape)
    if n_components > limit:
        # The wording of scikit-learn, which its users search for.
        features = f", n_features={shape[1]}" if len(shape) == 2 else ""
        message = (
            f"n_components={n_components} is too large: a tensor of shape {tuple(shape)} "
            f"(n_samples={shape[0]}{features}) has rank at most {limit}, the product of all sizes "
            "but the largest. Use fewer components."
        )
        raise InvalidInputError(message)


def read_fixed_modes(fixed_modes: Iterable[int], n_modes: int, init: Any) -> list[int]:
    """Return the fixed modes, counted from zero; their factors must come from ``init``."""
    modes = list(fixed_modes) if np.iterable(fixed_modes) else [fixed_modes]
    for mode in modes:
        if not isinstance(mode, Integral) or isinstance(mode, bool):
            message = (
                f"fixed_modes has {mode!r}, a {type(mode).__name__}; give the numbers of modes, "
                f"0..{n_modes - 1}."
            )
            raise InvalidTypeError(message)
    modes = [int(mode) for mode in modes]
    if any(not -n_modes <= mode < n_modes for mode in modes):
        message = f"fixed_modes={modes} has a mode outside 0..{n_modes - 1}."
        raise InvalidInputError(message)
    fixed = sorted({mode % n_modes for mode in modes})
    if len(fixed) == n_modes:
        message = f"fixed_modes={modes} leaves nothing to fit: free at least one mode."
        raise InvalidInputError(message)
    if fixed and isinstance(init, str):
        message = (
            f"fixed_modes={modes} keeps factors of init, but init={init!r} has none. Give the "
            "factors of all modes: init=[one array of shape (n_k, n_components) for each mode], "
            "or init=model.kruskal_ of a fitted model."
        )
        raise InvalidInputError(message)
    return fixed


def read_weights(name: str, value: Any, n_modes: int) -> list[float]:
    """Return a weight for each mode, of one for all or one for each."""
    try:
        weights = np.asarray(value, dtype=float)
    except (OverflowError, TypeError, ValueError):  # told below, as other shapes are
        weights = np.zeros(0)
    each = np.full(n_modes, weights) if weights.ndim == 0 else weights
    if each.shape != (n_modes,) or not (np.isfinite(each).all() and (each >= 0).all()):
        message = (
            f"{name}={value!r:.100} is not usable for {n_modes} modes: give one nonnegative "
            "number, or one for each mode."
        )
        raise InvalidInputError(message)
    return [float(weight) for weight in each]


def read_penalties(
    sparsity: Any, ridge: Any, n_modes: int, fixed_modes: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Return the penalties of each mode; those of fixed modes do not count."""
    both = []
    for name, value in (("sparsity", sparsity), ("ridge", ridge)):
        each = read_weights(name, value, n_modes)
        both.append([0.0 if k in fixed_modes else each[k] for k in range(n_modes)])
    penalised = [k for k in range(n_modes) if both[0][k] + both[1][k] > 0]
    bare = [k for k in range(n_modes) if k not in penalised and k not in fixed_modes]
    if penalised and bare:
        message = (
            f"The modes {penalised} are penalised and {bare} are not: scale would move to the "
            "latter until nothing is left to penalise. Give those a small ridge too."
        )
        raise InvalidInputError(message)
    return both[0], both[1]


def read_n_init(n_init: Any, init: Any) -> int:
    """Return how often to fit."""
    if n_init == "auto":
        return _SEARCH if isinstance(init, str) and init == "search" else 1
    return int(n_init)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CPLearned(KruskalLearned):
    """Components, and the lengths that their columns had during the fit, but for the samples."""

    _lengths: list[Array] = saving.attribute(saving.per_mode(saving.array("R", low=0.0), first=1))

    @property
    def others(self) -> list[Array]:
        """The factors of the modes other than the samples in the scale of the fit."""
        pairs = zip(self.factors_[1:], self._lengths, strict=True)
        return [factor * length[None, :] for factor, length in pairs]

    @property
    def scale(self) -> Array:
        """The size of each component in ``others``."""
        return math.prod(self._lengths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NonnegativeLearned(CPLearned):
    """Components without negative numbers."""

    factors_: list[Array] = saving.attribute(saving.per_mode(saving.array("n", "R", low=0.0)))


@documented
class CPFamily(KruskalResult, Factorization):
    """Base of the CP decompositions."""

    _learns = CPLearned

    if TYPE_CHECKING:  # the parameters that every member has besides those of all factorizations
        init: Any
        fixed_modes: Iterable[int]

    @abstractmethod
    def _problem(self, given: TensorInput) -> FitData:
        """Make the problem of some data."""

    @abstractmethod
    def _rows(self, problem: Any, learned: Any) -> Array:
        """Return the coefficients of samples on the components, in the unit of the problem."""

    def _read_init(self, problem: FitData, init: Any) -> Any:
        """Return the name of a start, or the factors of a given one."""
        if isinstance(init, str) and init in ("svd", "random", "search"):
            return init
        return given_start(problem, self.n_components, init)

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return the explained variation of samples: 1 minus the squared error over the squares.

        The features of the samples are fitted to those samples, so that the score of new samples
        seldom falls with more components, even beyond the true rank.

        Parameters
        ----------
        {X, y, mask}
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            problem: Any = self._read_new(given)
            others = [problem.asarray(factor) for factor in self.factors_[1:]]
            residual = problem.residual([self._rows(problem, self._model()), *others])
        if not math.isfinite(residual):
            message = "The score is not a finite number: the factors of the model are not."
            raise NumericalError(message)
        if problem.norm_squared == 0:
            return 1.0 if residual == 0 else 0.0
        return float(1.0 - residual / problem.norm_squared)

    # What a factorization is made of.

    def _read(self, given: Any, y: Any) -> FitData:
        check_rank(self.n_components, given.shape)
        fixed = read_fixed_modes(self.fixed_modes, len(given.shape), self.init)
        earlier = self.kruskal_ if self._goes_on else None
        if earlier is not None:
            self._check_earlier(earlier, given.shape)
        problem = self._problem(given)
        problem.fixed_modes = fixed
        problem.start = self._read_init(problem, self.init if earlier is None else earlier)
        self._warn_about_content(problem, given)
        return problem

    def _check_earlier(self, earlier: KruskalTensor, shape: tuple[int, ...]) -> None:
        """Refuse to go on from a model of another shape."""
        if earlier.shape != shape:
            further = "partial_fit for further samples, or " if hasattr(self, "partial_fit") else ""
            message = (
                f"warm_start=True goes on from a model of shape {earlier.shape}, but X has the "
                f"shape {shape}. Use {further}warm_start=False."
            )
            raise InvalidInputError(message)
        self._check_same_rank(earlier.n_components)

    def _check_same_rank(self, n_earlier: int, way: str = "warm_start=True") -> None:
        """Refuse to go on from a model of more or fewer components."""
        if n_earlier != self.n_components:
            advice = "Use warm_start=False." if way == "warm_start=True" else "Use fit."
            message = (
                f"{way} goes on from a model of {n_earlier} components, but "
                f"n_components={self.n_components}. {advice}"
            )
            raise InvalidInputError(message)

    def _warn_about_content(self, problem: FitData, given: TensorInput) -> None:
        """Refuse data without an observation, and warn of parts of it."""
        if problem.is_unobserved:
            message = "The sparse data has no stored entry, so nothing was observed."
            raise InvalidInputError(message)
        for mode, position in problem.unobserved_slices():
            self._warn_about_data(
                f"nothing was observed at position {position} of {given.mode_title(mode)}, the "
                "first such; its row of the factor is zero."
            )
        if problem.is_zero:
            self._warn_about_data("every entry is zero, and so is the decomposition.")

    def _read_new(self, given: TensorInput) -> FitData:
        return self._problem(given)

    def _kinds(self, problem: FitData) -> list[str]:
        if not isinstance(problem.start, str):
            # Given factors are one start; more of the same would only repeat it.
            return ["earlier" if self._goes_on else "given"]
        n_fits = self._n_fits()
        if problem.start == "search":
            move = "move" if self.n_components > 2 else "random"
            return [self._first_of_search(problem), *[move] * (n_fits - 1)]
        return [problem.start, *["random"] * (n_fits - 1)]

    def _first_of_search(self, problem: Any) -> str:
        """Return the kind of start that a search begins with."""
        return "svd"

    def _n_fits(self) -> int:
        return read_n_init(self.n_init, self.init)

    def _begin(self, solver: Any, number: int, seed: int) -> Any:
        problem = solver.problem
        if not isinstance(problem.start, str):
            return solver.init(list(problem.start))
        kinds = self._kinds(problem)
        kind = kinds[number] if number < len(kinds) else "random"
        if problem.start == "search" and kind == "svd":
            seed = 0  # as moves do, it follows from the data alone
        if kind == "split":
            sized = partial(self._sized, problem)
            return solver.init(grown_start(solver, self.n_components, seed, sized))
        return solver.init(self._start(problem, kind, seed))

    def _start(self, problem: Any, kind: str, seed: int) -> list[Array]:
        """Return the factors that a start of some kind, singular or random, begins with."""
        return make_start(problem, self.n_components, kind, seed)

    def _sized(self, problem: Any, factors: list[Array]) -> list[Array]:
        """Return factors of a model that is as large as the data."""
        return of_the_size_of(problem, [problem.asarray(factor) for factor in factors])

    def _moves(self, solver: Any, state: Any) -> Callable[[int], Any]:
        problem, factors = solver.problem, solver.factors(state)
        if self._is_nonnegative:
            made = nonnegative_moves(problem.tensor, factors)
        else:
            own = [problem.asarray(factor) for factor in factors]
            made = signed_moves(problem.pull(own), own, problem.asarray)
        return lambda attempt: solver.init([problem.asarray(f) for f in made(attempt)])

    @property
    def _is_nonnegative(self) -> bool:
        return issubclass(self._learns, NonnegativeLearned)

    def _match(self, solver: Any, one: Any, other: Any) -> float:
        if not isinstance(solver, FactorSolver):
            return math.nan
        both = (solver.factors(state) for state in (one, other))
        ones = (KruskalTensor(namespace_of(f[0]).ones_like(f[0][0, :]), f) for f in both)
        return float(factor_match_score(*ones))

    def _learned(self, solver: FactorSolver[Any], state: Any) -> CPLearned:
        factors = solver.factors(state)
        xp = namespace_of(factors[0])
        weights = xp.ones_like(factors[0][0, :]) * 2.0**solver.problem.exponent
        tensor = normalize_components(KruskalTensor(weights, factors), solver.fixed_modes)
        order = [] if solver.fixed_modes else weight_order(tensor)
        tensor = tensor.take(order) if order else tensor
        # The ridge of a sample depends on the lengths that the other factors had in the fit.
        lengths = solver.lengths(factors)[1:]
        index = xp.asarray(order, dtype=xp.int64)
        return CPLearned(
            factors_=list(tensor.factors),
            weights_=tensor.weights,
            _lengths=[xp.take(length, index) if order else length for length in lengths],
        )

    def _features(self, problem: FitData, learned: Any) -> Array:
        return self._rows(problem, learned) * 2.0**problem.exponent

    # A model of zeros.

    def _warn_about_model(self, problem: Any, learned: Any) -> None:
        """Say so if the model is zero everywhere, but the data is not."""
        if self._values_are_means and not problem.is_zero and self._is_nothing(problem, learned):
            self._warn_about_data(
                f"every component is zero, but the data is not. {self._advice_on_nothing(problem)}"
            )

    def _is_nothing(self, problem: Any, learned: Any) -> bool:
        """Say whether the model is zero, compared with the data."""
        size: float = math.sqrt(problem.norm_squared) * 2.0**problem.exponent
        norms = (column_norms(factor) for factor in learned.factors_)
        sizes = math.prod(norms, start=learned.weights_)
        largest = float(namespace_of(sizes).max(sizes))
        return largest <= _NOTHING * size

    def _advice_on_nothing(self, problem: Any) -> str:
        """Return what can leave nothing, and what to do."""
        return (
            "A penalty that is too large for entries of this size does that, and so does an init "
            "with zeros: use smaller penalties, scale the data to entries of about one, or use "
            "another init."
        )
