"""The entries of a tensor without its labels: checked, sorted, selected, moved, and of xarray.

Sparse entries are renumbered by a hash lookup of their coordinates: memory and time follow the
number of entries and of picked positions, not the length of a mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array, issparse

from polyad.data.label_values import find_labels
from polyad.exceptions import InvalidInputError, InvalidTypeError, MissingPackageError
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Entries = NDArray[Any] | coo_array[Any, Any]


def as_entries(data: Any) -> NDArray[Any] | coo_array[Any, Any]:
    """Check the container and the type of the entries of a tensor; sum sparse duplicates."""
    sparse = issparse(data)
    if not (sparse or (isinstance(data, np.ndarray) and not isinstance(data, np.ma.MaskedArray))):
        message = (
            f"data must be a NumPy array or a scipy sparse array, got {type(data).__name__}. "
            "Use from_frame for a long table, from_xarray for a DataArray, data.filled(np.nan) "
            "for a masked array and numpy.asarray(data) otherwise."
        )
        raise InvalidTypeError(message)
    if data.dtype.kind not in "fiub":
        message = f"data must hold real numbers, got dtype {data.dtype}. Convert it to float64."
        raise InvalidTypeError(message)
    if data.ndim < 2 or 0 in data.shape:
        message = (
            f"data has shape {data.shape}; a tensor needs at least two modes, none of them empty."
        )
        raise InvalidInputError(message)
    dtype = data.dtype if data.dtype in (np.float32, np.float64) else np.float64
    if not sparse:
        return np.asarray(data, dtype=dtype)
    stored = coo_array(data)
    return summed_coo(stored.coords, stored.data.astype(dtype, copy=False), stored.shape)


def summed_coo(
    coords: Sequence[NDArray[Any]], values: NDArray[Any], shape: tuple[int, ...]
) -> coo_array[Any, Any]:
    """Return a sparse array in canonical form: sorted, every coordinate once."""
    stored: Any = (values, tuple(coords))
    tensor: coo_array[Any, Any] = coo_array(stored, shape=shape)
    return canonicalize(tensor)


def pick_entries(data: Entries, picks: Mapping[int, int | NDArray[np.intp]]) -> Entries:
    """Return the entries at the picked positions of some modes; single positions drop a mode."""
    if isinstance(data, np.ndarray):
        # From the last mode on, so that dropped modes do not renumber those still to come.
        for mode in sorted(picks, reverse=True):
            data = data.take(picks[mode], axis=mode)
        return data
    coords: list[NDArray[Any]] = list(data.coords)
    values = data.data
    shape = list(data.shape)
    for mode, pick in picks.items():
        if isinstance(pick, int):
            kept = np.flatnonzero(coords[mode] == pick)
        else:
            coords[mode] = find_labels(pick, coords[mode])
            shape[mode] = len(pick)
            kept = np.flatnonzero(coords[mode] >= 0)
        coords, values = [c[kept] for c in coords], values[kept]
    left = [mode for mode in range(len(shape)) if not isinstance(picks.get(mode), int)]
    return summed_coo([coords[mode] for mode in left], values, tuple(shape[mode] for mode in left))


def move_entries(
    data: coo_array[Any, Any], mode: int, positions: NDArray[np.intp], length: int
) -> coo_array[Any, Any]:
    """Move slice p of a mode to ``positions[p]``, or drop it where that is negative."""
    coords: list[NDArray[Any]] = list(data.coords)
    coords[mode] = positions[coords[mode]]
    kept = np.flatnonzero(coords[mode] >= 0)
    shape = (*data.shape[:mode], length, *data.shape[mode + 1 :])
    return summed_coo([c[kept] for c in coords], data.data[kept], shape)


def read_xarray(array: Any) -> tuple[Entries, tuple[str, ...], list[NDArray[Any] | None]]:
    """Return the entries, modes and labels of an ``xarray.DataArray``.

    xarray is not imported. Data of the package sparse stays sparse; anything else that is not
    NumPy, such as dask, is loaded.
    """
    if not (hasattr(array, "dims") and hasattr(array, "coords") and hasattr(array, "to_numpy")):
        message = (
            f"Expected an xarray.DataArray, got {type(array).__name__}. Take one variable of a "
            "Dataset, or use LabelledTensor(data, modes=..., labels=...)."
        )
        raise InvalidTypeError(message)
    data = array.data
    if type(data).__module__.partition(".")[0] == "sparse":
        stored = data.asformat("coo")
        if stored.fill_value != 0:
            message = (
                f"The sparse array has fill_value={stored.fill_value}; absent entries must be 0. "
                "Subtract the fill value first, or give a dense array."
            )
            raise InvalidInputError(message)
        data = coo_array((stored.data, tuple(stored.coords)), shape=stored.shape)
    else:
        data = array.to_numpy()
    labels = [array.coords[d].to_numpy() if d in array.coords else None for d in array.dims]
    return data, array.dims, labels


def write_xarray(data: Entries, modes: Sequence[str], labels: Sequence[NDArray[Any] | None]) -> Any:
    """Return an ``xarray.DataArray``; sparse data is held as ``sparse.COO``."""
    try:
        import xarray as xr

        if not isinstance(data, np.ndarray):
            import sparse
    except ImportError as error:
        message = (
            f"xarray output needs the package {error.name}: pip install {error.name}. Sparse "
            "data needs the packages xarray and sparse."
        )
        raise MissingPackageError(message) from error
    if not isinstance(data, np.ndarray):
        data = sparse.COO(
            np.stack(data.coords), data.data, shape=data.shape, sorted=True, has_duplicates=False
        )
    named = zip(modes, labels, strict=True)
    return xr.DataArray(
        data, dims=modes, coords={name: own for name, own in named if own is not None}
    )
