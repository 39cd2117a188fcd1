"""The experiment on signals: what is compared, and how it is tested."""

import numpy as np
import pytest
import torch
from experiments.atd import har, methods, networks, supervised
from experiments.atd.activities import Windows
from experiments.atd.networks import NETWORKS
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


LEARNED = [m for m in methods.METHODS if m not in (*methods.SUPERVISED, *NETWORKS)]


@pytest.mark.parametrize("method", LEARNED)
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


# Encoders of the paper's table, and ours with the decoder.
SIZES = {"SimCLR": 53_286, "BYOL": 54_342, "AE": 72_936, "AE_ss": 72_936}


@pytest.mark.parametrize("method", NETWORKS)
def test_networks_have_the_size_of_the_paper_and_make_features(method, windows, monkeypatch):
    monkeypatch.setattr(methods, "NETWORK_EPOCHS", 1)
    signals = windows.signals[:8]
    seen = methods.Seen(signals, methods.STFT_PUBLISHED(signals))
    fitted = methods.learn(method, 32, methods.METHODS[method], seen, seed=0, sweeps=1)
    assert fitted.n_parameters == SIZES[method]
    features = fitted.features(seen)
    assert features.shape == (8, 32)
    assert np.isfinite(features).all()


def test_the_contrast_is_that_of_the_definition():
    one, other = np.random.default_rng(0).standard_normal((2, 5, 3))
    units = np.concatenate([one, other])
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    likeness = np.exp(units @ units.T / networks.TEMPERATURE)
    np.fill_diagonal(likeness, 0.0)
    partners = np.concatenate([np.arange(5, 10), np.arange(5)])
    chosen = likeness[np.arange(10), partners] / likeness.sum(axis=1)
    found = networks.contrast(torch.from_numpy(one), torch.from_numpy(other))
    assert float(found) == pytest.approx(-np.log(chosen).mean())


@pytest.mark.parametrize("method", methods.SUPERVISED)
def test_supervised_methods_find_classes_that_differ_by_a_pattern(method, monkeypatch):
    monkeypatch.setattr(methods, "CNN_STEPS", 12)
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    patterns = np.einsum("ri,rj,rk->rijk", *(rng.standard_normal((3, n)) for n in (4, 33, 33)))
    tensors = patterns[labels] + 0.5 * rng.standard_normal((60, 4, 33, 33))
    tensors = tensors.astype(np.float32)
    predict, size = methods.classifier(method, 3, tensors[:45], labels[:45], 0)
    assert np.mean(predict(tensors[45:]) == labels[45:]) > 0.8
    assert size >= 3 * (4 + 33 + 33)


def test_projections_of_umlda_are_not_correlated():
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((40, 6)), np.arange(40) % 3
    before = rng.standard_normal((40, 2))
    before -= before.mean(axis=0)
    direction = supervised._fisher_direction(rows, labels, before)
    np.testing.assert_allclose((rows - rows.mean(axis=0)) @ direction @ before, 0.0, atol=1e-10)
    many = rng.standard_normal((40, 6))
    assert supervised._fisher_direction(rows, labels, many) is None
