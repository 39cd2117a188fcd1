"""What a fit of a crowd finds."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from polyad import DawidSkene, MajorityVote
from polyad.exceptions import DataWarning
from polyad.report import write_report
from tests.crowd.twin import planted

ITEMS, WORKERS, LABELS, TRUTH = planted(200, 12, 3, share=0.5, right=0.7, seed=5)
LONG = pd.DataFrame({"item": ITEMS, "worker": WORKERS, "label": LABELS})


def error(model):
    return float(np.mean(model.item_table()["class"].to_numpy() != TRUTH))


@pytest.mark.parametrize("init", ["majority", "moments", "power"])
@pytest.mark.parametrize("variant", ["full", "one-coin"])
def test_planted_classes_are_found(init, variant):
    model = DawidSkene(init=init, variant=variant, random_state=0).fit(LONG)
    assert model.status_.is_success
    votes = error(MajorityVote().fit(LONG))
    assert error(model) < 0.75 * votes if variant == "full" else error(model) <= votes


def test_tables_of_workers_are_found():
    items, workers, labels, truth = planted(2000, 8, 3, share=0.8, seed=6)
    model = DawidSkene().fit(pd.DataFrame({"item": items, "worker": workers, "label": labels}))
    true = np.zeros((8, 3, 3))
    np.add.at(true, (workers, truth[items], labels), 1.0)
    true /= true.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(model.confusion_, true, atol=0.04)
    right = [np.mean(labels[workers == w] == truth[items[workers == w]]) for w in range(8)]
    np.testing.assert_allclose(model.worker_table()["reliability"], right, atol=0.03)


def test_confidence_is_how_often_a_class_is_right():
    """Where workers err independently, in bins of confidence too."""
    items, workers, labels, truth = planted(3000, 12, 3, share=0.25, right=0.6, seed=8)
    table = pd.DataFrame({"item": items, "worker": workers, "label": labels})
    told = DawidSkene().fit(table).item_table()
    right, confidence = (told["class"] == truth[told.index]).to_numpy(), told["confidence"]
    assert 0.6 < right.mean() < 0.9
    bins = np.digitize(confidence, [0.5, 0.7, 0.9])
    for b in range(4):
        assert abs((right - confidence)[bins == b].mean()) < 0.06


def test_a_label_takes_few_bytes():
    """About 14 of a million, a tenth of what crowd-kit takes: numbers, sorted, and posteriors."""
    rng = np.random.default_rng(0)
    columns = {"item": rng.permutation(400_000) % 80_000, "worker": rng.integers(99, size=400_000)}
    table = pd.DataFrame({**columns, "label": rng.integers(4, size=400_000)})
    for _ in range(2):  # the first one compiles
        tracemalloc.start()
        DawidSkene(callbacks=lambda info: True).fit(table)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 18 * len(table)


def test_a_prior_keeps_few_labels_of_many_classes_from_overfitting():
    """Three labels for an item, two of a worker for each class: likelihood alone is misled."""
    rng = np.random.default_rng(0)
    n_items, n_workers, n_classes = 600, 150, 8
    truth = rng.integers(n_classes, size=n_items)
    # A class has a favourite mistake, as all workers make it, each more or less.
    table = 0.6 * np.eye(n_classes) + 0.35 * np.roll(np.eye(n_classes), 1, axis=1) + 0.05 / 8
    tables = np.array([[rng.dirichlet(10 * row) for row in table] for _ in range(n_workers)])
    items = np.repeat(np.arange(n_items), 3)
    workers = np.concatenate([rng.choice(n_workers, 3, replace=False) for _ in range(n_items)])
    sums = tables[workers, truth[items]].cumsum(axis=1)
    labels = (rng.random((len(items), 1)) * sums[:, -1:] > sums).sum(axis=1)
    X = pd.DataFrame({"item": items, "worker": workers, "label": labels})

    def wrong_share(model):
        return np.mean(model.fit(X).item_table()["class"].to_numpy() != truth)

    learned, votes = wrong_share(DawidSkene()), wrong_share(MajorityVote())
    assert learned < 0.8 * min(votes, wrong_share(DawidSkene(prior=None)))


@pytest.mark.parametrize("prior", [1e-6, 1e6])
def test_a_fixed_prior_of_any_strength_is_fitted_to_the_end(prior):
    """The stopping rule does not see how strong the prior is."""
    model = DawidSkene(prior=prior).fit(LONG)
    longer = DawidSkene(prior=prior, tol=1e-10).fit(LONG)
    assert model.status_.is_success
    assert model.objective_ - longer.objective_ < 1e-3


def test_advice_names_nothing_that_a_crowd_does_not_have():
    with pytest.warns(ConvergenceWarning, match="Increase max_iter") as told:
        DawidSkene(max_iter=2).fit(LONG)
    for word in ("weights_", "component", "ridge"):
        assert word not in str(told[0].message)


@pytest.mark.parametrize(
    ("init", "inner"),
    [
        ("moments", "polyad.membership.solver.MomentSolver.step"),
        ("power", "polyad.crowd.start.tensor_power"),
    ],
)
def test_an_interrupt_in_the_start_ends_the_fit(init, inner, monkeypatch):
    """Nothing is learned by then, so that there is no model to keep."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(inner, interrupted)
    model = DawidSkene(init=init, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(LONG)
    assert not hasattr(model, "classes_")


def test_more_starts_are_never_worse():
    one = DawidSkene(random_state=0).fit(LONG).objective_
    for init in ("majority", "power"):
        assert DawidSkene(init=init, n_init=3, random_state=0).fit(LONG).objective_ <= one + 1e-3


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_names_and_order_change_nothing(seed):
    rng = np.random.default_rng(seed)
    base = DawidSkene().fit(LONG)
    classes, crew, things = rng.permutation(3), rng.permutation(12), rng.permutation(200)
    turned = LONG.assign(item=things[ITEMS], worker=crew[WORKERS], label=classes[LABELS]).sample(
        frac=1.0, random_state=seed
    )
    model = DawidSkene().fit(turned)
    assert model.objective_ == pytest.approx(base.objective_, rel=1e-9)
    found = model.probabilities_[things][:, classes]
    np.testing.assert_allclose(found, base.probabilities_, atol=1e-6)
    tables = model.confusion_[crew][:, classes][:, :, classes]
    np.testing.assert_allclose(tables, base.confusion_, atol=1e-6)


def test_new_items_by_known_and_unknown_workers():
    old, new = LONG[LONG["item"] < 150], LONG[LONG["item"] >= 150]
    model = DawidSkene().fit(old)
    told = model.predict(new)
    assert told.index.tolist() == sorted(new["item"].unique())
    assert np.mean(told != TRUTH[told.index]) < 0.3
    alone = model.predict_proba(new[new["item"] == 160])
    np.testing.assert_allclose(alone, model.predict_proba(new).loc[[160]], atol=1e-12)
    stranger = pd.DataFrame({"item": [0], "worker": [99], "label": [1]})
    typical = model.confusion_table()[1] * model.class_shares_
    expected = typical / typical.sum()
    with pytest.warns(DataWarning, match="None of the workers"):
        found = model.predict_proba(stranger).to_numpy()[0]
    np.testing.assert_allclose(found, expected)
    assert np.isfinite(model.score(new))
    assert model.score(new) > DawidSkene(prior=None).fit(old).score(new)


def test_score_is_the_likelihood_of_a_label():
    model = DawidSkene(prior=None).fit(LONG)
    assert model.score(LONG) == pytest.approx(-model.objective_ / len(LONG), rel=1e-6)


@pytest.mark.parametrize("kind", [DawidSkene, MajorityVote])
def test_score_with_known_classes_is_accuracy(kind):
    model = kind().fit(LONG)
    told = model.predict(LONG)
    some = {item: int(TRUTH[item]) for item in range(0, 200, 3)}
    right = np.mean([told.loc[item] == value for item, value in some.items()])
    assert model.score(LONG, some) == model.score(LONG, pd.Series(some)) == right
    # A class that the model does not know is never told.
    assert model.score(LONG, {**some, 1: 9}) == pytest.approx(right * 67 / 68)
    matrix = np.full((200, 12), np.nan)
    matrix[ITEMS, WORKERS] = LABELS
    assert kind().fit(matrix).score(matrix, TRUTH) == np.mean(told.to_numpy() == TRUTH)
    with pytest.raises(ValueError, match="knows none"):
        model.score(LONG, {"elsewhere": 1})


def test_a_random_worker_has_no_information_and_a_liar_has():
    rng = np.random.default_rng(1)
    truth = rng.integers(2, size=400)
    good = np.where(rng.random((400, 3)) < 0.85, truth[:, None], 1 - truth[:, None])
    X = np.column_stack([good, rng.integers(2, size=400), 1 - truth])
    table = DawidSkene().fit(X).worker_table()
    assert table["information"].iloc[3] < 0.03
    assert table["information"].iloc[4] > 0.5
    assert table["reliability"].iloc[4] < 0.1


def test_the_report_shows_workers_and_items_in_doubt(tmp_path):
    page = write_report(DawidSkene().fit(LONG), tmp_path / "page.html", X=LONG).read_text()
    for words in ("Workers", "Items in doubt", "Confusions", "log-likelihood of a label"):
        assert words in page
    assert "Components" not in page
    page = write_report(MajorityVote().fit(LONG), tmp_path / "votes.html").read_text()
    assert "Items in doubt" in page


DATA = Path(os.environ.get("POLYAD_DATA", ""), "crowd")
# Wrong items of the converged fit of crowd-kit, and one more.
SETS = {"bluebird": 12, "rte": 59, "trec": 676, "dog": 128}


@pytest.mark.skipif(not DATA.exists(), reason="POLYAD_DATA has no crowd sets")
@pytest.mark.parametrize("name", SETS)
def test_real_sets(name):
    labels = pd.read_csv(DATA / f"{name}_labels.csv")
    truth = pd.read_csv(DATA / f"{name}_truth.csv").set_index("item")["truth"]
    learned = DawidSkene().fit_predict(labels)
    assert (learned.reindex(truth.index) != truth).sum() <= SETS[name]


@pytest.mark.skipif(not DATA.exists(), reason="POLYAD_DATA has no crowd sets")
def test_no_seed_of_the_moments_loses_a_class():
    """A single start of the decomposition did so for two of eight seeds, with far more wrong."""
    labels = pd.read_csv(DATA / "dog_labels.csv")
    truth = pd.read_csv(DATA / "dog_truth.csv").set_index("item")["truth"]
    for seed in range(3):
        model = DawidSkene(init="moments", max_iter=20, tol=1e-4, random_state=seed)
        told = model.fit_predict(labels)
        assert np.mean(told.reindex(truth.index) != truth) < 0.17
