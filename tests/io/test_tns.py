"""The FROSTT text format: round trips, compression, atomic writes, and errors with line numbers."""

import gzip
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, coo_matrix, csr_array, random_array

from polyad.data.labels import LabelledTensor
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.io import read_tns, write_tns


@pytest.fixture
def small():
    coords = ([0, 0, 3], [1, 2, 0], [0, 4, 1])
    return coo_array((np.array([0.1, -2.0, 3e-300]), coords), shape=(4, 3, 5))


def write_text(tmp_path, text, name="x.tns"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def assert_same(a, b):
    assert a.shape == b.shape
    for x, y in zip(a.coords, b.coords, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(a.data, b.data)


@st.composite
def sparse_arrays(draw):
    ndim = draw(st.integers(2, 4))
    index = st.tuples(*[st.integers(0, draw(st.sampled_from([2, 9, 10**12]))) for _ in range(ndim)])
    value = st.floats(allow_nan=False, allow_infinity=False)
    entries = draw(st.dictionaries(index, value, min_size=1, max_size=20))
    coords = np.array(sorted(entries), dtype=np.int64).T
    values = np.array([entries[key] for key in sorted(entries)])
    return coo_array((values, tuple(coords)), shape=tuple(coords.max(axis=1) + 1))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensor=sparse_arrays(),
    base=st.sampled_from([0, 1]),
    name=st.sampled_from(["a.tns", "a.tns.gz"]),
)
def test_write_then_read_is_exact(tmp_path, tensor, base, name):
    write_tns(tmp_path / name, tensor, index_base=base)
    back = read_tns(tmp_path / name, index_base=base)
    assert_same(back, tensor)
    assert back.has_canonical_format


def test_file_contents(tmp_path, small):
    write_tns(tmp_path / "a.tns", small)
    assert (tmp_path / "a.tns").read_text() == "1 2 1 0.1\n1 3 5 -2.0\n4 1 2 3e-300\n"
    write_tns(tmp_path / "b.tns", small, index_base=0)
    assert (tmp_path / "b.tns").read_text().startswith("0 1 0 0.1\n")


def test_more_lines_than_one_block(tmp_path):
    tensor = random_array((200, 1000), density=0.5, rng=np.random.default_rng(0), format="coo")
    write_tns(tmp_path / "a.tns", tensor)
    np.testing.assert_array_equal(
        read_tns(tmp_path / "a.tns", shape=(200, 1000)).toarray(), tensor.toarray()
    )


def test_comments_blank_lines_tabs_and_line_ends(tmp_path):
    text = "# title \xe9\n  # indented\n\n   \n1 1\t1 2 # note\r\n2  3 1\t.5\r\n+1 1 2 1e3"
    tensor = read_tns(write_text(tmp_path, text))
    assert tensor.shape == (2, 3, 2)
    assert tensor.toarray()[0, 0].tolist() == [2.0, 1000.0]
    assert tensor.toarray()[1, 2, 0] == 0.5
    assert tensor.dtype == np.float64


def test_shape_is_kept(tmp_path, small):
    write_tns(tmp_path / "a.tns", small)
    assert read_tns(tmp_path / "a.tns").shape == (4, 3, 5)
    assert read_tns(tmp_path / "a.tns", shape=(9, 9, 9)).shape == (9, 9, 9)


def test_repeated_indices_are_summed_and_zeros_kept(tmp_path):
    tensor = read_tns(write_text(tmp_path, "2 2 1\n1 1 0\n2 2 4\n"))
    assert tensor.data.tolist() == [0.0, 5.0]


def test_single_line(tmp_path):
    assert read_tns(write_text(tmp_path, "3 1 2 7\n")).shape == (3, 1, 2)


def test_indices_beyond_32_bits(tmp_path):
    big = 2**40
    tensor = read_tns(write_text(tmp_path, f"{big} {big} {big} 1\n"))
    assert tensor.shape == (big, big, big)
    assert [int(c[0]) for c in tensor.coords] == [big - 1] * 3


def test_gzip_is_compressed_and_reproducible(tmp_path, small):
    write_tns(tmp_path / "a.tns.gz", small)
    write_tns(tmp_path / "b.tns.gz", small)
    first = (tmp_path / "a.tns.gz").read_bytes()
    assert first == (tmp_path / "b.tns.gz").read_bytes()
    assert gzip.decompress(first).startswith(b"1 2 1 0.1\n")


def test_float32_is_written_as_the_same_number(tmp_path):
    tensor = coo_array((np.array([0.1], dtype=np.float32), ([0], [0])), shape=(1, 1))
    write_tns(tmp_path / "a.tns", tensor)
    assert read_tns(tmp_path / "a.tns").data[0] == float(np.float32(0.1))


@pytest.mark.parametrize("kind", [csr_array, coo_matrix, coo_array])
def test_matrices_of_any_format(tmp_path, kind):
    dense = np.array([[0, 1], [2, 0]])
    write_tns(tmp_path / "a.tns", kind(dense))
    np.testing.assert_array_equal(read_tns(tmp_path / "a.tns").toarray(), dense)


def test_labelled_tensor(tmp_path, small):
    write_tns(tmp_path / "a.tns", LabelledTensor(small, modes=["a", "b", "c"]))
    assert_same(read_tns(tmp_path / "a.tns"), small)


def test_duplicates_in_memory_are_summed_on_write(tmp_path):
    tensor = coo_array((np.array([1.0, 2.0]), ([0, 0], [1, 1])), shape=(1, 2))
    write_tns(tmp_path / "a.tns", tensor)
    assert (tmp_path / "a.tns").read_text() == "1 2 3.0\n"
    assert tensor.nnz == 2  # the argument is untouched


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("1 1 1 1\n# c\n1 1 1\n", 3, "3 columns, but the first line has 4"),
        ("1 1 1 1\n\n1 1 1 1 1\n", 3, "5 columns, but the first line has 4"),
        ("1 1 1 1\n1 x 1 1\n", 2, "'x' of mode 1 is not an integer"),
        ("1 1 1 1\n1 1 2.0 1\n", 2, "'2.0' of mode 2 is not an integer"),
        ("1 1 1 1\n1 1_0 1 1\n", 2, "'1_0' of mode 1 is not an integer"),
        ("1 1 1 1\n1 1 1 one\n", 2, "value 'one' is not a number"),
        ("1 1 1 1_0\n", 1, "value '1_0' is not a number"),
        ("1 1 1 nan\n", 1, "value 'nan' is not finite"),
        ("1 1 1 1\n1 1 1 -inf\n", 2, "value '-inf' is not finite"),
        ("1 1 1 1e999\n", 1, "exceeds the range of float64"),
        ("1 1 1 1\n0 1 1 1\n", 2, "'0' of mode 0 is below index_base=1.*index_base=0"),
        ("1 1 1 1\n1 -4 1 1\n", 2, "'-4' of mode 1 is below index_base=1"),
        ("-9223372036854775808 1 1 1\n", 1, "is below index_base=1"),
        ("1 99999999999999999999 1 1\n", 1, "of mode 1 exceeds the range of 64-bit"),
        ("1,1,1,1\n", 1, "1 columns.*white space"),
        ("1 1\n", 1, "2 columns.*at least two indices and a value"),
        ("sptensor\n3\n", 1, "'sptensor'"),
    ],
)
@pytest.mark.parametrize("name", ["x.tns", "x.tns.gz"])
def test_bad_line_is_named(tmp_path, text, line, reason, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    with pytest.raises(InvalidInputError, match=f"line {line}: .*{reason}"):
        read_tns(path)


def test_index_beyond_the_shape(tmp_path):
    path = write_text(tmp_path, "1 1 1 1\n2 3 1 1\n")
    with pytest.raises(InvalidInputError, match=r"line 2: index .3. of mode 1 is beyond"):
        read_tns(path, shape=(2, 2, 2))


def test_shape_of_another_order(tmp_path):
    path = write_text(tmp_path, "1 1 1 1\n")
    with pytest.raises(InvalidInputError, match=r"shape=\(2, 2\) needs 3 .* or give another shape"):
        read_tns(path, shape=(2, 2))


def test_largest_index_from_zero(tmp_path):
    path = write_text(tmp_path, f"{2**63 - 1} 1 1\n")
    assert read_tns(path).shape == (2**63 - 1, 1)
    with pytest.raises(InvalidInputError, match=r"line 1: .*exceeds the range of 64-bit"):
        read_tns(path, index_base=0)


def test_sum_beyond_float64(tmp_path):
    path = write_text(tmp_path, "1 1 1e308\n1 1 1e308\n")
    with pytest.raises(InvalidInputError, match="same indices exceeds float64"):
        read_tns(path)


@pytest.mark.parametrize("text", ["", "\n \n", "# only a comment\n"])
@pytest.mark.parametrize("shape", [None, (2, 2)])
def test_empty_file(tmp_path, text, shape):
    with pytest.raises(InvalidInputError, match="holds no entries"):
        read_tns(write_text(tmp_path, text), shape=shape)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tns(tmp_path / "none.tns")


@pytest.mark.parametrize("path", [b"a.tns", print, None])
def test_a_path_of_another_type(path):
    with pytest.raises(InvalidTypeError, match="The path is a"):
        read_tns(path)
    with pytest.raises(InvalidTypeError, match="The path is a"):
        write_tns(path, coo_array(np.eye(2)))


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b"not gzip", lambda b: b[:200]])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "x.tns.gz"
    rows = np.random.default_rng(0).integers(1, 10**6, (50_000, 3))
    text = "\n".join(" ".join(map(str, row)) for row in rows)
    path.write_bytes(damage(gzip.compress(text.encode())))
    with pytest.raises(InvalidInputError, match="not a complete gzip file"):
        read_tns(path)


@pytest.mark.parametrize("base", [2, -1, "1"])
def test_index_base(tmp_path, small, base):
    with pytest.raises(InvalidInputError, match="index_base"):
        read_tns(tmp_path / "x.tns", index_base=base)
    with pytest.raises(InvalidInputError, match="index_base"):
        write_tns(tmp_path / "x.tns", small, index_base=base)


@pytest.mark.parametrize(
    "tensor", [np.eye(2), LabelledTensor(np.eye(2), modes=["a", "b"]), [[1, 2]]]
)
def test_dense_is_not_written(tmp_path, tensor):
    with pytest.raises(InvalidTypeError, match=r"coo_array\(array\)"):
        write_tns(tmp_path / "x.tns", tensor)


def test_nothing_to_write(tmp_path):
    with pytest.raises(InvalidInputError, match="0 stored entries"):
        write_tns(tmp_path / "x.tns", coo_array((3, 3, 3)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1j])
def test_unwritable_numbers(tmp_path, bad):
    with pytest.raises(InvalidInputError, match="finite real numbers"):
        write_tns(tmp_path / "x.tns", coo_array((np.array([bad]), ([0], [0])), shape=(1, 1)))


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, small, monkeypatch):
    path = tmp_path / "a.tns"
    write_tns(path, small)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polyad.io.tns.os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_tns(path, small * 2)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.tns"]


def test_write_replaces_a_file(tmp_path, small):
    write_tns(tmp_path / "a.tns", small)
    write_tns(tmp_path / "a.tns", small * 2)
    np.testing.assert_array_equal(read_tns(tmp_path / "a.tns").data, small.data * 2)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tns"]


# Files and shapes of strangers.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 " * 65 + "1\n", "at most 64 modes"),
        ("1 " * 10_000 + "1\n", "at most 64 modes"),
        ("1 1 1\n" + "1 " * 10_000 + "1\n", "line 2: 10001 columns"),
        ("9" * 6000 + " 1 1\n", "exceeds the range"),
        ("1 1 " + "x" * 10_000 + "\n", r"'x+'... \(10000 characters\) is not a number"),
        ("1 " + "x" * 10_000 + " 1\n", r"'x+'... \(10000 characters\) of mode 1"),
        ("x" * 10_000 + "\n", "1 columns"),
        ("1 " * 2**20 + "1\n", "a line of more than"),
        ("1 1 1\n" + "#" * 2**21 + "\n", "a line of more than"),
        ("1 1 \xff\xfe\n", "is not a number"),
        ("1 1 \0\n", "is not a number"),
        ("-1 1 1\n", "is below index_base"),
    ],
)
@pytest.mark.parametrize("name", ["a.tns", "a.tns.gz"])
def test_hostile_text_gets_a_short_error(tmp_path, text, reason, name):
    data = text.encode("latin-1")
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(InvalidInputError, match=reason) as caught:
        read_tns(tmp_path / name)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_a_line_without_end_is_not_taken_into_memory(tmp_path):
    (tmp_path / "a.tns.gz").write_bytes(gzip.compress(b"1 " * 2**24))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="a line of more than"):
        read_tns(tmp_path / "a.tns.gz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


@pytest.mark.parametrize(
    "shape",
    [(-3, 4), (0, 4), (10**30, 4), (2.5, 4), (True, 4), "ab", 5, (5,), (), (2,) * 65, (None, 3)],
)
def test_absurd_shapes_are_refused_before_reading(tmp_path, shape):
    with pytest.raises(InvalidInputError, match="is not the shape of a tensor") as caught:
        read_tns(tmp_path / "there is no such file.tns", shape=shape)
    assert len(str(caught.value)) < 300


def test_shapes_beyond_64_bits_of_cells(tmp_path):
    (tmp_path / "a.tns").write_text("1 1 1\n")
    assert read_tns(tmp_path / "a.tns", shape=(10**18, 10**18)).shape == (10**18, 10**18)
