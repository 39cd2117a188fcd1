"""The parameters of a mixed membership model, in the units of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.membership.moment_tensors import Constants, averages
from polyad.membership.partitions import combine
from polyad.membership.posterior import Emissions
from polyad.membership.refine import PSEUDO_COUNT
from polyad.membership.variables import NARROWEST, Indicators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.membership.matching import Matching
    from polyad.membership.partitions import Layout, Plan
    from polyad.membership.variables import Table, Variables

    Matrix = NDArray[np.float64]

# The smallest share of a component: a distribution needs all of its parameters above zero.
_LEAST_SHARE = 1e-6
# Of the variance of a column, what is within components at least: it is a difference, which may be
# next to nothing, or less, where numbers are mixed within an entry and not between entries.
_LEAST_WITHIN = 0.1


@dataclass(frozen=True)
class Parameters:
    """What a fit has found: the components by decreasing weight."""

    #: Probabilities of categories (d, k); means of numbers (1, k).
    theta: list[Matrix]
    alpha: Matrix
    #: Of the variables that are numbers, within a component.
    variances: Matrix


def parameters_of_factors(
    factors: Sequence[Matrix], plan: Plan, matching: Matching
) -> tuple[Parameters, dict[str, Any], Matrix]:
    """Return the parameters that factors of moments stand for, what is known of them, matches.

    Weights follow from those of the third moment (see ``moment_tensors``): ``alpha = lambda a0
    (a0 + 1) (a0 + 2) / 2``, which sum to ``a0`` where moments are exact, and are made to.
    """
    table, variables = plan.table, plan.table.variables
    rows, weights, known, matches = combine(factors, plan.layout, variables, matching)
    total = weights.sum()
    even = np.full_like(weights, 1.0 / len(weights))
    shares = np.maximum(weights / total if total > 0 else even, _LEAST_SHARE)
    alpha = plan.alpha0 * shares / shares.sum()
    order = np.argsort(-alpha, kind="stable")
    theta, alpha = [own[:, order] for own in variables.in_units(rows)], alpha[order]
    if len(alpha) == 1:
        # One component has no memberships to mix: its parameters are the means of the columns.
        everything = Indicators(table, np.arange(len(variables.kinds)))
        means = averages([everything])[:, None]
        theta = variables.in_units(np.split(means, everything.starts[1:-1]))
    flags = [(own.is_valid, own.meets_theorem4, own.meets_theorem5) for own in matches]
    told = np.array(flags, dtype=np.float64).reshape(-1, 3)
    return Parameters(theta, alpha, _variances(table, theta, alpha)), known, told


def spread_of(table: Table) -> Matrix:
    """Return the variances of the columns of numbers, above zero where all are the same too."""
    if not table.values.shape[1]:
        return np.zeros(0)
    values = table.values.astype(np.float64)
    means, spread = np.nanmean(values, axis=0), np.nanvar(values, axis=0)
    rounding = np.maximum(8.0 * np.finfo(float).eps * np.abs(means), NARROWEST)
    some: Matrix = np.where(spread > rounding**2, spread, 1e-6 * (means**2 + 1e-6))
    return some


def _variances(table: Table, theta: Sequence[Matrix], alpha: Matrix) -> Matrix:
    """Return the variances within components: those of columns less that of the means."""
    shares, flags = alpha / alpha.sum(), table.variables.is_categorical
    means = [own[0] for own, flag in zip(theta, flags, strict=True) if not flag]
    if not means:
        return np.zeros(0)
    stacked, spread = np.stack(means), spread_of(table)
    between = (stacked - (stacked @ shares)[:, None]) ** 2 @ shares
    within: Matrix = np.maximum(spread - between, _LEAST_WITHIN * spread)
    return within


def emissions_of(parameters: Parameters, variables: Variables, n_samples: int) -> Emissions:
    """Return parameters as likelihoods take them.

    Probabilities are those of the samples and one more for each component, which has all categories
    alike: what was seen in other components only is unlikely, not impossible.
    """
    shares = parameters.alpha / parameters.alpha.sum()
    part = PSEUDO_COUNT / (n_samples * shares + PSEUDO_COUNT)
    flags, theta = variables.is_categorical, parameters.theta
    n_components = len(shares)
    named = [
        (1.0 - part) * own + part / len(own) for own, flag in zip(theta, flags, strict=True) if flag
    ]
    means = [own for own, flag in zip(theta, flags, strict=True) if not flag]
    stacked = np.concatenate(means) if means else np.zeros((0, n_components))
    stacked = variables.above_least(stacked)
    probabilities = np.concatenate(named) if named else np.zeros((0, n_components))
    return Emissions(variables, probabilities, stacked, parameters.variances)


def parameters_of_emissions(emissions: Emissions, alpha: Matrix) -> Parameters:
    """Return the parameters of a refined model, the components by decreasing weight."""
    order = np.argsort(-alpha, kind="stable")
    variables = emissions.variables
    ends = np.cumsum(variables.named_sizes)
    named = np.split(emissions.probabilities[:, order], ends[:-1])
    theta = [
        named[place] if flag else emissions.means[place : place + 1, order]
        for place, flag in zip(variables.place, variables.is_categorical, strict=True)
    ]
    return Parameters(theta, alpha[order], emissions.variances)


def factors_of(parameters: Parameters, layout: Layout, variables: Variables) -> list[Matrix]:
    """Return the factors of the moments of each block that parameters stand for."""
    alpha0 = float(parameters.alpha.sum())
    weights = np.cbrt(Constants(alpha0).total * parameters.alpha / alpha0)
    rows = rows_of(parameters, variables)
    return [
        weights * np.concatenate([rows[int(j)] for j in own])
        for sets in layout.blocks
        for own in sets
    ]


def rows_of(parameters: Parameters, variables: Variables) -> list[Matrix]:
    """Return the parameters of each variable as moments have them, numbers as two rows."""
    rows = list(parameters.theta)
    for j in np.flatnonzero(~variables.is_categorical):
        part = np.clip((rows[j] - variables.ranges[j, 0]) / variables.span()[j], 0.0, 1.0)
        rows[j] = np.concatenate([part, 1.0 - part])
    return rows
