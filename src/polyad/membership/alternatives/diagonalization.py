"""Non-orthogonal joint diagonalization of projections of the third moment (NOJD0 and NOJD1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyad.fitting import FitOptions, Solver, fit_best
from polyad.membership.alternatives.views import read_views, symmetric_view, three_factors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

_MOST_SWEEPS = 100


@dataclass(frozen=True)
class Diagonalized:
    """Symmetric matrices (L, R, R) after a change of coordinates, and that change (R, R)."""

    matrices: np.ndarray
    transform: np.ndarray


def joint_diagonalization(
    third: np.ndarray,
    second: Sequence[np.ndarray],
    n_components: int,
    *,
    plug_in: bool = True,
    n_projections: int | None = None,
    tol: float = 1e-4,
    random_state: int | Generator | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Decompose moments of three views by joint diagonalization of projections, without whitening.

    The views are carried to the last one by the pair moments. Projections of the third moment
    along vectors of that view are then matrices that one change of coordinates makes diagonal; its
    inverse holds the components. It is sought by rotations and triangular steps of determinant one
    (QRJ1D), and is not orthogonal.

    Parameters
    ----------
    third : ndarray of shape (I, J, K)
        The third moment, as for :func:`tensor_power`.
    second : sequence of three ndarray of shapes (I, J), (I, K) and (J, K)
        The pair moments of the views, as for :func:`tensor_power`.
    n_components : int
        The number of components, at most ``min(I, J, K)``.
    plug_in : bool, default=True
        Project once more, along the inverse of the factor that was found, so that each matrix
        shows one component (NOJD1). False ends with random projections (NOJD0).
    n_projections : int or None, default=None
        How many random projections; None is for ``2 K``.
    tol : float, default=1e-4
        Stop when a sweep lowers the share of what is off the diagonals by less than this part,
        or after 100 sweeps.
    random_state : int, Generator or None, default=None
        Draws the projections.

    Returns
    -------
    factors : list of three ndarray of shapes (I, R), (J, R) and (K, R)
        Columns whose absolute values sum to one, as of :func:`tensor_power`.
    weights : ndarray of shape (R,)
        Of the components of ``third``, in descending order.

    References
    ----------
    Kuleshov, Chaganty and Liang (2015), Tensor factorization via matrix factorization, AISTATS.
    Afsari (2006), Simple LU and QR based non-orthogonal matrix joint diagonalization, ICA.
    """
    views = read_views(third, second, n_components)
    view = symmetric_view(views, n_components)
    maps = (view.from_first.T, view.from_second.T, view.basis)
    cube = np.einsum("ijk,ia,jb,kc->abc", views.third, *maps, optimize=True)
    count = 2 * views.third.shape[2] if n_projections is None else n_projections
    random = np.random.default_rng(random_state)
    directions = random.standard_normal((count, n_components))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    options = FitOptions(max_iter=_MOST_SWEEPS, tol=tol)
    transform = _diagonalizer(cube, directions, np.eye(n_components), options)
    if plug_in:
        # The rows of the transform are the inverse of the factor, in coordinates of the basis.
        plugged = transform / np.linalg.norm(transform, axis=1, keepdims=True)
        transform = _diagonalizer(cube, plugged, transform, options)
    return three_factors(views, view.basis @ np.linalg.inv(transform))


def _diagonalizer(
    cube: np.ndarray, directions: np.ndarray, start: np.ndarray, options: FitOptions
) -> np.ndarray:
    """Return what makes the projections of a tensor along rows of ``directions`` diagonal."""
    matrices = np.einsum("abc,lc->lab", cube, directions)
    matrices = start @ (matrices + matrices.transpose(0, 2, 1)) @ start.T
    begin = balanced(Diagonalized(matrices, start))
    found = fit_best(DiagonalizationSolver(), lambda number, seed: begin, [0], options)
    return np.asarray(found.state.transform)


class DiagonalizationSolver(Solver[Diagonalized]):
    """Lowers what symmetric matrices have off their diagonals, by changes of coordinates."""

    name = "joint diagonalization"
    # Coordinates are scaled after each sweep: what is off the diagonals can rise by that.
    promises_descent = False

    def step(self, state: Diagonalized) -> Diagonalized:
        """Return the state after a sweep of rotations and one of triangular steps."""
        matrices, transform = state.matrices.copy(), state.transform.copy()
        upper = [(i, j) for i in range(len(transform)) for j in range(i + 1, len(transform))]
        for i, j in upper:
            angle = _best_angle(matrices, i, j)
            cosine, sine = np.cos(angle), np.sin(angle)
            turn = np.array([[cosine, sine], [-sine, cosine]])
            pair = [i, j]
            matrices[:, pair, :] = turn @ matrices[:, pair, :]
            matrices[:, :, pair] = matrices[:, :, pair] @ turn.T
            transform[pair] = turn @ transform[pair]
        for i, j in upper:
            amount = _best_shear(matrices, i, j)
            matrices[:, i, :] += amount * matrices[:, j, :]
            matrices[:, :, i] += amount * matrices[:, :, j]
            transform[i] += amount * transform[j]
        return balanced(Diagonalized(matrices, transform))

    def objective(self, state: Diagonalized) -> float:
        """Return the share of squares that is off the diagonals."""
        squares = (state.matrices**2).sum(axis=0)
        total = float(squares.sum())
        np.fill_diagonal(squares, 0.0)
        return float(squares.sum()) / total if total > 0 else 0.0


def balanced(state: Diagonalized) -> Diagonalized:
    """Scale coordinates such that each has the same sum of squares on the diagonals."""
    squares = np.einsum("laa,laa->a", state.matrices, state.matrices)
    scale = np.where(squares > 0, squares, 1.0) ** -0.25
    matrices = state.matrices * scale[:, None] * scale
    return Diagonalized(matrices, state.transform * scale[:, None])


def _best_angle(matrices: np.ndarray, i: int, j: int) -> float:
    """Return the rotation of two coordinates that puts most onto the diagonals (Jacobi)."""
    difference = matrices[:, i, i] - matrices[:, j, j]
    twice = 2.0 * matrices[:, i, j]
    on = difference @ difference - twice @ twice
    off = 2.0 * (difference @ twice)
    return 0.5 * float(np.arctan2(off, on + np.hypot(on, off)))


def _best_shear(matrices: np.ndarray, i: int, j: int) -> float:
    """Return the multiple of row and column j that, added to i, leaves least off the diagonals."""
    row, other = matrices[:, i], matrices[:, j]
    # The diagonal itself does not count.
    square = float(np.sum(other * other) - np.sum(other[:, i] ** 2))
    inner = float(np.sum(row * other) - np.sum(row[:, i] * other[:, i]))
    return -inner / square if square > 0 else 0.0
