"""The experiment on signals: what is compared, and how it is tested."""

import numpy as np
import pytest
from experiments.atd import har, methods
from experiments.atd.activities import Windows
from experiments.atd.reference import published_step, pulled_rows, ridge_rows

from polyad.augmented.signals import STFT


def slow_pull(products, rows, twins, inverse, epsilon):
    """The loop of the published program, one row after another."""
    n, rank = rows.shape
    weights = np.ones((n, n)) / n - np.eye(n) * (1 / n + 0.01)
    units = np.diag(1 / np.linalg.norm(twins, axis=1)) @ twins
    out = rows.copy()
    for i in range(rank):
        length = 1 / np.linalg.norm(rows[i])
        projector = np.eye(rank) - (rows[i] @ rows[i]) * length**2
        step = epsilon * length * (weights[i] @ units) @ projector
        out[i] = (products[i] - step) @ inverse
    return out


def test_the_published_step_pulls_the_first_rows_only():
    rng = np.random.default_rng(0)
    rows, twins = rng.standard_normal((2, 12, 3))
    products = rng.standard_normal((12, 3))
    inverse = np.linalg.inv(np.eye(3) + 0.1)
    found = pulled_rows(products, rows, twins, inverse, 2.0)
    np.testing.assert_array_equal(found[3:], rows[3:])
    np.testing.assert_allclose(found, slow_pull(products, rows, twins, inverse, 2.0))


def test_the_published_step_without_pull_is_ridge_least_squares():
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((n, 2)) for n in (4, 5, 6)]
    samples, twins = rng.standard_normal((2, 9, 4, 5, 6))
    rows = [ridge_rows(own, factors) for own in (samples, twins)]
    found = published_step(factors, samples, twins, 1.0, epsilon=0.0)
    both, stacked = np.concatenate([samples, twins]), np.concatenate(rows)
    basis = np.einsum("nr,jr,kr->njkr", stacked, *factors[1:]).reshape(-1, 2)
    target = np.moveaxis(both, 1, 0).reshape(4, -1)
    expected = np.linalg.solve(basis.T @ basis + 1e-3 * np.eye(2), basis.T @ target.T).T
    np.testing.assert_allclose(found[0], expected)


@pytest.fixture
def windows():
    rng = np.random.default_rng(0)
    return Windows(
        rng.standard_normal((180, 9, 128)).astype(np.float32),
        np.tile(np.arange(1, 7), 30),
        np.repeat(np.arange(9), 20),
    )


def test_persons_of_the_test_are_not_those_of_the_labels(windows):
    labelled, tested = har.split_windows(windows, "persons", 0)
    assert not set(windows.person[labelled]) & set(windows.person[tested])
    assert len(labelled) + len(tested) == 180
    labelled, tested = har.split_windows(windows, "paper", 0)
    assert sorted([*labelled, *tested]) == list(range(180))
    some = har.few(labelled, windows.activity, 2, 0)
    assert sorted(windows.activity[some]) == sorted(list(range(1, 7)) * 2)
    assert set(some) <= set(labelled)


def test_accuracies_of_features_that_know_the_classes(windows):
    good = np.eye(7)[windows.activity] * 10
    features = {"clean": good, "noise": -good, "rotated": good}
    labelled, tested = har.split_windows(windows, "persons", 0)
    found = har.accuracies(features, windows.activity, labelled, tested, 1.0)
    assert found["clean/all/raw"] == found["rotated/2/standardised"] == 1.0
    assert found["noise/all/raw"] < 0.5


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_learns_and_makes_features(method, windows, monkeypatch):
    monkeypatch.setattr(methods, "STFT_PUBLISHED", STFT(n_fft=16, hop=16))
    monkeypatch.setattr(methods, "BATCH", 60)
    signals = windows.signals[:, :3, :48]
    seen = methods.Seen(signals, methods.STFT_PUBLISHED(signals))
    fitted = methods.learn(method, 2, methods.METHODS[method], seen, seed=0, sweeps=2)
    features = fitted.features(seen)
    assert features.shape == (180, 2)
    assert np.isfinite(features).all()
    assert fitted.n_parameters >= 2 * (6 + 9 + 3)
