"""Quantile normalization, projection to low rank, and back, all learned together."""

from __future__ import annotations

from polyad.quantile.projected.estimator import QMFQ

__all__ = ["QMFQ"]
