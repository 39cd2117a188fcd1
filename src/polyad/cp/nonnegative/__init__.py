"""Nonnegative CP: HALS and multiplicative updates."""

from polyad.cp.nonnegative.estimator import NonnegativeCP

__all__ = ["NonnegativeCP"]
