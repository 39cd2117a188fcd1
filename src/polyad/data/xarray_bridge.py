"""xarray in and out: dimensions are modes, their coordinates are labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array

from polyad.exceptions import InvalidInputError, InvalidTypeError, MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.data.entries import Entries


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
