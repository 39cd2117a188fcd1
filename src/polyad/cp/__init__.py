"""The classical CP family."""

from polyad.cp.estimator import CP
from polyad.cp.generalized import GeneralizedCP
from polyad.cp.nonnegative import NonnegativeCP
from polyad.cp.poisson import PoissonCP

__all__ = ["CP", "GeneralizedCP", "NonnegativeCP", "PoissonCP"]
