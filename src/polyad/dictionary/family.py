"""What the dictionaries have in common: how data and metric are read, codes, scores. No maths."""

from __future__ import annotations

import dataclasses
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from array_api_compat import device

from polyad.core.arrays import namespace_of, to_numpy
from polyad.core.sklearn_compat import Interval, StrOptions
from polyad.core.threads import thread_limit
from polyad.data.label_values import joined_labels
from polyad.data.validation import read_features
from polyad.dictionary.loss import Samples, self_transport
from polyad.dictionary.reading import distributions, geometry_of, read_masses
from polyad.dictionary.solver import DictionaryProblem, DictionarySolver
from polyad.estimators.base import Pattern, ReportSection
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.exceptions import InvalidInputError
from polyad.transport.grids import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput
    from polyad.fitting.blocks import BlockState
    from polyad.transport.geometry import Geometry

# Below this part of the cost of a move to the nearest cell, epsilon hardly moves anything.
_HARDLY_MOVES = 0.2
# Atoms that a report shows, the most used ones.
_SHOWN_ATOMS = 20

#: Parameters of a dictionary besides those of all factorizations.
DICTIONARY_CONSTRAINTS: dict[str, list[Any]] = {
    **FIT_CONSTRAINTS,
    "init": [StrOptions({"samples", "random"})],
    "metric": [StrOptions(set(METRICS)), "array-like"],
    "periodic": ["boolean"],
    "axis_weights": ["array-like", None],
    "epsilon": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
    "tau": [Interval(Real, 0, None, closed="left"), "array-like"],
    "debias": ["boolean"],
    "batch_size": [Interval(Integral, 1, None, closed="left"), None],
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
        epsilon: Any
        tau: Any
        debias: bool
        batch_size: int | None

    def _modes(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the factors of a model: the grid, or its cells as one mode."""
        raise NotImplementedError

    def _atom_factors(self, learned: Any) -> list[Array]:
        """Return the factors of the atoms."""
        raise NotImplementedError

    def _mixtures(self, codes: Array) -> Array:
        """Return the mixtures of atoms that codes stand for."""
        raise NotImplementedError

    def _planes(self, n_atoms: int) -> np.ndarray:
        """Return the first atoms over the first two modes of the grid, summed over others."""
        raise NotImplementedError

    def inverse_transform(self, X: Array, masses: Array | None = None) -> Array:
        """Return the mixtures of atoms that codes stand for.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Codes, as ``transform`` returns them.
        masses : array of shape (n_samples,), optional
            The masses of the samples, such as ``masses_`` for those of the fit: the mixtures are
            then in the unit of the data. One by default.

        Returns
        -------
        array of shape (n_samples, n_1, ...)
        """
        example = self._model().masses_
        features = read_features(X, self._n_features_out)
        codes = namespace_of(example).asarray(features, dtype=example.dtype, device=device(example))
        return self._mixtures(codes if masses is None else codes * read_masses(masses, codes))

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
        return -float(namespace_of(losses).mean(losses))

    def partial_fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Learn from one more batch of samples.

        The first call is ``fit``. Each further one finds the codes of the batch, the best atoms for
        these, and moves the atoms towards them, by the part that the batch has of all samples so
        far. Codes and masses are appended; those of earlier samples are not computed again, and
        ``objective_``, ``history_`` and ``status_`` stay those of the first call.

        Parameters
        ----------
        {X, y, mask}
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, mask=mask)
        self._validate_params()  # which scikit-learn leaves out for a fitted model
        given = self._validate_new(X, mask=mask)
        if self._n_features_out != self.n_components:
            message = (
                f"partial_fit goes on from {self._n_features_out} atoms, but "
                f"n_components={self.n_components}. Use fit."
            )
            raise InvalidInputError(message)
        labels = joined_labels(self.labels_[0], given.labels[0])
        learned = self._model()
        with thread_limit(self.n_jobs):
            data = self._read_new(given)
            share = given.shape[0] / (given.shape[0] + self.n_samples_seen_)
            atoms = self._in_double(data, self._atom_factors(learned))
            codes, atoms = data.problem.moved(atoms, self._tau()[1], share)
        xp = namespace_of(codes)
        earlier, masses = self._features_of_fit, learned.masses_
        fresh = [xp.astype(own, earlier.dtype) for own in (codes, data.masses, *atoms)]
        all_codes = xp.concat([earlier, fresh[0]])
        geometry = data.problem.samples.geometry
        self._keep(self._made(all_codes, fresh[2:], xp.concat([masses, fresh[1]]), geometry))
        self.n_samples_seen_ += given.shape[0]
        self.labels_[0] = labels
        return self

    def _made(self, codes: Array, atoms: Sequence[Array], masses: Array, geometry: Geometry) -> Any:
        """Return what is learned, of codes and the factors of atoms over a grid."""
        raise NotImplementedError

    def _report_sections(self) -> list[ReportSection]:
        import pandas as pd

        codes = to_numpy(self._features_of_fit)
        usage = pd.DataFrame(
            {
                "share of all samples": codes.mean(axis=0),
                "samples it is most of": np.bincount(codes.argmax(axis=1), minlength=len(codes.T)),
            },
            index=pd.RangeIndex(codes.shape[1], name="atom"),
        )
        planes = self._planes(_SHOWN_ATOMS)
        shares = usage.iloc[: len(planes), 0]
        patterns = [
            Pattern(f"atom {number} ({share:.0%})", own)
            for number, (share, own) in enumerate(zip(shares, planes, strict=True))
        ]
        text = "Distributions over the grid, the most used first, with their shares of all samples."
        caption = "Each picture has a scale of its own"
        if len(self._fitted_shape) > 3:
            caption += "; sums over all modes of the grid but the first two"
        return [ReportSection("Atoms", text, caption=caption, table=usage, patterns=patterns)]

    # What a factorization is made of.

    def _learned(self, solver: DictionarySolver, state: BlockState) -> Any:
        xp = namespace_of(state.blocks[0])
        # The most used atoms come first.
        order = xp.argsort(-xp.sum(state.blocks[0], axis=0), stable=True)
        dtype = solver.data.dtype
        codes, *atoms = (xp.astype(block[:, order], dtype) for block in state.blocks)
        masses = xp.astype(solver.data.masses, dtype)
        return self._made(codes, atoms, masses, solver.problem.samples.geometry)

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
        data = self._read_new(given)
        geometry = data.problem.samples.geometry
        if geometry.epsilon < _HARDLY_MOVES * geometry.nearest:
            self._warn_about_data(
                f"epsilon={geometry.epsilon:.3g} is small against the cost of a move to the "
                f"nearest cell, {geometry.nearest:.3g}: fits are slow, and codes may not be solved "
                "to the end. Use epsilon='auto', or a finer grid."
            )
        return data

    def _read_new(self, given: TensorInput) -> DictionaryData:
        values, dtype, masses = distributions(given, type(self).__name__)
        geometry = geometry_of(
            tuple(int(n) for n in values.shape[1:]),
            self.metric,
            periodic=self.periodic,
            weights=self.axis_weights,
            epsilon=self.epsilon if isinstance(self.epsilon, str) else float(self.epsilon),
        )
        if self.debias and geometry.transposed is not geometry:
            message = (
                "debias=True needs a symmetric cost: the loss of a distribution to itself is taken "
                "off, and metric is a matrix whose ways back cost something else."
            )
            raise InvalidInputError(message)
        half = 0.5 * self_transport(values, geometry)[0] if self.debias else None
        samples = Samples.of(values, geometry)
        problem = DictionaryProblem(samples, self._modes(geometry.shape), half)
        return DictionaryData(problem, masses, dtype)

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
        solver = DictionarySolver(
            problem.problem, self._tau(), type(self).__name__, self.batch_size
        )
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
        xp = namespace_of(values)
        found = []
        for mode, factor in enumerate(factors, start=len(data.problem.modes) + 1 - len(factors)):
            own = xp.asarray(factor, dtype=values.dtype, device=values.device)
            found.append(own / xp.sum(own, axis=1 if mode == 0 else 0, keepdims=True))
        return found

    def _features(self, problem: DictionaryData, learned: Any) -> Array:
        codes, _ = problem.problem.codes(self._in_double(problem, self._atom_factors(learned)))
        return namespace_of(codes).astype(codes, problem.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.positive_only = True
        return tags
