r"""The graph of similar entries of a mode, as a quadratic form.

With similarities :math:`S`, zero on the diagonal, and degrees :math:`d_i = \sum_j S_{ij}`, the
normalised Laplacian :math:`L = I - D^{-1/2} S D^{-1/2}` measures a column :math:`b` by

.. math:: b^\top L\, b = \tfrac12 \sum_{ij} S_{ij}
    \Big(\frac{b_i}{\sqrt{d_i}} - \frac{b_j}{\sqrt{d_j}}\Big)^2 .

It has no unit: the size of :math:`S` cancels, and its eigenvalues are between 0 and 2. Entries
without a similar one have no part in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.data.mode_matrices import is_sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: No eigenvalue of a normalised Laplacian is larger.
LARGEST_EIGENVALUE = 2.0
# Degrees below this, where the largest similarity is one, are rounding.
_ISOLATED = 1e-10


class Laplacian:
    """The normalised Laplacian of a similarity matrix, which may be given as a product.

    Similarities are at most one and zero on the diagonal. Profiles ``Z`` have rows of length one or
    zero; their products ``Z Zᵀ`` without the diagonal are the similarities, and are never formed.
    """

    def __init__(self, matrix: Any, *, is_profile: bool = False) -> None:
        self._matrix = matrix
        self._is_profile = is_profile
        self._diagonal: NDArray[np.float64] | None = None
        if is_profile:
            squares = matrix.multiply(matrix) if is_sparse(matrix) else matrix * matrix
            self._diagonal = np.asarray(squares.sum(axis=1), dtype=np.float64).reshape(-1, 1)
        degrees = self._similar(np.ones((matrix.shape[0], 1)))[:, 0]
        # Products of profiles leave rounding where nothing is similar.
        linked = degrees > _ISOLATED
        #: Whether any two entries are similar.
        self.is_linked = bool(linked.any())
        self._linked = linked.astype(np.float64)[:, None]
        self._scale = (linked / np.sqrt(np.where(linked, degrees, 1.0)))[:, None]

    def apply(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``L`` times some columns."""
        similar = self._similar(self._scale * columns)
        return np.asarray(self._linked * columns - self._scale * similar)

    def roughness(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``bᵀ L b`` of each column ``b``."""
        return np.asarray(np.maximum(np.sum(columns * self.apply(columns), axis=0), 0.0))

    def _similar(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the similarities without their diagonal, times some columns."""
        if self._diagonal is None:
            return np.asarray(self._matrix @ columns)
        return np.asarray(self._matrix @ (self._matrix.T @ columns) - self._diagonal * columns)
