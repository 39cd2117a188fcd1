r"""Transport of sparse fibres against dense ones: the inner problem of SWIFT.

For each fibre, with ``x`` sparse and ``xhat`` dense and both nonnegative, the plan T minimises

    <C, T> + epsilon sum T log T + lam KL(T 1 || xhat) + lam KL(T' 1 || x)

(eq. 7 of the paper, ``epsilon = 1 / rho``). With a ``sharpness`` alpha above zero, the entropy is
relative to a power of the product of both fibres, with ``m`` the mass of ``x``:

    epsilon sum T (log T - alpha log(xhat x' / m) - alpha) + alpha epsilon sum xhat

which is a divergence at alpha = 1. The plan is then ``diag(xhat^alpha u) K diag((x / m)^alpha v)``
with ``K = exp(-C / epsilon - 1 + alpha)``. What a factorization needs is ``Delta = T 1``, the sums
of its rows, and the minimum. No plan is ever formed: the unknowns are one number for each nonzero.

How this differs from the paper: its 25 Sinkhorn steps on dense columns are far from converged for
most of its grid, and overflow for large rho. Here a fibre of one nonzero is solved in closed form,
and one of more by Newton's method on as many unknowns as it has nonzeros. A step costs
``size * (2 s + s^2 / 2)`` multiplications and ``size`` exponentials and logarithms for ``s``
nonzeros. :meth:`FibreTransport.sinkhorn` makes the published steps, for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import Blocks, cut_by_work, run_blocks
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.costs import check_range, validate_cost
from polyad.transport.fibres import entry_points
from polyad.transport.fibres.kernels import Fibres, Kernels, Results, Rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import sparray, spmatrix

# Columns of the kernel matrices are padded to whole vector registers.
_PADDING = 16
# The largest C / epsilon for which exp(-C / epsilon) is used as it is, in float32 and float64.
_SINGLE_RANGE, _DOUBLE_RANGE = 24.0, 100.0
# The residual of a solution, and of one on the way of a fit: the mass is at its minimum, so that
# the objective is wrong by the square of it.
_TOLERANCE, _FIT_TOLERANCE = 1e-10, 1e-7
# Evaluations of the residual before the second attempt; five are usual.
_BUDGET = 20
# What the fibres are solved by, the second only where the first left some.
_EXACT = (entry_points.usual_block, entry_points.careful_block)
# Multiplications in a block of fibres: long against the cost of a call, short against a fit.
_BLOCK_WORK = 1 << 21


@dataclass(frozen=True)
class SparseFibres:
    """Sparse nonnegative vectors of the same size, stored one after the other.

    Parameters
    ----------
    offsets : ndarray of int of shape (n_fibres + 1,)
        Fibre j has the nonzeros ``offsets[j]`` to ``offsets[j + 1]``.
    rows : ndarray of int of shape (nnz,)
        The positions of the nonzeros, each once in a fibre.
    values : ndarray of shape (nnz,)
        All above zero.
    size : int
        The length of each fibre.

    Examples
    --------
    >>> import numpy as np
    >>> SparseFibres.from_matrix(np.array([[0.0, 2.0], [1.0, 0.0], [3.0, 0.0]])).rows
    array([1, 2, 0])
    """

    offsets: NDArray[Any]
    rows: NDArray[Any]
    values: NDArray[Any]
    size: int

    def __post_init__(self) -> None:
        offsets, rows = _integers(self.offsets, "offsets"), _integers(self.rows, "rows")
        values = np.ascontiguousarray(self.values)
        if offsets.size == 0 or offsets[0] != 0 or offsets[-1] != rows.size:
            message = f"offsets must begin with 0 and end with the number of rows, {rows.size}."
            raise InvalidInputError(message)
        if np.any(np.diff(offsets) < 0):
            message = "offsets must never fall: each is where the nonzeros of a fibre begin."
            raise InvalidInputError(message)
        if values.shape != rows.shape:
            message = f"There are {rows.size} rows and {values.size} values; give one for each."
            raise InvalidInputError(message)
        if rows.size and not 0 <= rows.min() <= rows.max() < self.size:
            message = f"rows reach from {rows.min()} to {rows.max()}, outside 0..{self.size - 1}."
            raise InvalidInputError(message)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float64)
        if not np.all((values > 0) & (values < np.inf)):
            first = int(np.flatnonzero(~((values > 0) & (values < np.inf)))[0])
            message = (
                f"The value of nonzero {first} is {values[first]}. Stored values must be finite "
                "and above zero; leave zeros out."
            )
            raise InvalidInputError(message)
        for name, array in (("offsets", offsets), ("rows", rows), ("values", values)):
            object.__setattr__(self, name, array)

    @classmethod
    def from_matrix(cls, matrix: NDArray[Any] | sparray | spmatrix) -> SparseFibres:
        """Take the columns of a dense or sparse matrix as fibres."""
        from scipy.sparse import csc_array

        columns = csc_array(matrix)
        columns.sum_duplicates()
        columns.eliminate_zeros()
        return cls(columns.indptr, columns.indices, columns.data, int(columns.shape[0]))

    @property
    def n_fibres(self) -> int:
        """The number of fibres."""
        return int(self.offsets.size) - 1

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.rows.size)


def _integers(array: ArrayLike, name: str) -> NDArray[np.int64]:
    given = np.asarray(array)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        message = f"{name} must be a vector of integers, got {given.dtype} of shape {given.shape}."
        raise InvalidTypeError(message)
    return np.ascontiguousarray(given, dtype=np.int64)


@dataclass(frozen=True)
class FibreSolution:
    """The transport of some fibres.

    Attributes
    ----------
    marginals : ndarray of shape (n_fibres, size)
        ``Delta``: the sums of the rows of each plan, in the type of ``xhat``.
    log_v : ndarray of shape (nnz,)
        The logarithm of the scaling of each nonzero: the start for a later call. NaN where
        nothing is transported.
    masses : ndarray of shape (n_fibres,)
        The sum of each plan.
    values : ndarray of shape (n_fibres,)
        The objective of each fibre.
    residuals : ndarray of shape (n_fibres,)
        ``max |log v - phi (log x - log K'u)|``, zero at the solution.
    evaluations : ndarray of shape (n_fibres,)
        How often the residual was computed.
    n_fallback, n_unsolved : int
        How many fibres needed a second attempt, and how many missed the tolerance in the end.
    """

    marginals: NDArray[Any]
    log_v: NDArray[np.float64]
    masses: NDArray[np.float64]
    values: NDArray[np.float64]
    residuals: NDArray[np.float64]
    evaluations: NDArray[np.int32]
    n_fallback: int
    n_unsolved: int


class FibreTransport:
    """Unbalanced entropic transport between positions of one mode.

    Parameters
    ----------
    cost : array-like of shape (size, size)
        Symmetric, not negative, zero on the diagonal.
    epsilon : float, default=0.05
        Strength of the entropy, the paper's ``1 / rho``.
    marginal_penalty : float, default=1.0
        Weight of the divergences of the marginals, the paper's ``lambda``.
    sharpness : float, default=0.0
        The power of the reference of the entropy, between 0, the paper's, and 1.

    Attributes
    ----------
    size : int
    nbytes : int
        Memory of the kernel matrices: at most 20 bytes for each pair of positions.

    Examples
    --------
    >>> import numpy as np
    >>> transport = FibreTransport(1 - np.eye(2), epsilon=0.1)
    >>> x = SparseFibres.from_matrix(np.array([[3.0], [0.0]]))
    >>> transport.solve(x, np.array([[1.0, 2.0]])).marginals.round(6)
    array([[1.230304, 0.930814]])
    """

    def __init__(
        self,
        cost: ArrayLike,
        *,
        epsilon: float = 0.05,
        marginal_penalty: float = 1.0,
        sharpness: float = 0.0,
    ) -> None:
        for name, value in (("epsilon", epsilon), ("marginal_penalty", marginal_penalty)):
            if not isinstance(value, Real) or not 0.0 < value < np.inf:
                message = f"{name}={value!r} must be a finite number above zero."
                raise InvalidInputError(message)
        given: Any = sharpness
        if not isinstance(given, Real) or not 0.0 <= float(given) <= 1.0:
            message = f"sharpness={sharpness!r} must be a number from 0 to 1."
            raise InvalidInputError(message)
        checked = validate_cost(cost)
        self.size = len(checked)
        self.epsilon, self.marginal_penalty = float(epsilon), float(marginal_penalty)
        self.sharpness = float(sharpness)
        padded = -(-self.size // _PADDING) * _PADDING
        scaled = np.zeros((self.size, padded))
        check_range(float(checked.max()), self.epsilon, self.marginal_penalty)
        np.divide(checked, epsilon, out=scaled[:, : self.size])
        largest = float(scaled.max())
        double = np.exp(-scaled) if largest <= _DOUBLE_RANGE else np.empty((0, padded))
        is_small = largest <= _SINGLE_RANGE
        single = double.astype(np.float32) if is_small else np.empty((0, padded), np.float32)
        self._kernels = Kernels(scaled, double, single)

    @property
    def nbytes(self) -> int:
        """The memory of the kernel matrices."""
        return sum(matrix.nbytes for matrix in self._kernels)

    def solve(
        self,
        fibres: SparseFibres,
        xhat: NDArray[Any],
        *,
        log_v: NDArray[np.float64] | None = None,
        tol: float = _TOLERANCE,
    ) -> FibreSolution:
        """Solve the transport of each fibre.

        Parameters
        ----------
        fibres : SparseFibres
        xhat : ndarray of shape (n_fibres, size)
            Dense, nonnegative, float32 or float64: row j belongs to fibre j.
        log_v : ndarray of shape (nnz,), optional
            A start, from the solution of a similar problem.
        tol : float, default=1e-10
            Of the residual. For ``xhat`` in float32 at least 4e-6, what float32 can hold; the
            marginals are then within a few of its units of the exact ones.

        Returns
        -------
        FibreSolution
            The same for any number of threads.
        """
        if not tol > 0.0:
            message = f"tol={tol!r} must be above zero."
            raise InvalidInputError(message)
        start = np.full(fibres.nnz, np.nan)
        if log_v is not None:
            if np.shape(log_v) != start.shape:
                message = f"log_v has the shape {np.shape(log_v)}; one for each of {fibres.nnz}."
                raise InvalidInputError(message)
            start[:] = log_v
        dense, pieces = self._check(fibres, xhat), _cut(fibres.offsets, self.size)
        return self._run((_EXACT, tol, _BUDGET), fibres, dense, start, pieces)

    def sinkhorn(
        self, fibres: SparseFibres, xhat: NDArray[Any], *, n_steps: int = 25
    ) -> FibreSolution:
        """Make the published number of Sinkhorn steps from ``u = 1 / size``.

        Parameters
        ----------
        fibres : SparseFibres
        xhat : ndarray of shape (n_fibres, size)
        n_steps : int, default=25

        Returns
        -------
        FibreSolution
            Not converged in general: see ``residuals``. Values are those of the plan so far.
        """
        if self.sharpness > 0.0:
            message = (
                f"The published iteration has no sharpness, got {self.sharpness!r}. Set it to 0, "
                "or solve the transports exactly."
            )
            raise InvalidInputError(message)
        if n_steps < 1:
            message = f"n_steps={n_steps!r} must be at least 1."
            raise InvalidInputError(message)
        start = np.full(fibres.nnz, np.nan)
        dense, pieces = self._check(fibres, xhat), _cut(fibres.offsets, self.size)
        method = ((entry_points.published_block,), np.inf, n_steps)
        return self._run(method, fibres, dense, start, pieces)

    def solve_block(
        self, fibres: SparseFibres, xhat: NDArray[Any], log_v: NDArray[np.float64]
    ) -> FibreSolution:
        """Solve like :meth:`solve` as a fit needs it, in one piece on this thread; check nothing.

        ``log_v`` is the start, NaN where there is none, and is replaced by the solution.
        """
        piece = (0, fibres.n_fibres)
        return self._run((_EXACT, _FIT_TOLERANCE, _BUDGET), fibres, xhat, log_v, [piece])

    def _run(
        self,
        method: tuple[tuple[Callable[..., None], ...], float, int],
        fibres: SparseFibres,
        xhat: NDArray[Any],
        log_v: NDArray[np.float64],
        pieces: Blocks,
    ) -> FibreSolution:
        """Run kernels, with their tolerance and their budget, until no fibre is pending.

        They work in float64, which holds data of float32: compiled once, for both.
        """
        (kernels, tol, budget), n = method, fibres.n_fibres
        results = Results(
            np.empty(xhat.shape),
            log_v,
            np.empty(n),
            np.empty(n),
            np.empty(n),
            np.empty(n, np.int32),
            np.empty(n, np.uint8),
        )
        is_single, tau = xhat.dtype == np.float32, self.marginal_penalty / self.epsilon
        rules = Rules(self.epsilon, tau, tol, budget, is_single, self.sharpness)
        given = Fibres(fibres.offsets, fibres.rows, fibres.values.astype(np.float64, copy=False))
        wide, pending = xhat.astype(np.float64, copy=False), pieces
        for kernel in kernels:
            if not pending:
                break
            run_blocks(
                kernel, ((self._kernels, given, wide, rules, piece, results) for piece in pending)
            )
            waits = results.endings == entry_points.PENDING
            pending = [piece for piece in pieces if waits[slice(*piece)].any()]
        return FibreSolution(
            results.marginals.astype(xhat.dtype, copy=False),
            *results[1:-1],
            n_fallback=int(np.count_nonzero(results.endings == entry_points.FALLBACK)),
            n_unsolved=int(np.count_nonzero(results.endings == entry_points.UNSOLVED)),
        )

    def _check(self, fibres: SparseFibres, xhat: NDArray[Any]) -> NDArray[Any]:
        if fibres.size != self.size:
            message = f"The fibres have the size {fibres.size}, the cost has {self.size}."
            raise InvalidInputError(message)
        dense = np.asarray(xhat)
        if dense.dtype not in (np.float32, np.float64):
            dense = dense.astype(np.float64)
        if dense.shape != (fibres.n_fibres, self.size):
            message = (
                f"xhat has the shape {dense.shape}; {fibres.n_fibres} fibres of the size "
                f"{self.size} need {(fibres.n_fibres, self.size)}."
            )
            raise InvalidInputError(message)
        if dense.size and not (dense.min() >= 0 and dense.max() < np.inf):
            bad = np.argwhere(~((dense >= 0) & (dense < np.inf)))[0]
            message = (
                f"xhat is {dense[tuple(bad)]} at {tuple(map(int, bad))}; its entries must be "
                "finite and not negative."
            )
            raise InvalidInputError(message)
        return np.require(dense, requirements=("C", "A", "W"))


def _cut(offsets: NDArray[np.int64], size: int) -> Blocks:
    """Cut the fibres into blocks of like work."""
    lengths = np.diff(offsets)
    return cut_by_work((lengths * lengths + 8 * lengths + 16) * size, _BLOCK_WORK)
