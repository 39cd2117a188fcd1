"""Self-supervised CP features of signals: ATD, and what is made of recordings before it."""

from polyad.augmented.estimator import AugmentedCP

__all__ = ["AugmentedCP"]
