"""Samples a batch at a time: each is read once a sweep, whatever it is read from."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import xarray as xr
import zarr
from scipy.sparse import coo_array, csr_array

from polyad import LabelledTensor
from polyad.data.batches import BlockSource, MemorySource, StreamSource, open_source
from polyad.data.readers import sample_access
from polyad.exceptions import InvalidInputError, InvalidTypeError

X = np.random.default_rng(0).random((50, 4, 3))


class Chunked:
    """An array on disk as h5py has it, which counts what is read of it."""

    def __init__(self, array, chunks=None):
        self.array, self.chunks = array, chunks
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.reads = []

    def __getitem__(self, key):
        part = self.array[key]
        self.reads.append(part.shape[0])
        return part


class Loader:
    def __iter__(self):
        return iter([X[:20], X[20:]])


def memmap(tmp_path, array=X):
    np.save(tmp_path / "data.npy", array)
    return np.load(tmp_path / "data.npy", mmap_mode="r")


@pytest.mark.parametrize(
    ("data", "access"),
    [
        (X, "whole"),
        (X.tolist(), "whole"),
        (tuple(X[:, 0].tolist()), "whole"),
        ([X[0, 0], X[1, 0]], "whole"),
        ([], "whole"),
        (coo_array(X), "whole"),
        (csr_array(X[:, 0]), "whole"),
        (torch.tensor(X), "whole"),
        (np.ma.masked_invalid(X), "whole"),
        (pd.DataFrame(X[:, 0]), "whole"),
        (pl.DataFrame(X[:, 0]), "whole"),
        (xr.DataArray(X), "whole"),
        (LabelledTensor(X, modes=list("abc")), "whole"),
        ("text", "whole"),
        ({"a": X}, "whole"),
        ({1.0, 2.0}, "whole"),
        (range(5), "whole"),
        (3.0, "whole"),
        (None, "whole"),
        (Chunked(X), "blocks"),
        (zarr.array(X), "blocks"),
        ([X[:20], X[20:]], "batches"),
        ((coo_array(X), coo_array(X)), "batches"),
        ([torch.tensor(X)], "batches"),
        ([pd.DataFrame(X[:, 0])], "batches"),
        ([pl.DataFrame(X[:, 0])], "batches"),
        ([LabelledTensor(X, modes=list("abc"))], "batches"),
        (lambda: iter([X]), "batches"),
        (Loader(), "batches"),
        (iter([X]), "once"),
        ((part for part in [X]), "once"),
    ],
)
def test_how_samples_are_read(data, access):
    assert sample_access(data) == access


def test_a_memory_map_is_read_in_blocks(tmp_path):
    assert sample_access(memmap(tmp_path)) == "blocks"


def sources(tmp_path):
    yield MemorySource, X
    yield MemorySource, coo_array(X)
    yield MemorySource, torch.tensor(X)
    yield BlockSource, memmap(tmp_path)
    yield BlockSource, zarr.array(X, chunks=(6, 4, 3))
    yield BlockSource, zarr.array(X, chunks=(25, 2, 3))
    yield BlockSource, Chunked(X, chunks=(100, 4, 3))
    yield StreamSource, [X[:9], X[9:30], X[30:]]
    yield StreamSource, [coo_array(X[:9]), coo_array(X[9:])]
    yield StreamSource, lambda: (X[k : k + 10] for k in range(0, 50, 10))
    yield StreamSource, (X[k : k + 10] for k in range(0, 50, 10))


def gathered(source, generator):
    result = np.full(X.shape, np.nan)
    sizes = []
    for batch in source.sweep(generator):
        data = batch.given.data
        dense = data.toarray() if isinstance(data, coo_array) else np.asarray(data)
        assert np.isnan(result[batch.positions]).all()
        result[batch.positions] = dense
        sizes.append(batch.size)
    return result, sizes


@pytest.mark.parametrize("seed", [None, 0])
def test_every_sample_comes_once(tmp_path, seed):
    for kind, data in sources(tmp_path):
        source = open_source(data, 8, allow_nan=False)
        assert isinstance(source, kind)
        generator = None if seed is None else np.random.default_rng(seed)
        source.first_informative(generator)  # looking changes nothing
        generator = None if seed is None else np.random.default_rng(seed)
        result, sizes = gathered(source, generator)
        assert np.array_equal(result, X)
        assert source.n_batches in (None, len(sizes))
        assert source.n_samples in (None, 50)
        if kind is not StreamSource:
            assert max(sizes) <= 8


def test_batches_in_memory_are_cut_evenly_and_mixed():
    source = MemorySource(open_source(X, 8, allow_nan=False).head, 8)
    _, sizes = gathered(source, None)
    assert max(sizes) - min(sizes) <= 1
    first, other = (
        next(source.sweep(np.random.default_rng(seed))).positions.tolist() for seed in (0, 1)
    )
    assert first == sorted(first)
    assert first != other


def test_views_are_taken_where_nothing_is_shuffled():
    source = open_source(X, 8, allow_nan=False)
    assert all(np.shares_memory(batch.given.data, X) for batch in source.sweep())
    sparse = open_source(coo_array(X), 10, allow_nan=False)
    values = {id(batch.given.data.data.base) for batch in sparse.sweep()}
    assert len(values) == 1


@pytest.mark.parametrize(
    ("chunk", "batch_size", "block"), [(None, 8, 8), (5, 8, 5), (4, 8, 8), (20, 8, 20), (80, 8, 50)]
)
def test_blocks_are_whole_chunks(chunk, batch_size, block):
    array = Chunked(X, None if chunk is None else (chunk, 4, 3))
    source = open_source(array, batch_size, allow_nan=False)
    array.reads.clear()
    _, sizes = gathered(source, np.random.default_rng(0))
    assert max(array.reads) == block
    assert sum(array.reads) == 50  # no sample is read twice in a sweep
    assert max(sizes) <= batch_size


def test_samples_of_a_large_chunk_are_shuffled():
    source = open_source(Chunked(X, (25, 4, 3)), 8, allow_nan=False)
    positions = next(source.sweep(np.random.default_rng(0))).positions
    assert (np.diff(positions) > 1).any()
    assert (positions < 25).all() or (positions >= 25).all()


def test_a_stream_is_read_no_further_than_needed():
    read = []

    def batches():
        for k in range(5):
            read.append(k)
            yield np.zeros((3, 4, 3)) if k < 2 else X[:3]

    source = open_source(batches(), 8, allow_nan=False)
    assert read == [0]
    found = source.first_informative()
    assert read == [0, 1, 2]
    assert found.positions.tolist() == [6, 7, 8]
    assert [batch.positions[0] for batch in source.sweep()] == [0, 3, 6, 9, 12]


def test_number_types_follow_the_first_batch():
    batches = [X[:5].astype(np.float32), X[5:9], (X[9:12] * 100).astype(int), torch.tensor(X[12:])]
    source = open_source(batches, 8, allow_nan=False)
    assert {batch.given.data.dtype for batch in source.sweep()} == {np.dtype(np.float32)}
    whole = open_source(Chunked((X * 100).astype(np.int16)), 8, allow_nan=False)
    assert {batch.given.data.dtype for batch in whole.sweep()} == {np.dtype(np.float64)}


def bad(position, value):
    array = X.copy()
    array[position] = value
    return array


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([X[:5], X[5:, :2]], r"In batch 1: it has the shape \(45, 2, 3\)"),
        ([X[:5], X[5:, 0]], "In batch 1: it has the shape"),
        ([X[:5], bad((7, 1, 2), np.inf)[5:9]], r"In batch 1 .*infinity, first at \(2, 1, 2\)"),
        (
            [X[:5], bad((7, 1, 2), np.nan)[5:9]],
            r"In batch 1 .*NaN, first at \(2, 1, 2\)",
        ),
        ([X[:5], X[:0]], r"In batch 1 .*0 sample\(s\)"),
        (lambda: [X[:5], X[0]], "In batch 1"),
        (lambda: [X[:5], [X[5:]]], "In batch 1: it is a list"),
        (lambda: [X[:5], "text"], "In batch 1 .*X is a str"),
        (lambda: [X[:5], X[5:].astype(complex)], "In batch 1 .*Complex"),
        (lambda: [], "gave no batch"),
        (iter([]), "gave no batch"),
        (iter([np.zeros(4)]), "In batch 0 .*Expected 2D array"),
        ([torch.tensor(X), coo_array(X)], "sparse batch was given after torch"),
        (Chunked(bad((30, 1, 2), np.inf)), r"In block 4, samples 28 to 34 .*at \(2, 1, 2\)"),
        (Chunked(bad((0, 0, 0), np.nan)), r"In block 0, samples 0 to 6 .*NaN"),
        (Chunked(X[:0]), r"0 sample\(s\)"),
        (Chunked(X[0, 0]), "Expected 2D array"),
        (Chunked(np.array(3.0)), "Expected 2D array"),
        (Chunked(X.astype(str)), "does not hold numbers"),
        (zarr.array(bad((30, 1, 2), np.inf), chunks=(6, 4, 3)), "In block 5, samples 30 to 35"),
    ],
)
def test_bad_batches_are_named(data, says):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=says):
        list(open_source(data, 8, allow_nan=False).sweep())


def test_a_stream_that_runs_dry_says_so():
    spent = iter([X[:5], X[5:]])
    source = open_source(lambda: spent, 8, allow_nan=False)
    list(source.sweep())
    with pytest.raises(InvalidInputError, match="gave no batch"):
        list(source.sweep())


def test_masks_are_for_data_in_memory():
    assert open_source(X, 8, allow_nan=False, mask=X > 0.1).n_samples == 50
    with pytest.raises(InvalidInputError, match="Mark missing entries by NaN"):
        open_source([X], 8, allow_nan=True, mask=X > 0.1)


def labelled(names, columns="xyz"):
    part = X[: len(names)]
    return LabelledTensor(part, modes=list("abc"), labels=[list(names), None, list(columns)])


def test_batches_with_other_labels_are_refused():
    source = open_source([labelled("pqr"), labelled("st")], 8, allow_nan=False)
    assert [batch.given.labels[0].tolist() for batch in source.sweep()] == [list("pqr"), list("st")]
    for other in (labelled("st", "zyx"), X[:3]):
        with pytest.raises(InvalidInputError, match="In batch 1: the labels of mode 2"):
            list(open_source([labelled("pqr"), other], 8, allow_nan=False).sweep())
    renamed = LabelledTensor(X[:2], modes=list("ABC"), labels=[None, None, list("xyz")])
    with pytest.raises(InvalidInputError, match="the modes"):
        list(open_source([labelled("pqr"), renamed], 8, allow_nan=False).sweep())
