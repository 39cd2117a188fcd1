"""Samples of any size are fitted alike: no number in a loss is absolute."""

import warnings

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import GeneralizedCP
from polyad.cp.generalized.problem import build_problem
from polyad.cp.generalized.rows import solve_rows
from polyad.cp.generalized.solver import QuasiNewtonSolver
from polyad.data.validation import as_tensor_input
from polyad.losses import BetaDivergenceLoss
from polyad.losses.names import LOSSES, read_loss

HOMOGENEOUS = {
    **{name: read_loss(name) for name in ("gaussian", "poisson", "gamma", "rayleigh", "beta")},
    "beta-0": BetaDivergenceLoss(0.0),
    "beta-1.5": BetaDivergenceLoss(1.5),
    "beta-negative": BetaDivergenceLoss(-0.5),
}
EACH = pytest.mark.parametrize("loss", HOMOGENEOUS.values(), ids=HOMOGENEOUS)
# Of the scale of the fit.
SIZES = 10.0 ** np.array([-300, -150, -30, -12, -10, -9, -3, 0, 3, 9, 30, 100])


def noisy(loss, *, sizes=((),) * 3, shape=(12, 8, 7), zeros=True, seed=0):
    """Return data with two components and multiplicative noise, and its factors."""
    generator = np.random.default_rng(seed)
    factors = [generator.uniform(0.05, 1.0, (n, 2)) ** 2 for n in shape]
    for mode, size in enumerate(sizes):
        factors[mode] *= np.reshape(size, (-1, 1)) if len(size) else 1.0
    data = np.einsum("ir,jr,kr->ijk", *factors) * generator.gamma(100, 0.01, shape)
    if zeros and loss.accepts(np.zeros(1))[0]:
        data *= generator.random(shape) > 0.2
    return data, factors


def with_factors(loss, data, factors, **parameters):
    """Return a model whose components are given."""
    model = GeneralizedCP(2, loss=loss, init=factors, fixed_modes=(1, 2), max_iter=1, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(data)


@EACH
def test_features_follow_the_size_of_each_sample(loss):
    data, factors = noisy(loss)
    model = with_factors(loss, data, factors)
    expected = model.transform(data)
    kinds = [np.asarray] + [coo_array] * bool(loss.accepts(np.zeros(1))[0])
    for kind in kinds:
        found = model.transform(kind(data * SIZES[:, None, None])) / SIZES[:, None]
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


@EACH
def test_features_follow_the_size_of_all_samples(loss):
    data, factors = noisy(loss)
    model = with_factors(loss, data, factors)
    expected = model.transform(data)
    for size in (1e-100, 1e10):
        found = model.transform(size * data)
        np.testing.assert_allclose(found / size, expected, rtol=1e-8, atol=1e-9)


@EACH
def test_a_ridge_counts_in_the_unit_of_the_data(loss):
    """The best rows have no slope, whatever the unit that they were computed in."""
    data, factors = noisy(loss, zeros=False)
    data[3] *= 64.0
    problem = build_problem(as_tensor_input(data), "zero", loss, 0)
    rows = solve_rows(problem, factors[1:], 0.7)
    products = np.einsum("jr,kr->jkr", *factors[1:]).reshape(-1, 2)
    slopes = loss.derivative(data.reshape(12, -1), rows @ products.T) @ products + 0.7 * rows
    assert np.abs(np.minimum(slopes, rows) if loss.lower == 0 else slopes).max() < 1e-6


def test_negative_binomial_is_poisson_for_small_samples_and_gamma_for_large_ones():
    data, factors = noisy(read_loss("gamma"))
    count, poisson, gamma = (
        with_factors(name, data, factors) for name in ("negative-binomial", "poisson", "gamma")
    )
    for size, limit in ((1e-300, poisson), (1e-12, poisson), (1e12, gamma), (1e40, gamma)):
        sizes = np.where(np.arange(12) == 5, size, 1.0)
        found = count.transform(data * sizes[:, None, None])[5] / size
        np.testing.assert_allclose(found, limit.transform(data)[5], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in LOSSES if read_loss(name).lower == 0])
@pytest.mark.parametrize("size", [1e-270, 1e-10, 1.0, 1e10, 1e140])
def test_values_and_slopes_of_any_size_are_finite(name, size):
    loss = read_loss(name)
    x = np.ones(3) if name == "bernoulli-odds" else np.array([1.0, 1.0, 3.0]) * size
    m = np.array([0.0, 1e-3, 1.0]) * size
    with np.errstate(all="raise", under="ignore"):
        value, slope = loss.evaluate(x, m)
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", ["poisson", "negative-binomial", "beta"])
def test_a_zero_has_a_finite_loss_at_a_model_of_zero(name):
    loss = read_loss(name)
    zero = np.zeros(1)
    with np.errstate(all="raise"):
        parts = (*loss.evaluate(zero, zero), loss.offset(zero), loss.curvature(zero, zero))
    assert np.isfinite(parts).all()
    assert abs(loss.value(zero, zero)[0]) < 1e-9


WIDE = 10.0 ** np.linspace(-12, 0, 30)


@pytest.mark.parametrize(
    "name", ["gamma", "rayleigh", "poisson", "beta", "beta-negative", "negative-binomial"]
)
def test_a_fit_over_twelve_decades(name):
    loss = HOMOGENEOUS.get(name) or read_loss(name)
    order = np.random.default_rng(1).permutation(30)
    data, _ = noisy(loss, sizes=(WIDE[order], (), ()), shape=(30, 8, 7), zeros=False)
    model = GeneralizedCP(2, loss=loss, random_state=0)
    found = model.inverse_transform(model.fit_transform(data))
    if name == "rayleigh":  # its mean is not the middle of this noise
        found = found * np.median(data / found)
    assert np.median(np.abs(np.log(found / data))) < 0.1
    assert np.abs(np.log(found / data)).max() < 0.7


@pytest.mark.filterwarnings("ignore:GeneralizedCP")
@pytest.mark.parametrize("modes", [(1,), (0, 1, 2)])
def test_a_gamma_fit_over_twelve_decades_of_any_mode(modes):
    shape = (30, 8, 7)
    sizes = [10.0 ** np.linspace(-12, 0, n) if k in modes else () for k, n in enumerate(shape)]
    data, _ = noisy(read_loss("gamma"), sizes=sizes, shape=shape)
    dense = GeneralizedCP(2, loss="gamma", random_state=0, max_iter=2000)
    sparse = GeneralizedCP(2, loss="gamma", random_state=0, max_iter=2000, missing="unobserved")
    dense.fit(data)
    sparse.fit(coo_array(data))
    for model in (dense, sparse):
        missed = np.abs(np.log(model.kruskal_.to_dense() / data))
        assert np.median(missed) < 0.1
        assert missed.max() < 0.5


def test_rows_with_units_of_their_own_start_from_the_given_factors():
    data, factors = noisy(read_loss("gamma"), sizes=(WIDE[::3], (), ()), shape=(10, 8, 7))
    model = GeneralizedCP(2, loss="gamma", init=factors, ridge=0.3, max_iter=1, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = model.fit(data).history_.objective[0]
    dense = np.einsum("ir,jr,kr->ijk", *factors)
    loss = float(np.sum(read_loss("gamma").value(data, dense)))
    assert start <= loss + 0.15 * sum(np.sum(factor**2) for factor in factors)


def test_the_gradient_in_units_of_rows_is_that_of_the_objective():
    data, factors = noisy(read_loss("gamma"), sizes=(WIDE[::3], (), ()), shape=(10, 8, 7))
    problem = build_problem(as_tensor_input(data), "zero", read_loss("gamma"))
    solver = QuasiNewtonSolver(problem, ridge=0.3)
    state = solver.init([factor * 2.0 ** (-problem.exponent / 3) * 1.1 for factor in factors])
    method, point = solver._method(state.factors), solver._point(state.factors)
    value, gradient = method.evaluate(point)
    assert value == pytest.approx(state.descent.value, rel=1e-12)
    direction = np.random.default_rng(0).standard_normal(point.size) * point
    up, down = (method.evaluate(point + way * direction)[0] for way in (1e-6, -1e-6))
    assert (up - down) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-5)


@pytest.mark.parametrize("decades", [12, 20])
@pytest.mark.parametrize("name", ["gamma", "poisson", "beta-1.5"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_samples_of_a_fit_are_at_their_minimum_over_many_decades(name, decades):
    """The final rows have units of their own too."""
    loss = HOMOGENEOUS[name]
    data, _ = noisy(loss, sizes=(10.0 ** -np.linspace(0, decades, 12), (), ()))
    model = GeneralizedCP(2, loss=loss, random_state=0, max_iter=10, tol=0)
    features = model.fit_transform(data)
    expected = model.transform(data)
    missed = np.abs(features - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert missed.max() < 1e-6
    assert model.objective_ < min(model.history_.objective)


@pytest.mark.parametrize(
    ("name", "decades"), [("gamma", 2), ("gamma", 3), ("gamma", 6), ("rayleigh", 4)]
)
def test_a_few_decades_are_fitted_like_none(name, decades):
    """Losses of degree zero are of relative errors, in which sizes of samples change nothing."""
    loss = HOMOGENEOUS[name]
    models = []
    for sizes in ((), 10.0 ** -np.linspace(0, decades, 12)):
        data, _ = noisy(loss, sizes=(sizes, (), ()))
        data = data * np.random.default_rng(1).gamma(3, 1 / 3, data.shape)
        models.append(GeneralizedCP(2, loss=loss, random_state=0, tol=1e-5).fit(data))
    plain, wide = models
    assert wide.objective_ == pytest.approx(plain.objective_, rel=1e-3)
    assert wide.status_.is_success
