"""What the kernels of Poisson CP are given: named tuples of arrays, which Numba understands."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]


class Slices(NamedTuple):
    """The nonzeros of a tensor, sorted by the index of one mode."""

    starts: NDArray[np.int64]
    """(n_slices + 1,): the first nonzero of each slice that has any."""
    targets: NDArray[np.int64]
    """(n_slices,): the row of the factor that a slice belongs to."""
    entries: NDArray[Any]
    """(n_nonzeros, n_modes - 1): unsigned rows of the stacked factors of the other modes."""
    values: Vector
    """(n_nonzeros,)."""


class Model(NamedTuple):
    """The other factors."""

    stack: Vector
    """(sum of all sizes, R): all factors, one below the other."""
    scale: Vector
    """(1 or n_rows, R): one over ``d``, and zero where nothing was observed."""


class Rules(NamedTuple):
    """When the work on a row ends."""

    sweeps: int
    tol: float
    """Of the KKT violation in shares, and in Newton's method of the gains."""
    least: float
    """Model values below this count as this: keeps logarithms of impossible counts finite."""


class Rows(NamedTuple):
    """What the kernels fill."""

    masses: Vector
    """(n_rows, R): ``d * b``, in and out."""
    violations: Vector
    """(n_slices,): the KKT violation ``max |min(d b, 1 - phi)|`` before the update."""
    sweeps: NDArray[np.int64]
    """(n_slices,): how many updates a row took."""


class Work(NamedTuple):
    """What every pass over a row reads, and the buffers of one thread."""

    slices: Slices
    model: Model
    products: Vector
    """(R, chunk): the ``pi`` of the nonzeros of a chunk, divided by ``d``."""
    fitted: Vector
    """(chunk,): the model at the nonzeros, in shares."""
    ratio: Vector
    """(chunk,): data over model."""


class Row(NamedTuple):
    """One row: where its nonzeros are."""

    first: int
    last: int
    total: float
    scale: Vector
