"""Nonnegative CP with similarities between the entries of a mode."""

from polyad.cp.similarity.estimator import SimilarityCP

__all__ = ["SimilarityCP"]
