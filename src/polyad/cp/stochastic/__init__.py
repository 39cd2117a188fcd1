"""CP by stochastic alternating least squares, one batch of samples at a time."""

from polyad.cp.stochastic.estimator import StochasticCP

__all__ = ["StochasticCP"]
