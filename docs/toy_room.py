"""A whole room in one file: CP with a ridge on the samples, by gradient steps. See develop.md."""

from __future__ import annotations

import dataclasses
import math
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.core.sklearn_compat import Interval
from polyad.estimators.documentation import documented
from polyad.estimators.factorization import FIT_CONSTRAINTS, Factorization
from polyad.estimators.kruskal import KruskalLearned, KruskalResult
from polyad.exceptions import InvalidInputError
from polyad.fitting import Solver
from polyad.tensor import DenseTensor, KruskalTensor, SparseTensor, canonicalize_components
from polyad.tensor.kruskal import column_norms

# problem.py: the data, and what is minimised.


class RidgeProblem:
    """Half the squared residual, plus ``ridge`` times half the squares of the samples' factor."""

    def __init__(self, data: Any, ridge: float) -> None:
        self.tensor = DenseTensor(data) if isinstance(data, np.ndarray) else SparseTensor(data)
        self.size = self.tensor.norm_squared()
        self.shape, self.dtype, self.ridge = data.shape, data.dtype, ridge

    def equations(self, factors: list[np.ndarray], mode: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ``N`` and ``B``: a factor ``A`` of a mode has the gradient ``A N - B``."""
        normal = math.prod(own.T @ own for k, own in enumerate(factors) if k != mode)
        return normal, self.tensor.mttkrp(factors, mode)

    def solve_samples(self, others: list[np.ndarray]) -> tuple[np.ndarray, float]:
        """Return the best factor of the samples for those of the other modes, and its objective."""
        empty = np.zeros((self.shape[0], others[0].shape[1]), self.dtype)
        normal, right = self.equations([empty, *others], 0)
        rows = np.linalg.solve(normal + self.ridge * np.eye(len(normal)), right.T).T
        return rows.astype(self.dtype), 0.5 * (self.size - float(np.sum(rows * right)))


# solver.py: a state, a step, an objective.


@dataclasses.dataclass(frozen=True)
class RidgeState:
    """Arrays and numbers only, of which a checkpoint is made: the factors but for the samples."""

    others: list[np.ndarray]


class RidgeSolver(Solver[RidgeState]):
    """Solve for the samples, then take a step for each other mode, columns of length one."""

    name = "RidgeCP"

    def __init__(self, problem: RidgeProblem) -> None:
        self.problem = problem
        self.floor = float(np.finfo(problem.dtype).eps) * problem.size

    def step(self, state: RidgeState) -> RidgeState:
        """Return the state after one iteration; the given one stays as it is."""
        rows, _ = self.problem.solve_samples(state.others)
        factors = [rows, *state.others]
        for mode in range(1, len(factors)):
            normal, right = self.problem.equations(factors, mode)
            steepest = max(float(np.linalg.norm(normal, 2)), np.finfo(normal.dtype).tiny)
            moved = factors[mode] - (factors[mode] @ normal - right) / steepest
            factors[mode] = moved / column_norms(moved)
        return RidgeState(factors[1:])

    def objective(self, state: RidgeState) -> float:
        """Return the number that never rises."""
        return self.problem.solve_samples(state.others)[1]


# estimator.py: the surface, and the five things that the skeleton asks for.


@documented
class RidgeCP(KruskalResult, Factorization):
    """CP decomposition with a ridge on the factor of the samples.

    Parameters
    ----------
    {n_components, n_init, max_iter, tol}
    ridge : float, default=0.1
        The weight of half the squares of the samples' factor, above zero.
    {time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    factors_ : list of arrays of shape (n_k, n_components)
        One factor per mode, with columns of length one.
    objective_ : float
        Half the squared residual, with the ridge.
    {weights_, components_, kruskal_, labels_, modes_, history_, n_iter_, status_, n_samples_seen_}
    {n_features_in_, feature_names_in_}
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **FIT_CONSTRAINTS,
        "ridge": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_init: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-5,
        ridge: float = 0.1,
        time_budget: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.ridge = ridge
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def _read(self, given: Any, y: Any) -> RidgeProblem:
        wanted = (*given.shape[1:], self.n_components)
        if self._goes_on and (*self._fitted_shape[1:], self._n_features_out) != wanted:
            message = (
                f"warm_start=True goes on from {self._n_features_out} components of shape "
                f"{self._fitted_shape[1:]}, not {self.n_components} of shape {given.shape[1:]}. "
                "Use warm_start=False."
            )
            raise InvalidInputError(message)
        return self._read_new(given)

    def _read_new(self, given: Any) -> RidgeProblem:
        data = given.data if given.is_sparse else to_numpy(given.data)
        return RidgeProblem(data, float(self.ridge))

    def _solver(self, problem: RidgeProblem) -> RidgeSolver:
        return RidgeSolver(problem)

    def _begin(self, solver: RidgeSolver, number: int, seed: int) -> RidgeState:
        if self._goes_on and number == 0:
            return RidgeState(self.factors_[1:])
        generator = np.random.default_rng(seed)
        shapes = [(size, self.n_components) for size in solver.problem.shape[1:]]
        others = [generator.random(shape).astype(solver.problem.dtype) for shape in shapes]
        return RidgeState([factor / column_norms(factor) for factor in others])

    def _learned(self, solver: RidgeSolver, state: RidgeState) -> KruskalLearned:
        rows, _ = solver.problem.solve_samples(state.others)
        ones = np.ones(self.n_components, solver.problem.dtype)
        tensor = canonicalize_components(KruskalTensor(ones, [rows, *state.others]))
        return KruskalLearned(factors_=list(tensor.factors), weights_=tensor.weights)

    def _features(self, problem: RidgeProblem, learned: KruskalLearned) -> np.ndarray:
        return problem.solve_samples(learned.factors_[1:])[0]
