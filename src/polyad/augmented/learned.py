"""What a finished fit has learned: components of length one, with what goes along with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from array_api_compat import device

from polyad.augmented.metric import augmentation_metric
from polyad.augmented.problem import flat
from polyad.augmented.rules import gram_of, unit_columns
from polyad.augmented.solver import Moments
from polyad.augmented.views import Centre
from polyad.core.arrays import namespace_of
from polyad.cp.family import CPLearned
from polyad.cp.rules import double
from polyad.estimators import saving
from polyad.tensor.alignment import normalize_components, weight_order
from polyad.tensor.kruskal import KruskalTensor, column_norms

if TYPE_CHECKING:
    from polyad.augmented.problem import AugmentedData
    from polyad.augmented.solver import AugmentedState
    from polyad.core.arrays import Array

# Components of this part of the size of a sample are none.
_NOTHING = 1e-12


def _of_a_sample(value: Any, sizes: saving.Sizes) -> str:
    """Ask for a tensor of the shape of a sample."""
    return saving.array(*(f"n{mode}" for mode in range(1, sizes["N"])))(value, sizes)


def sizes_of_input(value: Any, sizes: saving.Sizes) -> str:
    """Ask for the shape of a sample as it was given."""
    is_shape = isinstance(value, tuple) and len(value) > 0
    return "" if is_shape and all(type(n) is int and n > 0 for n in value) else "is not a shape"


def names_of_input(value: Any, sizes: saving.Sizes) -> str:
    """Ask for names of the modes of samples as they were given."""
    is_names = isinstance(value, tuple) and all(isinstance(name, str) for name in value)
    is_sound = value is None or (is_names and len(set(value)) == len(value))
    return "" if is_sound else "is not a tuple of names"


def labels_of_input(value: Any, sizes: saving.Sizes) -> str:
    """Ask for a list of labels, or None, for each mode of samples as they were given."""
    if not isinstance(value, list):
        return "is not a list"
    rules = [saving.nothing_or(saving.labels(f"labels {k}")) for k in range(len(value))]
    found = (rule(own, sizes) for rule, own in zip(rules, value, strict=True))
    return next(filter(None, found), "")


@dataclass(frozen=True, kw_only=True)
class AugmentedLearned(CPLearned):
    """Components, the mean of the samples, the metric of features, and what they follow from."""

    mean_: Array = saving.attribute(_of_a_sample)
    metric_: Array | None = saving.attribute(saving.nothing_or(saving.array("R", "R")))
    channel_scales_: Array | None = saving.attribute(
        saving.nothing_or(saving.array("channels", low=0.0))
    )
    n_steps_: int = saving.attribute(saving.whole(0))
    _largest_batch: int = saving.attribute(saving.whole(0))
    _spread: float = saving.attribute(saving.number(0.0))
    _row_moments: Array = saving.attribute(saving.array("R", "R"))
    _change_moments: Array = saving.attribute(saving.array("R", "R"))

    @classmethod
    def of(
        cls,
        problem: AugmentedData,
        state: AugmentedState,
        earlier: AugmentedLearned | None,
        floor: float | None,
    ) -> Self:
        """Return what a finished state has learned, after earlier samples if there were any.

        ``floor`` is that of the metric of features, None without a metric.
        """
        units = unit_columns(state.factors, state.factors)
        lengths = [column_norms(factor) for factor in state.factors]
        rows, moments, mean = problem.asarray(state.rows), state.moments, state.centre.mean
        xp = namespace_of(rows)
        if earlier is None:
            rows, units, lengths, moments = _canonical(rows, units, lengths, moments)
        else:
            rows = xp.concat([earlier.factors_[0] * earlier.weights_[None, :], rows], axis=0)
        weights = column_norms(rows)
        safe = xp.where(weights > 0, weights, xp.ones_like(weights))
        found = cls(
            factors_=[rows / safe[None, :], *units],
            weights_=weights,
            _lengths=lengths,
            mean_=xp.reshape(mean, problem.shape),
            metric_=None,
            channel_scales_=problem.preprocess.scales,
            n_steps_=state.n_steps,
            _largest_batch=state.largest,
            _spread=state.centre.spread,
            _row_moments=moments.rows,
            _change_moments=moments.changes,
        )
        return found if floor is None else replace(found, metric_=found._metric(floor))

    def _metric(self, floor: float) -> Array:
        """Return the metric that discounts what augmentation changes, in the type of the data."""
        xp, weights = namespace_of(self.weights_), self.weights_
        if self.is_nothing:
            return xp.eye(len(weights), dtype=weights.dtype, device=device(weights))
        gram = gram_of(self.factors_[1:])
        metric = augmentation_metric(gram, self._row_moments, self._change_moments, floor)
        return xp.astype(metric, weights.dtype)

    @property
    def is_nothing(self) -> bool:
        """Whether every component is zero."""
        largest = float(namespace_of(self.weights_).max(self.weights_))
        return largest <= _NOTHING * math.sqrt(self._spread)

    def resumed(self, start: AugmentedState, n_samples: int) -> AugmentedState:
        """Return the state that a model of some samples goes on from, in place of a start."""
        mean = flat(self.mean_[None, ...])[0, :]
        return replace(
            start,
            factors=self.factors_[1:],
            centre=Centre(n_samples, mean, self._spread),
            moments=Moments(self._row_moments, self._change_moments),
            n_steps=self.n_steps_,
            largest=self._largest_batch,
        )


def _canonical(
    rows: Array, factors: list[Array], lengths: list[Array], moments: Moments
) -> tuple[Array, list[Array], list[Array], Moments]:
    """Return all with signs and order as decompositions have them."""
    xp = namespace_of(rows)
    tensor = normalize_components(KruskalTensor(xp.ones_like(lengths[0]), [rows, *factors]))
    order = weight_order(tensor)
    tensor, index = tensor.take(order), xp.asarray(order, dtype=xp.int64)
    ordered = tensor.factors[0] * tensor.weights[None, :]
    signs = double(xp.sign(xp.sum(ordered * xp.take(rows, index, axis=1), axis=0)))
    signs = xp.where(signs == 0, xp.ones_like(signs), signs)

    def turned(own: Array) -> Array:
        moved = xp.take(xp.take(own, index, axis=0), index, axis=1)
        return moved * signs[:, None] * signs[None, :]

    found = Moments(turned(moments.rows), turned(moments.changes))
    return ordered, list(tensor.factors[1:]), [xp.take(own, index) for own in lengths], found
