"""What the experiments promise: no test sample has a part in anything before its test."""

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments.swift import articles, bbc, bbc_work, ehr, methods, patients, scaling
from experiments.swift.methods import METHODS, Part, fit_features, settings_at
from experiments.tables import mean_table
from scipy.sparse import coo_array

from polyad.datasets import make_sparse

DATA = os.environ.get("POLYAD_DATA", "")
needs_articles = pytest.mark.skipif(
    not DATA or not (Path(DATA) / "bbc").exists(), reason="POLYAD_DATA has no BBC News"
)
needs_patients = pytest.mark.skipif(
    not DATA or not (Path(DATA) / "ehr").exists(), reason="POLYAD_DATA has no patients"
)


@needs_articles
def test_articles_occur_once_and_pools_share_none():
    table = articles.load_articles()
    assert not table["title"].str.lower().str.strip().duplicated().any()
    assert not table["text"].str.strip().duplicated().any()
    development, evaluation = articles.pools()
    assert len(development) + len(evaluation) == len(table)
    assert not np.intersect1d(development, evaluation).size
    for sample in range(3):
        drawn = articles.draw_sample("evaluation", sample)
        assert len(np.unique(drawn)) == 400
        assert not np.intersect1d(drawn, development).size


@needs_articles
def test_folds_are_three_to_one_to_one_and_test_every_article_once():
    drawn = articles.draw_sample("evaluation", 0)
    tested = []
    for fold in range(5):
        parts = articles.split(drawn, 0, fold)
        assert [len(part) for part in parts] == [240, 80, 80]
        assert not any(np.intersect1d(a, b).size for a, b in combinations(parts, 2))
        tested.append(parts[2])
    np.testing.assert_array_equal(np.sort(np.concatenate(tested)), drawn)


@needs_articles
def test_the_words_do_not_depend_on_evaluation_articles(monkeypatch):
    before = articles.vocabulary("tfidf")
    development = set(articles.pools()[0])
    changed = [
        text if i in development else [["nonsense"]] for i, text in enumerate(articles.sentences())
    ]
    monkeypatch.setattr(articles, "sentences", lambda: changed)
    assert articles.vocabulary.__wrapped__("tfidf") == before


@needs_articles
def test_the_tensor_counts_sentences():
    chosen = articles.draw_sample("evaluation", 1)[:5]
    construction = articles.Construction()
    tensor = articles.make_tensor(chosen, construction).toarray()
    words = articles.vocabulary("tfidf")
    expected = np.zeros_like(tensor)
    for i, article in enumerate(chosen):
        for sentence in articles.sentences()[article]:
            found = [k for k, word in enumerate(words) if word in sentence]
            for j in found:
                for k in found:
                    expected[i, j, k] += j != k
    np.testing.assert_array_equal(tensor, expected)


@needs_articles
def test_a_unit_of_the_articles():
    kind = {"method": "PoissonCP", "rank": 3, "parameters": {"max_iter": 5}, "scaling": "log"}
    unit = next(
        bbc_work.units("table1", {}, [{**kind, "noise": 0.1, "few_labels": [20]}], samples=[0])
    )
    result = bbc_work.do_unit(unit)
    assert 0.2 < result["test"] <= 1
    assert "labels_20" in result
    assert bbc_work.do_unit(unit) == result


@needs_patients
def test_the_outcome_is_not_in_the_tensor():
    tensor, y = patients.make_cohort("2019", "Hypertension")
    medications, diagnoses = patients.load_tables("2019")
    assert "Hypertension" not in set(tensor.labels[1])
    code = diagnoses.loc[diagnoses["description"] == "Hypertension", "code"].iloc[0]
    given_for = medications.loc[medications["reason_code"] == code, "description"]
    assert not set(given_for) & set(tensor.labels[2])
    cases = set(diagnoses.loc[diagnoses["code"] == code, "patient"])
    assert [patient in cases for patient in tensor.labels[0]] == list(y.astype(bool))


@needs_patients
def test_a_unit_of_the_patients():
    kind = {"method": "PoissonCP", "rank": 3, "parameters": {"max_iter": 5}, "scaling": "log"}
    options = ehr.read_options(["--samples", "1"])
    unit = ehr.make_units("2019", options, [kind])[0]
    assert 0.2 < ehr.do_unit(unit)["test"] <= 1


@needs_patients
def test_the_direct_method_is_left_out_where_it_does_not_fit():
    few, many = (
        sum(unit["method"] == scaling.DIRECT for unit in scaling.make_units(options))
        for options in map(scaling.read_options, (["--memory-gb", "0.1"], ["--memory-gb", "100"]))
    )
    assert few < many == 13


def test_unknown_parts_and_methods_are_refused(capsys):
    for reader in (bbc.read_options, ehr.read_options):
        for arguments in (["--parts", "table9"], ["--methods", "PCA"]):
            with pytest.raises(SystemExit):
                reader(arguments)
            assert "is not known" in capsys.readouterr().err


def test_settings_of_the_nearest_rank():
    ranks = {"10": {"parameters": {"a": 1}}, "40": {"parameters": {"a": 2}}}
    chosen = {"scaling": "log", "ranks": ranks}
    found = [settings_at(chosen, rank)["parameters"]["a"] for rank in (5, 10, 20, 30, 40)]
    assert found == [1, 1, 2, 2, 2]


def test_features_of_a_fit_and_of_projections_have_one_unit():
    X = make_sparse((30, 8, 7), 900, skew=0.3, random_state=0)
    part = Part(coo_array(X), np.zeros(30), np.arange(30))
    (train, again, _), _ = fit_features(
        "PoissonCP", [part, part, part], {"max_iter": 300, "tol": 1e-9}, n_components=2, seed=0
    )
    np.testing.assert_allclose(train, again, rtol=1e-3, atol=1e-3)


def test_every_method_has_several_settings():
    assert all(len(method.grid) > 1 for method in METHODS.values())
    with pytest.raises(SystemExit, match="no method 'PCA'"):
        methods.method_of("PCA")


def test_tables_pair_by_sample():
    rows = [
        {"method": name, "rank": 5, "sample": sample, "fold": fold, "test": value + 0.1 * sample}
        for name, value in (("a", 0.5), ("b", 0.4))
        for sample in range(3)
        for fold in range(2)
    ]
    text = mean_table(pd.DataFrame(rows), ["a", "b"], "a", paper={"a": {5: 0.7}})
    assert "| a | 0.600 ± 0.100 (paper 0.700) |" in text
    assert "| b | -0.100 [-0.100, -0.100] |" in text
