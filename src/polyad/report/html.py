"""The HTML report: one self-contained page about a fitted model."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from polyad._version import __version__
from polyad.core.arrays import to_numpy
from polyad.core.files import replacing
from polyad.exceptions import InvalidInputError
from polyad.quantile.family import QuantileFamily
from polyad.report.plots import (
    leading_components,
    mode_title,
    plot_components,
    plot_history,
    visible,
)
from polyad.report.transforms import plot_transforms

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from polyad.estimators.kruskal import KruskalResult

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff; margin: 2rem auto;
       max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; vertical-align: top; }
td.number { text-align: right; }
.scroll { overflow-x: auto; }
.status { border-left: 4px solid #2c6fbb; padding: .4rem .8rem; background: #f1f5fa; }
.status.warning { border-color: #c8553d; background: #fbf1ee; }
img { max-width: 100%; height: auto; }
details { margin: .6rem 0; }
footer { margin-top: 3rem; color: #5a6673; font-size: .85rem; }
"""


def write_report(
    model: KruskalResult,
    path: str | os.PathLike[str],
    *,
    X: Any = None,
    y: Any = None,
    title: str | None = None,
    top: int = 8,
    max_components: int = 20,
) -> Path:
    """Write a page that shows what was fitted, how the fit ended, and every component.

    Parameters
    ----------
    model : fitted estimator
        What to report.
    path : path-like
        The ``.html`` file to create or replace. It holds its pictures and needs no network.
    X : tensor-like, optional
        Data to report the model's score on.
    y : array of shape (n_samples,), optional
        The classes of these samples, for a model that predicts classes.
    title : str, optional
        The heading.
    top : int
        How many labels of each mode to show for a component.
    max_components : int
        Show at most so many components, those of largest weight.

    Returns
    -------
    Path
        The file.
    """
    check_is_fitted(model)
    facts = _facts(model, X, y)
    target = Path(path)
    heading = html.escape(title or f"{type(model).__name__} with {len(model.weights_)} components")
    kind = "" if model.status_.is_success else " warning"
    pictures = plot_components(model, top=top, max_components=max_components)
    parts = [
        f"<h1>{heading}</h1>",
        f'<p class="status{kind}"><b>{html.escape(model.status_.value)}</b>: '
        f"{html.escape(model.status_.advice)}</p>",
        "<h2>Fit</h2>",
        _table(facts),
        _image(plot_history(model), "Objective at each iteration"),
        "<h2>Components</h2>",
        _image(pictures, "The leading entries of each component in each mode"),
        *_component_tables(model, top, max_components),
        *_transforms(model),
        "<h2>Parameters</h2>",
        _table(
            (name, _shown(value)) for name, value in sorted(model.get_params(deep=False).items())
        ),
        f"<footer>Written by polyad {html.escape(__version__)}.</footer>",
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_STYLE}</style></head><body><main>"
        f"{''.join(parts)}</main></body></html>\n"
    )
    with replacing(target) as stream:
        stream.write(page.encode())
    return target


def _facts(model: KruskalResult, X: Any, y: Any) -> list[tuple[str, str]]:
    shape = [int(factor.shape[0]) for factor in model.factors_]
    names = [mode_title(model, mode) for mode in range(len(shape))]
    sizes = " × ".join(f"{size} ({name})" for size, name in zip(shape, names, strict=True))
    facts = [
        ("tensor", sizes),
        ("iterations", str(model.n_iter_)),
        ("objective", f"{model.objective_:.6g}"),
        ("time", f"{model.history_.seconds:.2f} s"),
    ]
    if X is not None:
        if y is None and is_classifier(model):
            message = (
                f"The score of {type(model).__name__} is its {model._score_name}: give y, the "
                "classes of the samples of X, or leave out X."
            )
            raise InvalidInputError(message)
        score = model.score(X) if y is None else model.score(X, y)
        facts.append((f"score ({model._score_name}) on the data given", f"{score:.4f}"))
    return facts


def _component_tables(model: KruskalResult, top: int, max_components: int) -> Iterable[str]:
    """Give the numbers behind the bars, for labelled modes."""
    labelled = [k for k in range(1, len(model.factors_)) if model.labels_[k] is not None]
    weights = to_numpy(model.weights_)
    for r in leading_components(model, max_components) if labelled else ():
        yield f"<details><summary>Component {r}, weight {weights[r]:.4g}</summary>"
        yield '<div class="scroll"><table><tr>'
        for mode in labelled:
            yield f'<th colspan="2">{html.escape(mode_title(model, mode))}</th>'
        yield "</tr>"
        columns = [visible(model.top(r, mode, top)) for mode in labelled]
        for row in range(max(len(column) for column in columns)):
            yield "<tr>"
            for column in columns:
                inside = row < len(column)
                label = html.escape(str(column.index[row])) if inside else ""
                number = f"{column.iloc[row]:.3f}" if inside else ""
                yield f'<td>{label}</td><td class="number">{number}</td>'
            yield "</tr>"
        yield "</table></div></details>"
    if len(weights) > max_components:
        yield f"<p>{len(weights) - max_components} more components are not shown.</p>"


def _transforms(model: KruskalResult) -> Iterable[str]:
    """Show the transforms of a model that has learned some."""
    if not isinstance(model, QuantileFamily):
        return
    yield "<h2>Transforms</h2>"
    yield (
        "<p>From the products of scores and loadings, to the right, to the unit of the data, "
        "upwards. Differences are inflated where a curve is steeper than the grey line.</p>"
    )
    yield _image(plot_transforms(model), "The transforms of the features that are bent most")


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f'<div class="scroll"><table>{cells}</table></div>'


def _shown(value: Any) -> str:
    text = f"array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _image(figure: Any, description: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f'<p><img alt="{html.escape(description)}" src="data:image/png;base64,{data}"></p>'
