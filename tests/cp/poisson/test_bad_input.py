"""Each wrong input gives one clear error before any work."""

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import PoissonCP
from polyad.exceptions import PolyadError

X = np.random.default_rng(0).poisson(2.0, (6, 5, 4)).astype(float)


def with_value(value):
    bad = X.copy()
    bad[1, 2, 3] = value
    return bad


def start(**replaced):
    factors = [np.ones((n, 2)) for n in X.shape]
    for mode, value in replaced.items():
        factors[int(mode[1:])][0, 1] = value
    return factors


NOTHING = coo_array((np.zeros(0), [np.zeros(0, int)] * 3), shape=(3, 3, 3))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_value(-2.5), r"Negative values in data: X has 1 of them, first -2.5 at \(1, 2, 3\)"),
        (coo_array(with_value(-2.5)), r"first -2.5 at \(1, 2, 3\)"),
        (with_value(np.inf), r"infinity, first at \(1, 2, 3\)"),
        (coo_array(with_value(np.nan)), r"NaN, first at \(1, 2, 3\)"),
        (np.zeros((0, 5, 4)), r"0 sample\(s\)"),
        (np.zeros(5), "Expected 2D array"),
        (X.astype(complex), "Complex data not supported"),
        (with_value(1e200), "Scale the data"),
    ],
)
def test_data(data, says):
    calls = []
    with pytest.raises(PolyadError, match=says):
        PoissonCP(2, callbacks=calls.append).fit(data)
    assert calls == []


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": 21}, "rank at most 20"),
        ({"solver": "newton"}, "solver"),
        ({"inner_iter": 0}, "inner_iter"),
        ({"inner_iter": 2.5}, "inner_iter"),
        ({"tol": -1.0}, "tol"),
        ({"missing": "ignore"}, "missing"),
        ({"init": "best"}, "init='best' is not understood. Give 'svd', 'split', 'random'"),
        ({"init": 5}, "init=5 is not understood"),
        ({"init": start(_1=-0.5)}, r"negative number -0.5 at \(0, 1\) of the factor of mode 1"),
        ({"init": (np.array([1.0, -1.0]), start())}, "negative number -1 at"),
        ({"init": start(_2=np.nan)}, "NaN or infinity"),
        ({"init": start()[:2]}, "factors of shape"),
        ({"fixed_modes": [0]}, "has none"),
        ({"init": start(), "fixed_modes": [0, 1, 2]}, "nothing to fit"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"checkpoint": 3}, "give a path"),
    ],
)
def test_parameters(parameters, says):
    with pytest.raises((PolyadError, ValueError, TypeError), match=says):
        PoissonCP(**{"n_components": 2, **parameters}).fit(X)


def test_nothing_observed():
    with pytest.raises(PolyadError, match="nothing was observed"):
        PoissonCP(2, missing="unobserved").fit(NOTHING)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (X[0], "X has 2 modes"),
        (X[:, :3], "size 3 in mode 1, but PoissonCP was fitted to the size 5"),
        (with_value(-1.0), "Negative values in data"),
    ],
)
def test_new_samples(data, says):
    model = PoissonCP(2, random_state=0).fit(X)
    for method in (model.transform, model.score):
        with pytest.raises(PolyadError, match=says):
            method(data)
