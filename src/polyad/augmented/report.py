"""What the report of an AugmentedCP shows besides that of other decompositions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyad.augmented.signals.steps import like
from polyad.core.arrays import namespace_of, to_numpy
from polyad.estimators.base import Pattern, ReportSection

if TYPE_CHECKING:
    from polyad.augmented.estimator import AugmentedCP

# Components whose maps are drawn.
_SHOWN_MAPS = 8


def maps(model: AugmentedCP) -> ReportSection:
    """Return maps of components over their last two modes, such as frequencies and times."""
    factors = [to_numpy(factor) for factor in model.factors_[1:]]
    axes = tuple(_axis(model, mode) for mode in (len(factors) - 1, len(factors)))
    patterns = []
    for r in range(min(_SHOWN_MAPS, len(model.weights_))):
        leads = [model.top(r, mode, 1).index[0] for mode in range(1, len(factors) - 1)]
        values = np.outer(factors[-2][:, r], factors[-1][:, r])
        # As the first modes have it at their largest entries.
        values *= np.prod([own[np.argmax(np.abs(own[:, r])), r] for own in factors[:-2]])
        title = ", ".join([f"component {r}", *map(str, leads)])
        patterns.append(Pattern(title, values, axes))
    text = (
        "The components of largest weight over the last two modes, at the leading entries of the "
        "others, which the titles name. Red is more, blue is less than the mean."
    )
    caption = "Each map has a scale of its own, with zero in white"
    return ReportSection("Maps", text, caption=caption, patterns=patterns)


def _axis(model: AugmentedCP, mode: int) -> tuple[str, np.ndarray]:
    """Return the name of a mode, and places for its entries."""
    labels = model.labels_[mode]
    places = np.arange(model.factors_[mode].shape[0])
    if labels is not None and labels.dtype.kind in "iuf":
        places = labels
    return f"mode {mode}" if model.modes_ is None else model.modes_[mode], places


def feature_sizes(model: AugmentedCP) -> ReportSection:
    """Return a table of what features differ by between samples, and by augmentation."""
    import pandas as pd

    sizes = {}
    for name, moments in (("size", model._row_moments), ("change", model._change_moments)):
        metric = like(model.metric_, moments)
        squares = namespace_of(moments).linalg.diagonal(metric.T @ moments @ metric)
        sizes[name] = np.sqrt(np.maximum(to_numpy(squares), 0.0))
    table = pd.DataFrame(sizes, index=pd.Index(model.get_feature_names_out(), name="feature"))
    safe = np.where(table["change"] > 0, table["change"], 1.0)
    table["ratio"] = np.where(table["change"] > 0, table["size"] / safe, np.inf)
    table.columns = ["size", "change by augmentation", "ratio"]
    text = (
        "Features are mixtures of the components, in the order of what samples differ by to what "
        "augmentation changes: root mean squares of both."
    )
    return ReportSection("Features and augmentation", text, table=table)
