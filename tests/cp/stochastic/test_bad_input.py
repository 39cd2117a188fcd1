"""Each wrong input gives one clear error before any work."""

import warnings

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

from polyad import StochasticCP
from polyad.exceptions import DataWarning, PolyadError

X = np.random.default_rng(0).random((6, 5, 4))


def with_value(value):
    bad = X.copy()
    bad[1, 2, 3] = value
    return bad


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (np.zeros((0, 5, 4)), r"0 sample\(s\)"),
        (np.zeros((6, 0, 4)), r"0 feature\(s\)"),
        (np.zeros(5), "Expected 2D array"),
        (np.float64(3), "Expected 2D array"),
        ("text", "X is a str"),
        (None, "X is a NoneType"),
        ({"a": X}, "X is a dict"),
        (with_value(np.inf), r"infinity, first at \(1, 2, 3\)"),
        (np.full((6, 5, 4), np.nan), "Every entry is NaN"),
        (coo_array(with_value(np.nan)), r"NaN, first at \(1, 2, 3\)"),
        (X.astype(complex), "Complex data not supported"),
        (with_value(1e200), "Scale the data"),
        ([X, X[:, :2]], "In batch 1"),
    ],
)
def test_data(data, says):
    with pytest.raises(PolyadError, match=says):
        StochasticCP(2).fit(data)


def asymmetric():
    graph = np.ones((6, 6))
    graph[0, 1] = 2.0
    return graph


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": 21}, "rank at most 20"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": 1.5}, "learning_rate"),
        ({"learning_rate": "constant"}, "learning_rate"),
        ({"ridge": -1.0}, "ridge"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"graph_weight": -1.0}, "graph_weight"),
        ({"graph": "complete", "graph_weight": 1e300}, "no digit of it would be left: give at"),
        ({"graph": "neighbours"}, "graph='neighbours' is not understood"),
        ({"graph": 3}, "graph is a int"),
        ({"graph": np.ones((5, 5))}, r"\(6, 6\) is needed"),
        ({"graph": np.ones((6, 5))}, r"\(6, 6\) is needed"),
        ({"graph": np.ones(6)}, r"\(6, 6\) is needed"),
        ({"graph": -np.ones((6, 6))}, r"graph is negative: -1.0 at \(0, 0\)"),
        ({"graph": np.full((6, 6), np.nan)}, r"graph is not finite: nan at \(0, 0\)"),
        ({"graph": asymmetric()}, "not symmetric"),
        ({"graph": csr_array(asymmetric())}, "not symmetric"),
        ({"graph": np.full((6, 6), "a")}, "no matrix of numbers"),
        ({"tol": -1e-3}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"init": "nndsvd"}, "init='nndsvd' is not understood. Give 'svd', 'random', a Kruskal"),
        ({"init": "search"}, "'search' is for classes that fit all of the data at once"),
        ({"init": [np.ones((6, 2)), np.ones((5, 2))]}, "factors of shape"),
        ({"init": [np.ones((6, 2)), np.ones((4, 2)), np.ones((4, 2))]}, "factors of shape"),
        ({"init": [np.full((n, 2), np.nan) for n in X.shape]}, "NaN or infinity"),
        ({"fixed_modes": [1]}, "has none"),
        ({"fixed_modes": [0], "init": [np.ones((n, 2)) for n in X.shape]}, "always solved for"),
        ({"fixed_modes": [1, 2], "init": [np.ones((n, 2)) for n in X.shape]}, "nothing to learn"),
        ({"checkpoint": 3}, "give a path"),
    ],
)
def test_parameters(parameters, says):
    calls = []
    model = StochasticCP(**{"n_components": 2, "callbacks": calls.append, **parameters})
    with pytest.raises((PolyadError, ValueError, TypeError), match=says):
        model.fit(X)
    assert calls == []
    assert not hasattr(model, "factors_")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (X[0], "X has 2 modes"),
        (X[:, :3], "size 3 in mode 1, but StochasticCP was fitted to the size 5"),
        (with_value(np.inf), "infinity"),
        (X[:0], r"0 sample\(s\)"),
    ],
)
def test_new_samples(data, says):
    model = StochasticCP(2, random_state=0).fit(X)
    for method in (model.transform, model.score, model.partial_fit):
        with pytest.raises(PolyadError, match=says):
            method(data)


def test_an_empty_sparse_tensor_has_no_observations():
    empty = coo_array((6, 5, 4))
    with pytest.raises(PolyadError, match="nothing was observed"):
        StochasticCP(2, missing="unobserved").fit(empty)


def test_factors_that_are_not_finite_give_no_score():
    model = StochasticCP(2, random_state=0).fit(X)
    model.factors_[1][:] = np.nan
    with pytest.raises(PolyadError, match="not a finite number"):
        model.score(X)


@pytest.mark.parametrize("size", [1e-3, 1e-12])
def test_a_ridge_that_takes_everything_is_named(size):
    model = StochasticCP(2, batch_size=3, random_state=0)
    with pytest.warns(DataWarning, match=r"every component is zero.*ridge=0\.001 is too large"):
        model.fit(size * X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        model.set_params(ridge=0.0).fit(size * X)
    assert model.score(size * X) > 0.5
