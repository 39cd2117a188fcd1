r"""The Newton equations of potentials, solved by conjugate gradients.

In units of ``1 / epsilon`` their matrix is ``M - B``: the preconditioner :math:`M = \mathrm{diag} +
L W L^*`, whose inverse is known, less :math:`B = T^\top \mathrm{diag}(x) T`. Its product with a
preconditioned residual is the residual less ``B`` times that: ``L`` and ``L*`` are needed by the
preconditioner alone. Row by row of the factor, ``M`` is a diagonal matrix and one of the rank of
the dictionary (Woodbury).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyad.core.arrays import namespace_of
from polyad.dictionary.loss import by_samples

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.dictionary.loss import Conjugate
    from polyad.dictionary.newton import Block

#: Masses of cells below this part of a sample's are rounding.
LEAST_MASS = 1e-14
# Masses that differ by less than this part of them have the mean of any of both.
_ALIKE = 1e-3
# Curvature below this part of that of the preconditioner is rounding.
_SINGULAR = 1e-14


class Equations:
    """The equations of samples and their models.

    ``weights`` are those of a block's factor, or None where the model is fixed.
    """

    def __init__(
        self, conjugate: Conjugate, model: Array, block: Block | None, weights: Array | None
    ) -> None:
        xp = namespace_of(model)
        q = conjugate.mean
        self.conjugate, self.block = conjugate, block
        self.is_separable = block is None or block.is_separable
        self.inverse = xp.empty_like(q)
        least = LEAST_MASS / conjugate.samples.geometry.n_cells

        def fill(first: int, last: int) -> None:
            own = slice(first, last)
            self.inverse[own, ...] = _inverse_mean(q[own, ...], model[own, ...], least)

        by_samples(fill, q)
        if block is None or weights is None:
            return
        # (1 / W + L* (1 / diag) L)^-1, a matrix for each row of the factor.
        roots = xp.sqrt(conjugate.samples.geometry.epsilon * weights)
        sides = roots[:, :, None] * roots[:, None, :]
        small = sides * block.grams(self.inverse)
        # The second term is rounding, and keeps what weights of all sizes make from being singular.
        size = 1.0 + 1e-13 * xp.max(xp.abs(small), axis=(1, 2), keepdims=True)
        one = xp.eye(roots.shape[1], dtype=q.dtype)
        self.middle = sides * xp.linalg.inv(small + size * one[None, :, :])
        if block.is_separable:
            self.sums = xp.sum(self.middle, axis=2)
        else:
            whole = xp.sum(self.middle, axis=0)
            scale = 1.0 / xp.sqrt(xp.linalg.diagonal(whole))
            sides = scale[:, None] * scale[None, :]
            self.sums = sides * xp.linalg.inv(sides * whole + 1e-13 * one)

    def dot(self, a: Array, b: Array) -> Array:
        """Return the product of two arrays, for each sample or of all."""
        return self._joined(dots(a, b))

    def _joined(self, numbers: Array) -> Array:
        """Return numbers of samples, or their sum where samples depend on each other."""
        return numbers if self.is_separable else namespace_of(numbers).sum(numbers)

    def _centred(self, small: Array) -> Array:
        """Return what the rank takes off, ``W L* M^-1 r``, which keeps the sums of the factor."""
        xp = namespace_of(small)
        solved = xp.matmul(self.middle, small[:, :, None])[:, :, 0]
        if self.is_separable:
            totals = xp.sum(solved, axis=1, keepdims=True)
            return solved - self.sums * (totals / xp.sum(self.sums, axis=1, keepdims=True))
        shift = xp.matmul(self.sums, xp.sum(solved, axis=0))
        return solved - xp.matmul(self.middle, shift[None, :, None])[:, :, 0]

    def _precondition(self, residual: Array, result: Array) -> Array:
        """Put ``M^-1`` times a residual, by Woodbury row by row, into an array of that.

        ``result`` has the residual over the diagonal. Returns the products of both.
        """
        xp = namespace_of(residual)
        products = xp.empty_like(self.conjugate.value)
        block = self.block
        solved = None if block is None else self._centred(block.adjoint(result))

        def fill(first: int, last: int) -> None:
            own = slice(first, last)
            if block is not None and solved is not None:
                part = solved[own, :] if block.is_separable else solved
                taken = block.take(own).model(part)
                result[own, ...] -= self.inverse[own, ...] * taken
            products[own] = dots(residual[own, ...], result[own, ...])

        by_samples(fill, residual)
        return self._joined(products)

    def solve(self, right: Array, forcing: float, n_inner: int) -> Array:
        """Return about the solution, by conjugate gradients."""
        xp = namespace_of(right)
        solution, direction, product = (xp.zeros_like(right) for _ in range(3))
        residual, preconditioned = xp.asarray(right, copy=True), self.inverse * right
        bends = xp.empty_like(self.conjugate.value)
        fresh = self._precondition(residual, preconditioned)
        goal, turn = forcing**2 * fresh, xp.zeros_like(fresh)

        def follow(first: int, last: int) -> None:
            own = slice(first, last)
            start = preconditioned[own, ...]
            share = spread(turn[own] if turn.ndim else turn, start)
            direction[own, ...] *= share
            direction[own, ...] += start
            product[own, ...] *= share
            product[own, ...] += residual[own, ...]
            product[own, ...] -= self.conjugate.returned(start, own)
            bends[own] = dots(direction[own, ...], product[own, ...])

        def move(first: int, last: int) -> None:
            own = slice(first, last)
            by = spread(length[own] if length.ndim else length, right)
            solution[own, ...] += by * direction[own, ...]
            residual[own, ...] -= by * product[own, ...]
            preconditioned[own, ...] = self.inverse[own, ...] * residual[own, ...]

        for _ in range(n_inner):
            if not bool(xp.any(fresh > goal)):
                break
            by_samples(follow, right)
            bend = self._joined(bends)
            # A sample that is done, or has no curvature left but rounding, stays where it is.
            goes_on = (fresh > goal) & (bend > _SINGULAR * fresh)
            if not bool(xp.any(goes_on)):
                break
            length = _ratio(fresh, bend, goes_on)
            by_samples(move, right)
            size, fresh = fresh, self._precondition(residual, preconditioned)
            turn = _ratio(fresh, size, goes_on)
        return solution


def dots(a: Array, b: Array) -> Array:
    """Return the product of two arrays for each sample."""
    xp = namespace_of(a)
    return xp.vecdot(xp.reshape(a, (a.shape[0], -1)), xp.reshape(b, (b.shape[0], -1)))


def spread(numbers: Array, like: Array) -> Array:
    """Return numbers of samples, or one of all, in a shape to multiply arrays by."""
    return numbers[(slice(None), *(None,) * (like.ndim - 1))] if numbers.ndim else numbers


def _ratio(above: Array, below: Array, where: Array) -> Array:
    """Return a ratio where it is asked for, else zero."""
    xp = namespace_of(above)
    safe = xp.where(where & (below != 0), below, xp.ones_like(below))
    return xp.where(where, above / safe, xp.zeros_like(above))


def _inverse_mean(q: Array, model: Array, least: float) -> Array:
    r"""Return one over the logarithmic mean of q and the model, or over q where that is larger.

    With :math:`t = y / q - 1` it is :math:`\log(1 + t) / (q t)`, within a thousandth for small t.
    """
    xp = namespace_of(q)
    base = xp.maximum(q, xp.full_like(q, least))
    t = model / base
    t -= 1.0
    t = xp.maximum(t, xp.full_like(t, _ALIKE))
    result = xp.log(1.0 + t)
    base *= t
    result /= base
    return result
