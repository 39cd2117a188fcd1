"""The methods that are compared: each learns from windows without labels and makes features."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.decomposition import PCA

from experiments.atd.activities import RATE
from experiments.atd.reference import published_step, ridge_rows
from experiments.atd.supervised import stl, umlda
from polyad import CP, AugmentedCP, StochasticCP
from polyad.augmented.signals import (
    STFT,
    BandPass,
    Compose,
    Jitter,
    OneOf,
    Rotation,
    TimeShift,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# As published: 18 x 33 x 33 for nine channels of 128 times.
STFT_PUBLISHED = STFT(n_fft=64, hop=2, normalized=True, sampling_rate=RATE)
BATCH = 128
ALPHA = 1e-3
#: Steps of the reference CNN.
CNN_STEPS = 200
#: Sweeps of the networks over the windows: what fits a machine without a graphics card.
NETWORK_EPOCHS = 10
_JITTER = Jitter(0.002)
_BANDS = BandPass(RATE, ((1e-6, 20.0), (5.0, 24.5)))
_TURN = Rotation(together=False)
_SHIFT = TimeShift(0.3)
_ASKEW = Rotation(np.pi / 6)
_NOISE = Jitter(0.2, "high", 1.0, "batch")
#: What the twins of a sample are.
TWINS: dict[str, Any] = {
    "published": OneOf((_JITTER, _BANDS, _TURN)),
    "jitter": _JITTER,
    "bandpass": _BANDS,
    "rotation": _TURN,
    "ours": Compose((_SHIFT, _ASKEW, _NOISE)),
    "ours: shift": _SHIFT,
    "ours: rotation": _ASKEW,
    "ours: noise": _NOISE,
    "ours: one of": OneOf((_SHIFT, _ASKEW, _NOISE)),
    "ours: half the noise": Compose((_SHIFT, _ASKEW, Jitter(0.1, "high", 1.0, "batch"))),
}
_AS_PAPER = {"metric": None, "center": False, "scale_channels": False}
#: The settings of the methods that are AugmentedCP.
OURS: dict[str, dict[str, Any]] = {
    "AugmentedCP": {},
    "AugmentedCP (beta 0)": {"beta": 0.0},
    "AugmentedCP (no metric)": {"metric": None},
    # The paper's rule, derived: its beta and gamma, in the unit of the data (spread), no mean.
    "ATD (derived rule)": {**_AS_PAPER, "beta": "paper", "gamma": BATCH},
    "ATD ss-": {**_AS_PAPER, "beta": 0.0},
}
#: Methods and the twins that they use where nothing else is said.
METHODS = {
    "AugmentedCP": "ours",
    "AugmentedCP (beta 0)": "ours",
    "AugmentedCP (no metric)": "ours",
    "ATD (derived rule)": "published",
    "ATD as published": "published",
    "ATD ss-": "published",
    "SALS": "none",
    "SALS (centred)": "none",
    "GR-SALS": "none",
    "CP-ALS": "none",
    "PCA": "none",
    "random factors": "none",
    "SimCLR": "published",
    "BYOL": "published",
    "AE": "none",
    "AE_ss": "published",
    "UMLDA": "none",
    "STL": "none",
    "Reference CNN": "none",
}
#: Those of them that learn from labels alone.
SUPERVISED = ("UMLDA", "STL", "Reference CNN")
_NETWORKS = ("SimCLR", "BYOL", "AE", "AE_ss")
_PAPER_BETA = 5.0


@dataclass(frozen=True)
class Seen:
    """Windows as signals and as tensors."""

    signals: np.ndarray
    tensors: np.ndarray


@dataclass(frozen=True)
class Fitted:
    """What a method has learned."""

    #: Makes features of windows.
    features: Callable[[Seen], np.ndarray]
    n_parameters: int


def learn(method: str, rank: int, twins: str, data: Seen, *, seed: int, sweeps: int) -> Fitted:
    """Return what a method learns from unlabelled windows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method in OURS:
            model = _model(rank, TWINS[twins], OURS[method], _mean_square(data.tensors))
            model.set_params(max_iter=sweeps, random_state=seed).fit(data.signals)
            metric = 0 if model.metric_ is None else model.metric_.size
            return Fitted(
                lambda new: model.transform(new.signals), _size(model.factors_[1:]) + metric
            )
        if method == "ATD as published":
            return _published(rank, TWINS[twins], data, seed, sweeps)
        if method in _NETWORKS:
            from experiments.atd.networks import learn_network

            changed = TWINS.get(twins, lambda signals, _: signals)
            return Fitted(
                *learn_network(
                    method, rank, changed, data, STFT_PUBLISHED, seed=seed, epochs=NETWORK_EPOCHS
                )
            )
        return _plain(method, rank, data, seed, sweeps)


def classifier(
    method: str, rank: int, tensors: np.ndarray, labels: np.ndarray, seed: int
) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """Return what a supervised method learns from labelled windows, and its parameters."""
    shape, n_classes = tensors.shape[1:], len(np.unique(labels))
    if method == "UMLDA":
        return umlda(tensors, labels, rank), rank * sum(shape)
    if method == "STL":
        return stl(tensors, labels, seed=seed), n_classes * (sum(shape) + 1)
    from experiments.atd.networks import reference_cnn

    return reference_cnn(tensors, labels, seed=seed, steps=CNN_STEPS)


def _model(rank: int, twins: Any, settings: dict[str, Any], mean_square: float) -> AugmentedCP:
    chosen = dict(settings)
    if chosen.get("beta") == "paper":
        # The paper's weight is of a mean over the batch, in the unit of the data.
        chosen["beta"] = _PAPER_BETA / (BATCH * mean_square)
    return AugmentedCP(
        rank,
        augment=twins,
        preprocess=STFT_PUBLISHED,
        batch_size=BATCH,
        alpha=ALPHA,
        **chosen,
    )


def _published(rank: int, twins: Any, data: Seen, seed: int, sweeps: int) -> Fitted:
    """Fit by the published step, with the learning rates of the others."""
    rng = np.random.default_rng(seed)
    shape = data.tensors.shape[1:]
    factors = [rng.standard_normal((n, rank)).astype(np.float32) for n in shape]
    n_batches, number = -(-len(data.tensors) // BATCH), 0
    for _ in range(sweeps):
        for chosen in np.array_split(rng.permutation(len(data.tensors)), n_batches):
            number += 1
            rate = max(number**-0.5, 2 / n_batches)
            changed = STFT_PUBLISHED(twins(data.signals[chosen], rng))
            factors = published_step(factors, data.tensors[chosen], changed, rate)
    return Fitted(lambda new: ridge_rows(new.tensors, factors, ALPHA), _size(factors))


def _plain(method: str, rank: int, data: Seen, seed: int, sweeps: int) -> Fitted:
    tensors = data.tensors
    shape = tensors.shape[1:]
    if method == "PCA":
        flat = tensors.reshape(len(tensors), -1)
        found = PCA(rank, svd_solver="randomized", iterated_power=3, random_state=seed).fit(flat)
        size = found.components_.size + found.mean_.size
        return Fitted(lambda new: found.transform(new.tensors.reshape(len(new.tensors), -1)), size)
    if method == "random factors":
        rng = np.random.default_rng(seed)
        factors = [rng.standard_normal((n, rank)).astype(np.float32) for n in shape]
        return Fitted(lambda new: ridge_rows(new.tensors, factors, ALPHA), _size(factors))
    mean = tensors.mean(axis=0) if method == "SALS (centred)" else np.float32(0)
    if method == "CP-ALS":
        model: Any = CP(rank, max_iter=2 * sweeps, tol=1e-4, init="random", random_state=seed)
    else:
        graph = "published" if method == "GR-SALS" else None
        model = StochasticCP(
            rank,
            batch_size=BATCH,
            # Singular vectors of a batch are a bad start for more components than channels.
            init="random",
            max_iter=sweeps,
            ridge=ALPHA,
            graph=graph,
            random_state=seed,
        )
    model.fit(tensors - mean if np.ndim(mean) else tensors)
    factors = [np.asarray(factor, np.float32) for factor in model.factors_[1:]]
    size = _size(factors) + int(np.size(mean)) * (np.ndim(mean) > 0)
    return Fitted(lambda new: ridge_rows(new.tensors - mean, factors, ALPHA), size)


def _size(factors: list[np.ndarray]) -> int:
    return sum(factor.size for factor in factors)


def _mean_square(tensors: np.ndarray) -> float:
    flat = tensors.reshape(len(tensors), -1)
    return float(np.einsum("ij,ij->", flat, flat) / len(flat))
