"""Everything that is tensor-like, and everything that is not, one by one."""

import decimal
import fractions
import warnings
from pathlib import Path

import array_api_strict
import numpy as np
import pandas as pd
import polars as pl
import pytest
import pyttb
import scipy.sparse
import sparse
import torch
import xarray as xr
from scipy.sparse import coo_array

from polyad import (
    CP,
    GeneralizedCP,
    KruskalTensor,
    LabelledTensor,
    NonnegativeCP,
    PoissonCP,
    WassersteinCP,
)
from polyad.data.validation import as_tensor_input
from polyad.exceptions import InvalidInputError, InvalidTypeError, PolyadError

CUBE = np.arange(1.0, 25.0).reshape(2, 3, 4)
TABLE = np.arange(1.0, 7.0).reshape(2, 3)


def numbers(given):
    return given.data.toarray() if given.is_sparse else np.asarray(given.data)


# What is accepted.

DENSE = {
    "float64": CUBE,
    "nested lists": CUBE.tolist(),
    "nested tuples": tuple(map(tuple, TABLE.tolist())),
    "Fortran order": np.asfortranarray(CUBE),
    "not contiguous": np.repeat(CUBE, 2, axis=1)[:, ::2],
    "negative strides": CUBE[::-1][::-1],
    "subclass": CUBE.view(np.memmap),
    "int64": CUBE.astype(np.int64),
    "uint8": CUBE.astype(np.uint8),
    "int16": CUBE.astype(np.int16),
    "float16": CUBE.astype(np.float16),
    "longdouble": CUBE.astype(np.longdouble),
    "big-endian": CUBE.astype(">f8"),
    "big-endian integers": CUBE.astype(">i4"),
    "objects that are numbers": CUBE.astype(object),
    "fractions": np.vectorize(fractions.Fraction, otypes=[object])(CUBE),
    "decimals": np.vectorize(decimal.Decimal, otypes=[object])(CUBE),
    "torch": torch.from_numpy(CUBE),
    "torch int": torch.from_numpy(CUBE).to(torch.int32),
    "torch half": torch.from_numpy(CUBE).half(),
    "torch with gradient": torch.from_numpy(CUBE).requires_grad_(),
    "array_api_strict": array_api_strict.asarray(CUBE),
    "array_api_strict int": array_api_strict.asarray(CUBE.astype(int)),
    "pyttb": pyttb.tensor(CUBE),
    "xarray": xr.DataArray(CUBE),
    "xarray int": xr.DataArray(CUBE.astype(int)),
    "labelled": LabelledTensor(CUBE, modes=["a", "b", "c"]),
    "pandas": pd.DataFrame(TABLE),
    "pandas integers": pd.DataFrame(TABLE.astype(int)),
    "pandas Int64": pd.DataFrame(TABLE.astype(int)).astype("Int64"),
    "pandas Float64": pd.DataFrame(TABLE).astype("Float64"),
    "pandas mixed": pd.DataFrame(TABLE).astype({0: int, 1: "float32", 2: "Int8"}),
    "pandas objects": pd.DataFrame(TABLE).astype(object),
    "polars": pl.DataFrame(TABLE, schema=list("abc"), orient="row"),
    "polars integers": pl.DataFrame(TABLE.astype(int), schema=list("abc"), orient="row"),
}


@pytest.mark.parametrize("kind", DENSE)
def test_dense_forms(kind):
    given = as_tensor_input(DENSE[kind])
    expected = CUBE if len(given.shape) == 3 else TABLE
    assert not given.is_sparse
    assert given.shape == expected.shape
    assert str(given.data.dtype).endswith("float64")
    np.testing.assert_array_equal(numbers(given), expected)


@pytest.mark.parametrize(
    "array",
    [CUBE, torch.from_numpy(CUBE), array_api_strict.asarray(CUBE)],
    ids=["numpy", "torch", "strict"],
)
def test_floating_arrays_are_not_copied_and_keep_their_namespace(array):
    data = as_tensor_input(array).data
    assert type(data) is type(array)
    assert np.shares_memory(np.asarray(data), np.asarray(array))


@pytest.mark.parametrize(
    "array",
    [
        CUBE.astype(np.float32),
        CUBE.astype(">f4"),
        torch.from_numpy(CUBE).float(),
        array_api_strict.asarray(CUBE, dtype=array_api_strict.float32),
        xr.DataArray(CUBE.astype(np.float32)),
        pd.DataFrame(TABLE.astype(np.float32)),
        pl.DataFrame(TABLE.astype(np.float32), schema=list("abc"), orient="row"),
        coo_array(CUBE.astype(np.float32)),
        sparse.COO.from_numpy(CUBE.astype(np.float32)),
        LabelledTensor(CUBE.astype(np.float32), modes=list("abc")),
    ],
    ids=lambda array: type(array).__module__.partition(".")[0],
)
def test_float32_stays_float32(array):
    data = as_tensor_input(array).data
    assert str(data.dtype).endswith("float32")
    assert np.dtype(str(data.dtype).rpartition(".")[2]).isnative


@pytest.mark.parametrize("convert", [np.asarray, torch.asarray, array_api_strict.asarray])
def test_booleans_become_zeros_and_ones(convert):
    data = as_tensor_input(convert(np.eye(3) > 0)).data
    np.testing.assert_array_equal(np.asarray(data), np.eye(3))


def test_a_read_only_array_is_read():
    array = CUBE.copy()
    array.flags.writeable = False
    np.testing.assert_array_equal(as_tensor_input(array).data, CUBE)
    assert CP(1, random_state=0).fit(array).transform(array).shape == (2, 1)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_any_order_from_two_up(order):
    assert as_tensor_input(np.ones((2,) * order)).shape == (2,) * order


SPARSE = {
    "coo_array": coo_array(CUBE),
    "coo_array of order 4": coo_array(CUBE[None]),
    "integers": coo_array(CUBE.astype(int)),
    "booleans": coo_array(CUBE > 3),
    "csr_array": scipy.sparse.csr_array(TABLE),
    "csr_matrix": scipy.sparse.csr_matrix(TABLE),
    "csc_array": scipy.sparse.csc_array(TABLE),
    "dok_array": scipy.sparse.dok_array(TABLE),
    "dia_array": scipy.sparse.dia_array(TABLE),
    "coo_matrix": scipy.sparse.coo_matrix(TABLE),
    "sparse.COO": sparse.COO.from_numpy(CUBE),
    "sparse.GCXS": lambda: sparse.GCXS.from_numpy(CUBE),  # which compiles
    "sparse.DOK": sparse.DOK.from_numpy(CUBE),
    "pyttb": pyttb.tensor(CUBE).to_sptensor(),
    "xarray": xr.DataArray(sparse.COO.from_numpy(CUBE)),
    "labelled": LabelledTensor(coo_array(CUBE), modes=list("abc")),
    "pandas": pd.DataFrame(TABLE, columns=list("abc")).astype(pd.SparseDtype(float, 0.0)),
    "empty": coo_array((2, 3, 4)),
    "empty pyttb": pyttb.sptensor(shape=(2, 3, 4)),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_forms(kind):
    data = SPARSE[kind]() if kind == "sparse.GCXS" else SPARSE[kind]
    given = as_tensor_input(data)
    assert given.is_sparse
    assert isinstance(given.data, coo_array)
    assert given.data.dtype == np.float64
    if kind == "booleans":
        np.testing.assert_array_equal(numbers(given), CUBE > 3)
    elif "empty" in kind:
        assert given.data.nnz == 0
        assert given.shape == (2, 3, 4)
    else:
        expected = CUBE if len(given.shape) > 2 else TABLE
        np.testing.assert_array_equal(numbers(given).reshape(expected.shape), expected)


def test_sparse_data_is_never_made_dense():
    n = 10**6
    huge = coo_array((np.array([1.0, 2.0]), ([0, n - 1],) * 4), shape=(n,) * 4)
    assert as_tensor_input(huge).shape == (n,) * 4


# Names and labels.


def test_labels_of_a_labelled_tensor():
    tensor = LabelledTensor(TABLE, modes=["a", "b"], labels=[None, list("xyz")])
    given = as_tensor_input(tensor)
    assert given.modes == ("a", "b")
    assert given.labels[0] is None
    assert given.labels[1].tolist() == list("xyz")
    assert given.mode_title(1) == "mode 1 ('b')"


@pytest.mark.parametrize("is_sparse", [False, True])
def test_labels_of_a_pandas_table(is_sparse):
    frame = pd.DataFrame(TABLE, columns=list("xyz"), index=["one", "two"])
    if is_sparse:
        frame = frame.astype(pd.SparseDtype(float, 0.0))
    given = as_tensor_input(frame)
    assert given.is_sparse is is_sparse
    assert given.modes is None
    assert given.mode_title(1) == "mode 1"
    assert [labels.tolist() for labels in given.labels] == [["one", "two"], list("xyz")]
    assert [labels.dtype.kind for labels in given.labels] == ["U", "U"]


@pytest.mark.parametrize(
    ("changes", "rows", "columns"),
    [
        ({"columns": list("xyz")}, None, list("xyz")),
        ({"columns": [0, 1, 2]}, None, None),
        ({"columns": ["x", 1, 2]}, None, None),
        ({"columns": pd.MultiIndex.from_product([["a"], [1, 2, 3]])}, None, None),
        ({"index": [10, 20]}, [10, 20], None),
        ({"index": ["a", "a"]}, None, None),
        ({"index": ["a", 5]}, None, None),
        ({"index": pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])}, None, None),
        ({"index": pd.to_datetime(["2024", "2025"], utc=True)}, None, None),
        ({"index": pd.CategoricalIndex(["u", "v"])}, ["u", "v"], None),
    ],
)
def test_which_labels_of_a_pandas_table_are_kept(changes, rows, columns):
    given = as_tensor_input(pd.DataFrame(TABLE, **changes))
    found = [None if labels is None else labels.tolist() for labels in given.labels]
    assert found == [rows, columns]
    assert all(labels is None or labels.dtype != object for labels in given.labels)
    np.testing.assert_array_equal(given.data, TABLE)


def test_dates_of_a_pandas_index_are_kept():
    index = pd.to_datetime(["2024-01-01", "2024-01-02"])
    rows = as_tensor_input(pd.DataFrame(TABLE, index=index)).labels[0]
    assert rows.dtype.kind == "M"
    assert list(pd.DatetimeIndex(rows)) == list(index)


def test_columns_of_a_polars_table_are_labels():
    given = as_tensor_input(pl.DataFrame(TABLE, schema=list("xyz"), orient="row"))
    assert given.labels[0] is None
    assert given.labels[1].tolist() == list("xyz")


def test_dimensions_and_coordinates_of_xarray():
    array = xr.DataArray(TABLE, dims=["when", "who"], coords={"who": list("xyz")})
    given = as_tensor_input(array)
    assert given.modes == ("when", "who")
    assert given.labels[0] is None
    assert given.labels[1].tolist() == list("xyz")


@pytest.mark.parametrize("container", [np.asarray, coo_array])
def test_modes_can_be_put_into_another_order(container):
    tensor = LabelledTensor(container(TABLE), modes=["a", "b"], labels={"b": list("xyz")})
    given = as_tensor_input(tensor).transposed([1, 0])
    assert given.modes == ("b", "a")
    assert given.labels[0].tolist() == list("xyz")
    turned = given.data.toarray() if given.is_sparse else given.data
    np.testing.assert_array_equal(turned, TABLE.T)


# What is refused: by type.


class Shaped:
    """Has a shape and is no array."""

    shape = (2, 3)


class Convertible(Shaped):
    ndim = 2

    def __array__(self, dtype=None, copy=None):
        return np.array(TABLE, dtype=dtype)


def test_what_numpy_can_convert_is_accepted():
    np.testing.assert_array_equal(as_tensor_input(Convertible()).data, TABLE)


def a_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, of its own class
        return np.asmatrix(TABLE)


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (None, "X is a NoneType"),
        ("text", "X is a str"),
        (b"bytes", "X is a bytes"),
        ({"a": [1, 2]}, "X is a dict"),
        (dict, "X is a type"),
        (len, "X is a builtin_function_or_method"),
        (Shaped(), "Shaped"),
        (KruskalTensor(np.ones(1), [np.ones((2, 1))] * 2), "KruskalTensor"),
        ({1, 2}, "not a number"),
        (CP(2), "not a number"),
        ("samples.npy", r"str\. A path is not read: .*mmap_mode='r'.*StochasticCP"),
        (Path("samples.npy"), r"Path\. A path is not read"),
        (["one.npy", Path("two.npy")], r"list of text\. Paths are not read: .*Recordings\(paths"),
        (iter([TABLE]), "list_iterator, which gives its parts one by one. StochasticCP"),
        ((part for part in [TABLE]), r"generator.*np\.concatenate\(list\(X\)\)"),
        (a_matrix(), r"np\.asarray\(X\)"),
        (np.array([[{}, {}]], dtype=object), "not a number.*dict"),
        (torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
        (pl.DataFrame({"a": [1.0]}).lazy(), r"X\.collect\(\)"),
        (pl.col("a"), "Expr"),
        (pd.Timestamp("2024"), "Timestamp"),
        (xr.Dataset({"a": ("x", [1.0])}), "xarray Dataset.*Pick one of its DataArrays"),
        (pyttb.ktensor([np.ones((2, 1))] * 3), "pyttb ktensor"),
        (xr.DataArray(TABLE + 1j), "complex128"),
    ],
)
def test_what_is_no_tensor(X, says):
    with pytest.raises(InvalidTypeError, match=says):
        as_tensor_input(X)


def test_a_dask_array_is_told_to_be_computed(monkeypatch):
    """Dask is not among the packages of the tests: something that looks like it must do."""
    monkeypatch.setattr("polyad.data.readers.is_dask_array", lambda X: isinstance(X, Shaped))
    with pytest.raises(InvalidTypeError, match=r"X\.compute\(\)"):
        as_tensor_input(Shaped())


# What is refused: by shape.


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (np.float64(3.0), "got 0D array"),
        (5, "got 0D array"),
        (np.array(3.0), "got 0D array"),
        (np.ones(3), r"got 1D array.*shape \(3,\).*X\.reshape\(-1, 1\)"),
        ([1.0, 2.0], "got 1D array"),
        ([], "got 1D array"),
        (torch.ones(3), "got 1D array"),
        (coo_array(np.ones(3)), "got 1D array"),
        (sparse.COO.from_numpy(np.ones(3)), "got 1D array"),
        (pd.Series([1.0]), r"pandas Series.*to_frame\(\)"),
        (pd.Index([1.0]), "pandas Index"),
        (pl.Series([1.0]), "polars Series"),
        (xr.DataArray(np.ones(3)), "at least two modes"),
        (np.ones((0, 3)), r"0 sample\(s\).*shape=\(0, 3\)"),
        (np.ones((3, 0)), r"0 feature\(s\)"),
        (np.ones((3, 2, 0)), "0 entries in mode 2"),
        (coo_array((0, 3)), r"0 sample\(s\)"),
        (coo_array((3, 4, 0)), "0 entries in mode 2"),
        (torch.ones((0, 3)), r"0 sample\(s\)"),
        (pd.DataFrame(), r"0 sample\(s\)"),
        (pd.DataFrame(columns=["a"]), r"0 sample\(s\)"),
        (pl.DataFrame(), r"0 sample\(s\)"),
        ([[1, 2], [3]], "inhomogeneous"),
    ],
)
def test_shapes_that_are_no_tensor(X, says):
    with pytest.raises(InvalidInputError, match=says):
        as_tensor_input(X)


# What is refused: by content.

COMPLEX = "Complex data not supported"


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (TABLE + 1j, COMPLEX),
        (TABLE.astype(np.complex64), COMPLEX),
        (coo_array(TABLE + 1j), COMPLEX),
        (torch.ones((2, 2), dtype=torch.complex64), COMPLEX),
        (array_api_strict.asarray(TABLE + 1j), COMPLEX),
        (pd.DataFrame(TABLE + 1j), COMPLEX),
        (pd.DataFrame({"a": [1j, 2], "b": [1, 2]}), COMPLEX),
        (np.array([["a", "b"]]), "does not hold numbers"),
        (np.array([["1", "2"]]), "does not hold numbers"),
        (np.array([[b"1", b"2"]]), "does not hold numbers"),
        ([["a", "b"], ["c", "d"]], "does not hold numbers"),
        (np.array([["2024-01-01"]], dtype="datetime64[D]"), r"datetime64\[D\]"),
        (np.array([[5]], dtype="timedelta64[s]"), r"timedelta64\[s\]"),
        (np.zeros((2, 2), dtype=[("a", float)]), "does not hold numbers"),
        (np.array([["x", 1.0]], dtype=object), "could not convert string to float: 'x'"),
    ],
)
def test_contents_that_are_no_numbers(X, says):
    with pytest.raises(InvalidInputError, match=says):
        as_tensor_input(X)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"who": ["ann", "bob"], "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.Series(["ann", "bob"], dtype="string"), "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.Categorical(["ann", "bob"]), "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.to_datetime(["2024", "2025"]), "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.to_datetime(["2024", "2025"], utc=True), "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.to_timedelta([1, 2], unit="s"), "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.period_range("2024", periods=2, freq="Y"), "dose": [1.0, 2.0]}),
        pd.DataFrame({"who": pd.interval_range(0, 2), "dose": [1.0, 2.0]}),
        pl.DataFrame({"who": ["ann", "bob"], "dose": [1.0, 2.0]}),
        pl.DataFrame({"who": ["ann", "bob"], "dose": [1.0, 2.0]}).cast({"who": pl.Categorical}),
        pl.DataFrame({"who": [1, 2], "dose": [1.0, 2.0]}).cast({"who": pl.Date}),
        pl.DataFrame({"who": [[1], [2]], "dose": [1.0, 2.0]}),
    ],
)
def test_a_table_with_text_points_to_long_tables(frame):
    with pytest.raises(InvalidInputError, match=r"'who'.*LabelledTensor\.from_frame") as caught:
        as_tensor_input(frame)
    assert "'dose'" not in str(caught.value)


def test_text_in_an_object_column_points_to_long_tables():
    frame = pd.DataFrame({"who": pd.Series(["ann", "bob"], dtype=object), "dose": [1.0, 2.0]})
    with pytest.raises(InvalidInputError, match=r"'ann'.*LabelledTensor\.from_frame"):
        as_tensor_input(frame)


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame(TABLE).astype(pd.SparseDtype(float, 7.0)),
        pd.DataFrame(TABLE).astype(pd.SparseDtype(float, np.nan)),
        sparse.COO.from_numpy(TABLE, fill_value=7.0),
    ],
)
def test_a_fill_value_other_than_zero_is_refused(X):
    with pytest.raises(InvalidInputError, match=r"fill value (7\.0|nan); only 0"):
        as_tensor_input(X)


# Missing entries.


def holed(value=np.nan):
    array = TABLE.copy()
    array[1, 2] = value
    return array


MISSING = {
    "numpy": holed(),
    "float32": holed().astype(np.float32),
    "float16": holed().astype(np.float16),
    "torch": torch.from_numpy(holed()),
    "strict": array_api_strict.asarray(holed()),
    "lists with None": [[1.0, 2.0, 3.0], [4.0, 5.0, None]],
    "masked array": np.ma.masked_equal(TABLE, TABLE[1, 2]),
    "masked integers": np.ma.masked_equal(TABLE.astype(int), int(TABLE[1, 2])),
    "pandas": pd.DataFrame(holed()),
    "pandas Int64": pd.DataFrame(holed()).astype("Int64"),
    "pandas Float64": pd.DataFrame(holed()).astype("Float64"),
    "pandas objects": pd.DataFrame(holed().astype(object)).replace({np.nan: None}),
    "polars NaN": pl.DataFrame(holed(), schema=list("abc"), orient="row"),
    "polars null": pl.DataFrame({"a": [1, 4], "b": [2, 5], "c": [3, None]}),
    "xarray": xr.DataArray(holed()),
    "labelled": LabelledTensor(holed(), modes=["a", "b"]),
}


@pytest.mark.parametrize("kind", MISSING)
def test_missing_entries(kind):
    given = as_tensor_input(MISSING[kind], allow_nan=True)
    np.testing.assert_array_equal(np.asarray(given.data), holed())
    assert type(given.data) is not np.ma.MaskedArray
    with pytest.raises(InvalidInputError, match=r"NaN, first at \(1, 2\).*does not accept"):
        as_tensor_input(MISSING[kind])


@pytest.mark.parametrize("null", [True, False])
def test_booleans_with_and_without_missing(null):
    last = None if null else False
    expected = [[1.0, 1.0], [np.nan if null else 0.0, 2.0]]
    frames = [
        pd.DataFrame({"a": pd.array([True, last], dtype="boolean"), "b": [1, 2]}),
        pl.DataFrame({"a": [True, last], "b": [1, 2]}),
    ]
    for frame in frames:
        np.testing.assert_array_equal(as_tensor_input(frame, allow_nan=True).data, expected)


def test_a_masked_array_without_masked_entries_is_an_array():
    data = as_tensor_input(np.ma.array(TABLE)).data
    assert type(data) is np.ndarray
    np.testing.assert_array_equal(data, TABLE)


@pytest.mark.parametrize("convert", [np.asarray, torch.asarray])
def test_nothing_but_missing_entries(convert):
    with pytest.raises(InvalidInputError, match="Every entry is NaN"):
        as_tensor_input(convert(np.full((2, 3), np.nan)), allow_nan=True)


@pytest.mark.parametrize("allow_nan", [False, True])
def test_nan_in_sparse_data_is_never_a_missing_entry(allow_nan):
    with pytest.raises(InvalidInputError, match=r"\(1, 2\).*missing='unobserved'"):
        as_tensor_input(coo_array(holed()), allow_nan=allow_nan)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("allow_nan", [False, True])
@pytest.mark.parametrize(
    "convert", [np.asarray, torch.asarray, array_api_strict.asarray, coo_array, np.float32]
)
def test_infinity_is_refused_with_its_position(value, allow_nan, convert):
    with pytest.raises(InvalidInputError, match=r"infinity, first at \(1, 2\)"):
        as_tensor_input(convert(holed(value)), allow_nan=allow_nan)


def test_infinity_beside_nan_is_found():
    array = holed()
    array[0, 1] = -np.inf
    with pytest.raises(InvalidInputError, match=r"infinity, first at \(0, 1\)"):
        as_tensor_input(array, allow_nan=True)


# Sizes.


@pytest.mark.parametrize(
    ("dtype", "size", "is_accepted"),
    [
        (np.float64, 1e100, True),
        (np.float64, 1e-100, True),
        (np.float64, 1e130, False),
        (np.float64, 1e-130, False),
        (np.float64, 1e308, False),
        (np.float64, 5e-324, False),
        (np.float32, 1e12, True),
        (np.float32, 1e-12, True),
        (np.float32, 1e18, False),
        (np.float32, 1e-18, False),
    ],
)
@pytest.mark.parametrize("convert", [np.asarray, torch.asarray, coo_array])
@pytest.mark.parametrize("sign", [1, -1])
def test_sizes_whose_squares_leave_the_range(dtype, size, is_accepted, convert, sign):
    X = convert((sign * size * np.eye(3)).astype(dtype))
    if is_accepted:
        as_tensor_input(X)
        return
    with pytest.raises(InvalidInputError, match="Scale the data to a size between"):
        as_tensor_input(X)


def test_small_entries_beside_large_ones_are_fine():
    as_tensor_input(np.array([[1e-300, 1.0], [0.0, 5.0]]))
    as_tensor_input(np.zeros((2, 2)))


# Masks.


def test_a_mask_of_other_labels_is_refused():
    rows, columns = (
        [f"{name}{k}" for k in range(n)] for n, name in zip(TABLE.shape, "rc", strict=True)
    )
    frame = pd.DataFrame(TABLE, index=rows, columns=columns)
    mask = frame != 6
    expected = as_tensor_input(TABLE, mask=mask.to_numpy()).data
    coords = {"row": rows, "column": columns}
    array, seen = (xr.DataArray(part, dims=list(coords), coords=coords) for part in (TABLE, mask))
    for data, form in (
        *((frame, same) for same in (mask, pl.from_pandas(mask), seen, mask.to_numpy())),
        *((array, same) for same in (mask, seen)),
    ):
        np.testing.assert_array_equal(as_tensor_input(data, mask=form).data, expected)
    for data, form in (
        *((frame, other) for other in (mask.iloc[::-1], mask.iloc[:, ::-1], seen[::-1])),
        (frame, pl.from_pandas(mask.iloc[:, ::-1])),
        (array, seen[:, ::-1]),
    ):
        with pytest.raises(InvalidInputError, match="mask has other labels than the data"):
            as_tensor_input(data, mask=form)
    with pytest.raises(InvalidInputError, match="mask has the modes"):
        as_tensor_input(array, mask=seen.rename(row="other"))
    with pytest.raises(InvalidInputError, match="mask has the shape"):
        as_tensor_input(frame, mask=mask[columns[0]])


def test_a_mask_marks_what_was_observed():
    mask = TABLE != 6
    for convert in (np.asarray, torch.asarray, array_api_strict.asarray):
        data = as_tensor_input(convert(TABLE), mask=convert(mask)).data
        np.testing.assert_array_equal(np.asarray(data), np.where(mask, TABLE, np.nan))
    for form in (mask, mask.tolist(), pd.DataFrame(mask), torch.asarray(mask)):
        data = as_tensor_input(TABLE, mask=form).data
        np.testing.assert_array_equal(data, np.where(mask, TABLE, np.nan))
    data = as_tensor_input(torch.asarray(TABLE), mask=mask).data
    assert isinstance(data, torch.Tensor)


def test_a_mask_changes_neither_the_data_nor_itself():
    array, mask = TABLE.copy(), TABLE < 3
    as_tensor_input(array, mask=mask)
    np.testing.assert_array_equal(array, TABLE)
    np.testing.assert_array_equal(mask, TABLE < 3)


def test_what_was_not_observed_may_be_anything():
    data = as_tensor_input(holed(np.inf), mask=TABLE != 6).data
    assert np.isnan(data[1, 2])


def test_a_mask_keeps_float32_and_labels():
    tensor = LabelledTensor(TABLE.astype(np.float32), modes=["a", "b"], labels={"b": list("xyz")})
    given = as_tensor_input(tensor, mask=TABLE != 6)
    assert given.data.dtype == np.float32
    assert given.labels[1].tolist() == list("xyz")


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.ones((3, 2), dtype=bool), r"shape \(3, 2\), not \(2, 3\)"),
        (np.ones(3, dtype=bool), r"shape \(3,\)"),
        (np.ones((2, 3)), "type float64, not bool"),
        (np.ones((2, 3), dtype=int), "type int64, not bool"),
        (True, r"shape \(\)"),
        ("text", "not bool"),
        (coo_array(np.eye(2, 3) > 0), "not bool"),
        ([[True], [True, False]], "mask makes no array"),
        (np.zeros((2, 3), dtype=bool), "Every entry is NaN"),
    ],
)
def test_bad_masks(mask, says):
    with pytest.raises(InvalidInputError, match=says):
        as_tensor_input(TABLE, mask=mask)


def test_a_mask_has_no_meaning_for_sparse_data():
    with pytest.raises(InvalidInputError, match="missing='unobserved'"):
        as_tensor_input(coo_array(TABLE), mask=TABLE > 0)


# Coordinates of sparse arrays: scipy checks them when the array is made.


@pytest.mark.parametrize(("index", "says"), [(5, "exceeds"), (-1, "negative")])
def test_coordinates_outside_are_refused_by_scipy(index, says):
    with pytest.raises(ValueError, match=says):
        coo_array((np.ones(1), ([0], [0], [index])), shape=(2, 3, 4))


# All errors are errors of polyad, whatever is given.


@pytest.mark.parametrize(
    "X", [None, "text", {}, [], 3, [[1, 2], [3]], [["a"]], np.ones(3), object()]
)
def test_every_refusal_is_a_polyad_error(X):
    for use in (as_tensor_input, CP(1).fit):
        with pytest.raises(PolyadError):
            use(X)


# What is refused: negative numbers, by those who cannot take them, in the same words.

NEEDS_NONNEGATIVE = [
    NonnegativeCP(2, solver="mu", max_iter=1, random_state=0),
    PoissonCP(2, max_iter=1, random_state=0),
    GeneralizedCP(2, loss="poisson", max_iter=1, random_state=0),
    WassersteinCP(2, max_iter=1, random_state=0),
]


@pytest.mark.parametrize("model", NEEDS_NONNEGATIVE)
def test_negative_numbers_are_refused_in_the_same_words(model):
    bad = CUBE.copy()
    bad[1, 2, 3] = bad[1, 2, 0] = -2.5
    says = r"Negative values in data: X has 2 of them, first -2.5 at \(1, 2, 0\)"
    for X in (bad, coo_array(bad)):
        with pytest.raises(InvalidInputError, match=rf"{says}\. .*any sign"):
            model.fit(X)
    labelled = LabelledTensor(bad, modes=["day", "drug", "dose"], labels={"drug": list("abc")})
    with pytest.raises(InvalidInputError, match=rf"{says} \(mode 1 \('drug'\): c\)\. "):
        model.fit(labelled)


@pytest.mark.filterwarnings("ignore:.*max_iter.*")
@pytest.mark.parametrize("model", NEEDS_NONNEGATIVE)
def test_an_entry_is_negative_only_if_its_sum_is(model):
    whole = coo_array(CUBE)
    doubled = tuple(np.concatenate([row, row]) for row in whole.coords)
    values = np.concatenate([whole.data + 1, np.full(whole.nnz, -1.0)])
    parts = coo_array((values, doubled), shape=CUBE.shape)
    assert model.fit(parts).objective_ == model.fit(whole).objective_


def test_columns_of_one_name_are_refused():
    table = pd.DataFrame(np.eye(4), columns=["a", "b", "a", "c"])
    with pytest.raises(InvalidInputError, match=r"several columns named 'a'.*to_numpy"):
        CP(2).fit(table)
