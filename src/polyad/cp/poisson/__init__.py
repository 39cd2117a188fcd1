"""CP for counts: alternating Poisson regression."""

from polyad.cp.poisson.estimator import PoissonCP

__all__ = ["PoissonCP"]
