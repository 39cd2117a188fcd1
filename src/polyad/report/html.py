"""The HTML report: one self-contained page about a fitted model."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from polyad._version import __version__
from polyad.core.arrays import to_numpy
from polyad.core.files import replacing
from polyad.exceptions import InvalidInputError, InvalidTypeError, MissingPackageError
from polyad.report.plots import (
    draw_curves,
    draw_patterns,
    leading_components,
    plot_components,
    plot_history,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from polyad.estimators.base import ReportSection


# What labels of a component are shown by, beside each other, with so many digits.
_ORDERS = {"weight": 3, "lift": 1}


def write_report(
    model: Any,
    path: str | os.PathLike[str],
    *,
    X: Any = None,
    y: Any = None,
    title: str | None = None,
    top: int = 8,
    max_components: int = 20,
) -> Path:
    """Write a page that shows what was fitted, how the fit ended, and what was found.

    That is every component, if the model has components, and what else its class has to show.

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
    if not hasattr(model, "_report_sections"):
        message = (
            f"model is a {type(model).__name__}, of which no report is known; give a model of "
            "polyad, of several fits one of estimators_, of a pipeline its step."
        )
        raise InvalidTypeError(message)
    template = _template()
    target = Path(path)
    with replacing(target) as stream:  # refuses a wrong path before the work
        has_components = hasattr(model, "factors_")
        parts = _components(model, top, max_components) if has_components else {}
        page = template.render(
            title=title or _title(model),
            status=getattr(model, "status_", None),
            rival=model.history_.rival if hasattr(model, "history_") else "",
            facts=_facts(model, X, y),
            history=_picture(plot_history(model)) if hasattr(model, "history_") else "",
            **{"components": "", "labelled_modes": [], "tables": [], "n_hidden": 0, **parts},
            sections=[_section(section) for section in model._report_sections()],
            parameters=[
                (name, _shown(value))
                for name, value in sorted(model.get_params(deep=False).items())
            ],
            version=__version__,
        )
        stream.write(page.encode())
    return target


def _title(model: Any) -> str:
    name = type(model).__name__
    has_number = hasattr(model, "_n_features_out")
    return f"{name} with {model._n_features_out} components" if has_number else name


def _components(model: Any, top: int, max_components: int) -> dict[str, Any]:
    """Return what the page shows of a model's components."""
    labelled = [k for k in range(1, len(model.factors_)) if model.labels_[k] is not None]
    return {
        "components": _picture(plot_components(model, top=top, max_components=max_components)),
        "labelled_modes": [model._mode_title(mode) for mode in labelled],
        "summary": _summary(model, max_components),
        "tables": list(_component_tables(model, labelled, top, max_components)),
        "n_hidden": len(model.weights_) - max_components,
    }


def _section(section: ReportSection) -> dict[str, Any]:
    """Return a section as the page shows it: pictures drawn, numbers written out."""
    table = section.table
    figure = draw_patterns(section.patterns) if section.patterns else None
    figure = draw_curves(section.curves) if section.curves else figure
    return {
        "title": section.title,
        "text": section.text,
        "caption": section.caption,
        "picture": "" if figure is None else _picture(figure),
        **({"head": [], "rows": []} if table is None else _cells(table)),
    }


def _written(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(value)


def _template() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        message = "The report needs jinja2: install it with pip install 'polyad[report]'."
        raise MissingPackageError(message) from error
    environment = Environment(
        loader=PackageLoader("polyad.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("report.html")


def _facts(model: Any, X: Any, y: Any) -> list[tuple[str, str]]:
    # What is decomposed may be made of the samples, as spectra are of signals.
    is_tensor = hasattr(model, "factors_")
    shape = [len(own) for own in model.factors_] if is_tensor else model._fitted_shape
    names = [f"mode {k}" for k in range(len(shape))] if model.modes_ is None else model.modes_
    sizes = " × ".join(f"{size} ({name})" for size, name in zip(shape, names, strict=True))
    facts = [("tensor" if is_tensor else "data", sizes)]
    if hasattr(model, "history_"):
        facts += [
            ("iterations", str(model.n_iter_)),
            ("objective", f"{model.objective_:.6g}"),
            ("time", f"{model.history_.seconds:.2f} s"),
        ]
    if X is not None:
        if not hasattr(model, "score"):
            message = (
                f"X is for the score of the model, and {type(model).__name__} has none: leave out "
                "X, or give the class a score."
            )
            raise InvalidTypeError(message)
        if y is None and is_classifier(model):
            message = (
                f"The score of {type(model).__name__} is its {model._score_name}: give y, the "
                "classes of the samples of X, or leave out X."
            )
            raise InvalidInputError(message)
        score = model.score(X) if y is None else model.score(X, y)
        facts.append((f"score ({model._score_name}) on the data given", f"{score:.4f}"))
    return facts


def _summary(model: Any, max_components: int) -> dict[str, Any]:
    """Return the numbers and notes of the components; their labels have tables of their own."""
    table = model._summary(1).iloc[leading_components(model, max_components)]
    shown = [name for name in table if not name.startswith(("leading ", "distinctive "))]
    return _cells(table[shown])


def _cells(table: pd.DataFrame) -> dict[str, Any]:
    """Return a table as the page shows it."""
    return {
        "head": [str(table.index.name or ""), *map(str, table.columns)],
        "rows": [list(map(_written, row)) for row in table.itertuples()],
    }


def _component_tables(
    model: Any, labelled: Sequence[int], top: int, max_components: int
) -> Iterator[dict[str, Any]]:
    """Give the numbers behind the bars, and the distinctive labels, for labelled modes."""
    weights = to_numpy(model.weights_)
    for r in leading_components(model, max_components) if labelled else ():
        orders = [(mode, by, n) for mode in labelled for by, n in _ORDERS.items()]
        columns = [(model.top(r, mode, top, by=by), n) for mode, by, n in orders]
        longest = max(len(column) for column, _ in columns)
        yield {
            "number": r,
            "weight": f"{weights[r]:.4g}",
            "rows": [[_cell(own, row, n) for own, n in columns] for row in range(longest)],
        }


def _cell(column: pd.Series, row: int, digits: int) -> tuple[str, str]:
    """Return a label and its number, both empty below the end of the column."""
    if row >= len(column):
        return "", ""
    return str(column.index[row]), f"{column.iloc[row]:.{digits}f}"


def _shown(value: Any) -> str:
    text = f"array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _picture(figure: Any) -> str:
    """Return a figure as an address that holds it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
