"""What a person reads from components: shares, effective numbers, lifts, overlaps.

Everything follows from the factors and weights, so that a model tells the same after it was saved
and loaded, and keeps nothing of the data. Sizes are absolute values: for factors without negative
entries, shares are those of the sum of the model's entries. With ``A_n`` the factor of mode n:

* mass of component r: ``m_r = w_r prod_n sum_i |A_n[i, r]|``, and its share ``m_r / sum_s m_s``;
* share of label i of mode n in it: ``p_ir = |A_n[i, r]| / sum_j |A_n[j, r]|``;
* effective number of labels: ``1 / sum_i p_ir^2`` (the inverse of Simpson's index), which is k for
  k equal entries, and is moved little by many small ones;
* lift of label i: ``p_ir / q_i`` with its share in the whole model, ``q_i = sum_r share_r p_ir``.
  It is at most ``1 / share_r``, for a label that no other component has;
* overlap of r and s: ``prod_n |cos(A_n[:, r], A_n[:, s])|`` over the modes other than the samples,
  the cosine of the two patterns of ``components_``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from polyad.tensor.kruskal import KruskalTensor

    Table = NDArray[np.float64]

#: One sample with a larger share than this holds most of a component.
MOST = 0.5
# Entries below this part of the largest of a component cannot be seen; in words, those below the
# second are not named.
_VISIBLE, _NAMED = 1e-3, 0.1
# From this lift on a label is called distinctive. From the next on, the effective part of the
# samples, everybody has a component. From these overlaps on components are alike, and twins.
_DISTINCT, _EVERYBODY, _ALIKE, _TWIN = 1.1, 0.9, 0.1, 0.9
# Lifts are compared among the labels that hold this part of a component: beyond it, any trace of a
# rare label would come first.
_COUNTED = 0.95


def names(n_components: int) -> list[str]:
    """Return what people call the components."""
    return [f"component {r}" for r in range(n_components)]


def label_shares(factor: NDArray[np.floating]) -> Table:
    """Return the share of each label in each component; zeros for a component of nothing."""
    sizes = np.abs(factor.astype(np.float64))
    # Divided by the largest first: sums of entries near the limits would overflow.
    sizes /= np.where((largest := sizes.max(axis=0)) > 0, largest, 1.0)
    total = sizes.sum(axis=0)
    shares: Table = sizes / np.where(total > 0, total, 1.0)
    return shares


def effective_numbers(shares: Table) -> Table:
    """Return how many labels each component has, as equal ones would count."""
    squares = (shares**2).sum(axis=0)
    numbers: Table = np.where(squares > 0, 1.0 / np.where(squares > 0, squares, 1.0), 0.0)
    return numbers


def mass_shares(weights: NDArray[np.floating], factors: Sequence[NDArray[np.floating]]) -> Table:
    """Return the share of each component in the mass of all."""
    with np.errstate(divide="ignore"):
        sizes = np.log(weights.astype(np.float64))
        for factor in factors:
            entries = np.abs(factor.astype(np.float64))
            largest = entries.max(axis=0)
            safe = np.where(largest > 0, largest, 1.0)
            sizes = sizes + np.log(largest) + np.log(np.maximum((entries / safe).sum(axis=0), 1.0))
    if not np.isfinite(sizes).any():
        return np.zeros(len(sizes))
    masses = np.exp(sizes - sizes.max())
    shares: Table = masses / masses.sum()
    return shares


def lifts(shares: Table, masses: Table) -> Table:
    """Return the lift of each label in each component; zero where the model has nothing."""
    overall = shares @ masses
    safe = np.where(overall > 0, overall, 1.0)
    result: Table = np.where(overall[:, None] > 0, shares / safe[:, None], 0.0)
    return result


def by_weight(column: NDArray[np.floating]) -> NDArray[np.intp]:
    """Return the labels from the largest entry of a component on, as far as they can be seen."""
    sizes = np.abs(column)
    order = np.argsort(-sizes, kind="stable")
    visible: NDArray[np.intp] = order[sizes[order] >= _VISIBLE * sizes.max(initial=0.0)]
    return visible


def by_lift(shares: Table, lift: Table) -> NDArray[np.intp]:
    """Return the labels of one component from the largest lift on, of those that count in it.

    Lifts that agree to a tenth are ordered by weight.
    """
    order = by_weight(shares)
    before = np.cumsum(shares[order]) - shares[order]
    counted = order[before < _COUNTED]
    ordered: NDArray[np.intp] = counted[np.argsort(-np.round(lift[counted], 1), kind="stable")]
    return ordered


def pattern_overlaps(factors: Sequence[NDArray[np.floating]]) -> Table:
    """Return the cosine of each pair of patterns, given the factors without the samples."""
    n_components = factors[0].shape[1]
    product = np.ones((n_components, n_components))
    for factor in factors:
        own = factor.astype(np.float64)
        own /= np.where((largest := np.abs(own).max(axis=0)) > 0, largest, 1.0)
        lengths = np.linalg.norm(own, axis=0)
        own /= np.where(lengths > 0, lengths, 1.0)
        product *= np.minimum(np.abs(own.T @ own), 1.0)
    np.fill_diagonal(product, 0.0)
    return product


def summarize(
    tensor: KruskalTensor,
    weights: NDArray[np.floating],
    titles: Sequence[str],
    labels: Sequence[NDArray[np.generic] | None],
    k: int,
) -> pd.DataFrame:
    """Return the table of ``KruskalResult.summary``; ``titles`` are those of the modes."""
    import pandas as pd

    factors = tensor.factors
    masses = mass_shares(tensor.weights, factors)
    own_names = names(len(masses))
    shares = [label_shares(factor) for factor in factors]
    table = pd.DataFrame({"weight": weights, "share": masses}, index=own_names)
    table.index.name = "component"
    table[f"largest {titles[0]}"] = shares[0].max(axis=0)
    for title, own in zip(titles, shares, strict=True):
        table[f"effective {title}"] = effective_numbers(own)
    for mode in range(1, len(factors)):
        given = labels[mode]
        called = np.arange(len(factors[mode])) if given is None else given
        lift = lifts(shares[mode], masses)
        columns = list(zip(factors[mode].T, shares[mode].T, lift.T, strict=True))
        table[f"leading {titles[mode]}"] = [_leading(called, a, k) for a, _, _ in columns]
        table[f"distinctive {titles[mode]}"] = [
            _distinctive(called, own, own_lift, k) for _, own, own_lift in columns
        ]
    overlaps = pattern_overlaps(factors[1:])
    nearest = overlaps.argmax(axis=1)
    table["overlap"] = overlaps.max(axis=1)
    found = list(zip(nearest, table["overlap"], strict=True))
    table["overlaps with"] = [own_names[other] if size >= _ALIKE else "" for other, size in found]
    table["note"] = _notes(table, titles[0], len(factors[0]))
    table["weight"] = [float(f"{weight:.4g}") for weight in weights.tolist()]
    digits = dict.fromkeys(["share", f"largest {titles[0]}", "overlap"], 3)
    return table.round({**digits, **dict.fromkeys([f"effective {own}" for own in titles], 1)})


def _leading(called: NDArray[np.generic], column: NDArray[np.floating], k: int) -> str:
    """Name the labels of the largest entries of a component, with a sign where it is negative."""
    order = by_weight(column)[:k]
    size = np.abs(column).max(initial=0.0)
    named = [i for i in order if column[i] != 0 and abs(column[i]) >= _NAMED * size]
    return ", ".join(f"{called[i]}{' (-)' if column[i] < 0 else ''}" for i in named)


def _distinctive(called: NDArray[np.generic], shares: Table, lift: Table, k: int) -> str:
    """Name the labels of the largest lifts of a component, with these."""
    order = [i for i in by_lift(shares, lift)[:k] if lift[i] > _DISTINCT]
    return ", ".join(f"{called[i]} ({lift[i]:.1f}x)" for i in order)


def _notes(table: pd.DataFrame, samples: str, n_samples: int) -> list[str]:
    """Say what to be careful with in each component."""
    notes = []
    for _, row in table.iterrows():
        largest, effective = row[f"largest {samples}"], row[f"effective {samples}"]
        said = []
        if row["share"] == 0:
            notes.append("nothing")
            continue
        if largest > MOST:
            said.append(f"one {samples} holds {largest:.0%}")
        elif effective >= _EVERYBODY * n_samples:
            said.append(f"every {samples} has it, about equally")
        if row["overlap"] >= _TWIN:
            said.append(f"much like {row['overlaps with']}")
        notes.append("; ".join(said))
    return notes
