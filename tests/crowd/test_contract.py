"""What the README promises of every estimator, held for those that have no components."""

import functools

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import polyad
from polyad import Checkpoint, DawidSkene, MajorityVote
from polyad.exceptions import CheckpointError, PolyadError
from polyad.fitting.archive import read_archive
from polyad.io.model import restored
from tests.crowd.twin import planted
from tests.fuzz.mutations import mutated

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ITEMS, WORKERS, LABELS, TRUTH = planted(40, 6, 3, seed=2)
NAMES = np.array(["no", "so", "yes"])
LONG = pd.DataFrame({"item": ITEMS, "worker": [f"w{k}" for k in WORKERS], "label": NAMES[LABELS]})
WIDE = LONG.pivot(index="item", columns="worker", values="label").astype(object)
QUICK = {"max_iter": 3, "tol": 0.0, "random_state": 0}
CASES = {
    "DawidSkene": lambda **more: DawidSkene(**{**QUICK, **more}),
    "DawidSkene likelihood": lambda **more: DawidSkene(**{**QUICK, "prior": None, **more}),
    "DawidSkene coin": lambda **more: DawidSkene(**{**QUICK, "variant": "one-coin", **more}),
    "DawidSkene power": lambda **more: DawidSkene(**{**QUICK, "init": "power", **more}),
    "MajorityVote": MajorityVote,
}
FITS = [name for name in CASES if name != "MajorityVote"]


def same(one, other):
    names = vars(one).keys() - {"history_", "checkpoint", "callbacks"}
    for name in names:
        mine, theirs = vars(one)[name], vars(other)[name]
        if isinstance(mine, list):
            assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)), name
        else:
            assert np.array_equal(mine, theirs), name


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("X", [LONG, WIDE], ids=["long", "wide"])
def test_a_saved_model_is_the_same(name, X, tmp_path):
    model = CASES[name]().fit(X, {0: "yes"})
    model.save(tmp_path / "model")
    loaded = polyad.load(tmp_path / "model")
    assert type(loaded) is type(model)
    known = {*model.get_params(), *model._rules()}
    assert set(vars(model)) <= known
    same(model, loaded)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    pd.testing.assert_frame_equal(loaded.item_table(), model.item_table())
    same(clone(loaded).fit(X, {0: "yes"}), model)


@functools.cache
def content(name, folder):
    path = folder / "model"
    CASES[name]().fit(LONG).save(path)
    return read_archive(path, "model")


@pytest.mark.filterwarnings("ignore:None of the workers")
@pytest.mark.parametrize("name", CASES)
def test_a_changed_file_is_refused_or_harmless(name, tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(150):
        says, changed = mutated(content(name, tmp_path), rng)
        try:
            model = restored(changed, "changed")
            found = [model.predict_proba(LONG), model.item_table()["confidence"]]
            if name != "MajorityVote":
                found += [model.confusion_, model.worker_table()]
        except (PolyadError, NotFittedError):
            continue
        assert all(np.isfinite(np.asarray(item, float)).all() for item in found), says


class Killed(BaseException):
    """What no fit catches."""


@pytest.mark.parametrize("name", FITS)
def test_a_killed_fit_goes_on_to_the_same_bits(name, tmp_path):
    """Killed in the second of two starts; the checkpoint is all that is left."""
    path, numbers = tmp_path / "state", []
    whole = CASES[name](n_init=2).fit(LONG)

    def kill(iteration):
        numbers.append(iteration.number)
        if len(numbers) == 5:
            raise Killed

    with pytest.raises(Killed):
        CASES[name](n_init=2, checkpoint=Checkpoint(path, every=1), callbacks=[kill]).fit(LONG)
    assert numbers == [1, 2, 3, 1, 2]
    resumed = CASES[name](n_init=2, checkpoint=path).fit(LONG)
    same(resumed, whole)
    with pytest.raises(CheckpointError):
        CASES[name](n_init=2, checkpoint=path).fit(LONG.iloc[1:])


@pytest.mark.parametrize("name", FITS)
def test_the_same_seed_gives_the_same_bits_for_any_threads(name):
    one, two = (CASES[name](n_jobs=n_jobs).fit(LONG) for n_jobs in (1, 2))
    for attribute in ("probabilities_", "worker_counts_", "prior_", "objective_"):
        assert np.array_equal(getattr(one, attribute), getattr(two, attribute))


@pytest.mark.parametrize("name", CASES)
def test_nothing_that_is_given_is_changed(name):
    known = {0: "yes"}
    before = LONG.copy(deep=True)
    model = CASES[name]()
    given = dict(model.get_params())
    model.fit(LONG, known).predict(LONG)
    pd.testing.assert_frame_equal(LONG, before)
    assert known == {0: "yes"}
    assert all(model.get_params()[key] is value for key, value in given.items())
    frozen = LABELS[:20].reshape(5, 4).copy()
    frozen.setflags(write=False)
    CASES[name]().fit(frozen)


@pytest.mark.parametrize("name", CASES)
def test_a_refused_fit_leaves_the_model(name):
    model = CASES[name]().fit(LONG)
    before = model.predict_proba(LONG)
    for bad in (np.array([[0.5]]), np.zeros(3), None):
        with pytest.raises(PolyadError):
            model.fit(bad)
    np.testing.assert_array_equal(model.predict_proba(LONG), before)
    with pytest.raises(NotFittedError):
        clone(model).predict(LONG)


def test_a_time_budget_and_a_callback_end_a_fit():
    stopped = DawidSkene(callbacks=lambda iteration: iteration.number == 2).fit(LONG)
    assert stopped.n_iter_ == 2
    assert DawidSkene(time_budget=1e-9).fit(LONG).status_.value == "time_budget"


def test_the_prior_is_chosen_by_a_grid_search():
    """Items are the samples: held-out ones are scored by the workers that the others taught."""
    X = np.full((40, 6), np.nan)
    X[ITEMS, WORKERS] = LABELS
    search = GridSearchCV(DawidSkene(), {"prior": [None, 1.0, "auto"]}, cv=2, error_score="raise")
    assert np.isfinite(search.fit(X).cv_results_["mean_test_score"]).all()


@parametrize_with_checks(
    [DawidSkene(max_iter=5), MajorityVote()],
    expected_failed_checks=lambda model: {
        "check_positive_only_tag_during_fit": "it gives fractions, and labels are classes",
    },
)
def test_common_checks(estimator, check):
    check(estimator)
