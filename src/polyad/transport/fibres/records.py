"""What the transport kernels are given: named tuples of arrays, which Numba understands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]


class Rules(NamedTuple):
    """The two parameters of the problem, and when the work on a fibre ends.

    In the letters of the paper, with ``epsilon = 1 / rho``: ``tau = lambda rho`` and
    ``phi = tau / (tau + 1)``.
    """

    epsilon: float
    tau: float
    tol: float
    """Of the residual ``max |g|``."""
    budget: int
    """Evaluations of a first attempt; each stage of the second one has five times as many."""


class Kernels(NamedTuple):
    """The cost of a mode as the kernels want it; columns are padded to a multiple of 16."""

    scaled: Vector
    """(size, padded): ``C / epsilon``."""
    double: Vector
    """(size, padded) or (0, padded): ``exp(-C / epsilon)``, if all of it is a normal number."""
    single: NDArray[np.float32]
    """The same in float32, if its range allows."""


class Fibres(NamedTuple):
    """Sparse fibres, one after the other."""

    offsets: NDArray[np.int64]
    """(n_fibres + 1,): where the nonzeros of each fibre begin."""
    rows: NDArray[np.int64]
    """(nnz,): positions along the fibre."""
    values: NDArray[Any]
    """(nnz,): all above zero."""


class Results(NamedTuple):
    """What the kernels fill, all of it for all fibres."""

    marginals: NDArray[Any]
    """(n_fibres, size): row sums of the plans, ``Delta``."""
    log_v: Vector
    """(nnz,): the logarithm of the scaling of each nonzero; in as a start, and out."""
    masses: Vector
    """(n_fibres,): sums of the plans."""
    values: Vector
    """(n_fibres,): the minimum of each fibre."""
    residuals: Vector
    """(n_fibres,): ``max |g|`` at the end."""
    evaluations: NDArray[np.int32]
    """(n_fibres,): how often ``g`` was computed."""
    endings: NDArray[np.uint8]
    """(n_fibres,): one of the endings in ``fibres.py``."""


class Task(NamedTuple):
    """The transport of one fibre."""

    kernels: Kernels
    rows: NDArray[np.int64]
    """(n,): positions of its nonzeros."""
    marginal: Vector
    """(padded,): ``phi log xhat``, and minus infinity in effect where that is zero."""
    highest: float
    """The largest entry of ``marginal``."""
    settings: Settings


class Settings(NamedTuple):
    """The numbers of a task."""

    n: int
    """How many nonzeros the fibre has."""
    tau: float
    sharpness: float
    """The cost is multiplied by this: one, and less on the way there."""
    shifts: bool
    """Whether each evaluation takes the best shift; the published iteration does not."""


class Point(NamedTuple):
    """Numbers that go with an evaluation."""

    level: float
    """The logarithm of the unit of the marginals and column sums."""
    merit: float
    """The logarithm of the mass, which the solution minimises."""
    residual: float
    rounding: float
    """What the residual cannot be told from."""
    is_sound: bool
    """Whether every number was in range."""


# Two matrices are the work space of a fibre. They are no named tuples because reading an array from
# a tuple costs as much as a short loop. The first, ``grid``, is float32 or float64 and has rows as
# long as a padded fibre:

BASE = 0
"""The logarithm of the marginals but for the kernel."""
SUMS = np.int64(1)
"""``K v``, relative to the reference."""
INVERSE = 2
"""``1 / sums``."""
MARGINALS = 3
"""``Delta``, relative to ``exp(level)``."""
SPARE = np.int64(4)
ROWS = 5
"""The first of the kernel rows of the nonzeros, relative to the reference."""

# The second, ``unknowns``, is float64 with rows as long as the nonzeros, then a square matrix:

# Arguments of kernels have a type of NumPy: Numba compiles anew for each Python constant.
LOG_X = np.int64(0)
A = np.int64(1)
"""``log v``, the unknowns."""
TRIAL = np.int64(2)
REFERENCE = 3
"""The ``a`` that the kernel rows are relative to."""
WEIGHTS = np.int64(4)
"""``v`` relative to the reference."""
Q = np.int64(5)
"""Column sums of the plan, relative to ``exp(level)``."""
H = np.int64(6)
"""``log`` of the column sums of the plan over what they should be."""
TRIAL_H = 7
STEP = np.int64(8)
MATRIX = 9
