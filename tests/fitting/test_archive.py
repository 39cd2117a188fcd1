import io
import json
import math
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polyad.exceptions import InvalidTypeError, ModelFileError
from polyad.fitting import History, Status
from polyad.fitting.archive import read_archive, write_archive

# Letters by name: to draw from all of Unicode, Hypothesis reads its tables for seconds.
TEXT = st.text('aZ0~."\\ \n\0\x7f\u00e9\u0301\u2028\u6f22\U0001f600')
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT.filter(lambda key: key != "~"), inner, max_size=3)
    ),
    max_leaves=10,
)
ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "f8", "i4", "i8", "u1", "?", "U5", "M8[ns]"]),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=20)
@given(value=PLAIN, array=ARRAYS)
def test_round_trip(tmp_path_factory, value, array):
    path = tmp_path_factory.mktemp("archive") / "file.polyad"
    content = {"value": value, "array": array, "both": [array, (value,)]}
    write_archive(path, "test", content)
    assert same(read_archive(path, "test"), content)


def test_round_trip_of_own_types(tmp_path):
    history = History([{"iteration": 0, "objective": math.inf, "seconds": 0.5}])
    write_archive(
        tmp_path / "f", "test", {"status": Status.STALLED, "history": history, "x": -math.inf}
    )
    content = read_archive(tmp_path / "f", "test")
    assert content["status"] is Status.STALLED
    assert content["history"].records == history.records
    assert content["x"] == -math.inf


def test_fortran_order_is_kept(tmp_path):
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    write_archive(tmp_path / "f", "test", {"a": array})
    back = read_archive(tmp_path / "f", "test")["a"]
    assert np.array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("value", [object(), {1, 2}, print, 1j, np.array([object()])])
def test_what_an_archive_cannot_hold_is_named(tmp_path, value):
    with pytest.raises(InvalidTypeError, match=r"content\.here\[1\]"):
        write_archive(tmp_path / "f", "test", {"here": [0, value]})
    assert os.listdir(tmp_path) == []


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_archive(path, "test", {"a": 1})

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space"):
        write_archive(path, "test", {"a": np.ones(3)})
    assert read_archive(path, "test") == {"a": 1}
    assert os.listdir(tmp_path) == ["f"]


def test_permissions_follow_the_umask_or_the_old_file(tmp_path):
    path = tmp_path / "f"
    old = os.umask(0o027)
    try:
        write_archive(path, "test", {})
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        write_archive(path, "test", {})
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)


def npy(array, *, allow_pickle=False):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def forge(path, content, members=(), *, compression=zipfile.ZIP_STORED, **header):
    manifest = {"format": "polyad", "kind": "test", "version": 1, "content": content, **header}
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members:
            archive.writestr(name, data)


class Exploit:
    def __reduce__(self):
        return (os.system, ("touch exploited",))


POINTER = {"a": {"~": "array", "name": "array0.npy"}}
LYING = npy(np.zeros(3)).replace(b"(3,)", b"(9,)")


@pytest.mark.parametrize(
    ("content", "members", "says"),
    [
        (POINTER, [("array0.npy", npy(np.array([Exploit()]), allow_pickle=True))], "pickled"),
        (POINTER, [("array0.npy", pickle.dumps(Exploit()))], "not a whole"),
        (POINTER, [("array0.npy", npy(np.zeros(3))[:-1])], "size"),
        (POINTER, [("array0.npy", LYING)], "size"),
        (POINTER, [("array0.npy", b"")], "not a whole"),
        (POINTER, [], "array0.npy"),
        ({}, [("../escape.npy", b"")], "unexpected member"),
        ({}, [("/etc/escape.npy", b"")], "unexpected member"),
        ({}, [("folder\\escape.npy", b"")], "unexpected member"),
        ({}, [("code.py", b"")], "unexpected member"),
        ({"a": {"~": "function"}}, [], "unknown tag"),
        ({"a": {"~": "status", "value": "no such"}}, [], "no such"),
        ([1, 2], [], "table of names"),
        ({"a": {"~": "array", "name": 5}}, [], "not a whole"),
        ({"a": {"~": "array", "name": "manifest.json"}}, [], "not a whole"),
    ],
)
def test_hostile_files_are_refused(tmp_path, monkeypatch, content, members, says):
    monkeypatch.chdir(tmp_path)
    forge(tmp_path / "f", content, members)
    with pytest.raises(ModelFileError, match=says):
        read_archive(tmp_path / "f", "test")
    assert os.listdir(tmp_path) == ["f"]


def test_compressed_members_are_refused(tmp_path):
    forge(
        tmp_path / "f", {}, [("array0.npy", npy(np.zeros(10**6)))], compression=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(ModelFileError, match="compressed"):
        read_archive(tmp_path / "f", "test")


def test_nesting_beyond_reason_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "f", "w") as archive:
        archive.writestr("manifest.json", "[" * 100_000 + "]" * 100_000)
    with pytest.raises(ModelFileError):
        read_archive(tmp_path / "f", "test")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"version": 99, "polyad": "9.9"}, "Install polyad 9.9"),
        ({"version": 0}, "version"),
        ({"version": "1"}, "version"),
        ({"version": True}, "version"),
        ({"kind": "other"}, "a test file is needed"),
        ({"format": "zip"}, "does not say that polyad wrote it"),
    ],
)
def test_wrong_headers_are_refused(tmp_path, header, says):
    forge(tmp_path / "f", {}, **header)
    with pytest.raises(ModelFileError, match=says):
        read_archive(tmp_path / "f", "test")


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_truncated_files_are_refused(tmp_path, part):
    write_archive(tmp_path / "f", "test", {"a": np.arange(1000.0), "b": [1, 2]})
    whole = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ModelFileError, match="not a whole polyad file"):
        read_archive(tmp_path / "f", "test")


def test_a_flipped_bit_is_seen(tmp_path):
    write_archive(tmp_path / "f", "test", {"a": np.arange(1000.0)})
    data = bytearray((tmp_path / "f").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "f").write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match="not a whole polyad file"):
        read_archive(tmp_path / "f", "test")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_archive(tmp_path / "nothing", "test")


# Files that would take far more memory than their own size, and paths that are no files.


def overlapping(path, *, n_members=40, size=200_000):
    """Write an archive whose arrays lie one inside of the other, as in a zip bomb."""
    parts, rest = [], np.zeros(size, dtype="u1").tobytes()
    for number in reversed(range(n_members)):
        name = f"array{number}.npy".encode()
        shell = io.BytesIO()
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(rest),)}
        np.lib.format.write_array_header_1_0(shell, header)
        body = shell.getvalue() + rest
        local = struct.pack(
            "<4s2B4HL2L2H",
            *(b"PK\3\4", 20, 0, 0, 0, 0, 33, zlib.crc32(body), len(body), len(body)),
            *(len(name), 0),
        )
        parts.append((name, body, len(local) + len(name) + shell.tell()))
        rest = local + name + body
    manifest = json.dumps(
        {
            **{"format": "polyad", "kind": "test", "version": 1},
            "content": {f"a{k}": {"~": "array", "name": f"array{k}.npy"} for k in range(n_members)},
        }
    ).encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", manifest)
        start = archive.fp.tell()
        archive.fp.write(rest)
        place = start
        for name, body, header in reversed(parts):
            info = zipfile.ZipInfo(name.decode())
            info.CRC, info.header_offset = zlib.crc32(body), place
            info.file_size = info.compress_size = len(body)
            archive.filelist.append(info)
            place += header
        archive.start_dir = archive.fp.tell()
        archive._didModify = True


def peak_of(function):
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            function()
        return tracemalloc.get_traced_memory()[1], str(caught.value)
    finally:
        tracemalloc.stop()


def test_members_that_share_bytes_are_refused(tmp_path):
    overlapping(tmp_path / "f")
    peak, message = peak_of(lambda: read_archive(tmp_path / "f", "test"))
    assert "shares its bytes" in message
    assert peak < 2 * (tmp_path / "f").stat().st_size


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 10**6 + "[]]",
        "[" + '{"":0},' * 10**6 + "0]",
        "[" * 10**6,
        '{"a":' * 10**6,
        "9" * 10**6,
        "[" + "1e999," * 10**5 + "1]",
    ],
)
def test_a_manifest_takes_little_more_memory_than_its_size(tmp_path, text):
    with zipfile.ZipFile(tmp_path / "f", "w") as archive:
        archive.writestr("manifest.json", text)
    peak, message = peak_of(lambda: read_archive(tmp_path / "f", "test"))
    assert "not a whole polyad file" in message
    assert len(message) < 600
    assert peak < 20 * len(text)


def test_one_array_named_a_million_times_is_read_once(tmp_path):
    pointer = {"~": "array", "name": "array0.npy"}
    forge(tmp_path / "f", {"a": [pointer] * 10**5}, [("array0.npy", npy(np.zeros(10**4)))])
    arrays = read_archive(tmp_path / "f", "test")["a"]
    assert len(arrays) == 10**5
    assert all(array is arrays[0] for array in arrays)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 99999999999999999999), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -3), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '|V999999999', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': [('a', [('b', '|O')])], 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1, " * 200 + "3), }",
        "(" * 300,
        "__import__('os').system('touch exploited')",
    ],
)
def test_absurd_headers_of_arrays_are_refused(tmp_path, header):
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"abc"
    forge(tmp_path / "f", POINTER, [("array0.npy", member)])
    with pytest.raises(ModelFileError, match="not a whole polyad file"):
        read_archive(tmp_path / "f", "test")
    assert os.listdir(tmp_path) == ["f"]


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ModelFileError, match="no file, but a folder, a pipe or a device"):
            read_archive(path, "test")


def test_links_to_files_are_read(tmp_path):
    write_archive(tmp_path / "f", "test", {"a": 1})
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert read_archive(tmp_path / "link", "test") == {"a": 1}
