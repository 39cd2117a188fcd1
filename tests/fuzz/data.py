"""Random tensors: every kind of content, size, scale and container that ``fit`` takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from polyad import LabelledTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Rng = np.random.Generator

LARGEST_SIZE = 400


def chance(rng: Rng, p: float) -> bool:
    return bool(rng.random() < p)


def pick(rng: Rng, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def random_shape(rng: Rng, n_modes: int | None = None) -> tuple[int, ...]:
    """Return mostly small shapes, at times with modes of a single entry."""
    n_modes = n_modes or pick(rng, (2, 2, 3, 3, 3, 4))
    sizes = (1, 2, 3, 4, 5, 7, 10) if chance(rng, 0.7) else (1, 1, 1, 2)
    while True:
        shape = tuple(int(pick(rng, sizes)) for _ in range(n_modes))
        if np.prod(shape) <= LARGEST_SIZE:
            return shape


def _low_rank(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    factors = [rng.random((n, 2)) for n in shape]
    letters = "abcdefgh"[: len(shape)]
    return np.einsum(",".join(f"{k}r" for k in letters) + "->" + letters, *factors)


def _single(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    X = np.zeros(shape)
    X[tuple(int(rng.integers(n)) for n in shape)] = 1.0
    return X


def _duplicated(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    mode = int(rng.integers(len(shape)))
    return np.repeat(rng.random(shape).take([0], axis=mode), shape[mode], axis=mode)


def _mixed(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Slices of one mode on scales that have nothing to do with each other."""
    mode = int(rng.integers(len(shape)))
    sizes = 10.0 ** rng.uniform(-1, 1, shape[mode]) ** pick(rng, (1, 5, 21))
    return rng.random(shape) * sizes.reshape([-1 if k == mode else 1 for k in range(len(shape))])


CONTENT: dict[str, Callable[[Rng, tuple[int, ...]], np.ndarray]] = {
    "uniform": lambda rng, shape: rng.random(shape),
    "low rank": _low_rank,
    "counts": lambda rng, shape: rng.poisson(pick(rng, (0.2, 2.0, 50.0)), shape).astype(float),
    "binary": lambda rng, shape: (rng.random(shape) < 0.4).astype(float),
    "heavy tails": lambda rng, shape: np.exp(5 * np.clip(rng.standard_t(2, shape), -20, 20)),
    "mostly zero": lambda rng, shape: rng.random(shape) * (rng.random(shape) < 0.1),
    "constant": lambda rng, shape: np.full(shape, pick(rng, (1.0, 3.0, 0.1))),
    "zeros": lambda rng, shape: np.zeros(shape),
    "single entry": _single,
    "duplicates": _duplicated,
    "mixed scales": _mixed,
}
WEIGHTS = (5, 4, 5, 4, 3, 3, 1, 0.5, 1, 1, 2)
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


@dataclass
class Data:
    """A random tensor, dense as ``values`` (NaN where unobserved), and as a fit is given it.

    ``words`` tell a reader what it is.
    """

    values: np.ndarray
    X: Any
    mask: np.ndarray | None
    words: str
    is_sparse: bool = False
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def arguments(self) -> dict[str, Any]:
        return {} if self.mask is None else {"mask": self.mask}


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
    p = np.array(WEIGHTS) / sum(WEIGHTS)
    content = "binary" if wish.sign == "binary" else str(rng.choice(list(CONTENT), p=p))
    X = CONTENT[content](rng, shape)
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
    return _contained(rng, _typed(rng, X, words), wish, words)


def _typed(rng: Rng, X: np.ndarray, words: list[str]) -> np.ndarray:
    dtype = pick(rng, ("float64", "float64", "float32", "int64", "bool"))
    is_whole = bool(np.isfinite(X).all() and (np.abs(X) < 2**40).all() and (X.round() == X).all())
    if dtype in ("int64", "bool") and (not is_whole or (dtype == "bool" and X.max() > 1)):
        dtype = "float64"
    words.append(dtype)
    with np.errstate(over="ignore", under="ignore"):
        return X.astype(dtype)


def _contained(rng: Rng, X: np.ndarray, wish: Wish, words: list[str]) -> Data:
    """Put a dense tensor into a container, with missing entries and labels at times."""
    values, mask = X, None
    container = pick(rng, CONTAINERS)
    if container == "summed" and X.dtype.kind != "f":
        container = "coo"
    is_sparse = container in ("coo", "summed", "csr")
    if wish.missing and not is_sparse and chance(rng, 0.35):
        observed = _observed(rng, X.shape)
        values = np.where(observed, X if X.dtype.kind == "f" else X.astype(float), np.nan)
        values = values.astype(X.dtype if X.dtype.kind == "f" else float)
        words.append(f"{int((~observed).sum())} missing")
        if chance(rng, 0.4):
            mask = observed
            words.append("as mask")
    if container == "list" and X.dtype.kind == "f":  # of Python's numbers
        X, values = X.astype(float), values.astype(float)
    given = X if mask is not None else values
    labelled = container in ("dense", "coo") and chance(rng, 0.3)
    found = _as_container(rng, given, container)
    if labelled:
        labels = [[f"{mode}-{i}" for i in range(n)] for mode, n in enumerate(X.shape)]
        found = LabelledTensor(found, modes=list("abcd"[: X.ndim]), labels=labels)
        words.append("labelled")
    words.append(container)
    classes = rng.integers(0, pick(rng, (2, 2, 3)), X.shape[0])
    return Data(values, found, mask, " ".join(words), is_sparse, classes)


def _observed(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Return where entries are observed: at random, and nowhere in a slice at times."""
    observed = rng.random(shape) < pick(rng, (0.9, 0.6, 0.2))
    if chance(rng, 0.3):
        mode = int(rng.integers(len(shape)))
        np.moveaxis(observed, mode, 0)[int(rng.integers(shape[mode]))] = False
    return observed


def _as_container(rng: Rng, X: np.ndarray, container: str) -> Any:
    if container == "fortran":
        return np.asfortranarray(X)
    if container == "strided":
        return np.repeat(X, 2, axis=-1)[..., ::2]
    if container == "list":
        return X.tolist()
    if container == "frame" and X.ndim == 2:
        return pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    if container == "csr" and X.ndim == 2:
        return sparse.csr_array(X)
    if container in ("coo", "csr"):
        return sparse.coo_array(X)
    if container == "summed":
        return summed(rng, X)
    return np.ascontiguousarray(X)


def summed(rng: Rng, X: np.ndarray) -> sparse.coo_array:
    """Return sparse data in any order, with stored zeros and with entries in two parts."""
    coords = np.array(np.nonzero((X != 0) | (rng.random(X.shape) < 0.2)))
    coords = rng.permutation(np.concatenate([coords, coords], axis=1), axis=1)
    return sparse.coo_array((X[tuple(coords)] / 2, tuple(coords)), shape=X.shape)
