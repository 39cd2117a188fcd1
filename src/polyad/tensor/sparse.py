"""Sparse tensors of any order: one canonical form, and one layout per mode for the kernels.

The canonical form is that of :class:`scipy.sparse.coo_array` with sorted coordinates, each of
which occurs once. Nothing here is of the size of the tensor or of an unfolding: memory follows
the number of stored entries, and the factors.

The MTTKRP of a mode sorts the stored entries into fibres once. A product with a row of the inner
mode is made for each entry, one with the rows of the other modes for each four entries of a
fibre, so the inner mode is the one with the fewest fibres. Rows of the output are cut into
segments of about equal work, so that a row with a large part of all entries is summed by all
threads, and the sums of its segments are added in a fixed order, in float64.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.sparse import coo_array

from polyad.core.threads import as_slices, cut, run_blocks
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor import kernels
from polyad.tensor.fibres import BLOCK, FibreLayout, build_layout, refill_layout, sorting_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

# Numbers in the normal matrices that are held at a time: 32 MiB.
_NORMAL_SIZE = 1 << 22
# What Numba asks of an array: it would compile a kernel again for one that cannot be written to.
_LAYOUT: tuple[Literal["C", "A", "W"], ...] = ("C", "A", "W")


def canonicalize(tensor: coo_array[Any, Any]) -> coo_array[Any, Any]:
    """Return a sparse tensor with coordinates in lexicographic order, each of which occurs once.

    The number of cells may exceed 64 bits. Coordinates are int32 if all dimensions allow it, values
    float32 or float64. Duplicates are summed in float64 in the order given; zeros that are stored
    stay. Arrays that are already as they should be are shared, not copied.
    """
    return _as_coo(*_canonical_arrays(tensor), tensor.shape)


class SparseTensor:
    """A sparse tensor with the products that fits need.

    Parameters
    ----------
    tensor : coo_array
        Of two modes or more. Its arrays are shared where they are canonical already: do not
        change them afterwards.

    Attributes
    ----------
    shape : tuple of int
    values : ndarray of shape (nnz,)

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import coo_array
    >>> coords = np.array([[0, 1, 1], [0, 0, 2], [1, 0, 1]])
    >>> X = SparseTensor(coo_array((np.array([1.0, 2.0, 3.0]), tuple(coords)), shape=(2, 3, 2)))
    >>> X.mttkrp([np.ones((n, 1)) for n in X.shape], mode=0)
    array([[1.],
           [5.]])
    """

    def __init__(self, tensor: coo_array[Any, Any]) -> None:
        if tensor.ndim < 2:
            message = f"A tensor needs at least two modes, got the shape {tensor.shape}."
            raise InvalidInputError(message)
        self.shape: tuple[int, ...] = tuple(int(n) for n in tensor.shape)
        self._coords, self.values = _canonical_arrays(tensor)
        self._layouts: dict[int, FibreLayout] = {}
        # The tensor whose sorting this one shares, with the positions of the entries as values.
        self._pattern: SparseTensor | None = None

    @property
    def ndim(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return int(self.values.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values: float32 or float64."""
        return self.values.dtype

    @property
    def coords(self) -> tuple[NDArray[Any], ...]:
        """The coordinates of the stored entries in each mode."""
        return tuple(self._coords)

    def to_coo(self) -> coo_array[Any, Any]:
        """Return the tensor as a scipy array that shares its memory."""
        return _as_coo(self._coords, self.values, self.shape)

    def layout(self, mode: int) -> FibreLayout:
        """Return the layout of a mode, built on first use."""
        if mode not in self._layouts and self._pattern is not None:
            self._layouts[mode] = refill_layout(self._pattern.layout(mode), self.values)
        elif mode not in self._layouts:
            self._layouts[mode] = build_layout(self, mode)
        return self._layouts[mode]

    def with_values(self, values: NDArray[Any]) -> SparseTensor:
        """Return a tensor with other values at the same coordinates.

        All tensors made from one share its sorted layouts, so that the first product of each is
        as quick as the second one of this.

        Parameters
        ----------
        values : ndarray of shape (nnz,)
            In the order of ``coords``; taken in the type of this tensor.
        """
        if values.shape != self.values.shape:
            message = f"values has the shape {values.shape}; {self.values.shape} is needed."
            raise InvalidInputError(message)
        if self._pattern is None:
            self._pattern = SparseTensor.__new__(SparseTensor)
            self._pattern._share(self, np.arange(self.nnz, dtype=np.float64))
        other = SparseTensor.__new__(SparseTensor)
        other._share(self, np.require(values, self.dtype, _LAYOUT))
        other._pattern = self._pattern
        return other

    def _share(self, other: SparseTensor, values: NDArray[Any]) -> None:
        self.shape, self._coords, self.values = other.shape, other._coords, values
        self._layouts, self._pattern = {}, None

    @property
    def mode_groups(self) -> tuple[tuple[int], ...]:
        """The order in which a sweep visits the modes: one at a time, the samples last."""
        return tuple((mode,) for mode in (*range(1, self.ndim), 0))

    def contract(self, factors: Sequence[NDArray[Any]], group: Sequence[int]) -> SparseTensor:
        """Return the tensor itself: the modes of a sparse tensor share no pass over the data.

        Parameters
        ----------
        factors : sequence of ndarray
            Not used before :meth:`mttkrp`.
        group : sequence of int
            One of ``mode_groups``.
        """
        return self

    def mttkrp(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[Any]:
        """Multiply the unfolding of a mode with the Khatri-Rao product of the other factors.

        Parameters
        ----------
        factors : sequence of ndarray of shape (shape[k], n_components)
            The one of ``mode`` itself is not used.
        mode : int

        Returns
        -------
        ndarray of shape (shape[mode], n_components)
            In the type of the tensor's values; the same for any number of threads.
        """
        layout = self.layout(mode)
        matrices = _check_factors(factors, self.shape, self.dtype, unused=mode)
        n_rows, n_components = self.shape[mode], matrices[layout.inner].shape[1]
        if n_components > kernels.WIDTH:
            parts = [
                self.mttkrp([matrix[:, columns] for matrix in matrices], mode)
                for columns in as_slices(cut(n_components, kernels.WIDTH))
            ]
            return np.hstack(parts)
        others = _other_factors(layout, matrices)
        out = np.zeros((n_rows + layout.n_partial, n_components), self.dtype)
        is_deep = len(others) != 2
        function = kernels.mttkrp_deep_spans if is_deep else kernels.mttkrp_spans
        given: Any = kernels.stack(others) if is_deep else others
        run_blocks(
            function,
            (
                (layout.pieces, layout.segments, block, given, out)
                for block in layout.segment_blocks
            ),
        )
        if layout.n_partial:
            out[layout.split_rows] = np.add.reduceat(
                out[n_rows:], layout.split_starts, axis=0, dtype=np.float64
            )
        return out[:n_rows]

    def observed_least_squares(
        self, factors: Sequence[NDArray[Any]], mode: int, ridge: float, fallback: NDArray[Any]
    ) -> NDArray[Any]:
        """Fit the rows of one factor to the stored entries only, the other factors given.

        Row i minimises the sum, over the stored entries p of slice i, of the squares of
        ``x_p - h_p @ a``, plus ``ridge * a @ a``, where ``h_p`` is the product of the rows of the
        other factors that belong to p.

        Parameters
        ----------
        factors : sequence of ndarray of shape (shape[k], n_components)
            The one of ``mode`` itself is not used.
        mode : int
        ridge : float
            Not negative. A row that its entries do not determine is nearly the one of least
            norm among the solutions, without a ridge too.
        fallback : ndarray of shape (shape[mode], n_components)
            The rows of slices without any stored entry are taken from here.

        Returns
        -------
        ndarray of shape (shape[mode], n_components)
            In the type of the tensor's values, computed in float64.

        Notes
        -----
        Each entry costs R**2 / 2 multiplications and each row R**3 / 6. Memory is the result and
        two R x R matrices for each thread.
        """
        layout = self.layout(mode)
        matrices = _check_factors(factors, self.shape, self.dtype, unused=mode)
        others = kernels.stack(_other_factors(layout, matrices))
        out = np.array(fallback, self.dtype, order="C")
        needed = (self.shape[mode], others.rows.shape[1])
        if out.shape != needed:
            message = f"fallback has the shape {out.shape}; mode {mode} needs {needed}."
            raise InvalidInputError(message)
        run_blocks(
            kernels.solve_observed_rows,
            (
                ((layout.pieces, layout.rows), block, others, float(ridge), out)
                for block in layout.row_blocks
            ),
        )
        return out

    def observed_normal_equations(
        self, factors: Sequence[NDArray[Any]], mode: int
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]]:
        """Yield the normal equations of the rows that have stored entries, some at a time.

        Parameters
        ----------
        factors : sequence of ndarray of shape (shape[k], n_components)
        mode : int

        Yields
        ------
        rows : ndarray of int of shape (n,)
            Which rows.
        normal : ndarray of shape (n, n_components, n_components)
            The sums of the outer products of the rows of the Khatri-Rao product.
        rhs : ndarray of shape (n, n_components)
            The sums of these rows times the values.
        """
        layout = self.layout(mode)
        matrices = _check_factors(factors, self.shape, self.dtype, unused=mode)
        others = kernels.stack(_other_factors(layout, matrices))
        rank = others.rows.shape[1]
        n_rows = layout.rows.targets.size
        at_a_time = max(1, _NORMAL_SIZE // (rank * rank))
        step = max(1, at_a_time // 16)
        for first, last in cut(n_rows, at_a_time):
            normal = np.empty((last - first, rank, rank))
            rhs = np.empty((last - first, rank))
            run_blocks(
                kernels.observed_rows,
                (
                    (
                        (layout.pieces, layout.rows),
                        block,
                        others,
                        normal[block[0] - first :],
                        rhs[block[0] - first :],
                    )
                    for block in cut(last, step, first)
                ),
            )
            yield layout.rows.targets[first:last], normal, rhs

    def norm_squared(self) -> float:
        """Return the sum of the squared values, summed in float64."""
        blocks = (self.values[block] for block in as_slices(cut(self.nnz, BLOCK)))
        return fsum(float(np.sum(np.square(block, dtype=np.float64))) for block in blocks)

    def values_of(self, factors: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the values of a Kruskal model at the coordinates of the stored entries."""
        matrices = _check_factors(factors, self.shape, self.dtype)
        return _values_at(matrices, self._coords, self.dtype)


def kruskal_values(factors: Sequence[NDArray[Any]], coords: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a Kruskal model at coordinates (n_modes, n_points).

    They are float32 if all factors are, float64 otherwise.
    """
    shape = tuple(len(factor) for factor in factors)
    points = np.asarray(coords)
    if points.ndim != 2 or points.shape[0] != len(shape) or points.dtype.kind not in "iu":
        message = (
            f"coords must be integers of shape ({len(shape)}, n_points), "
            f"got {points.dtype} of shape {points.shape}."
        )
        raise InvalidInputError(message)
    sizes = np.array(shape)[:, None]
    if points.size and ((points < 0).any() or (points >= sizes).any()):
        message = (
            f"coords reach from {points.min(axis=1)} to {points.max(axis=1)}, outside {shape}."
        )
        raise InvalidInputError(message)
    single = all(factor.dtype == np.float32 for factor in factors)
    dtype = np.dtype(np.float32 if single else np.float64)
    index = np.require(points, _index_dtype(shape), _LAYOUT)
    return _values_at(_check_factors(factors, shape, dtype), index, dtype)


def _values_at(
    factors: list[NDArray[Any]], coords: NDArray[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    out = np.empty(coords.shape[1], dtype)
    unsigned = coords.view(coords.dtype.str.replace("i", "u"))
    is_three = len(factors) == 3
    function = kernels.kruskal_values_3 if is_three else kernels.kruskal_values_n
    given: Any = tuple(factors) if is_three else kernels.stack(factors)
    run_blocks(function, ((given, unsigned, block, out) for block in cut(out.size, BLOCK)))
    return out


def _index_dtype(shape: tuple[int, ...]) -> np.dtype[Any]:
    return np.dtype(np.int32 if max(shape) <= np.iinfo(np.int32).max else np.int64)


def _canonical_arrays(tensor: coo_array[Any, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the coordinates (n_modes, nnz) and the values in canonical form."""
    if tensor.dtype.kind not in "fiub":
        message = f"The values must be real numbers, got {tensor.dtype}. Convert them to float64."
        raise InvalidTypeError(message)
    shape = tensor.shape
    dtype = tensor.dtype if tensor.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    values: NDArray[Any] = np.require(tensor.data, dtype, _LAYOUT)
    for mode, (row, size) in enumerate(zip(tensor.coords, shape, strict=True)):
        # The kernels do not look: an index outside would read memory that is not the factor's.
        if row.size and not 0 <= int(row.min()) <= int(row.max()) < size:
            message = (
                f"The sparse data has an index outside 0..{size - 1} in mode {mode}: from "
                f"{row.min()} to {row.max()}. Build it again with coo_array((values, coords))."
            )
            raise InvalidInputError(message)
    coords = np.stack(tensor.coords, dtype=_index_dtype(shape), casting="same_kind")
    if kernels.is_sorted(coords):
        return coords, values
    order = sorting_order(coords, shape, range(len(shape)))
    coords, values = np.take(coords, order, axis=1), values.take(order)
    n_kept = kernels.merge_duplicates(coords, values)
    if n_kept < values.size:
        return np.ascontiguousarray(coords[:, :n_kept]), values[:n_kept].copy()
    return coords, values


def _as_coo(
    coords: NDArray[Any], values: NDArray[Any], shape: tuple[int, ...]
) -> coo_array[Any, Any]:
    result = coo_array((values, tuple(coords)), shape=shape)
    result.coords = tuple(coords)  # scipy takes int64 where there are no entries
    result.has_canonical_format = True
    return result


def _other_factors(layout: FibreLayout, factors: list[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Return the factors of the middle modes, then that of the inner mode."""
    inner = factors[layout.inner]
    if not layout.middle:
        return np.ones((1, inner.shape[1]), inner.dtype), inner
    return (*(factors[k] for k in layout.middle), inner)


def _check_factors(
    factors: Sequence[NDArray[Any]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    unused: int | None = None,
) -> list[NDArray[Any]]:
    """Return factors as the kernels need them: these read memory without looking at its bounds."""
    used = [factor.shape for k, factor in enumerate(factors) if k != unused]
    rows = [size for k, size in enumerate(shape) if k != unused]
    if len(factors) != len(shape) or used != [(size, used[0][-1]) for size in rows]:
        message = (
            f"The factors have the shapes {[factor.shape for factor in factors]}; a tensor of "
            f"shape {shape} needs one for each mode, with a row for each index and as many "
            "columns in all of them."
        )
        raise InvalidInputError(message)
    return [
        factor if k == unused else np.require(factor, dtype, _LAYOUT)
        for k, factor in enumerate(factors)
    ]
