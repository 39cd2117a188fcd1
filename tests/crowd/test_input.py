"""What labels come in: tables, matrices, names of any type, known classes, and what is refused."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import coo_array, csr_array

from polyad import DawidSkene, LabelledTensor, MajorityVote
from polyad.crowd.answers import read_answers
from polyad.exceptions import DataWarning, PolyadError
from tests.crowd.twin import planted

ITEMS, WORKERS, LABELS, TRUTH = planted(40, 5, 3, seed=1)
LONG = pd.DataFrame({"item": ITEMS, "worker": WORKERS, "label": LABELS})


def matrix(dtype=float):
    found = np.full((40, 5), np.nan if dtype is float else None, dtype=dtype)
    found[ITEMS, WORKERS] = LABELS
    return found


FORMS = {
    "long": LONG,
    "other names": LONG.rename(columns={"item": "task", "label": "answer"}),
    "polars": pl.DataFrame(LONG.to_dict("list")),
    "dense": matrix(),
    "objects": matrix(object),
    "sparse": coo_array((LABELS.astype(float), (ITEMS, WORKERS)), shape=(40, 5)),
    "csr": csr_array((LABELS + 1, (ITEMS, WORKERS)), shape=(40, 5)),
    "wide": pd.DataFrame(matrix(), columns=list("abcde")),
    "labelled": LabelledTensor(
        coo_array((LABELS + 1.0, (ITEMS, WORKERS)), shape=(40, 5)), modes=["text", "who"]
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [DawidSkene, MajorityVote])
def test_every_form_gives_the_same(form, kind):
    X = FORMS[form]
    columns = ("task", "worker", "answer") if form == "other names" else ("item", "worker", "label")
    model = kind(columns=columns).fit(X)
    np.testing.assert_array_equal(model.probabilities_, kind().fit(LONG).probabilities_)
    assert model.classes_.dtype == np.int64
    assert len(model.classes_) == 3
    told = model.predict_proba(X)
    np.testing.assert_allclose(np.asarray(told), model.probabilities_, atol=1e-12)
    assert isinstance(told, pd.DataFrame) == (form in ("long", "other names", "polars"))
    assert model.item_table().index.name == ("task" if form == "other names" else model.modes_[0])


@pytest.mark.parametrize(
    "name",
    [str, lambda k: f"item {k}", lambda k: pd.Timestamp("2024-01-01") + pd.Timedelta(days=k)],
)
def test_names_of_any_type(name):
    long = LONG.assign(
        item=[name(k) for k in ITEMS], label=np.array(["no", "so", "yes"])[LABELS], worker=WORKERS
    )
    model = DawidSkene().fit(long)
    table = model.item_table()
    plain = DawidSkene().fit(LONG).item_table()
    assert table["class"].loc[name(7)] == ["no", "so", "yes"][plain["class"].loc[7]]
    assert model.predict(long).loc[name(7)] == table["class"].loc[name(7)]
    assert model.confusion_table(3).index.tolist() == ["no", "so", "yes"]


def test_a_category_that_nobody_chose_is_a_class_of_no_item():
    kinds = pd.Categorical.from_codes(LABELS, categories=["no", "so", "yes", "never"])
    for prior in ("auto", None, 2.0):
        model = DawidSkene(prior=prior).fit(LONG.assign(label=kinds))
        assert model.classes_.tolist() == ["no", "so", "yes", "never"]
        assert model.probabilities_[:, 3].max() < 0.05
        assert np.isfinite(model.confusion_).all()


def test_an_item_and_a_worker_without_labels():
    more = pd.DataFrame({"item": [40, 41], "worker": [5, 0], "label": [np.nan, np.nan]})
    for kind in (DawidSkene, MajorityVote):
        model = kind().fit(pd.concat([LONG, more]))
        np.testing.assert_allclose(model.probabilities_[40], model.class_shares_, atol=1e-6)
        np.testing.assert_allclose(model.probabilities_[41], model.class_shares_, atol=1e-6)
    model = DawidSkene().fit(pd.concat([LONG, more]))
    assert model.worker_table()["labels"].loc[5] == 0
    pd.testing.assert_frame_equal(
        model.confusion_table(5), model.confusion_table(), check_exact=False, atol=1e-9
    )


def test_labels_that_are_given_twice_count_twice():
    twice = pd.concat([LONG, LONG[LONG["item"] == 0]])
    sparse = coo_array(
        (twice["label"] + 1, (twice["item"].to_numpy(), twice["worker"].to_numpy())), shape=(40, 5)
    )
    one, two = DawidSkene().fit(twice), DawidSkene().fit(sparse)
    np.testing.assert_allclose(one.probabilities_, two.probabilities_)
    assert one.worker_counts_.sum() == pytest.approx(len(twice))


# Known classes.


@pytest.mark.parametrize("kind", [DawidSkene, MajorityVote])
def test_known_classes_are_kept_and_help(kind):
    known = {item: int(TRUTH[item]) for item in range(0, 40, 3)}
    model = kind().fit(LONG, known)
    table = model.item_table()
    assert all(table["class"].loc[item] == value for item, value in known.items())
    assert (table["confidence"].iloc[::3] == 1.0).all()
    assert model.fit_predict(LONG, known).loc[3] == TRUTH[3]


def test_ways_to_tell_known_classes():
    series = pd.Series(TRUTH, index=np.arange(40)).iloc[::3]
    array = np.full(40, np.nan)
    array[::3] = TRUTH[::3]
    expected = DawidSkene().fit(LONG, series).probabilities_
    objects = [None if np.isnan(value) else int(value) for value in array]
    for X, y in ((LONG, series.to_dict()), (matrix(), array), (matrix(), objects)):
        np.testing.assert_array_equal(DawidSkene().fit(X, y).probabilities_, expected)
    with pytest.warns(DataWarning, match="1 of the 15 items of y are not in X"):
        strangers = DawidSkene().fit(LONG, {**series.to_dict(), 999: 1})
    np.testing.assert_array_equal(strangers.probabilities_, expected)


def test_a_class_that_only_known_items_have():
    model = DawidSkene().fit(LONG, {0: 7})
    assert model.classes_.tolist() == [0, 1, 2, 7]
    assert model.item_table()["class"].loc[0] == 7


# Ends of the world.


@pytest.mark.parametrize("prior", ["auto", None, 1.0])
@pytest.mark.parametrize("variant", ["full", "one-coin"])
@pytest.mark.parametrize(
    "X",
    [
        np.array([[1, 1, 2]]),
        np.array([[1], [2], [2]]),
        np.array([["a"]]),
        np.full((6, 4), 3),
        np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, 2.0], [1.0, 2.0, np.nan]]),
    ],
    ids=["one item", "one worker", "one label", "all equal", "a worker with one label"],
)
def test_small_data(X, variant, prior):
    model = DawidSkene(variant=variant, prior=prior).fit(X)
    assert np.isfinite(model.probabilities_).all()
    np.testing.assert_allclose(model.probabilities_.sum(axis=1), 1.0)
    np.testing.assert_allclose(model.confusion_.sum(axis=2), 1.0)
    assert np.isfinite(model.score(X))
    assert np.isfinite(model.worker_table().to_numpy()).all()
    assert model.predict(X).shape == (len(X),)


def test_ties_go_to_the_larger_class():
    X = np.array([["a", "b"], ["b", "b"], ["a", "a"], ["b", "b"]])
    assert MajorityVote().fit_predict(X).tolist() == ["b", "b", "a", "b"]
    even = np.array([["a", "b"], ["b", "a"]])
    assert MajorityVote().fit_predict(even).tolist() == ["a", "a"]


BAD = {
    "fractions": (np.array([[0.5, 1.0]]), "not whole"),
    "infinite": (np.array([[np.inf, 1.0]]), "infinity"),
    "too large": (np.array([[1e200, 1.0]]), "not whole"),
    "complex": (np.array([[1j, 1.0]]), "Complex data"),
    "one mode": (np.arange(3), "Reshape your data"),
    "three modes": (np.zeros((2, 2, 2), dtype=int), "items x workers"),
    "no items": (np.zeros((0, 2)), "0 sample"),
    "nothing": (None, "NoneType"),
    "all missing": (np.full((2, 2), np.nan), "no label at all"),
    "no stored": (coo_array((2, 2)), "no label at all"),
    "mixed": (pd.DataFrame({"item": [1, "a"], "worker": [1, 2], "label": [1, 2]}), "cannot be"),
    "half long": (LONG.rename(columns={"item": "task"}), "columns="),
    "no worker": (LONG.assign(worker=np.nan), "no label in"),
    "mixed labels": (np.array([["a", 1]], dtype=object), "has text and numbers"),
    "triples": ([(1, 7, "cat"), (1, 8, "dog")], "pandas.DataFrame"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", [DawidSkene, MajorityVote])
def test_bad_labels_are_refused(name, kind):
    X, words = BAD[name]
    with pytest.raises(PolyadError, match=words):
        kind().fit(X)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (LONG, TRUTH, "which item"),
        (LONG, {99: 1}, "none of the 40 items"),
        (LONG, {}, "none of the 40 items"),
        (LONG, {0: "one"}, "same type"),
        (LONG, {0: 0.5}, "not whole"),
        (matrix(), TRUTH[:3], "40 items"),
        (matrix(), [None] * 40, "none of the 40 items"),
    ],
)
def test_bad_known_classes_are_refused(X, y, words):
    with pytest.raises(PolyadError, match=words):
        DawidSkene().fit(X, y)


def test_bad_new_labels_are_refused():
    model = DawidSkene().fit(LONG)
    with pytest.raises(PolyadError, match="none of the classes"):
        model.predict(pd.DataFrame({"item": [1], "worker": [1], "label": [9]}))
    with pytest.raises(PolyadError, match="is expecting 5 features"):
        model.predict(np.array([[1, 2]]))
    for worker in ("who", [0, 1]):
        with pytest.raises(PolyadError, match="not a worker"):
            model.confusion_table(worker)


@pytest.mark.parametrize(
    "parameters",
    [
        *({"prior": 1e-310}, {"prior": 1e16}),
        *({"prior": -1.0}, {"prior": "strong"}, {"prior": True}, {"variant": "two-coin"}),
        *({"init": "random"}, {"columns": ("a", "b")}, {"columns": "abc"}, {"n_init": 0}),
        *({"max_iter": 0}, {"tol": -1.0}, {"random_state": "x"}, {"columns": ("a", "a", "b")}),
    ],
    ids=repr,
)
def test_bad_parameters_are_refused(parameters):
    with pytest.raises((ValueError, TypeError), match=next(iter(parameters))):
        DawidSkene(**parameters).fit(LONG)


def test_moments_need_three_workers():
    for init in ("moments", "power"):
        with pytest.raises(PolyadError, match="three groups"):
            DawidSkene(init=init).fit(matrix()[:, :2])


def test_a_long_table_of_other_names_is_not_a_matrix():
    other = LONG.rename(columns={"item": "task", "worker": "annotator", "label": "answer"})
    with pytest.raises(PolyadError, match=r"it has .'task', 'annotator', 'answer'"):
        DawidSkene().fit(other)
    with pytest.raises(PolyadError, match="Name the columns"):
        DawidSkene(columns=("task", "annotator", "answer")).fit(LONG)
    three = pd.DataFrame(matrix()[:, :3], columns=["ann", "bob", "eve"])
    assert DawidSkene().fit(three).n_features_in_ == 3


def test_known_classes_that_are_of_no_item_are_told():
    with pytest.warns(DataWarning, match="2 of the 42 items of y are not in X"):
        DawidSkene().fit(LONG, pd.Series(TRUTH[[*range(40), 0, 1]], index=range(42)))
    with pytest.raises(PolyadError, match="y is a table with the columns"):
        DawidSkene().fit(LONG, pd.DataFrame({"item": range(40), "truth": TRUTH}))


def test_workers_of_another_type_are_told():
    model = DawidSkene().fit(LONG)
    with pytest.warns(DataWarning, match="None of the workers of X"):
        model.predict(LONG.assign(worker=LONG["worker"].astype(str)))


# Tables with a column for each worker.

WIDE = LONG.assign(
    worker=[f"w{k}" for k in WORKERS], item=[f"i{k:02}" for k in ITEMS], label=LABELS
).pivot(index="item", columns="worker", values="label")


def test_columns_of_the_same_categories_give_their_order():
    order = pd.CategoricalDtype(["poor", "fair", "good", "never"], ordered=True)
    named = WIDE.replace({0: "poor", 1: "fair", 2: "good"})
    model = DawidSkene().fit(named.astype(order))
    assert model.classes_.tolist() == ["poor", "fair", "good", "never"]
    assert MajorityVote().fit(named).classes_.tolist() == ["fair", "good", "poor"]
    # Unordered categories are the same in any order.
    turned = named.astype("category").astype({"w1": pd.CategoricalDtype(["poor", "good", "fair"])})
    expected = MajorityVote().fit(named)
    for form in (turned, named.astype("category")):
        found = MajorityVote().fit(form)
        assert sorted(found.classes_) == ["fair", "good", "poor"]
        assert (found.item_table()["class"] == expected.item_table()["class"]).all()


@pytest.mark.parametrize("kind", [DawidSkene, MajorityVote])
def test_columns_are_matched_by_the_names_of_workers(kind):
    model = kind().fit(WIDE)
    melted = WIDE.reset_index().melt("item", value_name="label").dropna()
    own = model.predict_proba(melted)
    np.testing.assert_allclose(model.predict_proba(WIDE[WIDE.columns[::-1]]), own)
    np.testing.assert_allclose(kind().fit(melted).predict_proba(WIDE), own)
    for change in (lambda table: table.drop(columns="w2"), lambda table: table.assign(new=2)):
        table = change(WIDE)
        long = table.reset_index().melt("item", var_name="worker", value_name="label")
        np.testing.assert_allclose(model.predict_proba(table), model.predict_proba(long))
    with pytest.warns(UserWarning, match="valid feature names"):
        by_position = model.predict_proba(pd.DataFrame(WIDE.to_numpy()))
    np.testing.assert_allclose(by_position, own)


@pytest.mark.parametrize("kind", [DawidSkene, MajorityVote])
def test_items_with_names_are_told_by_name(kind):
    model = kind().fit(WIDE)
    chosen = WIDE.iloc[[5, 2]]
    assert model.predict(chosen).index.tolist() == ["i05", "i02"]
    assert model.predict_proba(chosen).index.tolist() == ["i05", "i02"]
    assert model.predict_proba(chosen).columns.tolist() == [0, 1, 2]
    assert kind().fit_predict(WIDE).index.tolist() == WIDE.index.tolist()
    assert isinstance(model.predict(WIDE.reset_index(drop=True)), np.ndarray)


def test_the_only_class_has_no_second():
    table = DawidSkene().fit(np.full((3, 2), 7)).item_table()
    assert table["class"].tolist() == [7, 7, 7]
    assert table["second"].tolist() == [None, None, None]
    assert table["probability"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [127, 128, 129, 32768, 32769])
def test_numbers_of_names_are_held_in_few_bytes(size):
    """The last of as many names as a number type has room for is still itself."""
    names = np.arange(size)
    long = pd.DataFrame({"item": names, "worker": names, "label": names % 2})
    answers = read_answers(long, ("item", "worker", "label"))
    np.testing.assert_array_equal(answers.starts, np.arange(size + 1))
    np.testing.assert_array_equal(answers.codes // 2, names)
    np.testing.assert_array_equal(answers.codes % 2, names % 2)
