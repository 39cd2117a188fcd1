"""Figures of several panels in files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def subplots(columns: int) -> tuple[Any, Any]:
    """Return a figure and its panels, without a window."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(5.5 * columns, 4.2))


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file and close it."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"figure written to {path}")
