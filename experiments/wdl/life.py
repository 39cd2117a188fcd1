"""Figures 3 and 4: a Game of Life, on a plane and on a torus; atoms, and whether they are moved.

``python -m experiments.wdl.life --side 20 --frames 100 --seconds 60``
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.runs import command, environment, markdown, write_section
from polyad import WassersteinDictionary

FOLDER = Path(__file__).parent
N_ATOMS = 4


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=20)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--epsilon", type=float, default=0.02)
    options = parser.parse_args()
    X = game(options.side, options.frames)
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(2, N_ATOMS + 1)
    rows = {}
    for line, periodic in zip(panels, (False, True), strict=True):
        model = WassersteinDictionary(
            N_ATOMS,
            metric="euclidean",
            periodic=periodic,
            epsilon=options.epsilon,
            time_budget=options.seconds,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X)
        name = "torus" if periodic else "plane"
        line[0].imshow(X[0], cmap="gray_r")
        line[0].set_title(f"{name}: first frame")
        for panel, atom in zip(line[1:], model.atoms_, strict=True):
            panel.imshow(atom, cmap="gray_r")
        for panel in line:
            panel.set_xticks([])
            panel.set_yticks([])
        rows[name] = [
            f"{apart_on_the_torus(model.atoms_):.3f}",
            f"{model.objective_ / len(X):.4f}",
            model.n_iter_,
            model.status_.name.lower(),
        ]
    figure.savefig(FOLDER / "life.png", dpi=110)
    columns = ["atoms apart, best translation", "loss per frame", "sweeps", "ended by"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    text = (
        f"`{command()}`\n\n{environment()}\n\n![atoms](life.png)\n\n"
        f"A glider on a board of {options.side} x {options.side}, {options.frames} frames, "
        f"{N_ATOMS} atoms, distance as cost, epsilon {options.epsilon}. Zero apart: the atoms are "
        f"translates of each other; one: they have nothing in common.\n\n{markdown(table)}"
    )
    write_section(FOLDER / "RESULTS.md", "Figures 3 and 4: a Game of Life", text)


if __name__ == "__main__":
    main()
