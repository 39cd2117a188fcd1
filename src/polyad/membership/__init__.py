"""Mixed membership models of categories, counts and numbers, from their moments (PTPQP)."""

from polyad.membership.estimator import MixedMembership
from polyad.membership.moments import moments

__all__ = ["MixedMembership", "moments"]
