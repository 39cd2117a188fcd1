"""Learned transforms as fixed functions, and the scores of samples under them."""

import numpy as np
import pytest

from polyad import QMF, QMFQ
from polyad.losses import CustomLoss
from polyad.quantile.features import feature_table, read_divergence
from polyad.quantile.maps import learned_maps
from polyad.quantile.parameters import factor, pinned_quantiles, softmax
from polyad.quantile.scores import HeldModel, cross, curvature, solve_scores
from tests.quantile.planted import planted, small
from tests.quantile.twin import transported

KL, FROBENIUS = read_divergence("kl"), read_divergence("frobenius")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def learned(n=14, d=5, m=6, epsilon=0.01, seed=0):
    from polyad.soft.plans import squash
    from polyad.transport.rows import RowTransport

    rng = np.random.default_rng(seed)
    W, B = rng.gamma(1.0, size=(d, n)), softmax(rng.normal(size=(d, m)))
    low = rng.normal(size=(d, 1))
    Q, _ = pinned_quantiles(rng.normal(size=(d, m - 1)), low, low + 3)
    a = np.full((1, n), 1 / n)
    y = np.linspace(0, 1, m)[None]
    transport = RowTransport(squash(W, a).values, y, a, B, epsilon=epsilon)
    g = transport.solve().potentials
    maps = learned_maps(W, a, potentials=g, weights=B, quantiles=Q, epsilon=epsilon)
    return W, maps


@pytest.mark.parametrize("epsilon", [5e-3, 1e-2, 1.0])
def test_they_agree_with_the_transport_on_the_samples_of_the_fit(epsilon):
    W, maps = learned(d=2, epsilon=epsilon)
    values = maps.values(W)
    a = np.full(W.shape[1], 1 / W.shape[1])
    for i in range(len(W)):
        expected = transported(W[i], a, maps.weights[i], maps.quantiles[i], epsilon)
        np.testing.assert_allclose(values[i], expected, atol=1e-7)


def test_their_derivatives_by_differences():
    _, maps = learned()
    w = np.linspace(-1, 5, 200) * np.ones((5, 1))
    _, slope, bend = maps.derivatives(w)
    h = 1e-5
    up, down = maps.derivatives(w + h), maps.derivatives(w - h)
    np.testing.assert_allclose(slope, (up[0] - down[0]) / (2 * h), atol=1e-7)
    np.testing.assert_allclose(bend, (up[1] - down[1]) / (2 * h), atol=1e-5)
    assert (slope >= -1e-14).all()


def test_far_away_they_stay_in_the_range():
    _, maps = learned()
    far = maps.values(np.array([-1e300, -1e10, 1e10, 1e300]) * np.ones((5, 1)))
    assert (np.diff(far, axis=1) >= 0).all()
    assert (far >= maps.quantiles[:, :1]).all()
    assert (far <= maps.quantiles[:, -1:]).all()


def test_the_inverse_inverts():
    W, maps = learned()
    inner = np.sort(W, axis=1)[:, 2:-2]
    found = maps.values(maps.inverse(maps.values(inner)))
    np.testing.assert_allclose(found, maps.values(inner), atol=0.02)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("divergence", [KL, FROBENIUS])
def test_scores_are_at_a_minimum(nonnegative, divergence):
    rng = np.random.default_rng(0)
    W, maps = learned()
    maps = learned_maps(
        *(W, np.full((1, 14), 1 / 14)),
        potentials=maps.potentials,
        weights=maps.weights,
        quantiles=maps.quantiles - maps.quantiles[:, :1] + 0.1,
        epsilon=0.01,
    )
    loadings = rng.gamma(1.0, size=(5, 2))
    table = feature_table(rng.uniform(0.2, 2.5, size=(7, 5)), divergence)
    held = HeldModel(maps, loadings, rng.gamma(1.0, size=(9, 2)), nonnegative, 0.1, 2.0)
    scores = solve_scores(table, held)

    def objective(z):
        v = factor(z, nonnegative=nonnegative)
        Y = maps.values(loadings @ v.T) + table.guard
        return divergence.value(table.shifted, Y).sum(axis=0) / 2.0 + 0.05 * (z**2).sum(axis=1)

    z = np.log(scores) if nonnegative else scores
    best = objective(z)
    for _ in range(30):
        assert (objective(z + 1e-3 * rng.normal(size=z.shape)) >= best - 1e-12).all()


def test_scores_are_the_best_of_the_ends_from_several_starts(monkeypatch):
    """One of ten samples of the fit, or the products that the transforms would need."""
    rng = np.random.default_rng(0)
    X = planted(n_samples=40, n_features=15, n_components=4) * rng.lognormal(
        sigma=0.5, size=(40, 15)
    )
    model = QMF(4, random_state=0, tol=1e-2).fit(X[:20])
    gaps = np.where(rng.random((20, 15)) < 0.2, np.nan, X[20:])

    def divergences(data, count):
        monkeypatch.setattr("polyad.quantile.scores._MOST_STARTS", count)
        return np.array([-model.score(row[None]) for row in data])

    for data in (X[20:], gaps):
        few, many = divergences(data, 1), divergences(data, 10)
        # The ridge is no part of the divergence.
        assert (many <= few * (1.0 + 1e-2)).all()
        assert many.mean() < 0.97 * few.mean()
        monkeypatch.setattr("polyad.quantile.scores._MOST_STARTS", 10)
        together, alone = model.transform(data), [model.transform(row[None])[0] for row in data]
        np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_sums_for_all_pairs():
    own = CustomLoss(lambda x, y: (x - y) ** 4, lambda x, y: 4 * (y - x) ** 3)
    rng = np.random.default_rng(0)
    x, y = rng.gamma(1.0, size=(5, 3)), rng.gamma(1.0, size=(5, 4))
    for divergence in (KL, FROBENIUS, own):
        expected = [[divergence.value(x[:, i], y[:, j]).sum() for j in range(4)] for i in range(3)]
        np.testing.assert_allclose(cross(divergence, x, y), expected)
    low, high = np.full((5, 1), y.min()), np.full((5, 1), y.max())
    found = curvature(own, y + 0.5, y, low, high)
    np.testing.assert_allclose(found, 12 * 0.25 * np.ones_like(y), rtol=1e-3)


def test_values_below_the_range_of_the_fit_are_taken():
    """New samples may have entries outside the range of the fit."""
    from polyad import QMF

    X = small()
    model = QMF(2, random_state=0, max_iter=5, tol=1.0).fit(X)
    features = model.transform(np.concatenate([0 * X[:1], 1e3 * X[:1]]))
    assert np.isfinite(features).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("estimator", [QMF, QMFQ])
def test_samples_far_outside_have_finite_features_and_scores(estimator):
    X = small(n_samples=6)
    model = estimator(2, random_state=0, max_iter=5).fit(X)
    for times in (1e9, 1e60, 0.0):
        features = model.transform(times * X)
        assert np.isfinite(features).all()
        assert np.isfinite(model.inverse_transform(features)).all()
        assert -np.inf < model.score(times * X) <= 0


def test_a_model_value_far_below_its_entry_has_a_finite_divergence():
    x, y = np.full((1, 4), 2e100), np.array([[1e-30, 1.0, 1e100, 2e100]])
    expected = x * np.log(x / y) - x + y
    np.testing.assert_allclose(KL.value(x, y), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (QMF(2, random_state=0, max_iter=5), {"epsilon": 1.0, "nonnegative": False}),
        (QMFQ(2, random_state=0, max_iter=5), {"epsilon": 1.0, "projector": "nmf"}),
    ],
)
def test_parameters_for_the_next_fit_do_not_change_the_last(model, changes):
    X = small()
    before = model.fit(X).transform(X), model.score(X), model.inverse_transform(np.ones((1, 2)))
    model.set_params(**changes)
    after = model.transform(X), model.score(X), model.inverse_transform(np.ones((1, 2)))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    refitted = model.fit(X).transform(X)
    assert not np.allclose(refitted, before[0])
