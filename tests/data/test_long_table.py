"""Long tables: pandas and polars in, pandas out, and what is said of bad ones."""

import datetime
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from polyad.data.entries import summed_coo
from polyad.data.labels import LabelledTensor
from polyad.data.long_table import Column, encode
from polyad.exceptions import (
    InvalidInputError,
    InvalidTypeError,
    UnknownLabelWarning,
)
from tests.data.examples import MODES, to_sparse


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


# --- long tables in ---


def test_counts(events):
    tensor = LabelledTensor.from_frame(events, modes=MODES)
    assert tensor.is_sparse
    assert isinstance(tensor.data, sp.coo_array)
    assert [own.tolist() for own in tensor.labels] == [["ann", "bob"], ["flu", "gout"], ["x", "y"]]
    np.testing.assert_array_equal(tensor.to_dense(), [[[0, 2], [1, 0]], [[2, 0], [0, 0]]])
    assert_same(tensor, LabelledTensor.from_frame(events, modes=MODES, duplicates="count"))


def test_values_are_summed(events):
    tensor = LabelledTensor.from_frame(events, modes=MODES, value="dose")
    np.testing.assert_array_equal(tensor.to_dense(), [[[0, 7], [3, 0]], [[5, 0], [0, 0]]])


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        ("int64", "float64"),
        ("bool", "float64"),
        ("float32", "float32"),
        ("Float32", "float32"),
        ("Int16", "float64"),
        ("boolean", "float64"),
    ],
)
def test_value_types(events, dtype, kept):
    events["dose"] = (events["dose"] > 1).astype(dtype)
    tensor = LabelledTensor.from_frame(events, modes=MODES, value="dose")
    assert tensor.dtype == np.dtype(kept)
    assert tensor.data.data.sum() == 4


def test_dtype_is_obeyed_and_checked(events):
    assert LabelledTensor.from_frame(events, modes=MODES, dtype="float32").dtype == np.float32
    with pytest.raises(InvalidInputError, match="float32 or float64"):
        LabelledTensor.from_frame(events, modes=MODES, dtype=int)
    with pytest.raises(InvalidInputError, match=r"dtype=-0\.5 is not accepted"):
        LabelledTensor.from_frame(events, modes=MODES, dtype=-0.5)


def test_stored_zeros_are_kept(events):
    events["dose"] = 0
    assert LabelledTensor.from_frame(events, modes=MODES, value="dose").data.nnz == 3


def test_negative_values(events):
    events["dose"] = -events["dose"]
    assert LabelledTensor.from_frame(events, modes=MODES, value="dose").data.data.min() == -7


def test_duplicates_error(events):
    with pytest.raises(InvalidInputError, match=r"2 rows repeat .* first is row 3"):
        LabelledTensor.from_frame(events, modes=MODES, duplicates="error")
    tensor = LabelledTensor.from_frame(events.iloc[:3], modes=MODES, duplicates="error")
    assert tensor.data.nnz == 3


def test_duplicates_error_counts_rows_of_the_table(events):
    with (
        pytest.warns(UnknownLabelWarning),
        pytest.raises(InvalidInputError, match=r"1 rows repeat .* first is row 4"),
    ):
        LabelledTensor.from_frame(
            events, modes=MODES, duplicates="error", labels={"patient": ["ann"]}, unknown="drop"
        )


def test_categories_keep_their_order_and_unused_ones(events):
    events["drug"] = pd.Categorical(events["drug"], categories=["z", "y", "x"], ordered=True)
    tensor = LabelledTensor.from_frame(events, modes=MODES)
    assert tensor.labels[2].tolist() == ["z", "y", "x"]
    assert tensor.shape == (2, 2, 3)
    assert tensor.sel(patient="bob", drug=["x"]).to_dense().tolist() == [[2], [0]]


@pytest.mark.parametrize(
    "column",
    [
        [30, 10, 20, 30, 10],
        [0.5, -1.5, np.inf, 0.5, 2.0],
        [True, False, True, True, False],
        pd.to_datetime(["2021-05-01", "2020-01-01", "2020-01-02", "2021-05-01", "2020-01-01"]),
        pd.to_timedelta([3, 1, 2, 3, 1], unit="D"),
        [datetime.date(2021, 5, 1), *[datetime.date(2020, 1, d) for d in (1, 2, 1, 2)]],
        pd.array([3, 1, 2, 3, 1], dtype="Int64"),
        np.array([3, 1, 2, 3, 1], dtype="uint8"),
    ],
)
def test_label_columns_of_other_types_are_sorted(events, column):
    events["drug"] = column
    tensor = LabelledTensor.from_frame(events, modes=MODES)
    assert tensor.labels[2].dtype.kind in "iufbMm"
    assert (tensor.labels[2][1:] > tensor.labels[2][:-1]).all()
    table = tensor.to_frame()
    expected = events.groupby(MODES).size()
    found = table.astype({"drug": events["drug"].dtype}).groupby(MODES)["value"].sum()
    assert sorted(expected.tolist()) == sorted(found.tolist())
    assert_same(LabelledTensor.from_frame(table, modes=MODES, value="value"), tensor)


def test_labels_of_a_fitted_model(events):
    labels = {"patient": ["zoe", "bob", "ann"], "drug": np.array(["y", "x"])}
    tensor = LabelledTensor.from_frame(events, modes=MODES, labels=labels)
    assert tensor.shape == (3, 2, 2)
    assert tensor.labels[0].tolist() == ["zoe", "bob", "ann"]
    assert tensor.sel(patient="ann").to_dense().tolist() == [[2, 0], [0, 1]]


def test_unknown_labels_are_an_error(events):
    with pytest.raises(InvalidInputError, match=r"1 labels of mode 'patient', with 3 rows.*'ann'"):
        LabelledTensor.from_frame(events, modes=MODES, labels={"patient": ["bob"]})


def test_at_most_five_unknown_labels_are_shown():
    frame = pd.DataFrame({"a": [f"n{k}" for k in range(9)], "b": 0})
    with pytest.raises(InvalidInputError, match=r"9 labels.*'n4', \.\.\.") as caught:
        LabelledTensor.from_frame(frame, modes=["a", "b"], labels={"a": ["m"]})
    assert "n5" not in str(caught.value)


def test_unknown_labels_are_dropped_with_a_warning(events):
    with pytest.warns(UnknownLabelWarning, match=r"'patient', with 3 rows.*dropped") as caught:
        tensor = LabelledTensor.from_frame(
            events, modes=MODES, labels={"patient": ["bob"]}, unknown="drop"
        )
    assert caught[0].filename == __file__
    assert tensor.shape == (1, 2, 2)
    assert tensor.data.data.tolist() == [2]


def test_unknown_labels_of_another_type():
    frame = pd.DataFrame({"a": [1, 2], "b": [1, 2]})
    with pytest.raises(InvalidInputError, match="of type int64, those asked for of type <U1"):
        LabelledTensor.from_frame(frame, modes=["a", "b"], labels={"a": ["1", "2"]})


def test_unused_categories_are_not_unknown(events):
    events["drug"] = pd.Categorical(events["drug"], categories=["z", "y", "x"])
    tensor = LabelledTensor.from_frame(events, modes=MODES, labels={"drug": ["x", "y"]})
    assert tensor.labels[2].tolist() == ["x", "y"]


def test_nothing_known(events):
    with (
        pytest.warns(UnknownLabelWarning),
        pytest.raises(InvalidInputError, match="nothing is left"),
    ):
        LabelledTensor.from_frame(events, modes=MODES, labels={"drug": ["k"]}, unknown="drop")


@pytest.mark.parametrize("library", [pd, pl])
@pytest.mark.parametrize(("column", "missing"), [("drug", None), ("dose", None), ("dose", np.inf)])
def test_missing_cells(events, column, missing, library):
    table = events.to_dict("list")
    table[column][2] = table[column][4] = missing
    with pytest.raises(InvalidInputError, match=rf"{column}.* 2 rows, the first is row 2.*[Dd]rop"):
        LabelledTensor.from_frame(library.DataFrame(table), modes=MODES, value="dose")


@pytest.mark.parametrize(
    "column",
    [
        pl.Series("c", [None, None], dtype=pl.String),
        pl.Series("c", [None, 1]),
        pl.Series("c", [None, True]),
        pl.Series("c", [None, datetime.date(2020, 1, 1)]),
        pl.Series("c", [None, "x"], dtype=pl.Enum(["x"])),
        pl.Series("c", [None, 1.5]),
    ],
)
def test_missing_polars_labels_of_any_type(column):
    frame = pl.DataFrame({"a": [1, 2]}).with_columns(column)
    with pytest.raises(InvalidInputError, match=r"'c' has no label in [12] rows, .* row 0"):
        LabelledTensor.from_frame(frame, modes=["a", "c"])


def test_missing_nullable_values(events):
    events["dose"] = pd.array([1, None, 2, None, 3], dtype="Int64")
    with pytest.raises(InvalidInputError, match="2 rows, the first is row 1"):
        LabelledTensor.from_frame(events, modes=MODES, value="dose")


def test_missing_polars_booleans_as_values():
    frame = pl.DataFrame({"a": [1, 2], "b": [1, 2], "v": [True, None]})
    with pytest.raises(InvalidInputError, match="'v' is missing or infinite in 1 rows"):
        LabelledTensor.from_frame(frame, modes=["a", "b"], value="v")


def test_value_that_is_not_a_number(events):
    with pytest.raises(InvalidTypeError, match="'drug' has dtype str"):
        LabelledTensor.from_frame(events, modes=MODES[:2], value="drug")
    with pytest.raises(InvalidTypeError, match="'drug' has dtype String"):
        LabelledTensor.from_frame(
            pl.DataFrame(events.to_dict("list")), modes=MODES[:2], value="drug"
        )
    events["dose"] = events["dose"] * 1j
    with pytest.raises(InvalidTypeError, match="'dose' has dtype complex128"):
        LabelledTensor.from_frame(events, modes=MODES, value="dose")
    events["dose"] = pd.Timestamp("2020")
    with pytest.raises(InvalidTypeError, match="'dose' has dtype datetime64"):
        LabelledTensor.from_frame(events, modes=MODES, value="dose")


def test_sum_beyond_the_range(events):
    events["dose"] = 1.5e308
    with pytest.raises(InvalidInputError, match="exceeds the range of float64"):
        LabelledTensor.from_frame(events, modes=MODES, value="dose")
    events["dose"] = 1e39
    with pytest.raises(InvalidInputError, match="exceeds the range of float32"):
        LabelledTensor.from_frame(events, modes=MODES, value="dose", dtype=np.float32)


@pytest.mark.parametrize(
    ("request_", "error", "reason"),
    [
        ({"modes": ["patient", "ward"]}, InvalidInputError, "no column 'ward'; it has .*'dose'"),
        ({"value": "cost"}, InvalidInputError, "no column 'cost'"),
        ({"modes": ["drug", "drug"]}, InvalidInputError, "'drug' more than once"),
        ({"value": "drug"}, InvalidInputError, "'drug' is both a mode and the value"),
        ({"modes": "drug"}, InvalidTypeError, "modes must be a list"),
        ({"modes": ["drug"]}, InvalidInputError, "at least two modes"),
        ({"value": "dose", "duplicates": "count"}, InvalidInputError, "would ignore the column"),
        ({"duplicates": "mean"}, InvalidInputError, "duplicates='mean'"),
        ({"unknown": "keep"}, InvalidInputError, "unknown='keep'"),
        ({"labels": {"ward": ["x"]}}, InvalidInputError, r"\['ward'\]"),
        ({"labels": {"drug": ["x", "x"]}}, InvalidInputError, "unique"),
    ],
)
def test_bad_requests(events, request_, error, reason):
    with pytest.raises(error, match=reason):
        LabelledTensor.from_frame(events, **{"modes": MODES, **request_})


def test_bad_tables(events):
    with pytest.raises(InvalidInputError, match="no rows"):
        LabelledTensor.from_frame(events.iloc[:0], modes=MODES)
    with pytest.raises(InvalidTypeError, match=r"frame\.collect\(\)"):
        LabelledTensor.from_frame(pl.LazyFrame({"a": [1]}), modes=["a", "b"])
    with pytest.raises(InvalidTypeError, match="got dict"):
        LabelledTensor.from_frame({"a": [1]}, modes=["a", "b"])
    with pytest.raises(InvalidInputError, match="more than one column 'drug'"):
        LabelledTensor.from_frame(pd.concat([events, events[["drug"]]], axis=1), modes=MODES)
    with pytest.raises(InvalidInputError, match="reset_index"):
        LabelledTensor.from_frame(events.set_index("drug"), modes=MODES)


@pytest.mark.parametrize("cells", [[1, "x"], [True, 1], [(1,), (2,)], [1.5, datetime.date.min]])
def test_column_of_mixed_types(cells):
    frame = pd.DataFrame({"a": [1, 2], "b": pd.Series(cells, dtype=object)})
    with pytest.raises(InvalidTypeError, match=r"'b' holds values of types .*astype\(str\)"):
        LabelledTensor.from_frame(frame, modes=["a", "b"])


def test_time_zones():
    stamps = pd.date_range("2020", periods=2, tz="Europe/Paris")
    frame = pd.DataFrame({"a": [1, 2], "b": stamps})
    with pytest.raises(InvalidTypeError, match="time zone Europe/Paris"):
        LabelledTensor.from_frame(frame, modes=["a", "b"])
    column = pl.Series("b", [datetime.datetime(2020, 1, 1)] * 2).dt.replace_time_zone("UTC")
    with pytest.raises(InvalidTypeError, match="without time zone"):
        LabelledTensor.from_frame(
            pl.DataFrame({"a": [1, 2]}).with_columns(column), modes=["a", "b"]
        )


@pytest.mark.parametrize(
    "column",
    [
        ["x", "y", "é", "Z", "x"],
        [3, 1, 2, 3, 1],
        [0.5, 1.5, 0.5, -2.0, 3.0],
        [True, False, True, True, False],
        [datetime.date(2020, 1, d) for d in (3, 1, 2, 3, 1)],
        [datetime.datetime(2020, 1, d, 5) for d in (3, 1, 2, 3, 1)],
    ],
)
def test_polars_equals_pandas(column):
    table = {"a": ["v", "u", "v", "v", "w"], "b": column, "n": [1, 2, 3, 4, 5]}
    for value in (None, "n"):
        tensors = [
            LabelledTensor.from_frame(library.DataFrame(table), modes=["a", "b"], value=value)
            for library in (pd, pl)
        ]
        assert_same(*tensors)


@pytest.mark.parametrize(
    ("dtype", "labels"), [(pl.Enum(["z", "y", "x"]), ["z", "y", "x"]), (pl.Categorical, ["x", "y"])]
)
def test_polars_categories(dtype, labels):
    frame = pl.DataFrame({"a": [1, 2, 3], "b": pl.Series(["y", "x", "y"], dtype=dtype)})
    tensor = LabelledTensor.from_frame(frame, modes=["a", "b"])
    assert tensor.labels[1].tolist() == labels
    assert tensor.sel(b=["y"]).to_dense().ravel().tolist() == [1, 0, 1]


def test_polars_value_types():
    frame = pl.DataFrame({"a": [1, 2], "b": [1, 2], "v": [2, 3]})
    for dtype, kept in ((pl.Decimal(10, 2), "f8"), (pl.Float32, "f4"), (pl.UInt8, "f8")):
        tensor = LabelledTensor.from_frame(
            frame.with_columns(pl.col("v").cast(dtype)), modes=["a", "b"], value="v"
        )
        assert tensor.dtype == np.dtype(kept)
        assert tensor.data.data.tolist() == [2, 3]


def test_counts_in_float32_are_summed_in_float64():
    frame = pd.DataFrame({"a": np.zeros(3, int), "b": 0, "v": np.float32([2**24, 1, 1])})
    tensor = LabelledTensor.from_frame(frame, modes=["a", "b"], value="v")
    assert tensor.dtype == np.float32
    assert tensor.data.data.tolist() == [2**24 + 2]


def test_a_tensor_that_cannot_be_dense_takes_little_memory():
    n = 200_000
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({mode: rng.permutation(n) for mode in MODES})
    tracemalloc.start()
    tensor = LabelledTensor.from_frame(frame, modes=MODES)
    part = tensor.sel(patient=[3, 5, 7]).align({"drug": np.arange(n)[::-1]})
    repr(tensor)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tensor.shape == (n, n, n)
    assert tensor.data.nnz == n
    assert part.data.nnz == 3
    assert peak < 100e6
    with pytest.raises(InvalidInputError, match=r"6\.4e\+07 GB"):
        tensor.to_dense()


def test_number_of_cells_beyond_int64():
    n = 100_000
    frame = pd.DataFrame({mode: np.arange(n) for mode in "abcd"})
    frame = pd.concat([frame, frame.iloc[::-1]])
    tensor = LabelledTensor.from_frame(frame, modes=list("abcd"))
    assert np.prod([float(s) for s in tensor.shape]) > 2**63
    assert tensor.data.nnz == n
    assert (tensor.data.data == 2).all()


@settings(max_examples=25)
@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.integers(-5, 5)), min_size=1, max_size=30),
    st.sampled_from([4, 2**31, 2**62]),
)
def test_summed_coo_equals_scipy(rows, length):
    *coords, values = (np.array(column) for column in zip(*rows, strict=True))
    expected = sp.coo_array((values * 1.0, tuple(coords)), shape=(length,) * 3)
    expected.sum_duplicates()
    found = summed_coo(coords, values * 1.0, (length,) * 3)
    assert found.has_canonical_format
    for x, y in zip(found.coords, expected.coords, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(found.data, expected.data)


# --- long tables out ---

# Letters by name: to draw from all of Unicode, Hypothesis reads its tables for seconds.
texts = st.text("aZ0-,;\"' \t\r\n\x7f\u00e9\u0301\u2028\u6f22\U0001f600", max_size=4)
cells = {
    "text": texts,
    "integer": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "date": st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
}


@settings(max_examples=25)
@given(st.data())
def test_frame_to_tensor_to_frame(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(cells)), min_size=2, max_size=4))
    modes = [f"mode {k}" for k in range(len(kinds))]
    row = st.tuples(*[cells[kind] for kind in kinds], st.integers(-100, 100))
    rows = data.draw(st.lists(row, min_size=1, max_size=12))
    frame = pd.DataFrame(rows, columns=[*modes, "value"])
    tensor = LabelledTensor.from_frame(frame, modes=modes, value="value")
    expected = frame.groupby(modes)["value"].sum().astype(float)
    found = tensor.to_frame()
    assert len(found) == len(expected)
    as_before = found.astype({mode: frame[mode].dtype for mode in modes}).set_index(modes)["value"]
    np.testing.assert_array_equal(as_before.loc[list(expected.index)], expected)
    assert_same(LabelledTensor.from_frame(found, modes=modes, value="value"), tensor)
    assert_same(
        LabelledTensor.from_frame(found.sample(frac=1, random_state=0), modes=modes, value="value"),
        tensor,
    )


def test_to_frame_of_dense_data_has_all_entries(cube):
    table = cube.to_frame(value="x")
    assert list(table.columns) == ["a", "b", "c", "x"]
    assert table["x"].tolist() == list(range(24))
    assert table["c"].tolist() == [0, 1, 2, 3] * 6
    assert table["a"].tolist() == ["p"] * 12 + ["q"] * 12


def test_to_frame_keeps_label_order_and_labels_without_entries():
    data = sp.coo_array((np.ones(1), ([1], [0])), shape=(2, 3))
    tensor = LabelledTensor(data, modes=["a", "b"], labels=[["y", "x"], [3, 1, 2]])
    table = tensor.to_frame(unused=True)
    assert len(table) == 1
    assert_same(LabelledTensor.from_frame(table, modes=["a", "b"], value="value"), tensor)


def test_to_frame_has_no_categories_without_entries():
    data = sp.coo_array((np.ones(2), ([1, 0], [0, 2])), shape=(2, 3))
    tensor = LabelledTensor(data, modes=["a", "b"], labels=[["y", "x"], [3, 1, 2]])
    table = tensor.to_frame()
    assert table["a"].cat.categories.tolist() == ["y", "x"]
    assert table["b"].cat.categories.tolist() == [3, 2]
    assert len(table.groupby("b", observed=False)) == 2
    with pytest.raises(InvalidTypeError, match="unused='yes'"):
        tensor.to_frame(unused="yes")


def test_to_frame_does_not_share_memory(cube):
    tensor = to_sparse(cube)
    table = tensor.to_frame()
    table.loc[:, "value"] = -1.0
    table.loc[:, "c"] = 0
    assert tensor.data.data.min() >= 0
    assert tensor.data.coords[2].max() == 3


def test_value_column_named_like_a_mode(cube):
    with pytest.raises(InvalidInputError, match="'a'"):
        cube.to_frame(value="a")


@pytest.mark.parametrize(
    "name",
    [
        lambda k: k - 40,
        lambda k: 10**15 * k,
        lambda k: f"name {k}",
        lambda k: pd.Timestamp("2024-01-01") + pd.Timedelta(days=k),
        lambda k: 0.5 * k,
    ],
    ids=["narrow", "wide", "text", "dates", "fractions"],
)
@pytest.mark.parametrize("dtype", [None, object])
def test_rows_are_numbered_some_at_a_time(name, dtype, monkeypatch):
    """As NumPy numbers all of them, in few bytes."""
    monkeypatch.setattr("polyad.data.long_table._ROWS_AT_A_TIME", 16)
    values = [name(k) for k in np.random.default_rng(0).integers(90, size=300).tolist()]
    series = pd.Series(values, dtype=dtype)
    labels, numbers = np.unique(series.to_numpy(dtype=object), return_inverse=True)
    codes, found = encode(Column("x", series, str(series.dtype)))
    np.testing.assert_array_equal(codes, numbers)
    assert codes.dtype == np.int8
    np.testing.assert_array_equal(found, np.asarray(labels.tolist(), dtype=found.dtype))


def test_a_row_without_text_is_told_wherever_it_is(monkeypatch):
    monkeypatch.setattr("polyad.data.long_table._ROWS_AT_A_TIME", 16)
    series = pd.Series([f"name {k % 7}" for k in range(40)])
    series[37] = None
    with pytest.raises(InvalidInputError, match="first is row 37"):
        encode(Column("x", series, "str"))
