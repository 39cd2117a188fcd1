"""The methods of the omics experiment by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.qmf.methods import (
    FactorizedTransform,
    Frequencies,
    Identity,
    Logarithm,
    Quantile,
    Ranks,
    TruncatedSVD,
)

if TYPE_CHECKING:
    from experiments.qmf.methods import Method

OURS = "QMF"
QUANTILE: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("QMF", {}),
    "QMF free": ("QMF", {"nonnegative": False}),
    "QMFQ": ("QMFQ", {"projector": "nmf"}),
    "QMFQ SVD": ("QMFQ", {"projector": "svd"}),
}
BASELINES = ("NMF", "log1p + NMF", "rank + NMF", "tf-idf + NMF", "SVD")
# What a comparison at equal rank leaves open: how much is due to the increasing functions alone,
# and what NMF does with as many numbers.
CONTROLS = ("NMF monotone", "rank + NMF monotone", "NMF larger")
METHODS = (*QUANTILE, *BASELINES, *CONTROLS)
# Units of log1p that are tried, as parts of the mean of the data.
_UNITS = (1.0, 0.1, 0.01)


def make_method(name: str, unit: dict[str, Any], shape: tuple[int, int], seed: int) -> Method:
    """Return an unfitted method.

    Parameters
    ----------
    name : str
        One of ``METHODS``.
    unit : dict
        With ``rank``, ``quantiles``, ``iterations``, ``outer`` and ``inner``.
    shape : tuple of int
        Numbers of samples and features.
    seed : int
        Of the start.
    """
    rank = unit["rank"]
    if name in QUANTILE:
        kind, settings = QUANTILE[name]
        parameters = {"n_quantiles": unit["quantiles"], **settings}
        parameters["max_iter"] = unit["iterations"] if kind == "QMF" else unit["outer"]
        if settings.get("projector") == "nmf":
            parameters["inner_iter"] = unit["inner"]
        return Quantile(kind, rank, seed, parameters)
    if name == "SVD":
        return TruncatedSVD(rank)
    if name == "NMF larger":
        rank = equal_rank(rank, unit["quantiles"], shape)
    transforms = {
        "log1p + NMF": tuple(Logarithm(part) for part in _UNITS),
        "rank + NMF": (Ranks(),),
        "tf-idf + NMF": (Frequencies(),),
    }
    chosen = transforms.get(name.removesuffix(" monotone"), (Identity(),))
    return FactorizedTransform(chosen, rank, seed, monotone=name.endswith("monotone"))


def numbers_of(name: str, rank: int, quantiles: int, shape: tuple[int, int]) -> int:
    """Return how many numbers a method learns: those of its factors and of its transforms."""
    n, d = shape
    if name == "NMF larger":
        rank = equal_rank(rank, quantiles, shape)
    factors = rank * (n + d)
    # Of a transform, the quantiles between the ends of the range and all but one of the weights;
    # the first transform of QMFQ has no ends. Of a baseline, a factor; of the best increasing
    # function and of ranks, a value for each sample.
    inflating, deflating = quantiles - 2 + quantiles - 1, quantiles + quantiles - 1
    own = {"QMF": inflating, "QMFQ": inflating + deflating}
    if name in QUANTILE:
        return factors + d * own[QUANTILE[name][0]]
    return factors + d * (n if "rank" in name or name.endswith("monotone") else 1)


def equal_rank(rank: int, quantiles: int, shape: tuple[int, int]) -> int:
    """Return the rank at which NMF has as many numbers as QMF, or the largest there is."""
    wanted = numbers_of(OURS, rank, quantiles, shape)
    return min(round(wanted / sum(shape)), *shape)
