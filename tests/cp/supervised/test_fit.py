"""SupervisedCP as a whole: what its features are good for, all kinds of data, equalities."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import polyad
from polyad import NonnegativeCP, SupervisedCP, factor_match_score
from polyad.datasets import make_low_rank
from tests.cp.supervised.reference import hidden_classes

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# This check names its classes -1 and 1. Where classes are integers, -1 marks a sample without one,
# as in scikit-learn's own semi-supervised classifiers, which the check leaves out by their names.
EXPECTED_FAILURES = {"check_classifiers_classes": "-1 marks unlabelled samples"}


@parametrize_with_checks(
    [SupervisedCP(max_iter=2)], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
@pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("names", [[0, 1], ["one", "two"], [False, True], [0.0, 1.0]])
def test_two_classes_of_any_type(names):
    """What the check that is left out asks for, with classes that mean classes."""
    X, y = hidden_classes(60)
    y = np.array(names)[y]
    model = SupervisedCP(3, random_state=0, label_weight=1.0, max_iter=10).fit(X, y)
    assert model.classes_.tolist() == sorted(names)
    predicted = model.predict(X)
    assert predicted.dtype == y.dtype
    decision, chances = model.decision_function(X), model.predict_proba(X)
    assert decision.shape == (60,)
    assert (predicted == np.array(names)[(decision > 0).astype(int)]).all()
    np.testing.assert_allclose(np.log(chances[:, 1] / chances[:, 0]), decision, atol=1e-9)
    assert model.score(X, y) == np.mean(predicted == y)


def held_out(model, X, y, train):
    """Accuracy of a plain classifier on features of samples that the model has not seen."""
    classifier = make_pipeline(StandardScaler(), LogisticRegression())
    classifier.fit(model.transform(X[train]), y[train])
    return classifier.score(model.transform(X[~train]), y[~train])


@pytest.mark.parametrize(("n_classes", "seed"), [(2, 1), (2, 2), (3, 0)])
def test_two_components_find_the_classes_that_variation_hides(n_classes, seed):
    X, y = hidden_classes(240, n_classes, seed)
    train = np.arange(240) < 160
    plain = NonnegativeCP(2, random_state=0).fit(X[train])
    model = SupervisedCP(2, label_weight=1.0, label_ridge=0.01, random_state=0)
    model.fit(X[train], y[train])
    unsupervised, supervised = held_out(plain, X, y, train), held_out(model, X, y, train)
    assert supervised > unsupervised + 0.15
    assert model.score(X[~train], y[~train]) > unsupervised + 0.15
    # The price: less of the data is explained.
    assert polyad.metrics.explained_variation(X[train], model) < plain.score(X[train])


@pytest.mark.parametrize("form", ["dense", "sparse", "nan", "unobserved", "float32"])
def test_all_kinds_of_data(form):
    X, truth = make_low_rank((30, 8, 7), 2, nonnegative=True, random_state=1)
    y = np.where(truth.factors[0][:, 0] > np.median(truth.factors[0][:, 0]), "high", "low")
    hidden = np.random.default_rng(0).random(X.shape) < 0.3
    data = {
        "dense": X,
        "sparse": coo_array(X),
        "nan": np.where(hidden, np.nan, X),
        "unobserved": coo_array((X[~hidden], np.nonzero(~hidden)), shape=X.shape),
        "float32": X.astype(np.float32),
    }[form]
    missing = "unobserved" if form == "unobserved" else "zero"
    model = SupervisedCP(
        2, label_weight=1e-3, missing=missing, random_state=0, max_iter=30, tol=1e-7
    ).fit(data, y)
    assert factor_match_score(model.kruskal_, truth) > 0.98
    assert model.score(data, y) > 0.9
    assert all((factor >= 0).all() for factor in model.factors_)
    if form == "float32":
        assert model.factors_[1].dtype == model.transform(data).dtype == np.float32


def test_sparse_and_dense_and_torch_agree():
    X, y = hidden_classes(40)
    X = np.maximum(X, 0)
    options = {"random_state": 0, "max_iter": 3, "tol": 0, "label_weight": 1.0}
    dense, sparse, tensor = (
        SupervisedCP(2, **options).fit(data, y) for data in (X, coo_array(X), torch.tensor(X))
    )
    assert type(tensor.factors_[0]) is type(tensor.transform(torch.tensor(X))) is torch.Tensor
    assert tensor.score(torch.tensor(X), y) == dense.score(X, y)
    for other in (sparse, tensor):
        for left, right in zip(dense.factors_, other.factors_, strict=True):
            np.testing.assert_allclose(left, np.asarray(right), atol=1e-8)
        np.testing.assert_allclose(other.coef_, dense.coef_, rtol=1e-5)


def test_without_a_weight_it_is_nonnegative_cp():
    X = make_low_rank((15, 6, 5), 2, nonnegative=True, noise=0.2, random_state=0)[0]
    y = np.arange(15) % 3
    options = {"random_state": 0, "tol": 1e-9, "max_iter": 2000}
    model = SupervisedCP(2, label_weight=0.0, **options).fit(X, y)
    plain = NonnegativeCP(2, **options).fit(X)
    assert model.objective_ == pytest.approx(plain.objective_, rel=1e-6)
    assert factor_match_score(model.kruskal_, plain.kruskal_) > 0.999
    np.testing.assert_allclose(model.transform(X), plain.transform(X), atol=1e-2)
    np.testing.assert_allclose(model.factors_[0] * model.weights_, model.transform(X), atol=1e-9)


def test_features_know_no_labels_and_factors_do():
    X, y = hidden_classes(100)
    model = SupervisedCP(2, label_weight=1.0, label_ridge=0.01, random_state=0)
    features = model.fit_transform(X, y)
    assert np.array_equal(features, model.transform(X))
    fitted = model.factors_[0] * model.weights_
    # The gap between rows that have seen labels and rows that have not, for this data.
    gap = np.linalg.norm(features - fitted) / np.linalg.norm(features)
    assert 0.05 < gap < 1.0
    classifier = make_pipeline(StandardScaler(), LogisticRegression())
    assert classifier.fit(fitted, y).score(fitted, y) > 0.98  # by construction: never judge by it
    assert classifier.fit(features, y).score(features, y) < 0.98


def test_labels_in_other_places_change_nothing_but_their_names():
    X, y = hidden_classes(60)
    options = {"random_state": 0, "max_iter": 8, "tol": 0, "label_weight": 1.0}
    model = SupervisedCP(2, **options).fit(X, y)
    renamed = SupervisedCP(2, **options).fit(X, np.array(["b", "a"])[y])
    np.testing.assert_allclose(model.factors_[1], renamed.factors_[1], atol=1e-7)
    np.testing.assert_allclose(model.coef_, -renamed.coef_, rtol=1e-4)


def test_unlabelled_samples_help_and_have_no_say_in_the_classes():
    X, y = hidden_classes(240, seed=3)
    known = np.arange(240) < 180
    options = {"random_state": 0, "label_weight": 1.0, "label_ridge": 0.01, "max_iter": 30}
    model = SupervisedCP(2, **options).fit(X, np.where(known, y, -1))
    assert model.classes_.tolist() == [0, 1]
    assert model.factors_[0].shape == (240, 2)
    hidden = model.score(X[~known], y[~known])
    plain = held_out(NonnegativeCP(2, random_state=0).fit(X), X, y, known)
    assert hidden > plain + 0.1
    # All unlabelled but one of each class is enough to fit.
    few = np.full(240, -1)
    few[[int(np.argmax(y == 0)), int(np.argmax(y == 1))]] = [0, 1]
    assert np.isfinite(SupervisedCP(2, **options).fit(X, few).coef_).all()
    # Samples without a class do not count in the score.
    assert model.score(X, np.where(known, -1, y)) == hidden


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_unit_of_the_data_does_not_matter(scale, dtype):
    X, y = hidden_classes(50)
    options = {"random_state": 0, "max_iter": 6, "tol": 0, "label_weight": 1.0}
    same = SupervisedCP(2, **options).fit(X, y)
    model = SupervisedCP(2, **options).fit((X * scale).astype(dtype), y)
    tolerance = 1e-2 if dtype == np.float32 else 1e-6
    for left, right in zip(model.factors_, same.factors_, strict=True):
        np.testing.assert_allclose(left, right, atol=tolerance)
    np.testing.assert_allclose(model.coef_ * scale, same.coef_, rtol=0.2, atol=tolerance)
    chances = model.predict_proba((X * scale).astype(dtype))
    np.testing.assert_allclose(chances, same.predict_proba(X), atol=5 * tolerance)


def test_more_of_the_same_samples_change_nothing():
    """The label term is a mean: its weight does not depend on the number of samples."""
    X, y = hidden_classes(40)
    init = [np.random.default_rng(0).random((n, 2)) for n in X.shape]
    options = {"max_iter": 10, "tol": 0, "label_weight": 1.0}
    once = SupervisedCP(2, init=init, **options).fit(X, y)
    twice = SupervisedCP(2, init=[np.tile(init[0], (2, 1)), *init[1:]], **options)
    twice.fit(np.tile(X, (2, 1, 1)), np.tile(y, 2))
    np.testing.assert_allclose(once.factors_[1], twice.factors_[1], atol=1e-6)
    np.testing.assert_allclose(once.coef_, twice.coef_, rtol=1e-4)


def test_sparsity_makes_zeros_and_ridge_shrinks():
    X, y = hidden_classes(60)
    options = {"random_state": 0, "max_iter": 20}
    plain = SupervisedCP(3, **options).fit(X, y)
    sparse = SupervisedCP(3, **options, sparsity=[0.0, 3.0, 3.0]).fit(X, y)
    zeros = [sum(int((f == 0).sum()) for f in m.factors_[1:]) for m in (plain, sparse)]
    assert zeros[1] > zeros[0]
    shrunk = SupervisedCP(3, **options, ridge=5.0).fit(X, y)
    assert shrunk.weights_.sum() < plain.weights_.sum()


def test_zero_data_and_zero_slices():
    y = np.array(["a", "b", "b", "b"])
    with pytest.warns(polyad.exceptions.DataWarning, match="every entry is zero"):
        model = SupervisedCP(1).fit(np.zeros((4, 3, 2)), y)
    assert model.predict(np.zeros((2, 3, 2))).tolist() == ["b", "b"]
    np.testing.assert_allclose(model.predict_proba(np.zeros((1, 3, 2))), [[0.25, 0.75]])
    X, y = hidden_classes(40)
    X[5] = 0
    X[:, 3] = 0
    model = SupervisedCP(2, random_state=0, label_weight=1.0).fit(X, y)
    assert (model.factors_[1][3] == 0).all()
    assert (model.transform(X)[5] == 0).all()
