"""The tensor power method: whitening, power iterations, deflation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.membership.alternatives.views import read_views, symmetric_view, three_factors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator


def tensor_power(
    third: np.ndarray,
    second: Sequence[np.ndarray],
    n_components: int,
    *,
    n_starts: int = 50,
    n_iter: int = 50,
    random_state: int | Generator | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Decompose moments of three views by the tensor power method.

    The views are carried to the last one by the pair moments, which whiten it; the components of
    what is left are orthogonal, and are found one after the other by power iterations from random
    starts, each subtracted before the next.

    Parameters
    ----------
    third : ndarray of shape (I, J, K)
        The third moment, ``sum_h lam_h a_h b_h c_h`` up to noise. The views are disjoint groups of
        variables, such as thirds of the questions of a survey, or of the workers of a crowd.
    second : sequence of three ndarray of shapes (I, J), (I, K) and (J, K)
        The pair moments of the views 0 and 1, 0 and 2, 1 and 2: ``sum_h eta_h a_h b_h'`` and so
        on, with positive ``eta``. Each must have rank ``n_components`` at least.
    n_components : int
        The number of components, at most ``min(I, J, K)``.
    n_starts : int, default=50
        Random starts for each component; the one with the largest eigenvalue counts.
    n_iter : int, default=50
        Power iterations of each start, and once more of the best.
    random_state : int, Generator or None, default=None
        Draws the starts.

    Returns
    -------
    factors : list of three ndarray of shapes (I, R), (J, R) and (K, R)
        The columns ``a_h``, ``b_h`` and ``c_h``. Their absolute values sum to one; noise can make
        entries negative (:func:`category_probabilities` makes probabilities of them).
    weights : ndarray of shape (R,)
        Of the components of ``third``, in descending order: ``lam_h``, times the column sums that
        the columns had in the model.

    References
    ----------
    Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), Tensor decompositions for learning latent
    variable models, Journal of Machine Learning Research 15.
    """
    views = read_views(third, second, n_components)
    view = symmetric_view(views, n_components)
    values, vectors = np.linalg.eigh(view.pair)
    # Noise can make the smallest negative: its size is the best guess of its scale.
    scale = np.sqrt(np.maximum(np.abs(values), np.finfo(float).tiny))
    whiten = vectors / scale
    cube = np.einsum(
        "ijk,ia,jb,kc->abc",
        views.third,
        view.from_first.T @ whiten,
        view.from_second.T @ whiten,
        view.basis @ whiten,
        optimize=True,
    )
    directions = _orthogonal_components(cube, n_starts, n_iter, np.random.default_rng(random_state))
    return three_factors(views, view.basis @ (vectors * scale) @ directions)


def _orthogonal_components(
    cube: np.ndarray, n_starts: int, n_iter: int, random: Generator
) -> np.ndarray:
    """Return the components (R, R) of a symmetric tensor that are orthogonal up to noise."""
    left = _symmetric(cube)
    found = []
    for _ in range(cube.shape[0]):
        starts = _iterate(left, random.standard_normal((cube.shape[0], n_starts)), n_iter)
        best = int(np.argmax(_eigenvalues(left, starts)))
        direction = _iterate(left, starts[:, [best]], n_iter)
        value = _eigenvalues(left, direction)[0]
        vector = direction[:, 0]
        left = left - value * np.einsum("a,b,c->abc", vector, vector, vector)
        found.append(vector)
    return np.stack(found, axis=1)


def _symmetric(cube: np.ndarray) -> np.ndarray:
    """Return the mean over all orders of the modes."""
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return np.asarray(sum(cube.transpose(order) for order in orders) / 6.0)


def _iterate(cube: np.ndarray, vectors: np.ndarray, n_iter: int) -> np.ndarray:
    """Return unit vectors (R, n) after power iterations."""
    flat = cube.reshape(len(cube), -1)
    for _ in range(n_iter):
        vectors = vectors / np.linalg.norm(vectors, axis=0)
        products = (vectors[:, None, :] * vectors[None, :, :]).reshape(-1, vectors.shape[1])
        image = flat @ products
        # Where the tensor is nothing along a vector, the vector stays.
        vectors = np.where(np.linalg.norm(image, axis=0) > 0, image, vectors)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=0))


def _eigenvalues(cube: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the tensor's value at unit vectors."""
    values = np.einsum("abc,ar,br,cr->r", cube, vectors, vectors, vectors, optimize=True)
    return np.asarray(values)
