"""The FROSTT text format: one line for each stored entry, its indices and then its value.

Fields are separated by white space; ``#`` starts a comment and blank lines are skipped. The
shape is not part of the format. Files whose name ends in ``.gz`` are compressed.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import re
import warnings
import zlib
from numbers import Integral
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from polyad.core.files import read_path, replacing
from polyad.data.entries import summed_coo
from polyad.data.labels import LabelledTensor
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scipy.sparse import coo_array

_INTEGER = re.compile(r"[+-]?[0-9]+")
_LARGEST = np.iinfo(np.int64).max
_LINES_PER_WRITE = 65_536
_MOST_DIGITS = 19
_MOST_MODES = 64  # of an array of NumPy
_BLOCK = 1 << 20
# How much of a file a message shows.
_SHOWN = 40

# Never fails to decode: only comments can hold anything but ASCII.
_ENCODING = "latin-1"


def read_tns(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, ...] | None = None,
    index_base: int = 1,
) -> coo_array[Any, Any]:
    r"""Read a sparse tensor from a FROSTT text file.

    Parameters
    ----------
    path : path-like
        The file, compressed if its name ends in ``.gz``.
    shape : tuple of int, optional
        Length of each mode; by default the largest index of each mode.
    index_base : {1, 0}, default=1
        The first index of the file.

    Returns
    -------
    scipy.sparse.coo_array
        Float64, sorted in C order; entries with the same indices are summed, zeros kept.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.tns"
    >>> _ = path.write_text("# i j k value\n1 1 1 0.5\n2 1 3 2\n")
    >>> tensor = read_tns(path)
    >>> tensor.shape, tensor.data.tolist()
    ((2, 1, 3), [0.5, 2.0])
    """
    _check_index_base(index_base)
    shape = _read_shape(shape)
    path = read_path(path)
    try:
        _check_lines(path)
        n_modes = _count_modes(path, shape)
        fields = [(f"mode{mode}", np.int64) for mode in range(n_modes)] + [("value", np.float64)]
        with warnings.catch_warnings():
            # NumPy only warns where it reads an index such as 1.0 by way of a float.
            warnings.simplefilter("error")
            # A path and not an open file: NumPy then reads whole blocks, and opens .gz itself.
            # Not pandas: version 2 misses the last bit of every third number, unless told in a way
            # that version 3 deprecates.
            table = np.loadtxt(os.fspath(path), dtype=fields, ndmin=1, encoding=_ENCODING)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        message = f"{path} is not a complete gzip file: {error}. Download or write it again."
        raise InvalidInputError(message) from error
    except (ValueError, Warning) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise _explain(path, n_modes, shape, index_base, reason=str(error)) from error
    coords = [table[f"mode{mode}"] - index_base for mode in range(n_modes)]
    values = np.ascontiguousarray(table["value"])
    if shape is None:
        shape = tuple(int(c.max()) + 1 for c in coords)
    inside = all(
        c.min() >= 0 and c.max() < min(length, _LARGEST)
        for c, length in zip(coords, shape, strict=True)
    )
    if not (inside and np.isfinite(values).all()):
        raise _explain(path, n_modes, shape, index_base, reason="an entry is out of range")
    tensor = summed_coo(coords, values, shape)
    if not np.isfinite(tensor.data).all():
        message = f"{path}: the sum of entries with the same indices exceeds float64."
        raise InvalidInputError(message)
    return tensor


def write_tns(
    path: str | os.PathLike[str],
    tensor: LabelledTensor | scipy.sparse.sparray | scipy.sparse.spmatrix,
    *,
    index_base: int = 1,
) -> None:
    """Write a sparse tensor to a FROSTT text file.

    The file appears at once, complete, in place of any file of that name.

    Parameters
    ----------
    path : path-like
        The file, compressed if its name ends in ``.gz``.
    tensor : coo_array, 2-D scipy sparse array, or sparse LabelledTensor
        All stored entries are written, in digits that give back the same float64. The format
        has no place for labels and for the shape: keep them elsewhere.
    index_base : {1, 0}, default=1
        The first index of the file.
    """
    _check_index_base(index_base)
    entries = _as_entries(tensor)
    path = read_path(path)
    with (
        replacing(path) as file,
        _compressing(file, compress=path.suffix == ".gz") as stream,
    ):
        for block in _text_blocks(entries, index_base):
            stream.write(block)


def _check_index_base(index_base: int) -> None:
    if not isinstance(index_base, int | np.integer) or index_base not in (0, 1):
        message = f"index_base={index_base!r} has no meaning; give 1 (FROSTT) or 0."
        raise InvalidInputError(message)


def _read_shape(shape: Any) -> tuple[int, ...] | None:
    """Return the shape that was asked for, or say why no tensor has it."""
    if shape is None:
        return None
    sizes = tuple(shape) if isinstance(shape, list | tuple) else ()
    is_sound = 2 <= len(sizes) <= _MOST_MODES and all(
        isinstance(size, Integral) and not isinstance(size, bool) and 0 < int(size) <= _LARGEST
        for size in sizes
    )
    if not is_sound:
        message = (
            f"shape={shape!r:.100} is not the shape of a tensor: give 2 to {_MOST_MODES} whole "
            "numbers, each 1 or more and below 2**63, or None for the largest indices."
        )
        raise InvalidInputError(message)
    return tuple(int(size) for size in sizes)


def _as_entries(tensor: object) -> coo_array[Any, Any]:
    """Return the entries to write, checked to be readable again."""
    data: Any = tensor.data if isinstance(tensor, LabelledTensor) else tensor
    sparse: bool = scipy.sparse.issparse(data)
    if not sparse:
        message = (
            f"tensor must be a scipy sparse array or a sparse LabelledTensor, got a dense "
            f"{type(tensor).__name__}. Convert it with scipy.sparse.coo_array(array)."
        )
        raise InvalidTypeError(message)
    entries = scipy.sparse.coo_array(data)
    if entries.ndim < 2 or entries.nnz == 0:
        message = (
            f"A tensor of shape {entries.shape} with {entries.nnz} stored entries cannot be "
            "written: the format needs two modes and one entry at least."
        )
        raise InvalidInputError(message)
    if entries.dtype.kind not in "fiub" or not np.isfinite(entries.data).all():
        message = (
            f"The entries (dtype {entries.dtype}) are not all finite real numbers. Remove or "
            "replace NaN and infinite entries first."
        )
        raise InvalidInputError(message)
    return summed_coo(entries.coords, entries.data.astype(np.float64), entries.shape)


def _compressing(file: IO[bytes], *, compress: bool) -> contextlib.AbstractContextManager[Any]:
    """Wrap a file for gzip; without time and name, equal tensors give equal files."""
    if compress:
        return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0)
    return contextlib.nullcontext(file)


def _text_blocks(entries: coo_array[Any, Any], index_base: int) -> Iterator[bytes]:
    """Yield the lines of the file, many at a time."""
    # %r is the shortest text that reads back as the same float.
    line = "%d " * entries.ndim + "%r\n"
    for start in range(0, entries.nnz, _LINES_PER_WRITE):
        part = slice(start, start + _LINES_PER_WRITE)
        columns = [(c[part].astype(np.int64) + index_base).tolist() for c in entries.coords]
        rows = zip(*columns, entries.data[part].tolist(), strict=True)
        yield "".join(map(line.__mod__, rows)).encode()


def _opener(path: Path) -> Any:
    return gzip.open if path.suffix == ".gz" else open


def _check_lines(path: Path) -> None:
    """Refuse a file with a line that has no end, which readers would take into memory whole."""
    with _opener(path)(path, "rb") as file:
        while block := file.read(_BLOCK):
            if len(block) == _BLOCK and b"\n" not in block and b"\r" not in block:
                message = (
                    f"{path} has a line of more than {_BLOCK} characters. It is not a tensor in "
                    "text, which has a line for each entry."
                )
                raise InvalidInputError(message)


def _shown(text: str) -> str:
    """Quote a part of a file, of which only the beginning where it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"


def _data_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line that holds data."""
    with _opener(path)(path, "rt", encoding=_ENCODING) as file:
        for number, line in enumerate(file, start=1):
            fields = line.partition("#")[0].split()
            if fields:
                yield number, fields


def _count_modes(path: Path, shape: tuple[int, ...] | None) -> int:
    """Return the number of modes, from the shape or else from the first line of data."""
    number, fields = next(_data_lines(path), (0, []))
    if not fields:
        message = f"{path} holds no entries: a line has the indices and then the value."
        raise InvalidInputError(message)
    if shape is not None:
        return len(shape)
    if len(fields) < 3:
        message = (
            f"{path}, line {number}: {len(fields)} columns, {_shown(' '.join(fields))}. A line "
            "needs at least two indices and a value, separated by white space."
        )
        raise InvalidInputError(message)
    if len(fields) - 1 > _MOST_MODES:
        message = (
            f"{path}, line {number}: {len(fields)} columns. A tensor has at most {_MOST_MODES} "
            "modes, a column for each, and a value."
        )
        raise InvalidInputError(message)
    return len(fields) - 1


def _explain(
    path: Path, n_modes: int, shape: tuple[int, ...] | None, index_base: int, *, reason: str
) -> InvalidInputError:
    """Read the file again, line by line, to say where it is wrong.

    Only done for a file that is known to be wrong, so that good files are read fast.
    """
    for number, fields in _data_lines(path):
        problem = _line_problem(fields, n_modes, shape, index_base)
        if problem is not None:
            return InvalidInputError(f"{path}, line {number}: {problem}")
    return InvalidInputError(f"{path} cannot be read: {reason:.150}")


def _line_problem(
    fields: list[str], n_modes: int, shape: tuple[int, ...] | None, index_base: int
) -> str | None:
    """Return what is wrong with a line, None if nothing is."""
    if len(fields) != n_modes + 1:
        expected = f"{n_modes + 1} ({n_modes} indices and a value)"
        origin = "the first line has" if shape is None else f"shape={shape} needs"
        advice = "Complete or remove the line" + (", or give another shape." if shape else ".")
        return f"{len(fields)} columns, but {origin} {expected}. {advice}"
    for mode, text in enumerate(fields[:-1]):
        problem = _index_problem(text, None if shape is None else shape[mode], index_base)
        if problem is not None:
            return f"index {_shown(text)} of mode {mode} {problem}"
    try:
        # Python reads 1_000 as a number; the format does not.
        value = float(fields[-1].replace("_", "x"))
    except ValueError:
        return f"value {_shown(fields[-1])} is not a number."
    if not math.isfinite(value):
        return f"value {_shown(fields[-1])} is not finite or exceeds the range of float64."
    return None


def _index_problem(text: str, length: int | None, index_base: int) -> str | None:
    """Return what is wrong with an index of a mode of some length, None if nothing is."""
    if _INTEGER.fullmatch(text) is None:
        return "is not an integer."
    if len(text.lstrip("+-0")) > _MOST_DIGITS:  # Python does not turn any number of digits into one
        return "exceeds the range of 64-bit integers."
    index = int(text)
    if index < index_base:
        hint = " Give index_base=0 if the file counts from 0." if index == 0 else ""
        return f"is below index_base={index_base}.{hint}"
    if index - index_base >= _LARGEST:
        return "exceeds the range of 64-bit integers."
    if length is not None and index - index_base >= length:
        return f"is beyond its length {length}."
    return None
