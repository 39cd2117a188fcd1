"""Nonnegative CP with labels of the samples."""

from polyad.cp.supervised.estimator import SupervisedCP

__all__ = ["SupervisedCP"]
