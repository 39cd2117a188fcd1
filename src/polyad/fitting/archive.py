"""One file of arrays and JSON: the form of model files and checkpoints.

An archive is a zip file with ``manifest.json`` and one ``.npy`` member per array. It holds no
pickle. Members are stored without compression and are read into memory one by one, never
extracted: a hostile file can be refused but cannot run code, write anywhere, or ask for more
memory than its own size on disk.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from polyad._version import __version__
from polyad.core.files import read_path, replacing
from polyad.exceptions import InvalidTypeError, ModelFileError
from polyad.fitting.history import History
from polyad.fitting.status import Status

FORMAT = "polyad"
VERSION = 1
_MANIFEST = "manifest.json"
_TAG = "~"
# Lists and dicts take far more memory than the two characters that the shortest of them are. Those
# that are written have content, and a line for each item.
_BYTES_PER_CONTAINER = 16
_FEW_CONTAINERS = 10_000
# Bytes before the name and the content of a member.
_LOCAL_HEADER = 30
# What a damaged file makes the readers of zip, JSON and arrays raise.
_UNREADABLE = (
    *(zipfile.BadZipFile, tokenize.TokenError, struct.error, ArithmeticError, AttributeError),
    *(EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError),
    *(TypeError, ValueError),
)


def write_archive(path: str | os.PathLike[str], kind: str, content: dict[str, Any]) -> None:
    """Write ``content`` to ``path`` so that a crash leaves the old file or the new one, whole.

    It has numbers, strings, arrays, ``None``, :class:`Status`, :class:`History`, and lists, tuples
    and dicts of these. ``kind`` says what the file is, such as ``"model"``.
    """
    arrays: dict[str, np.ndarray] = {}
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "version": VERSION,
        "polyad": __version__,
        "content": _encode(content, arrays, "content"),
    }
    with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, allow_nan=False, indent=1))
        for name, array in arrays.items():
            with archive.open(name, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_archive(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read what :func:`write_archive` wrote.

    Raises
    ------
    ModelFileError
        If the file is not such an archive, is of another kind or a newer version, or is damaged.
    FileNotFoundError
        If there is no file at ``path``.
    """
    plain = read_path(path)
    if plain.exists() and not plain.is_file():  # a pipe would have us wait for its other end
        raise _damaged(path, "it is no file, but a folder, a pipe or a device")
    with open(plain, "rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                sizes = _checked_members(archive, path)
                _check_places(archive, path, os.fstat(stream.fileno()).st_size)
                reader = _Reader(archive, sizes)
                manifest = _read_manifest(archive, path, kind)
                content = reader.decode(manifest["content"])
        except ModelFileError:
            raise
        except _UNREADABLE as error:
            raise _damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(path, "its content is not a table of names")
    return content


def _checked_members(archive: zipfile.ZipFile, path: object) -> dict[str, int]:
    """Return the size of each member, after refusing what :func:`write_archive` never writes."""
    sizes: dict[str, int] = {}
    for info in archive.infolist():
        plain = info.filename == Path(info.filename).name and "\\" not in info.filename
        known = info.filename == _MANIFEST or info.filename.endswith(".npy")
        if not (plain and known) or info.filename in sizes:
            raise _damaged(path, f"unexpected member {info.filename!r}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise _damaged(path, f"member {info.filename!r} is compressed")
        sizes[info.filename] = info.file_size
    return sizes


def _check_places(archive: zipfile.ZipFile, path: object, size: int) -> None:
    """Refuse members that share bytes: they would take more memory than the file has.

    The list of the members, at the end of the file, is not among them.
    """
    free = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        header = _LOCAL_HEADER + len(info.orig_filename.encode())
        if info.header_offset < free or info.compress_size != info.file_size:
            raise _damaged(path, f"member {info.filename!r} shares its bytes with another")
        free = info.header_offset + header + info.file_size
    if free > size:
        raise _damaged(path, "its members are larger than the file")


def _read_manifest(archive: zipfile.ZipFile, path: object, kind: str) -> dict[str, Any]:
    text = archive.read(_MANIFEST)
    n_containers = text.count(b"[") + text.count(b"{")
    if n_containers > _FEW_CONTAINERS + len(text) // _BYTES_PER_CONTAINER:
        raise _damaged(path, f"its {_MANIFEST} would take many times its size in memory")
    manifest = json.loads(text)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, "it does not say that polyad wrote it")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _damaged(path, f"its version is {version!r}")
    if version > VERSION:
        message = (
            f"{path} has format version {version}, and this polyad ({__version__}) reads up to "
            f"{VERSION}. Install polyad {manifest.get('polyad')} or newer to read it."
        )
        raise ModelFileError(message)
    if manifest.get("kind") != kind:
        message = f"{path} is a polyad {manifest.get('kind')} file; a {kind} file is needed here."
        if kind == "model":
            message += " To have the model of a checkpoint, fit again with it, then save the model."
        raise ModelFileError(message)
    return manifest


def _encode(value: Any, arrays: dict[str, np.ndarray], where: str) -> Any:
    """Turn a value into JSON, moving arrays out into ``arrays``."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        is_plain = isinstance(value, int) or math.isfinite(value)
        return value if is_plain else {_TAG: "float", "value": repr(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.hasobject:
            message = (
                f"{where} is an array of Python objects, which a polyad file cannot hold. "
                "Convert it to numbers, strings or dates first."
            )
            raise InvalidTypeError(message)
        name = f"array{len(arrays)}.npy"
        arrays[name] = array
        return {_TAG: "array", "name": name}
    if isinstance(value, Status):
        return {_TAG: "status", "value": value.value}
    if isinstance(value, History):
        return {
            _TAG: "history",
            "records": _encode(value.records, arrays, where),
            "starts": _encode(value.starts, arrays, where),
        }
    if isinstance(value, (list, tuple)):
        items = [_encode(item, arrays, f"{where}[{k}]") for k, item in enumerate(value)]
        return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
    if isinstance(value, dict) and all(isinstance(key, str) and key != _TAG for key in value):
        return {key: _encode(item, arrays, f"{where}.{key}") for key, item in value.items()}
    message = (
        f"{where} is a {type(value).__name__}, which a polyad file cannot hold. Accepted are "
        "numbers, strings, None, NumPy arrays, and lists, tuples and dicts (by name) of these."
    )
    raise InvalidTypeError(message)


class _Reader:
    """Reads the members of an archive, each once, however often it is named."""

    def __init__(self, archive: zipfile.ZipFile, sizes: dict[str, int]) -> None:
        self._archive = archive
        self._sizes = sizes
        self._arrays: dict[str, np.ndarray] = {}

    def decode(self, value: Any) -> Any:
        """Turn what :func:`_encode` made back into values."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        tag = value.get(_TAG)
        if tag is None:
            return {key: self.decode(item) for key, item in value.items()}
        if tag == "array":
            return self._array(value["name"])
        if tag == "float":
            return float(value["value"])
        if tag == "status":
            return Status(value["value"])
        if tag == "history":
            # Files of earlier versions know nothing of starts.
            return History(self.decode(value["records"]), self.decode(value.get("starts", [])))
        if tag == "tuple":
            return tuple(self.decode(item) for item in value["items"])
        message = f"unknown tag {tag!r}"
        raise ValueError(message)

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = _parse_array(name, self._archive.read(name), self._sizes[name])
        return self._arrays[name]


def _parse_array(name: str, data: bytes, size: int) -> np.ndarray:
    """Read one ``.npy`` member, believing its header only as far as the member's size goes."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        message = f"member {name!r} has the unknown array format {version}"
        raise ValueError(message)
    shape, fortran_order, dtype = readers[version](stream)
    n_values = math.prod(shape)
    if dtype.hasobject:
        message = f"member {name!r} holds pickled Python objects, which are never loaded"
        raise ValueError(message)
    # Text of no length has entries without size, of which a header could claim any number.
    claimed = n_values * dtype.itemsize
    if claimed != size - stream.tell() or (dtype.itemsize == 0 and n_values > size):
        message = f"member {name!r} does not have the size that its header claims"
        raise ValueError(message)
    if claimed == 0:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(stream.getbuffer(), dtype, n_values, stream.tell())
    return flat.reshape(shape, order="F" if fortran_order else "C").copy(order="K")


def _damaged(path: object, detail: str) -> ModelFileError:
    return ModelFileError(f"{path} is not a whole polyad file: {detail:.300}.")
