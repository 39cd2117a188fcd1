"""Generalized CP: one decomposition, many losses."""

from polyad.cp.generalized.discrete import (
    BernoulliLogitLoss,
    BernoulliOddsLoss,
    NegativeBinomialLoss,
    PoissonLogLoss,
    PoissonLoss,
)
from polyad.cp.generalized.estimator import GeneralizedCP
from polyad.cp.generalized.loss import CustomLoss, Loss
from polyad.cp.generalized.losses import (
    BetaDivergenceLoss,
    GammaLoss,
    GaussianLoss,
    HuberLoss,
    RayleighLoss,
)

__all__ = [
    "BernoulliLogitLoss",
    "BernoulliOddsLoss",
    "BetaDivergenceLoss",
    "CustomLoss",
    "GammaLoss",
    "GaussianLoss",
    "GeneralizedCP",
    "HuberLoss",
    "Loss",
    "NegativeBinomialLoss",
    "PoissonLogLoss",
    "PoissonLoss",
    "RayleighLoss",
]
