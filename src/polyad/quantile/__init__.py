"""Quantile matrix factorization: low rank up to a learned transform of each feature."""

from __future__ import annotations

from polyad.quantile.estimator import QMF

__all__ = ["QMF"]
