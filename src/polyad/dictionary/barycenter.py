"""The Wasserstein barycenter: the one distribution that is nearest to some in transport."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks, thread_limit
from polyad.data.validation import as_tensor_input
from polyad.dictionary.reading import distributions
from polyad.exceptions import InvalidInputError, warn_user
from polyad.transport.geometry import grid_geometry, log, reach_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from polyad.core.arrays import Array
    from polyad.transport.geometry import Geometry

# Numbers that a thread takes at a time, and iterations between two looks at the error.
_BLOCK = 1 << 16
_LOOK = 10


def wasserstein_barycenter(
    X: Any,
    weights: ArrayLike | None = None,
    *,
    geometry: Geometry | None = None,
    epsilon: float = 0.01,
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
    weights : array-like of shape (n_samples,), optional
        Not negative; equal by default.
    geometry : Geometry, optional
        The cost of moving mass between cells, with the strength of the entropy: see
        :func:`~polyad.transport.grid_geometry`. By default the squared distance on a grid whose
        axes run from 0 to 1.
    epsilon : float, default=0.01
        The strength of the entropy, which blurs the barycenter, where no geometry is given.
    tol : float, default=1e-7
        Of the distance between the second margins of the plans and their mean, summed over cells.
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
    given = as_tensor_input(X)
    values, dtype, _ = distributions(given, "wasserstein_barycenter")
    xp = namespace_of(values)
    grid = tuple(int(n) for n in values.shape[1:])
    if geometry is None:
        geometry = grid_geometry(grid, epsilon=epsilon)
    elif geometry.shape != grid:
        message = f"The geometry is of a grid {geometry.shape}, but the samples of {grid}."
        raise InvalidInputError(message)
    shares = xp.asarray(_shares(weights, values.shape[0]), dtype=values.dtype, device=values.device)
    with thread_limit(n_jobs):
        found, error = _projections(values, shares, geometry, tol, max_iter)
    if error > tol:
        warn_user(
            f"wasserstein_barycenter: the margins of the plans still differ by {error:.1e} after "
            f"{max_iter} iterations. Increase max_iter, epsilon or tol.",
            RuntimeWarning,
        )
    return xp.astype(found / xp.sum(found), dtype)


def _projections(
    values: Array, shares: Array, geometry: Geometry, tol: float, max_iter: int
) -> tuple[Array, float]:
    """Return the barycenter by iterative Bregman projections, and the last error."""
    xp = namespace_of(values)
    scales = xp.zeros_like(values)  # logarithms of the scalings of the second margins
    margins = xp.empty_like(values)  # and of the margins without them
    axes = tuple(range(1, values.ndim))
    each = (slice(None), *(None,) * (values.ndim - 1))
    # Scalings are as large as exp(largest / epsilon), and so are their inverses.
    is_plain = 2.0 * geometry.largest <= reach_of(values) * geometry.epsilon
    # Of both, only one is used: scalings, or the logarithms of the samples.
    plain: Array = xp.ones_like(values) if is_plain else None
    logs: Array = None if is_plain else log(values)

    def project(start: int, stop: int) -> None:
        if is_plain:
            ratio = values[start:stop, ...] / geometry.apply(plain[start:stop, ...])
            plain[start:stop, ...] = geometry.apply(ratio)
            margins[start:stop, ...] = xp.log(plain[start:stop, ...])
        else:
            back = logs[start:stop, ...] - geometry.log_apply(scales[start:stop, ...])
            margins[start:stop, ...] = geometry.log_apply(back)

    def rescale(start: int, stop: int) -> None:
        if is_plain:
            plain[start:stop, ...] = middle / plain[start:stop, ...]
        scales[start:stop, ...] = mean - margins[start:stop, ...]

    blocks = cut(values.shape[0], max(1, _BLOCK // geometry.n_cells))
    blocks = blocks if is_numpy_array(values) else [(0, values.shape[0])]
    error = math.inf
    for number in range(1, max_iter + 1):
        run_blocks(project, blocks)
        mean = xp.sum(shares[each] * (scales + margins), axis=0)
        middle = xp.exp(mean)
        if number % _LOOK == 0 or number == max_iter:
            missed = xp.abs(xp.exp(scales + margins) - middle[None, ...])
            error = float(xp.max(xp.sum(missed, axis=axes)))
            if error <= tol:
                break
        run_blocks(rescale, blocks)
    return middle, error


def _shares(weights: Any, n_samples: int) -> np.ndarray:
    """Return weights that sum to one."""
    given = np.ones(n_samples) if weights is None else np.asarray(weights, dtype=float)
    if given.shape != (n_samples,) or not (np.isfinite(given) & (given >= 0)).all():
        message = f"weights must be {n_samples} numbers that are not negative, one per sample."
        raise InvalidInputError(message)
    if not given.sum() > 0:
        message = "weights are all zero: give one sample a weight at least."
        raise InvalidInputError(message)
    return np.asarray(given / given.sum())
