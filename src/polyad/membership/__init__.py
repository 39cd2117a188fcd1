"""Mixed membership models of categories, counts and numbers, from their moments (PTPQP)."""

from polyad.membership.estimator import MixedMembership
from polyad.membership.moment_tensors import moments

__all__ = ["MixedMembership", "moments"]
