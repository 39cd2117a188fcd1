"""Writing a file so that a crash leaves the old one or the new one, whole."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that takes its place when the block ends well.

    If the block raises, or the disk is full, or the process dies, ``path`` keeps what it had.

    Parameters
    ----------
    path : path-like
        The file to create or replace.
    """
    target = Path(path)
    if not target.parent.is_dir():
        message = f"The folder of {target.name} does not exist. Create it first"
        raise FileNotFoundError(errno.ENOENT, message, str(target.parent))
    # A part of the name is enough to tell whose the file is, and leaves room for the rest.
    handle, temporary = tempfile.mkstemp(
        prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent
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


def _mode_of(target: Path) -> int:
    """Return the permissions of the file to replace, or those of a new file."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        # The system offers no way to read the umask without setting it.
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
