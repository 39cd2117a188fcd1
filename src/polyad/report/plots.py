"""Pictures of a fitted decomposition. Functions return figures and do no mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import to_numpy
from polyad.exceptions import InvalidInputError, MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.estimators.base import Curve, Pattern
    from polyad.estimators.kruskal import KruskalResult

# The report is read on light paper; both hues are told apart by every kind of colour vision.
_POSITIVE, _NEGATIVE = "#2c6fbb", "#c8553d"
_STRAIGHT = "0.7"
_MAX_POINTS = 2000
_CURVES_PER_ROW = 4


def plot_components(
    model: KruskalResult,
    *,
    modes: Sequence[int | str] | None = None,
    max_components: int = 10,
    top: int = 8,
) -> Any:
    """Draw one row of panels per component, one panel per mode.

    A mode with names shows its leading labels as bars; a mode with positions, numbers or dates
    shows the whole column as a line. The samples are left out unless asked for.

    Parameters
    ----------
    model : fitted estimator
        What to draw.
    modes : sequence of int or str, optional
        The modes to draw; all but the samples by default.
    max_components : int
        Draw at most so many, those of largest weight.
    top : int
        How many labels a panel shows.

    Returns
    -------
    matplotlib.figure.Figure
    """
    check_is_fitted(model)
    make = figure_class()
    n_modes = len(model.factors_)
    chosen = [model._mode_number(mode) for mode in (range(1, n_modes) if modes is None else modes)]
    if not chosen or max_components < 1:
        message = "Nothing to draw: give at least one mode and max_components of 1 or more."
        raise InvalidInputError(message)
    weights = to_numpy(model.weights_)
    shown = leading_components(model, max_components)
    size = (4.2 * len(chosen), 1.9 * len(shown) + 0.5)
    figure = make(figsize=size, layout="constrained")
    panels = figure.subplots(len(shown), len(chosen), squeeze=False)
    for row, r in zip(panels, shown, strict=True):
        for panel, mode in zip(row, chosen, strict=True):
            _draw_column(panel, model, r, mode, top)
        row[0].set_ylabel(f"component {r}\nweight {weights[r]:.3g}", fontsize=9)
    for panel, mode in zip(panels[0], chosen, strict=True):
        panel.set_title(shorten(model._mode_title(mode)))
    return figure


def plot_history(model: KruskalResult) -> Any:
    """Draw the objective of a fit."""
    figure = figure_class()(figsize=(5.5, 3.0), layout="constrained")
    model.history_.plot(figure.subplots())
    return figure


def plot_transforms(
    model: KruskalResult,
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
    check_is_fitted(model)
    curves = model._transform_curves(features, max_features)
    if not curves:
        message = "Nothing to draw: give at least one feature, or max_features of 1 or more."
        raise InvalidInputError(message)
    return draw_curves(curves)


def draw_curves(curves: Sequence[Curve]) -> Any:
    """Draw a panel for each curve, with the straight line between its ends."""
    figure, panels = _panels([curve.title for curve in curves])
    for panel, curve in zip(panels, curves, strict=True):
        panel.plot(curve.x[[0, -1]], curve.y[[0, -1]], color=_STRAIGHT)
        panel.plot(curve.x, curve.y, color=_POSITIVE)
    return figure


def draw_patterns(patterns: Sequence[Pattern]) -> Any:
    """Draw a panel for each pattern: a line over one axis, an image over two."""
    figure, panels = _panels([pattern.title for pattern in patterns])
    for panel, pattern in zip(panels, patterns, strict=True):
        values = pattern.values
        if values.ndim == 1:
            chosen = np.arange(0, len(values), max(1, len(values) // _MAX_POINTS))
            panel.plot(chosen, values[chosen], color=_POSITIVE, linewidth=1.2)
            panel.axhline(0, color=_STRAIGHT, linewidth=0.8, zorder=0)
        elif pattern.axes:
            _draw_map(panel, pattern)
        else:
            is_image = max(values.shape) <= 3 * min(values.shape)
            panel.imshow(values, cmap="Greys", vmin=0.0, aspect="equal" if is_image else "auto")
    return figure


def _draw_map(panel: Any, pattern: Pattern) -> None:
    """Draw a map over two named axes, with zero in white."""
    (rows, down), (columns, along) = pattern.axes
    largest = float(np.abs(pattern.values).max()) or 1.0
    panel.pcolormesh(
        along, down, pattern.values, cmap="RdBu_r", vmin=-largest, vmax=largest, shading="nearest"
    )
    panel.set_xlabel(shorten(columns), fontsize=7)
    panel.set_ylabel(shorten(rows), fontsize=7)


def _panels(titles: Sequence[str]) -> tuple[Any, list[Any]]:
    """Return a figure, and a panel for each title."""
    n_columns = min(_CURVES_PER_ROW, len(titles))
    n_rows = -(-len(titles) // n_columns)
    figure = figure_class()(figsize=(2.6 * n_columns, 2.2 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for panel, title in zip(panels, titles, strict=False):
        panel.set_title(shorten(title), fontsize=8)
        panel.tick_params(labelsize=7)
    for panel in panels[len(titles) :]:
        panel.set_visible(False)
    return figure, list(panels[: len(titles)])


def leading_components(model: KruskalResult, max_components: int) -> list[int]:
    """Return the components of largest weight, in their own order."""
    largest = np.argsort(-to_numpy(model.weights_), kind="stable")[:max_components]
    return sorted(int(r) for r in largest)


def _draw_column(panel: Any, model: KruskalResult, component: int, mode: int, top: int) -> None:
    labels = model.labels_[mode]
    if labels is None or labels.dtype.kind in "Mmiuf":
        # Positions, dates and numbers have an order of their own, which bars by size would hide.
        column = to_numpy(model.factors_[mode])[:, component]
        places = np.arange(len(column)) if labels is None else labels
        order = np.argsort(places, kind="stable")
        # More points than pixels only make the file large.
        chosen = order[:: max(1, len(column) // _MAX_POINTS)]
        panel.plot(places[chosen], column[chosen], color=_POSITIVE, linewidth=1.2)
        panel.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        panel.tick_params(axis="x", labelsize=7)
        return
    leading = model.top(component, mode, top).iloc[::-1]
    values = leading.to_numpy()
    positions = np.arange(len(values))
    panel.barh(positions, values, color=np.where(values < 0, _NEGATIVE, _POSITIVE))
    panel.set_yticks(positions, [shorten(str(label)) for label in leading.index], fontsize=7)
    panel.axvline(0, color="0.7", linewidth=0.8)


def shorten(text: str, width: int = 34) -> str:
    """Return a label that fits beside a picture."""
    text = text if len(text) <= width else text[: width - 1] + "…"
    # A dollar sign would begin a formula.
    return text.replace("$", r"\$")


def figure_class() -> Any:
    """Return matplotlib's Figure, which draws without any window system."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "Plots need matplotlib: install it with pip install 'polyad[report]'."
        raise MissingPackageError(message) from error
    return Figure
