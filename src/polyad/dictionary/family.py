"""What the dictionaries have in common: how data and metric are read, codes, scores. No maths."""

from __future__ import annotations

import dataclasses
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.data.validation import describe_entries, refuse_negative
from polyad.dictionary.loss import Samples
from polyad.dictionary.solver import DictionaryProblem, DictionarySolver
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.exceptions import InvalidInputError
from polyad.transport.geometry import METRICS, Geometry, MatrixGeometry, grid_geometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput
    from polyad.fitting.blocks import BlockState

#: Parameters of a dictionary besides those of all factorizations.
DICTIONARY_CONSTRAINTS: dict[str, list[Any]] = {
    **FIT_CONSTRAINTS,
    "init": [StrOptions({"samples", "random"})],
    "metric": [StrOptions(set(METRICS)), "array-like"],
    "periodic": ["boolean"],
    "axis_weights": ["array-like", None],
    "epsilon": [Interval(Real, 0, None, closed="neither")],
    "tau": [Interval(Real, 0, None, closed="left"), "array-like"],
}


@dataclasses.dataclass(frozen=True)
class DictionaryData:
    """The problem of samples, their masses, and the number type of what is learned."""

    problem: DictionaryProblem
    masses: Array
    dtype: Any


@documented
class DictionaryFamily(Factorization):
    """Base of the dictionaries."""

    _scores_samples: ClassVar[bool] = True
    _score_name: ClassVar[str] = "minus the mean Wasserstein loss above the lowest"

    if TYPE_CHECKING:
        init: str
        metric: Any
        periodic: bool
        axis_weights: Any
        epsilon: float
        tau: Any

    def _modes(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the factors of a model: the grid, or its cells as one mode."""
        raise NotImplementedError

    def _atom_factors(self, learned: Any) -> list[Array]:
        """Return the factors of the atoms."""
        raise NotImplementedError

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Return minus the mean loss of samples, above the lowest that any model has.

        Zero is best: the samples are, up to the blur of the entropy, mixtures of the atoms. Scores
        of models with the same metric and epsilon can be compared, others cannot.

        Parameters
        ----------
        {X, y, mask}
        """
        given = self._validate_new(X, mask=mask)
        with thread_limit(self.n_jobs):
            data = self._read_new(given)
            atoms = self._in_double(data, self._atom_factors(self._model()))
            _, losses = data.problem.codes(atoms)
        return -float(array_namespace(losses).mean(losses))

    # What a factorization is made of.

    def _read(self, given: TensorInput, y: Any) -> DictionaryData:
        wanted = (*given.shape, self.n_components)
        if self._goes_on and (*self._fitted_shape, self._n_features_out) != wanted:
            message = (
                f"warm_start=True goes on from {self._n_features_out} atoms and samples of shape "
                f"{self._fitted_shape}, not {self.n_components} and {given.shape}. Use "
                "warm_start=False, or partial_fit for further samples."
            )
            raise InvalidInputError(message)
        self._tau()
        return self._read_new(given)

    def _read_new(self, given: TensorInput) -> DictionaryData:
        values, dtype = _checked(given, type(self).__name__)
        xp = array_namespace(values)
        masses = xp.sum(values, axis=tuple(range(1, values.ndim)), keepdims=True)
        geometry = self._geometry(tuple(int(n) for n in values.shape[1:]))
        samples = Samples.of(values / masses, geometry)
        problem = DictionaryProblem(samples, self._modes(geometry.shape))
        return DictionaryData(problem, xp.reshape(masses, (-1,)), dtype)

    def _geometry(self, grid: tuple[int, ...]) -> Geometry:
        if isinstance(self.metric, str):
            weights = None if self.axis_weights is None else list(np.ravel(self.axis_weights))
            return grid_geometry(
                grid,
                epsilon=float(self.epsilon),
                metric=self.metric,  # type: ignore[arg-type]
                periodic=bool(self.periodic),
                axis_weights=weights,
            )
        if self.periodic or self.axis_weights is not None:
            message = "periodic and axis_weights belong to a metric by name; metric is a matrix."
            raise InvalidInputError(message)
        return MatrixGeometry(self.metric, grid, epsilon=float(self.epsilon))

    def _tau(self) -> tuple[float, float]:
        """Return the weights of the proximal terms of codes and atoms."""
        try:
            each = np.asarray(self.tau, dtype=float).ravel().tolist()
        except (TypeError, ValueError):
            each = []
        pair = each * 2 if len(each) == 1 else each
        if len(pair) != 2 or not all(0 <= weight < np.inf for weight in pair):
            message = (
                f"tau={self.tau!r} is not usable: give a number that is not negative, or two, of "
                "codes and of atoms."
            )
            raise InvalidInputError(message)
        return pair[0], pair[1]

    def _solver(self, problem: DictionaryData) -> DictionarySolver:
        solver = DictionarySolver(problem.problem, self._tau(), type(self).__name__)
        solver.data = problem
        return solver

    def _begin(self, solver: DictionarySolver, number: int, seed: int) -> BlockState:
        if self._goes_on and number == 0:
            earlier = self._model()
            parts = [self._features_of_fit, *self._atom_factors(earlier)]
            return solver.begin(self._in_double(solver.data, parts))
        return solver.begin(solver.problem.start(self.n_components, self.init, seed))

    def _in_double(self, data: DictionaryData, factors: Sequence[Array]) -> list[Array]:
        """Return factors in the number type of the computation, with sums of one again."""
        values = data.problem.samples.values
        xp = array_namespace(values)
        found = []
        for mode, factor in enumerate(factors, start=len(data.problem.modes) + 1 - len(factors)):
            own = xp.asarray(factor, dtype=values.dtype, device=values.device)
            found.append(own / xp.sum(own, axis=1 if mode == 0 else 0, keepdims=True))
        return found

    def _features(self, problem: DictionaryData, learned: Any) -> Array:
        codes, _ = problem.problem.codes(self._in_double(problem, self._atom_factors(learned)))
        return array_namespace(codes).astype(codes, problem.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.positive_only = True
        return tags


def in_order(state: BlockState, dtype: Any) -> list[Array]:
    """Return the factors of a state, most used atoms first, in a number type."""
    xp = array_namespace(state.blocks[0])
    usage = xp.sum(state.blocks[0], axis=0)
    order = xp.argsort(-usage, stable=True)
    return [xp.astype(block[:, order], dtype) for block in state.blocks]


def _checked(given: TensorInput, name: str) -> tuple[Array, Any]:
    """Return samples in double precision, after refusing what is no distribution."""
    if given.is_sparse:
        message = (
            f"Sparse data is not taken by {name}: mass moves through every cell. Give X.toarray()."
        )
        raise InvalidInputError(message)
    xp = array_namespace(given.data)
    missing = xp.isnan(given.data)
    if bool(xp.any(missing)):
        message = (
            f"Missing entries are not taken by {name}: {describe_entries(given, missing)}. Mass of "
            "cells that were not seen cannot be told from none: fill them, or leave out cells that "
            "are often missing, with metric as the cost matrix of those that stay."
        )
        raise InvalidInputError(message)
    refuse_negative(given, f"{name} takes masses: numbers that are not negative.")
    values = xp.astype(given.data, xp.float64)
    masses = xp.sum(values, axis=tuple(range(1, values.ndim)))
    empty = np.flatnonzero(np.asarray([float(mass) == 0 for mass in masses]))
    if empty.size:
        shown = ", ".join(map(str, empty[:10])) + (", ..." if empty.size > 10 else "")
        message = (
            f"{empty.size} samples have no mass, at the positions {shown}: nothing can be moved "
            "there. Leave them out."
        )
        raise InvalidInputError(message)
    return values, given.data.dtype
