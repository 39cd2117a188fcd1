"""The classical CP family."""

from polyad.cp.estimator import CP
from polyad.cp.nonnegative import NonnegativeCP
from polyad.cp.poisson import PoissonCP
from polyad.cp.stochastic import StochasticCP

__all__ = ["CP", "NonnegativeCP", "PoissonCP", "StochasticCP"]
