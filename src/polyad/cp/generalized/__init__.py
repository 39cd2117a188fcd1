"""Generalized CP: one decomposition, many losses."""

from polyad.cp.generalized.estimator import GeneralizedCP

__all__ = ["GeneralizedCP"]
