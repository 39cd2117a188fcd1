"""What a user gave, taken apart: the readers of all the types that hold a tensor.

Whatever it is (NumPy, torch, SciPy sparse, pydata/sparse, pyttb, xarray, pandas, polars, anndata,
:class:`LabelledTensor`) becomes a :class:`TensorInput`, whose numbers :mod:`polyad.data.validation`
checks. Foreign packages are recognised by the name of their module and are never imported here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse
from array_api_compat import (
    device,
    is_array_api_obj,
    is_dask_array,
    is_torch_array,
)
from scipy.sparse import coo_array

from polyad.core.arrays import namespace_of
from polyad.data.entries import pick_entries
from polyad.data.label_values import as_labels, as_text
from polyad.data.labels import LabelledTensor
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

Access = Literal["whole", "blocks", "batches", "once"]

ACCEPTED = (
    "Accepted are NumPy and array-API arrays with 2 or more dimensions, scipy.sparse matrices and "
    "n-D coo_array, sparse.COO, pyttb tensors, xarray.DataArray, numeric pandas or polars tables "
    "(samples x features), AnnData, and polyad.LabelledTensor. A long table of events becomes one "
    "with LabelledTensor.from_frame(table, modes=[...])."
)


@dataclass(frozen=True)
class TensorInput:
    """Canonical input of an estimator."""

    #: Floating point, order 2 or more.
    data: Any
    #: Names of the modes.
    modes: tuple[str, ...] | None
    #: Labels of the entries of each mode.
    labels: tuple[np.ndarray | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each mode."""
        return tuple(int(n) for n in self.data.shape)

    @property
    def is_sparse(self) -> bool:
        """Whether the data is a ``coo_array``."""
        return isinstance(self.data, coo_array)

    @property
    def is_labelled(self) -> bool:
        """Whether modes have names, or entries labels."""
        return self.modes is not None or any(own is not None for own in self.labels)

    def mode_title(self, mode: int) -> str:
        """Return how a message should call a mode."""
        return f"mode {mode}" if self.modes is None else f"mode {mode} ({self.modes[mode]!r})"

    def take_samples(self, kept: np.ndarray) -> TensorInput:
        """Return some of the samples, with their labels."""
        data: Any
        if self.is_sparse:
            data = pick_entries(self.data, {0: kept})
        elif hasattr(self.data, "take_samples"):  # columns of any kind
            data = self.data.take_samples(kept)
        else:
            xp = namespace_of(self.data)
            data = xp.take(self.data, xp.asarray(kept, device=device(self.data)), axis=0)
        own = self.labels[0]
        return replace(
            self, data=data, labels=(None if own is None else own[kept], *self.labels[1:])
        )

    def transposed(self, order: Sequence[int]) -> TensorInput:
        """Return the same data with its modes in another order."""
        if self.is_sparse:
            coords = tuple(self.data.coords[k] for k in order)
            shape = tuple(self.shape[k] for k in order)
            data: Any = coo_array((self.data.data, coords), shape=shape)
        else:
            data = namespace_of(self.data).permute_dims(self.data, tuple(order))
        modes = None if self.modes is None else tuple(self.modes[k] for k in order)
        return TensorInput(data, modes, tuple(self.labels[k] for k in order))


def sample_access(X: Any) -> Access:
    """Say how the samples of ``X`` can be read: 'whole', 'blocks', 'batches' or 'once'.

    Blocks are for arrays on disk, which are read by slices of the first axis: a NumPy memory map,
    zarr, h5py, recordings of mne, or what else has ``shape``, ``dtype``, ``ndim`` and slicing and
    is no array itself.
    Batches are for what gives batches of samples as often as asked: a callable that returns an
    iterable, a list or tuple of arrays of order 2 or more, or an object that can be iterated over.
    An iterator, such as a generator, is read once.
    """
    package = type(X).__module__.partition(".")[0]
    known = scipy.sparse.issparse(X) or package in _FOREIGN or isinstance(X, LabelledTensor)
    if isinstance(X, np.memmap) or is_of_mne(X):
        return "blocks"
    if known or is_array_api_obj(X) or isinstance(X, (str, bytes, Mapping, Set)):
        return "whole"
    if all(hasattr(X, name) for name in ("shape", "dtype", "ndim", "__getitem__")):
        return "blocks"
    if hasattr(X, "shape") or hasattr(X, "__array__"):
        return "whole"
    if hasattr(X, "__next__"):
        return "once"
    if isinstance(X, Sequence):
        is_list = isinstance(X, (list, tuple)) and len(X) > 0
        return "batches" if is_list and all(_is_batch(item) for item in X) else "whole"
    return "batches" if callable(X) or hasattr(X, "__iter__") else "whole"


def is_of_mne(X: Any) -> bool:
    """Say whether X is a recording of mne: Epochs or Raw."""
    return type(X).__module__.partition(".")[0] == "mne" and hasattr(X, "ch_names")


def _is_batch(item: Any) -> bool:
    shape = getattr(item, "shape", ())
    return isinstance(shape, tuple) and len(shape) >= 2


def unpack(X: Any) -> TensorInput:
    """Find out what was given (see :data:`ACCEPTED`) and take it apart."""
    if isinstance(X, TensorInput):
        return X
    if isinstance(X, LabelledTensor):
        return TensorInput(X.data, X.modes, tuple(X.labels))
    is_scipy: bool = scipy.sparse.issparse(X)
    if is_scipy:
        return _plain(X if isinstance(X, coo_array) else coo_array(X))
    package = type(X).__module__.partition(".")[0]
    if package in _FOREIGN:
        return _FOREIGN[package](X)
    if isinstance(X, np.matrix):
        message = "np.matrix is not supported. Convert it with np.asarray(X)."
        raise InvalidTypeError(message)
    if is_dask_array(X):
        message = "A dask array was given. Bring it into memory first with X.compute()."
        raise InvalidTypeError(message)
    if isinstance(X, np.ma.MaskedArray):
        return _plain(_masked_as_nan(X))
    if is_torch_array(X):
        return _plain(_from_torch(X))
    if is_array_api_obj(X) or not hasattr(X, "shape"):
        return _plain(X if is_array_api_obj(X) else _from_sequence(X))
    if hasattr(X, "__array__") or hasattr(X, "__array_function__"):
        return _plain(np.asarray(X))
    raise _not_tensor_like(X)


def _not_tensor_like(X: Any) -> InvalidTypeError:
    return InvalidTypeError(f"X is a {type(X).__module__}.{type(X).__name__}. {ACCEPTED}")


def _plain(data: Any) -> TensorInput:
    return TensorInput(data, None, (None,) * data.ndim)


def _from_sequence(X: Any) -> np.ndarray:
    if isinstance(X, (str, os.PathLike)):
        message = (
            f"X is a {type(X).__name__}. A path is not read: open an array with "
            "np.load(path, mmap_mode='r') and give it to StochasticCP if it is larger than memory, "
            "a .tns file with polyad.io.read_tns(path), a table with pandas."
        )
        raise InvalidTypeError(message)
    if isinstance(X, (list, tuple)) and any(isinstance(item, (str, os.PathLike)) for item in X):
        message = (
            f"X is a {type(X).__name__} of text. Paths are not read: give windows of recordings as "
            "polyad.augmented.signals.Recordings(paths, window=...), and arrays as a list of "
            "np.load(path, mmap_mode='r')."
        )
        raise InvalidTypeError(message)
    if isinstance(X, Iterator):
        message = (
            f"X is a {type(X).__name__}, which gives its parts one by one. StochasticCP fits such "
            "batches; other estimators need one array, such as np.concatenate(list(X))."
        )
        raise InvalidTypeError(message)
    if isinstance(X, (bytes, dict)) or X is None or callable(X):
        message = f"X is a {type(X).__name__}. {ACCEPTED}"
        raise InvalidTypeError(message)
    try:
        return np.asarray(X)
    except ValueError as error:
        message = f"X is a {type(X).__name__} that makes no array: {error}. {ACCEPTED}"
        raise InvalidInputError(message) from error


def _masked_as_nan(X: np.ma.MaskedArray[Any, Any]) -> np.ndarray:
    """Return a masked array as a plain one: what is masked is missing."""
    values = X if X.dtype.kind in "fcOMm" else X.astype(np.float64)
    return np.ma.filled(values, np.nan) if np.ma.is_masked(values) else np.ma.getdata(values)


def _from_torch(X: Any) -> Any:
    if str(X.layout) != "torch.strided":
        message = (
            f"A torch tensor of layout {X.layout} was given. Give a dense one, or a scipy.sparse "
            "coo_array of its values and indices."
        )
        raise InvalidTypeError(message)
    # A fit is not differentiated: its graph would hold every iteration in memory.
    return X.detach()


def _from_pandas(X: Any) -> TensorInput:
    if not hasattr(X, "ndim"):
        raise _not_tensor_like(X)
    if X.ndim != 2:
        message = (
            f"Expected 2D array, got 1D array instead: a pandas {type(X).__name__}. Reshape your "
            "data, for example with X.to_frame()."
        )
        raise InvalidInputError(message)
    if not X.columns.is_unique:
        message = (
            f"The table has several columns named {X.columns[X.columns.duplicated()][0]!r}. Give "
            "each a name of its own, or give the numbers alone with X.to_numpy()."
        )
        raise InvalidInputError(message)
    labels = pandas_labels(X)
    if all(str(kind).startswith("Sparse") for kind in X.dtypes) and X.shape[1]:
        fill = [kind.fill_value for kind in X.dtypes if kind.fill_value != 0]
        if fill:
            raise _bad_fill_value(fill[0])
        return TensorInput(coo_array(X.sparse.to_coo()), _axis_names(X), labels)
    columns = [column for column, kind in X.dtypes.items() if _is_text(kind)]
    if columns:
        raise _text_columns(columns)
    try:
        values = X.to_numpy(dtype=None if _is_plain_numbers(X.dtypes) else np.float64)
    except (TypeError, ValueError):
        # Object columns may still hold numbers: the conversion below tells, naming the value.
        values = X.to_numpy()
    return TensorInput(values, _axis_names(X), labels)


def _axis_names(X: Any) -> tuple[str, str] | None:
    """Return the names of the rows and of the columns, if both have one, as names of modes."""
    rows, columns = X.index.name, X.columns.name
    are_names = all(isinstance(name, str) and name for name in (rows, columns))
    return (rows, columns) if are_names and rows != columns else None


def pandas_labels(X: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the labels of the rows and of the columns, where they tell them apart."""
    names = np.asarray(X.columns)
    columns_are_names = len(names) > 0 and all(isinstance(name, str) for name in names)
    rows_are_names = type(X.index).__name__ != "RangeIndex" and X.index.is_unique
    rows = np.asarray(X.index) if rows_are_names and X.index.nlevels == 1 else None
    if rows is not None and rows.dtype == object:
        is_text = all(isinstance(label, str) for label in rows)
        rows = as_text(rows, of="the rows of the table") if is_text else None
    return rows, as_text(names, of="the columns of the table") if columns_are_names else None


def _is_text(kind: Any) -> bool:
    """Say whether a column type can never hold numbers."""
    return str(kind).startswith(("str", "category", "date", "time", "period", "interval"))


def _is_plain_numbers(kinds: Any) -> bool:
    return all(isinstance(kind, np.dtype) and kind.kind in "fiubc" for kind in kinds)


def _from_polars(X: Any) -> TensorInput:
    if type(X).__name__ == "LazyFrame":
        message = "A polars LazyFrame was given. Bring it into memory first with X.collect()."
        raise InvalidTypeError(message)
    if type(X).__name__ == "Series":
        message = "Expected 2D array, got 1D array instead: a polars Series. Reshape your data."
        raise InvalidInputError(message)
    if type(X).__name__ != "DataFrame":
        raise _not_tensor_like(X)
    columns = [
        name for name, kind in X.schema.items() if not (kind.is_numeric() or str(kind) == "Boolean")
    ]
    if columns:
        raise _text_columns(columns)
    return TensorInput(X.to_numpy(), None, (None, np.asarray(X.columns, dtype=str)))


def _text_columns(columns: list[Any]) -> InvalidInputError:
    shown = ", ".join(repr(column) for column in columns[:5])
    return InvalidInputError(
        f"The table has columns that are not numeric: {shown}. A table of samples x features needs "
        "numbers; a long table of events becomes a tensor with "
        "LabelledTensor.from_frame(table, modes=[...]), where modes names the column of the "
        "samples and those of the labels, or with model.align(table) for a fitted model."
    )


def _from_xarray(X: Any) -> TensorInput:
    if type(X).__name__ != "DataArray":
        message = f"An xarray {type(X).__name__} was given. Pick one of its DataArrays."
        raise InvalidTypeError(message)
    return unpack(LabelledTensor.from_xarray(X))


def _from_pydata_sparse(X: Any) -> TensorInput:
    """Read ``sparse.COO`` and what converts to it."""
    if not hasattr(X, "asformat"):
        raise _not_tensor_like(X)
    if X.fill_value != 0:
        raise _bad_fill_value(X.fill_value)
    stored = X.asformat("coo")
    return _plain(coo_array((stored.data, tuple(stored.coords)), shape=stored.shape))


def _bad_fill_value(value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"The sparse data has the fill value {value}; only 0 is supported. Subtract it first, or "
        "give dense data."
    )


def _from_pyttb(X: Any) -> TensorInput:
    if hasattr(X, "subs"):
        empty = X.subs.size == 0
        coords = np.zeros((0, len(X.shape)), int) if empty else X.subs
        values = np.zeros(0) if empty else X.vals[:, 0]
        return _plain(coo_array((values, tuple(coords.T)), shape=tuple(map(int, X.shape))))
    if isinstance(getattr(X, "data", None), np.ndarray):
        return _plain(X.data)
    message = f"A pyttb {type(X).__name__} was given; a tensor or sptensor is needed."
    raise InvalidTypeError(message)


def _from_anndata(X: Any) -> TensorInput:
    """Read an AnnData, or what is taken out of one: an array, a table, sparse data on disk."""
    if isinstance(X, np.ndarray):
        return unpack(np.asarray(X))
    if hasattr(X, "iloc"):
        return _from_pandas(X)
    if all(hasattr(type(X), name) for name in ("X", "obs_names", "var_names")):
        return unpack_anndata(X)
    if hasattr(X, "to_memory"):
        return unpack(X.to_memory())
    raise _not_tensor_like(X)


def unpack_anndata(adata: Any, layer: str | None = None) -> TensorInput:
    """Take ``X`` or a layer of an AnnData, with its names, as a tensor of the modes obs and var."""
    data = unpack(_anndata_matrix(adata, layer)).data
    names = (adata.obs_names, "obs"), (adata.var_names, "var")
    return TensorInput(data, ("obs", "var"), tuple(anndata_names(*each) for each in names))


def _anndata_matrix(adata: Any, layer: str | None) -> Any:
    """Return a matrix of an AnnData as it is stored, but read if it is on disk."""
    check_anndata_layer(adata, layer)
    try:
        matrix = adata.X if layer is None else adata.layers[layer]
    except AttributeError as error:  # some versions cannot cut sparse data on disk
        message = (
            f"This part of an AnnData on disk could not be read: {error}. Bring it into memory "
            "before taking the part, with adata.to_memory()."
        )
        raise InvalidInputError(message) from error
    if matrix is None:
        message = (
            f"The AnnData has no X. Its layers are: {_anndata_layers(adata)}; "
            "polyad.io.read_anndata(adata, layer=...) takes one."
        )
        raise InvalidInputError(message)
    return np.asarray(matrix[...]) if sample_access(matrix) == "blocks" else matrix


def check_anndata_layer(adata: Any, layer: str | None) -> None:
    """Refuse a layer that an AnnData does not have; None is ``X``."""
    if layer is None or (isinstance(layer, str) and layer in adata.layers):
        return
    message = (
        f"layer={layer!r} is not a layer of the AnnData; its layers are: "
        f"{_anndata_layers(adata)}. None takes X."
    )
    raise InvalidInputError(message)


def _anndata_layers(adata: Any) -> str:
    return ", ".join(map(repr, getattr(adata, "layers", ()))) or "none"


def anndata_names(names: Any, mode: str) -> np.ndarray:
    """Return the names of cells ('obs') or genes ('var') as labels, which are text."""
    if not names.is_unique:
        message = (
            f"The {mode}_names of the AnnData are not unique: {names[names.duplicated()][0]!r} "
            f"occurs more than once. Make them unique with adata.{mode}_names_make_unique()."
        )
        raise InvalidInputError(message)
    if len(names) == 0:
        return np.zeros(0, dtype=str)
    labels = as_labels(names, name=mode)
    # Names are text in every AnnData that was saved.
    return labels if labels.dtype.kind == "U" else labels.astype(str)


_FOREIGN: dict[str, Callable[[Any], TensorInput]] = {
    "anndata": _from_anndata,
    "pandas": _from_pandas,
    "polars": _from_polars,
    "xarray": _from_xarray,
    "sparse": _from_pydata_sparse,
    "pyttb": _from_pyttb,
}
