"""Transport of sparse fibres against dense ones, by Newton's method: the inner problem of SWIFT.

From the outside in: ``transport`` is what others call; ``entry_points`` choose for each fibre how
it is solved; ``mixed_precision`` is the quick way to the solution and ``damped_newton`` the careful
one; ``kernels`` has the equations, and the Newton step that both make.
"""

from __future__ import annotations

from polyad.transport.fibres.transport import FibreSolution, FibreTransport, SparseFibres

__all__ = ["FibreSolution", "FibreTransport", "SparseFibres"]
