"""What is done to a table of events before a fit: labels dropped by frequency, entries rescaled.

Counts of events are seldom what a component should describe: one long stay in a hospital makes a
block of all its diagnoses and drugs, and a component of its own. In this order: labels that too few
or too many samples have are dropped, counts become presence, the entries of each sample get the
same sum, logarithms are taken. All but the first depend on a sample alone, so that new samples can
be treated alike. Memory and time follow the number of entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from polyad.data.entries import summed_coo
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray
    from scipy.sparse import coo_array

Entries = Literal["sum", "presence", "log"]
#: A number of samples, or a share of them, for all modes after the samples or by name.
Limit = int | float | Mapping[str, int | float] | None
# A tenth of thirty samples is three of them, whatever 0.1 * 30 rounds to.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Preparation:
    """What was asked for, checked. Limits are by the number of the mode."""

    entries: Entries
    sample_total: float | None
    least: dict[int, int | float]
    most: dict[int, int | float]
    keeps_samples: bool
    #: The two limits as they were given, and the names of the modes.
    asked: str
    modes: Sequence[str]

    def apply(
        self, data: coo_array[Any, Any], labels: Sequence[NDArray[Any]]
    ) -> tuple[coo_array[Any, Any], list[NDArray[Any]]]:
        """Return the entries and labels that are left, the entries rescaled."""
        found = list(labels)
        if self.least or self.most:
            data, found = self._without_labels(data, found)
        values = data.data
        if self.entries == "presence":
            values = (values != 0).astype(values.dtype)
        if (self.entries == "log" or self.sample_total is not None) and values.min(initial=0.0) < 0:
            asked = "entries='log'" if self.entries == "log" else "sample_total"
            message = (
                f"{asked} needs entries of zero or more; the smallest here is {values.min():.6g}. "
                "Leave it out, or use entries='presence'."
            )
            raise InvalidInputError(message)
        wide = values.astype(np.float64)
        if self.sample_total is not None:
            samples = data.coords[0]
            # Divided by the largest of a sample first: sums near the limits would overflow.
            largest = np.zeros(data.shape[0])
            np.maximum.at(largest, samples, wide)
            wide = wide / np.where(largest > 0, largest, 1.0)[samples]
            totals = np.bincount(samples, weights=wide, minlength=data.shape[0])
            wide = wide / np.where(totals > 0, totals, 1.0)[samples] * self.sample_total
        if self.entries == "log":
            wide = np.log1p(wide)
        with np.errstate(over="ignore"):
            data.data = wide.astype(values.dtype)
        if not np.isfinite(data.data).all():
            message = (
                f"sample_total={self.sample_total!r} gives entries beyond the range of "
                f"{values.dtype}. Give a smaller one."
            )
            raise InvalidInputError(message)
        return data, found

    def _without_labels(
        self, data: coo_array[Any, Any], labels: list[NDArray[Any]]
    ) -> tuple[coo_array[Any, Any], list[NDArray[Any]]]:
        """Drop labels by the number of samples that have them.

        Those of too many samples go first, by the whole data. What is left of a label shrinks with
        those of other modes, so that rare ones are dropped until all that are left are frequent.
        """
        filled = data.data != 0
        coords, values = [own[filled] for own in data.coords], data.data[filled]
        n_samples = len(np.unique(coords[0]))
        first = {mode: _support(coords, mode, data.shape) for mode in {*self.least, *self.most}}
        kept = np.ones(len(values), dtype=bool)
        for mode, limit in self.most.items():
            kept &= (first[mode] <= _count(limit, n_samples) * (1 + _ROUNDING))[coords[mode]]
        coords, values = [own[kept] for own in coords], values[kept]
        n_before = -1
        while len(values) and len(values) != n_before:
            n_before = len(values)
            for mode, limit in self.least.items():
                support = _support(coords, mode, data.shape)
                kept = (support >= _count(limit, n_samples) * (1 - _ROUNDING))[coords[mode]]
                coords, values = [own[kept] for own in coords], values[kept]
        if len(values) == 0:
            raise self._nothing_left(first, n_samples)
        for mode in range(data.ndim):
            is_cut = mode in first or (mode == 0 and not self.keeps_samples)
            if is_cut:
                used, coords[mode] = np.unique(coords[mode], return_inverse=True)
                labels[mode] = labels[mode][used]
        return summed_coo(coords, values, tuple(map(len, labels))), labels

    def _nothing_left(
        self, support: dict[int, NDArray[np.intp]], n_samples: int
    ) -> InvalidInputError:
        if n_samples == 0:
            message = f"Nothing is left with {self.asked}: no sample has an entry but zero."
            return InvalidInputError(message)
        facts = [
            f"labels of mode {self.modes[mode]!r} are each in {own[own > 0].min()} to {own.max()}"
            for mode, own in sorted(support.items())
        ]
        return InvalidInputError(
            f"Nothing is left with {self.asked}: of {n_samples} samples, "
            f"{', '.join(facts)}. Ask for fewer samples at least, or allow more at most."
        )


def read_preparation(
    entries: Entries,
    sample_total: float | None,
    limits: tuple[Limit, Limit],
    *,
    modes: Sequence[str],
    known: Container[str] = (),
    words: tuple[str, str] = ("min_samples", "max_samples"),
) -> Preparation:
    """Check what is asked for. ``known`` has the modes whose labels are given, which stay."""
    if not isinstance(entries, str) or entries not in get_args(Entries):
        message = f"entries={entries!r} has no meaning; give 'sum', 'presence' or 'log'."
        raise InvalidInputError(message)
    if sample_total is not None:
        is_number = isinstance(sample_total, Real) and not isinstance(sample_total, bool)
        if not is_number or not 0 < sample_total < math.inf:
            message = (
                f"sample_total={sample_total!r} is not a sum of entries; give a positive number, "
                "such as 1, or None."
            )
            raise InvalidInputError(message)
        sample_total = float(sample_total)
    least, most = (
        _by_mode(limit, word, modes, known) for limit, word in zip(limits, words, strict=True)
    )
    given = [f"{word}={limit}" for word, limit in zip(words, limits, strict=True) if limit]
    asked = " and ".join(given)
    return Preparation(entries, sample_total, least, most, modes[0] in known, asked, modes)


def _by_mode(
    limit: Limit, word: str, modes: Sequence[str], known: Container[str]
) -> dict[int, int | float]:
    """Return the limit of each mode that has one."""
    if limit is None:
        return {}
    if not isinstance(limit, Mapping):
        _check_limit(limit, word)
        return {k: limit for k, name in enumerate(modes) if k and name not in known}
    for name, own in limit.items():
        if name not in modes[1:] or name in known:
            reason = "whose labels are given" if name in known else f"not one of {modes[1:]}"
            message = f"{word} names {name!r}, {reason}; name modes whose labels may be dropped."
            raise InvalidInputError(message)
        _check_limit(own, word)
    return {modes.index(name): own for name, own in limit.items()}


def _check_limit(limit: Any, word: str) -> None:
    is_number = isinstance(limit, Real) and not isinstance(limit, bool | np.bool_)
    if not is_number:
        message = (
            f"{word}={limit!r} is a {type(limit).__name__}; give a number of samples, a share of "
            "them, or a dict of these by the name of the mode."
        )
        raise InvalidTypeError(message)
    is_whole = isinstance(limit, Integral)
    if not (limit >= 1 if is_whole else 0 < limit <= 1):
        message = (
            f"{word}={limit!r} is not accepted; give a whole number of samples from 1 up, or a "
            "share of them above 0 and up to 1.0."
        )
        raise InvalidInputError(message)


def _count(limit: int | float, n_samples: int) -> float:
    """Return a limit as a number of samples."""
    return float(limit if isinstance(limit, Integral) else limit * n_samples)


def _support(coords: Sequence[NDArray[Any]], mode: int, shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Return in how many samples each label of a mode has an entry."""
    pairs = np.unique(coords[0].astype(np.int64) * shape[mode] + coords[mode])
    found: NDArray[np.intp] = np.bincount(pairs % shape[mode], minlength=shape[mode])
    return found
