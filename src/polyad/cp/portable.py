"""Matrices of the modes, such as similarities and costs, in model files.

Files hold arrays, text and lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import coo_array, issparse


def pack(matrices: Any) -> Any:
    """Turn what a user gave into what a file holds.

    Parameters
    ----------
    matrices : object
        As an estimator accepts them: a name, or a dict or sequence of names, arrays and frames.
    """
    if matrices is None or isinstance(matrices, str):
        return matrices
    if isinstance(matrices, Mapping):
        pairs = [[_plain(key), _pack_entry(entry)] for key, entry in matrices.items()]
        return {"form": "dict", "entries": pairs}
    return {"form": "list", "entries": [_pack_entry(entry) for entry in matrices]}


def unpack(packed: Any) -> Any:
    """Undo :func:`pack`.

    Parameters
    ----------
    packed : object
        From a file.
    """
    if packed is None or isinstance(packed, str):
        return packed
    if packed["form"] == "dict":
        return {key: _unpack_entry(entry) for key, entry in packed["entries"]}
    return [_unpack_entry(entry) for entry in packed["entries"]]


def _plain(key: Any) -> Any:
    return int(key) if isinstance(key, np.integer) else key


def _pack_entry(entry: Any) -> Any:
    if entry is None or isinstance(entry, str):
        return entry
    is_sparse: bool = issparse(entry)
    if is_sparse:
        stored = entry.tocoo()
        return {
            "shape": list(map(int, stored.shape)),
            "rows": np.asarray(stored.row),
            "columns": np.asarray(stored.col),
            "values": stored.data,
        }
    if hasattr(entry, "columns") and hasattr(entry, "index"):
        labels = {axis: _texts(getattr(entry, axis).to_numpy()) for axis in ("index", "columns")}
        return {"matrix": entry.to_numpy(), **labels}
    return {"matrix": np.asarray(entry)}


def _texts(labels: np.ndarray) -> np.ndarray:
    """Return labels of a type that a file holds: text is not an object there."""
    return labels.astype(str) if labels.dtype.kind in "OT" else labels


def _unpack_entry(packed: Any) -> Any:
    if packed is None or isinstance(packed, str):
        return packed
    if "rows" in packed:
        pairs = (packed["rows"], packed["columns"])
        # A format with a number for each row would take what memory the file says.
        return coo_array((packed["values"], pairs), shape=tuple(packed["shape"]))
    if "index" in packed:
        import pandas as pd

        return pd.DataFrame(packed["matrix"], index=packed["index"], columns=packed["columns"])
    return packed["matrix"]
