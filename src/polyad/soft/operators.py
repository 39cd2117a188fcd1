r"""Soft ranks, sorts, masks, quantiles and normalization: smooth functions of their input.

Each row of values is transported to ordered targets with a little entropy. What the plan says about
who goes where replaces the permutation of a sort: ranks and normalized values are averages over the
targets of a value, sorted values and quantiles are averages over the values of a target.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from polyad.exceptions import InvalidInputError
from polyad.soft.arguments import read_settings
from polyad.soft.formulas import (
    Evaluated,
    SoftGradients,
    evaluate_normalize,
    evaluate_quantile,
    evaluate_quantize,
    evaluate_rank,
    evaluate_sort,
    evaluate_sort_with,
    evaluate_topk_mask,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from polyad.soft.arguments import Squash
    from polyad.transport.rows import Cost


def soft_rank(
    x: ArrayLike,
    *,
    n_targets: int | None = None,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Return the rank of each value within its row, as a smooth function of the row.

    The mean over the targets of a value of the ranks that belong to them,

    .. math:: R = a^{-1} \circ P r, \qquad
              r_j = n \big(\textstyle\sum_{k < j} b_k + b_j / 2\big) + \tfrac12,

    where :math:`P` is the plan between ``n`` values of weights :math:`a` and targets of weights
    :math:`b`. Ranks begin with 1, as those of ``scipy.stats.rankdata``: with as many targets as
    values and a small ``epsilon`` they are the same, also for ties, which get the mean of their
    ranks. With fewer targets the ranks of the values that share one are averaged.

    Parameters
    ----------
    x : array-like
        Values; every row along ``axis`` is ranked on its own.
    n_targets : int, optional
        Number of equally spaced targets; by default that of ``target_weights``, or of the values.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``x``. A value without weight is treated, but has no influence on others.
    target_weights : array-like, optional
        Weights of the targets, likewise: one axis of ``n_targets`` numbers, or the axes of ``x``
        with that length in place of ``axis``.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``
        float32 for float32, otherwise float64. The weighted mean of a row is ``(n + 1) / 2``.

    See Also
    --------
    vjp : The same with its derivative.

    Examples
    --------
    >>> from polyad.soft import soft_rank
    >>> soft_rank([0.3, 0.1, 0.9, 0.5], epsilon=1e-4)
    array([2., 1., 4., 3.])
    >>> soft_rank([0.3, 0.1, 0.9, 0.5], epsilon=0.1).round(2)
    array([1.89, 1.37, 3.79, 2.95])
    """
    return evaluate_rank(
        *(x, n_targets, weights, target_weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


def soft_sort(
    x: ArrayLike,
    *,
    n_targets: int | None = None,
    top_k: int | None = None,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Return the values of each row in increasing order, as a smooth function of the row.

    The mean over the values of a target, :math:`S = b^{-1} \circ P' x`, where :math:`P` is the plan
    between the values and targets of weights :math:`b`. With as many targets as values and a small
    ``epsilon`` this is ``numpy.sort``; with fewer, the means of neighbours in the sorted row.

    Parameters
    ----------
    x : array-like
        Values; every row along ``axis`` is sorted on its own.
    n_targets : int, optional
        Number of equally spaced targets; by default that of ``target_weights``, or of the values.
    top_k : int, optional
        Return the ``top_k`` largest values only, in increasing order: each has a target of the
        weight of one value, and all others share one. In place of ``n_targets`` and
        ``target_weights``; its time grows with ``top_k`` instead of the number of values.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``x``. A value without weight is treated, but has no influence on others.
    target_weights : array-like, optional
        Weights of the targets, likewise: one axis of ``n_targets`` numbers, or the axes of ``x``
        with that length in place of ``axis``.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``, with the targets along ``axis``
        Several axes become one, in place of the first.
        float32 for float32, otherwise float64. Its mean with the target weights is that of the row.

    See Also
    --------
    vjp : The same with its derivative.

    Examples
    --------
    >>> from polyad.soft import soft_sort
    >>> soft_sort([0.3, 0.1, 0.9, 0.5], epsilon=1e-4)
    array([0.1, 0.3, 0.5, 0.9])
    >>> soft_sort([0.3, 0.1, 0.9, 0.5], n_targets=2, epsilon=1e-4)
    array([0.2, 0.7])
    >>> soft_sort([0.3, 0.1, 0.9, 0.5], top_k=2, epsilon=1e-4)
    array([0.5, 0.9])
    """
    return evaluate_sort(
        *(x, n_targets, top_k, weights, target_weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


def soft_sort_with(
    x: ArrayLike,
    criterion: ArrayLike,
    *,
    n_targets: int | None = None,
    top_k: int | None = None,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Return the rows of a matrix in the order of a criterion, as a smooth function of both.

    The mean over the criteria of a target of what belongs to them, :math:`S = b^{-1} \circ P' x`,
    where :math:`P` is the plan between the criterion and targets of weights :math:`b`. With as many
    targets as values and a small ``epsilon`` this is ``x[numpy.argsort(criterion)]``.

    Parameters
    ----------
    x : array-like
        What is sorted: the axes of ``criterion``, and any number of further ones after them. Each
        number that belongs to a value of the criterion is averaged on its own.
    criterion : array-like
        Values to sort by; every row along ``axis`` is treated on its own.
    n_targets : int, optional
        Number of equally spaced targets; by default that of ``target_weights``, or of the values.
    top_k : int, optional
        Return what belongs to the ``top_k`` largest values of the criterion only, in increasing
        order of it, in place of ``n_targets`` and ``target_weights``.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``criterion``. A value without weight has no influence on others.
    target_weights : array-like, optional
        Weights of the targets, likewise: one axis of ``n_targets`` numbers, or the axes of
        ``criterion`` with that length in place of ``axis``.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``, with the targets along ``axis``
        Several axes become one, in place of the first. float32 for float32, otherwise float64.

    See Also
    --------
    vjp : The same with its derivative.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.soft import soft_sort_with
    >>> points = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    >>> soft_sort_with(points, [0.5, 0.9, 0.1], top_k=2, epsilon=1e-3)
    array([[ 1., 10.],
           [ 2., 20.]])
    """
    return evaluate_sort_with(
        *(x, criterion, n_targets, top_k, weights, target_weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


def soft_topk_mask(
    x: ArrayLike,
    k: int = 1,
    *,
    weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Return how much each value belongs to the ``k`` largest of its row, between 0 and 1.

    The part of a value that goes to the higher one of two targets, which takes ``k`` of the values:
    with a small ``epsilon``, one for the ``k`` largest and zero for all others. Larger values never
    have a smaller part.

    Parameters
    ----------
    x : array-like
        Values; every row along ``axis`` is treated on its own.
    k : int, default=1
        How many are chosen, at most all values of a row.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``x``. A value without weight is treated, but has no influence on others.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``
        float32 for float32, otherwise float64. Without weights, a row sums to ``k``.

    See Also
    --------
    soft_sort : Its ``top_k`` returns the largest values themselves.
    vjp : The same with its derivative.

    Examples
    --------
    >>> from polyad.soft import soft_topk_mask
    >>> soft_topk_mask([0.3, 0.1, 0.9, 0.5], k=2).round(6)
    array([0., 0., 1., 1.])
    >>> soft_topk_mask([0.3, 0.1, 0.9, 0.5], k=2, epsilon=0.3).round(2)
    array([0.25, 0.09, 0.96, 0.7 ])
    """
    return evaluate_topk_mask(
        *(x, k, weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


def soft_quantile(
    x: ArrayLike,
    levels: ArrayLike = 0.5,
    *,
    width: float | None = None,
    weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Return quantiles of each row, as a smooth function of the row and of the levels.

    A target of the small weight ``width`` lies between two others, of the weights that are left
    below and above a level. The quantile is the mean of the values of the target in the middle. For
    a small ``epsilon`` and the default width it is ``numpy.quantile(x, levels, method="hazen")``:
    the mean of the sorted values over a window that one value fills.

    Parameters
    ----------
    x : array-like
        Values; every row along ``axis`` is treated on its own.
    levels : float or array-like, default=0.5
        Between 0 and 1; 0.5 is the median. Levels do not depend on each other. A number or one axis
        for all rows, or the axes of ``x`` with another length in place of ``axis``.
    width : float, optional
        Weight of the target in the middle; by default one over the number of values.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``x``. A value without weight is treated, but has no influence on others.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``, with the levels along ``axis``
        Without that axis if ``levels`` is a number. Several axes become one, in place of the first.
        float32 for float32, otherwise float64.

    See Also
    --------
    vjp : The same with its derivative.

    Examples
    --------
    >>> from polyad.soft import soft_quantile
    >>> soft_quantile([0.3, 0.1, 0.9, 0.5, 0.6], [0.1, 0.5, 0.9], epsilon=1e-5)
    array([0.1, 0.5, 0.9])
    """
    return evaluate_quantile(
        *(x, levels, width, weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


def quantile_normalize(
    x: ArrayLike,
    quantiles: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Give the values of each row the distribution of ``quantiles``, keeping their order.

    The mean over the targets of a value of their quantiles, :math:`T = a^{-1} \circ P q`, where
    :math:`P` is the plan between the values of weights :math:`a` and as many targets as there are
    quantiles. With as many quantiles as values and a small ``epsilon``, each value is replaced by
    the quantile of the same rank.

    Parameters
    ----------
    x : array-like
        Values; every row along ``axis`` is treated on its own.
    quantiles : array-like
        Numbers that do not decrease: one axis for all rows, or the axes of ``x`` with another
        length in place of ``axis``.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``x``. A value without weight is treated, but has no influence on others.
    target_weights : array-like, optional
        Weights of the targets, likewise: one axis of ``len(quantiles)`` numbers, or the axes of
        ``x`` with that length in place of ``axis``.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``
        float32 for float32, otherwise float64. Each row lies within its quantiles, and its weighted
        mean is that of the quantiles.

    See Also
    --------
    vjp : The same with its derivative.

    References
    ----------
    Cuturi, Teboul, Niles-Weed and Vert (2020), "Supervised Quantile Normalization for Low Rank
    Matrix Factorization", ICML.

    Examples
    --------
    >>> from polyad.soft import quantile_normalize
    >>> quantile_normalize([0.3, 0.1, 0.9, 0.5], [10, 20, 30, 40], epsilon=1e-4)
    array([20., 10., 40., 30.])
    """
    return evaluate_normalize(
        *(x, quantiles, weights, target_weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


def quantize(
    x: ArrayLike,
    n_levels: int = 10,
    *,
    weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> NDArray[Any]:
    r"""Bring the values of each row near a few levels, which are means of its values.

    The row is softly sorted to ``n_levels`` targets of equal weights, and each value is replaced by
    the mean of the sorted values over its targets: :math:`T = a^{-1} \circ P S` with :math:`S =
    b^{-1} \circ P' x`. With a small ``epsilon`` every value becomes the mean of its group, of
    ``n_levels`` groups of neighbours that are equally large.

    Parameters
    ----------
    x : array-like
        Values; every row along ``axis`` is treated on its own.
    n_levels : int, default=10
        How many levels there are.
    weights : array-like, optional
        Weights of the values, not negative; they are divided by their sum. One axis for all rows,
        or the shape of ``x``. A value without weight is treated, but has no influence on others.
    epsilon : float, default=1e-2
        Strength of the entropy: small is close to the hard operator, large is smooth.
    squash : bool or 'robust', default=True
        Bring each row to (0, 1) first, such that ``epsilon`` means the same for any unit: the row
        is standardised by its mean and deviation and passed through a logistic function.
        ``'robust'`` takes the median and the median distance from it, which outliers do not move.
        Without it, values should lie about between 0 and 1, where the targets are.
    cost : 'squared' or Cost, default='squared'
        Cost of bringing a value to a target; see :class:`Cost`.
    n_iter : int, optional
        Make this many Sinkhorn iterations instead of solving the transport. The result keeps the
        order of the values for any number.
    tol : float, default=1e-9
        Largest relative error of the sums of the plan. Rows that miss it are told by a warning.
    axis : int or tuple of int, default=-1
        Along which the values of a row lie; several axes make one row.

    Returns
    -------
    ndarray of the shape of ``x``
        float32 for float32, otherwise float64. Order and weighted mean of a row are kept.

    See Also
    --------
    vjp : The same with its derivative.

    Examples
    --------
    >>> from polyad.soft import quantize
    >>> quantize([0.3, 0.1, 0.9, 0.5], n_levels=2, epsilon=1e-3)
    array([0.2, 0.2, 0.7, 0.7])
    """
    return evaluate_quantize(
        *(x, n_levels, weights),
        read_settings(epsilon, squash, cost, n_iter, tol, axis),
    ).value


_SETTINGS = ("epsilon", "squash", "cost", "n_iter", "tol", "axis")
_EVALUATE: dict[Callable[..., Any], Callable[..., Evaluated]] = {
    soft_rank: evaluate_rank,
    soft_sort: evaluate_sort,
    soft_sort_with: evaluate_sort_with,
    soft_topk_mask: evaluate_topk_mask,
    soft_quantile: evaluate_quantile,
    quantile_normalize: evaluate_normalize,
    quantize: evaluate_quantize,
}


def vjp(
    function: Callable[..., NDArray[Any]], /, *args: Any, **kwargs: Any
) -> tuple[NDArray[Any], Callable[[ArrayLike], SoftGradients]]:
    """Return the value of a soft operator and its pullback, which multiplies by its Jacobian.

    Parameters
    ----------
    function : callable
        One of :func:`soft_rank`, :func:`soft_sort`, :func:`soft_sort_with`,
        :func:`soft_topk_mask`, :func:`soft_quantile`, :func:`quantile_normalize`,
        :func:`quantize`.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    value : ndarray
        What the function returns.
    pullback : callable
        Takes the gradient of any function of the value, in the shape of the value, and returns
        :class:`SoftGradients`: its gradients with respect to ``x``, and to weights, quantiles,
        levels and the criterion that were given. They are exact derivatives of the solved
        transport, from one linear system; no iteration is stored or repeated.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.soft import soft_rank, vjp
    >>> ranks, pullback = vjp(soft_rank, [0.3, 0.1, 0.9, 0.5], epsilon=0.1)
    >>> pullback([1.0, 0.0, 0.0, 0.0]).x.round(2)
    array([ 2.12, -0.92,  0.14, -1.35])
    """
    if function not in _EVALUATE:
        names = ", ".join(known.__name__ for known in _EVALUATE)
        message = f"{function!r} is not a soft operator of polyad; take one of {names}."
        raise InvalidInputError(message)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    settings = read_settings(*(bound.arguments.pop(name) for name in _SETTINGS))
    done = _EVALUATE[function](*bound.arguments.values(), settings)
    return done.value, done.pull
