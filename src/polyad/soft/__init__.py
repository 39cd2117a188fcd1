"""Soft ranks, sorts, quantiles and quantile normalization, with exact derivatives."""

from __future__ import annotations

from polyad.soft.formulas import SoftGradients
from polyad.soft.operators import quantile_normalize, soft_quantile, soft_rank, soft_sort, vjp
from polyad.transport.rows import Cost

__all__ = [
    "Cost",
    "SoftGradients",
    "quantile_normalize",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "vjp",
]
