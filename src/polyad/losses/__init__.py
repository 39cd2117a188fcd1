"""Losses: how a model value misses an entry of the data."""

from polyad.losses.continuous import (
    BetaDivergenceLoss,
    GammaLoss,
    GaussianLoss,
    HuberLoss,
    RayleighLoss,
)
from polyad.losses.discrete import (
    BernoulliLogitLoss,
    BernoulliOddsLoss,
    NegativeBinomialLoss,
    PoissonLogLoss,
    PoissonLoss,
)
from polyad.losses.loss import CustomLoss, Loss

__all__ = [
    "BernoulliLogitLoss",
    "BernoulliOddsLoss",
    "BetaDivergenceLoss",
    "CustomLoss",
    "GammaLoss",
    "GaussianLoss",
    "HuberLoss",
    "Loss",
    "NegativeBinomialLoss",
    "PoissonLogLoss",
    "PoissonLoss",
    "RayleighLoss",
]
