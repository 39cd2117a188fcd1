"""Writing a file so that a crash leaves the old one or the new one, whole; one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import platform
import sys
import tempfile
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from polyad.exceptions import InvalidTypeError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that takes its place when the block ends well.

    If the block raises, or the disk is full, or the process dies, ``path`` keeps what it had. What
    a process that was killed left of such a file is removed with the next one. A link stays a link:
    the file that it points to is replaced.
    """
    target = read_path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if not target.parent.is_dir():
        message = f"The folder of {target.name} does not exist. Create it first"
        raise FileNotFoundError(errno.ENOENT, message, str(target.parent))
    if target.is_dir():
        message = "This is a folder. Give the path of a file in it"
        raise IsADirectoryError(errno.EISDIR, message, str(target))
    # A part of the name is enough to tell whose the file is, and leaves room for the rest.
    name = f".{target.name[:40]}.{_place()}-"
    _remove_leftovers(target.parent, name)
    handle, temporary = tempfile.mkstemp(
        prefix=f"{name}{os.getpid()}-", suffix=".polyad.tmp", dir=target.parent
    )
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _mode_of(target))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise BlockingIOError if a file, which need not exist, is held; else hold it for the block.

    The system forgets a process that has died, and what it held. Where the system has no such
    locks, nothing is held.
    """
    target = Path(os.path.realpath(read_path(path)))
    if sys.platform == "win32":
        yield
        return
    # The file itself is replaced while it is held, so that a second one beside it is locked.
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]
    beside = target.parent / f".{target.name[:40]}.{name}.polyad.lock"
    handle = _lock(beside)
    try:
        yield
    finally:
        # While it is still locked: nobody else can have taken it over.
        with contextlib.suppress(OSError):
            os.unlink(beside)
        os.close(handle)


def _lock(path: Path) -> int:
    """Return an open file that is locked, and is the one that others find under its name."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:  # a file system without locks
            return handle
        if _is_file_at(path, handle):
            return handle
        os.close(handle)  # removed by the one that held it, between the opening and the lock


def _is_file_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _mode_of(target: Path) -> int:
    """Return the permissions of the file to replace, or those of a new file."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        # The system offers no way to read the umask without setting it.
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def read_path(path: object) -> Path:
    """Return a path, or say what was given instead of one."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    message = f"The path is a {type(path).__name__}: {path!r}. Give the name of a file."
    raise InvalidTypeError(message)


@lru_cache(maxsize=1)
def _place() -> str:
    """Return a short name for this machine or container: numbers of processes are its own."""
    container = ""
    with contextlib.suppress(OSError):
        container = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {container}".encode()).hexdigest()[:8]


def _remove_leftovers(folder: Path, name: str) -> None:
    """Remove what processes that no longer run left of files that they were writing."""
    if os.name != "posix":  # elsewhere there is no harmless way to ask for a process
        return
    with contextlib.suppress(OSError):
        for entry in folder.glob(f"{glob.escape(name)}*.polyad.tmp"):
            process = entry.name.removeprefix(name).partition("-")[0]
            if process.isdecimal() and not _is_running(int(process)):
                entry.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # the signal zero asks and does nothing
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
