"""The classical CP family."""

from polyad.cp.estimator import CP

__all__ = ["CP"]
