r"""The metric of features that discounts what augmentation changes (ours, not the paper's).

Rows ``x`` of samples are coefficients on components that are not orthogonal. With the Gram matrix
``G`` of the components, :math:`z = G^{1/2} x` are coordinates whose distances are those of the
tensors that the rows stand for. There, :math:`S_a` is the second moment of the changes that
augmentation makes, its mean shift included, and :math:`S_x` that of the samples. Features are

.. math:: f = s \, U^\top (S_a + g I)^{-1/2} z

where the columns of U are the eigenvectors of :math:`(S_a + g I)^{-1/2} S_x (S_a + g I)^{-1/2}`:
the generalised eigenvectors of :math:`S_x v = w (S_a + g I) v`. Features are uncorrelated, come in
the order of signal to change, and a classifier with a ridge believes them in that order, since
their sizes are left as they are. The number s makes the mean square of all features one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from polyad.core.arrays import namespace_of

if TYPE_CHECKING:
    from polyad.core.arrays import Array

# Directions of this part of the largest are none.
_NEGLIGIBLE = 1e-12


def augmentation_metric(gram: Array, rows: Array, changes: Array, floor: float) -> Array:
    """Return the matrix (R, R) that takes rows ``x`` to features ``x @ W``.

    ``rows`` and ``changes`` are second moments of rows, ``floor`` is g as a part of the mean of
    the changes over all directions. All are in double precision.
    """
    xp = namespace_of(gram)
    n_components = int(gram.shape[0])
    root = _power(gram, 0.5)
    noise, signal = root @ changes @ root, root @ rows @ root
    level = floor * float(xp.sum(xp.linalg.diagonal(noise))) / n_components
    eye = xp.eye(n_components, dtype=gram.dtype)
    discount = _power(noise + level * eye, -0.5) if level > 0 else eye
    values, vectors = xp.linalg.eigh(_symmetric(discount @ signal @ discount))
    # eigh sorts upwards.
    metric = root @ discount @ xp.flip(vectors, axis=1)
    total = float(xp.sum(values))
    metric = metric * (math.sqrt(n_components / total) if total > 0 else 1.0)
    return metric * _signs(metric)[None, :]


def _power(matrix: Array, exponent: float) -> Array:
    """Return a power of a symmetric matrix without negative eigenvalues."""
    xp = namespace_of(matrix)
    values, vectors = xp.linalg.eigh(_symmetric(matrix))
    largest = float(xp.max(values))
    kept = values > _NEGLIGIBLE * largest
    powers = xp.where(kept, xp.where(kept, values, xp.ones_like(values)) ** exponent, 0.0 * values)
    return (vectors * powers[None, :]) @ vectors.T


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + matrix.T)


def _signs(matrix: Array) -> Array:
    """Return the sign of the entry of largest size in each column."""
    xp = namespace_of(matrix)
    largest, least = xp.max(matrix, axis=0), xp.min(matrix, axis=0)
    ones = xp.ones_like(largest)
    return xp.where(largest >= -least, ones, -ones)
