"""Cost matrices: what it costs to move mass from one position of a mode to another.

A cost is symmetric, not negative and zero on the diagonal. It need not be a metric: ``1 - cos``,
the choice of the paper, breaks the triangle inequality for unit vectors at 0, 60 and 120 degrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import as_slices, cut
from polyad.data.mode_matrices import WeightedSum, is_symmetric, made_symmetric, read_square
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import coo_array, csr_array

# Beyond this, numbers in units of epsilon have no digits left to tell plans apart.
_LARGEST = 1e12
# Numbers of the product of two sparse matrices that are held at a time: 32 MiB.
_BLOCK_SIZE = 1 << 22
_RULE = "A cost is symmetric, finite, not negative, and zero on the diagonal."


def cosine_cost(
    data: NDArray[Any] | coo_array[Any, Any], mode: int = 0, *, binary: bool = False
) -> NDArray[np.float64]:
    """Return one minus the cosine between the slices of a tensor.

    Parameters
    ----------
    data : ndarray, coo_array or LabelledTensor
        Of two modes or more, nonnegative. Sparse data stays sparse.
    mode : int, default=0
    binary : bool, default=False
        Only whether an entry is zero counts, not its size.

    Returns
    -------
    ndarray of shape (data.shape[mode], data.shape[mode])
        A slice without entries has the cost 1 to all others.

    Examples
    --------
    >>> import numpy as np
    >>> cosine_cost(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
    array([[0., 0., 1.],
           [0., 0., 1.],
           [1., 1., 0.]])
    """
    slices = _slices(data, mode)
    if binary:
        slices.data = (slices.data != 0).astype(np.float64)
    return _one_minus_cosine(slices)


def presence_cost(data: NDArray[Any] | coo_array[Any, Any], mode: int = 0) -> NDArray[np.float64]:
    """Return one minus the cosine between the sets of samples that two entries of a mode occur in.

    For the samples, mode 0, it is that between the sets of entries of other modes which they have.
    These are the costs of the paper: two diagnoses are near if the same patients have them.

    Parameters
    ----------
    data : ndarray, coo_array or LabelledTensor
        Of two modes or more, nonnegative. Sparse data stays sparse.
    mode : int, default=0

    Returns
    -------
    ndarray of shape (data.shape[mode], data.shape[mode])
        An entry that never occurs has the cost 1 to all others.

    Examples
    --------
    >>> import numpy as np
    >>> presence_cost(np.array([[1.0, 2.0, 0.0], [1.0, 1.0, 3.0]]), mode=1).round(3)
    array([[0.   , 0.   , 0.293],
           [0.   , 0.   , 0.293],
           [0.293, 0.293, 0.   ]])
    """
    from scipy.sparse import csr_array, hstack

    coords, values, shape = _checked_entries(data, mode)
    ones = np.ones(np.count_nonzero(values))
    used = [row[values != 0] for row in coords]
    others = range(1, len(shape)) if mode == 0 else (0,)
    sets = csr_array(
        hstack([csr_array((ones, (used[mode], used[k])), (shape[mode], shape[k])) for k in others])
    )
    sets.sum_duplicates()
    sets.data[:] = 1.0
    return _one_minus_cosine(sets)


def tfidf_cost(data: NDArray[Any] | coo_array[Any, Any], mode: int = 0) -> NDArray[np.float64]:
    """Return one minus the cosine between the slices, cells that many slices share counting less.

    A cell that is not zero in ``d`` of ``n`` slices is multiplied by
    ``1 + log((1 + n) / (1 + d))``, the smooth weight of scikit-learn's ``TfidfTransformer``.

    Parameters
    ----------
    data : ndarray, coo_array or LabelledTensor
        Of two modes or more, nonnegative. Sparse data stays sparse.
    mode : int, default=0

    Returns
    -------
    ndarray of shape (data.shape[mode], data.shape[mode])

    Examples
    --------
    >>> import numpy as np
    >>> tfidf_cost(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])).round(3)
    array([[0.   , 0.664],
           [0.664, 0.   ]])
    """
    slices = _slices(data, mode)
    slices.eliminate_zeros()
    n = slices.shape[0]
    used = np.bincount(slices.indices, minlength=slices.shape[1])
    slices.data *= (1.0 + np.log((1.0 + n) / (1.0 + used)))[slices.indices]
    return _one_minus_cosine(slices)


def one_identity_cost(size: int) -> NDArray[np.float64]:
    """Return the cost one between any two positions: nothing is known of them.

    Parameters
    ----------
    size : int

    Returns
    -------
    ndarray of shape (size, size)
        With this cost, the exact distance of two distributions is their total variation.
    """
    return 1.0 - np.eye(_size(size))


def random_cost(
    size: int, random_state: int | np.random.RandomState | np.random.Generator | None = None
) -> NDArray[np.float64]:
    """Return costs drawn from the uniform distribution on [0, 1), symmetric: a baseline.

    Parameters
    ----------
    size : int
    random_state : int, RandomState, Generator or None

    Returns
    -------
    ndarray of shape (size, size)
    """
    if isinstance(random_state, np.random.RandomState):
        drawn = random_state.random_sample((_size(size), _size(size)))
    else:
        drawn = np.random.default_rng(random_state).random((_size(size), _size(size)))
    upper = np.triu(drawn, 1)
    return upper + upper.T


def grid_cost(*shape: int) -> NDArray[np.float64]:
    """Return the squared distance between the points of a grid, the largest being one.

    Neighbours have one distance along all axes, however many points each has: cells are square. In
    :func:`~polyad.transport.grid_geometry`, and for ``metric='sqeuclidean'`` of dictionaries, each
    axis runs from 0 to 1 instead: of a grid of equal sides, costs are there as many times as large
    as it has axes, and so must be ``epsilon`` for the same blur.

    Parameters
    ----------
    *shape : int
        Points along each axis; the last one runs fastest.

    Returns
    -------
    ndarray of shape (prod(shape), prod(shape))

    Examples
    --------
    >>> grid_cost(3)
    array([[0.  , 0.25, 1.  ],
           [0.25, 0.  , 0.25],
           [1.  , 0.25, 0.  ]])
    """
    if not shape:
        message = "A grid needs the number of points along each axis, such as grid_cost(28, 28)."
        raise InvalidInputError(message)
    points = np.indices([_size(n) for n in shape]).reshape(len(shape), -1).astype(np.float64)
    cost = np.zeros((points.shape[1],) * 2)
    for axis in points:
        cost += np.square(axis[:, None] - axis)
    return cost / max(1.0, float(cost.max()))


def validate_cost(
    cost: ArrayLike,
    size: int | None = None,
    labels: Sequence[Any] | NDArray[Any] | None = None,
    *,
    mode_title: str = "the mode",
    symmetric: bool = True,
) -> NDArray[np.float64]:
    """Check a cost matrix, and bring it into the order of the labels.

    Parameters
    ----------
    cost : array-like or labelled table of shape (size, size)
        Symmetric, finite, not negative, zero on the diagonal. The rows and columns of a pandas
        frame or of an xarray.DataArray are taken by label where ``labels`` are given; it may have
        more than these. So are those of a polars frame, whose rows are named by a column of text,
        or else are in the order of its columns. Or a sum of such costs
        (:func:`~polyad.transport.mixed_cost`).
    size : int, optional
        The size that is needed.
    labels : sequence, optional
        The labels of the mode, in its order.
    mode_title : str
        What errors call the mode.
    symmetric : bool, default=True
        Whether costs that are not symmetric are refused.

    Returns
    -------
    ndarray of shape (size, size)
        Of float64; exactly symmetric if the cost is symmetric up to rounding.
    """
    if size == 0:
        message = f"There is nothing to move: {mode_title} has no positions."
        raise InvalidInputError(message)
    title = f"The cost of {mode_title}"
    if isinstance(cost, WeightedSum):
        parts = (
            validate_cost(part, size, labels, mode_title=mode_title, symmetric=symmetric)
            for part in cost.parts
        )
        return cost.of(parts, title)
    if isinstance(cost, str):
        message = (
            f"{title} is {cost!r}, which is no matrix of numbers: there is no data here to make "
            "one from. Give a matrix, or a frame with labels."
        )
        raise InvalidTypeError(message)
    if hasattr(cost, "toarray"):
        message = f"{title} is no matrix of numbers but a sparse one: give cost.toarray()."
        raise InvalidTypeError(message)
    if hasattr(cost, "cost_matrix"):
        message = f"{title} is no matrix of numbers but {cost!r}: give its cost_matrix()."
        raise InvalidTypeError(message)
    matrix = read_square(cost, size, labels, title, _RULE)
    on_diagonal = np.flatnonzero(np.diag(matrix))
    if on_diagonal.size:
        i = int(on_diagonal[0])
        message = f"{title} is not zero on the diagonal: {matrix[i, i]} at ({i}, {i}). {_RULE}"
        raise InvalidInputError(message)
    if not symmetric and not is_symmetric(matrix):
        return np.asarray(matrix)
    return np.asarray(made_symmetric(matrix, title, _RULE))


def check_range(largest: float, epsilon: float, marginal_penalty: float = 0.0) -> None:
    """Refuse a largest cost, or a penalty, beside which epsilon is rounding."""
    for name, value in (("largest cost", largest), ("marginal_penalty", marginal_penalty)):
        if value > _LARGEST * epsilon:
            message = (
                f"The {name} is {value:.3g}, and epsilon is {epsilon:.3g}: plans can be told apart "
                f"up to {_LARGEST:.0e} times epsilon. Increase epsilon, or lower the {name}."
            )
            raise InvalidInputError(message)


def _size(size: int) -> int:
    if not isinstance(size, int | np.integer) or size < 1:
        message = f"A cost needs a whole number of positions, at least one, got {size!r}."
        raise InvalidInputError(message)
    return int(size)


def _slices(data: Any, mode: int) -> csr_array[Any, Any]:
    """Return the slices of a tensor as the rows of a sparse matrix, cells never used left out."""
    from scipy.sparse import csr_array

    coords, values, shape = _checked_entries(data, mode)
    column, n_columns = number_cells(coords, shape, mode)
    return csr_array((values, (coords[mode], column)), shape=(int(shape[mode]), n_columns))


def _checked_entries(
    data: Any, mode: int
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.float64], tuple[int, ...]]:
    """Return where the entries of a tensor are, the entries, and its shape."""
    from scipy.sparse import coo_array, issparse

    # Of a labelled tensor, what it holds.
    data = data.data if isinstance(getattr(data, "labels", None), tuple) else data
    is_sparse: bool = issparse(data)
    if not is_sparse:
        try:
            dense = np.asarray(data, dtype=np.float64)
        except (TypeError, ValueError) as error:
            message = f"The data is a {type(data).__name__}; costs need an array of numbers."
            raise InvalidTypeError(message) from error
        tensor: Any = coo_array(dense) if dense.ndim else coo_array((1, 1))
    else:
        tensor = coo_array(data)
    if tensor.ndim < 2 or not _is_mode(mode, tensor.ndim):
        message = (
            f"There is no mode {mode!r} in data of shape {tensor.shape}, of two modes or more."
        )
        raise InvalidInputError(message)
    values = np.asarray(tensor.data, dtype=np.float64)
    if not np.all((values >= 0) & (values < np.inf)):
        first = int(np.flatnonzero(~((values >= 0) & (values < np.inf)))[0])
        where = tuple(int(row[first]) for row in tensor.coords)
        message = (
            f"The data is {values[first]} at {where}; costs need finite entries, not negative."
        )
        raise InvalidInputError(message)
    return tensor.coords, values, tensor.shape


def _is_mode(mode: object, n_modes: int) -> bool:
    if not isinstance(mode, int | np.integer) or isinstance(mode, bool):
        return False
    return 0 <= int(mode) < n_modes


def number_cells(
    coords: Sequence[NDArray[Any]], shape: tuple[int, ...], mode: int
) -> tuple[NDArray[np.int64], int]:
    """Give numbers to the fibres that have entries; return that of each entry, and how many."""
    number = np.zeros(len(coords[mode]), np.int64)
    n_cells = 1
    for other in (m for m in range(len(shape)) if m != mode):
        # Only fibres that are used have numbers, so no product overflows.
        paired = number * np.int64(shape[other]) + coords[other]
        used, number = np.unique(paired, return_inverse=True)
        n_cells = max(1, used.size)
    return number.astype(np.int64), n_cells


def _one_minus_cosine(slices: csr_array[Any, Any]) -> NDArray[np.float64]:
    slices.sum_duplicates()
    n = slices.shape[0]
    lengths = np.diff(slices.indptr)
    # Dividing by the largest entry first: squares of 1e-200 would vanish.
    largest = np.zeros(n)
    np.maximum.at(largest, np.repeat(np.arange(n), lengths), slices.data)
    slices.data /= np.repeat(np.where(largest > 0, largest, 1.0), lengths)
    norms = np.sqrt(np.asarray(slices.multiply(slices).sum(axis=1)).ravel())
    slices.data /= np.repeat(np.where(norms > 0, norms, 1.0), lengths)
    cost = np.empty((n, n))
    for rows in as_slices(cut(n, max(1, _BLOCK_SIZE // n))):
        cost[rows] = 1.0 - (slices[rows] @ slices.T).toarray()
    np.clip(cost, 0.0, 1.0, out=cost)
    np.fill_diagonal(cost, 0.0)
    return (cost + cost.T) / 2.0
