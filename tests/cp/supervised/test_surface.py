"""SupervisedCP as its users meet it: targets of all kinds, scikit-learn, files, labels, errors."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import polyad
from polyad import LabelledTensor, SupervisedCP
from polyad.exceptions import ModelFileError, PolyadError
from polyad.fitting.archive import read_archive, write_archive
from polyad.metrics import evaluate_features
from tests.cp.supervised.reference import hidden_classes

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = hidden_classes(48, 3, seed=1)
QUICK = {"random_state": 0, "max_iter": 5, "tol": 0}
NAMES = np.array(["red", "green", "blue"])


@pytest.mark.parametrize(
    ("make", "classes"),
    [
        (lambda y: y, [0, 1, 2]),
        (lambda y: y.tolist(), [0, 1, 2]),
        (lambda y: y.astype(np.int8), [0, 1, 2]),
        (torch.tensor, [0, 1, 2]),
        (lambda y: y.astype(float), [0.0, 1.0, 2.0]),
        (lambda y: NAMES[y], ["blue", "green", "red"]),
        (lambda y: NAMES[y].astype(object), ["blue", "green", "red"]),
        (lambda y: pd.Series(NAMES[y]), ["blue", "green", "red"]),
        (lambda y: pd.Series(NAMES[y], dtype="category"), ["blue", "green", "red"]),
        (lambda y: pd.Series(y, dtype="Int64"), [0, 1, 2]),
    ],
)
def test_classes_of_any_type(make, classes):
    model = SupervisedCP(2, **QUICK).fit(X, make(Y))
    assert model.classes_.tolist() == classes
    assert model.predict_proba(X).shape == (48, 3)
    assert model.decision_function(X).shape == (48, 3)
    assert model.coef_.shape == (3, 2)
    chosen = model.classes_[np.argmax(model.predict_proba(X), axis=1)]
    assert np.array_equal(model.predict(X), chosen)
    assert model.score(X, make(Y)) == np.mean(chosen == np.asarray(make(Y)))
    if classes == [0, 1, 2]:
        same = SupervisedCP(2, **QUICK).fit(X, Y)
        assert np.array_equal(model.coef_, same.coef_)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: np.where(np.arange(48) < 9, -1, y),
        lambda y: np.where(np.arange(48) < 9, np.nan, y),
        lambda y: [None if k < 9 else NAMES[c] for k, c in enumerate(y)],
        lambda y: pd.Series([None if k < 9 else NAMES[c] for k, c in enumerate(y)]),
        lambda y: pd.Series([None if k < 9 else c for k, c in enumerate(y)], dtype="Int64"),
        lambda y: pd.Series(NAMES[y], dtype="category").where(np.arange(48) >= 9),
    ],
)
def test_samples_without_a_class(make):
    model = SupervisedCP(2, **QUICK).fit(X, make(Y))
    states = []
    expected = SupervisedCP(2, callbacks=lambda news: states.append(news.state), **QUICK)
    expected.fit(X, np.where(np.arange(48) < 9, -1, Y))
    assert len(model.classes_) == 3
    # Names are sorted, numbers too: the same classes in another order.
    left, right = (np.sort(np.abs(m.coef_), axis=0) for m in (model, expected))
    np.testing.assert_allclose(left, right, rtol=1e-4)
    np.testing.assert_allclose(model.factors_[0], expected.factors_[0], atol=1e-6)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (None, "requires y to be passed"),
        (Y[:-1], "X has 48 and y has 47"),
        (np.zeros(48, dtype=int), "only one class, 0, and"),
        (np.where(Y == 0, 1, -1), "If -1 is a class of yours"),
        (np.full(48, -1), "no labelled sample"),
        (np.full(48, np.nan), "no labelled sample"),
        (np.linspace(0, 1, 48), "Unknown label type: continuous"),
        (np.where(Y == 0, np.inf, 1.0), "infinity"),
        (["a", 1] * 24, "y mixes numbers and text"),
        ([("a",)] * 24 + [("b", "c")] * 24, "y"),
        (np.stack([Y, Y], axis=1), "1d|1D|one-dimensional|shape"),
        ("abc", "y"),
    ],
)
def test_unusable_targets(y, says):
    if isinstance(y, list) and y[0] == "a":
        y = np.array(y, dtype=object)
    with pytest.raises((PolyadError, ValueError), match=says):
        SupervisedCP(2).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"label_weight": -1.0}, "label_weight"),
        ({"label_ridge": -1.0}, "label_ridge"),
        ({"ridge": [1.0, 1.0, 1.0]}, "ridge"),
        ({"sparsity": [1.0]}, "sparsity=.* is not usable for 3 modes"),
        ({"sparsity": [1.0, -1.0, 1.0]}, "sparsity=.* is not usable"),
        ({"sparsity": ["x"] * 3}, "sparsity=.* is not usable"),
        ({"init": [np.full((n, 2), -1.0) for n in X.shape]}, "the negative number -1 at"),
        (
            {"init": [np.ones((n, 2)) for n in X.shape], "fixed_modes": [0]},
            "fixed_modes has mode 0, the samples",
        ),
        ({"n_components": 500}, "too large"),
    ],
)
def test_bad_parameters(parameters, says):
    with pytest.raises((PolyadError, ValueError), match=says):
        SupervisedCP(**{"n_components": 2, **parameters}).fit(X, Y)


def test_a_failed_fit_leaves_the_earlier_one():
    model = SupervisedCP(2, **QUICK).fit(X, Y)
    before = model.predict_proba(X)
    with pytest.raises(PolyadError):
        model.fit(X, np.zeros(48, dtype=int))
    assert np.array_equal(model.predict_proba(X), before)
    with pytest.raises(PolyadError, match="samples"):
        model.score(X, Y[:-1])


def test_inside_scikit_learn():
    model = SupervisedCP(2, **QUICK)
    assert is_classifier(model)
    chain = make_pipeline(model, LogisticRegression()).fit(X, Y)
    assert 0.0 <= chain.score(X, Y) <= 1.0
    search = GridSearchCV(model, {"label_weight": [0.0, 1.0], "n_components": [1, 2]}, cv=3)
    search.fit(X, Y)
    accuracies = search.cv_results_["mean_test_score"]
    assert ((accuracies >= 0) & (accuracies <= 1)).all()
    assert set(search.best_params_) == {"label_weight", "n_components"}
    weighted = search.best_estimator_.score(X, Y, sample_weight=np.arange(48.0))
    assert 0.0 <= weighted <= 1.0
    features = clone(model).set_output(transform="pandas").fit_transform(X, Y)
    assert features.columns.tolist() == ["supervisedcp0", "supervisedcp1"]
    assert evaluate_features(features, Y, estimator=LogisticRegression(), cv=3).mean > 0


def test_history_tells_the_two_losses():
    model = SupervisedCP(2, **QUICK).fit(X, Y)
    table = model.history_.to_frame()
    assert {"relative_error", "label_loss"} <= set(table.columns)
    assert table["label_loss"].iloc[-1] < table["label_loss"].iloc[0]


@pytest.mark.parametrize("names", [[0, 1, 2], ["red", "green", "blue"], [0.5, 1.0, 2.0]])
def test_saved_and_loaded(tmp_path, names):
    y = [names[k] for k in Y]
    if names[0] == 0.5:
        y = [{0.5: 3.0, 1.0: 1.0, 2.0: 2.0}[name] for name in y]
    model = SupervisedCP(2, **QUICK).fit(X, y)
    model.save(tmp_path / "model")
    again = polyad.load(tmp_path / "model")
    assert again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.get_params() == model.get_params()
    assert again.score(X, y) == model.score(X, y)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("coef_", np.ones((2, 2))),
        ("intercept_", np.ones(2)),
        ("classes_", np.arange(2)),
        ("classes_", 3),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path, name, value):
    path = tmp_path / "model"
    SupervisedCP(2, **QUICK).fit(X, Y).save(path)
    content = read_archive(path, "model")
    content["learned"][name] = value
    write_archive(path, "model", content)
    with pytest.raises(ModelFileError):
        polyad.load(path)


def test_a_fit_of_torch_data_goes_on(tmp_path):
    data, common = torch.tensor(X), {"random_state": 0, "tol": 0}
    whole = SupervisedCP(2, max_iter=2, **common).fit(data, Y)
    SupervisedCP(2, max_iter=1, checkpoint=tmp_path / "state", **common).fit(data, Y)
    resumed = SupervisedCP(2, max_iter=2, checkpoint=tmp_path / "state", **common).fit(data, Y)
    assert resumed.history_.objective == whole.history_.objective
    assert isinstance(resumed.factors_[0], torch.Tensor)


def test_warm_start_goes_on():
    model = SupervisedCP(2, random_state=0, max_iter=5, warm_start=True).fit(X, Y)
    before = model.objective_
    assert model.fit(X, Y).objective_ <= before * (1 + 1e-9)


def test_a_fixed_mode_is_kept():
    init = [np.random.default_rng(0).random((n, 2)) + 0.1 for n in X.shape]
    model = SupervisedCP(2, init=init, fixed_modes=[1], max_iter=10, tol=0, label_weight=1.0)
    model.fit(X, Y)
    assert np.array_equal(model.factors_[1], init[1])
    assert (np.diff(model.history_.objective) <= 1e-9 * model.history_.objective[0]).all()
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)).shape, X.shape)


def test_labelled_samples():
    data = LabelledTensor(
        coo_array(np.maximum(X, 0)),
        modes=["patient", "diagnosis", "drug"],
        labels={"patient": [f"p{k}" for k in range(48)], "drug": list("abcdefghi")},
    )
    model = SupervisedCP(2, **QUICK).set_output(transform="pandas").fit(data, NAMES[Y])
    assert model.factor_table("patient").index[3] == "p3"
    assert model.transform(data).index[3] == "p3"
    assert len(model.top(0, "drug", k=3)) == 3
    shuffled = data.align({"drug": list("ihgfedcba")})
    assert np.array_equal(model.predict(shuffled), model.predict(data))
    np.testing.assert_allclose(model.predict_proba(shuffled), model.predict_proba(data))


def test_a_labelled_target_is_matched_by_label():
    names = [f"p{k:02d}" for k in range(48)]
    data = LabelledTensor(X, modes=["patient", "diagnosis", "drug"], labels={"patient": names})
    expected = SupervisedCP(2, **QUICK).fit(X, Y)
    target = pd.Series(Y, index=names)
    target.loc["stranger"] = 1
    shuffled = target.sample(frac=1.0, random_state=0)
    model = SupervisedCP(2, **QUICK).fit(data, shuffled)
    assert np.array_equal(model.coef_, expected.coef_)
    assert model.score(data, shuffled) == expected.score(X, Y)
    weight, others = pd.Series(np.arange(48.0), index=names), np.roll(Y, 5)
    weighted = expected.score(X, others, sample_weight=weight.to_numpy())
    assert 0 < weighted < 1
    assert model.score(data, others, sample_weight=weight.iloc[::-1]) == weighted
    with pytest.raises(PolyadError, match="sample_weight has no entry for 8 labels"):
        model.score(data, others, sample_weight=weight.iloc[8:])
    # Without labels on either side, order counts.
    for left, right in ((X, target.iloc[:48]), (data, pd.Series(Y)), (data, target.iloc[:48])):
        assert np.array_equal(SupervisedCP(2, **QUICK).fit(left, right).coef_, expected.coef_)
    with pytest.raises(PolyadError, match=r"y has no entry for 2 labels .*'p03', 'p07'"):
        SupervisedCP(2, **QUICK).fit(data, target.drop(["p03", "p07"]))
    repeated = pd.Series(Y, index=["p00"] * 48)
    with pytest.raises(PolyadError, match="no entry for 48 labels"):
        SupervisedCP(2, **QUICK).fit(data, repeated)


def test_weights_of_samples_are_one_for_each():
    model = SupervisedCP(2, **QUICK).fit(X, Y)
    with pytest.raises(PolyadError, match=r"sample_weight has the shape \(5,\).*48 samples"):
        model.score(X, Y, sample_weight=np.ones(5))
    some = np.where(np.arange(48) < 5, -1, Y)
    weight = np.arange(48.0)
    hits = (model.predict(X) == Y)[5:]
    assert model.score(X, some, sample_weight=weight) == pytest.approx(
        weight[5:][hits].sum() / weight[5:].sum()
    )
