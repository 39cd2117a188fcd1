r"""The Wasserstein distance of vectors, matrices and tensors (Definitions 1 and 2 of SWIFT).

Of two vectors of equal mass: the least cost of moving one to the other, with an entropy term if
``epsilon`` is given. Of matrices: the sum over columns. Of tensors: the sum over modes of the
distances of the unfoldings.

Without entropy, and if each cost is a metric, this is a metric between tensors whose fibres have
equal masses. With entropy it is not: the distance of a vector to itself is not zero, and may
be negative.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.data.mode_matrices import WeightedSum
from polyad.exceptions import InvalidInputError, InvalidTypeError, warn_user
from polyad.transport.costs import number_cells, validate_cost
from polyad.transport.geometry import Geometry
from polyad.transport.sinkhorn import check_masses, sinkhorn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import coo_array, csc_array

# Rounding of sums of costs, as a part of the largest.
_METRIC = 1e-12
# Masses of float32 data are known to fewer digits.
_MASS_RTOL = {4: 1e-4, 8: 1e-6}


def wasserstein_distance(
    x: ArrayLike | coo_array[Any, Any],
    y: ArrayLike | coo_array[Any, Any],
    cost: ArrayLike | Sequence[ArrayLike] | Geometry,
    *,
    epsilon: float | None = None,
    tol: float = 1e-9,
    max_iter: int = 10_000,
) -> float:
    r"""Return the Wasserstein distance between two vectors, matrices or tensors.

    Parameters
    ----------
    x, y : array-like, coo_array or LabelledTensor
        Nonnegative, of the same shape. Corresponding vectors, columns or fibres must have equal
        masses. Sparse data stays sparse. Entries are compared by position; other labels are
        refused.
    cost : array-like of shape (size, size), or one for each mode
        One matrix compares vectors, or the columns of matrices. A sequence with one matrix for each
        mode compares tensors, of order two too. A labelled table is matched by label. A
        :class:`~polyad.transport.Geometry` compares images of its grid, or stacks of them pair by
        pair, with its own epsilon and without a matrix of all pairs of cells.
    epsilon : float, optional
        Strength of the entropy: ``<C, T> + epsilon sum T log T`` is minimised, the paper's
        ``1 / rho``. Without it the linear program is solved.
    tol : float, default=1e-9
        Of the entropic problem.
    max_iter : int, default=10000
        Of the entropic problem.

    Returns
    -------
    float

    Notes
    -----
    A fibre with s and t nonzeros is a linear program of s t unknowns.

    Examples
    --------
    With the cost one everywhere, the distance is the total variation:

    >>> import numpy as np
    >>> from polyad import wasserstein_distance
    >>> wasserstein_distance([0.5, 0.5, 0.0], [0.2, 0.3, 0.5], 1 - np.eye(3))
    0.5
    """
    if isinstance(cost, Geometry):
        return _of_images(x, y, cost, epsilon=epsilon, tol=tol, max_iter=max_iter)
    first, second = _as_coo(x, "x"), _as_coo(y, "y")
    _refuse_other_labels(x, y)
    if first.shape != second.shape:
        message = f"x has the shape {first.shape} and y {second.shape}; they must be the same."
        raise InvalidInputError(message)
    is_strength = isinstance(epsilon, Real) and 0 < epsilon < np.inf
    if epsilon is not None and not is_strength:
        message = f"epsilon={epsilon!r} must be a finite number above zero, or None."
        raise InvalidInputError(message)
    pairs = (pair for data in (y, x) for pair in enumerate(_labels_of(data)))
    labels = {mode: own for mode, own in pairs if own is not None}
    costs = _costs(cost, first.shape, labels)
    total, unsolved = 0.0, 0
    for mode, matrix in costs.items():
        columns = _columns(first, second, mode)
        for a, b in _pairs(*columns, mode):
            if epsilon is None:
                total += _exact(a, b, matrix)
            else:
                both = np.flatnonzero(a), np.flatnonzero(b)
                result = sinkhorn(
                    a[both[0]],
                    b[both[1]],
                    matrix[np.ix_(*both)],
                    epsilon=epsilon,
                    tol=tol,
                    max_iter=max_iter,
                )
                total += result.value
                unsolved += not result.converged
    _warn_about(unsolved, max_iter)
    return total


def _warn_about(unsolved: int, max_iter: int) -> None:
    """Tell of problems that had not converged, if there are some."""
    if unsolved:
        message = (
            f"{unsolved} of the transport problems had not converged after max_iter={max_iter} "
            "steps. Increase max_iter, tol or epsilon; epsilon=None solves without entropy."
        )
        warn_user(message, RuntimeWarning)


def _of_images(x: Any, y: Any, geometry: Geometry, *, epsilon: Any, **limits: Any) -> float:
    """Return the sum of the distances of images of a grid, pair by pair."""
    pair = [_as_coo(own, name).toarray() for own, name in ((x, "x"), (y, "y"))]
    pair = [
        own[:, 0] if np.ndim(given) == 1 else own for own, given in zip(pair, (x, y), strict=True)
    ]
    shapes = [own.shape for own in pair]
    n_axes = len(geometry.shape)
    if shapes[0] != shapes[1] or shapes[0][max(0, len(shapes[0]) - n_axes) :] != geometry.shape:
        message = (
            f"x and y have the shapes {shapes[0]} and {shapes[1]}: with a geometry of "
            f"{geometry.shape} both are images of that shape, or stacks of as many."
        )
        raise InvalidInputError(message)
    _refuse_other_labels(x, y)
    total, unsolved = 0.0, 0
    images = [own.reshape(-1, *geometry.shape) for own in pair]
    for number, (a, b) in enumerate(zip(*images, strict=True)):
        rtol = _MASS_RTOL[4 if np.float32 in (a.dtype, b.dtype) else 8]
        check_masses(float(a.sum()), float(b.sum()), f"image {number}", rtol=rtol)
        scale = float(a.sum()) / float(b.sum()) if b.any() else 1.0
        result = sinkhorn(a, b * scale, geometry, epsilon=epsilon, **limits)
        total += result.value
        unsolved += not result.converged
    _warn_about(unsolved, limits["max_iter"])
    return total


def _as_coo(data: Any, name: str) -> coo_array[Any, Any]:
    from scipy.sparse import coo_array, issparse

    # Of a labelled tensor, what it holds.
    data = data.data if isinstance(getattr(data, "labels", None), tuple) else data
    if not issparse(data):
        dense = np.asarray(data)
        if dense.dtype.kind not in "biufO" or dense.ndim == 0:
            message = f"{name} is a {type(data).__name__}; give an array of numbers."
            raise InvalidTypeError(message)
        data = dense[:, None] if dense.ndim == 1 else dense
    tensor: coo_array[Any, Any] = coo_array(data)
    if tensor.dtype not in (np.float32, np.float64):
        tensor = tensor.astype(np.float64)
    if not np.all((tensor.data >= 0) & (tensor.data < np.inf)):
        first = int(np.flatnonzero(~((tensor.data >= 0) & (tensor.data < np.inf)))[0])
        where = tuple(int(row[first]) for row in tensor.coords)
        message = f"{name} is {tensor.data[first]} at {where}: masses are finite, not negative."
        raise InvalidInputError(message)
    return tensor


def _refuse_other_labels(x: Any, y: Any) -> None:
    """Refuse labelled data whose labels differ: entries are compared by their position."""
    for mode, (own, other) in enumerate(zip(_labels_of(x), _labels_of(y), strict=False)):
        if own is None or other is None or np.array_equal(own, other):
            continue
        message = (
            f"x and y have other labels, or another order of them, in mode {mode}, and entries are "
            "compared by their position. Bring both to the same labels first: y.align of a "
            "LabelledTensor, y.reindex_like(x) of a pandas object."
        )
        raise InvalidInputError(message)


def _labels_of(data: Any) -> list[Any]:
    """Return the labels of each mode that has some."""
    if isinstance(getattr(data, "labels", None), tuple):
        return list(data.labels)
    if type(data).__module__.partition(".")[0] != "pandas":
        return []
    return [np.asarray(axis, dtype=object) for axis in data.axes]


def _costs(
    cost: Any, shape: tuple[int, ...], labels: dict[int, Any]
) -> dict[int, NDArray[np.float64]]:
    """Return the cost of each mode that counts; tables are taken by the labels of the modes."""
    known = getattr(cost, "shape", ()) or isinstance(cost, list | tuple | WeightedSum)
    if isinstance(cost, str) or not known:
        message = (
            f"The cost is {cost!r}; give a matrix, or a list with one for each mode. Functions "
            "such as polyad.transport.cosine_cost make one."
        )
        raise InvalidTypeError(message)
    is_one = isinstance(cost, WeightedSum) or (hasattr(cost, "shape") and len(cost.shape) == 2)
    if isinstance(cost, list | tuple) and len(cost) and np.ndim(cost[0]) == 1:
        is_one = True  # a matrix as lists of numbers
    given = {0: cost} if is_one else dict(enumerate(cost))
    if (is_one and len(shape) > 2) or (not is_one and len(given) != len(shape)):
        message = (
            f"{len(given)} cost matrices for data of shape {shape}: give one for each mode, or a "
            "single one for vectors and for the columns of matrices."
        )
        raise InvalidInputError(message)
    is_matrix = is_one and labels.get(0) is None and len(shape) == 2
    if is_matrix and np.shape(cost)[:1] == (np.prod(shape),) and shape[1] > 1:
        message = (
            f"The cost is of {np.prod(shape)} cells, all of those of data of shape {shape}, whose "
            "columns would be compared. To compare two images, give them as vectors: a.ravel()."
        )
        raise InvalidInputError(message)
    return {
        mode: validate_cost(matrix, int(shape[mode]), labels.get(mode), mode_title=f"mode {mode}")
        for mode, matrix in given.items()
    }


def _columns(
    x: coo_array[Any, Any], y: coo_array[Any, Any], mode: int
) -> tuple[csc_array[Any], csc_array[Any]]:
    """Return two unfoldings with the same columns, those that are zero in both left out."""
    from scipy.sparse import csc_array

    coords = [np.concatenate(pair) for pair in zip(x.coords, y.coords, strict=True)]
    column, n_columns = number_cells(coords, x.shape, mode)
    shape = (int(x.shape[mode]), n_columns)
    split = x.data.size
    first = csc_array((x.data, (x.coords[mode], column[:split])), shape=shape)
    return first, csc_array((y.data, (y.coords[mode], column[split:])), shape=shape)


def _pairs(x: csc_array[Any], y: csc_array[Any], mode: int) -> Any:
    """Yield corresponding columns as vectors of equal mass."""
    rtol = _MASS_RTOL[min(x.dtype.itemsize, y.dtype.itemsize)]
    for j in range(x.shape[1]):
        a, b = _column(x, j), _column(y, j)
        left, right = float(a.sum()), float(b.sum())
        check_masses(left, right, f"fibre {j} of mode {mode}", rtol=rtol)
        if left > 0.0:
            yield a, b * (left / right)


def _column(matrix: csc_array[Any], j: int) -> NDArray[np.float64]:
    column = np.zeros(matrix.shape[0])
    stored = slice(matrix.indptr[j], matrix.indptr[j + 1])
    column[matrix.indices[stored]] = matrix.data[stored]
    return column


def _exact(a: NDArray[np.float64], b: NDArray[np.float64], cost: NDArray[np.float64]) -> float:
    """Return the least cost of moving ``a`` to ``b``, by a linear program over the plan."""
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    if _may_stay(a, b, cost):
        a, b = np.maximum(a - b, 0.0), np.maximum(b - a, 0.0)
        if not (a.any() and b.any()):
            return 0.0
        b = b * (a.sum() / b.sum())
    rows, columns = np.flatnonzero(a), np.flatnonzero(b)
    m, n = rows.size, columns.size
    inner = cost[np.ix_(rows, columns)]
    if m == 1 or n == 1:
        # All mass comes from, or goes to, one place.
        return float(inner[0] @ b[columns] if m == 1 else inner[:, 0] @ a[rows])
    # In units in which the solver's absolute tolerances mean something.
    mass, scale = float(a.sum()), float(inner.max())
    if scale == 0.0:
        return 0.0
    sums = vstack([kron(eye_array(m), np.ones((1, n))), kron(np.ones((1, m)), eye_array(n))])
    wanted = np.concatenate([a[rows], b[columns]]) / mass
    # One of the equations follows from the others: without it rounding cannot contradict them.
    equations: Any = sums.tocsr()[:-1]
    solved = linprog(inner.ravel() / scale, A_eq=equations, b_eq=wanted[:-1], method="highs")
    if solved.fun is None:
        message = f"The linear program was not solved: {solved.message}"
        raise InvalidInputError(message)
    # No plan costs less than nothing, but the solver's has its tolerance.
    return max(float(solved.fun), 0.0) * mass * scale


def _may_stay(a: NDArray[np.float64], b: NDArray[np.float64], cost: NDArray[np.float64]) -> bool:
    """Say whether mass that both have at a place need not move: no way over it is shorter.

    What is left then has a distance with all its digits, however little it is.
    """
    if np.array_equal(a, b):
        return True
    places = np.flatnonzero((a > 0) | (b > 0))
    inner = cost[np.ix_(places, places)]
    shared = np.flatnonzero((a[places] > 0) & (b[places] > 0))
    slack = _METRIC * float(inner.max(initial=0.0))
    return all(
        inner[k, k] == 0 and bool((inner <= inner[:, k, None] + inner[k] + slack).all())
        for k in shared
    )
