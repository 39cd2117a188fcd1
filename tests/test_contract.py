"""What the README promises of every estimator, held for every estimator.

A new one is a line in ``tests/estimators.py``. What only one class promises is tested beside it.
"""

from copy import copy
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array, issparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import polyad
from polyad import Checkpoint, LabelledTensor
from polyad.exceptions import PolyadError
from tests.estimators import CASES, CROWDS, FINE_CUTS, FIRST
from tests.forks import run

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning"),
]
every_case = pytest.mark.parametrize("name", CASES)
every_estimator = pytest.mark.parametrize("name", FIRST.values())


@cache
def fitted(name):
    """Return a case with its model, which no test changes."""
    return CASES[name], CASES[name].fit()


@cache
def fitted_by_label(name):
    """Return labelled data of a case with its model, which no test changes."""
    X = CASES[name].labelled()
    return X, CASES[name].fit(X)


@cache
def fitted_twice(name):
    """Return the better of two fits of a case, which no test changes."""
    return CASES[name].fit(n_init=2, n_jobs=1)


def learned(model):
    """Return what a fit gave, but for the time that it took."""
    names = vars(model).keys() - model.get_params(deep=False).keys() - {"history_"}
    return {name: vars(model)[name] for name in names if not name.startswith("_")}


def same_bits(one, other):
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if one is None or other is None:
        return one is other
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.all(one == other))


def assert_same_model(one, other):
    mine, theirs = learned(one), learned(other)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not same_bits(mine[name], theirs[name])] == []
    tables = (model.history_.to_frame().drop(columns="seconds") for model in (one, other))
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def assert_close(found, expected, part=1e-6):
    """Compare arrays, in the size of the largest entry."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() <= part * np.abs(expected).max()


def test_every_estimator_is_here():
    public = [getattr(polyad, name) for name in polyad.__all__]
    known = {item for item in public if isinstance(item, type) and issubclass(item, BaseEstimator)}
    assert known == {*FIRST, *CROWDS}


# Labels.


@every_case
def test_labels_change_no_number_and_come_back(name):
    case, plain = fitted(name)
    X, model = fitted_by_label(name)
    mine, theirs = learned(model), learned(plain)
    unlabelled = theirs.keys() - {"labels_", "modes_", "feature_names_in_"}
    assert [key for key in unlabelled if not same_bits(mine[key], theirs[key])] == []
    assert model.modes_ == X.modes
    if case.has_components:
        for mode, labels in zip(X.modes, X.labels, strict=True):
            assert model.factor_table(mode).index.tolist() == list(labels)
        assert set(model.top(0, "thing", 2).index) <= set(X.labels[1])
        numbers = model._summary(2).select_dtypes("number")
        assert np.isfinite(numbers.to_numpy()).all()
        assert numbers["share"].sum() == pytest.approx(1.0, abs=0.01)
    table = copy(model).set_output(transform="pandas").transform(X)
    assert table.index.tolist() == list(X.labels[0])


@every_case
def test_labels_come_in_any_order(name):
    case = CASES[name]
    X, model = fitted_by_label(name)
    expected = model.transform(X)
    turned = X.align({mode: list(X.labels[k])[::-1] for k, mode in enumerate(X.modes) if k})
    assert_close(model.transform(turned), expected)
    dense = case.labelled(case.dense())
    backwards = LabelledTensor(
        coo_array(dense.data.T) if issparse(X.data) else dense.data.T,
        modes=X.modes[::-1],
        labels=list(X.labels[::-1]),
    )
    assert_close(model.transform(backwards), expected)
    strange = LabelledTensor(
        X.data, modes=X.modes, labels=[None, *([f"odd {k}" for k in range(n)] for n in X.shape[1:])]
    )
    with pytest.raises(PolyadError, match="'odd 0'"):
        model.transform(strange)


# Files.


@every_case
def test_a_saved_model_is_the_same(name, tmp_path):
    case, model = fitted(name)
    model.save(tmp_path / "model")
    loaded = polyad.load(tmp_path / "model")
    assert type(loaded) is case.estimator
    assert loaded.get_params() == model.get_params()
    assert_same_model(model, loaded)
    assert loaded.status_ is model.status_
    assert same_bits(loaded.transform(case.data()), model.transform(case.data()))
    assert_same_model(loaded.fit(case.data(), case.classes(8)), model)


class Killed(BaseException):
    """What no fit catches."""


@every_case
def test_a_killed_fit_goes_on_to_the_same_bits(name, tmp_path):
    """Killed in the last of its starts; the checkpoint is all that is left."""
    case, path = CASES[name], tmp_path / "state"
    # Two, unless all would be the same.
    earlier = 3 * (len(fitted_twice(name).history_.starts) - 1)
    numbers = []

    def kill(iteration):
        numbers.append(iteration.number)
        if len(numbers) == earlier + 2:
            raise Killed

    with pytest.raises(Killed):
        case.fit(n_init=2, checkpoint=Checkpoint(path, every=1), callbacks=[kill])
    assert numbers == [*[1, 2, 3][:earlier], 1, 2]
    numbers.clear()
    resumed = case.fit(
        n_init=2, checkpoint=path, callbacks=[lambda iteration: numbers.append(iteration.number)]
    )
    assert len(numbers) < earlier + 3
    assert_same_model(resumed, fitted_twice(name))


# One process imports and has each kernel ready; each fit is a fork of it.
KILLS = """
import os, signal, sys, warnings
from polyad import Checkpoint
from tests.estimators import CASES

warnings.simplefilter("ignore")

def run(name, **options):
    child = os.fork()
    if not child:
        CASES[name].fit(n_init=2, n_jobs=1, **options).save(f"{sys.argv[1]}/{name}.model")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def kill(iteration):
    seen.append(iteration.number)
    if len(seen) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

for name in sys.argv[2:]:
    CASES[name].fit(max_iter=1, n_jobs=1)
    path, seen = f"{sys.argv[1]}/{name}.state", []
    assert run(name, checkpoint=Checkpoint(path, every=1), callbacks=[kill]) == -9, name
    assert run(name, checkpoint=path) == 0, name
"""


def test_a_process_that_was_killed_goes_on_to_the_same_bits(tmp_path):
    """One estimator of each room: what its others leave behind, the test before has looked at."""
    rooms = {CASES[name].estimator.__module__.split(".")[1]: name for name in FIRST.values()}
    done = run(KILLS, tmp_path, *rooms.values())
    assert done.returncode == 0, done.stderr
    for name in rooms.values():
        assert_same_model(polyad.load(tmp_path / f"{name}.model"), fitted_twice(name))


# Threads, number types, containers.


@every_case
def test_the_number_of_threads_changes_no_bit(name, monkeypatch):
    case = CASES[name]
    for constant, value in FINE_CUTS.items():
        monkeypatch.setattr(f"polyad.{constant}", value)
    for form, (X, parameters) in case.large_forms().items():
        options = {"n_components": 3, "max_iter": 2, **parameters}
        one, two = (case.fit(X, **options, n_jobs=n_jobs) for n_jobs in (1, 2))
        assert_same_model(one, two)
        assert same_bits(one.transform(X), two.transform(X)), form


@every_case
def test_float32_stays(name):
    case, double = fitted(name)
    for form, data in case.forms().items():
        X = data.astype(np.float32)
        model = case.fit(X)
        features = model.transform(X)
        arrays = [features]
        if case.has_components:
            arrays += [model.weights_, *model.factors_, model.inverse_transform(features)]
        assert {array.dtype for array in arrays} == {np.dtype(np.float32)}, form
        if form != "missing":
            assert model.objective_ == pytest.approx(double.objective_, rel=1e-3)


@every_case
def test_sparse_is_dense(name):
    case, model = fitted(name)
    X = coo_array(case.dense())
    if not case.takes_sparse:
        with pytest.raises(PolyadError, match="Sparse data"):
            case.fit(X)
        return
    sparse, new = case.fit(X), case.dense(seed=1)
    if case.takes_dense:
        model = case.fit(case.dense())
    if case.estimator in (polyad.PoissonCP, polyad.WassersteinCP):  # which make dense data sparse
        assert_same_model(sparse, model)
        assert same_bits(model.transform(coo_array(new)), model.transform(new))
    assert_close(sparse.kruskal_.to_dense(), model.kruskal_.to_dense())
    assert_close(model.transform(coo_array(new)), model.transform(new))


def frozen(X):
    """Return data that cannot be changed."""
    for array in (X.data, *X.coords) if issparse(X) else (X,):
        array.setflags(write=False)
    return X


@every_case
def test_features_are_those_of_the_fit_and_nothing_that_is_given_is_changed(name):
    case = CASES[name]
    y = case.classes(8)
    if y is not None:
        y = frozen(y)
    for form, X in case.forms().items():
        model = case.make()
        given = dict(model.get_params())
        of_the_fit = model.fit_transform(frozen(X), y)
        features = frozen(model.transform(X))
        assert np.abs(features - of_the_fit).max() <= 1e-6 * np.abs(features).max(), form
        if case.has_components:
            model.inverse_transform(features)
        model.score(X, y)
        assert all(model.get_params()[key] is value for key, value in given.items())
    if case.takes_missing:
        mask = frozen(np.random.default_rng(1).random(X.shape) < 0.9)
        case.make().fit(frozen(case.data()), y, mask=mask)


# Inside scikit-learn.


@every_estimator
def test_inside_scikit_learn(name):
    case = CASES[name]
    X, y = case.labelled(case.data(n_samples=12)), np.arange(12) % 2
    pipeline = make_pipeline(case.make(), LogisticRegression()).fit(X, y)
    assert pipeline.predict(X).shape == (12,)
    names = [f"{case.estimator.__name__.lower()}{k}" for k in range(2)]
    assert pipeline[:-1].get_feature_names_out().tolist() == names
    search = GridSearchCV(case.make(), {"n_components": [1, 2]}, cv=2, error_score="raise")
    scores = search.fit(X, y).cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_estimator_.transform(X).shape[0] == 12


@every_estimator
def test_features_as_a_table(name):
    case, model = fitted(name)
    X = case.data()
    columns = model.get_feature_names_out().tolist()
    for library in ("pandas", "polars"):
        table = clone(model).set_output(transform=library).fit_transform(X, case.classes(8))
        assert list(table.columns) == columns
        assert_close(table.to_numpy(), model.transform(X))
        assert isinstance(table, pd.DataFrame) == (library == "pandas")


@every_estimator
def test_tools_can_look_at_it(name):
    """Tab completion and notebooks ask for all attributes, fitted or not."""
    case, model = fitted(name)
    for own in (case.make(), model):
        assert "fit" in dir(own)
        assert type(own).__name__ in own._repr_html_()


@every_estimator
def test_a_clone_has_the_parameters_and_nothing_learned(name):
    case, model = fitted(name)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(case.data())


# Bad input.


def with_value(X, value):
    X = X.astype(np.result_type(X, value), copy=True)
    X.flat[3] = value
    return X


BAD_DATA = {
    "text": lambda X: X.astype(str),
    "complex": lambda X: X + 1j,
    "one mode": lambda X: X.ravel(),
    "no samples": lambda X: X[:0],
    "no features": lambda X: X[:, :0],
    "infinite": lambda X: with_value(X, np.inf),
    "too large": lambda X: with_value(X, 1e200),
    "not stored as a number": lambda X: coo_array(with_value(X, np.nan)),
    "nothing": lambda X: None,
    "all missing": lambda X: np.full_like(X, np.nan),
}
BAD_PARAMETERS = {
    "n_components": [0, 1.5, True, "two"],
    "max_iter": [0, True],
    "tol": [-1.0, float("nan")],
    "n_init": [0],
    "random_state": ["seed"],
    "n_jobs": [0],
    "time_budget": [0.0],
    "init": ["unknown", 5],
    "checkpoint": [3, "no/such/folder/file"],
    "callbacks": [[1]],
}


@every_estimator
def test_bad_data_is_refused_before_any_work(name):
    case, calls, taken = CASES[name], [], []
    for kind, make in BAD_DATA.items():
        try:
            case.make(callbacks=[calls.append]).fit(make(case.dense()), case.classes(8))
        except PolyadError:
            assert calls == [], kind
        else:
            taken.append(kind)
            calls.clear()
    assert taken == (["text"] if case.tags.input_tags.string else [])


@every_estimator
def test_bad_parameters_are_refused_before_any_work(name):
    case, calls = CASES[name], []
    for parameter in BAD_PARAMETERS.keys() & case.make().get_params().keys():
        for value in BAD_PARAMETERS[parameter]:
            model = case.make(**{"callbacks": [calls.append], parameter: value})
            with pytest.raises((ValueError, TypeError), match=parameter):
                model.fit(case.data(), case.classes(8))
    assert calls == []


@every_estimator
def test_a_refused_fit_leaves_the_model(name):
    case, X = CASES[name], CASES[name].data()
    model = case.fit()
    before = model.transform(X)
    for bad in (with_value(case.dense(), np.inf), np.zeros(3)):
        with pytest.raises(PolyadError):
            model.fit(bad, case.classes(8))
    assert same_bits(model.transform(X), before)


@every_estimator
def test_bad_samples_are_refused(name):
    case, model = fitted(name)
    X = case.dense()
    for bad in (X[0], X[:, :3], X[:0], with_value(X, np.inf)):
        for method in (model.transform, lambda data: model.score(data, case.classes(len(data)))):
            with pytest.raises(PolyadError):
                method(bad)
    for bad in (np.ones((3, 5)), np.ones(2), [[1.0, np.nan]]) if case.has_components else ():
        with pytest.raises(PolyadError, match="as transform returns them"):
            model.inverse_transform(bad)
    with pytest.raises(NotFittedError):
        case.make().transform(X)
