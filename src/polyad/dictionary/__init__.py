"""Wasserstein dictionaries of images and joint distributions, and barycenters."""

from polyad.dictionary.barycenter import wasserstein_barycenter
from polyad.dictionary.estimator import WassersteinCPDictionary, WassersteinDictionary

__all__ = ["WassersteinCPDictionary", "WassersteinDictionary", "wasserstein_barycenter"]
