"""Where the factors of QMF start: at random, or at those of the quantile-normalised data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.quantile.parameters import Parameters, empirical_gaps, random_parameters
from polyad.quantile.projected.problem import ProjectedObjective, first_transforms
from polyad.quantile.projected.projectors import NMFProjector, SVDProjector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.quantile.features import FeatureTable

    Table = NDArray[np.float64]

# Updates of the nonnegative factorization, and the least part of the largest entry of a row that
# entries start from: very negative logarithms hardly move, and are penalised.
_N_UPDATES = 200
_LEAST_PART = 0.1


def normalized_start(
    table: FeatureTable,
    n_components: int,
    n_quantiles: int,
    *,
    nonnegative: bool,
    epsilon: float,
    seed: int,
) -> Parameters:
    """Return the factors of the data after each feature got the same distribution.

    The features, brought to equally spaced quantiles, are factorized as they are; quantiles start
    from those of the data.
    """
    start = random_parameters(
        table.shape, n_components, n_quantiles, nonnegative=nonnegative, seed=seed
    )
    even = normalized(table, n_quantiles, epsilon)
    gaps = empirical_gaps(table, n_quantiles)
    if nonnegative:
        projector = NMFProjector(n_components, _N_UPDATES)
        # Their best scores have zeros, from which gradients of logarithms do not come back.
        found = projector.updated(even, projector.start(table.shape, seed))
        loadings, scores = _logarithms(found.U), _logarithms(found.V.T).T
        # The scale of a feature has no meaning, and that of all scores is that of all features.
        loadings, scores = loadings - loadings.mean(axis=1, keepdims=True), scores - scores.mean()
        return start._replace(loadings=loadings, scores=scores, gaps=gaps)
    even -= even.mean(axis=1, keepdims=True)
    projection = SVDProjector(n_components).project(even, [], with_pull=False)
    # Noise of a start tells components apart that the data has none of.
    loadings = _of_unit_size(projection.loadings) + 0.01 * start.loadings
    scores = _of_unit_size(projection.scores) + 0.01 * start.scores
    return start._replace(loadings=loadings, scores=scores, gaps=gaps)


def normalized(table: FeatureTable, n_quantiles: int, epsilon: float) -> Table:
    """Return the features (d, n) with equally spaced quantiles, and means for missing entries."""
    transforms = first_transforms(table.shape, n_quantiles)
    objective = ProjectedObjective(table, SVDProjector(1), epsilon)
    even = objective.deflate(transforms, None, np.empty_like(transforms.logits))
    if table.observed is None:
        return even
    means = (table.shares * even).sum(axis=1, keepdims=True)
    return np.where(table.observed, even, means)


def _logarithms(values: Table) -> Table:
    """Return the logarithms of rows, bounded below."""
    largest = values.max(axis=1, keepdims=True)
    bounded = np.maximum(values, _LEAST_PART * largest)
    result: Table = np.log(np.where(largest > 0.0, bounded, 1.0))
    return result


def _of_unit_size(values: Table) -> Table:
    """Return values whose mean square is one."""
    size = float(np.sqrt(np.mean(values**2)))
    return values / size if size > 0.0 else values
