"""Numba kernels of the transport of sparse fibres: the residual, its derivative, a Newton step.

For a fibre with nonzeros ``x_k``, ``a_k = log v_k`` are the unknowns. With ``K`` the kernel of the
paper, ``tau = lambda rho`` and ``kappa = 1 / (tau + 1)``, eliminating ``u`` leaves

    r_i = xhat_i^(1 - kappa) (sum_k K_ik v_k)^kappa        the row sums of the plan
    q_k = v_k sum_i K_ik r_i / (K v)_i                     the column sums of the plan
    p_k = x_k v_k^(-1 / tau)                               what they should be

The solution has ``q = p``, and it minimises the convex ``(tau + 1) sum r + tau sum p``. Adding a
number to all of ``a`` only scales ``q`` and ``p``, so its best value is known in closed form and
is taken at each evaluation. After that ``sum r = sum q = sum p``, and the function is the mass of
the plan times ``2 tau + 1``: its logarithm is the merit of a point.

With a reference of the entropy (``sharpness``, ``alpha``) the plan is that of the same problem for
``xhat (e xhat)^(alpha / tau)`` and ``x (x / m)^(alpha / tau)``, ``m`` the mass of ``x``: only the
logarithms that a fibre begins with are others.

Newton's method solves ``h = log(q / p) = 0``, which is nearly linear in ``a``. Its matrix,
``(1 + 1 / tau) diag(q) - phi B`` with ``B = P' diag(r) P`` and ``P_ik = K_ik v_k / (K v)_i``, is
symmetric, positive definite and diagonally dominant, because ``B 1 = q``.

Kernel rows are held relative to a reference: ``K_ik v_k = rows_ki exp(a_k - reference_k + m_i)``.
Either the reference is one number and the rows are those of ``exp(-C / epsilon)``, or the
reference is an earlier ``a`` and ``m_i`` makes the largest row entry one; then no cost, scale of
the data or regularisation is out of range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyad.core.compiled import ordered_part, owning_part, part
from polyad.core.vector_math import fast_exp, fast_log

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
# The logarithm of a marginal that is zero: every exponential of it is zero, in float32 too.
NOTHING = -1e30
# The rounding of ``a`` changes the residual by about this part of it.
ROUNDING = 1e-15
# Column sums below this part of the unit count as out of range.
_LEAST_SHARE = 1e-250


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
    is_single: bool
    """Whether the data is float32, which the usual fibres then do with."""
    sharpness: float
    """The power ``alpha`` of the entropy's reference: see ``transport``."""


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
    values: Vector
    """(nnz,): all above zero."""


class Results(NamedTuple):
    """What the kernels fill, all of it for all fibres."""

    marginals: Vector
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
    """(n_fibres,): one of the endings in ``entry_points``."""


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
    stiffness: float
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


@owning_part
def make_grid(most: int, like: NDArray[Any]) -> NDArray[Any]:
    """Return the work space of fibres of at most so many nonzeros, for a kernel matrix."""
    return np.empty((ROWS + round_up(most), like.shape[1]), like.dtype)


@owning_part
def make_unknowns(most: int) -> NDArray[np.float64]:
    """Return the work space for the unknowns of such fibres."""
    lanes = (most + 7) // 8 * 8
    return np.empty((MATRIX + lanes, lanes))


@part
def row_power(tau: float, sharpness: float) -> float:
    """Return the power of the model in the marginals."""
    return (tau + sharpness) / (tau + 1.0)


@part
def refer_to_data(unknowns: NDArray[np.float64], n: int, power: float) -> None:
    """Turn ``log x`` into ``log x + power log(x / m)``, where ``m`` is the sum of ``x``."""
    if power > 0.0:
        highest, mass = -np.inf, 0.0
        for k in range(n):
            highest = max(highest, unknowns[LOG_X, k])
        for k in range(n):
            mass += fast_exp(unknowns[LOG_X, k] - highest)
        shift = highest + fast_log(mass)
        for k in range(n):
            unknowns[LOG_X, k] += power * (unknowns[LOG_X, k] - shift)


@part
def log_marginal(xhat: NDArray[Any], phi: float, shift: float, out: NDArray[Any]) -> float:
    """Fill ``out`` with ``phi log xhat + shift``, and return its largest entry."""
    n = xhat.size
    for i in range(n):
        out[i] = xhat[i]
    for i in range(n, out.size):
        out[i] = 0.0
    largest = NOTHING
    for i in range(out.size):
        value = phi * fast_log(out[i]) + shift
        # Comparisons with minus infinity are false: zero becomes "nothing".
        out[i] = value if value > NOTHING else NOTHING
    for i in range(n):
        largest = max(largest, out[i])
    return largest


@part
def gather_rows(
    table: NDArray[Any], rows: NDArray[np.int64], first: int, last: int, grid: NDArray[Any]
) -> None:
    """Copy the kernel rows of some nonzeros, and add rows of zeros up to a multiple of four."""
    size, n = grid.shape[1], last - first
    for k in range(n):
        row = np.uint64(rows[first + k])
        for i in range(size):
            grid[ROWS + k, i] = table[row, i]
    for k in range(n, round_up(n)):
        for i in range(size):
            grid[ROWS + k, i] = 0.0


@part
def absorb_rows(task: Task, grid: NDArray[Any], unknowns: NDArray[np.float64]) -> None:
    """Make kernel rows relative to the reference; ``spare`` gets ``m``."""
    rows, scaled, stiffness = task.rows, task.kernels.scaled, task.settings.stiffness
    size = grid.shape[1]
    for i in range(size):
        grid[SPARE, i] = -np.inf
    for k in range(rows.size):
        row, shift = np.uint64(rows[k]), unknowns[REFERENCE, k]
        for i in range(size):
            grid[SPARE, i] = max(grid[SPARE, i], shift - stiffness * scaled[row, i])
    for k in range(rows.size):
        row, shift = np.uint64(rows[k]), unknowns[REFERENCE, k]
        for i in range(size):
            grid[ROWS + k, i] = fast_exp((shift - stiffness * scaled[row, i]) - grid[SPARE, i])
    for k in range(rows.size, round_up(rows.size)):
        for i in range(size):
            grid[ROWS + k, i] = 0.0


@part
def round_up(n: int) -> int:
    """Return the next multiple of four: loops take that many kernel rows at once."""
    return (n + 3) // 4 * 4


@part
def add_rows(
    grid: NDArray[Any], unknowns: NDArray[np.float64], n: int, weights: np.int64, to: np.int64
) -> None:
    """Fill a row of the work space with the sum of the kernel rows by a row of weights."""
    of_type = grid.dtype.type
    for k in range(0, n, 4):
        w0, w1 = of_type(unknowns[weights, k]), of_type(unknowns[weights, k + 1])
        w2, w3 = of_type(unknowns[weights, k + 2]), of_type(unknowns[weights, k + 3])
        row = ROWS + k
        if k == 0:
            for i in range(grid.shape[1]):
                grid[to, i] = (w0 * grid[row, i] + w1 * grid[row + 1, i]) + (
                    w2 * grid[row + 2, i] + w3 * grid[row + 3, i]
                )
        else:
            for i in range(grid.shape[1]):
                grid[to, i] += (w0 * grid[row, i] + w1 * grid[row + 1, i]) + (
                    w2 * grid[row + 2, i] + w3 * grid[row + 3, i]
                )


@part
def dot_rows(grid: NDArray[Any], unknowns: NDArray[np.float64], n: int) -> None:
    """Fill ``q`` with the products of the kernel rows with ``spare``."""
    for k in range(0, n, 4):
        s0 = s1 = s2 = s3 = grid.dtype.type(0.0)
        row = ROWS + k
        for i in range(grid.shape[1]):
            y = grid[SPARE, i]
            s0 += grid[row, i] * y
            s1 += grid[row + 1, i] * y
            s2 += grid[row + 2, i] * y
            s3 += grid[row + 3, i] * y
        unknowns[Q, k], unknowns[Q, k + 1] = s0, s1
        unknowns[Q, k + 2], unknowns[Q, k + 3] = s2, s3


@part
def gram_rows(grid: NDArray[Any], out: NDArray[np.float64], n: int) -> None:
    """Fill the matrix with ``rows diag(spare) rows'``, its lower triangle and a little more."""
    zero = grid.dtype.type(0.0)
    for k in range(0, n, 2):
        row, target = ROWS + k, MATRIX + k
        for m in range(0, k + 2, 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            other = ROWS + m
            for i in range(grid.shape[1]):
                y = grid[SPARE, i]
                ya, yb = y * grid[row, i], y * grid[row + 1, i]
                r0, r1 = grid[other, i], grid[other + 1, i]
                r2, r3 = grid[other + 2, i], grid[other + 3, i]
                a0 += ya * r0
                a1 += ya * r1
                a2 += ya * r2
                a3 += ya * r3
                b0 += yb * r0
                b1 += yb * r1
                b2 += yb * r2
                b3 += yb * r3
            out[target, m], out[target, m + 1] = a0, a1
            out[target, m + 2], out[target, m + 3] = a2, a3
            out[target + 1, m], out[target + 1, m + 1] = b0, b1
            out[target + 1, m + 2], out[target + 1, m + 3] = b2, b3


@part
def evaluate(
    settings: Settings,
    grid: NDArray[Any],
    unknowns: NDArray[np.float64],
    at: np.int64,
    level: float,
) -> Point:
    """Compute marginals, column sums and ``trial_h`` at a row of the unknowns.

    ``level`` is the logarithm of the unit of ``base``. The best shift is added to the unknowns and
    to the reference, so the kernel rows stay as they are, and the unit becomes that of the result.
    """
    n, tau = settings.n, settings.tau
    kappa, rate = 1.0 / (tau + 1.0), 1.0 / tau
    for k in range(n):
        unknowns[WEIGHTS, k] = fast_exp(unknowns[at, k] - unknowns[REFERENCE, k])
    for k in range(n, round_up(n)):
        unknowns[WEIGHTS, k] = 0.0
    add_rows(grid, unknowns, n, WEIGHTS, SUMS)
    marginals_of_sums(grid, kappa)
    dot_rows(grid, unknowns, n)
    mass, least, highest = 0.0, np.inf, -np.inf
    for k in range(n):
        unknowns[Q, k] *= unknowns[WEIGHTS, k]
        mass += unknowns[Q, k]
        least = min(least, unknowns[Q, k])
        highest = max(highest, unknowns[LOG_X, k] - rate * unknowns[at, k])
    if not (least > _LEAST_SHARE and mass < np.inf):
        return unsound(level)
    shift, log_mass = 0.0, fast_log(mass)
    if settings.shifts:
        wanted = 0.0
        for k in range(n):
            wanted += fast_exp(unknowns[LOG_X, k] - rate * unknowns[at, k] - highest)
        shift = (fast_log(wanted) + highest - log_mass - level) / (kappa + rate)
        level += kappa * shift
    residual, size = 0.0, 0.0
    for k in range(n):
        unknowns[at, k] += shift
        unknowns[REFERENCE, k] += shift
        excess = fast_log(unknowns[Q, k]) + level - unknowns[LOG_X, k] + rate * unknowns[at, k]
        unknowns[TRIAL_H, k] = excess
        residual = max(residual, abs(excess))
        size = max(size, abs(unknowns[at, k]))
    return Point(level, log_mass + level, residual * tau * kappa, ROUNDING * size, True)


@ordered_part
def marginals_of_sums(grid: NDArray[Any], kappa: float) -> None:
    """Fill ``marginals`` with ``exp(base) sums^kappa``, ``spare`` with those over ``sums``."""
    power, one = grid.dtype.type(kappa), grid.dtype.type(1.0)
    for i in range(grid.shape[1]):
        grid[SPARE, i] = grid[BASE, i] + power * fast_log(grid[SUMS, i])
    for i in range(grid.shape[1]):
        grid[MARGINALS, i] = fast_exp(grid[SPARE, i])
    for i in range(grid.shape[1]):
        reciprocal = one / grid[SUMS, i]
        grid[INVERSE, i] = reciprocal
        grid[SPARE, i] = grid[MARGINALS, i] * reciprocal


@part
def unsound(level: float) -> Point:
    """Return the point of an evaluation that left the range of the numbers."""
    return Point(level, np.inf, np.inf, 0.0, False)


@part
def newton_direction(
    settings: Settings, grid: NDArray[Any], unknowns: NDArray[np.float64]
) -> float:
    """Fill ``step`` and return the slope of the merit along it, infinite if there is none."""
    n, tau = settings.n, settings.tau
    phi = tau / (tau + 1.0)
    for i in range(grid.shape[1]):
        grid[SPARE, i] *= grid[INVERSE, i]
    gram_rows(grid, unknowns, n)
    if not assemble(unknowns, n, tau, phi):
        return np.inf
    for k in range(n):
        unknowns[STEP, k] = -unknowns[Q, k] * unknowns[H, k]
    substitute(unknowns, n)
    mass, slope = 0.0, 0.0
    for k in range(n):
        mass += unknowns[Q, k]
        # q - p = q (1 - exp(-h)).
        slope += unknowns[Q, k] * (1.0 - fast_exp(-unknowns[H, k])) * unknowns[STEP, k]
    return slope / (mass * (2.0 * tau + 1.0))


@part
def assemble(unknowns: NDArray[np.float64], n: int, tau: float, phi: float) -> bool:
    """Make Newton's matrix of the products of the kernel rows, and factorize it."""
    for k in range(n):
        scale = -phi * unknowns[WEIGHTS, k]
        for m in range(k + 1):
            unknowns[MATRIX + k, m] *= scale * unknowns[WEIGHTS, m]
        unknowns[MATRIX + k, k] += (1.0 + 1.0 / tau) * unknowns[Q, k]
    return _factorize(unknowns, n)


@part
def _factorize(unknowns: NDArray[np.float64], n: int) -> bool:
    """Put the Cholesky factor into the lower triangle, the inverse of its diagonal on it."""
    for k in range(n):
        row = MATRIX + k
        for m in range(k):
            other = MATRIX + m
            total = unknowns[row, m]
            for j in range(m):
                total -= unknowns[row, j] * unknowns[other, j]
            unknowns[row, m] = total * unknowns[other, m]
        total = unknowns[row, k]
        for j in range(k):
            total -= unknowns[row, j] * unknowns[row, j]
        if not total > 0.0:
            return False
        unknowns[row, k] = 1.0 / np.sqrt(total)
    return True


@part
def substitute(unknowns: NDArray[np.float64], n: int) -> None:
    """Solve the factorized system for ``step``, in place."""
    for k in range(n):
        total = unknowns[STEP, k]
        for j in range(k):
            total -= unknowns[MATRIX + k, j] * unknowns[STEP, j]
        unknowns[STEP, k] = total * unknowns[MATRIX + k, k]
    for k in range(n - 1, -1, -1):
        unknowns[STEP, k] *= unknowns[MATRIX + k, k]
        for j in range(k):
            unknowns[STEP, j] -= unknowns[MATRIX + k, j] * unknowns[STEP, k]
