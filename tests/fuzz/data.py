"""Random tensors: every kind of content, size, scale and container that ``fit`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from scipy import sparse

from polyad import LabelledTensor
from polyad.tensor import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Rng = np.random.Generator
Shape = tuple[int, ...]
LARGEST_SIZE = 400


def chance(rng: Rng, p: float) -> bool:
    return bool(rng.random() < p)


def pick(rng: Rng, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def random_shape(rng: Rng, n_modes: int | None = None) -> Shape:
    """Return mostly small shapes, at times with modes of a single entry."""
    n_modes = n_modes or pick(rng, (2, 2, 3, 3, 3, 4))
    sizes = (1, 2, 3, 4, 5, 7, 10) if chance(rng, 0.7) else (1, 1, 1, 2)
    while np.prod(shape := tuple(pick(rng, sizes) for _ in range(n_modes))) > LARGEST_SIZE:
        pass
    return shape


def _low_rank(rng: Rng, shape: Shape) -> np.ndarray:
    return np.asarray(kruskal_to_dense(np.ones(2), [rng.random((n, 2)) for n in shape]))


def _single(rng: Rng, shape: Shape) -> np.ndarray:
    return (np.arange(np.prod(shape)) == rng.integers(np.prod(shape))).astype(float).reshape(shape)


def _duplicated(rng: Rng, shape: Shape) -> np.ndarray:
    mode = int(rng.integers(len(shape)))
    return np.repeat(rng.random(shape).take([0], axis=mode), shape[mode], axis=mode)


def _mixed(rng: Rng, shape: Shape) -> np.ndarray:
    """Slices of one mode on scales that have nothing to do with each other."""
    mode = int(rng.integers(len(shape)))
    scales = 10.0 ** rng.uniform(-1, 1, shape[mode]) ** pick(rng, (1, 5, 21))
    return np.moveaxis(np.moveaxis(rng.random(shape), mode, -1) * scales, -1, mode)


#: Contents, none of them negative, with their shares.
CONTENT: dict[str, tuple[float, Callable[[Rng, Shape], np.ndarray]]] = {
    "uniform": (5, lambda rng, shape: rng.random(shape)),
    "low rank": (4, _low_rank),
    "counts": (5, lambda rng, shape: rng.poisson(pick(rng, (0.2, 2.0, 50.0)), shape).astype(float)),
    "binary": (4, lambda rng, shape: (rng.random(shape) < 0.4).astype(float)),
    "heavy tails": (3, lambda rng, shape: np.exp(5 * rng.standard_t(2, shape).clip(-20, 20))),
    "mostly zero": (3, lambda rng, shape: rng.random(shape) * (rng.random(shape) < 0.1)),
    "constant": (1, lambda rng, shape: np.full(shape, pick(rng, (1.0, 3.0, 0.1)))),
    "zeros": (0.5, lambda rng, shape: np.zeros(shape)),
    "single entry": (1, _single),
    "duplicates": (1, _duplicated),
    "mixed scales": (2, _mixed),
}
CONTAINERS = (
    "dense",
    "dense",
    "fortran",
    "strided",
    "list",
    "frame",
    "coo",
    "coo",
    "summed",
    "csr",
)
_ORDERS: dict[str, Literal["F"]] = {"fortran": "F"}


@dataclass
class Data:
    """A random tensor, dense as ``values`` (NaN where unobserved), and as a fit is given it.

    ``words`` tell a reader what it is.
    """

    values: np.ndarray
    X: Any
    arguments: dict[str, Any]
    words: str
    classes: np.ndarray

    @property
    def is_sparse(self) -> bool:
        return sparse.issparse(getattr(self.X, "data", None)) or sparse.issparse(self.X)


@dataclass(frozen=True)
class Wish:
    """What an estimator is for, which most of its cases should respect."""

    sign: str = "any"  # or "nonnegative", "positive", "binary"
    n_modes: int | None = None
    missing: bool = True


def random_data(rng: Rng, wish: Wish) -> Data:
    """Return a random tensor, mostly of the kind that is wished for."""
    if chance(rng, 0.03):
        wish = Wish()
    shape = random_shape(rng, wish.n_modes)
    shares = np.array([share for share, _ in CONTENT.values()])
    content = str(rng.choice(list(CONTENT), p=shares / shares.sum()))
    content = "binary" if wish.sign == "binary" else content
    X = CONTENT[content][1](rng, shape)
    words = [content, "x".join(map(str, shape))]
    if wish.sign == "any" and chance(rng, 0.5):
        X, words = X * rng.choice([-1.0, 1.0], shape), ["signed", *words]
    if wish.sign == "positive":
        X = X + 0.1 * max(float(X.max()), 1.0)
    if wish.sign != "binary" and chance(rng, 0.25):
        reach = pick(rng, (3, 12, 30, 120, 307))
        scale = 10.0 ** rng.uniform(-reach, reach)
        with np.errstate(over="ignore", under="ignore"):
            X = X * scale
        words.append(f"times {scale:.1e}")
    X = _typed(rng, X)
    values, arguments, container = X, {}, pick(rng, CONTAINERS)
    container = "coo" if container == "summed" and X.dtype.kind != "f" else container
    if container == "list" and X.dtype.kind == "f":  # of Python's numbers
        values = X = X.astype(float)
    words += [str(X.dtype), container]
    if wish.missing and container not in ("coo", "summed", "csr") and chance(rng, 0.35):
        observed = _observed(rng, shape)
        kind = X.dtype if X.dtype.kind == "f" else float
        values = np.where(observed, X, np.nan).astype(kind)
        words.append(f"{int((~observed).sum())} missing")
        if chance(rng, 0.4):
            arguments["mask"] = observed
            words.append("as mask")
    found = _as_container(rng, X if arguments else values, container)
    if container in ("dense", "coo") and chance(rng, 0.3):
        labels = [[f"{mode}-{i}" for i in range(n)] for mode, n in enumerate(shape)]
        found = LabelledTensor(found, modes=list("abcd"[: len(shape)]), labels=labels)
        words.append("labelled")
    classes = rng.integers(0, pick(rng, (2, 2, 3)), shape[0])
    return Data(values, found, arguments, " ".join(words), classes)


def _typed(rng: Rng, X: np.ndarray) -> np.ndarray:
    dtype = pick(rng, ("float64", "float64", "float32", "int64", "bool"))
    is_whole = bool((np.abs(X) < 2**40).all() and (X.round() == X).all())
    if dtype in ("int64", "bool") and (not is_whole or (dtype == "bool" and X.max() > 1)):
        dtype = "float64"
    with np.errstate(over="ignore", under="ignore"):
        return X.astype(dtype)


def _observed(rng: Rng, shape: Shape) -> np.ndarray:
    """Return where entries are observed: at random, and nowhere in a slice at times."""
    observed = rng.random(shape) < pick(rng, (0.9, 0.6, 0.2))
    if chance(rng, 0.3):
        mode = int(rng.integers(len(shape)))
        np.moveaxis(observed, mode, 0)[int(rng.integers(shape[mode]))] = False
    return observed


def _as_container(rng: Rng, X: np.ndarray, container: str) -> Any:
    if container == "strided":
        return np.repeat(X, 2, axis=-1)[..., ::2]
    if container == "frame" and X.ndim == 2:
        return pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    if container == "csr" and X.ndim == 2:
        return sparse.csr_array(X)
    if container == "summed":
        return summed(rng, X)
    if container in ("coo", "csr"):
        return sparse.coo_array(X)
    return X.tolist() if container == "list" else np.array(X, order=_ORDERS.get(container, "C"))


def summed(rng: Rng, X: np.ndarray) -> sparse.coo_array:
    """Return sparse data in any order, with stored zeros and with entries in two parts."""
    coords = np.array(np.nonzero((X != 0) | (rng.random(X.shape) < 0.2)))
    coords = rng.permutation(np.concatenate([coords, coords], axis=1), axis=1)
    return sparse.coo_array((X[tuple(coords)] / 2, tuple(coords)), shape=X.shape)
