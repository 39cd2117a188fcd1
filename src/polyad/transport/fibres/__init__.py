"""Transport of sparse fibres against dense ones, by Newton's method: the inner problem of SWIFT."""

from __future__ import annotations

from polyad.transport.fibres.transport import FibreSolution, FibreTransport, SparseFibres

__all__ = ["FibreSolution", "FibreTransport", "SparseFibres"]
