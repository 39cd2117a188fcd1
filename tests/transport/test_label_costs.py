"""Costs of labels against loops over pairs, and in models: by label, in files and checkpoints."""

from itertools import product

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from sklearn.base import clone

import polyad
from polyad import LabelledTensor, SimilarityCP, WassersteinCP
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.fitting.identity import digest_of
from polyad.transport import (
    cosine_cost,
    embedding_cost,
    graph_cost,
    label_costs,
    mixed_cost,
    prefix_cost,
    taxonomy_cost,
    validate_cost,
    wasserstein_distance,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
PARENTS = {
    **{"angina": "heart", "infarct": "heart", "asthma": "lung", "heart": "chest"},
    **{"lung": "chest", "chest": "disease", "gout": "joints", "joints": "disease"},
}
CODES = ["J45.1", "J45.9", "J44", "I20", "I10", "J4"]


def assert_is_a_cost(frame, labels):
    assert list(frame.index) == list(frame.columns) == list(labels)
    values = frame.to_numpy()
    np.testing.assert_array_equal(values, values.T)
    np.testing.assert_array_equal(np.diag(values), 0.0)
    assert values.min() >= 0
    assert values.max() <= 1


def dice(first, second):
    return 1 - 2 * len(first & second) / (len(first) + len(second)) if first | second else 0.0


def pairwise(labels, cost):
    values = [[0.0 if a == b else cost(a, b) for b in labels] for a in labels]
    return pd.DataFrame(values, index=labels, columns=labels)


# Trees.


def groups_of(label, parents):
    groups = set()
    while parents.get(label, label) != label:  # the root is none
        groups.add(label)
        label = parents[label]
    return groups


def tree_twin(parents, labels):
    return pairwise(labels, lambda a, b: dice(groups_of(a, parents), groups_of(b, parents)))


@given(st.integers(0, 10**6), st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_a_tree_is_its_loop(seed, size):
    generator = np.random.default_rng(seed)
    names = generator.permutation(size).tolist()
    parents = {names[k]: names[generator.integers(0, k)] for k in range(1, size)}
    labels = generator.permutation(names)[: generator.integers(1, size + 1)].tolist()
    found = taxonomy_cost(parents, labels)
    assert_is_a_cost(found, labels)
    pd.testing.assert_frame_equal(found, tree_twin(parents, labels))


def test_every_form_of_a_table_of_parents():
    labels = np.array(["gout", "angina", "heart", "asthma", "disease"])
    expected = tree_twin(PARENTS, labels)
    columns = {"child": list(PARENTS), "parent": list(PARENTS.values())}
    rooted = {**PARENTS, "disease": None}
    own = {**PARENTS, "disease": "disease"}
    twice = pd.concat([pd.DataFrame(columns)] * 2)
    for table in (PARENTS, pd.Series(PARENTS), twice, pl.DataFrame(columns), rooted, own):
        pd.testing.assert_frame_equal(taxonomy_cost(table, labels), expected)
    everything = taxonomy_cost(PARENTS)
    assert set(everything.index) == set(PARENTS) | {"disease"}
    pd.testing.assert_frame_equal(everything.loc[labels, labels], expected)


@pytest.mark.parametrize(
    ("parents", "labels", "text"),
    [
        ({**PARENTS, "chest": "angina"}, None, "in a circle: 'angina' -> 'heart' -> 'chest' -> 'a"),
        ({"a": "x", "b": "y"}, None, "2 roots above its labels, 'x', 'y'.*'x' -> 'all'"),
        (PARENTS, ["gout", "flu"], "does not have 1 of 2 labels, first 'flu'"),
        (PARENTS, ["gout", "gout"], "must be unique"),
        (pd.DataFrame({"c": ["a", "a"], "p": ["x", "y"]}), None, "2 parents for 'a': 'x', 'y'"),
        (pd.DataFrame({"c": ["a", None], "p": ["x", "y"]}), None, "a row without a child"),
        ({}, None, "has no rows"),
        ({"a": ["x", "y"]}, None, "parents that are no labels"),
        (pd.DataFrame({"c": ["a"]}), None, "a DataFrame of 1 columns"),
        ([("a", "x")], None, "The taxonomy is a list; give a dict"),
    ],
)
def test_bad_taxonomies_are_refused(parents, labels, text):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=text):
        taxonomy_cost(parents, labels)


def test_only_the_roots_of_the_labels_count():
    forest = {**PARENTS, "oak": "plant"}
    pd.testing.assert_frame_equal(
        taxonomy_cost(forest, ["gout", "heart"]), tree_twin(PARENTS, ["gout", "heart"])
    )


def test_a_table_of_very_many_labels_needs_those_of_the_data(monkeypatch):
    monkeypatch.setattr(label_costs, "_MOST_LABELS", 5)
    with pytest.raises(InvalidInputError, match=r"has 9 labels.*labels=tensor.labels"):
        taxonomy_cost(PARENTS)
    assert taxonomy_cost(PARENTS, ["gout", "heart"]).shape == (2, 2)


# Codes.


def code_twin(codes, lengths=None):
    def groups(code):
        text = "".join(letter for letter in code if letter.isalnum())
        return {text[:n] for n in lengths or range(1, len(text))} | {text}

    return pairwise(codes, lambda a, b: dice(groups(a), groups(b)))


@pytest.mark.parametrize("lengths", [None, (1, 3), (3,), (2, 9)])
def test_codes_are_their_loop(lengths):
    found = prefix_cost(CODES, lengths)
    assert_is_a_cost(found, CODES)
    pd.testing.assert_frame_equal(found, code_twin(CODES, lengths))


def test_the_same_code_written_twice_costs_nothing():
    assert prefix_cost(["J45.1", "J451"]).to_numpy().max() == 0


def test_long_codes_take_no_square_of_their_length():
    cost = prefix_cost(["a" * 30_000, "a" * 29_999 + "b", "b"])
    np.testing.assert_allclose(cost.to_numpy()[0], [0.0, 1 / 30_000, 1.0], rtol=1e-9)


@pytest.mark.parametrize("separator", ["", 3])
def test_bad_separators_are_refused(separator):
    with pytest.raises(InvalidInputError, match="separator"):
        prefix_cost(["a;b"], separator=separator)


def test_columns_of_one_name_are_two_columns():
    rows = [["a", "r"], ["b", "r"]]
    table = pd.DataFrame(rows, columns=["code", "code"])
    assert taxonomy_cost(table).equals(taxonomy_cost(dict(rows)))
    named = pd.DataFrame(rows, columns=["from", "to"])
    assert graph_cost(table).equals(graph_cost(named))


def test_labels_that_name_their_groups():
    lineages = ["Bacteria;Firmicutes;Bacilli", "Bacteria; Firmicutes", "Archaea"]
    found = prefix_cost(lineages, separator=";")
    np.testing.assert_allclose(found.to_numpy(), [[0, 0.2, 1], [0.2, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("labels", "lengths", "text"),
    [
        ([401, 402], None, "type int64 have no prefixes"),
        (["J45", "--"], None, "'--' has no letter and no digit"),
        (["J45", "J45"], None, "must be unique"),
        (CODES, (3, 1), "at least one and rising"),
        (CODES, (0, 1), "at least one and rising"),
        (CODES, (1.5,), "whole numbers"),
        (CODES, (), "whole numbers"),
    ],
)
def test_bad_codes_are_refused(labels, lengths, text):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=text):
        prefix_cost(labels, lengths)


# Vectors.


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_vectors_are_their_loop(metric, scale, monkeypatch):
    monkeypatch.setattr(label_costs, "_BLOCK_SIZE", 20)
    labels = list("abcdefg")
    vectors = np.random.default_rng(0).standard_normal((7, 3))
    vectors[3] = 0.0
    by_label = dict(zip(labels, vectors, strict=True))

    def cosine(a, b):
        lengths = np.linalg.norm(by_label[a]) * np.linalg.norm(by_label[b])
        return min(1.0, 1 - by_label[a] @ by_label[b] / lengths) if lengths else 1.0

    def distance(a, b):
        return np.linalg.norm(by_label[a] - by_label[b])

    expected = pairwise(labels, cosine if metric == "cosine" else distance)
    expected /= expected.to_numpy().max()
    frame = pd.DataFrame(scale * vectors, index=labels)
    found = embedding_cost(frame, metric=metric)
    assert_is_a_cost(found, labels)
    pd.testing.assert_frame_equal(found, expected, atol=1e-12)
    polars = pl.DataFrame({"label": labels, **{f"v{k}": scale * vectors[:, k] for k in range(3)}})
    given_dict = {label: scale * vector for label, vector in by_label.items()}
    for form in (polars, given_dict):
        pd.testing.assert_frame_equal(embedding_cost(form, labels, metric=metric), found)


def test_alike_vectors_and_a_single_one_have_no_distance():
    for vectors in ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0], "b": [1.0, 2.0]}):
        for metric in ("cosine", "euclidean"):
            np.testing.assert_allclose(embedding_cost(vectors, metric=metric), 0.0, atol=1e-15)


@pytest.mark.parametrize(
    ("vectors", "options", "text"),
    [
        (pd.DataFrame([[1.0], [np.nan]], index=["a", "b"]), {}, "1 labels are not finite.*'b'"),
        (pd.DataFrame([[1.0], [2.0]], index=["a", "a"]), {}, "two vectors for 'a'"),
        (pd.DataFrame([["x"]], index=["a"]), {}, "no numbers"),
        ({"a": [1.0]}, {"labels": ["a", "b"]}, "does not have 1 of 2 labels, first 'b'"),
        ({"a": [1.0], "b": [1.0, 2.0]}, {}, r"of the shapes \[\(1,\), \(2,\)\]; give one length"),
        ({}, {}, r"of the shapes \[\]"),
        ({"a": [1.0]}, {"metric": "cos"}, "not one of 'cosine', 'euclidean'"),
        (np.ones((2, 2)), {}, "The embedding is a ndarray; give a table"),
        (pd.DataFrame(columns=["x"]), {}, "no labels"),
        ({"a": [1j], "b": [1.0]}, {}, "no numbers"),
    ],
)
def test_bad_vectors_are_refused(vectors, options, text):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=text):
        embedding_cost(vectors, **options)


# Graphs.


def shortest_twin(edges, labels):
    """Return the ways of Floyd and Warshall."""
    nodes = sorted({end for edge in edges for end in edge[:2]})
    far = {(a, b): 0.0 if a == b else np.inf for a, b in product(nodes, nodes)}
    for a, b, length in edges:
        far[a, b] = far[b, a] = min(far[a, b], length)
    for over, a, b in product(nodes, nodes, nodes):
        far[a, b] = min(far[a, b], far[a, over] + far[over, b])
    return pairwise(labels, lambda a, b: far[a, b])


def test_graphs_are_their_loop(monkeypatch):
    monkeypatch.setattr(label_costs, "_BLOCK_SIZE", 20)
    generator = np.random.default_rng(0)
    ends = [(k - 1, k) for k in range(1, 12)] + generator.integers(0, 12, (12, 2)).tolist()
    edges = [(f"n{a}", f"n{b}", generator.random()) for a, b in ends]
    edges.append((*edges[0][1::-1], 2.0))  # longer, and the other way round: it does not count
    table = pd.DataFrame(edges, columns=["from", "to", "length"])
    labels = ["n7", "n0", "n3"]
    expected = shortest_twin(edges, labels)
    for form in (table, pl.DataFrame(table.to_dict("list"))):
        pd.testing.assert_frame_equal(graph_cost(form, labels), expected)
    whole = graph_cost(table, scaled=True)
    assert_is_a_cost(whole, pd.unique(table[["from", "to"]].to_numpy().T.ravel()))
    assert whole.to_numpy().max() == 1
    hops = shortest_twin([(*edge[:2], 1.0) for edge in edges], labels)
    pd.testing.assert_frame_equal(graph_cost(table[["from", "to"]], labels), hops)
    nodes = list(whole.index)
    lengths = pd.DataFrame(0.0, index=nodes, columns=nodes)
    for a, b, length in edges[::-1]:
        if a != b:
            lengths.loc[a, b] = length
    sparse = coo_array(lengths.to_numpy())
    unlabelled = graph_cost(sparse)
    np.testing.assert_array_equal(graph_cost(sparse, nodes), unlabelled)
    matched = graph_cost(lengths.loc[nodes[::-1]], labels)
    np.testing.assert_allclose(matched, graph_cost(sparse, nodes).loc[labels, labels], rtol=1e-15)


def test_the_largest_of_scaled_costs_is_one_in_any_unit():
    for length in (5e-324, 1e308):
        assert graph_cost([[0, length], [0, 0]], scaled=True).max() == 1.0


def test_an_edge_of_no_length_joins_its_ends():
    edges = pd.DataFrame({"a": ["x", "y"], "b": ["y", "z"], "length": [0.0, 1.0]})
    np.testing.assert_array_equal(graph_cost(edges), [[0, 0, 1], [0, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("graph", "options", "text"),
    [
        (pd.DataFrame([["a", "b"], ["c", "d"]]), {}, "no way from 'a' to 'c'.*long edges"),
        (pd.DataFrame([["a", "b", -1.0]]), {}, "negative or not finite, first -1.0"),
        (pd.DataFrame([["a", "b", np.nan]]), {}, "negative or not finite, first nan"),
        (pd.DataFrame([["a", "b", "far"]]), {}, "lengths of edges, column 2, are no numbers"),
        (pd.DataFrame([["a", None]]), {}, "without a label at one end"),
        (pd.DataFrame([["a", "b", 1.0, 2.0]]), {}, "a table of 4 columns and 1 rows"),
        (pd.DataFrame([["a", "b"]]), {"labels": ["a", "c"]}, "does not have 1 of 2 labels"),
        (np.ones((2, 2)), {"labels": ["a"]}, "has 2 nodes, and there are 1 labels"),
        (pd.DataFrame(np.ones((2, 2)), list("aa"), list("aa")), {}, "a label twice"),
        (np.ones((2, 3)), {}, r"has the shape \(2, 3\)"),
        (np.ones((0, 0)), {}, r"has the shape \(0, 0\)"),
        (pd.DataFrame([[[1], [2]]]), {}, "ends are no labels"),
    ],
)
def test_bad_graphs_are_refused(graph, options, text):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=text):
        graph_cost(graph, **options)


# In models.


def records(codes=CODES):
    X = np.random.default_rng(0).poisson(0.4, (9, len(codes), 4)).astype(float)
    drugs = ["R03A", "R03B", "C07", "C09"]
    return LabelledTensor(
        coo_array(X), modes=["patient", "code", "drug"], labels=[None, codes, drugs]
    )


OPTIONS = {"random_state": 0, "max_iter": 3, "tol": 0.0}


def mixture():
    shuffled = prefix_cost(["I99", *CODES[::-1]], (1, 3))
    return mixed_cost([(shuffled, 0.5), ("cosine", 0.25), ("prefix", 0.25)])


def test_costs_by_name_and_in_sums():
    X = records()
    model = WassersteinCP(2, costs={"code": mixture(), "drug": "prefix"}, **OPTIONS).fit(X)
    cosine = cosine_cost(X, 1)
    sum_ = 0.5 * code_twin(CODES, (1, 3)) + 0.25 * cosine + 0.25 * code_twin(CODES)
    np.testing.assert_allclose(model.costs_[1], sum_, atol=1e-14)
    np.testing.assert_allclose(model.costs_[2], code_twin(X.labels[2].tolist()))
    by_name = mixed_cost({"cosine": 1.0, "prefix": 2.0})
    found = WassersteinCP(2, costs={"code": by_name}, **OPTIONS).fit(X).costs_[1]
    np.testing.assert_allclose(found, cosine + 2 * code_twin(CODES), atol=1e-14)


def test_sums_are_kept_by_clones_files_and_checkpoints(tmp_path):
    X = records()
    model = WassersteinCP(2, costs={"code": mixture(), 2: "prefix"}, **OPTIONS).fit(X)
    model.save(tmp_path / "model")
    loaded = polyad.load(tmp_path / "model")
    for other in (clone(model), clone(loaded)):
        assert other.fit(X).objective_ == model.objective_
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    assert digest_of(mixture()) == digest_of(mixture())
    assert digest_of(mixture()) != digest_of(mixed_cost({"cosine": 0.5, "prefix": 0.5}))
    path = tmp_path / "checkpoint"
    again = WassersteinCP(2, costs={"code": mixture()}, checkpoint=path, **OPTIONS).fit(X)
    longer = clone(again).set_params(costs={"code": mixture()}, max_iter=5).fit(X)
    assert longer.n_iter_ == 5


def test_a_function_in_a_sum_is_stored_as_what_it_gave(tmp_path):
    X = records()
    costs = {"code": mixed_cost([(cosine_cost, 0.5), ("prefix", 0.5)])}
    model = WassersteinCP(2, costs=costs, **OPTIONS).fit(X)
    model.save(tmp_path / "model")
    loaded = polyad.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.costs["code"], model.costs_[1])


def test_a_sum_for_samples_is_made_for_new_ones():
    X = records()
    model = WassersteinCP(2, costs={0: mixed_cost({"cosine": 0.5, "presence": 0.5})}, **OPTIONS)
    assert model.fit(X).transform(X[:4]).shape == (4, 2)
    fixed = mixed_cost([("cosine", 0.5), (1 - np.eye(9), 0.5)])
    model = WassersteinCP(2, costs={0: fixed}, **OPTIONS).fit(X)
    with pytest.raises(InvalidInputError, match="a matrix for the 9 samples of the fit"):
        model.transform(X[:4])


def test_costs_of_labels_elsewhere():
    near = prefix_cost(CODES)
    masses = np.random.default_rng(0).dirichlet(np.ones(len(CODES)), 2)
    one = wasserstein_distance(*masses, near.to_numpy())
    half = wasserstein_distance(*masses, mixed_cost([(near.to_numpy(), 0.5)]))
    assert half == pytest.approx(0.5 * one)
    shuffled = mixed_cost([(near.iloc[::-1], 2.0)])
    np.testing.assert_array_equal(validate_cost(shuffled, len(CODES), CODES), 2 * near)
    model = SimilarityCP(2, similarities={"code": 1 - near}, random_state=0, max_iter=2)
    assert model.fit(records()).roughness_.shape == (3, 2)


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ({"patient": "prefix"}, "'prefix' for mode 0 .'patient'., which has no labels"),
        ({"code": mixed_cost([("prefix", 1.0), ("separate", 1.0)])}, "nothing moves. Leave it out"),
        (
            {"code": mixed_cost({"icd": 1.0})},
            "names 'icd' for mode 1 .'code'.. Known names .*'prefi",
        ),
        ({"code": prefix_cost(["J44", "J45"])}, "has no row for 5 of its labels, first 'J45.1'"),
    ],
)
def test_bad_costs_of_labels_are_refused(costs, text):
    with pytest.raises(InvalidInputError, match=text):
        WassersteinCP(2, costs=costs).fit(records())


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"cosine": -0.5, "prefix": 1.0}, r"weights of a sum are \[-0.5, 1.0\]"),
        ({"cosine": 0.0}, "not all of them zero"),
        ({"cosine": np.nan}, "Give finite numbers"),
        ({"cosine": "1"}, "Give finite numbers"),
        ({"cosine": 10**400}, "Give finite numbers"),
        ([(mixed_cost({"cosine": 1.0}), 0.5)], "a sum inside"),
        ([], "a list of pairs"),
        ("cosine", "a list of pairs"),
        (["cosine", "prefix"], "a list of pairs"),
    ],
)
def test_bad_sums_are_refused(parts, text):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=text):
        mixed_cost(parts)


def test_a_name_without_data_is_refused():
    with pytest.raises(InvalidTypeError, match="'cosine', which is no matrix of numbers"):
        validate_cost(mixed_cost({"cosine": 1.0}), 2)


def test_sums_that_are_no_costs_are_refused():
    two, three = (np.ones((n, n)) - np.eye(n) for n in (2, 3))
    with pytest.raises(InvalidInputError, match=r"shapes \(2, 2\) and \(3, 3\)"):
        validate_cost(mixed_cost([(two, 1.0), (three, 1.0)]))
    with pytest.raises(InvalidInputError, match="beyond the range"):
        validate_cost(mixed_cost([(two, 1e308), (two, 1e308)]))
