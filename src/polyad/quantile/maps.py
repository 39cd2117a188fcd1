"""The learned transforms as fixed functions, which new samples go through.

In a fit the transform of a feature depends on its products with all samples. What it made of
them, the potentials of its transport and the centre and rate of its squashing, defines an
increasing function of one number that agrees with the fit on the samples of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import cut, run_blocks
from polyad.quantile.kernels import Maps, map_block
from polyad.soft.plans import STEEPNESS, squash

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

# Numbers of a plan that one block works through.
_BLOCK = 1 << 18
# Points, equally spaced after squashing, between which the inverse is interpolated.
_GRID = 128


@dataclass(frozen=True)
class FeatureMaps:
    """One increasing function for each of some features."""

    #: (d,): products are standardised as ``rate * (w - centre)``; the rate of a feature whose
    #: products are all equal is zero.
    centres: Table
    rates: Table
    #: (d, m): of the transports.
    potentials: Table
    weights: Table
    quantiles: Table
    #: Strength of their entropy.
    epsilon: float

    @cached_property
    def _numbers(self) -> Maps:
        targets = np.linspace(0.0, 1.0, self.quantiles.shape[1])
        parts = (self.centres, self.rates, self.potentials, self.weights, self.quantiles, targets)
        centres, rates, potentials, weights, quantiles, targets = (
            # Memory that may not be written to would have kernels compiled once more.
            np.require(part, np.float64, ["C", "W"])
            for part in parts
        )
        return Maps(centres, rates, potentials, weights, quantiles, targets, self.epsilon)

    def of_feature(self, row: int) -> FeatureMaps:
        """Return the function of one feature."""
        own = slice(row, row + 1)
        return FeatureMaps(
            *(self.centres[own], self.rates[own], self.potentials[own]),
            *(self.weights[own], self.quantiles[own], self.epsilon),
        )

    def derivatives(self, w: Table) -> tuple[Table, Table, Table]:
        """Return the transforms of products (d, n), and their first and second derivatives."""
        w = np.require(w, np.float64, ["C", "W"])
        out = np.empty_like(w), np.empty_like(w), np.empty_like(w)
        numbers = self._numbers
        step = int(np.clip(_BLOCK // (w.shape[1] * numbers.targets.size), 1, 256))

        def fill(first: int, last: int) -> None:
            map_block(numbers, w, out, first, last)

        d = w.shape[0]
        run_blocks(fill, cut(d, step))
        return out

    def values(self, w: Table) -> Table:
        """Return the transforms of products (d, n)."""
        return self.derivatives(w)[0]

    def grid(self, n_points: int) -> Table:
        """Return products of each feature (d, n_points) that squashing spaces equally."""
        inside = (np.arange(n_points) + 0.5) / n_points
        standard = np.log(inside / (1.0 - inside)) / STEEPNESS
        rates = np.where(self.rates > 0.0, self.rates, 1.0)
        result: Table = self.centres[:, None] + standard / rates[:, None]
        return result

    def inverse(self, x: Table) -> Table:
        """Return products (d, n) whose transforms are nearly ``x``, as far as there are such."""
        grid = self.grid(_GRID)
        heights = np.maximum.accumulate(self.values(grid), axis=1)
        return np.stack([np.interp(*each) for each in zip(x, heights, grid, strict=True)])


def learned_maps(
    products: Table,
    shares: Table,
    *,
    potentials: Table,
    weights: Table,
    quantiles: Table,
    epsilon: float,
) -> FeatureMaps:
    """Return the functions that a fit has learned.

    ``products`` (d, n) are what its transports started from, before squashing; ``shares`` the
    weights of the samples, which sum to one.
    """
    rates = squash(products, shares).rate[:, 0]
    centres = (shares * products).sum(axis=1)
    return FeatureMaps(centres, rates, potentials, weights, quantiles, epsilon)


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
