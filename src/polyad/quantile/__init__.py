"""Quantile matrix factorization: low rank up to a learned transform of each feature."""

from __future__ import annotations

from polyad.quantile.estimator import QMF
from polyad.quantile.projected.estimator import QMFQ

__all__ = ["QMF", "QMFQ"]
