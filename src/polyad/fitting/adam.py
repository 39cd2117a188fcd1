"""Adam: steps along the running mean of the gradient, over the root of that of its square.

Arrays that are moved as a whole take :meth:`Adam.step`; a method that works on blocks of one long
vector, on several threads, takes :func:`adam_entries`.

References
----------
D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", International Conference on
Learning Representations (2015), arXiv:1412.6980.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyad.core.compiled import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

# What is added to the root of the mean square, as a part of the largest of an array.
_LEAST_SIZE = 1e-10


class Moments(NamedTuple):
    """Running means of the gradient and of its square, entry by entry."""

    first: Vector
    second: Vector


class Rule(NamedTuple):
    """The numbers of one update."""

    rate: float
    first_decay: float
    second_decay: float
    first_correction: float
    """1 / (1 - first_decay ** t): undoes the bias of a mean that began at zero."""
    second_correction: float
    lower: float


@dataclass(frozen=True)
class Adam:
    """The method, by the decays of its running means."""

    first_decay: float
    second_decay: float

    def rule(self, rate: float, count: int, lower: float) -> Rule:
        """Return the numbers of the update ``count``, from 1, of entries above a bound."""
        first = 1.0 / (1.0 - self.first_decay**count)
        second = 1.0 / (1.0 - self.second_decay**count)
        return Rule(rate, self.first_decay, self.second_decay, first, second, lower)

    def step(
        self, point: Vector, gradient: Vector, moments: Moments, *, rate: float, count: int
    ) -> tuple[Vector, Moments]:
        """Return an array of any shape after the update ``count``, from 1, and its moments."""
        first = self.first_decay * moments.first + (1.0 - self.first_decay) * gradient
        second = self.second_decay * moments.second + (1.0 - self.second_decay) * gradient**2
        size = np.sqrt(second / (1.0 - self.second_decay**count))
        # Gradients that are zero but for rounding move nothing; gradients have a unit, so this too.
        least = _LEAST_SIZE * float(size.max(initial=0.0)) + np.finfo(np.float64).tiny
        move = rate / (1.0 - self.first_decay**count) * first / (size + least)
        return point - move, Moments(first, second)


@kernel
def adam_entries(
    old: Vector, block: tuple[int, int], rule: Rule, moments: Moments, out: Vector
) -> None:
    """Turn a block of gradients in ``out`` into entries after the update; all arrays are flat.

    The projection onto the lower bound follows the update.
    """
    fresh, fresh_square = 1.0 - rule.first_decay, 1.0 - rule.second_decay
    for e in range(block[0], block[1]):
        g = out[e]
        mean = rule.first_decay * moments.first[e] + fresh * g
        square = rule.second_decay * moments.second[e] + fresh_square * g * g
        moments.first[e] = mean
        moments.second[e] = square
        size = np.sqrt(square * rule.second_correction)
        # An entry whose gradient was always zero stays where it is.
        move = (rule.rate * rule.first_correction) * mean / (size if size > 0 else 1.0)
        out[e] = max(old[e] - move, rule.lower)
