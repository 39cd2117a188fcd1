"""Nested cross-validation: nothing leaks, and it is what one would write by hand."""

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, average_precision_score, make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from polyad import CP, LabelledTensor
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.metrics import FeatureEvaluation, evaluate_features
from polyad.metrics import features as module

STRENGTHS = (0.01, 1.0)
# As many as there are without this file.
INNER_FOLDS = module._INNER_FOLDS


@pytest.fixture(autouse=True)
def few_fits(monkeypatch):
    """The choice is made in the same way with fewer strengths and inner folds, and quicker."""
    assert set(STRENGTHS) <= set(module.STRENGTHS)
    monkeypatch.setattr(module, "STRENGTHS", STRENGTHS)
    monkeypatch.setattr(module, "_INNER_FOLDS", 2)


def data(n=90, n_classes=2, gap=1.0, seed=0):
    generator = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    centres = gap * generator.standard_normal((n_classes, 4))
    # Features of very different size: without scaling a penalty would ignore the small ones.
    return (centres[y] + generator.standard_normal((n, 4))) * [1.0, 100.0, 0.01, 1.0], y


def by_hand(features, y, seed, scoring, n_inner):
    """The nested loop of the scikit-learn manual."""
    seed = int(np.random.RandomState(seed).randint(2**31 - 1))
    outer = StratifiedKFold(3, shuffle=True, random_state=seed)
    folds = StratifiedKFold(n_inner, shuffle=True, random_state=seed)
    scores, strengths = [], []
    for train, test in outer.split(features, y):
        scaler = StandardScaler().fit(features[train])
        best, chosen = -np.inf, None
        for c in STRENGTHS:
            inner = []
            for a, b in folds.split(features[train], y[train]):
                own = StandardScaler().fit(features[train][a])
                model = LogisticRegression(C=c, max_iter=2000)
                model.fit(own.transform(features[train][a]), y[train][a])
                inner.append(scoring(model, own.transform(features[train][b]), y[train][b]))
            if np.mean(inner) > best:
                best, chosen = np.mean(inner), c
        model = LogisticRegression(C=chosen, max_iter=2000)
        model.fit(scaler.transform(features[train]), y[train])
        scores.append(scoring(model, scaler.transform(features[test]), y[test]))
        strengths.append(chosen)
    return scores, strengths


def accuracy(model, X, y):
    return accuracy_score(y, model.predict(X))


def precision(model, X, y):
    return average_precision_score(y, model.decision_function(X))


@pytest.mark.parametrize(
    ("n_classes", "name", "scoring", "n_inner"),
    [
        (2, "accuracy", accuracy, INNER_FOLDS),
        (3, "accuracy", accuracy, 2),
        (2, "average_precision", precision, 2),
    ],
)
def test_equals_a_nested_loop_written_by_hand(monkeypatch, n_classes, name, scoring, n_inner):
    monkeypatch.setattr(module, "_INNER_FOLDS", n_inner)
    features, y = data(n_classes=n_classes)
    found = evaluate_features(features, y, cv=3, scoring=name, random_state=3)
    scores, strengths = by_hand(features, y, 3, scoring, n_inner)
    np.testing.assert_allclose(found.scores, scores, atol=1e-12)
    assert found.strengths == tuple(strengths)
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.std == pytest.approx(np.std(scores, ddof=1))


def test_noise_scores_at_the_level_of_chance():
    """With many useless features a leak would show: training accuracy is 1 here."""
    generator = np.random.default_rng(0)
    means = []
    for seed in range(4):
        noise, y = generator.standard_normal((60, 40)), generator.permutation(60) % 2
        means.append(evaluate_features(noise, y, cv=3, random_state=seed).mean)
    assert abs(np.mean(means) - 0.5) < 0.12


def test_multiclass_precision_and_callable_scorers():
    features, y = data(n_classes=3, gap=3.0)
    found = evaluate_features(features, y, scoring="average_precision", cv=3, random_state=0)
    assert found.mean > 0.8
    names = np.array(["ant", "bee", "cat"])[y]
    scorer = make_scorer(accuracy_score)
    found = evaluate_features(features, names, scoring=scorer, cv=3, random_state=0)
    assert (found.scoring, found.mean > 0.8) == ("score", True)


def test_lasso_chooses_its_strength():
    features, y = data(gap=2.0)
    found = evaluate_features(features, y, estimator="lasso", cv=3, random_state=0)
    assert found.mean > 0.8
    assert set(found.strengths) <= set(STRENGTHS)


def test_estimators_of_the_user_are_cloned_and_may_choose_for_themselves():
    features, y = data()
    tree = DecisionTreeClassifier(random_state=0)
    found = evaluate_features(features, y, estimator=tree, random_state=0)
    assert not hasattr(tree, "tree_")
    assert found.strengths == (None,) * 5
    assert found.to_frame()["strength"].isna().all()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": [0.1, 1.0]},
        cv=2,
    )
    assert set(evaluate_features(features, y, estimator=search, cv=2).strengths) <= {0.1, 1.0}


def test_regressors_work_with_their_scoring():
    features, _ = data()
    y = features[:, 0] + 0.1 * np.random.default_rng(0).standard_normal(90)
    found = evaluate_features(features, y, estimator=Ridge(), scoring="r2", random_state=0)
    assert found.mean > 0.9


def test_groups_stay_on_one_side():
    """The features only tell the group: whoever sees a group before knows its class."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 4)
    y = generator.permutation(30)[groups] % 2
    features = generator.standard_normal((30, 25))[groups]
    assert evaluate_features(features, y, cv=3, random_state=0).mean > 0.9
    assert evaluate_features(features, y, groups=groups, cv=3, random_state=0).mean < 0.7
    given = evaluate_features(features, y, groups=groups, cv=GroupKFold(3), random_state=0)
    assert len(given.scores) == 3


def test_every_form_of_features_gives_the_same():
    X, _ = make_low_rank((60, 6, 5), 3, noise=0.2, random_state=0)
    y = (X[:, 0, 0] > np.median(X[:, 0, 0])).astype(int)
    features = CP(3, tol=1e-3, random_state=0).fit_transform(torch.asarray(X))
    expected = evaluate_features(features.numpy(), y, cv=2, random_state=0)
    index = [f"p{k}" for k in range(60)]
    table = pd.DataFrame(features.numpy(), index=index, columns=list("abc"))
    forms = [
        (features, torch.asarray(y)),
        (table, pd.Series(y, index=index)),
        (table, pd.Series(y, index=index).to_frame()),
        (LabelledTensor(features.numpy(), modes=["image", "feature"]), list(y)),
    ]
    for form, target in forms:
        found = evaluate_features(form, target, cv=2, random_state=0)
        assert found.scores.tolist() == expected.scores.tolist()
    sparse = evaluate_features(coo_array(features.numpy()), y, cv=2, random_state=0)
    assert sparse.mean == pytest.approx(expected.mean, abs=0.1)


def test_jobs_and_seeds():
    features, y = data()
    one = evaluate_features(features, y, cv=3, random_state=0).scores.tolist()
    with joblib.parallel_config(backend="threading"):
        two = evaluate_features(features, y, cv=3, random_state=0, n_jobs=2)
    assert two.scores.tolist() == one
    assert evaluate_features(features, y, cv=3, random_state=1).scores.tolist() != one


def test_the_result_reads_well():
    features, y = data(gap=4.0)
    found = evaluate_features(features, y, cv=3, random_state=0)
    assert isinstance(found, FeatureEvaluation)
    assert repr(found).startswith("FeatureEvaluation(accuracy 1.000 ± 0.000 over 3")
    table = found.to_frame()
    assert list(table.columns) == ["accuracy", "strength", "n_samples"]
    assert table["n_samples"].sum() == len(y)
    assert table.index.name == "fold"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"features": np.ones((3, 4, 5))}, r"\(n_samples, n_features\) is needed"),
        ({"features": np.full((90, 2), np.nan)}, "contains NaN"),
        ({"y": np.zeros(80)}, r"y has the shape \(80,\), but there are 90 samples"),
        ({"y": np.zeros(90)}, "y has 1 class"),
        ({"y": np.linspace(0, 1, 90)}, "classes are needed"),
        ({"y": np.where(np.arange(90) < 2, "rare", "common")}, "class rare has 2 samples"),
        ({"y": np.where(np.arange(90) < 2, np.nan, 1.0)}, "y is missing for 2 samples"),
        ({"y": np.array([None] * 3 + ["a", "b", "c"] * 29)}, "y is missing for 3 samples"),
        ({"groups": np.zeros(3)}, "groups has the shape"),
        ({"cv": 1}, "cv=1 makes no folds"),
        ({"cv": []}, r"cv=\[\] has no folds"),
        ({"cv": [1]}, r"cv=\[1\] has no folds"),
        ({"cv": [([0, 1], [90])]}, "has no folds"),
        ({"cv": [("ab", [2])]}, "has no folds"),
        ({"cv": np.nan}, "cv=nan has no folds"),
        ({"estimator": "forest"}, "'ridge', 'lasso' or an estimator"),
        ({"groups": np.arange(90) % 2, "cv": 2}, "no inner folds"),
        ({"random_state": -1}, "random_state=-1 is not a seed"),
    ],
)
def test_errors_say_what_is_needed(change, match):
    features, y = data()
    given = {"features": features, "y": y, **change}
    with pytest.raises(InvalidInputError, match=match):
        evaluate_features(**given)


def test_a_number_of_jobs_is_one():
    features, y = data()
    with pytest.raises(InvalidTypeError, match=r"n_jobs=\(1, 2\) is a tuple"):
        evaluate_features(features, y, n_jobs=(1, 2))


def test_more_jobs_than_folds_are_as_many_as_folds():
    features, y = data()
    with joblib.parallel_config(backend="threading"):
        few, many = (
            evaluate_features(features, y, cv=2, random_state=0, n_jobs=k) for k in (1, 10**30)
        )
    np.testing.assert_array_equal(few.scores, many.scores)


def test_tables_in_another_order_are_refused():
    features, y = data()
    target = pd.Series(y, index=range(90, 0, -1))
    with pytest.raises(InvalidInputError, match=r"y = y\.loc\[features\.index\]"):
        evaluate_features(pd.DataFrame(features), target)


@pytest.mark.parametrize(
    ("estimator", "match"),
    [(3, "estimator is a int"), (LogisticRegression, "estimator is the class LogisticRegression")],
)
def test_what_is_no_estimator(estimator, match):
    features, y = data()
    with pytest.raises(InvalidTypeError, match=match):
        evaluate_features(features, y, estimator=estimator)
