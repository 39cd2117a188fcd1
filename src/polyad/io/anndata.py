"""AnnData in and out: a labelled tensor of it, and the results of a fit into it.

What a fit needs of an AnnData is one matrix and two lists of names, which estimators read by
themselves. Here are the tensors with more modes: layers side by side, and pseudo-bulk, the mean or
the sum over the cells of each group.

What is put into ``uns`` are numbers, text, flat arrays and dicts of these, which an ``.h5ad`` file
holds and gives back.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from scipy.sparse import coo_array, csr_array
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from polyad._version import __version__
from polyad.core.arrays import to_numpy
from polyad.data.label_values import as_labels, find_labels, shown
from polyad.data.labels import LabelledTensor
from polyad.data.readers import anndata_names, check_anndata_layer, unpack_anndata
from polyad.estimators.kruskal import KruskalResult
from polyad.exceptions import InvalidInputError, InvalidTypeError, PolyadError
from polyad.io.interchange import package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from polyad.data.readers import TensorInput

    Table = NDArray[Any]

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
    """Which group each cell is in."""

    #: The columns.
    modes: list[str]
    #: The values of each column.
    labels: list[NDArray[Any]]
    #: The groups with cells, as flat positions in the table of all groups.
    occupied: NDArray[np.int64]
    #: (len(occupied), n_cells): 1 where a cell is in a group.
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


def write_anndata(
    model: Any,
    adata: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    copy: bool = False,
) -> Any:
    """Write what a fitted model has learned into an AnnData.

    Cells and genes are matched by name; a model of data without names must have the shape of the
    AnnData. Cells that were not in the fit get the features that ``model.transform`` finds for
    them. Genes that were not in the fit get NaN, for example those left out of
    ``adata[:, adata.var['highly_variable']]``.

    Parameters
    ----------
    model : fitted estimator of polyad
        Fitted to the AnnData, to a part of it, to its tables, or to what
        :func:`~polyad.io.read_anndata` makes of it.
    adata : AnnData
        What to write to. A view becomes an AnnData of its own. Of a backed one only X is on disk,
        and the results are kept in memory.
    key : str, optional
        The name of the results, by default that of the estimator in small letters, such as
        ``'qmf'``. Results of the same name are replaced; nothing else is changed.
    layer : str, optional
        Where the data of cells is that were not in the fit, by default ``X``.
    copy : bool, default=False
        Whether to write to a copy, in memory, and return it.

    Returns
    -------
    AnnData or None
        The copy, if one was asked for.

    Notes
    -----
    For ``key='qmf'`` these are written:

    ``obsm['X_qmf']``
        The features of the cells, as ``fit_transform`` returns them. A model of groups of cells
        has none.
    ``varm['qmf']``
        The loadings of the genes: of a matrix ``components_.T``, else the factor of ``var``.
    ``uns['qmf']``
        A dict: ``method``, ``version`` of polyad, ``params`` (those that are not None; objects in
        words), ``weights``, ``objective``, ``reconstruction_err`` if there is one, ``status``,
        ``n_iter``, ``history`` (a dict of arrays), and, if there are further modes, ``factors`` and
        ``labels``, dicts with an array for each; ``tables``, the names of what is in ``varm`` and
        ``var``, if that is more than the loadings.
    ``varm['qmf_quantiles']``, ``varm['qmf_quantile_weights']``, ``var['qmf_inflation']``
        The learned transforms of :class:`~polyad.QMF` and :class:`~polyad.QMFQ`, as in their
        ``quantile_table``; of QMFQ also ``varm['qmfq_normalizing_quantiles']`` and
        ``varm['qmfq_normalizing_weights']``.

    Names tell cells apart. Names that were only counted, ``'0'``, ``'1'``, ..., are those of other
    cells in another AnnData: give cells names of their own before writing to data that the model
    was not fitted to.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from polyad import NonnegativeCP
    >>> from polyad.io import write_anndata
    >>> adata = anndata.AnnData(np.random.default_rng(0).random((20, 5)))
    >>> model = NonnegativeCP(2, random_state=0).fit(adata)
    >>> write_anndata(model, adata, key="parts")
    >>> adata.obsm["X_parts"].shape, adata.varm["parts"].shape, adata.uns["parts"]["status"]
    ((20, 2), (5, 2), 'converged')
    """
    _check_request(model, adata, copy=copy)
    name = _read_key(key, model)
    results = _collect(model, adata, name, layer)
    target = adata
    if copy:
        target = adata.to_memory(copy=True) if adata.isbacked else adata.copy()
    _write(results, target, name)
    return target if copy else None


@dataclass
class _Results:
    """What is written, under its keys."""

    uns: dict[str, Any]
    obsm: dict[str, Table] = field(default_factory=dict)
    varm: dict[str, Table] = field(default_factory=dict)
    var: dict[str, Table] = field(default_factory=dict)


def _check_request(model: Any, adata: Any, *, copy: bool) -> None:
    if not isinstance(model, KruskalResult):
        message = (
            f"model is a {type(model).__name__}; a fitted estimator of polyad is needed, such as "
            "QMF(3).fit(adata). Of a pipeline, give that step."
        )
        raise InvalidTypeError(message)
    check_is_fitted(model)
    check_anndata(adata)
    if not isinstance(copy, bool | np.bool_):
        message = f"copy={copy!r} is not accepted; give True or False."
        raise InvalidTypeError(message)
    if adata.isbacked and adata.is_view:
        message = (
            "adata is a part of an AnnData on disk, which cannot be written to. Bring it into "
            "memory before taking the part, with adata.to_memory()."
        )
        raise InvalidInputError(message)


def _read_key(key: str | None, model: KruskalResult) -> str:
    if key is None:
        return type(model).__name__.lower()
    if not isinstance(key, str):
        message = f"key={key!r} is a {type(key).__name__}; give text, such as 'qmf'."
        raise InvalidTypeError(message)
    if not key or "/" in key:
        message = f"key={key!r} is no name in an AnnData; give text without '/', such as 'qmf'."
        raise InvalidInputError(message)
    return key


def _collect(model: Any, adata: Any, key: str, layer: str | None) -> _Results:
    """Make everything that is to be written, and write nothing."""
    obs, var = _roles(model)
    _check_layer(model, adata, obs, layer)
    places = _places_of_features(model, var, adata)

    def spread(values: Any) -> Table:
        """Give every gene of the AnnData its row; NaN for those that the model does not know."""
        own = to_numpy(values)
        table = np.full((adata.n_vars, *own.shape[1:]), np.nan, dtype=own.dtype)
        table[places] = own
        return table

    results = _Results(_summary(model, {obs, var}))
    if obs is not None:
        results.obsm[f"X_{key}"] = _features(model, adata, var, layer)
    results.varm[key] = spread(model.factors_[var])
    for name, values in model._learned_tables().items():
        place = results.var if np.ndim(values) == 1 else results.varm
        place[f"{key}_{name}"] = spread(values)
    if len(results.varm) > 1 or results.var:
        # So that another model of the same name finds what to replace.
        results.uns["tables"] = np.array([*results.varm, *results.var])
    return results


def _roles(model: KruskalResult) -> tuple[int | None, int]:
    """Return which modes are cells, if any, and genes."""
    modes = model.modes_
    if modes is not None and "var" in modes:
        obs = modes.index("obs") if "obs" in modes else None
        if obs in (None, 0):
            return obs, modes.index("var")
    elif len(model.factors_) == 2:
        return 0, 1
    message = (
        f"The model has the modes {modes or len(model.factors_)}, and nothing tells which of them "
        "are those of an AnnData. Fit it to the AnnData, or to polyad.io.read_anndata(adata, ...)."
    )
    raise InvalidInputError(message)


def _check_layer(model: KruskalResult, adata: Any, obs: int | None, layer: str | None) -> None:
    """Refuse a layer that does not exist, or that could not be what the model was fitted to."""
    check_anndata_layer(adata, layer)
    if layer is not None and (obs is None or len(model.factors_) > 2):
        message = (
            f"layer={layer!r} is for models of a matrix of cells and genes; this one has the modes "
            f"{model.modes_}. Leave it out."
        )
        raise InvalidInputError(message)


def _places_of_features(model: KruskalResult, var: int, adata: Any) -> Table:
    """Return where in the AnnData the features of the model are."""
    labels = model.labels_[var]
    n_features = int(model.factors_[var].shape[0])
    if labels is None:
        if n_features != adata.n_vars:
            message = (
                f"The model was fitted to {n_features} features without names, but adata has "
                f"{adata.n_vars}. Fit it to the AnnData, adata, or to its table, adata.to_df()."
            )
            raise InvalidInputError(message)
        return np.arange(n_features)
    wanted = labels.astype(str)  # as an AnnData holds names
    places = find_labels(anndata_names(adata.var_names, "var"), wanted)
    lacking = wanted[places < 0]
    if len(lacking):
        message = (
            f"adata lacks {len(lacking)} of the {n_features} features that the model was fitted "
            f"to: {shown(lacking)}. Write to an AnnData that has them, and take a part of it "
            "afterwards."
        )
        raise InvalidInputError(message)
    return places


def _features(model: Any, adata: Any, var: int, layer: str | None) -> Table:
    """Return the features of all cells: those of the fit, or else of ``transform``."""
    fitted = to_numpy(model.factors_[0] * model.weights_[None, :])
    labels = model.labels_[0]
    if labels is None and len(fitted) != adata.n_obs:
        message = (
            f"The model was fitted to {len(fitted)} samples without names, but adata has "
            f"{adata.n_obs}. Fit it to an AnnData or a table, whose names are matched."
        )
        raise InvalidInputError(message)
    rows = np.arange(len(fitted))
    if labels is not None:
        rows = find_labels(labels.astype(str), anndata_names(adata.obs_names, "obs"))
    if is_classifier(model):
        # The factor of its samples has seen the classes: no features for anything to be learned.
        rows = np.full(adata.n_obs, -1)
    new = np.flatnonzero(rows < 0)
    features: Table = fitted[rows]
    if len(new):
        features[new] = _transformed(model, adata, var, layer, new)
    return features


def _transformed(model: Any, adata: Any, var: int, layer: str | None, cells: Table) -> Table:
    """Return the features of cells that were not in the fit."""
    modes = model.modes_ or ("obs", "var")
    wanted: Any = layer
    try:
        if "layer" in modes:
            names = model.labels_[modes.index("layer")]
            known = list(adata.layers)
            wanted = [None if n == X_LABEL and n not in known else str(n) for n in names]
        tensor = read_anndata(adata, layer=wanted).isel(obs=cells)
        own = list(model.labels_)
        if own[var] is not None:
            tensor = tensor.sel(var=own[var].astype(str).tolist())
        # With the model's own names and labels, whatever their type.
        tensor = LabelledTensor(tensor.data, modes=modes, labels=[None, *own[1:]])
        return np.asarray(to_numpy(_plain_features(model, tensor)))
    except PolyadError as error:
        message = (
            f"{len(cells)} of the {adata.n_obs} cells of adata were not in the fit, and their "
            f"features could not be computed: {error}"
        )
        raise type(error)(message) from error


def _plain_features(model: Any, tensor: LabelledTensor) -> Any:
    """Return what ``transform`` returns, as an array also if the user asked for tables."""
    features = model.transform(tensor)
    return features.to_numpy() if hasattr(features, "to_numpy") else features


def _summary(model: Any, written: set[int | None]) -> dict[str, Any]:
    """Return what is known of a fit, as a dict that a file can hold."""
    parameters = {
        name: _plain(value)
        for name, value in model.get_params(deep=False).items()
        if value is not None and name not in model._unsaved_parameters
    }
    records = model.history_.records
    columns = dict.fromkeys(name for record in records for name in record)
    summary = {
        "method": type(model).__name__,
        "version": __version__,
        "params": parameters,
        "weights": np.array(to_numpy(model.weights_)),
        "objective": float(model.objective_),
        "status": model.status_.value,
        "n_iter": int(model.n_iter_),
        "history": {
            name: np.array([record.get(name, np.nan) for record in records]) for name in columns
        },
    }
    if hasattr(model, "reconstruction_err_"):
        summary["reconstruction_err"] = float(model.reconstruction_err_)
    further = [mode for mode in range(len(model.factors_)) if mode not in written]
    if further:
        # A slash in a key would make a group of a file.
        names = {mode: model.modes_[mode].replace("/", "_") for mode in further}
        summary["factors"] = {names[m]: np.array(to_numpy(model.factors_[m])) for m in further}
        summary["labels"] = {
            names[m]: _storable(model.labels_[m]) for m in further if model.labels_[m] is not None
        }
    return summary


def _storable(labels: Table) -> Table:
    """Return labels as a file can hold them: dates as text."""
    return labels.astype(str) if labels.dtype.kind in "Mm" else labels.copy()


def _plain(value: Any) -> Any:
    """Return a parameter as a number, text or a flat array; all else in words."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, set | frozenset | range):
        value = sorted(value)
    if isinstance(value, list | tuple) and _is_flat(value):
        return np.asarray(value)
    shape = getattr(value, "shape", None)
    size = "" if shape is None else f" of shape {tuple(shape)}"
    return f"<{type(value).__name__}{size}>"


def _is_flat(values: Any) -> bool:
    kinds = (str,) if any(isinstance(value, str) for value in values) else (bool, int, float)
    return all(isinstance(value, kinds) for value in values)


def _write(results: _Results, target: Any, key: str) -> None:
    """Put everything where it belongs, in place of earlier results of the same name."""
    anndata = package("anndata", "anndata")
    before = target.uns.get(key)
    earlier = [f"X_{key}", *before.get("tables", ())] if _is_ours(before) else []
    with warnings.catch_warnings():
        # A view that is written to becomes an AnnData of its own, as the docstring says.
        warnings.simplefilter("ignore", anndata.ImplicitModificationWarning)
        target.uns[key] = results.uns
    for place in ("obsm", "varm", "var"):
        own, table = getattr(results, place), getattr(target, place)
        for name in earlier:
            # What an earlier model of another kind has left would pass for that of this one.
            if name in table and name not in own:
                del table[name]
        for name, values in own.items():
            table[name] = values


def _is_ours(value: Any) -> bool:
    """Say whether something in ``uns`` was written by this module."""
    return isinstance(value, Mapping) and {"method", "version", "params", "status"} <= set(value)
