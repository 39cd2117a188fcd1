"""Wasserstein dictionaries of images and joint distributions."""

from polyad.dictionary.estimator import WassersteinCPDictionary, WassersteinDictionary

__all__ = ["WassersteinCPDictionary", "WassersteinDictionary"]
