"""Progress bar and log lines of a fit, written once for every method."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger("polyad")


class Progress:
    """Show a running fit: nothing, a bar (``verbose=1``), or a bar and log lines (2)."""

    def __init__(self, title: str, *, total: int, done: int, verbose: int) -> None:
        self._title = title
        self._log = verbose >= 2
        self._bar: Any = None
        if verbose >= 1:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, initial=done, desc=title, unit="it", leave=True)

    def update(self, iteration: int, objective: float) -> None:
        """Tell of one more iteration."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"objective={objective:.6g}", refresh=False)
            self._bar.update()
        if self._log:
            logger.info("%s: iteration %d, objective %.9g", self._title, iteration, objective)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
