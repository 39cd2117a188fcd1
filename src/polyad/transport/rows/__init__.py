"""Transport of rows of values to ordered targets, by Newton's method on the semi-dual.

From the outside in: ``transport`` is what others call, ``sinkhorn`` the same by a number of steps;
``entry_points`` treat blocks of rows; ``newton`` solves a row, ``adjoint`` has its derivatives,
``quadrature`` makes rows shorter where targets are many; ``kernels`` has what they share. ``long``
is for rows whose plans are too large, by nodes of ``boxes`` in place of values and targets.
"""

from __future__ import annotations

from polyad.transport.rows.costs import Cost
from polyad.transport.rows.long import LongTransport, is_long
from polyad.transport.rows.sinkhorn import SinkhornPlan
from polyad.transport.rows.transport import Gradients, RowTransport, SolvedPlan

__all__ = [
    "Cost",
    "Gradients",
    "LongTransport",
    "RowTransport",
    "SinkhornPlan",
    "SolvedPlan",
    "is_long",
]
