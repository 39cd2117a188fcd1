"""AnnData to a labelled tensor: one matrix, several layers, or groups of cells.

What a fit needs of an AnnData is one matrix and two lists of names, which estimators read by
themselves. Here are the tensors with more modes: layers side by side, and pseudo-bulk, the mean or
the sum over the cells of each group.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from scipy.sparse import coo_array, csr_array

from polyad.data.label_values import as_labels
from polyad.data.labels import LabelledTensor
from polyad.data.readers import unpack_anndata
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.io.interchange import package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from polyad.data.readers import TensorInput

Aggregate = Literal["mean", "sum"]

# Names of modes that say what a mode of a model is.
_RESERVED = ("obs", "var", "layer")
# What stands for X among the labels of layers.
X_LABEL = "X"
# The largest dense array that is made of groups, in numbers (4 GiB of float64).
_LARGEST_DENSE = 2**29


def read_anndata(
    adata: Any,
    *,
    layer: str | Sequence[str | None] | None = None,
    by: str | Sequence[str] | None = None,
    aggregate: Aggregate = "mean",
) -> LabelledTensor:
    """Return data of an AnnData as a labelled tensor.

    An AnnData can be given to ``fit`` as it is; this is for its layers, and for groups of cells.

    Parameters
    ----------
    adata : AnnData or path
        The data, also backed, or the path of an ``.h5ad`` file or a ``.zarr`` store.
    layer : str or sequence of str, optional
        The layer to take, by default ``X``. A list of layers becomes a further mode, ``layer``, the
        last one; None in it stands for ``X``, which is then labelled ``'X'``.
    by : str or sequence of str, optional
        Columns of ``obs``, such as ``['donor', 'cell_type']``. Each becomes a mode in place of the
        cells, whose values are aggregated (pseudo-bulk). The first one is mode 0, the samples.
    aggregate : {'mean', 'sum'}, default='mean'
        What is taken over the cells of a group. A group without cells has no mean: its entries are
        NaN, that is, missing. Its sum is zero. What is NaN in one cell is NaN in its group.

    Returns
    -------
    LabelledTensor
        The modes are ``obs`` and ``var``, with their names as labels, or those of ``by`` and
        ``var``. Sparse data stays sparse, except for means, which are dense. Categories keep their
        order, those without any cell are left out; other values are sorted.

    Examples
    --------
    >>> import anndata, numpy as np, pandas as pd
    >>> from polyad.io import read_anndata
    >>> obs = pd.DataFrame(
    ...     {"donor": ["ann", "ann", "bob"], "type": ["B", "T", "T"]}, index=["c1", "c2", "c3"]
    ... )
    >>> var = pd.DataFrame(index=["CD3E", "CD19"])
    >>> adata = anndata.AnnData(np.array([[0.0, 2.0], [4.0, 0.0], [6.0, 1.0]]), obs=obs, var=var)
    >>> read_anndata(adata, by=["donor", "type"])
    LabelledTensor of order 3, shape (2, 2, 2), float64, dense
      donor: 'ann', 'bob'
      type: 'B', 'T'
      var: 'CD3E', 'CD19'
    """
    if aggregate not in get_args(Aggregate):
        message = f"aggregate={aggregate!r} has no meaning; give 'mean' or 'sum'."
        raise InvalidInputError(message)
    adata = _opened(adata)
    names = _layer_names(layer)
    groups = None if by is None else _read_groups(adata, by)
    modes = ["obs", "var"]
    labels: list[ArrayLike | None] = []
    tables = []
    for name in names:
        given = unpack_anndata(adata, name)
        tables.append(given.data if groups is None else groups.reduce(given, aggregate))
        labels = list(given.labels)
    if groups is not None:
        modes, labels = [*groups.modes, "var"], [*groups.labels, labels[1]]
    if layer is None or isinstance(layer, str):
        return LabelledTensor(tables[0], modes=modes, labels=labels)
    titles = np.asarray([X_LABEL if name is None else name for name in names])
    return LabelledTensor(_stacked(tables), modes=[*modes, "layer"], labels=[*labels, titles])


def is_anndata(value: Any) -> bool:
    """Say whether something is an AnnData, without importing its package."""
    return any(
        kind.__name__ == "AnnData" and kind.__module__.partition(".")[0] == "anndata"
        for kind in type(value).__mro__
    )


def check_anndata(value: Any) -> None:
    """Refuse what is no AnnData."""
    if not is_anndata(value):
        message = (
            f"A {type(value).__name__} was given; an AnnData is needed. Make one of an array with "
            "anndata.AnnData(array, obs=..., var=...)."
        )
        raise InvalidTypeError(message)


def _opened(adata: Any) -> Any:
    """Return an AnnData, read if a path was given."""
    if not isinstance(adata, str | os.PathLike):
        check_anndata(adata)
        return adata
    anndata = package("anndata", "anndata")
    path = Path(adata)
    readers = {".h5ad": anndata.read_h5ad, ".zarr": anndata.read_zarr}
    if path.suffix not in readers:
        message = f"{str(path)!r} is no .h5ad file and no .zarr store; read it with anndata first."
        raise InvalidInputError(message)
    return readers[path.suffix](path)


def _layer_names(layer: str | Sequence[str | None] | None) -> list[str | None]:
    """Return the layers that are read; None is X."""
    if layer is None or isinstance(layer, str):
        return [layer]
    if not isinstance(layer, list | tuple) or not all(
        name is None or isinstance(name, str) for name in layer
    ):
        message = f"layer={layer!r:.100} is not the name of a layer, nor a list of names."
        raise InvalidTypeError(message)
    if not layer:
        message = "layer=[] names no layer. Give one or more, or None for X."
        raise InvalidInputError(message)
    return list(layer)


def _stacked(tables: list[Any]) -> Any:
    """Return arrays of one shape as the slices of a new last mode."""
    if not all(isinstance(table, coo_array) for table in tables):
        # One of them is dense already: so large an array is no surprise.
        return np.stack([t.toarray() if isinstance(t, coo_array) else t for t in tables], axis=-1)
    coords = [np.concatenate(rows) for rows in zip(*(t.coords for t in tables), strict=True)]
    last = np.repeat(np.arange(len(tables)), [t.nnz for t in tables])
    values = np.concatenate([t.data for t in tables])
    return coo_array((values, (*coords, last)), shape=(*tables[0].shape, len(tables)))


@dataclass(frozen=True)
class _Groups:
    """Which group each cell is in.

    Attributes
    ----------
    modes : list of str
        The columns.
    labels : list of array
        The values of each column.
    occupied : array of int
        The groups with cells, as flat positions in the table of all groups.
    members : csr_array of shape (len(occupied), n_cells)
        1 where a cell is in a group.
    """

    modes: list[str]
    labels: list[NDArray[Any]]
    occupied: NDArray[np.int64]
    members: csr_array[Any]

    def reduce(self, given: TensorInput, aggregate: Aggregate) -> Any:
        """Return the aggregated values, of shape (*groups, n_vars)."""
        sizes = tuple(len(own) for own in self.labels)
        n_vars = given.shape[1]
        is_float = given.data.dtype in (np.float32, np.float64)
        dtype = given.data.dtype if is_float else np.float64
        # Sums of many small numbers are taken in float64.
        totals = self.members @ (given.data.tocsr() if given.is_sparse else given.data)
        if aggregate == "sum" and given.is_sparse:
            entries = totals.tocoo()
            group = np.unravel_index(self.occupied[entries.coords[0]], sizes)
            coords = (*group, entries.coords[1])
            return coo_array((entries.data.astype(dtype), coords), shape=(*sizes, n_vars))
        self._check_size((*sizes, n_vars))
        totals = totals.toarray() if given.is_sparse else totals
        is_mean = aggregate == "mean"
        result = np.full((math.prod(sizes), n_vars), np.nan if is_mean else 0.0, dtype=dtype)
        counts = self.members.sum(axis=1)[:, None]
        result[self.occupied] = totals / counts if is_mean else totals
        return result.reshape(*sizes, n_vars)

    def _check_size(self, shape: tuple[int, ...]) -> None:
        if math.prod(shape) > _LARGEST_DENSE:
            message = (
                f"A dense array of the groups of {self.modes}, of shape {shape}, would take "
                f"{math.prod(shape) * 8 / 2**30:.3g} GiB. Group by columns with fewer values, or "
                "take fewer genes."
            )
            raise InvalidInputError(message)


def _read_groups(adata: Any, by: str | Sequence[str]) -> _Groups:
    """Sort the cells into groups."""
    columns = [by] if isinstance(by, str) else list(by) if isinstance(by, list | tuple) else []
    if not columns or not all(isinstance(name, str) for name in columns):
        message = (
            f"by={by!r:.100} is not the name of a column of obs, nor a list of one or more. None "
            "keeps single cells."
        )
        raise InvalidInputError(message)
    codes, labels = zip(*(_read_column(adata, name) for name in columns), strict=True)
    flat: NDArray[Any] = np.asarray(np.ravel_multi_index(codes, tuple(len(own) for own in labels)))
    occupied, group = np.unique(flat, return_inverse=True)
    n_cells = len(group)
    ones: Any = (np.ones(n_cells), (group, np.arange(n_cells)))
    members: csr_array[Any] = csr_array(ones, shape=(len(occupied), n_cells))
    return _Groups(columns, list(labels), occupied, members)


def _read_column(adata: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the number of the value of each cell, and the values."""
    import pandas as pd

    if name not in adata.obs.columns:
        columns = ", ".join(map(repr, adata.obs.columns)) or "none"
        message = f"by={name!r} is not a column of obs; its columns are: {columns}."
        raise InvalidInputError(message)
    if name in _RESERVED:
        message = (
            f"by={name!r} is the name of a mode of every AnnData. Give the column another name."
        )
        raise InvalidInputError(message)
    column = adata.obs[name]
    missing = int(column.isna().sum())
    if missing:
        message = (
            f"The column {name!r} of obs is missing for {missing} cells, which are in no group. "
            f"Leave them out: adata[adata.obs[{name!r}].notna()]."
        )
        raise InvalidInputError(message)
    if len(column) == 0:
        message = "The AnnData has no cells: there is nothing to group."
        raise InvalidInputError(message)
    groups = pd.Categorical(column).remove_unused_categories()
    return np.asarray(groups.codes), as_labels(groups.categories, name=name)
