"""Synthea patients: diagnoses x medications, and an outcome that is not among them.

Two synthetic populations: settings are chosen on the one of 2017 (Massachusetts), results are of
the one of 2019 (California).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedKFold

from experiments.data import data_file
from experiments.swift.methods import Part
from polyad.io import tensor_from_events

if TYPE_CHECKING:
    from scipy.sparse import coo_array

    from polyad import LabelledTensor

DEVELOPMENT, EVALUATION = "2017", "2019"
MIN_PATIENTS = 10
N_FOLDS = 5


@cache
def load_tables(cohort: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the medications and the diagnoses of a population."""
    names = ("medications", "conditions")
    medications, diagnoses = (
        pd.read_csv(data_file(f"ehr/synthea{cohort}_{name}.csv.gz")) for name in names
    )
    return medications, diagnoses


@cache
def make_cohort(cohort: str, outcome: str) -> tuple[LabelledTensor, np.ndarray]:
    """Return the tensor without the outcome, and who has it.

    The diagnosis itself is taken out, and every medication that was ever given for it.

    Parameters
    ----------
    cohort : {'2017', '2019'}
        The population.
    outcome : str
        The description of a diagnosis.

    Returns
    -------
    tensor : LabelledTensor
        Patients x diagnoses x medications, 1 where both were recorded in one encounter.
    has_outcome : array of int
        1 for the patients with the diagnosis.
    """
    medications, diagnoses = load_tables(cohort)
    codes = diagnoses.loc[diagnoses["description"] == outcome, "code"].unique()
    if len(codes) == 0:
        known = diagnoses.groupby("description")["patient"].nunique().nlargest(30).index.tolist()
        message = f"No diagnosis of {cohort} is called {outcome!r}. Frequent ones: {known}."
        raise SystemExit(message)
    given_for = medications.loc[medications["reason_code"].isin(codes), "code"].unique()
    tensor = tensor_from_events(
        medications[~medications["code"].isin(given_for)],
        diagnoses[~diagnoses["code"].isin(codes)],
        entries="presence",
        min_patients=MIN_PATIENTS,
    )
    cases = diagnoses.loc[diagnoses["code"].isin(codes), "patient"].unique()
    return tensor, np.isin(tensor.labels[0], cases).astype(int)


def make_parts(cohort: str, outcome: str, sample: int, fold: int) -> list[Part]:
    """Return the training, validation and test patients, 3:1:1; a sample is a way to cut folds."""
    tensor, y = make_cohort(cohort, outcome)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=sample).split(y, y)
    pieces = [test for _, test in folds]
    test, validation = pieces[fold], pieces[(fold + 1) % N_FOLDS]
    train = np.setdiff1d(np.arange(len(y)), np.concatenate([test, validation]))
    parts = []
    for rows in (train, np.sort(validation), np.sort(test)):
        own: coo_array = tensor.isel(patient=rows).data
        parts.append(Part(own, y[rows], np.asarray(tensor.labels[0])[rows]))
    return parts
