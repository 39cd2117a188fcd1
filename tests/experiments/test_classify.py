"""The quick classifier of the experiments finds what scikit-learn's finds."""

import numpy as np
import pytest
from experiments import lasso
from experiments.classify import SCALINGS, Split, lasso_accuracy, lasso_precision
from experiments.lasso import LassoPath, objective
from sklearn.linear_model import LogisticRegression

STRENGTHS = (0.01, 0.1, 1.0, 10.0)


@pytest.fixture(autouse=True)
def as_it_is_written(monkeypatch):
    """Compile nothing: ten seconds, of which these small data need none."""
    for name in ("_path", "_value", "_quadratic"):
        monkeypatch.setattr(lasso, name, getattr(lasso, name).py_func)


def blobs(n=120, d=8, n_classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(n_classes, size=n)
    X = generator.standard_normal((n, d))
    X[:, :n_classes] += 1.2 * np.eye(n_classes)[y]
    return X, y


def test_the_path_is_at_the_optimum():
    X, y = blobs(80, 5)
    path = LassoPath(STRENGTHS).fit(X, y)
    for s, C in enumerate(STRENGTHS):
        for k in range(3):
            t = (y == k).astype(float)
            # saga does not penalise the intercept, as here.
            peer = LogisticRegression(
                l1_ratio=1, C=C, solver="saga", tol=1e-8, max_iter=5000, random_state=0
            ).fit(X, t)
            theirs = objective(X, t, np.append(peer.coef_[0], peer.intercept_), C)
            ours = objective(X, t, path.coefficients_[s, k], C)
            assert ours <= theirs * (1 + 1e-5)


def test_a_strong_penalty_leaves_the_intercept():
    X, y = blobs(n_classes=2)
    path = LassoPath((1e-4,)).fit(X, y)
    assert path.coefficients_.shape == (1, 1, 9)
    assert not path.coefficients_[0, 0, :-1].any()
    assert path.coefficients_[0, 0, -1] == pytest.approx(
        np.log(y.mean() / (1 - y.mean())), rel=1e-2
    )


def test_separable_classes_give_finite_coefficients():
    X, y = blobs(n=20, d=30)
    path = LassoPath((1.0, 1e4)).fit(X, y)
    assert np.isfinite(path.coefficients_).all()
    assert (path.predict(X)[1] == y).all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scores(scaling):
    X, y = blobs(300)
    features, classes = (X[:180], X[180:240], X[240:]), (y[:180], y[180:240], y[240:])
    split = Split(features, classes).scaled(scaling)
    result = lasso_accuracy(split)
    assert result["test"] > 0.55
    two = Split(split.features, tuple((part == 0).astype(int) for part in classes))
    assert 0.5 < lasso_precision(two)["test"] <= 1.0
    few = split.with_few_labels(10, seed=0)
    assert len(few.classes[0]) == 10
    assert set(few.classes[0]) == {0, 1, 2}
