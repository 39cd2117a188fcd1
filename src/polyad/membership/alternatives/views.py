"""What the methods that need pair moments share: three views made one, and a factor made three.

The third moment of three disjoint groups of variables is ``sum_h lam_h a_h b_h c_h``, the pair
moments are ``sum_h eta_h a_h b_h'`` and so on. Orthogonal and joint diagonalizations want one
symmetric tensor, so the first two views are carried to the third: ``E[z y'] E[x y']^+ a_h = c_h``
(Anandkumar, Ge, Hsu, Kakade and Telgarsky 2014, section 3.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Singular values of a pair moment below this share of the largest are rounding, not a component.
_RANK_TOL = 1e-12


class ThreeViews(NamedTuple):
    """A third moment (I, J, K) and its pair moments (I, J), (I, K) and (J, K)."""

    third: np.ndarray
    first_second: np.ndarray
    first_third: np.ndarray
    second_third: np.ndarray


class SymmetricView(NamedTuple):
    """Moments carried to the third view: its basis (K, R), and what maps the others into it."""

    basis: np.ndarray
    from_first: np.ndarray
    from_second: np.ndarray
    pair: np.ndarray


def read_third(third: np.ndarray, n_components: int) -> np.ndarray:
    """Return a third moment as an array of finite double numbers, or say what is wrong with it."""
    read = np.asarray(third, dtype=np.float64)
    if read.ndim != 3 or not read.size:
        message = f"third must be an array of three modes, (I, J, K); got shape {read.shape}."
        raise InvalidInputError(message)
    if not np.isfinite(read).all():
        message = "third has entries that are not finite. Estimate it where all are observed."
        raise InvalidInputError(message)
    if not isinstance(n_components, int | np.integer) or n_components < 1:
        message = f"n_components must be a whole number of at least 1; got {n_components!r}."
        raise InvalidInputError(message)
    return read


def read_views(third: np.ndarray, second: Sequence[np.ndarray], n_components: int) -> ThreeViews:
    """Return checked moments of three views, each of which has room for the components."""
    read = read_third(third, n_components)
    pairs = [np.asarray(pair, dtype=np.float64) for pair in second]
    wanted = [(read.shape[0], read.shape[1]), (read.shape[0], read.shape[2]), read.shape[1:]]
    if [pair.shape for pair in pairs] != wanted:
        message = (
            f"second must be the pair moments of views 0 and 1, 0 and 2, 1 and 2, of shapes "
            f"{wanted}; got {[pair.shape for pair in pairs]}."
        )
        raise InvalidInputError(message)
    if not all(np.isfinite(pair).all() for pair in pairs):
        message = "second has entries that are not finite. Estimate it where all are observed."
        raise InvalidInputError(message)
    if n_components > min(read.shape):
        message = (
            f"n_components={n_components} is above the smallest of the sizes {read.shape}, so "
            "that no view tells the components apart. Ask for fewer, or make larger groups of "
            "variables."
        )
        raise InvalidInputError(message)
    return ThreeViews(read, *pairs)


def symmetric_view(views: ThreeViews, n_components: int) -> SymmetricView:
    """Carry the first two views to the third, in coordinates of its leading directions."""
    cross = np.concatenate([views.first_third, views.second_third]).T  # (K, I + J)
    basis = np.linalg.svd(cross, full_matrices=False)[0][:, :n_components]
    inverse = _inverse(views.first_second, n_components)  # (J, I)
    from_first = basis.T @ views.second_third.T @ inverse
    from_second = basis.T @ views.first_third.T @ inverse.T
    pair = from_first @ views.first_second @ from_second.T
    return SymmetricView(basis, from_first, from_second, (pair + pair.T) / 2)


def _inverse(pair: np.ndarray, n_components: int) -> np.ndarray:
    """Return the pseudo-inverse of a pair moment at the rank of the model."""
    left, values, right = np.linalg.svd(pair, full_matrices=False)
    if values[n_components - 1] <= _RANK_TOL * values[0]:
        rank = int(np.sum(values > _RANK_TOL * values[0]))
        message = (
            f"The pair moment of views 0 and 1 has rank {rank}, below n_components="
            f"{n_components}: it does not tell so many components apart. Ask for fewer, or make "
            "larger groups of variables."
        )
        raise InvalidInputError(message)
    kept = slice(n_components)
    return np.asarray((right[kept].T / values[kept]) @ left[:, kept].T)


def three_factors(views: ThreeViews, last: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return all factors and weights by the factor of the third view.

    ``E[x z'] = sum_h eta_h a_h c_h'`` gives the first two factors up to the scale of their
    columns; the weights are the least squares ones of the third moment.
    """
    inverse = np.linalg.pinv(last.T)
    factors = [views.first_third @ inverse, views.second_third @ inverse, last]
    return scaled(factors, views.third)


def scaled(factors: Sequence[np.ndarray], third: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return factors whose columns have absolute sums of one, and their weights, descending."""
    unit = []
    for factor in factors:
        sums = np.abs(factor).sum(axis=0) * np.where(factor.sum(axis=0) < 0, -1.0, 1.0)
        unit.append(factor / np.where(sums == 0, 1.0, sums))
    a, b, c = unit
    gram = (a.T @ a) * (b.T @ b) * (c.T @ c)
    inner = np.einsum("ijk,ir,jr,kr->r", third, a, b, c, optimize=True)
    weights = np.linalg.lstsq(gram, inner, rcond=None)[0]
    order = np.argsort(-weights, kind="stable")
    return [factor[:, order] for factor in unit], np.asarray(weights[order])


def category_probabilities(factor: np.ndarray, n_categories: Sequence[int]) -> list[np.ndarray]:
    """Make probabilities of the stacked rows of a group of variables.

    What is negative counts as zero; then the rows of each variable are divided by their sums. A
    column without a positive entry becomes uniform.

    Parameters
    ----------
    factor : ndarray of shape (D, R)
        A factor, with one row for each category of each variable of its group.
    n_categories : sequence of int
        How many rows belong to each variable, in their order; they sum to ``D``.

    Returns
    -------
    list of ndarray of shape (d, R)
        One matrix for each variable, whose columns sum to one: the form of ``theta_``.
    """
    if sum(n_categories) != len(factor):
        message = f"n_categories sums to {sum(n_categories)}; the factor has {len(factor)} rows."
        raise InvalidInputError(message)
    theta = []
    for block in np.split(np.maximum(factor, 0.0), np.cumsum(n_categories)[:-1]):
        sums = block.sum(axis=0)
        uniform = np.full_like(block, 1.0 / len(block))
        theta.append(np.where(sums > 0, block / np.where(sums > 0, sums, 1.0), uniform))
    return theta
