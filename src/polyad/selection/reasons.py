"""Why a rank was chosen, in words: what was found, and what speaks against relying on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from polyad.selection.result import RankSelection

# Fewer numbers than this have no standard error to speak of.
_FEW = 3
# A loss that is so many times the lowest one, and above that of the smallest rank, explodes.
_EXPLODES = 2.0


def reasons(found: RankSelection) -> list[str]:
    """Return a sentence or more for each method, in their order."""
    said = []
    for method in found.methods:
        best = found.best_ranks[method]
        words = _OF_METHOD[method](found, best)
        said.append(f"{method}: {' '.join([*words, *_edges(found, best)])}")
    first, stable = found.best_rank, found.best_ranks.get("stability")
    if found.methods[0] != "stability" and first is not None and (stable or first) < first:
        said.append(
            f"Components come back up to rank {stable} only: single components of a model of rank "
            f"{first} should be read with care."
        )
    return said


def _heldout(found: RankSelection, best: int | None) -> list[str]:
    losses = found.table["heldout_loss"]
    if best is None:
        return ["every fit broke down. Scale the data, or use another loss or a ridge."]
    lowest = int(losses.index[int(np.nanargmin(losses.to_numpy()))])
    loss, error = losses[lowest], found.table["heldout_loss_se"][lowest]
    said = [f"rank {lowest} has the lowest loss of hidden entries, {loss:.3g}."]
    if best != lowest:
        said = [
            f"rank {best} is the smallest whose loss of hidden entries, {losses[best]:.3g}, is "
            f"within a standard error ({error:.2g}) of the lowest, {loss:.3g} at rank {lowest}."
        ]
    larger = losses[(losses.index > best) & (losses > max(losses.iloc[0], 0.0))].dropna()
    explodes = loss > 0 and len(larger) > 0 and larger.max() > _EXPLODES * loss
    if explodes:
        said.append(
            f"The loss explodes: at rank {larger.idxmax()} it is {larger.max() / loss:.3g} "
            f"times the lowest. {found.advice}"
        )
    elif losses[best] > found.loss_limit:
        said.append(
            f"A loss above {found.loss_limit:.2g} is more than a model of this kind leaves if it "
            f"is right. {found.advice}"
        )
    n_repeats = int(found.values.query("measure == 'heldout_loss'")["repeat"].max()) + 1
    if n_repeats < _FEW:
        said.append(
            f"{n_repeats} repeats are too few for a standard error: with n_repeats=5 it counts."
        )
    return said


def _stability(found: RankSelection, best: int | None) -> list[str]:
    matches = found.table[["restart_match", "subsample_match"]].min(axis=1)
    if best is not None:
        return [
            f"rank {best} is the largest whose components come back from other starts and samples "
            f"(a match of {matches[best]:.2f}, at least {found.min_match:.2g} is asked for)."
        ]
    nearest = "" if matches.isna().all() else f" The nearest is rank {matches.idxmax()}"
    nearest += f" with {matches.max():.2f}." if nearest else ""
    return [
        f"no rank is stable: none has a match of {found.min_match:.2g}.{nearest} Other starts or "
        "samples give other components, so that single ones should not be read. Smaller ranks, "
        "n_init=5 or more samples may help."
    ]


def _core_consistency(found: RankSelection, best: int | None) -> list[str]:
    values = found.table["core_consistency"]
    if best is None:
        return [
            f"no rank has {found.min_consistency:.3g} percent: components interact, and the data "
            "is not of this form. Trust hidden entries more."
        ]
    return [
        f"rank {best} is the largest with {found.min_consistency:.3g} percent or more "
        f"({values[best]:.0f})."
    ]


_OF_METHOD = {
    "heldout": _heldout,
    "stability": _stability,
    "core_consistency": _core_consistency,
}


def _edges(found: RankSelection, best: int | None) -> list[str]:
    """Say so if the choice is the edge of what was tried."""
    tried = found.table.index
    if best is None or len(tried) == 1:
        return [] if best is None else ["It is the only rank that was tried."]
    if best == tried.max():
        if found.is_complete:
            return ["Larger ones cannot be fitted to this data."]
        return [
            "It is the largest that was tried: larger ones may be better. Try them, or give "
            "ranks='auto', which goes on by itself."
        ]
    if best == tried.min() and best > 1:
        return ["It is the smallest that was tried: try smaller ones too."]
    return []
