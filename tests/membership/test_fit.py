"""Fits of planted models: recovery, invariances, gaps, edges."""

import importlib
import pickle

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config, register_parallel_backend
from joblib._parallel_backends import ThreadingBackend

import polyad
from polyad import MixedMembership
from polyad.exceptions import DataWarning, InvalidInputError
from polyad.membership.moment_tensors import MomentTensor
from polyad.membership.partitions import Layout, choose_anchors, combine, partitioned, thirds
from polyad.membership.solver import decompose
from polyad.membership.variables import read_columns
from tests.membership.planted import best_order, exact_third, of_seen, planted, rmse

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def fitted(y, k=3, alpha=0.1, **options):
    return MixedMembership(k, alpha0=k * alpha, random_state=0, **options).fit(y)


# Recovery.


@pytest.mark.parametrize(
    ("n", "k", "most"), [(1000, 3, 0.028), (5000, 3, 0.0125), (5000, 5, 0.019)]
)
def test_errors_are_those_of_the_reference(n, k, most):
    """The reference of the spec has .0245, .0107 and .0173 at most, with the paper's update."""
    y, theta, _ = planted(n, 25, 4, k)
    model = fitted(y, k, n_init=2)
    assert rmse(model.theta_, theta) < most
    assert model.status_.is_success
    assert model.alpha_.sum() == pytest.approx(0.1 * k)
    assert (np.diff(model.alpha_) <= 0).all()
    np.testing.assert_allclose(model.alpha_, 0.1, rtol=0.3)
    assert all(np.allclose(own.sum(axis=0), 1) and (own >= 0).all() for own in model.theta_)


@pytest.mark.parametrize("update", ["pqp", "eps", "wnmf"])
def test_every_update_recovers(update):
    y, theta, _ = planted(2000)
    model = fitted(y, update=update, max_iter=300, tol=1e-6)
    assert rmse(model.theta_, theta) < (0.05 if update == "wnmf" else 0.03)
    objectives = np.array(model.history_.objective)
    assert (np.diff(objectives) <= 1e-12 * np.abs(objectives[1:])).all()


@pytest.mark.parametrize("matching", ["assignment", "procrustes", "angle"])
def test_partitions_recover(matching):
    y, theta, _ = planted(2000, p=24)
    model = fitted(y, method="partitioned", n_partitions=4, matching=matching, n_init=3)
    assert rmse(model.theta_, theta) < 0.04
    found = model.diagnostics_
    assert found["matching_valid"] == [True] * 3
    assert found["n_partitions"] == 4
    assert len(found["theorem4"]) == len(found["theorem5"]) == 3
    assert 0 < found["residual"] < 1
    assert 0 < found["negative_fraction"] < 0.5
    assert 0 < found["smallest_anchor_angle"] <= 90


def test_partitions_of_exact_moments_are_the_whole():
    """Spec e: on noiseless moments, partitions give what one block gives."""
    y, theta, _ = planted(n=1000, p=18)
    table, alpha = read_columns(y, "auto", range(18)), np.array([0.2, 0.1, 0.1])
    anchors = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])]
    whole = thirds(table.variables, 3, seed=0)
    cut = partitioned(table, anchors, 3, 3, seed=0)
    found = []
    for layout in (whole, cut):
        factors = []
        for number, sets in enumerate(layout.blocks):
            tensor = exact_third(theta, sets, alpha)
            factors += decompose(tensor, 3, tol=1e-14, n_init=3, random_state=number).factors
        rows, weights, _, _ = combine(factors, layout, table.variables, "assignment")
        assert rmse(rows, theta) < 2e-3
        weights = np.sort(weights) * 0.4 * 1.4 * 2.4 / 2
        np.testing.assert_allclose(weights, [0.1, 0.1, 0.2], atol=2e-3)
        found.append(np.concatenate(rows))
    one, two = found
    np.testing.assert_allclose(one[:, best_order(one, two)], two, atol=1e-2)


def test_refinement_lowers_the_error_of_few_samples():
    """The bound rises, and so does the score of new samples, where moments are noisy."""
    errors = []
    for seed in range(3):
        y, theta, _ = planted(150, 25, seed=seed)
        new, _, _ = planted(150, 25, seed=seed)
        plain, refined = fitted(y), fitted(y, refine=True, max_iter=60)
        errors.append([rmse(model.theta_, of_seen(theta, y)) for model in (plain, refined)])
        objectives = np.array(refined.history_.objective)
        assert (np.diff(objectives) <= 1e-12).all()
        assert refined.objective_ == objectives[-1] or refined.n_iter_ == 60
        assert refined.score(new) > plain.score(new) - 0.01
    plain, refined = np.mean(errors, axis=0)
    assert refined < 0.97 * plain


def test_samples_on_disk_are_read_in_place(tmp_path, monkeypatch):
    """Where they are too many, a fit of some of them is the start, and memory is bounded."""
    y, theta, _ = planted(6000, p=30, d=3)
    path = tmp_path / "samples.npy"
    np.save(path, y.astype(np.int8))
    X = np.load(path, mmap_mode="r")
    assert read_columns(X, "auto", range(30)).codes is X
    whole = fitted(X, n_jobs=1)
    module = importlib.import_module("polyad.membership.moment_tensors")
    monkeypatch.setattr(module, "_KEPT_ENTRIES", 30_000)
    monkeypatch.setattr(module, "_ENTRIES_AT_A_TIME", 5000)
    monkeypatch.setattr(
        "polyad.membership.partitions.moment_tensor",
        lambda table, sets, alpha0, formed: MomentTensor(table, sets, alpha0),
    )
    streamed = fitted(X, n_jobs=1)
    assert streamed.n_iter_ < 12
    assert rmse(streamed.theta_, theta) < 0.02
    for one, two in zip(streamed.theta_, whole.theta_, strict=True):
        order = best_order(np.concatenate(streamed.theta_), np.concatenate(whole.theta_))
        np.testing.assert_allclose(one[:, order], two, atol=2e-3)


# Invariances.


def test_names_of_categories_change_nothing():
    y, _, _ = planted(400)
    model = fitted(y, tol=1e-13)
    letters = np.array(["d", "b", "a", "c"])
    named = fitted(letters[y], tol=1e-13)
    for j in range(12):
        expected = model.theta_[j][np.argsort(letters)]
        np.testing.assert_allclose(named.theta_[j], expected, atol=1e-4)
    np.testing.assert_allclose(named.transform(letters[y]), model.transform(y), atol=1e-4)


def test_the_order_of_columns_changes_nothing():
    """With the sets given by name; the random ones follow positions."""
    y, _, _ = planted(400, p=6)
    frame = pd.DataFrame(y, columns=list("abcdef"))
    anchors = [["a", "b"], ["c", "d"], ["e", "f"]]
    options = {"method": "partitioned", "anchors": anchors, "tol": 1e-12, "max_iter": 300}
    one, two = fitted(frame, **options), fitted(frame[list("fadbce")], **options)
    for name in "abcdef":
        tables = one.theta_table(name).to_numpy(), two.theta_table(name).to_numpy()
        np.testing.assert_allclose(*tables, atol=1e-4)


def test_shift_and_unit_of_a_number_change_its_means_alone():
    X, _, _, _ = mixed(600)
    X = X.assign(extra=X["number"].to_numpy() + np.random.default_rng(3).normal(size=600))
    model = MixedMembership(2, alpha0=0.6, random_state=0, tol=1e-12).fit(X)
    moved = MixedMembership(2, alpha0=0.6, random_state=0, tol=1e-12).fit(
        X.assign(number=1000 + 3 * X["number"])
    )
    expected = 1000 + 3 * model.theta_table("number").to_numpy()
    np.testing.assert_allclose(moved.theta_table("number").to_numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(
        moved.transform(X.assign(number=1000 + 3 * X["number"])), model.transform(X), atol=1e-5
    )


@pytest.mark.parametrize("method", ["tensor-free", "partitioned"])
def test_the_number_of_jobs_changes_no_bit(method):
    y, _, _ = planted(200)
    one, two = (fitted(y, method=method, n_jobs=n_jobs, max_iter=5) for n_jobs in (1, 2))
    assert all(map(np.array_equal, one.theta_, two.theta_))
    assert np.array_equal(one.transform(y), two.transform(y))


class Elsewhere(ThreadingBackend):
    """Takes tasks by way of bytes, as backends of other processes and machines do."""

    n_sent = 0

    def submit(self, func, callback=None):
        Elsewhere.n_sent += 1
        return super().submit(pickle.loads(pickle.dumps(func)), callback)


def test_partitions_are_sent_to_the_backend_that_was_chosen():
    register_parallel_backend("elsewhere", Elsewhere)
    y, _, _ = planted(200)
    options = {"method": "partitioned", "n_partitions": 2, "max_iter": 3, "n_jobs": 2}
    here = fitted(y, **options)
    with parallel_config(backend="elsewhere"):
        there = fitted(y, **options)
    assert Elsewhere.n_sent >= 4
    assert all(map(np.array_equal, here.theta_, there.theta_))


# Columns of all kinds, and gaps.


def mixed(n, seed=0):
    """Return a table of two components, with parameters that are far apart."""
    rng = np.random.default_rng(seed)
    x = rng.dirichlet([0.3, 0.3], n)
    part = (rng.random((n, 9)) > x[:, :1]).astype(int)
    means = {"count": (2.0, 30.0), "number": (-1.0, 4.0)}
    frame = pd.DataFrame({f"item {j}": np.array(["no", "yes"])[part[:, j]] for j in range(5)})
    frame["flag"] = part[:, 5] == 1
    frame["level"] = pd.Categorical(np.array(["low", "high"])[part[:, 6]])
    frame["count"] = rng.poisson(np.array(means["count"])[part[:, 7]])
    frame["number"] = np.array(means["number"])[part[:, 8]] + rng.normal(size=n)
    return frame, x, part, means


@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("refine", [False, True])
def test_columns_of_all_kinds(gaps, refine):
    X, x, _, means = mixed(3000)
    hidden = np.random.default_rng(1).random(X.shape) < gaps
    X = X.astype(object).mask(hidden) if gaps else X
    kinds = {"count": "count", "number": "real"}
    model = MixedMembership(2, alpha0=0.6, kinds=kinds, refine=refine, random_state=0).fit(X)
    assert model.kinds_ == ["categorical"] * 7 + ["count", "real"]
    first = int(np.argmax(model.theta_table("item 0").loc["no"]))
    order = [first, 1 - first]
    assert model.theta_table("item 0").loc["no"].to_numpy()[order] == pytest.approx(
        [1, 0], abs=0.06
    )
    assert model.theta_table("flag").loc[True].to_numpy()[order] == pytest.approx([0, 1], abs=0.06)
    for name, expected in means.items():
        found = model.theta_table(name).loc["mean"].to_numpy()[order]
        assert found == pytest.approx(expected, abs=0.05 * abs(expected[1]) + 0.1)
    assert model._variances[-1] == pytest.approx(1.0, abs=0.35)
    memberships = model.transform(X)
    assert np.corrcoef(memberships[:, first], x[:, 0])[0, 1] > 0.9 - gaps / 2


def test_gaps_cost_little():
    y, theta, _ = planted(3000)
    hidden = np.random.default_rng(0).random(y.shape) < 0.2
    assert rmse(fitted(np.where(hidden, np.nan, y)).theta_, theta) < 0.03
    filled = np.where(hidden, 3, y)
    assert rmse(fitted(filled).theta_, theta) > 0.05
    told = MixedMembership(3, alpha0=0.3, random_state=0).fit(filled, mask=~hidden)
    for one, two in zip(told.theta_, fitted(np.where(hidden, np.nan, y)).theta_, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-9)


def test_constant_columns_are_harmless():
    y, theta, _ = planted(1000)
    frame = pd.DataFrame(y).assign(same="x", zero=0.5).rename(columns=str)
    model = fitted(frame)
    assert rmse(model.theta_[:12], theta) < 0.035
    assert model.theta_table("same").to_numpy().tolist() == [[1.0, 1.0, 1.0]]
    np.testing.assert_allclose(model.theta_table("zero"), 0.5)
    assert np.isfinite(model.transform(frame)).all()
    assert np.isfinite(model.score(frame))


def test_one_component():
    y, _, _ = planted(300)
    for method in ("tensor-free", "partitioned"):
        model = MixedMembership(1, method=method).fit(y)
        shares = [np.bincount(y[:, j], minlength=4)[:, None] / 300 for j in range(12)]
        for found, expected in zip(model.theta_, shares, strict=True):
            np.testing.assert_allclose(found, expected[expected[:, 0] > 0], atol=1e-6)
        np.testing.assert_array_equal(model.transform(y), np.ones((300, 1)))


def test_one_sample_has_one_component():
    model = MixedMembership(1).fit([["a", 1, 2.5, "b"]])
    assert np.isfinite(model.score([["a", 1, 2.5, "b"]]))
    with pytest.raises(InvalidInputError, match="more than moments can tell apart"):
        MixedMembership(2).fit([["a", 1, 2.5, "b"]])


# New samples.


def test_unseen_categories_say_nothing():
    y, _, _ = planted(300)
    model = fitted(y)
    strange, hidden = y[:5].astype(float), y[:5].astype(float)
    strange[:, 2], hidden[:, 2] = 9, np.nan
    with pytest.warns(DataWarning, match="column 2 has categories that the fit has not seen, 9:"):
        found = model.transform(strange)
    np.testing.assert_array_equal(found, model.transform(hidden))
    with pytest.warns(DataWarning):
        assert model.score(strange) == model.score(hidden)


def test_samples_of_nothing_have_the_memberships_of_all():
    y, _, _ = planted(300)
    model = fitted(y)
    found = model.transform(np.full((2, 12), np.nan))
    np.testing.assert_allclose(found, np.tile(model.alpha_ / model.alpha_.sum(), (2, 1)), atol=1e-9)
    with pytest.raises(InvalidInputError):
        model.score(np.full((2, 12), np.nan))


def test_samples_of_the_model_are_samples_of_the_model():
    y, _, _ = planted(4000)
    model = fitted(y)
    X, memberships = model.sample(4000, random_state=0)
    assert X.shape == (4000, 12)
    np.testing.assert_allclose(memberships.mean(axis=0), model.alpha_ / 0.3, atol=0.03)
    again = fitted(X.to_numpy())
    assert rmse(again.theta_, model.theta_) < 0.025
    assert model.sample(5, random_state=1)[0].equals(model.sample(5, random_state=1)[0])
    X, _, _, _ = mixed(2000)
    model = MixedMembership(2, alpha0=0.6, random_state=0).fit(X)
    drawn, _ = model.sample(2000, random_state=0)
    assert drawn.columns.tolist() == X.columns.tolist()
    assert drawn["number"].std() == pytest.approx(X["number"].std(), rel=0.15)
    assert drawn["count"].mean() == pytest.approx(X["count"].mean(), rel=0.15)


def test_the_score_finds_the_number_of_components():
    """Memberships that fit too well do not raise it: too many components do not help."""
    y, _, _ = planted(3000, p=18, k=3)
    scores = {k: fitted(y[:2000], k, alpha=0.3 / k).score(y[2000:]) for k in (1, 2, 3, 5)}
    assert scores[1] < scores[2] < scores[3]
    assert scores[5] < scores[3] + 0.002


@pytest.mark.parametrize(("alpha", "best"), [(0.1, (0.3,)), (0.5, (1.0, 1.5))])
def test_the_score_finds_how_much_samples_mix(alpha, best):
    """Which the residual of the moments does not, against spec g: it likes small values."""
    y, _, _ = planted(1500, 25, alpha=alpha)
    values = (0.3, 1.0, 1.5, 5.0)
    models = {a0: MixedMembership(3, alpha0=a0, random_state=0).fit(y[:1000]) for a0 in values}
    scores = {a0: model.score(y[1000:]) for a0, model in models.items()}
    assert max(scores, key=scores.get) in best
    residuals = [model.diagnostics_["residual"] for model in models.values()]
    assert residuals == sorted(residuals)


# Parameters.


def test_a_warm_start_goes_on():
    y, _, _ = planted(400)
    for method in ("tensor-free", "partitioned"):
        model = fitted(y, method=method, warm_start=True)
        before = model.objective_
        assert model.fit(y).objective_ <= before * (1 - 1e-6)
        assert model.n_iter_ <= 5
    with pytest.raises(InvalidInputError, match="warm_start=True goes on"):
        model.set_params(n_components=2).fit(y)


def test_partitions_go_on_from_a_checkpoint(tmp_path):
    y, _, _ = planted(200)
    options = {"method": "partitioned", "n_init": 2, "max_iter": 4, "tol": 0.0}
    whole = fitted(y, **options)

    def stop(iteration):
        return iteration.number == 2

    stopped = fitted(y, checkpoint=tmp_path / "state", callbacks=[stop], **options)
    assert stopped.n_iter_ == 2
    resumed = fitted(y, checkpoint=tmp_path / "state", **options)
    assert resumed.n_iter_ == 4
    assert all(map(np.array_equal, resumed.theta_, whole.theta_))


def test_anchors_that_are_chosen_beat_those_that_say_nothing():
    y, _, _ = planted(2000, p=12, d=3)
    y[:, :6] = np.random.default_rng(0).integers(3, size=(2000, 6))
    table = read_columns(y, "auto", range(12))
    sets = choose_anchors(table, 3, 0.3, seed=0)
    assert all((own >= 6).all() for own in sets)
    assert isinstance(partitioned(table, sets, 3, None, seed=0), Layout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 20}, "n_components=20 is more than moments can tell apart"),
        ({"anchors": [[0], [1], [2]]}, "belong to method='partitioned'"),
        ({"method": "partitioned", "anchors": [[0], [1]]}, "are not three sets"),
        ({"method": "partitioned", "anchors": [[0], [0], [1]]}, "share a variable"),
        ({"method": "partitioned", "anchors": [["z"], [0], [1]]}, "neither the name"),
        ({"method": "partitioned", "n_partitions": 50}, "Use at most 2"),
        ({"method": "partitioned", "n_components": 9}, "too few categories"),
        ({"kinds": "text"}, "'text', which is not one of"),
        ({"kinds": {"z": "real"}}, "kinds has 'z', which is neither"),
        ({"kinds": {0: "count"}}, "'count' but has numbers that are negative"),
    ],
)
def test_what_is_refused(options, message):
    y, _, _ = planted(50, p=9, d=3)
    X = y.astype(float)
    X[0, 0] = -1
    with pytest.raises(InvalidInputError, match=message):
        MixedMembership(**{"n_components": 2, **options}).fit(X)


def test_too_few_columns():
    y, _, _ = planted(50, p=2)
    with pytest.raises(InvalidInputError, match="n_features=2, but moments need three columns"):
        MixedMembership(2).fit(y)
    for columns in (y, y[:, :1]):
        np.testing.assert_allclose(
            MixedMembership(1).fit(columns).theta_[0][:, 0], np.bincount(y[:, 0]) / 50
        )
    with pytest.raises(InvalidInputError, match="has no observation"):
        MixedMembership(1).fit(pd.DataFrame({"a": [None, None], "b": [1, 2], "c": [3, 4]}))


def test_files(tmp_path):
    X, _, _, _ = mixed(200)
    X.loc[3, "item 0"] = None
    for options in ({}, {"refine": True, "kinds": {"count": "real"}}, {"method": "partitioned"}):
        model = MixedMembership(2, alpha0=0.6, random_state=0, max_iter=20, **options).fit(X)
        model.save(tmp_path / "model")
        loaded = polyad.load(tmp_path / "model")
        assert loaded.get_params() == model.get_params()
        assert loaded.diagnostics_ == model.diagnostics_
        np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
        pd.testing.assert_frame_equal(loaded.theta_table(), model.theta_table())
        assert loaded.score(X) == model.score(X)
