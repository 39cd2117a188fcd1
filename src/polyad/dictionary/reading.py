"""What comes into a dictionary: samples as distributions, and the metric of their cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from polyad.core.arrays import to_numpy
from polyad.data.validation import describe_entries, refuse_negative
from polyad.exceptions import InvalidInputError
from polyad.transport.geometry import Geometry, MatrixGeometry, grid_geometry

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput


def distributions(given: TensorInput, name: str) -> tuple[Array, Any, Array]:
    """Return samples of mass one in double precision, their number type, and their masses."""
    if given.is_sparse:
        message = (
            f"Sparse data is not taken by {name}: mass moves through every cell. Give X.toarray()."
        )
        raise InvalidInputError(message)
    xp = array_namespace(given.data)
    missing = xp.isnan(given.data)
    if bool(xp.any(missing)):
        message = (
            f"Missing entries are not taken by {name}: {describe_entries(given, missing)}. Mass of "
            "cells that were not seen cannot be told from none: fill them, or leave out cells that "
            "are often missing, with metric as the cost matrix of those that stay."
        )
        raise InvalidInputError(message)
    refuse_negative(given, f"{name} takes masses: numbers that are not negative.")
    values = xp.astype(given.data, xp.float64)
    masses = xp.sum(values, axis=tuple(range(1, values.ndim)))
    empty = np.flatnonzero(to_numpy(masses) == 0)
    if empty.size:
        shown = ", ".join(map(str, empty[:10])) + (", ..." if empty.size > 10 else "")
        message = (
            f"{empty.size} samples have no mass, at the positions {shown}: nothing can be moved "
            "there. Leave them out."
        )
        raise InvalidInputError(message)
    each = (slice(None), *(None,) * (values.ndim - 1))
    return values / masses[each], given.data.dtype, masses


def geometry_of(
    grid: tuple[int, ...], metric: Any, *, periodic: bool, weights: Any, epsilon: float
) -> Geometry:
    """Return the geometry of a grid, by the name of a metric or a matrix of costs."""
    if isinstance(metric, str):
        each = None if weights is None else [float(weight) for weight in np.ravel(weights)]
        return grid_geometry(
            grid,
            epsilon=epsilon,
            metric=metric,  # type: ignore[arg-type]
            periodic=bool(periodic),
            axis_weights=each,
        )
    if periodic or weights is not None:
        message = "periodic and axis_weights belong to a metric by name; metric is a matrix."
        raise InvalidInputError(message)
    return MatrixGeometry(metric, grid, epsilon=epsilon)
