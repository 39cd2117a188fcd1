"""Components of two surveys: which answers they stand for, and who belongs to them.

    POLYAD_DATA=/path/to/data python -m experiments.ptpqp.survey

The Big Five questionnaire of the SAPA project (2800 people, 25 items, answers 1 to 6) and the
traits of Gore and Bush in the American National Election Study of 2000 (1785 people, 12 items,
answers 1 to 4); some answers are missing in both. The number of components is the one with the
highest score of people who were left out of the fit: the log-likelihood of answers given the others
of the same person. What else is known of people (age,
gender, party, vote) is not used by a fit; its mean, weighted by membership, tells what a component
is.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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
from polyad import MixedMembership

Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SURVEYS = {
    "Big Five": ("survey/bfi_sapa.csv", ["age", "gender", "education"]),
    "Gore and Bush": (
        "survey/nes2000_candidate_traits.csv",
        ["VOTE3", "PARTY", "AGE", "EDUC", "GENDER"],
    ),
}
SCALES = {
    "Big Five": "1 very inaccurate ... 6 very accurate; letters: agreeable, conscientious, "
    "extraverted, neurotic, open; A1, C4, C5, E1, E2, O2 and O5 are worded against their letter",
    "Gore and Bush": "1 extremely well ... 4 not well at all; G for Gore, B for Bush",
}
_HELD_OUT = 0.2
_ALPHAS = (0.3, 1.0, 3.0)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--components", type=numbers, default=(2, 3, 4, 5, 6))
    parser.add_argument("--starts", type=int, default=2, help="parts left out")
    parser.add_argument("--max-minutes", type=float, default=30.0)
    return parser.parse_args(arguments)


def read_survey(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the answers and what else is known of people."""
    path, known = SURVEYS[name]
    table = pd.read_csv(data_file(path))
    answers = table.drop(columns=known)
    # Whole numbers with gaps are read as decimals: they are names of answers.
    return answers.astype("Int64"), table[known]


def make_units(options: argparse.Namespace) -> list[Unit]:
    """Return the fits that choose the number of components and how much people mix."""
    return [
        {"survey": name, "method": "moments", "k": k, "alpha0": alpha0, "start": start}
        for name in SURVEYS
        for k in options.components
        for alpha0 in _ALPHAS
        for start in range(options.starts)
    ]


def refined_units(table: pd.DataFrame, options: argparse.Namespace) -> list[Unit]:
    """Return the fits that tell what a refinement of the chosen ones is worth."""
    chosen = {name: choice(table, name) for name in SURVEYS}
    return [
        {"survey": name, "method": "refined", "k": k, "alpha0": alpha0, "start": start}
        for name, (k, alpha0) in chosen.items()
        for start in range(options.starts)
    ]


def make_model(unit: Unit) -> MixedMembership:
    """Return the model of a unit."""
    return MixedMembership(
        unit["k"],
        alpha0=unit["alpha0"],
        refine=unit["method"] == "refined",
        max_iter=200,
        random_state=unit["start"],
    )


def do_unit(unit: Unit) -> Unit:
    """Return the mean log-likelihood of a fifth of the people after a fit to the others."""
    answers, _ = read_survey(unit["survey"])
    order = np.random.default_rng(unit["start"]).permutation(len(answers))
    cut = int(_HELD_OUT * len(order))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_model(unit).fit(answers.iloc[order[cut:]])
        return {"held_out": float(model.score(answers.iloc[order[:cut]]))}


def choice(table: pd.DataFrame, name: str) -> tuple[int, float]:
    """Return the number of components and alpha0 of the highest score of moments."""
    own = table[(table["survey"] == name) & (table["method"] == "moments")]
    k, alpha0 = own.groupby(["k", "alpha0"])["held_out"].mean().idxmax()
    return int(k), float(alpha0)


def describe(table: pd.DataFrame, name: str) -> str:
    """Return the scores, and the components of the chosen fit, as text."""
    own = table[table["survey"] == name]
    means = own.groupby(["method", "alpha0", "k"])["held_out"].mean().unstack("k")
    shown = means.map(lambda value: "" if np.isnan(value) else f"{value:.4f}")
    shown.columns = [f"k = {k}" for k in shown.columns]
    shown.index = pd.Index([f"{method}, alpha0 = {alpha0:g}" for method, alpha0 in shown.index])
    shown.index.name = f"{name}: log-likelihood per answer"
    k, alpha0 = choice(table, name)
    answers, known = read_survey(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit = {"method": "refined", "k": k, "alpha0": alpha0, "start": 0}
        model = make_model(unit).fit(answers)
        memberships = np.asarray(model.transform(answers))
    return "\n".join(
        [
            markdown(shown),
            f"Chosen: k = {k}, alpha0 = {alpha0:g}. Mean answers of the refined components "
            f"({SCALES[name]}), in bold where they are the furthest from those of everybody:\n",
            markdown(_mean_answers(model, answers, memberships)),
            "Who belongs to them (means weighted by membership, of what no fit has seen):\n",
            markdown(_people(known, memberships)),
        ]
    )


def _mean_answers(
    model: MixedMembership, answers: pd.DataFrame, memberships: np.ndarray
) -> pd.DataFrame:
    """Return the mean answer of each component to each item."""
    rows = {}
    for item, theta in zip(answers.columns, model.theta_, strict=True):
        levels = np.sort(answers[item].dropna().unique()).astype(float)
        rows[item] = levels @ np.asarray(theta)
    means = pd.DataFrame.from_dict(rows, orient="index")
    means.columns = [f"component {h}" for h in range(means.shape[1])]
    everybody = answers.astype(float).mean()
    far = (means.sub(everybody, axis=0)).abs()
    largest = far.eq(far.max(axis=1), axis=0)
    shown = means.map("{:.1f}".format).where(~largest, "**" + means.map("{:.1f}".format) + "**")
    shown["everybody"] = everybody.map("{:.1f}".format)
    shown.loc["share of memberships"] = [
        *(f"{share:.2f}" for share in memberships.mean(axis=0)),
        "1",
    ]
    shown.index.name = "item"
    return shown


def _people(known: pd.DataFrame, memberships: np.ndarray) -> pd.DataFrame:
    """Return means of what is known of people, weighted by their memberships."""
    columns = {}
    wide = known.copy()
    if "VOTE3" in wide:
        vote = wide.pop("VOTE3")
        wide["voted Gore"] = (vote == 1).where(vote.notna()).astype(float)
        wide["voted Bush"] = (vote == 2).where(vote.notna()).astype(float)
    for h in range(memberships.shape[1]):
        weights = memberships[:, [h]] * wide.notna()
        columns[f"component {h}"] = (wide.fillna(0) * weights).sum() / weights.sum()
    shown = pd.DataFrame(columns)
    shown["everybody"] = wide.mean()
    shown.index.name = "known"
    return shown.map("{:.2f}".format)


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "survey.csv")
    own = make_units(options)
    run_units(own, do_unit, store, max_minutes=options.max_minutes)
    own += refined_units(store.table(own), options)
    run_units(own, do_unit, store, max_minutes=options.max_minutes)
    table = store.table(own)
    texts = [describe(table, name) for name in SURVEYS]
    body = f"`{command()}`\n\n{environment()}.\n\n" + "\n".join(texts)
    write_section(RESULTS, "Survey: readable components", body)
    print(body)


if __name__ == "__main__":
    main()
