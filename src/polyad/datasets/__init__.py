"""Data to try things on: generators with a known answer, and a loader that needs no network."""

from polyad.datasets.examples import load_digits, make_low_rank, make_sparse
from polyad.datasets.noise import add_noise

__all__ = ["add_noise", "load_digits", "make_low_rank", "make_sparse"]
