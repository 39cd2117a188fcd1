"""Pictures of the guide, drawn when the documentation is built.

To look at them alone: ``python docs/pictures.py FOLDER``.
"""

from __future__ import annotations

import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

from polyad import QMF, LabelledTensor, MixedMembership, NonnegativeCP
from polyad.exceptions import DataWarning
from polyad.report import plot_transforms
from polyad.soft import soft_rank, soft_sort, vjp
from polyad.transport import FibreTransport, SparseFibres


def transport_parameters(folder: Path) -> None:
    """Draw what ``epsilon`` and ``marginal_penalty`` ask of a model along one mode."""
    size = 60
    place = np.linspace(0.0, 1.0, size)
    cost = np.abs(place[:, None] - place)
    data = np.zeros((size, 1))
    data[[12, 18, 45], 0] = [4.0, 3.0, 5.0]
    model = np.full((1, size), 0.1)
    model[0] += np.exp(-(((place - 0.45) / 0.12) ** 2))
    model *= data.sum() / model.sum()
    fibres = SparseFibres.from_matrix(data)
    panels = [
        *((epsilon, 0.3) for epsilon in (0.003, 0.03, 0.3)),
        *((0.01, penalty) for penalty in (0.03, 0.3, 3.0)),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True, layout="tight")
    for axis, (epsilon, penalty) in zip(axes.flat, panels, strict=True):
        transport = FibreTransport(cost, epsilon=epsilon, marginal_penalty=penalty)
        wanted = transport.solve(fibres, model).marginals[0]
        axis.bar(place, data[:, 0], width=0.012, color="0.75", label="data")
        axis.plot(place, model[0], color="tab:blue", label="model")
        axis.plot(place, wanted, color="tab:orange", label="what arrives")
        axis.set_title(f"epsilon={epsilon}, marginal_penalty={penalty}", fontsize=9)
        axis.set_ylim(0.0, 1.3)
    axes[0, 0].legend(fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("place along the mode")
    figure.savefig(folder / "transport_parameters.svg")
    plt.close(figure)


def soft_epsilon(folder: Path) -> None:
    """Draw what ``epsilon`` does to a rank, a sorted row and a derivative, as one value moves."""
    others = np.array([0.25, 0.5, 0.75])
    moving = np.linspace(0.0, 1.0, 201)
    rows = np.column_stack([moving, np.tile(others, (moving.size, 1))])
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="tight")
    colours = ("tab:blue", "tab:orange", "tab:green")
    for epsilon, colour in zip((1e-3, 1e-2, 1e-1), colours, strict=True):
        same = {"epsilon": epsilon, "squash": False}
        ranks, pullback = vjp(soft_rank, rows, **same)
        gradient = np.zeros_like(ranks)
        gradient[:, 0] = 1.0
        axes[0].plot(moving, ranks[:, 0], color=colour, label=f"epsilon={epsilon}")
        axes[1].plot(moving, soft_sort(rows, **same), color=colour)
        axes[2].plot(moving, pullback(gradient).x[:, 0], color=colour)
    axes[0].legend(fontsize=8)
    titles = ("its rank", "the sorted row", "derivative of its rank")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("the moving value")
    figure.savefig(folder / "soft_epsilon.svg")
    plt.close(figure)


def quantile_transforms(folder: Path) -> None:
    """Draw transforms that were learned on the wines of the guide."""
    wines = load_wine(as_frame=True).data
    model = QMF(3, random_state=0).fit((wines / wines.mean())[::2])
    chosen = ["color_intensity", "hue", "flavanoids", "magnesium"]
    plot_transforms(model, features=chosen).savefig(folder / "quantile_transforms.svg")


def membership_bars(folder: Path) -> None:
    """Draw memberships of people as stacked bars, as those of the guide's survey."""
    generator = np.random.default_rng(0)
    true = generator.dirichlet([0.2, 0.2, 0.2], size=1500)
    odds = generator.dirichlet([0.5, 0.5, 0.5], size=(9, 3))
    chances = np.einsum("nh,jhc->njc", true, odds).cumsum(axis=2)
    answers = (generator.random((1500, 9, 1)) > chances[:, :, :2]).sum(axis=2)
    memberships = MixedMembership(3, alpha0=0.6, random_state=0).fit_transform(answers)
    order = np.lexsort((-memberships.max(axis=1), memberships.argmax(axis=1)))
    figure, axis = plt.subplots(figsize=(9, 2), layout="tight")
    axis.imshow(_stacked(memberships[order]), aspect="auto", extent=(0, len(order), 0, 1))
    axis.set(xlabel="people", ylabel="membership")
    figure.savefig(folder / "membership_bars.svg")
    plt.close(figure)


def event_preparation(folder: Path) -> None:
    """Draw how many patients each component of the guide's hospital has, by what an entry is."""
    stays = hospital_stays()
    panels: list[tuple[str, dict[str, Any]]] = [
        ("counts", {}),
        ("entries='log'", {"entries": "log"}),
        ("entries='presence'", {"entries": "presence"}),
        ("sample_total=1", {"sample_total": 1}),
    ]
    figure, axes = plt.subplots(1, 4, figsize=(9, 2), sharex=True, sharey=True, layout="tight")
    for axis, (title, options) in zip(axes, panels, strict=True):
        tensor = LabelledTensor.from_frame(stays, modes=list(stays.columns), **options)
        model = NonnegativeCP(3, n_init=3, random_state=0).fit(tensor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # that one patient holds most
            table = model.summary()
        alone = table["largest patient"] > 0.4
        axis.barh(table.index, table["effective patient"], color=np.where(alone, "C3", "C0"))
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("effective patients", fontsize=8)
    axes[0].invert_yaxis()
    figure.savefig(folder / "event_preparation.svg")
    plt.close(figure)


def hospital_stays() -> pd.DataFrame:
    """Return the events of the guide: three kinds of patients, one of whom stayed for long."""
    rng = np.random.default_rng(0)
    rows = [
        (k, f"{'abc'[k % 3]}{rng.integers(4)}", f"{'ABC'[k % 3]}{rng.integers(4)}")
        for k in range(90)
        for _ in range(rng.integers(3, 9))
    ]
    rows += [
        (0, f"{a}{i}", f"{b}{j}") for a, b, i, j in product("abc", "ABC", range(4), range(4))
    ] * 4
    return pd.DataFrame(rows, columns=["patient", "diagnosis", "drug"])


def _stacked(memberships: np.ndarray, height: int = 100) -> np.ndarray:
    """Return stacked bars as an image, which stays small where a drawing of them would not."""
    heights = (np.arange(height)[::-1] + 0.5) / height
    component = (heights[:, None, None] > memberships.cumsum(axis=1)).sum(axis=2)
    colours = np.array([mpl.colors.to_rgb(f"C{h}") for h in range(memberships.shape[1])])
    return colours[np.minimum(component, len(colours) - 1)]


def main(folder: Path) -> None:
    """Draw all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    transport_parameters(folder)
    soft_epsilon(folder)
    quantile_transforms(folder)
    membership_bars(folder)
    event_preparation(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
