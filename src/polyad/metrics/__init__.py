"""Measures of a decomposition: fit, deviance, uniqueness, and what its features are good for."""

from polyad.metrics.decomposition import (
    core_consistency,
    explained_variation,
    poisson_deviance,
    relative_error,
)
from polyad.metrics.features import FeatureEvaluation, evaluate_features
from polyad.tensor.alignment import factor_match_score

__all__ = [
    "FeatureEvaluation",
    "core_consistency",
    "evaluate_features",
    "explained_variation",
    "factor_match_score",
    "poisson_deviance",
    "relative_error",
]
