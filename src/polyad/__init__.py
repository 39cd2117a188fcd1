"""polyad: low-rank learning when squared error is the wrong loss.

Estimators, by the data they are for: ``CP`` (even noise), ``NonnegativeCP`` (parts that add up),
``PoissonCP`` (counts), ``GeneralizedCP`` (yes and no, outliers, sizes, losses of your own),
``StochasticCP`` (larger than memory), ``SupervisedCP`` (samples with classes), ``SimilarityCP``
(entries known to be similar), ``WassersteinCP`` (counts of entries that resemble each other),
``AugmentedCP`` (signals, few of which have labels),
``QMF`` and ``QMFQ`` (matrices whose features are on any scale), ``MixedMembership`` (tables of
categories and numbers whose rows are mixtures of types), ``DawidSkene`` and ``MajorityVote``
(labels of a crowd), ``WassersteinDictionary`` and ``WassersteinCPDictionary`` (images and joint
distributions whose mass moves).
``LabelledTensor.from_frame`` makes a tensor of a long table.

Public names are imported on first use, so that ``import polyad`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from polyad._version import __version__

if TYPE_CHECKING:
    from polyad import (
        augmented,
        cp,
        crowd,
        data,
        datasets,
        dictionary,
        exceptions,
        fitting,
        io,
        losses,
        membership,
        metrics,
        quantile,
        report,
        selection,
        soft,
        tensor,
        transport,
        wasserstein,
    )
    from polyad.augmented import AugmentedCP
    from polyad.cp import (
        CP,
        GeneralizedCP,
        NonnegativeCP,
        PoissonCP,
        SimilarityCP,
        StochasticCP,
        SupervisedCP,
    )
    from polyad.crowd import DawidSkene, MajorityVote
    from polyad.data import LabelledTensor
    from polyad.dictionary import (
        WassersteinCPDictionary,
        WassersteinDictionary,
        wasserstein_barycenter,
    )
    from polyad.exceptions import PolyadError
    from polyad.fitting import Checkpoint, History, Status
    from polyad.io import load
    from polyad.membership import MixedMembership
    from polyad.quantile import QMF, QMFQ
    from polyad.tensor import KruskalTensor, factor_match_score
    from polyad.transport import wasserstein_distance
    from polyad.wasserstein import WassersteinCP

_HOMES = {
    "AugmentedCP": "polyad.augmented",
    "CP": "polyad.cp",
    "Checkpoint": "polyad.fitting",
    "DawidSkene": "polyad.crowd",
    "GeneralizedCP": "polyad.cp",
    "History": "polyad.fitting",
    "KruskalTensor": "polyad.tensor",
    "LabelledTensor": "polyad.data",
    "MajorityVote": "polyad.crowd",
    "MixedMembership": "polyad.membership",
    "NonnegativeCP": "polyad.cp",
    "PoissonCP": "polyad.cp",
    "PolyadError": "polyad.exceptions",
    "QMF": "polyad.quantile",
    "QMFQ": "polyad.quantile",
    "SimilarityCP": "polyad.cp",
    "Status": "polyad.fitting",
    "StochasticCP": "polyad.cp",
    "SupervisedCP": "polyad.cp",
    "WassersteinCP": "polyad.wasserstein",
    "WassersteinCPDictionary": "polyad.dictionary",
    "WassersteinDictionary": "polyad.dictionary",
    "factor_match_score": "polyad.tensor",
    "load": "polyad.io",
    "wasserstein_barycenter": "polyad.dictionary",
    "wasserstein_distance": "polyad.transport",
}
_MODULES = (
    *("augmented", "cp", "crowd", "data", "datasets", "dictionary", "exceptions", "fitting", "io"),
    *("losses", "membership", "metrics", "quantile", "report", "selection", "soft", "tensor"),
    *("transport", "wasserstein"),
)

__all__ = [
    "CP",
    "QMF",
    "QMFQ",
    "AugmentedCP",
    "Checkpoint",
    "DawidSkene",
    "GeneralizedCP",
    "History",
    "KruskalTensor",
    "LabelledTensor",
    "MajorityVote",
    "MixedMembership",
    "NonnegativeCP",
    "PoissonCP",
    "PolyadError",
    "SimilarityCP",
    "Status",
    "StochasticCP",
    "SupervisedCP",
    "WassersteinCP",
    "WassersteinCPDictionary",
    "WassersteinDictionary",
    "__version__",
    "augmented",
    "cp",
    "crowd",
    "data",
    "datasets",
    "dictionary",
    "exceptions",
    "factor_match_score",
    "fitting",
    "io",
    "load",
    "losses",
    "membership",
    "metrics",
    "quantile",
    "report",
    "selection",
    "soft",
    "tensor",
    "transport",
    "wasserstein",
    "wasserstein_barycenter",
    "wasserstein_distance",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"polyad.{name}")
    if name not in _HOMES:
        message = f"module 'polyad' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
