"""Learned transforms as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from polyad.quantile.maps import FeatureMaps

    Table = NDArray[np.float64]


def transform_frame(maps: FeatureMaps, row: int, products: Table, n_points: int) -> pd.DataFrame:
    """Return the transform of one feature over the range of its products (n,)."""
    import pandas as pd

    own = maps.of_feature(row)
    before = np.linspace(products.min(), products.max(), n_points)
    after, slope, _ = (part[0] for part in own.derivatives(before[None]))
    rise, run = after[-1] - after[0], before[-1] - before[0]
    mean = rise / run if run > 0 and rise > 0 else np.inf
    return pd.DataFrame({"before": before, "after": after, "slope": slope / mean})


def quantile_frame(maps: FeatureMaps, products: Table, labels: Any) -> pd.DataFrame:
    """Return quantiles, weights and inflation of all features; ``products`` are (d, n)."""
    import pandas as pd

    m = maps.quantiles.shape[1]
    columns = {f"q{j}": maps.quantiles[:, j] for j in range(m)}
    columns |= {f"b{j}": maps.weights[:, j] for j in range(m)}
    frame = pd.DataFrame(columns, index=labels)
    frame["inflation"] = _inflation(maps, products)
    return frame


def _inflation(maps: FeatureMaps, products: Table) -> Table:
    """Return by how many powers of two the upper half of the products is stretched more."""
    ends = np.quantile(products, [0.0, 0.5, 1.0], axis=1).T
    heights = maps.values(ends)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.diff(heights, axis=1) / np.diff(ends, axis=1)
        inflation = np.log2(slopes[:, 1] / slopes[:, 0])
    # A feature whose products or values are all equal is not stretched anywhere.
    return np.where(np.isfinite(inflation), inflation, 0.0)
