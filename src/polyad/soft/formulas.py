"""The soft operators as averages with a solved plan, each with its pullback."""

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
    read_count,
    read_levels,
    read_quantiles,
    read_targets,
    read_top,
    read_top_targets,
    read_values,
    read_weights,
    read_width,
    result_type,
)
from polyad.soft.plans import SoftPlan, finite, make_plan, middles, pull_normalised
from polyad.transport.rows import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

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
    criterion : ndarray or None
        With respect to what :func:`polyad.soft.soft_sort_with` sorts by.
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
    criterion: NDArray[Any] | None = None


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
    values, layout = read_values(x, settings)
    q = read_quantiles(quantiles, layout)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b = read_weights(target_weights, "target_weights", layout, q.rows.shape[1])
    solved = make_plan(values, a.rows, b.rows, settings, potentials)

    def pull(gradient: ArrayLike) -> SoftGradients:
        G = read_gradient(gradient, value, layout)
        gradients = solved.plan.pull_targets(q.rows, G)
        found = to_arguments(solved, gradients, layout, (a, b))
        return replace(found, quantiles=q.back(finite(gradients.numbers, "quantiles"), layout))

    value = layout.to_input(solved.plan.average_targets(q.rows))
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
    values, layout = read_values(x, settings)
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

    value = layout.to_input(solved.plan.average_targets(ranks))
    return Evaluated(value, pull, solved.potentials)


def evaluate_topk_mask(
    x: ArrayLike,
    k: int,
    weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_topk_mask`: two targets, of the quantiles 0 and 1."""
    values, layout = read_values(x, settings)
    n = values.shape[1]
    a = read_weights(weights, "weights", layout, n)
    count = read_top(k, "k", n)
    b = Side(np.array([[n - count, count]]) / n, None, np.float64)
    q = np.array([[0.0, 1.0]])
    solved = make_plan(values, a.rows, b.rows, settings, potentials)

    def pull(gradient: ArrayLike) -> SoftGradients:
        gradients = solved.plan.pull_targets(q, read_gradient(gradient, value, layout))
        return to_arguments(solved, gradients, layout, (a, b))

    value = layout.to_input(solved.plan.average_targets(q))
    return Evaluated(value, pull, solved.potentials)


def evaluate_sort(
    x: ArrayLike,
    n_targets: int | None,
    top_k: int | None,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_sort`: S = P' x / b."""
    values, layout = read_values(x, settings)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b, wanted = read_sort_targets(n_targets, top_k, target_weights, layout, values.shape[1])
    solved = make_plan(values, a.rows, b.rows, settings, potentials)
    # Averages are taken of distances from the middle: differences of large numbers cancel.
    middle = middles(values)
    distances = values - middle

    def pull(gradient: ArrayLike) -> SoftGradients:
        G = np.zeros((len(values), b.rows.shape[1]))
        G[:, wanted] = read_gradient(gradient, value, layout)
        gradients = solved.plan.pull_values(distances, G)
        return to_arguments(solved, gradients, layout, (a, b), direct=gradients.numbers)

    value = layout.to_array((solved.plan.average_values(distances) + middle)[:, wanted])
    return Evaluated(value, pull, solved.potentials)


def read_sort_targets(
    n_targets: int | None,
    top_k: int | None,
    target_weights: ArrayLike | None,
    layout: Layout,
    n: int,
) -> tuple[Side, slice]:
    """Return the weights of the targets of a sort, and which of them are wanted."""
    if top_k is None:
        return read_targets(n_targets, target_weights, layout, n), slice(None)
    return read_top_targets(top_k, n_targets, target_weights, n), slice(-int(top_k), None)


def evaluate_sort_with(
    x: ArrayLike,
    criterion: ArrayLike,
    n_targets: int | None,
    top_k: int | None,
    weights: ArrayLike | None,
    target_weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.soft_sort_with`: S = P' x / b, the plan that of the criterion."""
    keys, layout = read_values(criterion, settings, "criterion")
    numbers = read_array(x, "x")
    columns = read_columns(numbers, layout)
    own = replace(layout, dtype=result_type(numbers))
    features = numbers.shape[len(layout.shape) :]
    d, n = keys.shape
    a = read_weights(weights, "weights", layout, n)
    b, wanted = read_sort_targets(n_targets, top_k, target_weights, layout, n)
    m = b.rows.shape[1]
    solved = make_plan(keys, a.rows, b.rows, settings, potentials)

    def pull(gradient: ArrayLike) -> SoftGradients:
        given = read_array(gradient, "The gradient")
        check_shape(given, value)
        given = given.reshape(*value.shape[: value.ndim - len(features)], len(columns))
        by_keys, by_a, by_b, by_x = np.zeros((d, n)), np.zeros((d, n)), np.zeros((d, m)), []
        for k, column in enumerate(columns):
            G = np.zeros((d, m))
            G[:, wanted] = layout.to_rows(given[..., k])
            part = solved.plan.pull_values(column - middles(column), G)
            by_keys, by_a, by_b = by_keys + part.x, by_a + part.a, by_b + part.b
            by_x.append(own.to_input(finite(part.numbers, "x")))
        found = to_arguments(solved, Gradients(by_keys, by_a, by_b, by_keys), layout, (a, b))
        by_numbers = np.stack(by_x, axis=-1).reshape(numbers.shape)
        return replace(found, x=by_numbers, criterion=found.x)

    ordered = []
    for column in columns:
        middle = middles(column)
        means = solved.plan.average_values(column - middle) + middle
        ordered.append(own.to_array(means[:, wanted]))
    value = np.stack(ordered, axis=-1).reshape(*ordered[0].shape, *features)
    return Evaluated(value, pull, solved.potentials)


def read_columns(numbers: NDArray[Any], layout: Layout) -> list[Table]:
    """Return the columns of what is sorted, each as rows like those of the criterion."""
    n_axes = len(layout.shape)
    if numbers.shape[:n_axes] != layout.shape:
        message = (
            f"x has the shape {numbers.shape} and criterion {layout.shape}: x must have the axes "
            "of the criterion, and may have further ones after them."
        )
        raise InvalidInputError(message)
    flat = numbers.reshape(*layout.shape, -1)
    return [layout.to_rows(flat[..., k]) for k in range(flat.shape[-1])]


def evaluate_quantize(
    x: ArrayLike,
    n_levels: int,
    weights: ArrayLike | None,
    settings: Settings,
    *,
    potentials: Table | None = None,
) -> Evaluated:
    """Evaluate :func:`polyad.soft.quantize`: T = P S / a with S = P' x / b."""
    values, layout = read_values(x, settings)
    a = read_weights(weights, "weights", layout, values.shape[1])
    b = read_targets(read_count(n_levels, "n_levels"), None, layout, values.shape[1])
    solved = make_plan(values, a.rows, b.rows, settings, potentials)
    middle = middles(values)
    distances = values - middle
    levels = solved.plan.average_values(distances)

    def pull(gradient: ArrayLike) -> SoftGradients:
        G = read_gradient(gradient, value, layout)
        outer = solved.plan.pull_targets(levels, G)
        inner = solved.plan.pull_values(distances, outer.numbers)
        both = Gradients(outer.x + inner.x, outer.a + inner.a, outer.b + inner.b, inner.numbers)
        return to_arguments(solved, both, layout, (a, b), direct=inner.numbers)

    value = layout.to_input(solved.plan.average_targets(levels) + middle)
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
    values, layout = read_values(x, settings)
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
            layout.to_input(finite(by_values, "x")),
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
    check_shape(G, value)
    return layout.to_rows(np.expand_dims(G, layout.axis) if is_single else G)


def check_shape(gradient: NDArray[Any], value: NDArray[Any]) -> None:
    """Refuse a gradient that is not of the shape of the value."""
    if gradient.shape != value.shape:
        message = f"The gradient has the shape {gradient.shape} and the value {value.shape}."
        raise InvalidInputError(message)


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
        layout.to_input(finite(by_values + direct, "x")),
        sides[0].back(finite(by_weights, "weights"), layout),
        sides[1].back(finite(by_targets, "target_weights"), layout),
    )
