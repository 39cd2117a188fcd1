"""Timetables of routes from a few flights: joint distributions over days of the week and hours.

A route is a carrier, an airport of New York and a destination. Of each, some flights of 2013 are
seen, and the weekly timetable is to be told, 7 days x 24 hours on a torus. Dictionaries are learned
from the seen flights of some routes; those of new routes are coded, and the mixture of atoms is
compared with the flights of the route that were not seen.

``POLYAD_DATA=folder python -m experiments.wdl.flights``
"""

from __future__ import annotations

import argparse
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.decomposition import NMF

from experiments.data import data_file
from experiments.runs import (
    Store,
    command,
    environment,
    interval,
    markdown,
    numbers,
    run_units,
    write_section,
)
from polyad import WassersteinCPDictionary, WassersteinDictionary
from polyad.transport import grid_geometry

FOLDER = Path(__file__).parent
N_ATOMS, N_DAYS, N_HOURS = 8, 7, 24
# The cost of a move of an hour and a half: (1.5 / 24) ** 2, seen by the blur and the dictionaries.
EPSILON = 0.004
# Another day at the same hour is as far as the next hour of the same day.
AXES = (N_DAYS / N_HOURS, 1.0)
# Routes with fewer flights in the year are left out.
FEWEST = 150
# The part of a uniform timetable in every model: nothing is impossible.
UNIFORM = 0.01
METHODS = (
    "WassersteinDictionary",
    "WassersteinCPDictionary",
    "NMF (Kullback-Leibler)",
    "NMF (squared error)",
    "flights as seen",
    "flights as seen, blurred",
    "mean of all routes",
)


@cache
def timetables() -> np.ndarray:
    """Return the flights of each route: routes x days of the week x hours."""
    with np.load(data_file("sparse/nycflights13.npz"), allow_pickle=False) as file:
        coords, counts = file["coords"].astype(int), file["values"]
    _, route = np.unique(coords[:, 2:], axis=0, return_inverse=True)
    # The first of January 2013 was a Tuesday.
    day, hour = (coords[:, 0] + 1) % N_DAYS, coords[:, 1]
    table = np.zeros((route.max() + 1, N_DAYS, N_HOURS))
    np.add.at(table, (route.ravel(), day, hour), counts)
    return table[table.sum(axis=(1, 2)) >= FEWEST]


def seen_part(table: np.ndarray, n_seen: int, rng: np.random.Generator) -> np.ndarray:
    """Return so many flights of each route, drawn without replacement."""
    flat = table.reshape(len(table), -1).astype(int)
    drawn = [rng.multivariate_hypergeometric(own, n_seen) for own in flat]
    return np.stack(drawn).reshape(table.shape).astype(float)


def split(sample: int, n_seen: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seen flights of old routes, those of new routes, and the others of new ones."""
    rng = np.random.default_rng(sample)
    table = timetables()
    seen = seen_part(table, n_seen, rng)
    order = rng.permutation(len(table))
    old, new = order[: 2 * len(table) // 3], order[2 * len(table) // 3 :]
    return seen[old], seen[new], table[new] - seen[new]


def dictionary(kind: Any, sample: int) -> Any:
    return kind(
        N_ATOMS, epsilon=EPSILON, periodic=True, axis_weights=AXES, random_state=sample, n_jobs=1
    )


def told(method: str, old: np.ndarray, new: np.ndarray, sample: int) -> np.ndarray:
    """Return the timetables of new routes that a method tells, of mass one."""
    shares = new / new.sum(axis=(1, 2), keepdims=True)
    if method == "flights as seen":
        return shares
    if method == "flights as seen, blurred":
        geometry = grid_geometry(
            shares.shape[1:], epsilon=EPSILON, periodic=True, axis_weights=AXES
        )
        blur = geometry.apply(shares)
        return blur / blur.sum(axis=(1, 2), keepdims=True)
    if method == "mean of all routes":
        return np.broadcast_to(old.sum(axis=0) / old.sum(), new.shape)
    if method.startswith("NMF"):
        is_counts = "Leibler" in method
        nmf = NMF(
            N_ATOMS,
            beta_loss="kullback-leibler" if is_counts else "frobenius",
            solver="mu" if is_counts else "cd",
            init="nndsvda",
            max_iter=2000,
            random_state=sample,
        ).fit(old.reshape(len(old), -1))
        found = nmf.inverse_transform(nmf.transform(new.reshape(len(new), -1)))
        total = found.sum(axis=1, keepdims=True)
        found = np.where(total > 0, found, 1.0)
        return (found / found.sum(axis=1, keepdims=True)).reshape(new.shape)
    kind = WassersteinDictionary if method == "WassersteinDictionary" else WassersteinCPDictionary
    model = dictionary(kind, sample).fit(old)
    return model.inverse_transform(model.transform(new))


def work(unit: dict[str, Any]) -> dict[str, Any]:
    """Measure the timetables of a method on the flights that it has not seen."""
    old, new, hidden = split(unit["sample"], unit["flights"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = told(unit["method"], old, new, unit["sample"])
    mixed = (1 - UNIFORM) * models + UNIFORM / (N_DAYS * N_HOURS)
    truth = hidden / hidden.sum(axis=(1, 2), keepdims=True)
    bits = -(truth * np.log2(mixed)).sum(axis=(1, 2))
    # The distance of two profiles of hours is the area between their cumulative sums.
    apart = np.cumsum(models.sum(axis=1) - truth.sum(axis=1), axis=1)
    return {
        "bits": float(bits.mean()),
        "hours": float(np.abs(apart).sum(axis=1).mean()),
        "squared": float(((models - truth) ** 2).sum(axis=(1, 2)).mean()),
    }


def picture(n_seen: int) -> None:
    """Draw atoms, and two new routes: what was seen, what is told, and the rest."""
    old, new, hidden = split(0, n_seen)
    model = dictionary(WassersteinDictionary, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(old)
    first = np.argsort(-hidden.sum(axis=(1, 2)))[:2]
    rows = [("atom", model.atoms_)]
    models = model.inverse_transform(model.transform(new[first]))
    for number, route in enumerate(first):
        rows.append((f"route {number + 1}", [new[route], models[number], hidden[route]]))
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(3, N_ATOMS)
    titles = ("seen", "told", "not seen")
    for line, (name, images) in zip(panels, rows, strict=True):
        for panel in line:
            panel.axis("off")
        for number, (panel, image) in enumerate(zip(line, images, strict=False)):
            panel.imshow(image, cmap="gray_r", aspect="auto")
            panel.axis("on")
            panel.set(xticks=(0, 6, 12, 18), yticks=range(N_DAYS), yticklabels="MTWTFSS")
            which = number + 1 if name == "atom" else titles[number]
            panel.set_title(f"{name} {which}" if name == "atom" else f"{name}: {which}", fontsize=8)
    figure.savefig(FOLDER / "flights.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--flights", type=numbers, default=(5, 20))
    parser.add_argument("--max-minutes", type=float, default=60.0)
    options = parser.parse_args()
    units = [
        {"method": method, "flights": flights, "sample": sample}
        for flights in options.flights
        for method in METHODS
        for sample in range(options.samples)
    ]
    store = Store(FOLDER / "flights.csv")
    run_units(units, work, store, max_minutes=options.max_minutes)
    picture(max(options.flights))
    table = store.table(units)
    parts = []
    for flights in options.flights:
        own = table[table["flights"] == flights]
        rows = {}
        for method in METHODS:
            mine = own[own["method"] == method].sort_values("sample")
            base = own[own["method"] == METHODS[0]].sort_values("sample")
            cells = [f"{mine['hours'].mean():.2f}", f"{mine['bits'].mean():.2f}"]
            for measure in ("hours", "bits"):
                less = interval(mine[measure].to_numpy() - base[measure].to_numpy())
                cells.append(
                    "" if method == METHODS[0] else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*less)
                )
            rows[method] = [*cells, f"{mine['seconds'].mean():.1f}"]
        columns = [
            "hours apart",
            "bits per flight",
            f"hours less {METHODS[0]}'s",
            "bits less its",
            "seconds",
        ]
        shown = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        parts.append(f"{flights} flights of each route are seen:\n\n{markdown(shown)}")
    n_routes = len(timetables())
    text = (
        f"`{command()}`\n\n{environment()}\n\n![atoms and timetables](flights.png)\n\n"
        f"{n_routes} routes with {FEWEST} flights or more, two thirds to learn from, "
        f"{options.samples} random splits, {N_ATOMS} atoms or parts, epsilon {EPSILON}, nothing "
        "tuned. Hours apart: the mean distance, in transport, of the told profile of hours to that "
        "of the flights that were not seen. Bits: the mean of minus the logarithm of the share "
        f"that the model, with {UNIFORM:.0%} of a uniform one, gives to such a flight. Intervals "
        "are 95 % over splits, paired; of overlapping routes, so they are somewhat too narrow.\n\n"
        + "\n".join(parts)
    )
    write_section(FOLDER / "RESULTS.md", "An application: timetables of routes", text)


if __name__ == "__main__":
    main()
