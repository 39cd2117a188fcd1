"""The generalized method of moments (MELD): pair and third moments matched together, weighted.

Pair moments have the weights ``eta_h = lam_h (a0 + 2) / 2``, so that pairs over ``(a0 + 2) / 2``
are what the third moment would be if one of its views were a single row of ones: all moments are
one tensor of shape (I + 1, J + 1, K + 1) and rank R. That tensor is fitted with a weight for each
entry; the corners that no moment fills weigh nothing. Columns over their last entries are then the
columns of the model, and the products of last entries are the weights ``lam_h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.cp.nonnegative.solver import Descent
from polyad.cp.solver import ALSState, balance
from polyad.exceptions import InvalidInputError
from polyad.fitting import FitOptions, Solver, fit_best
from polyad.membership.alternatives.views import ThreeViews, read_views, scaled
from polyad.membership.moment_tensors import Constants
from polyad.tensor.products import khatri_rao, kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

# The variance of a moment is at least that of a probability of this size: what the first stage
# takes for impossible must not decide the second alone.
_LEAST_PROBABILITY = 1e-2
_MOST_SWEEPS = 1000
# Random starts, and their sweeps before the best of them goes on: some lose a component at once.
_STARTS, _FIRST_SWEEPS = 3, 50


def meld(
    third: np.ndarray,
    second: Sequence[np.ndarray],
    n_components: int,
    *,
    alpha0: float,
    optimal: bool = True,
    tol: float = 1e-6,
    random_state: int | Generator | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Match pair and third moments of three views together: two-stage method of moments.

    The first stage weighs all moments alike; the second weighs each by the inverse of the variance
    that its mean of indicators has in the model of the first. Both update one factor after the
    other under nonnegativity, and neither raises its objective.

    Parameters
    ----------
    third : ndarray of shape (I, J, K)
        The third moment of three disjoint groups of categorical variables.
    second : sequence of three ndarray of shapes (I, J), (I, K) and (J, K)
        The pair moments of the groups 0 and 1, 0 and 2, 1 and 2.
    n_components : int
        The number of components.
    alpha0 : float
        The sum of the Dirichlet parameters that the moments were made with.
    optimal : bool, default=True
        Whether the second stage follows.
    tol : float, default=1e-6
        A stage ends when a sweep lowers its objective by less than this part of it, or after 1000
        sweeps.
    random_state : int, Generator or None, default=None
        Draws the starts.

    Returns
    -------
    factors : list of three ndarray of shapes (I, R), (J, R) and (K, R)
        Nonnegative; columns sum to one.
    weights : ndarray of shape (R,)
        Of the components of ``third``, in descending order.

    Notes
    -----
    The published method draws all pairs and triples of variables into its sum; this one those of
    three groups, which the other methods are given too. Covariances between moments count as zero,
    as there.

    References
    ----------
    Zhao, Engelhardt, Mukherjee and Dunson (2018), Fast moment estimation for generalized latent
    Dirichlet models, Journal of the American Statistical Association 113.
    """
    views = read_views(third, second, n_components)
    if not alpha0 > 0:
        message = f"alpha0 is the sum of Dirichlet parameters and above 0; got {alpha0!r}."
        raise InvalidInputError(message)
    target, precision = augmented(views, alpha0)
    options = FitOptions(max_iter=_MOST_SWEEPS, tol=tol)
    solver = MatchingSolver(target, precision)
    seeds = np.random.default_rng(random_state).integers(2**31 - 1, size=_STARTS).tolist()

    def begin(number: int, seed: int) -> ALSState:
        random = np.random.default_rng(seed)
        return solver.init([random.uniform(size=(size, n_components)) for size in target.shape])

    start = fit_best(solver, begin, seeds, FitOptions(max_iter=_FIRST_SWEEPS, tol=tol)).state
    state = fit_best(solver, lambda number, seed: start, [0], options).state
    if optimal:
        optimum = precision / _variances(state.factors, alpha0)
        solver = MatchingSolver(target, optimum / optimum.mean())
        first = solver.init(state.factors)
        state = fit_best(solver, lambda number, seed: first, [0], options).state
    return scaled([factor[:-1] for factor in state.factors], views.third)


def augmented(views: ThreeViews, alpha0: float) -> tuple[np.ndarray, np.ndarray]:
    """Return all moments as one tensor, and weights that make each squared error count once."""
    ratio = (alpha0 + 2.0) / 2.0
    target = np.zeros([size + 1 for size in views.third.shape])
    precision = np.zeros_like(target)
    target[:-1, :-1, :-1], precision[:-1, :-1, :-1] = views.third, 1.0
    target[:-1, :-1, -1], precision[:-1, :-1, -1] = views.first_second / ratio, ratio**2
    target[:-1, -1, :-1], precision[:-1, -1, :-1] = views.first_third / ratio, ratio**2
    target[-1, :-1, :-1], precision[-1, :-1, :-1] = views.second_third / ratio, ratio**2
    return target, precision


class MatchingSolver(Solver[ALSState]):
    """Alternating weighted least squares over nonnegative factors."""

    name = "MELD"

    def __init__(self, target: np.ndarray, precision: np.ndarray) -> None:
        self.target, self.precision = target, precision
        self.floor = 1e-28 * float(np.sum(precision * target**2))
        self.rule = Descent([0.0] * 3, [0.0] * 3)

    def init(self, factors: Sequence[np.ndarray]) -> ALSState:
        """Return the state of factors, which have one row more than the moments."""
        errors = self.precision * (self.target - kruskal_to_dense(None, factors)) ** 2
        return ALSState(list(factors), float(errors.sum()))

    def step(self, state: ALSState) -> ALSState:
        """Return the state after an update of each factor."""
        factors = list(state.factors)
        for mode in range(3):
            normal, rhs = self._normal_equations(factors, mode)
            factors[mode] = self.rule.solve_rows(normal, rhs, factors[mode], mode)
        return self.init(balance(factors, range(3)))

    def objective(self, state: ALSState) -> float:
        """Return half the weighted sum of squared errors of the moments."""
        return 0.5 * state.residual

    def _normal_equations(
        self, factors: Sequence[np.ndarray], mode: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the normal matrix (n, R, R) and right side (n, R) of each row of a factor."""
        others = [factors[other] for other in range(3) if other != mode]
        product = khatri_rao(others)
        size, rank = factors[mode].shape
        rows = np.moveaxis(self.precision, mode, 0).reshape(size, -1)
        values = np.moveaxis(self.target, mode, 0).reshape(size, -1)
        squares = (product[:, :, None] * product[:, None, :]).reshape(len(product), -1)
        return (rows @ squares).reshape(-1, rank, rank), (rows * values) @ product


def _variances(factors: Sequence[np.ndarray], alpha0: float) -> np.ndarray:
    """Return the variances of the indicators behind the moments, in the model of a state.

    The moments of the model give back the probabilities that they are made of: the formulas of
    ``moment_tensors``, solved for ``E[b_j b_s b_t]``. Those of pairs stand in the last row of a
    mode, as in the target.
    """
    third = kruskal_to_dense(None, factors)
    lasts = [np.where(factor[-1] > 0, factor[-1], 1.0) for factor in factors]
    a, b, c = (factor / last for factor, last in zip(factors, lasts, strict=True))
    eta = np.prod(lasts, axis=0) * (alpha0 + 2.0) / 2.0
    means = [factor @ (eta * (alpha0 + 1.0)) for factor in (a, b, c)]
    for mean in means:
        mean[-1] = 1.0
    # With a last row of ones and its mean of one, pairs obey the formula of triples as they are.
    constants = Constants(alpha0)
    pairs = [
        (x * eta) @ y.T + constants.pair * np.outer(means[s], means[t])
        for x, y, s, t in ((a, b, 0, 1), (a, c, 0, 2), (b, c, 1, 2))
    ]
    u, v, w = means
    joint = (
        pairs[0][:, :, None] * w + pairs[1][:, None, :] * v[:, None] + pairs[2] * u[:, None, None]
    )
    cube = constants.means * (u[:, None, None] * v[:, None] * w)
    limits = (_LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY)
    probability = np.clip(third + constants.mixed * joint - cube, *limits)
    return np.asarray(probability * (1.0 - probability))
