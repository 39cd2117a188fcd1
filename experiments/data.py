"""Where the data sets are."""

from __future__ import annotations

import os
from pathlib import Path


def data_file(name: str) -> Path:
    """Return a file of the folder that the environment variable POLYAD_DATA names.

    The program ends with a message that says what is missing.
    """
    folder = os.environ.get("POLYAD_DATA")
    if not folder:
        message = (
            f"This experiment reads {name} from the folder that the environment variable "
            "POLYAD_DATA names, and it is not set. Run it as POLYAD_DATA=/path/to/data python -m "
            "experiments..."
        )
        raise SystemExit(message)
    path = Path(folder) / name
    if not path.exists():
        message = f"{path} is missing: POLYAD_DATA={folder} must hold the file {name}."
        raise SystemExit(message)
    return path
