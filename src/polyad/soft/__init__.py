"""Soft ranks, sorts, masks, quantiles and quantile normalization, with exact derivatives."""

from __future__ import annotations

from polyad.soft.formulas import SoftGradients
from polyad.soft.operators import (
    quantile_normalize,
    quantize,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_sort_with,
    soft_topk_mask,
    vjp,
)
from polyad.transport.rows import Cost

__all__ = [
    "Cost",
    "SoftGradients",
    "quantile_normalize",
    "quantize",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_sort_with",
    "soft_topk_mask",
    "vjp",
]
