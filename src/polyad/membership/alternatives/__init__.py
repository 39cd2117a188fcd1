"""The other ways to parameters from the same moments: what PTPQP is compared with."""

from polyad.membership.alternatives.power import tensor_power

__all__ = ["tensor_power"]
