"""What a model has to show besides its components: it says it in these words, reports draw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Curve:
    """A line to draw, beside the straight one between its ends."""

    title: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True)
class ReportSection:
    """A part of the report: a heading, a paragraph, and a picture of curves with its caption."""

    title: str
    text: str
    curves: Sequence[Curve]
    caption: str
