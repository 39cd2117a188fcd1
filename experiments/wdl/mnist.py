"""Figure 5: atoms of MNIST, against NMF, by the loss and the classes of held-out digits.

``POLYAD_DATA=folder python -m experiments.wdl.mnist --atoms 9 --train 300 --test 200``
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.decomposition import NMF
from sklearn.linear_model import LogisticRegression

from experiments.data import data_file
from experiments.runs import command, environment, markdown, write_section
from polyad import WassersteinDictionary
from polyad.dictionary.loss import Samples
from polyad.dictionary.newton import Effort, loss_of
from polyad.transport import grid_geometry

FOLDER = Path(__file__).parent
EPSILON = 0.005
SIDE = 28


def digits(n_train: int, n_test: int) -> tuple[np.ndarray, ...]:
    """Return the first images of both parts, of mass one, and their classes."""
    with np.load(data_file("mnist/mnist.npz"), allow_pickle=False) as file:
        parts = [file[f"{kind}_{part}"] for part in ("train", "test") for kind in "xy"]
    sizes = (n_train, n_train, n_test, n_test)
    found = [own[:size] for own, size in zip(parts, sizes, strict=True)]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--atoms", type=int, default=9)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=100.0)
    options = parser.parse_args()
    X, y, X_new, y_new = digits(options.train, options.test)
    rows, pictures = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = WassersteinDictionary(
            options.atoms, epsilon=EPSILON, random_state=0, time_budget=options.seconds
        ).fit(X)
        started = time.perf_counter()
        codes, codes_new = model.codes_, model.transform(X_new)
        took = time.perf_counter() - started
        blurred = model.inverse_transform(codes_new)
        nmf = NMF(options.atoms, init="nndsvda", max_iter=1000, random_state=0)
        features = nmf.fit_transform(X.reshape(len(X), -1))
        features_new = nmf.transform(X_new.reshape(len(X_new), -1))
        parts = nmf.inverse_transform(features_new).reshape(X_new.shape)
        found = {
            "WassersteinDictionary": (codes, codes_new, blurred),
            "NMF (squared error)": (features, features_new, parts),
        }
        for name, (old, new, models) in found.items():
            scale = old.std(axis=0) + 1e-12
            classifier = LogisticRegression(max_iter=5000).fit(old / scale, y)
            rows[name] = [
                f"{transport_loss(X_new, models):.4f}",
                f"{np.linalg.norm(models - X_new) / np.linalg.norm(X_new):.3f}",
                f"{classifier.score(new / scale, y_new):.3f}",
            ]
    pictures["WassersteinDictionary"] = model.atoms_
    pictures["NMF (squared error)"] = nmf.components_.reshape(-1, SIDE, SIDE)
    figure = Figure(figsize=(1.1 * options.atoms, 3.0), layout="constrained")
    for line, (name, atoms) in zip(
        figure.subplots(2, options.atoms), pictures.items(), strict=True
    ):
        for panel, atom in zip(line, atoms, strict=True):
            panel.imshow(atom, cmap="gray_r")
            panel.set_xticks([])
            panel.set_yticks([])
        line[0].set_ylabel(name, fontsize=7)
    picture = f"mnist_{options.atoms}.png"
    figure.savefig(FOLDER / picture, dpi=110)
    columns = ["transport loss of new digits", "relative squared error", "accuracy of classes"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    text = (
        f"`{command()}`\n\n{environment()}\n\n![atoms]({picture})\n\n"
        f"{options.train} digits to learn from, {options.test} new ones, {options.atoms} atoms, "
        f"squared distance, epsilon {EPSILON}; {model.n_iter_} sweeps, ended by "
        f"{model.status_.name.lower()}; codes of the new digits took {took:.1f} s. The classes are "
        f"told by logistic regression on codes.\n\n{markdown(table)}"
    )
    write_section(FOLDER / "RESULTS.md", f"Figure 5: MNIST, {options.atoms} atoms", text)


if __name__ == "__main__":
    main()
