"""What a fit of memberships has learned: parameters and columns, as files have them, and draws."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.estimators import saving
from polyad.estimators.base import Learned
from polyad.exceptions import ModelFileError
from polyad.membership.parameters import Parameters
from polyad.membership.variables import KINDS, Variables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.membership.partitions import Plan

# Poisson numbers of larger means do not fit whole numbers of the computer.
_LARGEST_MEAN = 1e15
# Between which means, and variances, all densities of numbers are numbers.
_LARGEST_NUMBER = 1e101
_LEAST_SPREAD = 1e-105


def _each(rule: saving.Rule) -> saving.Rule:
    """Ask for a list with an item for each column."""

    def check(value: Any, sizes: saving.Sizes) -> str:
        if not isinstance(value, list) or len(value) != sizes["n1"]:
            return "is not a list with an item for each column"
        for j, item in enumerate(value):
            own = {**sizes}
            problem = rule(item, own)
            if problem:
                return f"of column {j} {problem}"
        return ""

    return check


@dataclasses.dataclass(frozen=True, kw_only=True)
class MembershipLearned(Learned):
    """Parameters of the columns and of the memberships, and how the columns are read."""

    theta_: list[np.ndarray] = saving.attribute(
        _each(saving.array("rows", "R", low=-_LARGEST_NUMBER, high=_LARGEST_NUMBER))
    )
    alpha_: np.ndarray = saving.attribute(saving.array("R", low=1e-13, high=1e7))
    kinds_: list[str] = saving.attribute(_each(saving.one_of(*KINDS)))
    categories_: list[np.ndarray | None] = saving.attribute(
        _each(saving.nothing_or(saving.labels("rows")))
    )
    diagnostics_: dict[str, Any] = saving.attribute(
        saving.fields(negative_fraction=saving.nothing_or(saving.number(0.0)))
    )
    _ranges: np.ndarray = saving.attribute(
        saving.array("n1", "two", low=-_LARGEST_NUMBER, high=_LARGEST_NUMBER)
    )
    _variances: np.ndarray = saving.attribute(
        saving.array("numbers", low=_LEAST_SPREAD, high=_LARGEST_NUMBER**2)
    )
    _n_samples: int = saving.attribute(saving.whole(1))

    def variables(self) -> Variables:
        """Return how the columns are read."""
        return Variables(self.kinds_, self.categories_, self._ranges)

    def found(self) -> tuple[Parameters, Variables, int]:
        """Return the parameters, the columns, and the number of samples of the fit."""
        parameters = Parameters(self.theta_, self.alpha_, self._variances)
        return parameters, self.variables(), self._n_samples

    def is_of(self, variables: Variables, n_components: int) -> bool:
        """Say whether a fit of some columns can go on from here."""
        return (
            len(self.alpha_) == n_components
            and self.kinds_ == variables.kinds
            and all(
                one is two or (one is not None and two is not None and np.array_equal(one, two))
                for one, two in zip(self.categories_, variables.categories, strict=True)
            )
        )

    def draw(self, n_samples: int, generator: Any) -> tuple[list[NDArray[Any]], NDArray[Any]]:
        """Draw the columns of samples, and the memberships that they come from."""
        shares = _drawn_memberships(self.alpha_.astype(float), n_samples, generator)
        edges = np.cumsum(shares, axis=1)
        columns: list[NDArray[Any]] = []
        variances = iter(self._variances)
        for theta, kind, known in zip(self.theta_, self.kinds_, self.categories_, strict=True):
            component = (generator.uniform(size=(n_samples, 1)) > edges).sum(axis=1)
            own = theta[:, np.minimum(component, theta.shape[1] - 1)].astype(float)
            if known is not None:
                drawn = (generator.uniform(size=n_samples) > np.cumsum(own, axis=0)).sum(0)
                columns.append(known[np.minimum(drawn, len(known) - 1)])
                continue
            spread = math.sqrt(next(variances))
            if kind == "count":
                columns.append(_drawn_counts(np.maximum(own[0], 0.0), generator))
            else:
                columns.append(generator.normal(own[0], spread))
        return columns, shares

    def check(self) -> None:
        """Refuse what a file holds that does not fit together."""
        n_numbers = sum(kind != "categorical" for kind in self.kinds_)
        for theta, kind, known in zip(self.theta_, self.kinds_, self.categories_, strict=True):
            sound = (known is None) == (kind != "categorical")
            sound = sound and len(theta) == (1 if known is None else len(known))
            if sound and known is not None:
                sound = bool((theta >= 0).all() and np.allclose(theta.sum(axis=0), 1, atol=1e-4))
            if not sound or (self._ranges[:, 0] > self._ranges[:, 1]).any():
                message = "theta_, kinds_ and categories_ do not fit together"
                raise ModelFileError(message)
        if len(self._variances) != n_numbers or not len(self.alpha_):
            message = "_variances or alpha_ do not fit the columns"
            raise ModelFileError(message)

    @staticmethod
    def sizes(stored: Any) -> saving.Sizes:
        """Return the sizes by which the arrays of a file are checked."""
        alpha, theta, n_samples = (stored.get(k) for k in ("alpha_", "theta_", "_n_samples"))
        if not isinstance(alpha, np.ndarray) or not isinstance(theta, list) or not len(theta):
            message = "alpha_ is not an array, or theta_ not a list of arrays"
            raise ModelFileError(message)
        whole = n_samples if type(n_samples) is int else 0
        return {"N": 2, "n0": whole, "n1": len(theta), "R": alpha.size, "two": 2}


def _drawn_memberships(alpha: np.ndarray, n_samples: int, generator: Any) -> np.ndarray:
    """Draw from a Dirichlet distribution, in logarithms: gamma numbers of small ones vanish."""
    shape = (n_samples, len(alpha))
    logs = np.log(generator.gamma(alpha + 1.0, size=shape))
    logs += np.log(1.0 - generator.uniform(size=shape)) / alpha
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _drawn_counts(means: np.ndarray, generator: Any) -> np.ndarray:
    """Draw Poisson numbers; large ones are normal, and need not fit whole numbers."""
    if means.max() < _LARGEST_MEAN:
        return np.asarray(generator.poisson(means))
    return np.asarray(np.maximum(np.round(generator.normal(means, np.sqrt(means))), 0.0))


def learned_from(
    found: Parameters, plan: Plan, known: dict[str, Any], matches: NDArray[Any]
) -> MembershipLearned:
    """Return what was learned from a plan, with what is known of it, and of each matching."""
    variables, layout = plan.table.variables, plan.layout
    return MembershipLearned(
        theta_=found.theta,
        alpha_=found.alpha,
        kinds_=list(variables.kinds),
        categories_=list(variables.categories),
        diagnostics_={
            **known,
            "n_partitions": len(layout.blocks),
            "anchors": [own.tolist() for own in layout.anchors],
            "matching_valid": (matches[:, 0] > 0).tolist(),
            "theorem4": (matches[:, 1] > 0).tolist(),
            "theorem5": (matches[:, 2] > 0).tolist(),
        },
        _ranges=variables.ranges,
        _variances=found.variances,
        _n_samples=plan.table.n_samples,
    )


def _plain(column: Any) -> int | str:
    """Return the position or the name of a column in Python's own types."""
    return int(column) if isinstance(column, Integral) else str(column)


#: How the parameter ``kinds`` is stored: a word, or pairs of a column and a word.
KINDS_CODEC = saving.Codec(
    lambda given, _: (
        [[_plain(column), str(word)] for column, word in given.items()]
        if isinstance(given, Mapping)
        else given
    ),
    lambda stored: dict(map(tuple, stored)) if isinstance(stored, list) else stored,
)
