"""Each wrong input gives one clear error before any work."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import GeneralizedCP
from polyad.exceptions import PolyadError
from polyad.losses import BetaDivergenceLoss
from tests.cp.generalized.examples import data_for

X = data_for("poisson")
AT = r"at \(1, 2, 3\)"


def with_value(value, name="poisson"):
    bad = data_for(name)
    bad[1, 2, 3] = value
    return bad


@pytest.mark.parametrize("kind", [np.asarray, coo_array, torch.asarray, np.asfortranarray])
@pytest.mark.parametrize(
    ("loss", "value", "says"),
    [
        ("poisson", -2.5, f"Negative values in data: X has 1 of them, first -2.5 {AT}.*any sign"),
        ("poisson-log", -1.0, f"first -1 {AT}"),
        ("negative-binomial", -1.0, "not negative"),
        ("beta", -1.0, "not negative"),
        ("gamma", -3.0, f"Negative values in data: X has 1 of them, first -3 {AT}.*above zero"),
        ("rayleigh", -3.0, "above zero"),
        ("bernoulli-odds", 2.0, f"first 2 {AT}.*zeros and ones.*Threshold"),
        ("bernoulli", 0.5, "zeros and ones"),
        ("bernoulli-logit", -1.0, "zeros and ones"),
    ],
)
def test_values_that_a_loss_cannot_take(kind, loss, value, says):
    calls = []
    name = "bernoulli-odds" if loss == "bernoulli" else loss
    missing = "unobserved" if loss in ("gamma", "rayleigh") else "zero"
    model = GeneralizedCP(2, loss=loss, missing=missing, callbacks=calls.append)
    with pytest.raises(PolyadError, match=says):
        model.fit(kind(with_value(value, name)))
    assert calls == []


@pytest.mark.parametrize("loss", ["gamma", "rayleigh", BetaDivergenceLoss(0.0)])
def test_zeros_that_a_loss_cannot_take(loss):
    data = with_value(0.0, "gamma")
    with pytest.raises(PolyadError, match=f"first 0 {AT}"):
        GeneralizedCP(2, loss=loss).fit(data)
    with pytest.raises(PolyadError, match="entries that the sparse data does not store are zeros"):
        GeneralizedCP(2, loss=loss).fit(coo_array(data))
    with pytest.raises(PolyadError, match="Fit with missing='unobserved'"):
        GeneralizedCP(2, loss=loss).fit(coo_array(data))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_value(np.inf), f"infinity, first {AT}"),
        (coo_array(with_value(np.nan)), f"NaN, first {AT}"),
        (np.zeros((0, 5, 4)), r"0 sample\(s\)"),
        (np.zeros(5), "Expected 2D array"),
        (with_value(1e200), "Scale the data"),
        (np.full((3, 3, 3), np.nan), "Every entry is NaN"),
    ],
)
def test_data(data, says):
    with pytest.raises(PolyadError, match=says):
        GeneralizedCP(2, loss="poisson").fit(data)


def start(**replaced):
    factors = [np.ones((n, 2)) for n in X.shape]
    for mode, value in replaced.items():
        factors[int(mode[1:])][0, 1] = value
    return factors


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": 21}, "rank at most 20"),
        ({"loss": "logistic"}, "'logistic' is not known. Give one of 'gaussian'"),
        ({"loss": 3}, "loss"),
        ({"solver": "newton"}, "solver"),
        ({"solver": "lbfgs", "batch_size": 3}, "batch_size=3 is for solver='adam'"),
        ({"tol": -1.0}, "tol"),
        ({"ridge": -1.0}, "ridge"),
        ({"missing": "ignore"}, "missing"),
        (
            {"init": "nndsvd"},
            "init='nndsvd' is not understood for loss='poisson'. Give 'svd', 'spl",
        ),
        ({"init": "nndsvd", "loss": "gaussian"}, "Give 'svd', 'random'"),
        ({"init": 5}, "init=5 is not understood"),
        ({"init": start(_1=-0.5)}, r"negative number -0.5 at \(0, 1\) of the factor of mode 1"),
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
        GeneralizedCP(**{"n_components": 2, "loss": "poisson", **parameters}).fit(X)


def test_negative_starts_are_for_losses_without_a_bound():
    GeneralizedCP(2, init=start(_1=-0.5), random_state=0, tol=1e-3).fit(X)


def test_nothing_observed():
    nothing = coo_array((np.zeros(0), [np.zeros(0, int)] * 3), shape=(3, 3, 3))
    with pytest.raises(PolyadError, match="nothing was observed"):
        GeneralizedCP(2, loss="gamma", missing="unobserved").fit(nothing)


def test_new_samples_that_a_loss_cannot_take():
    model = GeneralizedCP(2, loss="poisson", random_state=0).fit(X)
    for method in (model.transform, model.score):
        with pytest.raises(PolyadError, match="Negative values"):
            method(with_value(-1.0))


@pytest.mark.parametrize("loss", ["bernoulli", "bernoulli-logit"])
def test_the_sum_of_sparse_duplicates_is_what_a_loss_must_take(loss):
    twice = np.array([[0, 1, 1], [1, 2, 2], [1, 3, 3]])
    data = coo_array((np.ones(3), tuple(twice)), shape=(8, 5, 4))
    with pytest.raises(PolyadError, match=r"first 2 at \(1, 2, 3\).*zeros and ones"):
        GeneralizedCP(2, loss=loss).fit(data)
    halves = coo_array((np.array([1.0, 0.5, 0.5]), tuple(twice)), shape=(8, 5, 4))
    once = coo_array(halves.toarray())
    models = [GeneralizedCP(1, loss=loss, ridge=0.1, random_state=0).fit(X) for X in (halves, once)]
    assert models[0].objective_ == models[1].objective_
