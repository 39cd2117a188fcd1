"""Patients and their measurements: breast cancer and two sets of leukaemias.

What was measured is made nonnegative by undoing what was done to it, not by shifting it:

* Breast cancer: expression is given as log2 ratios to a reference, and becomes the ratios; the
  methylation is a share between 0 and 1; microRNAs are given as ln(1 + reads per million) (those
  of a sample sum to a million, but for microRNAs that were left out), and become reads per million.
* Leukaemia (ALL): log2 intensities become intensities.
* Golub: the logarithms of intensities between 100 and 16000, standardized sample by sample. Every
  sample has genes at both limits, so that its intensities are recovered exactly: they are integers.

On the scale ``log`` all are logarithms to the base 2 of the same: of intensities, of one plus reads
per million, of ratios over the lowest ratio of the training samples; shares stay as they are.

Each kind of measurement is divided by its mean over the training samples, which gives all of them
the same weight in a divergence, and makes the divergences of different data comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from experiments.data import data_file

SETS = ("breast", "leukaemia", "golub")
SCALES = ("linear", "log")
# Limits of Golub's intensities (Dudoit, Fridlyand and Speed, 2002).
_LOWEST, _HIGHEST = 100.0, 16000.0


@dataclass(frozen=True)
class View:
    """Measurements of one kind.

    Attributes
    ----------
    values : ndarray of shape (n, d)
        Not negative, in their natural unit.
    offset : float or None
        What is added before the logarithm to the base 2; None if there is no logarithm to take.
    is_ratio : bool
        Whether logarithms may be negative, and start at the lowest of the training samples.
    """

    values: np.ndarray
    offset: float | None = 0.0
    is_ratio: bool = False

    def logarithms(self) -> np.ndarray:
        """Return the logarithms to the base 2; the values where there is none to take."""
        return self.values if self.offset is None else np.log2(self.values + self.offset)


@dataclass(frozen=True)
class Cohort:
    """Measurements and known classes of some patients.

    Attributes
    ----------
    views : dict
        The measurements by kind.
    classes : dict
        Classes by name, one text per patient; empty where the class is not known.
    """

    views: dict[str, View]
    classes: dict[str, np.ndarray]

    @property
    def n_samples(self) -> int:
        """The number of patients."""
        return len(next(iter(self.views.values())).values)


@cache
def load_cohort(name: str) -> Cohort:
    """Return one of the sets."""
    return {"breast": _breast, "leukaemia": _leukaemia, "golub": _golub}[name]()


def _breast() -> Cohort:
    with np.load(data_file("tcga/brca_jive.npz"), allow_pickle=False) as file:
        views = {
            "expression": View(2.0 ** file["expression"], is_ratio=True),
            "methylation": View(file["methylation"], offset=None),
            "microRNA": View(np.expm1(file["mirna"]), offset=1.0),
        }
        patients = [barcode[8:12] for barcode in file["samples"].tolist()]
        clusters = np.char.add("cluster ", file["cluster"].astype(str))
    # The subtypes come from another selection of the same tumours, which has 132 of them.
    with np.load(data_file("tcga/breast_tcga_mixomics.npz"), allow_pickle=False) as file:
        known = {
            patient: subtype
            for part in ("train", "test")
            for patient, subtype in zip(
                file[f"{part}_samples"].tolist(), file[f"{part}_subtype"].tolist(), strict=True
            )
        }
    subtypes = np.array([known.get(patient, "") for patient in patients])
    return Cohort(views, {"subtype": subtypes, "shipped cluster": clusters})


def _leukaemia() -> Cohort:
    with np.load(data_file("expression/all_leukemia.npz"), allow_pickle=False) as file:
        views = {"expression": View(2.0 ** file["X"].astype(float))}
        lineage = np.array([text[0] for text in file["BT"].tolist()])
        fusion = np.array(
            [
                text if first == "B" and text in {"BCR/ABL", "NEG"} else ""
                for text, first in zip(file["mol_biol"].tolist(), lineage, strict=True)
            ]
        )
    return Cohort(views, {"lineage": lineage, "fusion gene (B only)": fusion})


def _golub() -> Cohort:
    with np.load(data_file("expression/golub.npz"), allow_pickle=False) as file:
        views = {"expression": View(golub_intensities(file["X"]))}
        classes = np.where(file["y"] == 0, "ALL", "AML")
    return Cohort(views, {"leukaemia": classes})


def golub_intensities(standardized: np.ndarray) -> np.ndarray:
    """Return the intensities of samples whose logarithms were standardized.

    Parameters
    ----------
    standardized : ndarray of shape (n, d)
        The lowest entry of each sample stands for 100, the highest for 16000.
    """
    low, high = standardized.min(axis=1, keepdims=True), standardized.max(axis=1, keepdims=True)
    share = (standardized - low) / (high - low)
    return np.asarray(np.rint(_LOWEST * (_HIGHEST / _LOWEST) ** share))


class Preparation:
    """Make one nonnegative matrix of all kinds of measurements; what it needs is learned.

    Parameters
    ----------
    scale : {'linear', 'log'}
        The scale of the measurements.
    n_features : int or None
        Keep so many features of each kind, those with the largest variance of their logarithms
        among the training samples; None keeps all.
    """

    def __init__(self, scale: str, n_features: int | None = None) -> None:
        self.scale = scale
        self.n_features = n_features

    def fit(self, cohort: Cohort, train: np.ndarray) -> Self:
        """Learn the features to keep, lowest ratios and means from the training samples."""
        self.kept_: dict[str, np.ndarray] = {}
        self.lowest_: dict[str, float] = {}
        self.means_: dict[str, float] = {}
        for name, view in cohort.views.items():
            variance = view.logarithms()[train].var(axis=0)
            order = np.argsort(-variance, kind="stable")[: self.n_features]
            self.kept_[name] = np.sort(order)
            self.lowest_[name] = 0.0
            if view.is_ratio:
                self.lowest_[name] = float(self._unshifted(name, view)[train].min())
            self.means_[name] = float(self._values(name, view)[train].mean())
        return self

    def matrix(self, cohort: Cohort, samples: np.ndarray) -> np.ndarray:
        """Return the matrix of some samples, the kinds side by side."""
        parts = [
            self._values(name, view)[samples] / self.means_[name]
            for name, view in cohort.views.items()
        ]
        return np.ascontiguousarray(np.hstack(parts))

    def columns(self) -> dict[str, slice]:
        """Return which columns of the matrix belong to which kind."""
        ends = np.cumsum([0, *(len(kept) for kept in self.kept_.values())]).tolist()
        return {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(self.kept_)}

    def _unshifted(self, name: str, view: View) -> np.ndarray:
        values = view.values if self.scale == "linear" else view.logarithms()
        return values[:, self.kept_[name]]

    def _values(self, name: str, view: View) -> np.ndarray:
        values = self._unshifted(name, view)
        if self.scale == "log" and view.is_ratio:
            # A new sample can have a lower ratio than all training samples.
            return np.maximum(values - self.lowest_[name], 0.0)
        return values
