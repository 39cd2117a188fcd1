"""To and from the objects of other packages.

Going in, estimators accept most of these as they are. The other packages are optional: each is
imported by the function that makes one of its objects.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from polyad.core.arrays import namespace_of, to_numpy
from polyad.data.labels import LabelledTensor
from polyad.data.validation import as_tensor_input
from polyad.exceptions import InvalidTypeError, MissingPackageError
from polyad.tensor.kruskal import KruskalTensor, as_kruskal
from polyad.tensor.sparse import canonicalize


def to_tensorly(tensor: Any) -> Any:
    """Return a decomposition as a ``tensorly.cp_tensor.CPTensor``.

    Parameters
    ----------
    tensor : KruskalTensor, fitted model or (weights, factors)
        The decomposition.
    """
    tensor = as_kruskal(tensor)
    cp_tensor = package("tensorly.cp_tensor", "tensorly")
    return cp_tensor.CPTensor((tensor.weights, list(tensor.factors)))


def from_tensorly(cp_tensor: Any) -> KruskalTensor:
    """Return a ``CPTensor`` of TensorLy, or any pair (weights, factors), as a KruskalTensor.

    Parameters
    ----------
    cp_tensor : CPTensor
        Weights of None count as ones.
    """
    weights, factors = cp_tensor
    if weights is None:
        weights = namespace_of(factors[0]).ones_like(factors[0][0, :])
    return KruskalTensor(weights, factors)


def to_pyttb(tensor: Any) -> Any:
    """Return an object of pyttb: a ``ktensor``, ``sptensor`` or ``tensor``.

    Parameters
    ----------
    tensor : KruskalTensor, sparse or dense tensor-like
        What to convert. Names and labels are not kept: pyttb has none.
    """
    pyttb = package("pyttb", "pyttb")
    if isinstance(tensor, KruskalTensor) or hasattr(tensor, "kruskal_"):
        tensor = as_kruskal(tensor)
        factors = [np.asfortranarray(to_numpy(factor)) for factor in tensor.factors]
        return pyttb.ktensor(factors, to_numpy(tensor.weights))
    given = as_tensor_input(tensor, allow_nan=True)
    if not given.is_sparse:
        return pyttb.tensor(to_numpy(given.data), shape=given.shape)
    sparse = canonicalize(given.data)
    subscripts = np.stack([np.asarray(row, dtype=np.int64) for row in sparse.coords], axis=1)
    return pyttb.sptensor(subscripts, sparse.data[:, None], shape=given.shape)


def from_pyttb(tensor: Any) -> Any:
    """Return a pyttb object as a KruskalTensor, an n-D ``coo_array`` or an array.

    Parameters
    ----------
    tensor : pyttb.ktensor, sptensor or tensor
        What to convert.
    """
    if hasattr(tensor, "factor_matrices") and hasattr(tensor, "weights"):
        return KruskalTensor(np.asarray(tensor.weights), tensor.factor_matrices)
    return as_tensor_input(tensor, allow_nan=True).data


def to_sparse(tensor: Any) -> Any:
    """Return a sparse tensor as a ``sparse.COO`` of pydata/sparse.

    Parameters
    ----------
    tensor : sparse tensor-like
        For example an n-D ``coo_array`` or a sparse LabelledTensor.
    """
    sparse = package("sparse", "sparse")
    data = _sparse_data(tensor)
    return sparse.COO(np.stack(data.coords), data.data, shape=data.shape)


def from_sparse(tensor: Any) -> coo_array:
    """Return a ``sparse.COO`` of pydata/sparse as an n-D ``coo_array``.

    Parameters
    ----------
    tensor : sparse.COO or GCXS
        With the fill value zero.
    """
    return _sparse_data(tensor)


def to_xarray(tensor: LabelledTensor) -> Any:
    """Return a labelled tensor as an ``xarray.DataArray``. Sparse data becomes ``sparse.COO``.

    Parameters
    ----------
    tensor : LabelledTensor
        Modes become dimensions and labels become coordinates.
    """
    if not isinstance(tensor, LabelledTensor):
        message = (
            f"A {type(tensor).__name__} was given, which has no names. Make it a LabelledTensor, "
            "or use xarray.DataArray(array)."
        )
        raise InvalidTypeError(message)
    return tensor.to_xarray()


def from_xarray(array: Any) -> LabelledTensor:
    """Return an ``xarray.DataArray`` as a labelled tensor.

    Parameters
    ----------
    array : xarray.DataArray
        Dimensions become modes and coordinates become labels.
    """
    return LabelledTensor.from_xarray(array)


def _sparse_data(tensor: Any) -> coo_array:
    data = as_tensor_input(tensor).data
    if not isinstance(data, coo_array):
        message = f"A sparse tensor is needed; a dense {type(tensor).__name__} was given."
        raise InvalidTypeError(message)
    return canonicalize(data)


def package(module: str, name: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"This needs the package {name}: pip install {name}."
        raise MissingPackageError(message) from error
