"""Wasserstein CP decomposition of sparse nonnegative tensors (SWIFT).

To read: ``problem`` (the fibres of each mode, their transports, the objective), ``marginals``
(what the transports ask of a factor; its loops are in ``kernels``), ``solver`` (an iteration, and
the rows of samples), ``estimator``.
"""

from polyad.wasserstein.estimator import WassersteinCP

__all__ = ["WassersteinCP"]
