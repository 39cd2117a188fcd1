"""The classical CP family."""

from polyad.cp.estimator import CP
from polyad.cp.generalized import GeneralizedCP
from polyad.cp.nonnegative import NonnegativeCP
from polyad.cp.poisson import PoissonCP
from polyad.cp.similarity import SimilarityCP
from polyad.cp.stochastic import StochasticCP
from polyad.cp.supervised import SupervisedCP

__all__ = [
    "CP",
    "GeneralizedCP",
    "NonnegativeCP",
    "PoissonCP",
    "SimilarityCP",
    "StochasticCP",
    "SupervisedCP",
]
