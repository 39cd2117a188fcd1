"""Files, and the objects of other packages."""

from polyad.io.anndata import read_anndata, write_anndata
from polyad.io.events import tensor_from_events
from polyad.io.interchange import (
    from_pyttb,
    from_sparse,
    from_tensorly,
    from_xarray,
    to_pyttb,
    to_sparse,
    to_tensorly,
    to_xarray,
)
from polyad.io.model import load
from polyad.io.tns import read_tns, write_tns

__all__ = [
    "from_pyttb",
    "from_sparse",
    "from_tensorly",
    "from_xarray",
    "load",
    "read_anndata",
    "read_tns",
    "tensor_from_events",
    "to_pyttb",
    "to_sparse",
    "to_tensorly",
    "to_xarray",
    "write_anndata",
    "write_tns",
]
