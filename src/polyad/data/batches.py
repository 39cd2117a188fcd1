"""Samples that are read a batch at a time: from memory, from disk, from a stream.

A :class:`SampleSource` gives the batches of a sweep over the samples, each validated like any other
input. Data on disk is read in contiguous blocks, of which two are in memory at a time: one is used
while a thread reads the next. Batches of a stream are taken as they come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device, is_numpy_array
from scipy.sparse import coo_array

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.threads import even_edges
from polyad.data.labels import LabelledTensor
from polyad.data.readers import TensorInput, is_of_mne, sample_access
from polyad.data.recordings import Recordings
from polyad.data.validation import as_tensor_input
from polyad.exceptions import InvalidInputError, InvalidTypeError, PolyadError
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Some samples."""

    #: Which samples they are, counted from the start of the source.
    positions: NDArray[np.int64]
    #: Their validated data, with the labels of these samples.
    given: TensorInput

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.positions)


class SampleSource(ABC):
    """Samples that are read a batch at a time.

    Attributes
    ----------
    head : TensorInput
        The first batch, or all data if it is in memory. It tells names, labels, sizes and the
        number type of all of it.
    n_samples : int or None
        None if only reading can tell.
    reads_once : bool
        Whether there is only one sweep.
    mixes_samples : bool
        Whether the batches of a shuffled sweep are random subsets of all samples.
    """

    head: TensorInput
    n_samples: int | None = None
    reads_once: bool = False
    mixes_samples: bool = False

    @abstractmethod
    def sweep(self, generator: np.random.Generator | None = None) -> Iterator[Batch]:
        """Give all samples once, in batches, shuffled by a generator as far as the source can."""

    def first_informative(self, generator: np.random.Generator | None = None) -> Batch:
        """Return the first batch of a sweep that is not all zero, or the first if all are."""
        first = None
        for batch in self.sweep(generator):
            first = batch if first is None else first
            if _has_content(batch.given):
                return batch
        if first is None:
            raise _no_batches()
        return first

    @property
    def n_batches(self) -> int | None:
        """The number of batches of a sweep, or None if only reading can tell."""
        return None


def open_source(
    X: Any, batch_size: int, *, allow_nan: bool, mask: Any = None, is_new: bool = False
) -> SampleSource:
    """Find out how samples can be read (``sample_access``), and read the first of them.

    ``batch_size`` is for sources that do not bring their own batches. ``is_new`` samples are for a
    model that is there: a batch of them may hold nothing.
    """
    access = sample_access(X)
    if access == "whole":
        given = as_tensor_input(X, allow_nan=allow_nan, mask=mask, is_new=is_new)
        return MemorySource(given, batch_size)
    if mask is not None:
        message = (
            "A mask was given with samples that are read in batches. Mark missing entries by NaN "
            "in the batches, or give all data in memory."
        )
        raise InvalidInputError(message)
    if access == "blocks":
        X = Recordings(X) if is_of_mne(X) else X
        return BlockSource(X, batch_size, allow_nan=allow_nan, is_new=is_new)
    return StreamSource(X, allow_nan=allow_nan, reads_once=access == "once", is_new=is_new)


class MemorySource(SampleSource):
    """Data in memory, dense or sparse; a shuffled sweep draws batches from all samples.

    Batches are cut evenly: none is much smaller than the others.
    """

    mixes_samples = True

    def __init__(self, given: TensorInput, batch_size: int) -> None:
        self.head = given
        self.n_samples: int = given.shape[0]
        self._bounds = even_edges(self.n_samples, batch_size)
        self._sparse = _SparseRows(given.data) if given.is_sparse else None

    @property
    def n_batches(self) -> int:
        """The number of batches of a sweep."""
        return len(self._bounds) - 1

    def sweep(self, generator: np.random.Generator | None = None) -> Iterator[Batch]:
        """Give all samples once, in batches."""
        order = None if generator is None else generator.permutation(self.n_samples)
        for start, stop in zip(self._bounds[:-1], self._bounds[1:], strict=True):
            # Sorted, so that memory is read forwards; the order inside a batch has no meaning.
            chosen = np.arange(start, stop) if order is None else np.sort(order[start:stop])
            yield Batch(chosen, self._take(chosen))

    def _take(self, chosen: NDArray[np.int64]) -> TensorInput:
        labels = self.head.labels[0]
        mine = None if labels is None else labels[chosen]
        data: Any
        if self._sparse is not None:
            data = self._sparse.take(chosen)
        elif len(chosen) == chosen[-1] - chosen[0] + 1:
            data = self.head.data[int(chosen[0]) : int(chosen[-1]) + 1, ...]
        else:
            array = self.head.data
            xp = namespace_of(array)
            index = xp.asarray(chosen, device=device(array))
            data = xp.take(array, index, axis=0)
        return replace(self.head, data=data, labels=(mine, *self.head.labels[1:]))


class _SparseRows:
    """The entries of a sparse tensor, sorted by sample once, so that a run of samples is a view."""

    def __init__(self, data: coo_array[Any, Any]) -> None:
        tensor = SparseTensor(data)
        self._shape, self._coords, self._values = tensor.shape, tensor.coords, tensor.values
        counts = np.bincount(tensor.coords[0], minlength=tensor.shape[0])
        self._ends = np.concatenate([[0], np.cumsum(counts)])

    def take(self, chosen: NDArray[np.int64]) -> coo_array[Any, Any]:
        """Return the entries of some samples, given in increasing order."""
        starts, stops = self._ends[chosen], self._ends[chosen + 1]
        shape = (len(chosen), *self._shape[1:])
        if chosen[-1] - chosen[0] + 1 == len(chosen):
            entries: Any = slice(int(starts[0]), int(stops[-1]))
            sample = self._coords[0][entries] - self._coords[0].dtype.type(chosen[0])
        else:
            lengths = stops - starts
            sample = np.repeat(np.arange(len(chosen)), lengths)
            # The position of an entry is the start of its sample plus its rank inside it.
            before = np.cumsum(lengths) - lengths
            entries = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
        coords = (sample, *(row[entries] for row in self._coords[1:]))
        return coo_array((self._values[entries], coords), shape=shape)


class BlockSource(SampleSource):
    """An array on disk that is read by slices along its first axis: memory map, zarr, recordings.

    A thread reads the next block while one is used, and never more than that. Where the array is
    stored in chunks, blocks are whole chunks, and a chunk of more samples than a batch is read once
    and cut into batches.
    """

    def __init__(
        self, array: Any, batch_size: int, *, allow_nan: bool, is_new: bool = False
    ) -> None:
        self._array = array
        self._accepted = {"allow_nan": allow_nan, "is_new": is_new}
        self._batch_size = batch_size
        shape = tuple(int(n) for n in array.shape)
        if len(shape) < 2 or 0 in shape:
            as_tensor_input(np.zeros(shape))  # which has the error for that
        self.n_samples: int = shape[0]
        self._bounds = _block_bounds(self.n_samples, batch_size, _chunk_length(array))
        self.head = self._read(0)

    @property
    def n_batches(self) -> int:
        """The number of batches of a sweep."""
        sizes = np.diff(self._bounds)
        return sum(len(even_edges(int(size), self._batch_size)) - 1 for size in sizes)

    def sweep(self, generator: np.random.Generator | None = None) -> Iterator[Batch]:
        """Give all samples once: blocks in any order, samples shuffled inside a block."""
        n_blocks = len(self._bounds) - 1
        order = np.arange(n_blocks) if generator is None else generator.permutation(n_blocks)
        for k, given in zip(order, self._read_ahead(order), strict=True):
            block = MemorySource(given, self._batch_size)
            inner = generator if block.n_batches > 1 else None
            for batch in block.sweep(inner):
                yield replace(batch, positions=batch.positions + int(self._bounds[k]))

    def _read_ahead(self, order: NDArray[np.int64]) -> Iterator[TensorInput]:
        """Give blocks in an order; while one is used, the next is read."""
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._read, int(order[0]))
            for k in order[1:]:
                given = ahead.result()
                ahead = reader.submit(self._read, int(k))
                yield given
                del given  # so that the consumer alone holds it
            yield ahead.result()

    def _read(self, k: int) -> TensorInput:
        start, stop = int(self._bounds[k]), int(self._bounds[k + 1])
        try:
            read = self._array[start:stop]
            read = read if isinstance(read, LabelledTensor) else np.asarray(read)
            given = as_tensor_input(read, **self._accepted)
        except PolyadError as error:
            where = f"block {k}, samples {start} to {stop - 1}"
            raise _named(error, where) from error
        return given if k == 0 else replace(given, data=matching(given.data, self.head.data))


class StreamSource(SampleSource):
    """Batches as they come: a list, a generator, anything that can be iterated over, a callable.

    All have the same modes after the first. ``reads_once`` says that they are gone once read.
    """

    def __init__(
        self, batches: Any, *, allow_nan: bool, reads_once: bool, is_new: bool = False
    ) -> None:
        self._batches = batches
        self._accepted = {"allow_nan": allow_nan, "is_new": is_new}
        self.reads_once = reads_once
        # Batches of a stream that were looked at before its only sweep.
        self._seen: list[TensorInput] = []
        self._sizes: list[int] | None = None
        # The samples of the first sweep that came to its end.
        self._total: int | None = None
        if isinstance(batches, (list, tuple)):
            self._sizes = [int(item.shape[0]) for item in batches]
            self.n_samples = sum(self._sizes)
        first = next(self._items(), None)
        if first is None:
            raise _no_batches()
        self.head = self._validated(first, 0)
        if reads_once:
            self._seen.append(self.head)

    @property
    def n_batches(self) -> int | None:
        """The number of batches of a sweep, for a list."""
        return None if self._sizes is None else len(self._sizes)

    def _items(self) -> Iterator[Any]:
        opened: Iterable[Any] = self._batches() if callable(self._batches) else self._batches
        return iter(opened)

    def sweep(self, generator: np.random.Generator | None = None) -> Iterator[Batch]:
        """Give all batches once; only those of a list are shuffled."""
        if self._sizes is not None:
            yield from self._sweep_of_list(self._sizes, generator)
            return
        position = number = 0
        for given in self._read():
            positions = np.arange(position, position + given.shape[0])
            yield Batch(positions, given)
            position, number = position + given.shape[0], number + 1
        if number == 0:
            raise _no_batches()
        self._total = position if self._total is None else self._total
        if position != self._total:
            message = (
                f"The stream gave {position} samples in this sweep, but {self._total} in an "
                "earlier one. Every sweep must give the same samples: let each call open the "
                "stream anew, or use partial_fit for samples that arrive over time."
            )
            raise InvalidInputError(message)

    def first_informative(self, generator: np.random.Generator | None = None) -> Batch:
        """As for every source; what was read of a stream that reads once is kept for its sweep."""
        if not self.reads_once:
            return super().first_informative(generator)
        items = self._items()
        while not _has_content(self._seen[-1]):
            item = next(items, None)
            if item is None:
                break
            self._seen.append(self._validated(item, len(self._seen)))
        found = self._seen[-1]
        first = sum(given.shape[0] for given in self._seen[:-1])
        return Batch(np.arange(first, first + found.shape[0]), found)

    def _sweep_of_list(
        self, sizes: Sequence[int], generator: np.random.Generator | None
    ) -> Iterator[Batch]:
        order = np.arange(len(sizes)) if generator is None else generator.permutation(len(sizes))
        starts = np.cumsum([0, *sizes])
        for k in order:
            given = self._validated(self._batches[k], int(k))
            yield Batch(np.arange(starts[k], starts[k + 1]), given)

    def _read(self) -> Iterator[TensorInput]:
        number = 0
        while self._seen:
            yield self._seen.pop(0)
            number += 1
        for item in self._items():
            yield self._validated(item, number)
            number += 1

    def _validated(self, item: Any, number: int) -> TensorInput:
        where = f"batch {number}"
        if isinstance(item, (list, tuple)):
            message = (
                f"In {where}: it is a {type(item).__name__}, not an array. Give one array of shape "
                "(n_samples, n_1, ...) for each batch; of a loader that gives lists, take the "
                "first item of each."
            )
            raise InvalidTypeError(message)
        try:
            given = as_tensor_input(item, **self._accepted)
        except PolyadError as error:
            raise _named(error, where) from error
        if hasattr(item, "columns"):
            given = replace(given, modes=None)  # tables change the names of their axes easily
        if not hasattr(self, "head"):
            return given
        if given.shape[1:] != self.head.shape[1:]:
            message = (
                f"In {where}: it has the shape {given.shape}, but the first batch had the shape "
                f"{self.head.shape}. All modes after the samples must have the same size."
            )
            raise InvalidInputError(message)
        self._check_labels(given, where)
        return replace(given, data=matching(given.data, self.head.data))

    def _check_labels(self, given: TensorInput, where: str) -> None:
        """Refuse batches whose names or labels are not those of the first."""
        mine, theirs = self.head.labels[1:], given.labels[1:]
        different = [
            mode
            for mode, (a, b) in enumerate(zip(mine, theirs, strict=True), start=1)
            if (a is not b) and (a is None or b is None or not np.array_equal(a, b))
        ]
        if different or given.modes != self.head.modes:
            what = f"labels of mode {different[0]}" if different else f"modes {given.modes}"
            message = (
                f"In {where}: the {what} are not those of the first batch. Bring every batch to "
                "the same labels first, for example with LabelledTensor.align."
            )
            raise InvalidInputError(message)
        kinds = [
            None if own is None else own.dtype.kind
            for own in (self.head.labels[0], given.labels[0])
        ]
        if kinds[0] != kinds[1]:
            message = (
                f"In {where}: the labels of the samples are of another type than those of the "
                "first batch, or one of the two has none. Give all batches labels of one type, or "
                "none."
            )
            raise InvalidInputError(message)


def matching(data: Any, like: Any) -> Any:
    """Bring data to the namespace, device and number type of other data; sparse stays sparse."""
    reference: Array = like.data if isinstance(like, coo_array) else like
    if isinstance(data, coo_array):
        if not is_numpy_array(reference):
            message = (
                "A sparse batch was given after torch or other arrays. Give dense batches, or "
                "begin with NumPy data."
            )
            raise InvalidInputError(message)
        return data.astype(reference.dtype, copy=False)
    xp = namespace_of(reference)
    own = data if namespace_of(data) is xp else to_numpy(data)
    with np.errstate(over="ignore"):
        cast = xp.asarray(own, dtype=reference.dtype, device=device(reference))
    if cast is not data and bool(xp.any(xp.isinf(cast))):
        message = (
            f"The batch has numbers beyond {reference.dtype}, the type of the data before it. "
            "Scale it as that data was scaled."
        )
        raise InvalidInputError(message)
    return cast


def _block_bounds(n: int, batch_size: int, chunk: int | None) -> NDArray[np.int64]:
    """Return the bounds of the blocks that are read at a time."""
    if chunk is None:
        return even_edges(n, batch_size)
    length = chunk * max(1, batch_size // chunk)
    return np.append(np.arange(0, n, length), n)


def _chunk_length(array: Any) -> int | None:
    """Return how many samples are stored together, if that is known."""
    chunks = getattr(array, "chunks", None)
    if isinstance(chunks, (tuple, list)) and chunks and isinstance(chunks[0], (int, np.integer)):
        return max(1, int(chunks[0]))
    return None


def _has_content(given: TensorInput) -> bool:
    stored = given.data.data if given.is_sparse else given.data
    xp = namespace_of(stored)
    return bool(xp.any((stored != 0) & ~xp.isnan(stored)))


def _named(error: PolyadError, where: str) -> PolyadError:
    """Return an error that says which batch it is about."""
    return type(error)(f"In {where} (positions count inside it): {error}")


def _no_batches() -> InvalidInputError:
    return InvalidInputError(
        "The stream gave no batch. If it can be read only once, give a callable that opens it "
        "anew, such as lambda: read_batches(path), or set max_iter=1 and give it unread."
    )
