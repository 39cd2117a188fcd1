"""LabelledTensor: an N-way array with a name for each mode and labels along it.

A table of events becomes a sparse tensor, an estimator fits it, and its factors come out with
the labels of the table. Sparse data stays sparse in everything this class does, except in
``to_dense``, which is asked for by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.data.entries import as_entries, move_entries, pick_entries, read_xarray, write_xarray
from polyad.data.label_values import (
    Unknown,
    as_labels,
    as_mode_names,
    as_positions,
    check_unknown,
    find_all,
    find_labels,
    handle_unknown,
    positions_of,
    shown,
)
from polyad.data.long_table import Duplicates, read_long_table, write_long_table
from polyad.data.preparation import Entries, Limit, read_preparation
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from scipy.sparse import coo_array, sparray, spmatrix


class ModeLabels(tuple["NDArray[Any] | None", ...]):
    """The labels of each mode, by number as in a tuple, or by the name of the mode."""

    _modes: tuple[str, ...]

    @classmethod
    def of(cls, labels: Iterable[NDArray[Any] | None], modes: tuple[str, ...]) -> ModeLabels:
        """Return labels that can be asked for by the names of their modes."""
        made = cls(labels)
        made._modes = modes
        return made

    def __getitem__(self, mode: Any) -> Any:
        """Return the labels of a mode given by number or by name, None where they are positions."""
        if not isinstance(mode, str):
            return super().__getitem__(mode)
        if mode not in self._modes:
            message = f"There is no mode {mode!r}. The modes are {list(self._modes)}."
            raise InvalidInputError(message)
        return super().__getitem__(self._modes.index(mode))

    def __reduce__(self) -> Any:
        return ModeLabels.of, (tuple(self), self._modes)


class LabelledTensor:
    """A dense or sparse N-way array whose modes have names and labels.

    Parameters
    ----------
    data : ndarray or scipy.sparse array
        At least two modes, none empty. A NumPy array, an n-D ``coo_array``, or a 2-D scipy
        sparse array of any format. float32 and float64 are kept, integers and booleans become
        float64. NaN in dense data is a missing entry. Entries of sparse data at the same
        coordinates are summed; stored zeros are kept.
    modes : sequence of str
        A name for each mode.
    labels : sequence of array-like or None, or mapping of mode name to array-like, optional
        For each mode, unique labels along it: text, integers, floats, booleans, or dates
        without time zone. A mode without labels has the positions 0, 1, ... as labels.

    Attributes
    ----------
    data : ndarray or coo_array
        The entries. Sparse data is sorted in C order and has no repeated coordinates.
    modes : tuple of str
        The names of the modes.
    labels : tuple of ndarray or None
        The labels of each mode, read-only, or None for positions: ``labels[2]``, or by the name of
        the mode, ``labels["drug"]``.

    Examples
    --------
    >>> import pandas as pd
    >>> from polyad import LabelledTensor
    >>> events = pd.DataFrame({
    ...     "patient": ["ann", "ann", "bob", "ann"],
    ...     "diagnosis": ["flu", "flu", "gout", "flu"],
    ...     "drug": ["aspirin", "codeine", "aspirin", "aspirin"],
    ... })
    >>> tensor = LabelledTensor.from_frame(events, modes=["patient", "diagnosis", "drug"])
    >>> tensor
    LabelledTensor of order 3, shape (2, 2, 2), float64, sparse: 3 entries, density 0.375
      patient: 'ann', 'bob'
      diagnosis: 'flu', 'gout'
      drug: 'aspirin', 'codeine'
    >>> tensor.sel(patient="ann").to_dense()
    array([[2., 1.],
           [0., 0.]])
    """

    def __init__(
        self,
        data: NDArray[Any] | sparray | spmatrix,
        *,
        modes: Sequence[str],
        labels: Sequence[ArrayLike | None] | Mapping[str, ArrayLike] | None = None,
    ) -> None:
        self._data = as_entries(data)
        self._modes = as_mode_names(modes)
        if len(self._modes) != self._data.ndim:
            message = (
                f"modes={list(self._modes)} for data of shape {self.shape}: give a name for each "
                f"of its {self._data.ndim} modes."
            )
            raise InvalidInputError(message)
        self._labels = tuple(
            None if given is None else as_labels(given, name=name)
            for name, given in zip(self._modes, self._per_mode(labels), strict=True)
        )
        for name, length, own in zip(self._modes, self.shape, self._labels, strict=True):
            if own is not None and len(own) != length:
                message = (
                    f"Mode {name!r} has length {length} but {len(own)} labels are given. Give "
                    "one label for each position, or None to use the positions."
                )
                raise InvalidInputError(message)

    @property
    def data(self) -> NDArray[Any] | coo_array[Any, Any]:
        """The entries, a NumPy array or a sparse ``coo_array``."""
        return self._data

    @property
    def modes(self) -> tuple[str, ...]:
        """The names of the modes."""
        return self._modes

    @property
    def labels(self) -> ModeLabels:
        """The labels of each mode, by number or by name, None where they are the positions."""
        return ModeLabels.of(self._labels, self._modes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each mode."""
        return tuple(self._data.shape)

    @property
    def ndim(self) -> int:
        """The number of modes."""
        return len(self._modes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the entries, float32 or float64."""
        return self._data.dtype

    @property
    def is_sparse(self) -> bool:
        """Whether the entries are held as a sparse ``coo_array``."""
        return not isinstance(self._data, np.ndarray)

    @classmethod
    def from_frame(  # noqa: PLR0913  (options by keyword)
        cls,
        frame: Any,
        *,
        modes: Sequence[str],
        value: str | None = None,
        duplicates: Duplicates = "sum",
        labels: Mapping[str, ArrayLike] | None = None,
        unknown: Unknown = "error",
        dtype: DTypeLike | None = None,
        entries: Entries = "sum",
        sample_total: float | None = None,
        min_samples: Limit = None,
        max_samples: Limit = None,
    ) -> LabelledTensor:
        """Build a sparse tensor from a long table: one row per entry or event.

        Parameters
        ----------
        frame : pandas.DataFrame or polars.DataFrame
            The table. Missing labels and missing or infinite values are errors.
        modes : sequence of str
            The column of each mode, at least two.
        value : str, optional
            The column of values; by default every row counts 1. Rows of value 0 are stored.
        duplicates : {"sum", "count", "error"}, default="sum"
            What to do with rows of the same labels. ``"count"`` is ``"sum"`` without values.
        labels : mapping of mode name to array-like, optional
            The labels that a mode shall have, for example those of a fitted model. By default
            the sorted labels of the column, or all categories, in their own order, of a pandas
            Categorical or polars Enum.
        unknown : {"error", "drop"}, default="error"
            What to do with rows whose label is not in ``labels``. Dropping gives an
            :class:`~polyad.exceptions.UnknownLabelWarning`.
        dtype : {float32, float64}, optional
            Type of the entries, by default that of the values, float64 for integers and counts.
        entries : {"sum", "presence", "log"}, default="sum"
            What an entry is: the sum of its rows; 1 where that is not zero; or the logarithm of one
            plus it. With the last two, a sample with many events counts for less.
        sample_total : float, optional
            What the entries of each sample are made to sum to, before logarithms: 1 makes shares.
        min_samples, max_samples : int, float, or mapping of mode name to these, optional
            Keep the labels, of all modes after the samples or of those named, that at least, and at
            most, so many samples have: a whole number of samples or a share of them, as ``min_df``
            and ``max_df`` of scikit-learn. Those of too many go first, the rare ones until all that
            are left have enough. A mode in ``labels`` keeps them. Samples without an entry
            that is left are left out, unless ``labels`` names them.

        Returns
        -------
        LabelledTensor
            Sparse, of memory proportional to the number of rows and labels.

        Notes
        -----
        ``entries`` and ``sample_total`` depend on each sample alone: new samples for a fitted model
        are read with the same, and with the labels of the model.
        """
        known = {} if labels is None else labels
        if not isinstance(known, Mapping):
            message = (
                f"labels is a {type(labels).__name__}; give a dict of the name of a mode to its "
                "labels, such as {'drug': model.labels_[2]}."
            )
            raise InvalidTypeError(message)
        limits = (min_samples, max_samples)
        preparation = read_preparation(
            *(entries, sample_total, limits), modes=as_mode_names(modes), known=set(known)
        )
        data, found = read_long_table(
            frame,
            modes=modes,
            value=value,
            duplicates=duplicates,
            labels=known,
            unknown=unknown,
            dtype=dtype,
        )
        data, found = preparation.apply(data, found)
        return cls(data, modes=modes, labels=found)

    def to_frame(self, *, value: str = "value", unused: bool = False) -> pd.DataFrame:
        """Return the stored entries, or all entries of a dense tensor, as a long table.

        The columns of labelled modes are Categoricals, so that :meth:`from_frame` gives back
        the labels in the same order.

        Parameters
        ----------
        value : str, default="value"
            Name of the column of values.
        unused : bool, default=False
            Whether the labels without entries are categories too, which makes
            :meth:`from_frame` give back all labels, and ``groupby`` give rows for them.

        Returns
        -------
        pandas.DataFrame
            One row per entry, in C order: a column for each mode, then the values.
        """
        if not isinstance(unused, bool | np.bool_):
            message = f"unused={unused!r} is a {type(unused).__name__}; give True or False."
            raise InvalidTypeError(message)
        table = write_long_table(self._data, self._modes, self._labels, value=value)
        if not unused:
            for mode, own in zip(self._modes, self._labels, strict=True):
                if own is not None:
                    table[mode] = table[mode].cat.remove_unused_categories()
        return table

    def mode_number(self, mode: int | str) -> int:
        """Return the number of a mode given by name or by number (negative from the end)."""
        if isinstance(mode, str) and mode in self._modes:
            return self._modes.index(mode)
        if isinstance(mode, int | np.integer) and -self.ndim <= mode < self.ndim:
            return int(mode) % self.ndim
        message = (
            f"There is no mode {mode!r}. The modes are {list(self._modes)}, or the numbers 0 to "
            f"{self.ndim - 1}."
        )
        raise InvalidInputError(message)

    def label_index(self, mode: int | str) -> pd.Index:
        """Return the labels of a mode, or its positions, as a pandas Index with its name."""
        import pandas as pd

        k = self.mode_number(mode)
        own, name = self._labels[k], self._modes[k]
        return pd.RangeIndex(self.shape[k], name=name) if own is None else pd.Index(own, name=name)

    def sel(self, /, **labels: Any) -> LabelledTensor:
        """Select by label.

        Parameters
        ----------
        **labels : label, list of labels, slice of labels, or boolean mask
            For each named mode. A single label drops the mode; a list keeps it, in the order of
            the list. A slice includes both ends, in the order of the labels. A boolean mask has
            one value for each position (booleans are labels where the labels are booleans).
            Text is read as a date where the labels are dates.

        Returns
        -------
        LabelledTensor
            At least two modes must be left: give a list of one label to keep a mode.
        """
        return self.isel(
            **{mode: positions_of(self.label_index(mode), x) for mode, x in labels.items()}
        )

    def isel(self, /, **positions: Any) -> LabelledTensor:
        """Select by position.

        Parameters
        ----------
        **positions : int, list of int, slice, or boolean mask
            For each named mode, as in :meth:`sel`; a slice excludes its end, as in Python.

        Returns
        -------
        LabelledTensor
            The picked positions of a mode without labels become its labels.
        """
        picks = {}
        for name, pick in positions.items():
            mode = self.mode_number(name)
            picks[mode] = as_positions(pick, self.shape[mode], name=name)
        kept = [mode for mode in range(self.ndim) if not isinstance(picks.get(mode), int)]
        if len(kept) < 2:
            message = (
                f"The selection leaves {len(kept)} of the modes {list(self._modes)}; a tensor "
                "needs two. Give a list of one label or position to keep a mode."
            )
            raise InvalidInputError(message)
        labels = []
        for mode in kept:
            own, pick = self._labels[mode], picks.get(mode)
            labels.append(own if pick is None else pick if own is None else own[pick])
        modes = [self._modes[mode] for mode in kept]
        return LabelledTensor(pick_entries(self._data, picks), modes=modes, labels=labels)

    def align(
        self,
        labels: Mapping[str, ArrayLike | None] | Sequence[ArrayLike | None],
        *,
        unknown: Unknown = "error",
    ) -> LabelledTensor:
        """Reorder, extend and cut modes so that they have exactly the given labels.

        ``model.align(tensor)`` does this for all modes of a fitted model, with one message.

        Parameters
        ----------
        labels : mapping of mode name to array-like, or sequence of array-like or None
            The labels that the modes shall have. Modes that are not named or None stay as
            they are. A given label that the tensor lacks gets zeros if the tensor is sparse and
            is an error if it is dense, where nothing says what the entries would be.
        unknown : {"error", "drop"}, default="error"
            What to do with labels of the tensor that are not given. Dropping gives an
            :class:`~polyad.exceptions.UnknownLabelWarning`.

        Returns
        -------
        LabelledTensor
            With the given labels, in the given order.
        """
        check_unknown(unknown)
        data, aligned = self._data, list(self._labels)
        for mode, given in enumerate(self._per_mode(labels)):
            if given is None:
                continue
            name, own = self._modes[mode], self.label_index(mode).to_numpy()
            aligned[mode] = wanted = as_labels(given, name=name)
            positions = find_labels(wanted, own)
            strange = positions < 0
            if isinstance(data, np.ndarray):
                lost = f"{strange.sum() * (data.size // len(own))} entries"
            else:
                lost = f"{strange[data.coords[mode]].sum()} stored entries"
            handle_unknown(
                own[strange], name=name, known=wanted, lost=lost, unknown=unknown, stacklevel=2
            )
            if isinstance(data, np.ndarray):
                data = data.take(find_all(wanted, own, name=name), axis=mode)
            else:
                data = move_entries(data, mode, positions, len(wanted))
        return LabelledTensor(data, modes=self._modes, labels=aligned)

    def to_dense(self, *, max_gb: float = 4.0) -> NDArray[Any]:
        """Return the entries as a NumPy array; of a dense tensor, the array itself.

        Parameters
        ----------
        max_gb : float, default=4.0
            Largest size, in GB, that a sparse tensor may take as a dense array.

        Returns
        -------
        ndarray
            Absent entries of a sparse tensor are 0.
        """
        if isinstance(self._data, np.ndarray):
            return self._data
        size = math.prod(self.shape) * self.dtype.itemsize / 1e9
        if size > max_gb:
            message = (
                f"A dense array of shape {self.shape} would take {size:.3g} GB, above "
                f"max_gb={max_gb}. Select a part with sel() first, or raise max_gb."
            )
            raise InvalidInputError(message)
        return self._data.toarray()

    @classmethod
    def from_xarray(cls, array: Any) -> LabelledTensor:
        """Build a tensor from an ``xarray.DataArray``.

        Parameters
        ----------
        array : xarray.DataArray
            Dimensions become modes and their coordinates labels. Data of the ``sparse`` package
            stays sparse; anything else, such as dask, is loaded as a NumPy array.

        Returns
        -------
        LabelledTensor
            Coordinates that are not the index of a dimension are left out.
        """
        data, modes, labels = read_xarray(array)
        return cls(data, modes=modes, labels=labels)

    def to_xarray(self) -> Any:
        """Return an ``xarray.DataArray``: modes as dimensions, labels as coordinates.

        Returns
        -------
        xarray.DataArray
            Sparse data is held as ``sparse.COO``, for which the package sparse is needed.
        """
        return write_xarray(self._data, self._modes, self._labels)

    def __len__(self) -> int:
        """Return the number of samples, the length of the first mode."""
        return self.shape[0]

    def __getitem__(self, samples: Any) -> LabelledTensor:
        """Select samples by position, which is how scikit-learn makes folds.

        Parameters
        ----------
        samples : int, list of int, slice, or boolean mask
            As in :meth:`isel`, for the first mode.
        """
        # scikit-learn writes X[samples, ...].
        if isinstance(samples, tuple) and len(samples) == 2 and samples[1] is Ellipsis:
            samples = samples[0]
        return self.isel(**{self._modes[0]: samples})

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        """Return dense data as an array; sparse data is never made dense unasked."""
        if not isinstance(self._data, np.ndarray):
            message = "A sparse LabelledTensor is not an array. Use its data, or to_dense()."
            raise InvalidTypeError(message)
        return np.array(self._data, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        """Describe the order, the shape, how full the tensor is, and the first labels."""
        kind = "dense"
        if not isinstance(self._data, np.ndarray):
            density = self._data.nnz / math.prod(self.shape)
            kind = f"sparse: {self._data.nnz} entries, density {density:.3g}"
        lines = [
            f"LabelledTensor of order {self.ndim}, shape {self.shape}, {self.dtype}, {kind}",
            *(
                f"  {name}: " + (f"positions 0 to {length - 1}" if own is None else shown(own))
                for name, length, own in zip(self._modes, self.shape, self._labels, strict=True)
            ),
        ]
        return "\n".join(lines)

    def _per_mode(
        self, labels: Mapping[str, ArrayLike | None] | Sequence[ArrayLike | None] | None
    ) -> list[ArrayLike | None]:
        """Return one item for each mode, None where nothing is given."""
        if labels is None:
            return [None] * self.ndim
        if isinstance(labels, Mapping):
            numbers = {self.mode_number(name): given for name, given in labels.items()}
            return [numbers.get(mode) for mode in range(self.ndim)]
        each = list(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else []
        if len(each) != self.ndim:
            message = (
                f"labels must be a list with an item (labels, or None) for each of the modes "
                f"{list(self._modes)}, or a mapping of mode name to labels; got {labels!r:.100}."
            )
            raise InvalidInputError(message)
        return each
