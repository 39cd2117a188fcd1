"""The Wasserstein barycenter: the one distribution that is nearest to some in transport."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks, thread_limit
from polyad.data.validation import as_tensor_input
from polyad.dictionary.reading import distributions
from polyad.exceptions import InvalidInputError, InvalidTypeError, TransportWarning, warn_user
from polyad.transport.geometry import Geometry, log, reach_of
from polyad.transport.grids import grid_geometry

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput

# Numbers that a thread takes at a time, and iterations between two looks at the error.
_BLOCK = 1 << 16
_LOOK = 10


def wasserstein_barycenter(
    X: Any,
    weights: ArrayLike | None = None,
    *,
    geometry: Geometry | None = None,
    epsilon: float | None = None,
    tol: float = 1e-7,
    max_iter: int = 5000,
    n_jobs: int | None = None,
) -> Array:
    r"""Return the entropic Wasserstein barycenter of distributions.

    It minimises :math:`\sum_i w_i W_\varepsilon(x_i, y)` over distributions y: a dictionary of one
    atom, which :class:`~polyad.WassersteinDictionary` of one component finds too.

    Parameters
    ----------
    X : array of shape (n_samples, n_1, ...)
        Images, histograms or joint distributions, not negative; each is normalised to mass one.
        The first mode holds the samples: a matrix is histograms over a line, one in each row, and
        a single image is ``image[None]``.
    weights : array-like of shape (n_samples,), optional
        Not negative; equal by default. A sample of weight zero does not count.
    geometry : Geometry, optional
        The cost of moving mass between cells, with the strength of the entropy: see
        :func:`~polyad.transport.grid_geometry`. By default the squared distance on a grid whose
        axes run from 0 to 1.
    epsilon : float, optional
        The strength of the entropy, which blurs the barycenter by about ``sqrt(epsilon / 2)`` of
        an axis: 0.01 by default. A geometry has its own.
    tol : float, default=1e-7
        Of the distance between the second margins of the plans and their mean, summed over cells.
        Where it is not reached there is a warning.
    max_iter : int, default=5000
        The largest number of iterations.
    n_jobs : int, optional
        The number of threads; all by default.

    Returns
    -------
    array of shape (n_1, ...)
        Of mass one.

    Notes
    -----
    Iterative Bregman projections (Benamou et al., 2015), with logarithms where the cost is large
    beside epsilon.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.dictionary import wasserstein_barycenter
    >>> t = np.linspace(0, 1, 101)
    >>> bumps = np.exp(-((t - np.array([[0.2], [0.8]])) ** 2) / 0.005)
    >>> float(t[wasserstein_barycenter(bumps, epsilon=0.002).argmax()].round(2))
    0.5
    """
    _check_stopping(tol, max_iter)
    given = as_tensor_input(X)
    shares = _shares(weights, given.shape[0])
    values, dtype, _ = distributions(_without(given, shares == 0), "wasserstein_barycenter")
    xp = namespace_of(values)
    counted = [xp.asarray(own, device=values.device) for own in (np.flatnonzero(shares), shares)]
    values = values[counted[0], ...]
    shares = xp.astype(counted[1][counted[0]], values.dtype)
    geometry = _geometry(geometry, epsilon, tuple(int(n) for n in values.shape[1:]))
    with thread_limit(n_jobs):
        found, error = _projections(values, shares, geometry, tol, max_iter)
    if error > tol:
        warn_user(
            f"wasserstein_barycenter: the margins of the plans still differ by {error:.1e} after "
            f"{max_iter} iterations. Increase max_iter, epsilon or tol.",
            TransportWarning,
        )
    return xp.astype(found / xp.sum(found), dtype)


def _projections(
    values: Array, shares: Array, geometry: Geometry, tol: float, max_iter: int
) -> tuple[Array, float]:
    """Return the barycenter by iterative Bregman projections, and the last error."""
    xp = namespace_of(values)
    axes = tuple(range(1, values.ndim))
    back = geometry.transposed
    # Scalings are as large as exp(largest / epsilon), and so are their inverses.
    is_plain = 2.0 * geometry.largest <= reach_of(values) * geometry.epsilon
    # Scalings of the second margins, and the margins without them: logarithms unless plain.
    scales = xp.empty_like(values)
    margins = xp.ones_like(values) if is_plain else xp.zeros_like(values)
    log_margins = xp.empty_like(values) if is_plain else margins
    logs: Array = None if is_plain else log(values)
    mean = xp.zeros_like(values[0, ...])
    middle = xp.exp(mean)

    def project(start: int, stop: int) -> None:
        own = (slice(start, stop), ...)
        if is_plain:
            scales[own] = middle / margins[own]
            margins[own] = back.apply(values[own] / geometry.apply(scales[own]))
            log_margins[own] = xp.log(margins[own])
        else:
            scales[own] = mean - margins[own]
            margins[own] = back.log_apply(logs[own] - geometry.log_apply(scales[own]))

    blocks = cut(values.shape[0], max(1, _BLOCK // geometry.n_cells))
    blocks = blocks if is_numpy_array(values) else [(0, values.shape[0])]
    error = math.inf
    for number in range(1, max_iter + 1):
        run_blocks(project, blocks)
        # The scalings have a weighted geometric mean of one.
        mean = xp.tensordot(shares, log_margins, axes=1)
        middle = xp.exp(mean)
        if number % _LOOK == 0 or number == max_iter:
            scaled = scales * margins if is_plain else xp.exp(scales + margins)
            error = float(xp.max(xp.sum(xp.abs(scaled - middle[None, ...]), axis=axes)))
            if error <= tol:
                break
    return middle, error


def _check_stopping(tol: Any, max_iter: Any) -> None:
    """Refuse rules of when to stop that are no numbers, or of no use."""
    if not isinstance(tol, Real) or not 0 <= tol < math.inf:  # type: ignore[operator]
        message = f"tol={tol!r} must be a finite number that is not negative."
        raise InvalidInputError(message)
    if not isinstance(max_iter, Integral) or isinstance(max_iter, bool) or max_iter < 1:
        message = f"max_iter={max_iter!r} must be a whole number of iterations, at least one."
        raise InvalidInputError(message)


def _geometry(given: Any, epsilon: float | None, grid: tuple[int, ...]) -> Geometry:
    """Return the geometry that was given, or that of a grid."""
    if given is None:
        return grid_geometry(grid, 0.01 if epsilon is None else epsilon)
    if not isinstance(given, Geometry):
        message = (
            f"geometry is a {type(given).__name__}; give what polyad.transport.grid_geometry "
            "returns, or MatrixGeometry(cost, shape, epsilon=...) of a cost matrix."
        )
        raise InvalidTypeError(message)
    if epsilon is not None:
        message = f"epsilon={epsilon!r} is given, but {given!r} has its own: leave out one."
        raise InvalidInputError(message)
    if given.shape != grid:
        message = f"The geometry is of a grid {given.shape}, but the samples of {grid}."
        raise InvalidInputError(message)
    return given


def _without(given: TensorInput, left_out: np.ndarray) -> TensorInput:
    """Return samples of which some, that do not count, are as good as any."""
    if given.is_sparse or not left_out.any():
        return given
    xp = namespace_of(given.data)
    data = xp.asarray(given.data, copy=True)
    data[xp.asarray(left_out, device=data.device), ...] = 1.0
    return dataclasses.replace(given, data=data)


def _shares(weights: Any, n_samples: int) -> np.ndarray:
    """Return weights that sum to one."""
    needed = f"{n_samples} numbers that are not negative, one per sample"
    try:
        given = np.ones(n_samples) if weights is None else np.asarray(weights)
        given = given if given.dtype.kind == "c" else given.astype(float)
    except (TypeError, ValueError) as error:
        message = f"weights of type {type(weights).__name__} are no numbers; give {needed}."
        raise InvalidTypeError(message) from error
    if given.dtype.kind == "c":
        message = f"weights are complex; give {needed}."
        raise InvalidTypeError(message)
    if given.shape != (n_samples,) or not (np.isfinite(given) & (given >= 0)).all():
        message = f"weights must be {needed}."
        raise InvalidInputError(message)
    if not given.any():
        message = "weights are all zero: give one sample a weight at least."
        raise InvalidInputError(message)
    part = given / given.max()  # the sum of large weights is not finite
    return np.asarray(part / part.sum())
