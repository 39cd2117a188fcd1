"""LabelledTensor: names and labels per mode, selection, alignment, other forms."""

import datetime
import pickle
import sys
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sparse
import xarray as xr

from polyad.cp.supervised.classifier import split_unlabelled
from polyad.data.label_values import joined_labels, shown
from polyad.data.labels import LabelledTensor
from polyad.data.validation import as_tensor_input
from polyad.exceptions import (
    InvalidInputError,
    InvalidTypeError,
    MissingPackageError,
    UnknownLabelWarning,
)
from tests.data.examples import MODES, to_sparse


def both(tensor):
    return [tensor, to_sparse(tensor)]


def assert_same(a, b):
    assert a.modes == b.modes
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert a.is_sparse == b.is_sparse
    for x, y in zip(a.labels, b.labels, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype.kind == y.dtype.kind
            np.testing.assert_array_equal(x, y)
    if a.is_sparse:
        for x, y in zip(a.data.coords, b.data.coords, strict=True):
            np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(a.data.data, b.data.data)
    else:
        np.testing.assert_array_equal(a.data, b.data)


# --- construction ---


def test_attributes(cube):
    assert cube.modes == ("a", "b", "c")
    assert (cube.shape, cube.ndim, cube.dtype, cube.is_sparse) == ((2, 3, 4), 3, np.float64, False)
    assert cube.labels[0].dtype.kind == "U"
    assert cube.labels[1].tolist() == [10, 20, 30]
    assert cube.labels[2] is None


def test_labels_by_name_and_none():
    tensor = LabelledTensor(np.eye(2), modes=["a", "b"], labels={"b": ["x", "y"]})
    assert tensor.labels[0] is None
    assert tensor.labels[1].tolist() == ["x", "y"]
    assert LabelledTensor(np.eye(2), modes=["a", "b"]).labels == (None, None)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("u1", "f8"), ("?", "f8")],
)
@pytest.mark.parametrize("kind", [np.asarray, sp.coo_array])
def test_dtype(given, kept, kind):
    assert LabelledTensor(kind(np.eye(2, dtype=given)), modes=["a", "b"]).dtype == np.dtype(kept)


def test_half_precision_becomes_float64():
    assert LabelledTensor(np.eye(2, dtype="f2"), modes=["a", "b"]).dtype == np.float64


def test_float_data_is_not_copied():
    data = np.eye(2)
    assert LabelledTensor(data, modes=["a", "b"]).data is data


def test_labels_by_the_name_of_their_mode(cube):
    for k, name in enumerate(cube.modes):
        np.testing.assert_array_equal(cube.labels[name], cube.labels[k])
    assert isinstance(cube.labels, tuple)
    assert len(cube.labels[1:]) == 2
    with pytest.raises(InvalidInputError, match=r"no mode 'z'. The modes are \['a', 'b', 'c'\]"):
        cube.labels["z"]
    again = pickle.loads(pickle.dumps(cube.labels))
    np.testing.assert_array_equal(again["a"], cube.labels["a"])


def test_labels_are_a_read_only_copy():
    labels = np.array(["x", "y"])
    tensor = LabelledTensor(np.eye(2), modes=["a", "b"], labels=[labels, None])
    labels[0] = "z"
    assert tensor.labels[0][0] == "x"
    with pytest.raises(ValueError, match="read-only"):
        tensor.labels[0][0] = "z"


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_matrix, sp.dok_array])
def test_2d_sparse_becomes_coo_array(kind):
    tensor = LabelledTensor(kind(np.array([[0.0, 1.0], [2.0, 0.0]])), modes=["a", "b"])
    assert isinstance(tensor.data, sp.coo_array)
    np.testing.assert_array_equal(tensor.to_dense(), [[0, 1], [2, 0]])


def test_sparse_duplicates_are_summed_and_the_argument_is_untouched():
    data = sp.coo_array((np.ones(3), ([1, 0, 1], [0, 0, 0], [1, 1, 1])), shape=(2, 2, 2))
    tensor = LabelledTensor(data, modes=["a", "b", "c"])
    assert tensor.data.nnz == 2
    assert tensor.data.has_canonical_format
    assert tensor.to_dense()[1, 0, 1] == 2
    assert data.nnz == 3


def test_nan_is_allowed_in_dense_data():
    assert np.isnan(LabelledTensor(np.full((2, 2), np.nan), modes=["a", "b"]).data).all()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["x", "y"], "U"),
        ([1, 2], "i"),
        ([1, 2.5], "f"),
        ([True, False], "b"),
        ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)], "M"),
        ([datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2)], "M"),
        ([datetime.timedelta(1), datetime.timedelta(2)], "m"),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), "M"),
        (np.array(["x", "yyy"], dtype=np.dtypes.StringDType()), "U"),
        (np.array(["x", "y"], dtype=object), "U"),
        (pd.Index(["x", "y"]), "U"),
        (pd.Series([1, 2], dtype="Int64"), "i"),
        (pd.Categorical(["x", "y"]), "U"),
        (pl.Series(["x", "y"]), "U"),
        ((2**63, 1), "u"),
    ],
)
def test_label_types(values, kind):
    tensor = LabelledTensor(np.eye(2), modes=["a", "b"], labels=[values, None])
    assert tensor.labels[0].dtype.kind == kind
    assert not tensor.labels[0].dtype.hasobject
    index = tensor.label_index("a")
    assert isinstance(index, pd.Index)
    assert index.name == "a"


@pytest.mark.parametrize(
    ("values", "error", "reason"),
    [
        (["x", "x"], InvalidInputError, "unique, but 'x' occurs more than once"),
        ([1, 1.0], InvalidInputError, "unique, but 1.0 occurs"),
        (["x"], InvalidInputError, "length 2 but 1 labels"),
        (["x", None], InvalidInputError, "1 missing labels, the first at position 1"),
        ([np.nan, 1.0], InvalidInputError, "the first at position 0"),
        (np.array(["2020", "NaT"], "M8[D]"), InvalidInputError, "missing labels"),
        ([1, "x"], InvalidTypeError, "type mixed-integer"),
        ([True, 1], InvalidTypeError, "type mixed-integer"),
        ([(1, 2), (3, 4)], InvalidTypeError, "type mixed"),
        ([b"x", b"y"], InvalidTypeError, "type bytes"),
        (np.array([1j, 2j]), InvalidTypeError, "type complex128"),
        ([2**80, 1], InvalidTypeError, "type integer beyond 64 bits"),
        ([], InvalidInputError, "No labels are given"),
        (pd.interval_range(0, 2), InvalidTypeError, "type interval"),
        (pd.date_range("2020", periods=2, tz="UTC"), InvalidTypeError, "time zone UTC"),
        (
            [pd.Timestamp("2020", tz="UTC"), pd.Timestamp("2020")],
            InvalidTypeError,
            "with time zone",
        ),
        ("xy", InvalidTypeError, "must be a list or a 1-D array, got 'xy'"),
        (np.eye(2), InvalidTypeError, "must be a list or a 1-D array"),
        (["x\0", "x"], InvalidInputError, "null character"),
    ],
)
def test_bad_labels(values, error, reason):
    with pytest.raises(error, match=f"'a'.*{reason}|{reason}.*'a'|{reason}"):
        LabelledTensor(np.eye(2), modes=["a", "b"], labels=[values, None])


@pytest.mark.parametrize(
    ("modes", "error"),
    [
        (["a"], InvalidInputError),
        (["a", "b", "c"], InvalidInputError),
        (["a", "a"], InvalidInputError),
        ("ab", InvalidTypeError),
        (["a", 1], InvalidTypeError),
        (["a", ""], InvalidTypeError),
        ([], InvalidTypeError),
        (None, InvalidTypeError),
    ],
)
def test_bad_modes(modes, error):
    with pytest.raises(error, match="modes"):
        LabelledTensor(np.eye(2), modes=modes)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        ([[1, 2]], InvalidTypeError, "got list"),
        (pd.DataFrame({"a": [1]}), InvalidTypeError, "from_frame"),
        (np.ma.masked_array(np.eye(2)), InvalidTypeError, "filled"),
        (np.eye(2) * 1j, InvalidTypeError, "dtype complex128"),
        (np.array([["a", "b"]]), InvalidTypeError, "real numbers"),
        (np.ones(3), InvalidInputError, "at least two modes"),
        (np.ones((3, 0)), InvalidInputError, "none of them empty"),
        (sp.coo_array(np.ones(3)), InvalidInputError, "at least two modes"),
    ],
)
def test_bad_data(data, error, reason):
    with pytest.raises(error, match=reason):
        LabelledTensor(data, modes=["a", "b"])


def test_labels_of_the_wrong_number_or_mode():
    for labels in ([None, None, None], "ab", 5):
        with pytest.raises(InvalidInputError, match=r"an item .* for each of the modes"):
            LabelledTensor(np.eye(2), modes=["a", "b"], labels=labels)
    with pytest.raises(InvalidInputError, match=r"no mode 'z'.*'a', 'b'"):
        LabelledTensor(np.eye(2), modes=["a", "b"], labels={"z": [1, 2]})


def test_pickle(cube):
    for tensor in both(cube):
        assert_same(pickle.loads(pickle.dumps(tensor)), tensor)


# --- selection ---


def test_mode_number(cube):
    assert [cube.mode_number(m) for m in ("a", "c", 1, -1, np.int64(2))] == [0, 2, 1, 2, 2]
    for bad in ("z", 3, -4, None, 1.0):
        with pytest.raises(InvalidInputError, match=r"no mode .*\['a', 'b', 'c'\]"):
            cube.mode_number(bad)


def test_label_index_of_positions(cube):
    index = cube.label_index("c")
    assert index.tolist() == [0, 1, 2, 3]
    assert index.name == "c"


@pytest.mark.parametrize(
    ("picks", "key"),
    [
        ({"a": "q"}, np.s_[1]),
        ({"b": 20}, np.s_[:, 1]),
        ({"b": [30, 10]}, np.s_[:, [2, 0]]),
        ({"b": np.array([30, 10])}, np.s_[:, [2, 0]]),
        ({"b": slice(10, 20)}, np.s_[:, :2]),
        ({"b": slice(15, None)}, np.s_[:, 1:]),
        ({"b": slice(None, None, 2)}, np.s_[:, ::2]),
        ({"a": slice("p", "p")}, np.s_[:1]),
        ({"b": [True, False, True]}, np.s_[:, [0, 2]]),
        ({"c": slice(1, 2)}, np.s_[:, :, 1:3]),
        ({"c": [2, 0], "a": ["q"]}, np.s_[1:, :, [2, 0]]),
        ({"c": 3, "b": [20]}, np.s_[:, 1:2, 3]),
        ({}, np.s_[:]),
    ],
)
def test_sel(cube, picks, key):
    for tensor in both(cube):
        part = tensor.sel(**picks)
        np.testing.assert_array_equal(part.to_dense(), cube.data[key])
        assert part.is_sparse == tensor.is_sparse


@pytest.mark.parametrize(
    ("picks", "key"),
    [
        ({"a": -1}, np.s_[1]),
        ({"b": [2, -3]}, np.s_[:, [2, 0]]),
        ({"b": slice(0, 2)}, np.s_[:, :2]),
        ({"b": slice(None, None, -1)}, np.s_[:, ::-1]),
        ({"c": np.array([True, False, False, True])}, np.s_[:, :, [0, 3]]),
        ({"b": np.int64(1)}, np.s_[:, 1]),
    ],
)
def test_isel(cube, picks, key):
    for tensor in both(cube):
        np.testing.assert_array_equal(tensor.isel(**picks).to_dense(), cube.data[key])


def test_selected_labels(cube):
    part = cube.sel(b=[30, 10], c=[3, 1])
    assert part.labels[0].tolist() == ["p", "q"]
    assert part.labels[1].tolist() == [30, 10]
    assert part.labels[2].tolist() == [3, 1]  # positions become labels
    assert cube.sel(a="p").modes == ("b", "c")


def test_sel_of_dates():
    days = pd.date_range("2020-01-30", periods=4)
    tensor = LabelledTensor(np.arange(8).reshape(4, 2), modes=["day", "x"], labels=[days, None])
    for first in ("2020-02-01", np.datetime64("2020-02-01"), datetime.datetime(2020, 2, 1)):
        assert tensor.sel(day=[first]).to_dense().tolist() == [[4, 5]]
    assert tensor.sel(day=slice("2020-01-31", "2020-02-01")).shape == (2, 2)
    assert tensor.sel(day=slice("2020-02", None)).shape == (2, 2)
    assert tensor.sel(day=["2020-02-02", "2020-01-30"]).to_dense().tolist() == [[6, 7], [0, 1]]
    with pytest.raises(InvalidInputError, match="dates as labels"):
        tensor.sel(day=["monday"])


def test_sel_of_booleans_by_label():
    tensor = LabelledTensor(np.eye(2), modes=["a", "b"], labels={"a": [True, False]})
    assert tensor.sel(a=[False, True]).to_dense().tolist() == [[0, 1], [1, 0]]
    assert tensor.sel(a=[False]).to_dense().tolist() == [[0, 1]]


def test_sel_in_unsorted_labels():
    tensor = LabelledTensor(np.eye(3), modes=["a", "b"], labels={"a": ["z", "x", "y"]})
    assert tensor.sel(a=slice("z", "x")).labels[0].tolist() == ["z", "x"]
    with pytest.raises(InvalidInputError, match="cannot be cut"):
        tensor.sel(a=slice("k", "x"))


@pytest.mark.parametrize(
    ("picks", "error", "reason"),
    [
        ({"z": 1}, InvalidInputError, "no mode 'z'"),
        ({"a": "r"}, InvalidInputError, "'a' has no label 'r'.*'p', 'q'"),
        ({"b": "10"}, InvalidInputError, "no label '10'.*int64: 10, 20"),
        ({"b": [10, 11, 12]}, InvalidInputError, "no label 11, 12"),
        ({"b": [10, 10]}, InvalidInputError, "10 occurs more than once"),
        ({"b": [True, False]}, InvalidInputError, "mask for mode 'b' has 2 values"),
        ({"b": slice("x", "y")}, InvalidInputError, "cannot be cut"),
        ({"a": "p", "b": 10}, InvalidInputError, "leaves 1 of the modes.*list of one"),
        ({"b": []}, InvalidInputError, "No labels are given"),
        ({"b": slice(11, 12)}, InvalidInputError, "none of them empty"),
        ({"a": slice(1, 2)}, InvalidInputError, "cannot be cut"),
        ({"b": None}, InvalidInputError, "missing"),
    ],
)
def test_bad_sel(cube, picks, error, reason):
    for tensor in both(cube):
        with pytest.raises(error, match=reason):
            tensor.sel(**picks)


@pytest.mark.parametrize(
    ("picks", "error", "reason"),
    [
        ({"b": 3}, InvalidInputError, "length 3; position 3 is outside"),
        ({"b": [0, -4]}, InvalidInputError, "position -4 is outside"),
        ({"b": [0, -3]}, InvalidInputError, "more than once"),
        ({"b": 1.5}, InvalidTypeError, r"sel\(\) to select by label"),
        ({"a": "p"}, InvalidTypeError, r"sel\(\) to select by label"),
        ({"b": [[0]]}, InvalidTypeError, "list of integers"),
        ({"b": True}, InvalidTypeError, "list of integers"),
        ({"a": 0, "b": 0, "c": 0}, InvalidInputError, "leaves 0 of the modes"),
    ],
)
def test_bad_isel(cube, picks, error, reason):
    for tensor in both(cube):
        with pytest.raises(error, match=reason):
            tensor.isel(**picks)


def test_modes_with_any_name():
    tensor = LabelledTensor(np.eye(2), modes=["self", "a b"])
    assert tensor.sel(**{"self": [0], "a b": [1, 0]}).shape == (1, 2)
    assert tensor.isel(**{"self": [0]}).shape == (1, 2)


def test_sel_of_unlabelled_modes_longer_than_memory():
    data = sp.coo_array((np.ones(2), ([0, 2**40], [1, 1])), shape=(2**41, 2))
    part = LabelledTensor(data, modes=["a", "b"]).isel(a=[2**40, 7])
    assert part.to_dense().tolist() == [[0, 1], [0, 0]]


# --- alignment ---


def test_align_reorders_and_extends_sparse(cube):
    tensor = to_sparse(cube).align({"b": [30, 40, 10, 20], "a": ["q", "p"]})
    assert tensor.labels[1].tolist() == [30, 40, 10, 20]
    expected = np.zeros((2, 4, 4))
    expected[:, [0, 2, 3]] = cube.data[::-1][:, [2, 0, 1]]
    np.testing.assert_array_equal(tensor.to_dense(), expected)
    assert tensor.data.has_canonical_format


def test_align_reorders_dense(cube):
    tensor = cube.align([None, [30, 10, 20], None])
    np.testing.assert_array_equal(tensor.data, cube.data[:, [2, 0, 1]])
    assert tensor.labels[2] is None
    assert_same(tensor.align({"b": [10, 20, 30]}), cube)


def test_align_cannot_extend_dense(cube):
    with pytest.raises(InvalidInputError, match="no entries for 1 labels of mode 'b': 40"):
        cube.align({"b": [10, 20, 30, 40]})


def test_align_unknown(cube):
    for tensor, lost in zip(both(cube), ("16 entries", "16 stored entries"), strict=True):
        with pytest.raises(InvalidInputError, match=f"2 labels of mode 'b', with {lost}.*20, 30"):
            tensor.align({"b": [10]})
        with pytest.warns(UnknownLabelWarning, match=lost) as caught:
            part = tensor.align({"b": [10]}, unknown="drop")
        assert caught[0].filename == __file__
        np.testing.assert_array_equal(part.to_dense(), cube.data[:, :1])


def test_align_of_positions(cube):
    for tensor in both(cube):
        moved = tensor.align({"c": [3, 2, 1, 0]})
        np.testing.assert_array_equal(moved.to_dense(), cube.data[:, :, ::-1])
        assert moved.labels[2].tolist() == [3, 2, 1, 0]


def test_align_with_the_labels_of_a_fit(events):
    fitted = LabelledTensor.from_frame(events, modes=MODES)
    new = pd.DataFrame({"patient": ["eve"], "diagnosis": ["gout"], "drug": ["y"]})
    tensor = LabelledTensor.from_frame(new, modes=MODES).align([None, *fitted.labels[1:]])
    assert tensor.to_dense().tolist() == [[[0, 0], [0, 1]]]
    again = LabelledTensor.from_frame(
        new, modes=MODES, labels=dict(zip(MODES[1:], fitted.labels[1:], strict=True))
    )
    assert_same(tensor, again)


@pytest.mark.parametrize(
    ("labels", "unknown", "reason"),
    [
        ({"z": [1]}, "error", "no mode 'z'"),
        ([None], "error", "an item .* for each of the modes"),
        ({"b": [10, 10]}, "error", "unique"),
        ({}, "keep", "unknown='keep'"),
    ],
)
def test_bad_align(cube, labels, unknown, reason):
    with pytest.raises(InvalidInputError, match=reason):
        cube.align(labels, unknown=unknown)


# --- other forms ---


def test_to_dense(cube):
    assert cube.to_dense() is cube.data
    np.testing.assert_array_equal(to_sparse(cube).to_dense(), cube.data)
    with pytest.raises(InvalidInputError, match=r"1\.92e-07 GB, above max_gb=1e-07"):
        to_sparse(cube).to_dense(max_gb=1e-7)


def test_repr(cube):
    assert repr(cube).splitlines() == [
        "LabelledTensor of order 3, shape (2, 3, 4), float64, dense",
        "  a: 'p', 'q'",
        "  b: 10, 20, 30",
        "  c: positions 0 to 3",
    ]
    assert "sparse: 23 entries, density 0.958" in repr(to_sparse(cube))
    days = np.arange("2020-01-01", "2020-01-09", dtype="M8[D]").astype("M8[ns]")
    tensor = LabelledTensor(np.ones((8, 1)), modes=["day", "x"], labels=[days, None])
    assert "day: 2020-01-01T00:00:00" in repr(tensor)
    assert repr(tensor).splitlines()[1].endswith(", ...")


def test_xarray_round_trip(cube):
    array = cube.to_xarray()
    assert array.dims == ("a", "b", "c")
    assert "c" not in array.coords
    assert array.sel(a="q", b=20).values.tolist() == cube.data[1, 1].tolist()
    assert_same(LabelledTensor.from_xarray(array), cube)


def test_xarray_round_trip_stays_sparse(cube):
    array = to_sparse(cube).to_xarray()
    assert isinstance(array.data, sparse.COO)
    assert_same(LabelledTensor.from_xarray(array), to_sparse(cube))


def test_xarray_of_dates():
    days = pd.date_range("2020", periods=2)
    array = xr.DataArray(np.eye(2), coords={"day": days, "x": [0.5, 1.5]}, dims=["day", "x"])
    tensor = LabelledTensor.from_xarray(array)
    assert tensor.labels[0].dtype.kind == "M"
    assert tensor.labels[1].tolist() == [0.5, 1.5]


def test_bad_xarray(cube):
    with pytest.raises(InvalidTypeError, match="got ndarray"):
        LabelledTensor.from_xarray(cube.data)
    filled = xr.DataArray(sparse.COO.from_numpy(np.eye(2), fill_value=1.0), dims=["a", "b"])
    with pytest.raises(InvalidInputError, match="fill_value=1"):
        LabelledTensor.from_xarray(filled)


@pytest.mark.parametrize("package", ["xarray", "sparse"])
def test_missing_package(cube, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        to_sparse(cube).to_xarray()


def test_samples_by_position_as_scikit_learn_does(cube):
    assert len(cube) == 2
    picked = cube[np.array([1, 0])]
    assert picked.labels[0].tolist() == ["q", "p"]
    np.testing.assert_array_equal(picked.data, cube.data[[1, 0]])
    np.testing.assert_array_equal(cube[1:].data, cube.data[1:])


def test_only_dense_data_is_an_array(cube):
    assert np.asarray(cube) is cube.data
    sparse_cube = LabelledTensor(sp.coo_array(cube.data), modes=cube.modes)
    with pytest.raises(InvalidTypeError, match="to_dense"):
        np.asarray(sparse_cube)


# One label that is far longer than all others.

SHORT = [f"label {k}" for k in range(20_000)]
ONE_LONG = [*SHORT[1:], "x" * 50_000]


def events_of(labels):
    return pd.DataFrame({"sample": ["a"] * len(labels), "word": labels})


def empty(n):
    return sp.coo_array((np.ones(1), (np.zeros(1, int), np.zeros(1, int))), shape=(2, n))


@pytest.mark.parametrize(
    "build",
    [
        lambda: LabelledTensor(empty(20_000), modes=["a", "b"], labels=[None, ONE_LONG]),
        lambda: LabelledTensor.from_frame(events_of(ONE_LONG), modes=["sample", "word"]),
        lambda: as_tensor_input(pd.DataFrame(np.ones((1, 20_000)), columns=ONE_LONG)),
        lambda: as_tensor_input(pd.DataFrame(np.ones((20_000, 1)), index=ONE_LONG)),
        lambda: joined_labels(np.array(SHORT[1:]), np.array(ONE_LONG[-1:])),
        lambda: split_unlabelled(np.array(ONE_LONG, dtype=object)),
    ],
    ids=["labels", "from_frame", "columns", "rows", "partial_fit", "classes"],
)
def test_a_label_that_would_widen_all_others_is_refused(build):
    tracemalloc.start()
    with pytest.raises(
        InvalidInputError, match=r"has 50000 characters: 'x+'\.\.\. .*GB.*Shorten"
    ) as error:
        build()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
    assert len(str(error.value)) < 300


def test_labels_of_numpy_in_an_array_of_objects_are_shown_as_others():
    labels = np.array([np.str_("a"), np.int64(3), "b", None], dtype=object)
    assert shown(labels) == "'a', 3, 'b', None"


def test_long_labels_of_few_positions_are_taken_and_shown_in_part():
    long = ["x" * 10_000, "y" * 10_000, "z"]
    tensor = LabelledTensor(np.ones((2, 3)), modes=["a", "b"], labels=[None, long])
    assert tensor.labels[1].tolist() == long
    assert len(repr(tensor)) < 500
