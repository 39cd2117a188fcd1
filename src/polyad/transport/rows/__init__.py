"""Transport of rows of values to ordered targets, by Newton's method on the semi-dual."""

from __future__ import annotations

from polyad.transport.rows.costs import Cost
from polyad.transport.rows.sinkhorn import SinkhornPlan
from polyad.transport.rows.transport import Gradients, RowTransport, SolvedPlan

__all__ = ["Cost", "Gradients", "RowTransport", "SinkhornPlan", "SolvedPlan"]
