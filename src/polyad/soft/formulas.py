"""The four soft operators as averages with a solved plan, each with its pullback."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError
from polyad.soft.arguments import (
    Layout,
    Settings,
    Side,
    read_array,
    read_count,
    read_side,
    read_values,
    read_weights,
    read_width,
)
from polyad.soft.solved import Solved, finite, middles, pull_normalised, solve_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from polyad.soft.transport import Gradients

    Table = NDArray[np.float64]
    Index = NDArray[np.int64]

# Numbers of repeated rows that are treated at once.
_NUMBERS = 1 << 21


@dataclass(frozen=True)
class SoftGradients:
    """Gradients with respect to the arguments of a soft operator.

    Each has the shape and the type of its argument, and is ``None`` where that was not given.

    Attributes
    ----------
    x : ndarray
        With respect to the values.
    weights, target_weights : ndarray or None
        With respect to the weights, which the operators divide by their sums.
    quantiles : ndarray or None
        With respect to the quantiles of :func:`polyad.soft.quantile_normalize`.
    levels : ndarray or None
        With respect to the levels of :func:`polyad.soft.soft_quantile`.
    """

    x: NDArray[Any]
    weights: NDArray[Any] | None = None
    target_weights: NDArray[Any] | None = None
    quantiles: NDArray[Any] | None = None
    levels: NDArray[Any] | None = None


@dataclass(frozen=True)
class Evaluated:
    """The value of an operator, and its pullback."""

    value: NDArray[Any]
    pull: Callable[[ArrayLike], SoftGradients]


def evaluate_normalize(
    x: ArrayLike,
    quantiles: ArrayLike,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.quantile_normalize`: T = P q / a."""
    values, layout = read_values(x, settings.axis)
    q = read_side(quantiles, "quantiles", layout, None)
    if (np.diff(q.rows, axis=1) < 0.0).any():
        message = (
            "quantiles decrease somewhere; the order of values is only kept if they are sorted."
        )
        raise InvalidInputError(message)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b = read_weights(target_weights, "target_weights", layout, q.rows.shape[1])
    solved = solve_rows(values, a.rows, b.rows, settings)

    def pull(gradient: ArrayLike) -> SoftGradients:
        G = read_gradient(gradient, value, layout)
        gradients = solved.plan.pull_targets(q.rows, G)
        found = to_arguments(solved, gradients, layout, (a, b))
        return replace(found, quantiles=q.back(finite(gradients.numbers, "quantiles"), layout))

    value = layout.to_array(solved.plan.average_targets(q.rows))
    return Evaluated(value, pull)


def evaluate_rank(
    x: ArrayLike,
    n_targets: int | None,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_rank`: quantiles that are the ranks of the targets."""
    values, layout = read_values(x, settings.axis)
    n = values.shape[1]
    a = read_weights(weights, "weights", layout, n)
    b = _read_targets(n_targets, target_weights, layout, n)
    solved = solve_rows(values, a.rows, b.rows, settings)
    # The mean rank of the mass of a target.
    ranks = n * (np.cumsum(solved.b, axis=1) - 0.5 * solved.b) + 0.5

    def pull(gradient: ArrayLike) -> SoftGradients:
        gradients = solved.plan.pull_targets(ranks, read_gradient(gradient, value, layout))
        by_rank = gradients.numbers
        above = np.cumsum(by_rank[:, ::-1], axis=1)[:, ::-1] - by_rank
        by_targets = gradients.b + n * (above + 0.5 * by_rank)
        return to_arguments(solved, replace(gradients, b=by_targets), layout, (a, b))

    value = layout.to_array(solved.plan.average_targets(ranks))
    return Evaluated(value, pull)


def evaluate_sort(
    x: ArrayLike,
    n_targets: int | None,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_sort`: S = P' x / b."""
    values, layout = read_values(x, settings.axis)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b = _read_targets(n_targets, target_weights, layout, values.shape[1])
    solved = solve_rows(values, a.rows, b.rows, settings)
    # Averages are taken of distances from the middle: differences of large numbers cancel.
    middle = middles(values)
    distances = values - middle

    def pull(gradient: ArrayLike) -> SoftGradients:
        gradients = solved.plan.pull_values(distances, read_gradient(gradient, value, layout))
        return to_arguments(solved, gradients, layout, (a, b), direct=gradients.numbers)

    value = layout.to_array(solved.plan.average_values(distances) + middle)
    return Evaluated(value, pull)


def evaluate_quantile(
    x: ArrayLike,
    levels: ArrayLike,
    width: float | None,
    weights: ArrayLike | None,
    settings: Settings,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_quantile`: a soft sort with three targets for each level."""
    values, layout = read_values(x, settings.axis)
    d, n = values.shape
    a = read_weights(weights, "weights", layout, n)
    asked = read_array(levels, "levels")
    if asked.ndim > 1 or asked.min() < 0.0 or asked.max() > 1.0:
        message = f"levels={levels!r} must be a number, or one axis of numbers, between 0 and 1."
        raise InvalidInputError(message)
    share = read_width(width, n)
    flat = asked.ravel().astype(np.float64)
    below = np.clip(flat - 0.5 * share, 0.0, 1.0 - share)
    is_inside = (flat - 0.5 * share > 0.0) & (flat - 0.5 * share < 1.0 - share)
    targets = np.stack([below, np.full_like(below, share), 1.0 - share - below], axis=1)
    targets = np.maximum(targets, 0.0)
    # Every level of every row is a problem of its own. They are solved in parts, as a row is
    # repeated for each of them, and solutions are kept as potentials.
    k, step = flat.size, max(1, _NUMBERS // n)
    parts = [slice(first, min(first + step, d * k)) for first in range(0, d * k, step)]
    centre = middles(values)

    def solve(part: slice, known: Table | None = None) -> tuple[Index, Index, Table, Solved]:
        rows, which = np.divmod(np.arange(part.start, part.stop), k)
        own = a.rows if len(a.rows) == 1 else a.rows[rows]
        found = solve_rows(values[rows], own, targets[which], settings, known)
        return rows, which, values[rows] - centre[rows], found

    def pull(gradient: ArrayLike) -> SoftGradients:
        given = read_gradient(gradient, value, layout, is_single=asked.ndim == 0).ravel()
        by_values, by_weights, by_levels = np.zeros((d, n)), np.zeros((d, n)), np.zeros(k)
        for part, known in zip(parts, potentials, strict=True):
            rows, which, distances, found = solve(part, known)
            G = np.zeros((rows.size, 3))
            G[:, 1] = given[part]
            gradients = found.plan.pull_values(distances, G)
            by_input, by_shares = found.pull_input(gradients)
            _add_rows(by_values, rows, by_input + gradients.numbers)
            _add_rows(by_weights, rows, pull_normalised(found.a, found.totals[0], by_shares))
            np.add.at(by_levels, which, gradients.b[:, 0] - gradients.b[:, 2])
        inside = np.where(is_inside, by_levels, 0.0).reshape(asked.shape)
        return SoftGradients(
            layout.to_array(finite(by_values, "x")),
            a.back(finite(by_weights, "weights"), layout),
            levels=finite(inside, "levels"),
        )

    middle, potentials = np.empty(d * k), []
    for part in parts:
        rows, _, distances, found = solve(part)
        middle[part] = found.plan.average_values(distances)[:, 1] + centre[rows, 0]
        potentials.append(found.plan.potentials)
    value = layout.to_array(middle.reshape(d, k))
    if asked.ndim == 0:
        value = value.squeeze(layout.axis)
    return Evaluated(value, pull)


def _add_rows(total: Table, rows: Index, parts: Table) -> None:
    """Add rows to those whose increasing numbers are given; one may be met several times."""
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    total[rows[first]] += np.add.reduceat(parts, first, axis=0)


def read_gradient(
    gradient: ArrayLike, value: NDArray[Any], layout: Layout, *, is_single: bool = False
) -> Table:
    """Return the rows of a gradient with respect to the value."""
    G = read_array(gradient, "The gradient")
    if G.shape != value.shape:
        message = f"The gradient has the shape {G.shape} and the value {value.shape}."
        raise InvalidInputError(message)
    return layout.to_rows(np.expand_dims(G, layout.axis) if is_single else G)


def to_arguments(
    solved: Solved,
    gradients: Gradients,
    layout: Layout,
    sides: tuple[Side, Side],
    direct: Table | float = 0.0,
) -> SoftGradients:
    """Return gradients in the shapes of the arguments; ``direct`` is added to that of ``x``."""
    by_values, by_shares = solved.pull_input(gradients)
    by_weights = pull_normalised(solved.a, solved.totals[0], by_shares)
    by_targets = pull_normalised(solved.b, solved.totals[1], gradients.b)
    return SoftGradients(
        layout.to_array(finite(by_values + direct, "x")),
        sides[0].back(finite(by_weights, "weights"), layout),
        sides[1].back(finite(by_targets, "target_weights"), layout),
    )


def _read_targets(
    n_targets: int | None, target_weights: ArrayLike | None, layout: Layout, n: int
) -> Side:
    """Return the weights of targets, whose number may be given by either argument."""
    size = read_count(n_targets, "n_targets")
    if target_weights is None:
        return read_weights(None, "target_weights", layout, n if size is None else size)
    return read_weights(target_weights, "target_weights", layout, size)
