"""Labels of samples that come in batches: the graph is found by them, names of columns are kept."""

import numpy as np
import pandas as pd
import pytest

from polyad import LabelledTensor, StochasticCP
from polyad.exceptions import InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
N = 24
NAMES = np.array([f"s{k:02d}" for k in range(N)])
PARAMETERS = {"n_components": 2, "graph_weight": 5.0, "random_state": 0, "max_iter": 1}
X = np.random.default_rng(0).random((N, 6))


def graph():
    """Return similarities, and as a table: in another order, with a stranger."""
    generator = np.random.default_rng(1)
    matrix = generator.random((N, N))
    matrix = matrix + matrix.T
    names = [*NAMES, "stranger"]
    table = pd.DataFrame(np.pad(matrix, (0, 1)), index=names, columns=names)
    order = generator.permutation(names)
    return matrix, table.loc[order, order[::-1]]


def tables(names=NAMES):
    frame = pd.DataFrame(X, index=names, columns=list("abcdef"))
    return [frame.iloc[:7], frame.iloc[7:16], frame.iloc[16:]]


def tensors():
    parts = [slice(0, 7), slice(7, 16), slice(16, N)]
    return [
        LabelledTensor(X[p], modes=["sample", "b"], labels=[NAMES[p], list("abcdef")])
        for p in parts
    ]


def by_parts(model, parts):
    for part in parts:
        model.partial_fit(part)
    return model


WAYS = {
    "list": lambda model, parts: model.fit(parts),
    "generator": lambda model, parts: model.fit(iter(parts)),
    "callable": lambda model, parts: model.fit(lambda: parts),
    "partial_fit": by_parts,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [tables, tensors])
def test_the_graph_of_batches_goes_by_label(way, make):
    matrix, table = graph()
    # A random batch weights its edges by the size of the graph: no stranger there.
    table = table.drop(index="stranger", columns="stranger") if way == "partial_fit" else table
    expected = WAYS[way](StochasticCP(**PARAMETERS, graph=matrix), make())
    found = WAYS[way](StochasticCP(**PARAMETERS, graph=table), make())
    for own, other in zip(found.factors_, expected.factors_, strict=True):
        np.testing.assert_array_equal(own, other)
    plain = WAYS[way](StochasticCP(**PARAMETERS), make())
    assert not np.array_equal(plain.factors_[1], expected.factors_[1])


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_without_some_samples_is_refused(way):
    part = graph()[1].drop(index="s11", columns="s11")
    with pytest.raises(InvalidInputError, match=r"graph has no row for 1 samples .*'s11'"):
        WAYS[way](StochasticCP(**PARAMETERS, graph=part), tables())
    with pytest.raises(InvalidInputError, match="but the data has no labels"):
        WAYS[way](StochasticCP(**PARAMETERS, graph=part), [X[:7], X[7:]])


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_tables_tell_the_names_of_their_columns(way):
    model = WAYS[way](StochasticCP(2, random_state=0, max_iter=1), tables())
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert model.feature_names_in_.dtype == object
    assert model.transform(tables()).shape == (N, 2)
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(tables()[0].rename(columns={"a": "z"}))
    assert not hasattr(WAYS[way](StochasticCP(2, max_iter=1), tensors()), "feature_names_in_")


def test_a_warm_start_with_another_rank_says_both():
    model = StochasticCP(2, random_state=0, max_iter=1, warm_start=True).fit(X)
    with pytest.raises(InvalidInputError, match=r"model of 2 components, but n_components=3"):
        model.set_params(n_components=3).fit(X)
