"""Figures 1 and 2: barycenters of Gaussians, and of two U-shaped densities for several epsilon.

``python -m experiments.wdl.barycenters``
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.runs import command, environment, markdown, write_section
from polyad.dictionary import wasserstein_barycenter
from polyad.transport import grid_geometry

FOLDER = Path(__file__).parent
EPSILONS = (0.002, 0.005, 0.02, 0.1, 0.3, 1.0, 3.0, 10.0)
METRICS = {"euclidean": "distance", "sqeuclidean": "squared distance"}
N_CELLS = 101


def gaussians() -> np.ndarray:
    """Return three Gaussians, on [0, 1]."""
    t = np.linspace(0, 1, N_CELLS)
    X = np.exp(-0.5 * ((t - np.array([[0.2], [0.5], [0.8]])) / 0.05) ** 2)
    return X / X.sum(axis=1, keepdims=True)


def u_shapes() -> np.ndarray:
    """Return two densities with most of their mass at both ends."""
    t = np.linspace(0, 1, N_CELLS)
    X = np.stack([(2 * t - 1) ** 4 + 0.02, np.abs(2 * t - 1) ** 2.5 * (1.3 - 0.6 * t) + 0.02])
    return X / X.sum(axis=1, keepdims=True)


def n_peaks(y: np.ndarray) -> int:
    """Return how many cells are higher than both neighbours, the ends included."""
    padded = np.concatenate([[0.0], y, [0.0]])
    return int(np.sum((padded[1:-1] > padded[:-2] * (1 + 1e-9)) & (padded[1:-1] > padded[2:])))


def main() -> None:
    t = np.linspace(0, 1, N_CELLS)
    X, U = gaussians(), u_shapes()
    figure = Figure(figsize=(15, 3.8), layout="constrained")
    left, *others = figure.subplots(1, 3)
    for row in X:
        left.plot(t, row, color="0.7")
    middle = wasserstein_barycenter(X, epsilon=EPSILONS[0])
    left.plot(t, middle, label="Wasserstein barycenter")
    left.plot(t, X.mean(axis=0), "--", label="mean (squared error)")
    left.legend()
    left.set_title("Figure 1: three Gaussians")
    columns = {}
    for panel, (metric, name) in zip(others, METRICS.items(), strict=True):
        for row in U:
            panel.plot(t, row, color="0.7")
        for epsilon in EPSILONS:
            geometry = grid_geometry((N_CELLS,), epsilon=epsilon, metric=metric)
            found = wasserstein_barycenter(U, geometry=geometry, max_iter=100_000)
            panel.plot(t, found, label=f"epsilon = {epsilon}")
            columns.setdefault(f"{name}: peaks", []).append(n_peaks(found))
            columns.setdefault(f"{name}: highest at", []).append(f"{t[found.argmax()]:.2f}")
            share = f"{found[N_CELLS // 2] / found.max():.3f}"
            columns.setdefault(f"{name}: middle, of the highest", []).append(share)
        panel.legend(fontsize=8)
        panel.set_title(f"Figure 2: two U shapes, {name} as cost")
    figure.savefig(FOLDER / "barycenters.png", dpi=110)
    table = pd.DataFrame(columns, index=[f"epsilon = {epsilon}" for epsilon in EPSILONS])
    mean, spread = float(t @ middle), float(np.sqrt((t - t @ middle) ** 2 @ middle))
    text = (
        f"`{command()}`\n\n{environment()}\n\n![barycenters](barycenters.png)\n\n"
        f"Figure 1: the barycenter of Gaussians at 0.2, 0.5 and 0.8 (sd 0.05, squared cost, "
        f"epsilon {EPSILONS[0]}) has mean {mean:.4f} and sd {spread:.5f}; "
        f"the closed form is 0.5 and {np.sqrt(0.05**2 + EPSILONS[0] / 2):.5f}. The mean of the "
        f"densities has three bumps.\n\n"
        f"Figure 2:\n\n{markdown(table)}"
    )
    write_section(FOLDER / "RESULTS.md", "Figures 1 and 2: barycenters", text)


if __name__ == "__main__":
    main()
