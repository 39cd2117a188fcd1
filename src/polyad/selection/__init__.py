"""Choice of the number of components."""

from polyad.selection.result import RankSelection
from polyad.selection.select import select_rank

__all__ = ["RankSelection", "select_rank"]
