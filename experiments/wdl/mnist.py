"""Figure 5: atoms of MNIST, against NMF, by the loss and the classes of held-out digits.

``POLYAD_DATA=folder python -m experiments.wdl.mnist --atoms 9,16 --train 300 --test 200``
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.decomposition import NMF
from sklearn.linear_model import LogisticRegression

from experiments.data import data_file
from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    numbers,
    run_units,
    write_section,
)
from polyad import WassersteinDictionary
from polyad.dictionary.loss import Samples
from polyad.dictionary.newton import Effort, loss_of
from polyad.transport import grid_geometry

FOLDER = Path(__file__).parent
EPSILON = 0.005
SIDE = 28
METHODS = ("WassersteinDictionary", "NMF (squared error)")


def digits(n_train: int, n_test: int, start: int) -> tuple[np.ndarray, ...]:
    """Return images of both parts, of mass one, and their classes: others for each start."""
    with np.load(data_file("mnist/mnist.npz"), allow_pickle=False) as file:
        parts = [file[f"{kind}_{part}"] for part in ("train", "test") for kind in "xy"]
    sizes = (n_train, n_train, n_test, n_test)
    found = [own[start * size : (start + 1) * size] for own, size in zip(parts, sizes, strict=True)]
    for k in (0, 2):
        found[k] = found[k] / found[k].sum(axis=(1, 2), keepdims=True)
    return tuple(found)


def transport_loss(X: np.ndarray, models: np.ndarray) -> float:
    """Return the mean entropic loss of models, above the lowest."""
    samples = Samples.of(X, grid_geometry((SIDE, SIDE), epsilon=EPSILON))
    shares = np.maximum(models, 0.0) + 1e-9
    shares /= shares.sum(axis=(1, 2), keepdims=True)
    losses, _ = loss_of(samples, shares, np.zeros_like(X), Effort(1e-7))
    return float(np.mean(losses - samples.least))


def learned(method: str, unit: dict[str, Any], X: np.ndarray, X_new: np.ndarray) -> tuple[Any, ...]:
    """Return codes, those of new digits, the models of the latter, and the atoms."""
    if method == "NMF (squared error)":
        nmf = NMF(unit["atoms"], init="nndsvda", max_iter=1000, random_state=0)
        features = nmf.fit_transform(X.reshape(len(X), -1))
        new = nmf.transform(X_new.reshape(len(X_new), -1))
        parts = nmf.components_.reshape(-1, SIDE, SIDE)
        return features, new, nmf.inverse_transform(new).reshape(X_new.shape), parts
    model = WassersteinDictionary(
        unit["atoms"],
        epsilon=EPSILON,
        max_iter=unit["sweeps"],
        random_state=unit["start"],
        n_jobs=1,
    ).fit(X)
    codes = model.transform(X_new)
    return model.codes_, codes, model.inverse_transform(codes), model.atoms_


def work(unit: dict[str, Any]) -> dict[str, Any]:
    """Fit a method; measure models and classes of new digits; keep the atoms as a picture."""
    X, y, X_new, y_new = digits(unit["train"], unit["test"], unit["start"])
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old, new, models, atoms = learned(unit["method"], unit, X, X_new)
        cpu = time.process_time() - started
        scale = old.std(axis=0) + 1e-12
        classifier = LogisticRegression(max_iter=5000).fit(old / scale, y)
    if unit["start"] == 0:
        draw(unit, atoms)
    return {
        "loss": transport_loss(X_new, models),
        "error": float(np.linalg.norm(models - X_new) / np.linalg.norm(X_new)),
        "accuracy": classifier.score(new / scale, y_new),
        "cpu": cpu,
    }


def draw(unit: dict[str, Any], atoms: np.ndarray) -> None:
    """Write the picture of a unit's atoms."""
    figure = Figure(figsize=(1.1 * unit["atoms"], 1.3), layout="constrained")
    for panel, atom in zip(figure.subplots(1, unit["atoms"]), atoms, strict=True):
        panel.imshow(atom, cmap="gray_r")
        panel.axis("off")
    figure.savefig(FOLDER / picture(unit), dpi=90)


def picture(unit: dict[str, Any]) -> str:
    """Return the name of the picture of a unit's atoms."""
    return f"mnist_{unit['atoms']}_{'nmf' if unit['method'].startswith('NMF') else 'wdl'}.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--atoms", type=numbers, default=(9, 16))
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--sweeps", type=int, default=30)
    parser.add_argument("--starts", type=int, default=1, help="each with digits of its own")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("train", "test", "sweeps")}
    units = [
        {"method": method, "atoms": atoms, "start": start, **sizes}
        for atoms in options.atoms
        for method in METHODS
        for start in range(options.starts)
    ]
    store = Store(FOLDER / "mnist.csv")
    run_units(units, work, store)
    table = store.table(units)
    measured = {
        "transport loss of new digits": ("loss", "{:.5f}"),
        "relative squared error": ("error", "{:.3f}"),
        "accuracy of classes": ("accuracy", "{:.3f}"),
        "CPU-seconds": ("cpu", "{:.0f}"),
    }
    cells = table.groupby(["method", "atoms"], sort=False)
    shown = pd.DataFrame(
        {
            name: cells[column].agg(
                lambda own, form=form: " ".join(
                    [form.format(own.mean()), f"({form} to {form})".format(own.min(), own.max())]
                )
            )
            for name, (column, form) in measured.items()
        }
    ).reset_index("atoms")
    first = [unit for unit in units if unit["start"] == 0]
    pictures = "\n".join(
        f"{own['method']}, {own['atoms']} atoms: ![atoms]({picture(own)})\n" for own in first
    )
    text = (
        f"`{command()}`\n\n{environment()}\n\n{pictures}\n"
        f"{options.train} digits to learn from, {options.test} new ones, squared distance, epsilon "
        f"{EPSILON}, {options.sweeps} sweeps at most; means and ranges over {options.starts} "
        "starts, each with digits of its own. The classes are told by logistic regression on "
        f"codes.\n\n{markdown(shown)}"
    )
    write_section(FOLDER / "RESULTS.md", "Figure 5: MNIST", text)


if __name__ == "__main__":
    main()
