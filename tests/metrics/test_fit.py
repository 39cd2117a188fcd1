"""Squared error and deviance: against the formulas, in every form of the data."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import CP, QMF, GeneralizedCP, KruskalTensor, LabelledTensor
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.metrics import decomposition, explained_variation, poisson_deviance, relative_error

SHAPE = (7, 6, 5)


def counts(seed=0):
    generator = np.random.default_rng(seed)
    truth = KruskalTensor(np.array([2.0, 1.0]), [generator.random((n, 2)) for n in SHAPE])
    return generator.poisson(truth.to_dense()).astype(float), truth


def deviance_twin(x, m):
    terms = [2 * ((a * math.log(a / b) if a else 0.0) - a + b) for a, b in zip(x, m, strict=True)]
    return math.fsum(terms)


FORMS = {
    "dense": lambda X: X,
    "fortran": np.asfortranarray,
    "sparse": coo_array,
    "torch": torch.asarray,
    "labelled": lambda X: LabelledTensor(X, modes=list("abc")),
    "labelled sparse": lambda X: LabelledTensor(coo_array(X), modes=list("abc")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_formula(form):
    X, truth = counts()
    given, M = FORMS[form](X), truth.to_dense()
    part = np.sum((X - M) ** 2) / np.sum(X**2)
    assert explained_variation(given, truth) == pytest.approx(1 - part, rel=1e-12)
    assert relative_error(given, truth) == pytest.approx(math.sqrt(part), rel=1e-12)
    expected = deviance_twin(X.ravel(), M.ravel())
    assert poisson_deviance(given, truth) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("block", [1, 50, 10**6])
def test_blocks_do_not_matter(monkeypatch, block):
    X, truth = counts()
    expected = explained_variation(X, truth)
    monkeypatch.setattr(decomposition, "_CELLS_AT_A_TIME", block)
    assert explained_variation(X, truth) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_only_observed_entries_count(form):
    X, truth = counts()
    seen = np.random.default_rng(1).random(SHAPE) < 0.6
    x, m = X[seen], truth.to_dense()[seen]
    given = np.where(seen, X, np.nan)
    if form == "sparse":
        given = coo_array((x, np.nonzero(seen)), shape=SHAPE)
    fit = explained_variation(given, truth, missing="unobserved")
    assert fit == pytest.approx(1 - np.sum((x - m) ** 2) / np.sum(x**2))
    deviance = poisson_deviance(given, truth, missing="unobserved")
    assert deviance == pytest.approx(deviance_twin(x, m))


def test_an_estimator_brings_its_own_meaning_of_absent_entries():
    X = coo_array(counts()[0])
    for missing in ("zero", "unobserved"):
        model = CP(2, missing=missing, random_state=0).fit(X)
        assert explained_variation(X, model) == pytest.approx(model.score(X), rel=1e-6)


def test_torch_models_and_pairs_are_read():
    X, _ = make_low_rank(SHAPE, 2, noise=0.1, random_state=0)
    model = CP(2, random_state=0).fit(torch.asarray(X))
    expected = explained_variation(X, model)
    assert explained_variation(X, tuple(model.kruskal_)) == expected
    assert expected == pytest.approx(model.score(torch.asarray(X)))
    plain = [f * (model.weights_ if k == 0 else 1) for k, f in enumerate(model.factors_)]
    assert explained_variation(X, (None, plain)) == pytest.approx(expected)


def test_data_of_zeros():
    nothing = KruskalTensor(np.zeros(1), [np.ones((n, 1)) for n in SHAPE])
    something = KruskalTensor(np.ones(1), [np.ones((n, 1)) for n in SHAPE])
    for X in (np.zeros(SHAPE), coo_array(SHAPE)):
        assert (explained_variation(X, nothing), relative_error(X, nothing)) == (1.0, 0.0)
        assert (explained_variation(X, something), relative_error(X, something)) == (0.0, math.inf)
        assert poisson_deviance(X, nothing) == 0.0
        assert poisson_deviance(X, something) == pytest.approx(2.0 * math.prod(SHAPE))


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_zero_of_the_model_is_finite_or_infinite_but_never_nan(form):
    factors = [np.ones((n, 1)) for n in SHAPE]
    factors[1][0] = 0.0
    model = KruskalTensor(np.ones(1), factors)
    X = model.to_dense()
    assert poisson_deviance(FORMS[form](X), model) == pytest.approx(0.0, abs=1e-12)
    X[2, 0, 1] = 1.0
    assert poisson_deviance(FORMS[form](X), model) == math.inf


@pytest.mark.parametrize("tiny", [1e-30, 1e-200, 5e-324])
def test_tiny_means_are_not_zero(tiny):
    model = KruskalTensor(np.ones(1), [np.array([[tiny]]), np.ones((1, 1))])
    expected = 2 * (1e3 * (math.log(1e3) - math.log(tiny)) - 1e3)
    assert poisson_deviance(np.array([[1e3]]), model) == pytest.approx(expected)


def test_signs_that_cancel_are_no_negative_model():
    X, truth = counts()
    flipped = KruskalTensor(truth.weights, [-truth.factors[0], truth.factors[1], -truth.factors[2]])
    dead = KruskalTensor(
        np.append(truth.weights, 0.0),
        [
            np.hstack([f, np.where(np.arange(len(f)) % 2, 1.0, -1.0)[:, None]])
            for f in truth.factors
        ],
    )
    for model in (flipped, dead):
        for form in ("dense", "sparse"):
            found = poisson_deviance(FORMS[form](X), model)
            assert found == pytest.approx(poisson_deviance(X, truth))


def test_a_tensor_that_cannot_exist_densely():
    generator = np.random.default_rng(0)
    side = 300_000
    X = coo_array((np.ones(50), tuple(generator.integers(0, side, (3, 50)))), shape=(side,) * 3)
    model = KruskalTensor(np.ones(1), [np.full((side, 1), 1e-5) for _ in range(3)])
    # 27e15 cells of 1e-15 each, and 50 ones.
    expected = 2 * (50 * (math.log(1e15) - 1) + 27)
    assert poisson_deviance(X, model) == pytest.approx(expected)
    assert 0 < relative_error(X, model) <= 1.0


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("side", ["data", "model"])
def test_negative_entries_have_no_deviance(form, side):
    X, truth = counts()
    if side == "data":
        X[0, 0, 0] = -1.0
    else:
        truth.factors[1][2] *= -1.0
    with pytest.raises(InvalidInputError, match=r"negative entry -.* Use|negative entry -.* use"):
        poisson_deviance(FORMS[form](X), truth)


def test_errors_say_what_is_needed():
    X, truth = counts()
    with pytest.raises(InvalidInputError, match=r"shape \(6, 6, 5\), but the model is of shape"):
        explained_variation(X[1:], truth)
    with pytest.raises(InvalidInputError, match="'zero' or 'unobserved'"):
        explained_variation(X, truth, missing="drop")
    with pytest.raises(InvalidTypeError, match="The model is a int; a fitted estimator"):
        relative_error(X, 3)
    with pytest.raises(InvalidInputError, match="same number of components"):
        relative_error(X, (np.ones(3), truth.factors))


@pytest.mark.parametrize("loss", ["bernoulli", "poisson-log", "negative-binomial"])
def test_models_of_odds_and_logarithms_are_not_compared_with_data(loss):
    X = np.random.default_rng(0).integers(0, 2, (8, 5, 4)).astype(float)
    model = GeneralizedCP(1, loss=loss, ridge=0.1, random_state=0).fit(X)
    for metric in (explained_variation, relative_error, poisson_deviance):
        with pytest.raises(InvalidInputError, match=r"not means.*model\.score\(X\)"):
            metric(X, model)
    model = GeneralizedCP(1, loss="poisson", random_state=0).fit(X)
    assert explained_variation(X, model) > 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_products_that_go_through_transforms_are_not_compared_with_data():
    X = np.random.default_rng(0).gamma(2.0, size=(8, 5))
    with pytest.raises(InvalidInputError, match=r"transforms.*negative mean divergence"):
        relative_error(X, QMF(1, max_iter=2).fit(X))
