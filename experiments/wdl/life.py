"""Figures 3 and 4: a Game of Life, on a plane and on a torus; atoms, and whether they are moved.

``python -m experiments.wdl.life --side 20 --frames 100 --starts 3``
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.runs import Store, command, environment, markdown, run_units, write_section
from polyad import WassersteinDictionary

FOLDER = Path(__file__).parent
N_ATOMS = 4
GRIDS = ("plane", "torus")


def game(side: int, n_frames: int) -> np.ndarray:
    """Return frames of a glider that goes round a torus."""
    board = np.zeros((side, side))
    board[[1, 2, 3, 3, 3], [2, 3, 1, 2, 3]] = 1
    frames = []
    for _ in range(n_frames):
        frames.append(board)
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        around = sum(np.roll(board, shift, axis=(0, 1)) for shift in shifts)
        board = ((around == 3) | ((board == 1) & (around == 2))).astype(float)
    return np.stack(frames)


def apart_on_the_torus(atoms: np.ndarray) -> float:
    """Return how much two atoms differ in the best translation, the mean over pairs, from 0 to 1.

    Half the sum of absolute differences.
    """
    side, found = atoms.shape[1], []
    for first in range(len(atoms)):
        for second in range(first):
            moves = (
                np.roll(atoms[second], (i, j), axis=(0, 1))
                for i in range(side)
                for j in range(side)
            )
            found.append(min(0.5 * np.abs(atoms[first] - own).sum() for own in moves))
    return float(np.mean(found))


def fitted(unit: dict[str, Any]) -> WassersteinDictionary:
    model = WassersteinDictionary(
        N_ATOMS,
        metric="euclidean",
        periodic=unit["grid"] == "torus",
        epsilon=unit["epsilon"],
        max_iter=unit["sweeps"],
        random_state=unit["start"],
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(game(unit["side"], unit["frames"]))


def work(unit: dict[str, Any]) -> dict[str, Any]:
    """Measure the atoms of one start, and draw those of the first."""
    model = fitted(unit)
    if unit["start"] == 0:
        draw(unit, model.atoms_)
    return {
        "apart": apart_on_the_torus(model.atoms_),
        "loss": model.objective_ / unit["frames"],
        "n_iter": model.n_iter_,
        "ended": model.status_.name.lower(),
    }


def draw(unit: dict[str, Any], atoms: np.ndarray) -> None:
    """Draw the first frame and the atoms."""
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    first, *others = figure.subplots(1, N_ATOMS + 1)
    first.imshow(game(unit["side"], 1)[0], cmap="gray_r")
    first.set_title(f"{unit['grid']}: first frame")
    for panel, atom in zip(others, atoms, strict=True):
        panel.imshow(atom, cmap="gray_r")
    for panel in (first, *others):
        panel.set_xticks([])
        panel.set_yticks([])
    figure.savefig(FOLDER / f"life_{unit['grid']}_{unit['frames']}.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=20)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--sweeps", type=int, default=30)
    parser.add_argument("--epsilon", type=float, default=0.02)
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("side", "frames", "sweeps", "epsilon")}
    units = [
        {"grid": grid, **sizes, "start": start} for start in range(options.starts) for grid in GRIDS
    ]
    store = Store(FOLDER / "life.csv")
    run_units(units, work, store)
    table = store.table(units)
    rows = {}
    for grid in GRIDS:
        own = table[table["grid"] == grid]
        rows[grid] = [
            f"{own['apart'].mean():.3f} ({own['apart'].min():.3f} to {own['apart'].max():.3f})",
            f"{own['loss'].mean():.4f} ({own['loss'].min():.4f} to {own['loss'].max():.4f})",
            f"{own['n_iter'].mean():.0f}",
            ", ".join(sorted(set(own["ended"]))),
        ]
    columns = ["atoms apart, best translation", "loss per frame", "sweeps", "ended by"]
    shown = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    text = (
        f"`{command()}`\n\n{environment()}\n\n"
        f"![plane](life_plane_{options.frames}.png)\n\n![torus](life_torus_{options.frames}.png)\n\n"
        f"A glider on a board of {options.side} x {options.side}, {options.frames} frames, "
        f"{N_ATOMS} atoms, distance as cost, epsilon {options.epsilon}, {options.starts} starts. "
        "Zero apart: the atoms are translates of each other on the torus; one: they have nothing "
        f"in common.\n\n{markdown(shown)}"
    )
    title = f"Figures 3 and 4: a Game of Life, {options.frames} frames"
    write_section(FOLDER / "RESULTS.md", title, text)


if __name__ == "__main__":
    main()
