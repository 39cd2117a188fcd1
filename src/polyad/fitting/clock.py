"""The time of a fit, from its call to the last rows."""

from __future__ import annotations

import logging
import time

from polyad.core.compiled import compile_seconds

logger = logging.getLogger("polyad")


class Clock:
    """Counts the seconds since it was made, without those in which kernels were compiled."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._compiled = compile_seconds()

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._started - self.compiling()

    def compiling(self) -> float:
        """Return the seconds in which kernels were compiled."""
        return compile_seconds() - self._compiled

    def tell_compiling(self) -> None:
        """Log the time that does not count."""
        if self.compiling() > 0:
            logger.info(
                "Compiling took %.1f s, which do not count as time of the fit; what was compiled "
                "is kept for the next one.",
                self.compiling(),
            )
