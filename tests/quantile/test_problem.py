"""The objective of QMF and its gradient, against a plain twin and finite differences."""

import numpy as np
import pytest

from polyad.quantile.features import feature_table, read_divergence
from polyad.quantile.parameters import (
    Parameters,
    joined,
    parted,
    pinned_quantiles,
    random_parameters,
    softmax,
    to_gaps,
    to_logits,
)
from polyad.quantile.problem import QuantileObjective, Settings
from tests.quantile.planted import small
from tests.quantile.twin import qmf_loss


def problem(X, divergence=None, n_quantiles=5, nonnegative=True, ridge=0.01):
    table = feature_table(X, divergence or read_divergence("kl"))
    objective = QuantileObjective(table, Settings(0.01, nonnegative, ridge), n_quantiles)
    rng = np.random.default_rng(1)
    start = random_parameters(table.shape, 2, n_quantiles, nonnegative=nonnegative, seed=0)
    free = [part + 0.5 * rng.normal(size=part.shape) for part in start]
    return objective, free


def test_the_value_is_that_of_the_twin():
    X = small(n_samples=10, n_features=4)
    objective, free = problem(X)
    found = objective.evaluate(free, [])
    assert found.value == pytest.approx(qmf_loss(X.T, *free, ridge=0.01), rel=1e-7)


@pytest.mark.parametrize(
    ("nonnegative", "divergence"),
    [(True, read_divergence("kl")), (False, read_divergence("frobenius"))],
)
@pytest.mark.parametrize("kind", ["whole", "missing", "constant", "tied"])
def test_all_four_blocks_of_the_gradient_by_differences(nonnegative, divergence, kind):
    X = small(n_samples=9, n_features=4)
    X /= X.max(axis=0)  # so that no feature drowns the others in rounding
    if kind == "missing":
        X[np.random.default_rng(2).random(X.shape) < 0.2] = np.nan
    if kind == "constant":
        X[:, 1] = 0.5
    if kind == "tied":
        X[:, 1] = X[:, 1] > np.median(X[:, 1])
    objective, free = problem(X, divergence, nonnegative=nonnegative)
    found = objective.evaluate(free, [])
    shapes, point = [part.shape for part in free], joined(free)
    step = 1e-5

    def value(vector):
        return objective.evaluate(
            parted(vector, shapes), found.potentials, with_gradient=False
        ).value

    numeric = np.array(
        [
            (value(point + step * e) - value(point - step * e)) / (2 * step)
            for e in np.eye(point.size)
        ]
    )
    for name, own, other in zip(
        Parameters._fields, found.gradient, parted(numeric, shapes), strict=True
    ):
        np.testing.assert_allclose(
            own, other, atol=3e-6 * np.abs(other).max() + 1e-12, err_msg=name
        )


def test_a_batch_of_all_features_has_the_gradient_of_all():
    objective, free = problem(small())
    rows = np.arange(objective.n_features)
    whole, batch = objective.evaluate(free, []), objective.evaluate(free, [], rows=rows)
    assert whole.value == batch.value
    for one, other in zip(whole.gradient, batch.gradient, strict=True):
        np.testing.assert_array_equal(one, other)


def test_batches_are_unbiased():
    """The mean over batches of one feature each is the whole gradient."""
    objective, free = problem(small())
    d = objective.n_features
    whole = objective.evaluate(free, [])
    parts = [
        objective.evaluate(
            [free[0][[i]], free[1], free[2][[i]], free[3][[i]]], [], rows=np.array([i])
        )
        for i in range(d)
    ]
    assert np.mean([part.value for part in parts]) == pytest.approx(whole.value, rel=1e-12)
    scores = np.mean([part.gradient[1] for part in parts], axis=0)
    np.testing.assert_allclose(scores, whole.gradient[1], rtol=1e-9, atol=1e-15)


def test_a_warm_start_changes_nothing():
    objective, free = problem(small())
    cold = objective.evaluate(free, [])
    warm = objective.evaluate(free, cold.potentials)
    assert warm.value == pytest.approx(cold.value, rel=1e-8)


def test_transforms_forced_to_the_identity_leave_no_loss():
    """As many quantiles as samples, at the sorted entries, with hardly any entropy."""
    rng = np.random.default_rng(0)
    X = rng.permuted(np.cumsum(rng.gamma(1.0, size=(4, 9)), axis=1), axis=1)  # features first
    table = feature_table(X.T, read_divergence("kl"))
    objective = QuantileObjective(table, Settings(1e-5, True, 0.0), 9)
    free = [np.zeros((4, 4)), np.log(X), to_gaps(np.sort(X, axis=1)), np.zeros((4, 9))]
    # Loadings that select a feature each: the product is the data.
    free[0] = np.where(np.eye(4) > 0, 0.0, -80.0)
    assert objective.evaluate(free, []).divergence < 1e-9


def test_quantiles_reach_exactly_from_the_lowest_to_the_highest():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(50, 1)) * 10.0 ** rng.integers(-12, 12, (50, 1))
    high = low + rng.gamma(1.0, size=(50, 1)) * 10.0 ** rng.integers(-12, 12, (50, 1))
    quantiles, _ = pinned_quantiles(3 * rng.normal(size=(50, 7)), low, high)
    np.testing.assert_array_equal(quantiles[:, [0]], low)
    np.testing.assert_array_equal(quantiles[:, [-1]], high)
    assert (np.diff(quantiles, axis=1) >= 0).all()


def test_unconstrained_parameters_come_back():
    rng = np.random.default_rng(0)
    logits, gaps = rng.normal(size=(3, 5)), rng.normal(size=(3, 4))
    np.testing.assert_allclose(softmax(to_logits(softmax(logits))), softmax(logits))
    quantiles, parts = pinned_quantiles(gaps, np.full((3, 1), 2.0), np.full((3, 1), 7.0))
    np.testing.assert_allclose(softmax(to_gaps(quantiles)), parts)
    assert np.isfinite(to_gaps(np.ones((2, 4)))).all()


def test_a_divergence_of_zero_is_where_both_agree():
    x = 10.0 ** np.linspace(-12, 12, 25)
    for divergence in (read_divergence("kl"), read_divergence("frobenius")):
        assert (divergence.value(x, x) == 0).all()
        assert (divergence.derivative(x, x) == 0).all()
        for factor in (1 - 1e-6, 1 + 1e-6, 0.1, 10.0):
            y = factor * x
            assert (divergence.value(x, y) > 0).all()
            step = 1e-6 * y
            numeric = (divergence.derivative(x, y + step) - divergence.derivative(x, y - step)) / (
                2 * step
            )
            np.testing.assert_allclose(divergence.curvature(x, y), numeric, rtol=1e-5)
