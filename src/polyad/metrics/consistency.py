"""The core consistency of a decomposition (CORCONDIA).

The core is computed by one contraction per mode with the pseudo-inverse of its factor, the first
in one pass over the data. Of sparse data only the nonzeros are visited, in blocks whose size
bounds the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device

from polyad.core.arrays import to_numpy
from polyad.core.blocks import as_slices, cut
from polyad.core.threads import current_threads, thread_limit
from polyad.exceptions import InvalidInputError
from polyad.metrics.reading import Comparison, compare
from polyad.tensor.products import project

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.tensor.kruskal import KruskalTensor

# Numbers in the largest array that is made for a block of nonzeros (16 MiB), and in the core.
_BLOCK = 1 << 21
_LARGEST_CORE = 1 << 27


def core_consistency(X: Any, model: Any) -> float:
    r"""Return the core consistency in percent: 100 if no component interacts with another.

    The Tucker core :math:`G` that fits the data best with the factors of the model is compared
    with the one that CP assumes, ones on the superdiagonal and zeros elsewhere:

    .. math:: 100 \Big(1 - \frac{1}{R} \sum_{pq\ldots} (g_{pq\ldots} - \delta_{pq\ldots})^2\Big)

    Near 100 the components explain the data as they claim. With more components than the data
    holds they share what is there and it falls, often far below zero. It tells of too many
    components, not of too few: with one component it is always about 100. A component that fits
    nothing but noise, apart from all others, is not seen by it.

    Parameters
    ----------
    X : tensor-like of order 3 or more
        Complete data, of the shape of the model. Entries that sparse data does not store are zero.
    model : fitted estimator, KruskalTensor or (weights, factors)
        The decomposition.

    Returns
    -------
    float
        At most 100.

    Notes
    -----
    The weight of a component is shared evenly by its columns, so that the result does not depend
    on the scaling of the factors. Costs one pass over dense data with `R` components, and
    ``O(nnz · R**order)`` for sparse data, which is never made dense. Data of order 2 is refused:
    with the least-squares factors of a matrix the core is always the identity, whatever the rank.

    References
    ----------
    R. Bro, H. A. L. Kiers, "A new efficient method for determining the number of components in
    PARAFAC models", Journal of Chemometrics 17 (2003), doi:10.1002/cem.801.

    Examples
    --------
    >>> from polyad.datasets import make_low_rank
    >>> from polyad.metrics import core_consistency
    >>> X, truth = make_low_rank((8, 7, 6), 2, random_state=0)
    >>> round(core_consistency(X, truth), 6)
    100.0
    """
    pair = compare(X, model, missing="zero")
    rank, order = pair.model.n_components, pair.model.ndim
    _check(pair, rank, order)
    if pair.given.is_sparse and getattr(model, "missing", "zero") == "unobserved":
        message = (
            "The model was fitted to unobserved entries (missing='unobserved'); core consistency "
            "is for complete data. Use held-out entries to choose the rank."
        )
        raise InvalidInputError(message)
    # The same number of threads in the linear algebra gives the same rounding anywhere.
    with thread_limit(current_threads()):
        inverses = [np.linalg.pinv(factor) for factor in _balanced(pair.model)]
        core = _sparse_core(pair, inverses) if pair.given.is_sparse else _dense_core(pair, inverses)
    core[(np.arange(rank),) * order] -= 1.0
    return 100.0 * (1.0 - float(np.sum(core**2)) / rank)


def _check(pair: Comparison, rank: int, order: int) -> None:
    if order < 3:
        message = (
            f"X has {order} modes; core consistency needs 3 or more. The best low-rank "
            "approximation of a matrix has a core consistency of 100 for any rank: use held-out "
            "entries (polyad.selection.select_rank with method='heldout')."
        )
        raise InvalidInputError(message)
    if rank**order > _LARGEST_CORE:
        message = (
            f"The core of {rank} components and {order} modes has {rank**order} entries; at most "
            f"{_LARGEST_CORE} are computed. Core consistency is a tool for few components."
        )
        raise InvalidInputError(message)
    if not pair.given.is_sparse:
        xp = array_namespace(pair.given.data)
        if bool(xp.any(xp.isnan(pair.given.data))):
            message = (
                "X has missing entries (NaN); core consistency is for complete data. Fill them "
                "with the model first, or use held-out entries to choose the rank."
            )
            raise InvalidInputError(message)


def _balanced(model: KruskalTensor) -> list[NDArray[Any]]:
    """Return factors whose columns have the same length in each mode and hold the weights."""
    unit = model.normalized()
    share = np.abs(unit.weights) ** (1.0 / model.ndim)
    factors = [factor * share for factor in unit.factors]
    factors[0] = factors[0] * np.where(unit.weights < 0, -1.0, 1.0)
    return factors


def _dense_core(pair: Comparison, inverses: list[NDArray[Any]]) -> NDArray[Any]:
    """Contract the first mode in the memory of the data, then the small rest in NumPy."""
    data = pair.given.data
    xp = array_namespace(data)
    shape = pair.given.shape
    basis = xp.asarray(inverses[0].T, dtype=data.dtype, device=device(data))
    matrix = xp.reshape(data, (shape[0], -1))
    core = to_numpy(project(matrix.T, basis)).astype(np.float64)
    core = core.reshape(-1, *shape[1:])
    for inverse in inverses[1:]:
        # The mode in place 1 goes to the end: after all of them the order is that of the modes.
        core = np.tensordot(core, inverse, axes=([1], [1]))
    return core


def _sparse_core(pair: Comparison, inverses: list[NDArray[Any]]) -> NDArray[Any]:
    """Add up the outer products of the columns of the pseudo-inverses over the nonzeros."""
    stored = pair.stored()
    rank, order = inverses[0].shape[0], len(inverses)
    rows = [np.ascontiguousarray(inverse.T) for inverse in inverses]
    core = np.zeros((rank ** (order - 1), rank))
    step = max(1, _BLOCK // rank ** (order - 1))
    for chosen in as_slices(cut(stored.nnz, step)):
        outer = stored.values[chosen, None]
        for mode in range(order - 1):
            picked = rows[mode][stored.coords[mode][chosen]]
            outer = (outer[:, :, None] * picked[:, None, :]).reshape(len(outer), -1)
        core += outer.T @ rows[-1][stored.coords[-1][chosen]]
    return core.reshape((rank,) * order)
