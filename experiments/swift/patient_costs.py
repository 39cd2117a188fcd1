"""Patients: which cost of diagnoses and medications is worth what.

    POLYAD_DATA=/path/to/data python -m experiments.swift.patient_costs --jobs 2

The patients, folds and outcome of ``experiments.swift.ehr``; only the costs of the two modes of
codes differ between fits. Two questions are asked of a model of the training patients: the area
under the precision-recall curve of the outcome, and how well it ranks medications that are hidden
from it (30 % of those of each new patient that has two or more; mean average precision). The two
parameters of the loss are chosen for each cost and question on the population of 2017. Codes of
ICD-10 and ATC were assigned by hand and are unchecked (``patient_codes.csv``). Finished units are
kept in ``patient_costs.csv``; results go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score

import polyad
from experiments.classify import Split, lasso_precision
from experiments.runs import (
    Store,
    command,
    environment,
    interval,
    markdown,
    run_units,
    write_section,
)
from experiments.swift.patients import (
    DEVELOPMENT,
    EVALUATION,
    N_FOLDS,
    load_tables,
    make_cohort,
    make_parts,
)
from experiments.tables import difference_text
from polyad.transport import embedding_cost, graph_cost, mixed_cost, taxonomy_cost

Unit = dict[str, Any]

HERE = Path(__file__).parent
OUTCOME, RANK, SCALING = "Hypertension", 10, "root"
MODES = ("diagnosis", "medication")
# Values of epsilon and marginal_penalty.
SETTINGS = ((1.0, 1.0), (0.3, 0.3), (0.1, 0.1))
QUESTIONS = {"outcome": "test", "hidden medications": "hidden"}
REFERENCE = "one-identity"
# What the costs are made of, and the name of each in the tables.
COSTS = {
    "presence": '`"presence"`: training patients',
    "cosine": '`"cosine"`: training patients',
    "embedding": "`embedding_cost`: co-occurrence in training patients",
    "graph": "`graph_cost`: given for, in training patients",
    "taxonomy": "`taxonomy_cost`: ICD-10, ATC",
    "texts": "`embedding_cost`: letters of the descriptions",
    "mixed": '`mixed_cost`: half taxonomy, half `"presence"`',
    "one-identity": '`"one-identity"`',
    "random": '`"random"`',
    "separate": '`"separate"`',
}


def taxonomy_of(mode: str) -> pd.DataFrame:
    """Return the costs of all descriptions by the codes of ICD-10 or ATC that they have."""
    table = pd.read_csv(HERE / "patient_codes.csv")
    own = table[table["mode"] == mode].set_index("description")["code"].str.replace(".", "")
    lengths = (1, 3, 4, 5, 7) if mode == "medication" else (1, 3, 4)
    parents: dict[str, str] = {}
    for description, code in own.items():
        groups = ["all", *(code[:n] for n in lengths if n <= len(code)), str(description)]
        parents |= dict(zip(groups[1:], groups[:-1], strict=True))
    return taxonomy_cost(parents, own.index)


def texts_of(labels: np.ndarray) -> pd.DataFrame:
    """Return the costs of descriptions by the runs of letters that they share."""
    texts = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit_transform(labels)
    return embedding_cost(pd.DataFrame(texts.toarray(), index=labels))


def embedding_of(tensor: polyad.LabelledTensor, mode: str) -> pd.DataFrame:
    """Return costs by ten directions of how often a code meets all others in a patient."""
    patients = tensor.data.coords[0]
    sides = {}
    for name in MODES:
        own = tensor.data.coords[tensor.modes.index(name)]
        shape = (tensor.shape[0], tensor.shape[tensor.modes.index(name)])
        has = csr_array((np.ones(len(own)), (patients, own)), shape=shape)
        has.data[:] = 1.0
        has.sum_duplicates()
        sides[name] = (has > 0).astype(np.float64)
    together = [(sides[mode].T @ sides[name]).toarray() for name in MODES]
    met = np.log1p(np.hstack(together))
    vectors = TruncatedSVD(10, random_state=0).fit_transform(met)
    return embedding_cost(pd.DataFrame(vectors, index=tensor.labels[mode]))


def graph_of(cohort: str, tensor: polyad.LabelledTensor, mode: str) -> pd.DataFrame:
    """Return costs by ways over medications and what they were given for, in these patients.

    A way may also lead over one place that all codes are two steps away from.
    """
    medications, _ = load_tables(cohort)
    known = medications["patient"].isin(tensor.labels["patient"])
    edges = medications.loc[known, ["reason_description", "description"]].dropna()
    labels = np.concatenate([tensor.labels[name] for name in MODES])
    edges = edges[edges.isin(labels).all(axis=1)].drop_duplicates()
    far = pd.DataFrame({"from": labels, "to": "anywhere", "length": 2.0})
    near = pd.DataFrame(edges.to_numpy(), columns=["from", "to"]).assign(length=1.0)
    return graph_cost(pd.concat([near, far]), tensor.labels[mode], scaled=True)


def cost_of(name: str, cohort: str, tensor: polyad.LabelledTensor, mode: str) -> Any:
    """Return what is given to the model for a mode; the tensor has the training patients."""
    if name == "taxonomy":
        return taxonomy_of(mode)
    if name == "texts":
        return texts_of(tensor.labels[mode])
    if name == "embedding":
        return embedding_of(tensor, mode)
    if name == "graph":
        return graph_of(cohort, tensor, mode)
    if name == "mixed":
        return mixed_cost([(taxonomy_of(mode), 0.5), ("presence", 0.5)])
    return name


def hidden_precision(model: Any, tensor: polyad.LabelledTensor, seed: int) -> float:
    """Return the mean average precision of hidden medications of new patients."""
    patients, _, drugs = (np.asarray(row) for row in tensor.data.coords)
    has = np.zeros((tensor.shape[0], tensor.shape[2]), bool)
    has[patients, drugs] = True
    generator = np.random.default_rng(seed)
    hidden = np.zeros_like(has)
    for patient in np.flatnonzero(has.sum(axis=1) >= 2):
        own = np.flatnonzero(has[patient])
        hidden[patient, generator.choice(own, int(np.ceil(0.3 * len(own))), replace=False)] = True
    kept = ~hidden[patients, drugs]
    data = tensor.data.copy()
    data.data = data.data * kept
    data.eliminate_zeros()
    labels = [tensor.labels[mode] for mode in tensor.modes]
    rows = np.asarray(
        model.transform(polyad.LabelledTensor(data, modes=tensor.modes, labels=labels))
    )
    found = (rows * model.factors_[1].sum(axis=0)) @ model.factors_[2].T
    scores = []
    for patient in np.flatnonzero(hidden.any(axis=1)):
        asked = hidden[patient] | ~has[patient]
        scores.append(average_precision_score(hidden[patient, asked], found[patient, asked]))
    return float(np.mean(scores))


def do_unit(unit: Unit) -> Unit:
    """Return both precisions of a unit."""
    cohort, fold = unit["cohort"], unit["fold"]
    parts = make_parts(cohort, OUTCOME, unit["sample"], fold)
    tensor, _ = make_cohort(cohort, OUTCOME)
    patients = np.asarray(tensor.labels[0])
    data = [tensor.isel(patient=np.flatnonzero(np.isin(patients, p.labels))) for p in parts]
    seed = 1000 * unit["sample"] + fold
    costs = {mode: cost_of(unit["cost"], cohort, data[0], mode) for mode in MODES}
    model = polyad.WassersteinCP(
        RANK,
        costs=costs,
        epsilon=unit["epsilon"],
        marginal_penalty=unit["marginal_penalty"],
        random_state=seed,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data[0])
        # The training rows as they are in the fit, in the unit of the projected ones.
        rows = [model.factors_[0] * model.weights_, *(model.transform(part) for part in data[1:])]
        hidden = hidden_precision(model, data[2], seed)
    features = tuple(np.asarray(part) for part in rows)
    split = Split(features, tuple(part.classes for part in parts))
    scores = lasso_precision(split.scaled(SCALING))
    return {**scores, "hidden": hidden, "n_iter": int(model.n_iter_)}


def units_of(cohort: str, kinds: list[Unit], n_samples: int) -> list[Unit]:
    """Return the units of some kinds."""
    return [
        {"cohort": cohort, **kind, "sample": sample, "fold": fold}
        for kind in kinds
        for sample in range(n_samples)
        for fold in range(N_FOLDS)
    ]


def kind_of(cost: str, setting: tuple[float, float]) -> Unit:
    """Return a cost with its two parameters."""
    return {"cost": cost, "epsilon": setting[0], "marginal_penalty": setting[1]}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=2, help="ways to cut the folds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--max-minutes", type=float, default=60.0, help="per population")
    options = parser.parse_args()
    store = Store(HERE / "patient_costs.csv")
    limits = {"jobs": options.jobs, "max_minutes": options.max_minutes}
    tried = [kind_of(cost, setting) for cost in COSTS for setting in SETTINGS]
    development = units_of(DEVELOPMENT, tried, 1)
    run_units(development, do_unit, store, **limits)
    keys = ["cost", "epsilon", "marginal_penalty"]
    means = store.table(development).groupby(keys)[list(QUESTIONS.values())].mean()
    chosen = {
        (cost, score): means.loc[cost, score].idxmax()
        for cost in COSTS
        for score in QUESTIONS.values()
    }
    kinds = [kind_of(cost, setting) for cost, setting in {(k[0], v) for k, v in chosen.items()}]
    evaluated = units_of(EVALUATION, kinds, options.samples)
    run_units(evaluated, do_unit, store, **limits)
    table = store.table(evaluated).set_index([*keys, "sample", "fold"]).sort_index()
    columns: dict[str, list[str]] = {}
    for question, score in QUESTIONS.items():
        own = {cost: table.loc[(cost, *chosen[cost, score]), score] for cost in COSTS}
        columns[question] = [f"{values.mean():.3f}" for values in own.values()]
        columns[f"{question}: difference"] = [
            difference_text(interval((values - own[REFERENCE]).to_numpy()))
            for values in own.values()
        ]
        columns[f"{question}: epsilon and penalty"] = [f"{chosen[c, score][0]:g}" for c in COSTS]
    body = markdown(pd.DataFrame(columns, index=pd.Index(COSTS.values(), name="cost")))
    whole = store.table([*development, *evaluated])
    whole["cost"] = pd.Categorical(whole["cost"].map(COSTS), list(COSTS.values()))
    every = whole.groupby(["cohort", "epsilon", "cost"], observed=True)["hidden"].mean()
    every = every.unstack(["cohort", "epsilon"]).sort_index(axis=1)
    every.columns = [f"{cohort}, {epsilon:g}" for cohort, epsilon in every.columns]
    shown = every.map(lambda score: "" if np.isnan(score) else f"{score:.3f}")
    tensor, y = make_cohort(EVALUATION, OUTCOME)
    size = " x ".join(str(n) for n in tensor.shape)
    n_folds = options.samples * N_FOLDS
    text = (
        f"`{command()}`\n\n{environment()}. Synthea {EVALUATION}, {size}, outcome {OUTCOME!r}, "
        f"R = {RANK}. The two parameters of the loss, of {len(SETTINGS)} settings, were chosen for "
        f"each cost and question on {DEVELOPMENT}. Differences are to {COSTS[REFERENCE]}, with "
        f"95 % intervals over the {n_folds} folds of {options.samples} ways to cut the same "
        "patients: they tell little of other patients. A random score of the outcome has "
        f"{y.mean():.3f}.\n\n{body}\nHidden medications with all settings that were run, by "
        f"population and epsilon:\n\n{markdown(shown)}"
    )
    write_section(HERE / "RESULTS.md", "Patients: costs", text)
    print(text)


if __name__ == "__main__":
    main()
