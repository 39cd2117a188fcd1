"""Wasserstein CP decomposition of sparse nonnegative tensors (SWIFT)."""

from polyad.wasserstein.estimator import WassersteinCP

__all__ = ["WassersteinCP"]
