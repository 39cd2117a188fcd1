"""The classical CP family."""

from polyad.cp.estimator import CP
from polyad.cp.nonnegative import NonnegativeCP

__all__ = ["CP", "NonnegativeCP"]
