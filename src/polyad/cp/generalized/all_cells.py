r"""Rows of sparse samples whose zeros are all counted, with few looks at all cells.

With entries that are not stored zeros, a sample's coefficients :math:`a` minimise

.. math:: \sum_{p \text{ stored}} [f(x_p, h_p \cdot a) - f(0, h_p \cdot a)] + S(a),
   \qquad S(a) = \sum_{\text{all } c} f(0, h_c \cdot a),

and a ridge. Nothing of :math:`S` factors if the model is odds, or their logarithm. Newton's method
looks at all cells a dozen times, with second derivatives. Here a sum over some cells gives a start;
then :math:`S` is replaced by :math:`g \cdot (b - a) + \tfrac12 (b - a)^\top H (b - a)` at the last
coefficients :math:`a`, the stored entries are kept as they are, and the minimum :math:`b` of both
is the next :math:`a`. While a row still moves much, one look in single precision gives
:math:`g` and :math:`H`. Then :math:`H` is kept and :math:`g` is taken in double precision: each
look multiplies the error by the part of the curvature that :math:`H` misses, which is small and
about the ratio of the last two moves. A row of which the next move would be less than a tenth of
``SETTLED`` of its size is closer than that to its minimum. Rows that do not settle are left to
Newton's method.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import as_slices, cut, run_blocks
from polyad.fitting.row_newton import Rows
from polyad.tensor.products import cheapest_cut, khatri_rao

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.losses import Loss

    Matrix = NDArray[np.float64]

#: A row that is closer to its minimum than this part of its size is done.
SETTLED = 1e-6
# By more than this, and the curvature has changed too; by more than this, and it says nothing.
_CURVED = 3e-3
_TRUSTED = 0.5
_MOST_LOOKS = 10
_TINY = np.finfo(np.float64).tiny
# Cells whose loss is computed at a time: they stay in the processor's memory.
_CACHED = 1 << 16


def pairs(products: Matrix) -> Matrix:
    """Return the products of all pairs of columns, each pair once."""
    left, right = _places_of_pairs(products.shape[1])
    return products[:, left] * products[:, right]


@lru_cache(maxsize=8)
def _places_of_pairs(n_components: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.tril_indices(n_components)


def unpacked(packed: Matrix, n_components: int) -> Matrix:
    """Turn sums of pairs into symmetric matrices."""
    left, right = _places_of_pairs(n_components)
    full = np.empty((len(packed), n_components, n_components))
    full[:, left, right] = packed
    full[:, right, left] = packed
    return full


class AllCells:
    """The sum of the loss of zeros over all cells of a sample.

    Cells are those of a matrix, of which rows and columns are products of some factors each:
    neither their products nor the pairs of these are ever held for all of them.
    """

    def __init__(self, loss: Loss, others: Sequence[Matrix]) -> None:
        self.loss, self.others = loss, others
        middle = cheapest_cut([len(factor) for factor in others])
        self._double = [khatri_rao(list(others[:middle])), khatri_rao(list(others[middle:]))]
        self._single = [side.astype(np.float32) for side in self._double]
        size = max(_CACHED, len(self._double[1]))
        self._zeros = {kind: np.zeros(size, kind) for kind in (np.dtype("f4"), np.dtype("f8"))}

    @staticmethod
    def n_places(shape: Sequence[int]) -> int:
        """Return the rows and columns of the matrix of cells, without making it."""
        middle = cheapest_cut(shape)
        return prod(shape[:middle]) + prod(shape[middle:])

    @cached_property
    def _pairs(self) -> list[Any]:
        return [pairs(side) for side in self._single]

    def value(self, a: Matrix) -> Matrix:
        """Return the sum at the coefficients of each row."""
        total = np.zeros(len(a))

        def add(rows: slice, _places: slice, _own: list[Any], model: Any) -> None:
            losses = self._of_zeros(self.loss.value, model)
            total[rows] += losses.reshape(total[rows].size, -1).sum(axis=1)

        self._visit(add, a, self._double)
        return total

    def gradient(self, a: Matrix) -> Matrix:
        """Return the gradient of each row."""
        total = np.zeros_like(a)

        def add(rows: slice, places: slice, own: list[Any], model: Any) -> None:
            total[rows] += self._summed(self._of_zeros(self.loss.derivative, model), places, own)

        self._visit(add, a, self._double)
        return total

    def curved(self, a: Matrix) -> tuple[Matrix, Matrix]:
        """Return gradient and Hessian of each row, to a few digits."""
        gradient = np.zeros_like(a)
        both = self._pairs
        packed = np.zeros((len(a), both[0].shape[1]))

        def add(rows: slice, places: slice, own: list[Any], model: Any) -> None:
            slope, curvature = self._of_zeros(self.loss.bend, model)
            gradient[rows] += self._summed(slope, places, own)
            packed[rows] += self._summed(curvature, places, both)

        self._visit(add, a.astype(np.float32), self._single)
        return gradient, unpacked(packed, a.shape[1])

    def _of_zeros(self, function: Callable[[Any, Any], Any], model: Any) -> Any:
        return function(self._zeros[model.dtype][: model.size].reshape(model.shape), model)

    @staticmethod
    def _summed(weights: Any, places: slice, sides: list[Any]) -> Any:
        """Return for each row the weighted sum over the products of two sides."""
        first = sides[0][places]
        sums = (weights @ sides[1]).reshape(-1, *first.shape)
        return np.einsum("npr,pr->nr", sums, first)

    @staticmethod
    def _visit(add: Callable[..., None], a: Any, sides: list[Any]) -> None:
        """Hand on some rows, places of the first side, both sides, and the model of their cells.

        Rows are shared among threads, the places of each come in their order.
        """
        first, second = sides
        n_places = min(len(first), max(1, _CACHED // len(second)))
        n_rows = max(1, _CACHED // (len(first) * len(second)))

        def work(begin: int, end: int) -> None:
            rows = slice(begin, end)
            # What is not finite is not settled.
            with np.errstate(all="ignore"):
                for places in as_slices(cut(len(first), n_places)):
                    scaled = a[rows, None, :] * first[places]
                    add(rows, places, sides, scaled.reshape(-1, a.shape[1]) @ second.T)

        run_blocks(work, cut(len(a), n_rows))


class QuadraticZeros:
    """The sum over all cells as a quadratic of its own for each row."""

    def __init__(self, cells: AllCells, n_rows: int) -> None:
        n_components = cells.others[0].shape[1]
        self._cells = cells
        self._at = np.zeros((n_rows, n_components))
        self._gradient = np.zeros_like(self._at)
        self._hessian = np.zeros((n_rows, n_components, n_components))

    def look(self, rows: NDArray[Any], a: Matrix, *, curved: bool) -> None:
        """Expand some rows around their coefficients, or keep what is known of the curvature."""
        self._at[rows] = a
        if curved:
            self._gradient[rows], self._hessian[rows] = self._cells.curved(a)
        else:
            self._gradient[rows] = self._cells.gradient(a)

    def evaluate(self, index: NDArray[Any], a: Matrix) -> Rows:
        """Return the quadratics of some rows."""
        step, hessian = a - self._at[index], self._hessian[index]
        bent = np.einsum("nrs,ns->nr", hessian, step)
        value = np.einsum("nr,nr->n", self._gradient[index] + 0.5 * bent, step)
        return Rows(value, self._gradient[index] + bent, hessian)


@np.errstate(all="ignore")  # what is not finite is not settled
def settle(
    cells: AllCells,
    start: Matrix,
    minimize: Callable[[QuadraticZeros, NDArray[Any], Matrix], Matrix],
) -> tuple[Matrix, NDArray[Any]]:
    """Return the coefficients of rows, and those rows of which they are not the minimum yet.

    ``minimize`` returns the best coefficients of some rows for given quadratics, from some to
    begin with.
    """
    a, zeros = start.copy(), QuadraticZeros(cells, len(start))
    active = np.arange(len(a))
    is_curved, last = np.ones(len(a), bool), np.ones(len(a))
    lost: list[int] = []
    for _ in range(_MOST_LOOKS):
        for curved in (True, False):
            rows = active[is_curved[active] == curved]
            zeros.look(rows, a[rows], curved=curved)
        new = minimize(zeros, active, a[active])
        size = np.maximum(np.max(np.abs(new), axis=1), np.max(np.abs(a[active]), axis=1))
        moved = np.max(np.abs(new - a[active]), axis=1) / np.where(size > 0, size, 1.0)
        is_near = moved <= _TRUSTED  # which is False of NaN
        lost += active[~is_near].tolist()
        a[active[is_near]] = new[is_near]
        following = moved * moved / np.maximum(np.maximum(last[active], moved), _TINY)
        is_done = is_near & (following <= 0.1 * SETTLED) & ~is_curved[active]
        is_curved[active], last[active] = moved > _CURVED, moved
        active = active[is_near & ~is_done]
        if not active.size:
            break
    return a, np.sort([*lost, *active.tolist()]).astype(np.int64)
