"""Labels of crowds: the classes of items, and how good each worker is."""

from polyad.crowd.estimator import DawidSkene, MajorityVote

__all__ = ["DawidSkene", "MajorityVote"]
