"""Similarities that are computed from the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import coo_array, csr_array

from polyad.core.arrays import to_numpy
from polyad.cp.similarity.laplacian import Laplacian

if TYPE_CHECKING:
    from polyad.data.validation import TensorInput

#: The names of the similarities that are computed from the data.
NAMES = ("cosine", "presence")


def laplacian_of_data(given: TensorInput, mode: int, name: str) -> Laplacian:
    """Return the Laplacian of the cosines between the profiles of the entries of a mode.

    The profile of an entry is one number per sample: the sum of the sizes of what the sample has at
    this entry, or for ``'presence'`` one if there is anything and zero if not. The cosines are
    never formed as a matrix.

    Parameters
    ----------
    given : TensorInput
        The data. Missing entries count as zero.
    mode : int
        Not the samples.
    name : {'cosine', 'presence'}
        Which profile.
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
    xp = array_namespace(given.data)
    known = xp.where(xp.isnan(given.data), xp.zeros_like(given.data), given.data)
    sizes = xp.abs(known)
    top = float(xp.max(sizes)) or 1.0
    others = tuple(k for k in range(1, len(given.shape)) if k != mode)
    totals = xp.sum(sizes / top, axis=others) if others else sizes / top
    return np.ascontiguousarray(to_numpy(totals).astype(np.float64).T)


def _inverse(lengths: np.ndarray) -> np.ndarray:
    return np.where(lengths > 0, 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
