"""The four soft operators as averages with a solved plan, each with its pullback."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.threads import as_slices, cut
from polyad.exceptions import InvalidInputError
from polyad.soft.arguments import (
    Layout,
    Settings,
    Side,
    read_array,
    read_levels,
    read_quantiles,
    read_targets,
    read_values,
    read_weights,
    read_width,
)
from polyad.soft.plans import SoftPlan, finite, make_plan, middles, pull_normalised

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from polyad.transport.rows import Gradients

    Table = NDArray[np.float64]
    Index = NDArray[np.int64]

# Numbers of repeated rows that are treated at once.
_CHUNK_SIZE = 1 << 21


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
    """The value of an operator, its pullback, and the potentials that both came from.

    The potentials are ``None`` after a fixed number of iterations. Given back to the same function
    with the same arguments, they are taken as they are, and nothing is solved again.
    """

    value: NDArray[Any]
    pull: Callable[[ArrayLike], SoftGradients]
    potentials: Table | None


def evaluate_normalize(
    x: ArrayLike,
    quantiles: ArrayLike,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.quantile_normalize`: T = P q / a."""
    values, layout = read_values(x, settings.axis)
    q = read_quantiles(quantiles, layout)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b = read_weights(target_weights, "target_weights", layout, q.rows.shape[1])
    solved = make_plan(values, a.rows, b.rows, settings, potentials)

    def pull(gradient: ArrayLike) -> SoftGradients:
        G = read_gradient(gradient, value, layout)
        gradients = solved.plan.pull_targets(q.rows, G)
        found = to_arguments(solved, gradients, layout, (a, b))
        return replace(found, quantiles=q.back(finite(gradients.numbers, "quantiles"), layout))

    value = layout.to_array(solved.plan.average_targets(q.rows))
    return Evaluated(value, pull, solved.potentials)


def evaluate_rank(
    x: ArrayLike,
    n_targets: int | None,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_rank`: quantiles that are the ranks of the targets."""
    values, layout = read_values(x, settings.axis)
    n = values.shape[1]
    a = read_weights(weights, "weights", layout, n)
    b = read_targets(n_targets, target_weights, layout, n)
    solved = make_plan(values, a.rows, b.rows, settings, potentials)
    # The mean rank of the mass of a target.
    ranks = n * (np.cumsum(solved.b, axis=1) - 0.5 * solved.b) + 0.5

    def pull(gradient: ArrayLike) -> SoftGradients:
        gradients = solved.plan.pull_targets(ranks, read_gradient(gradient, value, layout))
        by_rank = gradients.numbers
        above = np.cumsum(by_rank[:, ::-1], axis=1)[:, ::-1] - by_rank
        by_targets = gradients.b + n * (above + 0.5 * by_rank)
        return to_arguments(solved, replace(gradients, b=by_targets), layout, (a, b))

    value = layout.to_array(solved.plan.average_targets(ranks))
    return Evaluated(value, pull, solved.potentials)


def evaluate_sort(
    x: ArrayLike,
    n_targets: int | None,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_sort`: S = P' x / b."""
    values, layout = read_values(x, settings.axis)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b = read_targets(n_targets, target_weights, layout, values.shape[1])
    solved = make_plan(values, a.rows, b.rows, settings, potentials)
    # Averages are taken of distances from the middle: differences of large numbers cancel.
    middle = middles(values)
    distances = values - middle

    def pull(gradient: ArrayLike) -> SoftGradients:
        gradients = solved.plan.pull_values(distances, read_gradient(gradient, value, layout))
        return to_arguments(solved, gradients, layout, (a, b), direct=gradients.numbers)

    value = layout.to_array(solved.plan.average_values(distances) + middle)
    return Evaluated(value, pull, solved.potentials)


def evaluate_quantile(
    x: ArrayLike,
    levels: ArrayLike,
    width: float | None,
    weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_quantile`: a soft sort with three targets for each level."""
    values, layout = read_values(x, settings.axis)
    d, n = values.shape
    a = read_weights(weights, "weights", layout, n)
    asked = read_levels(levels, layout)
    is_single = asked.shape == ()
    share = read_width(width, n)
    lowest = asked.rows - 0.5 * share
    below = np.clip(lowest, 0.0, 1.0 - share)
    is_inside = (lowest > 0.0) & (lowest < 1.0 - share)
    targets = np.stack([below, np.full_like(below, share), 1.0 - share - below], axis=2)
    k = below.shape[1]
    targets = np.broadcast_to(np.maximum(targets, 0.0), (d, k, 3)).reshape(d * k, 3)
    # Every level of every row is a problem of its own. They are solved in parts, as a row is
    # repeated for each of them, and solutions are kept as potentials.
    parts = as_slices(cut(d * k, max(1, _CHUNK_SIZE // n)))
    centre = middles(values)

    def solve(part: slice, known: Table | None) -> tuple[Index, Table, SoftPlan]:
        rows = np.arange(part.start, part.stop) // k
        own = a.rows if len(a.rows) == 1 else a.rows[rows]
        kept = None if known is None else known[part]
        found = make_plan(values[rows], own, targets[part], settings, kept)
        return rows, values[rows] - centre[rows], found

    def pull(gradient: ArrayLike) -> SoftGradients:
        given = read_gradient(gradient, value, layout, is_single=is_single).ravel()
        by_values, by_weights, by_levels = np.zeros((d, n)), np.zeros((d, n)), np.zeros(d * k)
        for part in parts:
            rows, distances, found = solve(part, solution)
            G = np.zeros((rows.size, 3))
            G[:, 1] = given[part]
            gradients = found.plan.pull_values(distances, G)
            by_input, by_shares = found.pull_input(gradients)
            _add_rows(by_values, rows, by_input + gradients.numbers)
            _add_rows(by_weights, rows, pull_normalised(found.a, found.totals[0], by_shares))
            by_levels[part] = gradients.b[:, 0] - gradients.b[:, 2]
        inside = np.where(is_inside, by_levels.reshape(d, k), 0.0)
        return SoftGradients(
            layout.to_array(finite(by_values, "x")),
            a.back(finite(by_weights, "weights"), layout),
            levels=asked.back(finite(inside, "levels"), layout),
        )

    middle = np.empty(d * k)
    solution = None if settings.n_iter is not None else np.empty((d * k, 3))
    for part in parts:
        rows, distances, found = solve(part, potentials)
        middle[part] = found.plan.average_values(distances)[:, 1] + centre[rows, 0]
        if solution is not None:
            solution[part] = found.potentials
    value = layout.to_array(middle.reshape(d, k))
    if is_single:
        value = value.squeeze(layout.axis)
    return Evaluated(value, pull, solution)


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
    solved: SoftPlan,
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
