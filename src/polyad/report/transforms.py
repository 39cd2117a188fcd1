"""Pictures of the transforms that a quantile factorization has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.quantile.family import QuantileFamily
from polyad.report.plots import figure_class, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE, _STRAIGHT = "#2c6fbb", "0.7"
_COLUMNS = 4


def plot_transforms(
    model: QuantileFamily,
    *,
    features: int | str | Sequence[int | str] | None = None,
    max_features: int = 12,
) -> Any:
    """Draw what the learned transforms make of the products of the factors.

    A grey line joins the ends of each: where the curve is steeper, differences are inflated.

    Parameters
    ----------
    model : fitted QMF or QMFQ
        What to draw.
    features : int, str or sequence of these, optional
        The features to draw; by default those whose upper half is inflated or deflated most.
    max_features : int
        Draw at most so many, if they are not named.

    Returns
    -------
    matplotlib.figure.Figure
    """
    if not isinstance(model, QuantileFamily):
        message = f"{type(model).__name__} learns no transforms; give a fitted QMF or QMFQ."
        raise InvalidTypeError(message)
    check_is_fitted(model)
    make = figure_class()
    table = model.quantile_table()
    if features is None:
        strongest = np.argsort(-np.abs(table["inflation"].to_numpy()), kind="stable")
        chosen: list[Any] = [int(row) for row in strongest[: max(max_features, 0)]]
    else:
        chosen = np.ravel(np.asarray(features, dtype=object)).tolist()
    if not chosen:
        message = "Nothing to draw: give at least one feature, or max_features of 1 or more."
        raise InvalidInputError(message)
    n_columns = min(_COLUMNS, len(chosen))
    n_rows = -(-len(chosen) // n_columns)
    figure = make(figsize=(2.6 * n_columns, 2.2 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for panel, feature in zip(panels, chosen, strict=False):
        curve = model.transform_table(feature)
        panel.plot(curve["before"].iloc[[0, -1]], curve["after"].iloc[[0, -1]], color=_STRAIGHT)
        panel.plot(curve["before"], curve["after"], color=_LINE)
        label = table.index[model._feature_number(feature)]
        panel.set_title(shorten(str(label)), fontsize=8)
        panel.tick_params(labelsize=7)
    for panel in panels[len(chosen) :]:
        panel.set_visible(False)
    return figure
