"""Similarities in model files, which hold arrays, text and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from polyad.cp.similarity.laplacian import is_sparse


def pack(similarities: Any) -> Any:
    """Turn what a user gave into what a file holds.

    Parameters
    ----------
    similarities : object
        As the estimator accepts it.
    """
    if similarities is None or isinstance(similarities, str):
        return similarities
    if isinstance(similarities, Mapping):
        pairs = [[_plain(key), _pack_entry(entry)] for key, entry in similarities.items()]
        return {"form": "dict", "entries": pairs}
    return {"form": "list", "entries": [_pack_entry(entry) for entry in similarities]}


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
    if is_sparse(entry):
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
        return csr_array((packed["values"], pairs), shape=tuple(packed["shape"]))
    if "index" in packed:
        import pandas as pd

        return pd.DataFrame(packed["matrix"], index=packed["index"], columns=packed["columns"])
    return packed["matrix"]
