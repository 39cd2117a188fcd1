r"""CP over a stream of samples: new rows are appended and the other modes move a little.

Each mode ``k`` but the samples keeps the two sums of its normal equations over all samples seen,
the right-hand side :math:`P_k` and the normal matrix :math:`Q_k`, so that
:math:`A_k = P_k Q_k^{-1}`. A batch adds its own MTTKRP and Gram product to them. The data of
earlier batches is never needed again [1]_.

References
----------
.. [1] S. Zhou, N. X. Vinh, J. Bailey, Y. Jia, I. Davidson, "Accelerating Online CP Decompositions
   for Higher Order Tensors", KDD 2016, doi:10.1145/2939672.2939763
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyad.cp.rules import LeastSquares, solve_normal
from polyad.tensor.products import gram_product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.cp.problem import CompleteProblem


@dataclass(frozen=True)
class OnlineSums:
    """The right-hand side and normal matrix of each mode other than the samples."""

    rhs: list[Array]
    normal: list[Array]


def sums_of_fit(factors: Sequence[Array], ridge: float) -> OnlineSums:
    r"""Return the sums of a complete fit from its factors alone.

    At a minimum :math:`A_k (Q_k + \lambda I) = P_k`, so the right-hand side needs no second look at
    the data.
    """
    normal = [gram_product(factors, mode) for mode in range(1, len(factors))]
    rhs = [
        factor @ matrix + ridge * factor for factor, matrix in zip(factors[1:], normal, strict=True)
    ]
    return OnlineSums(rhs, normal)


def add_batch(
    batch: CompleteProblem, sums: OnlineSums, factors: Sequence[Array], ridge: float
) -> tuple[OnlineSums, list[Array]]:
    """Fold a batch of samples into the sums and update the factors of the other modes.

    ``factors`` are the rows of the batch for the factors before, and those factors.
    """
    updated = list(factors)
    rhs, normal = list(sums.rhs), list(sums.normal)
    for mode in range(1, len(updated)):
        rhs[mode - 1] = rhs[mode - 1] + batch.tensor.mttkrp(updated, mode)
        normal[mode - 1] = normal[mode - 1] + gram_product(updated, mode)
        updated[mode] = solve_normal(normal[mode - 1], rhs[mode - 1], ridge)
    updated[0] = batch.minimizer(updated, 0, LeastSquares(ridge))
    return OnlineSums(rhs, normal), updated
