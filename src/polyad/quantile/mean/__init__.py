"""The mean of several fits of quantile matrix factorization."""

from __future__ import annotations

from polyad.quantile.mean.estimator import MeanQMF

__all__ = ["MeanQMF"]
