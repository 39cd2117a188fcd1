"""What comes into a dictionary: samples as distributions, and the metric of their cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import namespace_of, to_numpy
from polyad.data.validation import describe_entries, refuse_negative
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport.geometry import Geometry
from polyad.transport.grids import grid_geometry
from polyad.transport.separable import MatrixGeometry

if TYPE_CHECKING:
    from polyad.core.arrays import Array
    from polyad.data.readers import TensorInput


# The strength of the entropy that is usual, as a part of the largest cost: 0.01 for images.
_PART_OF_LARGEST = 1 / 200


def distributions(given: TensorInput, name: str) -> tuple[Array, Any, Array]:
    """Return samples of mass one in double precision, their number type, and their masses."""
    if given.is_sparse:
        message = (
            f"Sparse data is not taken by {name}: mass moves through every cell. Give X.toarray()."
        )
        raise InvalidInputError(message)
    xp = namespace_of(given.data)
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


def read_masses(masses: Any, codes: Array) -> Array:
    """Return a mass for each sample that codes are of, as a column beside them."""
    xp = namespace_of(codes)
    n_samples = int(codes.shape[0])
    needed = f"give {n_samples} finite numbers that are not negative, one for each sample"
    try:
        given = np.asarray(to_numpy(masses))
        numbers = given.astype(float) if given.dtype.kind in "biuf" else None
    except (TypeError, ValueError):
        numbers = None
    if numbers is None:
        message = f"masses of type {type(masses).__name__} are no real numbers: {needed}."
        raise InvalidTypeError(message)
    if numbers.shape != (n_samples,):
        message = f"masses have the shape {numbers.shape}: {needed}."
        raise InvalidInputError(message)
    with np.errstate(over="ignore"):
        column = xp.asarray(numbers[:, None], dtype=codes.dtype, device=codes.device)
    if not bool(xp.all(xp.isfinite(column) & (column >= 0))):
        message = f"masses are negative or not finite: {needed}."
        raise InvalidInputError(message)
    return column


def geometry_of(
    grid: tuple[int, ...], metric: Any, *, periodic: bool, weights: Any, epsilon: Any
) -> Geometry:
    """Return the geometry of a grid, by the name of a metric or a matrix of costs.

    An epsilon of ``'auto'`` lets mass move between neighbours, and is no smaller than products of
    plain numbers are quick with.
    """
    if isinstance(epsilon, str):
        unit = geometry_of(grid, metric, periodic=periodic, weights=weights, epsilon=1e300)
        usual = max(unit.nearest, _PART_OF_LARGEST * unit.largest) or 1.0
        return unit.with_epsilon(usual)
    if isinstance(metric, Geometry):
        message = (
            f"metric={metric!r} has an epsilon of its own: give metric, periodic and axis_weights "
            "by name, or the matrix metric.cost_matrix()."
        )
        raise InvalidTypeError(message)
    if isinstance(metric, str):
        return grid_geometry(
            grid,
            epsilon,
            metric=metric,  # type: ignore[arg-type]
            periodic=bool(periodic),
            axis_weights=None if weights is None else np.ravel(weights).tolist(),
        )
    if periodic or weights is not None:
        message = "periodic and axis_weights belong to a metric by name; metric is a matrix."
        raise InvalidInputError(message)
    return MatrixGeometry(metric, grid, epsilon=epsilon)
