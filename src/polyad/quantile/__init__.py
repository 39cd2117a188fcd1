"""Quantile matrix factorization: low rank up to a learned transform of each feature.

To read: ``features`` (the data), ``maps`` (the transforms), ``problem`` (the objective and its
gradient), ``solver``, ``estimator`` (QMF), ``mean`` (of several fits), and
``projected`` (QMFQ) in the same order.
"""

from __future__ import annotations

from polyad.quantile.estimator import QMF
from polyad.quantile.mean.estimator import MeanQMF
from polyad.quantile.projected.estimator import QMFQ

__all__ = ["QMF", "QMFQ", "MeanQMF"]
