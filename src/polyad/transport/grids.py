"""The geometry of a grid by the name of its metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from polyad.exceptions import InvalidInputError
from polyad.transport.convolution import ConvolutionGeometry
from polyad.transport.geometry import check_shape, lengths
from polyad.transport.separable import MatrixGeometry, SeparableGeometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.transport.geometry import Geometry

Metric = Literal["sqeuclidean", "euclidean", "cityblock"]
METRICS: tuple[Metric, ...] = get_args(Metric)

# Plain distances on grids of at most so many cells are a matrix: 72 MB.
_DENSE_CELLS = 3000


def grid_geometry(
    shape: Sequence[int],
    epsilon: float,
    *,
    metric: Metric = "sqeuclidean",
    periodic: bool = False,
    axis_weights: Sequence[float] | None = None,
) -> Geometry:
    """Return the geometry of the points of a grid, whose axes run from 0 to 1.

    The largest squared distance is then the number of axes, and not one as in
    :func:`~polyad.transport.grid_cost`.

    Parameters
    ----------
    shape : sequence of int
        Points along each axis.
    epsilon : float
        The strength of the entropy, in the unit of the cost. The costs must be below 1e12 times it.
    metric : {'sqeuclidean', 'euclidean', 'cityblock'}, default='sqeuclidean'
        The squared distance, the distance, or the sum of the distances along the axes.
    periodic : bool, default=False
        Whether the grid is round (a torus): the end of an axis is beside its start. A round axis of
        n points has steps of 1 / n, another one of 1 / (n - 1).
    axis_weights : sequence of float, optional
        What the coordinates of each axis are multiplied by; ones by default. For pixels that are
        square in an image that is not, give the sides of the image.

    Returns
    -------
    Geometry

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.transport import grid_geometry
    >>> geometry = grid_geometry((28, 28), epsilon=0.01)
    >>> geometry.apply(np.ones((5, 28, 28))).shape
    (5, 28, 28)
    """
    sizes = check_shape(shape)
    if not isinstance(metric, str) or metric not in METRICS:
        message = (
            f"metric={metric!r} is not one of {', '.join(map(repr, METRICS))}. For costs of your "
            "own, use MatrixGeometry."
        )
        raise InvalidInputError(message)
    given = [1.0] * len(sizes) if axis_weights is None else axis_weights
    weights = lengths("axis_weights", given, len(sizes))
    steps = [
        weight / max(1, n if periodic else n - 1) for n, weight in zip(sizes, weights, strict=True)
    ]
    if metric == "euclidean" and sum(n > 1 for n in sizes) > 1:
        large = ConvolutionGeometry(sizes, epsilon=epsilon, steps=steps, periodic=periodic)
        if large.n_cells > _DENSE_CELLS:
            return large
        return MatrixGeometry(large.cost_matrix(), sizes, epsilon=epsilon)
    costs = []
    for n, step in zip(sizes, steps, strict=True):
        apart = np.abs(np.arange(n)[:, None] - np.arange(n))
        distance = step * (np.minimum(apart, n - apart) if periodic else apart)
        costs.append(distance**2 if metric == "sqeuclidean" else distance)
    is_line = metric != "sqeuclidean" and not periodic
    return SeparableGeometry(costs, epsilon=epsilon, steps=steps if is_line else None)
