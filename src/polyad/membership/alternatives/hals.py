"""Nonnegative CP of the third moment by hierarchical alternating least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.cp.nonnegative.solver import Descent
from polyad.fitting import FitOptions
from polyad.membership.alternatives.views import read_third, scaled
from polyad.membership.solver import MomentProblem, MomentSolver, best_factors
from polyad.tensor.dense import DenseTensor

if TYPE_CHECKING:
    from numpy.random import Generator


class HalsSolver(MomentSolver):
    """One pass of coordinate descent over the columns of each factor, as the textbook has it."""

    name = "HALS"

    def __init__(self, problem: MomentProblem) -> None:
        super().__init__(problem)
        rule = Descent([0.0] * 3, [0.0] * 3)
        rule.limits = (0.0, 1)
        self.rule = rule


def hals(
    third: np.ndarray,
    n_components: int,
    *,
    n_init: int = 1,
    max_iter: int = 1000,
    tol: float = 1e-8,
    random_state: int | Generator | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Decompose the third moment into nonnegative factors, column after column.

    Parameters
    ----------
    third : ndarray of shape (I, J, K)
        The third moment of three disjoint groups of variables. Its entries may be negative.
    n_components : int
        The number of components.
    n_init : int, default=1
        How many random starts; the one with the smallest residual is kept.
    max_iter : int, default=1000
        The largest number of sweeps.
    tol : float, default=1e-8
        Stop when a sweep lowers the objective by less than this part of it.
    random_state : int, Generator or None, default=None
        Draws the starts.

    Returns
    -------
    factors : list of three ndarray of shapes (I, R), (J, R) and (K, R)
        Nonnegative; columns sum to one.
    weights : ndarray of shape (R,)
        Of the components of ``third``, in descending order.

    References
    ----------
    Cichocki and Phan (2009), Fast local algorithms for large scale nonnegative matrix and tensor
    factorizations, IEICE Transactions E92-A.
    """
    read = read_third(third, n_components)
    solver = HalsSolver(MomentProblem(DenseTensor(np.ascontiguousarray(read))))
    options = FitOptions(max_iter=max_iter, tol=tol)
    return scaled(best_factors(solver, n_components, options, n_init, random_state), read)
