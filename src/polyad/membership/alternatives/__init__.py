"""The other ways to parameters from the same moments: what PTPQP is compared with."""

from polyad.membership.alternatives.diagonalization import joint_diagonalization
from polyad.membership.alternatives.hals import hals
from polyad.membership.alternatives.meld import meld
from polyad.membership.alternatives.power import tensor_power
from polyad.membership.alternatives.views import category_probabilities

__all__ = ["category_probabilities", "hals", "joint_diagonalization", "meld", "tensor_power"]
