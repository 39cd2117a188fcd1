r"""The graph of similar entries of a mode, given or from the data, as a quadratic form.

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
from scipy.sparse import coo_array, csr_array

from polyad.core.arrays import namespace_of, to_numpy
from polyad.data.mode_matrices import check_name, entries_of_modes, is_sparse, read_similarities
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.data.readers import TensorInput

#: No eigenvalue of a normalised Laplacian is larger.
LARGEST_EIGENVALUE = 2.0
# Degrees below this, where the largest similarity is one, are rounding.
_ISOLATED = 1e-10
# The similarities that are computed from the data.
_NAMES = ("cosine", "presence")
_ACCEPTED = (
    "Give 'cosine' or 'presence' for all modes but the samples, or a list with one entry per mode, "
    "or a dict from modes to entries. An entry is None, one of these names, or a square matrix "
    "(array, scipy.sparse or labelled table) of nonnegative similarities."
)


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


def read_laplacians(given: TensorInput, similarities: Any) -> dict[int, Laplacian]:
    """Return the Laplacian of each mode that has similarities."""
    if isinstance(similarities, str):
        entries: dict[int, Any] = dict.fromkeys(range(1, len(given.shape)), similarities)
    elif similarities is None:
        entries = {}
    else:
        entries = entries_of_modes("similarities", similarities, given, _ACCEPTED)
    if entries.get(0) is not None:
        message = (
            "similarities has an entry for mode 0, the samples, where new samples have none: "
            "leave it out, or give None."
        )
        raise InvalidInputError(message)
    return {
        mode: _laplacian(given, mode, entry) for mode, entry in entries.items() if entry is not None
    }


def _laplacian(given: TensorInput, mode: int, entry: Any) -> Laplacian:
    title = given.mode_title(mode)
    if isinstance(entry, str):
        check_name("similarities", entry, _NAMES, title)
        return laplacian_of_data(given, mode, entry)
    size, labels = given.shape[mode], given.labels[mode]
    matrix = read_similarities(entry, size, labels, f"The similarity of {title}")
    return Laplacian(matrix / (float(matrix.max()) or 1.0))


def laplacian_of_data(given: TensorInput, mode: int, name: str) -> Laplacian:
    """Return the Laplacian of the cosines between the profiles of the entries of a mode.

    The profile of an entry is one number per sample: the sum of the sizes of what the sample has at
    this entry, or for ``'presence'`` one if there is anything and zero if not. Missing entries
    count as zero. The cosines are never formed as a matrix.
    """
    profiles = _totals(given, mode)
    if name == "presence":
        profiles = (profiles != 0).astype(np.float64)
    if isinstance(profiles, np.ndarray):
        lengths = np.sqrt(np.sum(profiles * profiles, axis=1))
        return Laplacian(profiles * _inverse(lengths)[:, None], is_profile=True)
    lengths = np.sqrt(np.asarray(profiles.multiply(profiles).sum(axis=1)).reshape(-1))
    scaled = profiles.multiply(_inverse(lengths)[:, None]).tocsr()
    return Laplacian(csr_array(scaled), is_profile=True)


def _totals(given: TensorInput, mode: int) -> Any:
    """Return the sums of the absolute values over all other modes: (entries, samples).

    They are divided by the largest, which their cosines do not see.
    """
    if given.is_sparse:
        data: coo_array[Any, Any] = given.data
        sizes = np.abs(data.data.astype(np.float64))
        top = float(np.max(sizes, initial=0.0)) or 1.0
        pairs = (data.coords[mode], data.coords[0])
        shape = (given.shape[mode], given.shape[0])
        totals = csr_array(coo_array((sizes / top, pairs), shape=shape))
        totals.eliminate_zeros()
        return totals
    xp = namespace_of(given.data)
    known = xp.where(xp.isnan(given.data), xp.zeros_like(given.data), given.data)
    sizes = xp.abs(known)
    top = float(xp.max(sizes)) or 1.0
    others = tuple(k for k in range(1, len(given.shape)) if k != mode)
    totals = xp.sum(sizes / top, axis=others) if others else sizes / top
    return np.ascontiguousarray(to_numpy(totals).astype(np.float64).T)


def _inverse(lengths: np.ndarray) -> np.ndarray:
    return np.where(lengths > 0, 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
