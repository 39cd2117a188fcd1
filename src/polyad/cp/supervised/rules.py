r"""Updates of the supervised problem: rows that see their labels, columns of length one.

Rows of labelled samples
    The objective of a row is least squares plus the logistic loss of its scores :math:`a M + c`:
    smooth and convex. A Newton step minimises its quadratic expansion over nonnegative rows by
    coordinate descent, and is halved until it lowers the objective enough. Steps share one pass
    over the data.
Columns of the other modes
    They have length one, so that the size of a component is in the samples. For a given residual
    the best column is the positive part of its right-hand side, scaled to length one: the
    quadratic term is constant on the sphere. With missing entries it is not, and is replaced by
    its largest value over the rows, which majorises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.threads import as_slices, cut
from polyad.cp.nonnegative.solver import Descent
from polyad.cp.rules import double, like
from polyad.cp.supervised.classifier import losses, scores, softmax, surplus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.cp.supervised.classifier import Labels
    from polyad.tensor.sparse import SparseTensor

# Newton steps per update, and for rows at their minimum; a row that moves less is done.
_STEPS = 3
_EXACT_STEPS = 50
_REDUCTION = 1e-3
_EXACT_REDUCTION = 1e-13
# A step must lower the objective by this part of what its slope promises (Armijo).
_SUFFICIENT = 1e-4
_HALVINGS = 30
# Rises below this part of the objective of a row are rounding.
_ROUNDING = 1e-15
# No step moves a score further: beyond, the loss is flat and its expansion says nothing.
_LARGEST_MOVE = 10.0
_HUGE = 1e100
# Labelled rows at a time: bounds the memory of their Hessians.
_ROWS_AT_A_TIME = 4096
# Sweeps over the columns of a mode, while they move it by more than a part of the first.
_SWEEPS = 10
_SWEEP_REDUCTION = 0.01


class LabelPull:
    """The label term as the rows of the samples see it.

    The scores of a row ``a`` are ``a @ weights + intercept``; ``strength`` weighs the loss of one
    sample.
    """

    def __init__(
        self,
        labels: Labels,
        weights: NDArray[np.float64],
        intercept: NDArray[np.float64],
        strength: float,
    ) -> None:
        self.labels = labels
        self.weights = weights
        self.intercept = intercept
        self.strength = strength

    def value(self, rows: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the term of each row."""
        return self.strength * losses(scores(rows, self.weights, self.intercept), codes)

    def slope(self, rows: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return its gradient."""
        return np.asarray(
            self.strength
            * (surplus(scores(rows, self.weights, self.intercept), codes) @ self.weights.T)
        )

    def curvature(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return its Hessian, of shape (n, R, R)."""
        chances = softmax(scores(rows, self.weights, self.intercept))
        mean = chances @ self.weights.T
        spread = np.einsum("nk,rk,sk->nrs", chances, self.weights, self.weights, optimize=True)
        return np.asarray(self.strength * (spread - mean[:, :, None] * mean[:, None, :]))


class SupervisedDescent(Descent):
    """Nonnegative updates of all modes for given weights of the classes.

    The ridge acts on the samples only. ``pull`` is None if the label term has no weight; ``seen``
    has the observed rows of each mode, or None for all.
    """

    def __init__(
        self,
        sparsity: Sequence[float],
        ridge: Sequence[float],
        pull: LabelPull | None,
        seen: Sequence[np.ndarray | None],
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(sparsity, ridge, exact=exact)
        self.pull = pull
        self.seen = seen
        self.n_steps = _EXACT_STEPS if exact else _STEPS
        self.reduction = _EXACT_REDUCTION if exact else _REDUCTION

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Update with one normal matrix for all rows."""
        return self.solve_rows(normal[None, :, :], rhs, current, mode)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Update with the normal matrices of the rows, or with one for all."""
        if mode == 0:
            return self._solve_samples(normal, rhs, current, np.arange(int(rhs.shape[0])))
        right = double(rhs) - self.sparsity[mode]
        return unit_columns(normal, right, current, self.seen[mode])

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Update for the stored entries of a sparse tensor.

        Samples are independent of each other and come in parts. A column of length one couples
        the rows of another mode, so that all of their normal matrices are held at once.
        """
        result = np.zeros_like(factors[mode])
        eye = np.eye(result.shape[1])
        parts = tensor.observed_normal_equations(factors, mode)
        if mode == 0:
            for rows, normal, rhs in parts:
                result[rows] = self._solve_samples(
                    normal + shift * eye, rhs, factors[0][rows], np.asarray(rows)
                )
            return result
        kept = list(parts)
        rows, normal, rhs = (np.concatenate([part[k] for part in kept]) for k in range(3))
        right = rhs - self.sparsity[mode]
        result[rows] = unit_columns(normal + shift * eye, right, factors[mode][rows], None)
        return result

    def _solve_samples(
        self, normal: Array, rhs: Array, current: Array, samples: NDArray[Any]
    ) -> Array:
        """Descend on the rows of some samples, those with labels apart from those without."""
        matrices, right = self._penalized(normal, rhs, 0)
        if self.pull is None:
            return self._descend(matrices, right, current)
        labels = self.pull.labels
        place = np.searchsorted(labels.positions, samples)
        place = np.minimum(place, len(labels) - 1)
        is_labelled = labels.positions[place] == samples
        groups = [np.flatnonzero(is_labelled), np.flatnonzero(~is_labelled)]

        def part(array: Array, chosen: NDArray[Any]) -> Array:
            xp = namespace_of(array)
            shared = int(array.shape[0]) == 1 and array.ndim == 3
            index = xp.asarray(chosen, device=device(array))
            return array if shared else xp.take(array, index, axis=0)

        done = []
        for chosen, labelled in zip(groups, (True, False), strict=True):
            if not len(chosen):
                continue
            rows = (part(matrices, chosen), part(right, chosen), part(current, chosen))
            if not labelled:
                done.append(self._descend(*rows))
                continue
            system, side, start = (to_numpy(double(array)) for array in rows)
            task = LabelledRows(self.pull, system, side, labels.codes[place[chosen]])
            found = self._follow(task, start)
            done.append(namespace_of(current).astype(like(found, current), current.dtype))
        xp = namespace_of(current)
        back = np.argsort(np.concatenate(groups))
        return xp.take(xp.concat(done), xp.asarray(back, device=device(current)), axis=0)

    def _follow(self, task: LabelledRows, start: NDArray[np.float64]) -> NDArray[np.float64]:
        """Make Newton steps on rows that have a class, a bounded number of them at a time."""
        result = np.empty_like(start)
        for block in as_slices(cut(len(start), _ROWS_AT_A_TIME)):
            part, rows = task.part(block), start[block]
            for _ in range(self.n_steps):
                new = part.lowered(rows, self._descend(*part.expansion(rows), rows))
                change = np.max(np.abs(new - rows))
                rows = new
                if change <= self.reduction * np.max(rows):
                    break
            result[block] = rows
        return result


class LabelledRows:
    """Least squares plus the label term, for some rows; ``matrices`` is (1, R, R) or (n, R, R)."""

    def __init__(
        self,
        pull: LabelPull,
        matrices: NDArray[np.float64],
        right: NDArray[np.float64],
        codes: NDArray[np.intp],
    ) -> None:
        self.pull = pull
        self.matrices = matrices
        self.right = right
        self.codes = codes

    def part(self, block: slice) -> LabelledRows:
        """Return the task of some of the rows."""
        own = self.matrices if self.matrices.shape[0] == 1 else self.matrices[block]
        return LabelledRows(self.pull, own, self.right[block], self.codes[block])

    def expansion(
        self, rows: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the normal equations of the quadratic expansion at some rows."""
        bend = self.pull.curvature(rows)
        pulled = np.einsum("nrs,ns->nr", bend, rows) - self.pull.slope(rows, self.codes)
        return self.matrices + bend, self.right + pulled

    def lowered(
        self, rows: NDArray[np.float64], target: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Go from each row towards its target, as far as the objective falls enough."""
        before = self._value(rows)
        slope = self._times(rows) - self.right + self.pull.slope(rows, self.codes)
        way = np.minimum(target, _HUGE) - rows
        moved = np.max(np.abs(way @ self.pull.weights), axis=1)
        way *= np.minimum(1.0, _LARGEST_MOVE / np.maximum(moved, _LARGEST_MOVE))[:, None]
        promised = np.sum(slope * way, axis=1)
        length = np.ones(len(rows))
        limit = before + _ROUNDING * np.abs(before)
        for _ in range(_HALVINGS):
            new = rows + length[:, None] * way
            bad = self._value(new) > limit + _SUFFICIENT * length * np.minimum(promised, 0.0)
            if not bad.any():
                return np.maximum(new, 0.0)
            length = np.where(bad, length / 2, length)
        # What does not fall by halving is at its minimum, up to rounding.
        return np.where(bad[:, None], rows, np.maximum(new, 0.0))

    def _value(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        quadratic = np.sum(rows * (0.5 * self._times(rows) - self.right), axis=1)
        return np.asarray(quadratic + self.pull.value(rows, self.codes))

    def _times(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each row times its normal matrix."""
        if self.matrices.shape[0] == 1:
            return np.asarray(rows @ self.matrices[0])
        return np.asarray(np.einsum("nrs,ns->nr", self.matrices, rows))


def unit_columns(
    normal: Array, right: Array, current: Array, seen: NDArray[np.bool_] | None
) -> Array:
    """Minimise ``½ Σ_i b_i N_i b_iᵀ - <B, R>`` over nonnegative columns of length one, in turn.

    ``normal`` is (1, R, R) or (n, R, R); rows that are not ``seen`` stay zero.
    """
    xp = namespace_of(right)
    columns = xp.asarray(double(current), copy=True)
    rank = int(right.shape[1])
    kept = None if seen is None else like(seen.astype(np.float64), right)
    first = 0.0
    for sweep in range(_SWEEPS):
        change = 0.0
        for r in range(rank):
            column = columns[:, r]
            own = normal[:, r, r]
            top = xp.max(own)
            if float(top) <= 0:
                continue  # the component is zero elsewhere: its column has no effect
            target = right[:, r] - xp.sum(normal[:, r, :] * columns, axis=1) + top * column
            target = target if kept is None else target * kept
            new = _to_the_sphere(target, column, kept)
            change = max(change, float(xp.max(xp.abs(new - column))))
            columns[:, r] = new
        first = max(first, change)
        if sweep and change <= _SWEEP_REDUCTION * first:
            break
    return xp.astype(columns, current.dtype)


def _to_the_sphere(target: Array, column: Array, kept: Array | None) -> Array:
    """Return the nonnegative vector of length one with the largest product with a target."""
    xp = namespace_of(target)
    positive = xp.where(target > 0, target, xp.zeros_like(target))
    peak = xp.max(positive)
    if float(peak) > 0:
        positive = positive / peak
        return positive / xp.sqrt(xp.sum(positive * positive))
    # Nothing pulls upwards: the best is all length on the entry that is pulled down least.
    usable = target if kept is None else xp.where(kept > 0, target, -xp.inf)
    best = xp.arange(int(column.shape[0]), device=device(column)) == xp.argmax(usable)
    return xp.astype(best, column.dtype)
