"""Random starts against singular ones, splits, and a search: how low they end, how steady they are.

    POLYAD_DATA=folder python -m experiments.optima.starts

Four development sets of counts of different kinds, fitted by PoissonCP with its defaults: patients
x diagnoses x medications (Synthea 2019), words that meet in articles x groups of articles (BBC,
symmetric), flights by day, hour, carrier and destination (four modes), and a matrix of 20,000 x
10,000 with 20 planted topics. Two more were held out while starts and moves were chosen: patients
of another state (Synthea 2017), and users x artists x tags (Last.fm). Ten random starts are the
yardstick. Finished fits are kept in ``starts.csv``; the tables go to ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from sklearn.feature_extraction.text import CountVectorizer

from experiments.data import data_file
from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    run_units,
    words,
    write_section,
)
from experiments.swift.articles import load_articles
from experiments.swift.patients import load_tables
from polyad import PoissonCP
from polyad.metrics import factor_match_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.tensor import KruskalTensor

Unit = dict[str, Any]

HERE = Path(__file__).parent
RANKS = {
    "patients": 10,
    "contacts": 10,
    "flights": 10,
    "topics": 20,
    "patients 2017": 10,
    "tags": 10,
}
HELD_OUT = ("patients 2017", "tags")
N_RANDOM, N_OTHER = 10, 2
# A search follows from the data alone, and is made once.
N_SEARCH = 1
#: What each method gives PoissonCP.
METHODS: dict[str, dict[str, Any]] = {
    "random": {"init": "random"},
    "svd": {"init": "svd"},
    "split": {"init": "split"},
    "search of 3": {"init": "search", "n_init": 3},
    "search of 8": {"init": "search", "n_init": 8},
}
# Words, groups of articles, and the part of the articles that make the symmetric set.
N_WORDS, N_GROUPS, EVERY = 242, 130, 10


def _counted(coords: Sequence[np.ndarray], values: np.ndarray, shape: tuple[int, ...]) -> coo_array:
    tensor = coo_array((values, tuple(coords)), shape=shape)
    tensor.sum_duplicates()
    return tensor


def make_patients(year: str = "2019") -> coo_array:
    """Return 1 for each diagnosis and medication that a patient ever had."""
    medications, diagnoses = load_tables(year)
    given = medications[["patient", "code"]].drop_duplicates()
    pairs = (
        diagnoses[["patient", "code"]]
        .drop_duplicates()
        .merge(given, on="patient", suffixes=("_d", "_m"))
    )
    codes = [pairs[name].astype("category").cat.codes for name in ("patient", "code_d", "code_m")]
    shape = tuple(int(row.max()) + 1 for row in codes)
    return _counted([row.to_numpy() for row in codes], np.ones(len(pairs)), shape)


def make_contacts() -> coo_array:
    """Return how many articles of a group have both of two words: symmetric in the words."""
    texts = load_articles()["text"]
    counter = CountVectorizer(stop_words="english", max_features=N_WORDS, binary=True)
    has = counter.fit_transform(texts).tocsr()[::EVERY].astype(float)
    group = np.arange(has.shape[0]) * N_GROUPS // has.shape[0]
    coords, values = [], []
    for k in range(N_GROUPS):
        both = (has[group == k].T @ has[group == k]).tocoo()
        apart = both.row != both.col
        coords.append(np.stack([both.row, both.col, np.full(both.nnz, k)])[:, apart])
        values.append(both.data[apart])
    shape = (N_WORDS, N_WORDS, N_GROUPS)
    return _counted(np.concatenate(coords, axis=1), np.concatenate(values), shape)


def make_flights() -> coo_array:
    """Return the flights from New York in 2013, over all three airports."""
    stored = np.load(data_file("sparse/nycflights13.npz"), allow_pickle=False)
    modes = [0, 1, 2, 4]
    shape = tuple(int(stored["shape"][k]) for k in modes)
    coords = [stored["coords"][:, k] for k in modes]
    return _counted(coords, stored["values"].astype(float), shape)


def make_topics(n: int = 20_000, m: int = 10_000, n_topics: int = 20) -> coo_array:
    """Return words of documents that mix few of the planted topics, about 1.6 million nonzeros."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(m, 0.02), n_topics)
    shares = rng.dirichlet(np.full(n_topics, 0.1), n)
    lengths = rng.poisson(rng.gamma(2.0, 43.75, n))
    rows, columns = [], []
    for topic, share in zip(topics, shares.T, strict=True):
        counts = rng.binomial(lengths, share)
        rows.append(np.repeat(np.arange(n), counts))
        columns.append(rng.choice(m, counts.sum(), p=topic))
    row, column = np.concatenate(rows), np.concatenate(columns)
    return _counted((row, column), np.ones(len(row)), (n, m))


def make_tags() -> coo_array:
    """Return the tags that users gave to artists."""
    stored = np.load(data_file("sparse/lastfm_tags.npz"), allow_pickle=False)
    coords = [np.unique(column, return_inverse=True)[1] for column in stored["coords"].T]
    shape = tuple(int(row.max()) + 1 for row in coords)
    return _counted(coords, np.ones(len(coords[0])), shape)


SETS = {
    "patients": make_patients,
    "contacts": make_contacts,
    "flights": make_flights,
    "topics": make_topics,
    "patients 2017": partial(make_patients, "2017"),
    "tags": make_tags,
}


@cache
def load_set(name: str) -> coo_array:
    """Return a set, after a short fit of it that compiles what is needed."""
    tensor = SETS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        PoissonCP(3, init="search", n_init=2, max_iter=1, n_jobs=1, random_state=0).fit(tensor)
    return tensor


@cache
def fit(name: str, method: str, start: int) -> tuple[Unit, KruskalTensor]:
    """Return what came of a fit with one thread, and its model."""
    X = load_set(name)
    began = time.process_time()
    model = PoissonCP(RANKS[name], **METHODS[method], n_jobs=1, random_state=start).fit(X)
    took = time.process_time() - began
    told = {"objective": model.objective_, "cpu": took, "iterations": model.n_iter_}
    return told, model.kruskal_


def do_unit(unit: Unit) -> Unit:
    """Return the objective and processor seconds of a fit, and its match with that of start 0."""
    name, method = unit["set"], unit["method"]
    told, model = fit(name, method, unit["start"])
    first = fit(name, method, 0)[1]
    return {**told, "match": factor_match_score(model, first)}


def make_units(sets: Sequence[str]) -> list[Unit]:
    """Return the fits."""
    return [
        {"set": name, "method": method, "start": start}
        for name in sets
        for method in METHODS
        for start in range(
            {"random": N_RANDOM, "svd": N_OTHER, "split": N_OTHER}.get(method, N_SEARCH)
        )
        if method != "split" or name not in HELD_OUT
    ]


def report(table: pd.DataFrame) -> str:
    """Return a row for each set and method: objectives, time in random fits, and the match."""
    rows = {}
    for (name, method), fits in table.groupby(["set", "method"], sort=False):
        random = table[(table["set"] == name) & (table["method"] == "random")]
        # Others than start 0 may be of an earlier run, when the machine was less or more busy.
        first = random.sort_values("start").iloc[0]
        unit = random["iterations"].mean() * first["cpu"] / first["iterations"]
        further = fits.loc[fits["start"] > 0, "match"]
        above = 100 * (fits["objective"] / random["objective"].min() - 1)
        rows[f"{name}, {method}"] = {
            "fits": len(fits),
            "lowest": f"{fits['objective'].min():.6g}",
            "median above the best random, %": f"{above.median():+.2f}",
            "highest, %": f"{above.max():+.2f}",
            "time in random fits": f"{fits['cpu'].mean() / unit:.1f}",
            "match with start 0": f"{further.mean():.2f}" if len(further) else "",
        }
    shown = pd.DataFrame.from_dict(rows, orient="index")
    shown.index.name = "set, method"
    return markdown(shown)


def main(arguments: list[str] | None = None) -> None:
    """Do the fits that are not done, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=words, default=tuple(SETS))
    parser.add_argument("--max-minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    store = Store(HERE / "starts.csv")
    units = make_units(options.sets)
    run_units(units, do_unit, store, max_minutes=options.max_minutes)
    table = store.table(make_units(tuple(SETS)))
    held_out = table["set"].isin(HELD_OUT)
    body = (
        f"`{command()}`, {environment()}, 2 cores, one thread for each fit. Objectives are "
        "divergences. Time is that of the processor, in random fits: the mean number of their "
        "iterations, at the time of those of start 0. The match is the factor match score with the "
        "model of start 0, a mean over the others; a search gives the same for every seed.\n\n"
        + "Sets on which starts and moves were chosen:\n\n"
        + report(table[~held_out])
        + "\n\nSets that were held out:\n\n"
        + report(table[held_out])
    )
    write_section(HERE / "RESULTS.md", "Starts of PoissonCP", body)


if __name__ == "__main__":
    main()
