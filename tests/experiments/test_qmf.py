"""The experiments with quantile factorizations: their data, their baselines, their tables."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments.qmf import (
    defaults,
    new_samples,
    noisy,
    omics,
    omics_methods,
    omics_report,
    toy,
)
from experiments.qmf.cohorts import Cohort, Preparation, View, golub_intensities, load_cohort
from experiments.qmf.curves import (
    checkpoints,
    divergences,
    frobenius_updates,
    kl_updates,
    make_model,
    mean_divergence,
    random_factors,
    watched_model,
    watched_updates,
)
from experiments.qmf.methods import (
    Back,
    FactorizedTransform,
    Frequencies,
    Identity,
    Logarithm,
    Ranks,
    TruncatedSVD,
)
from experiments.qmf.synthetic import hard_quantiles, make_planted, quantiles_at
from experiments.runs import Store
from matplotlib.figure import Figure
from sklearn.decomposition import NMF

import polyad

DATA = os.environ.get("POLYAD_DATA", "")
needs_cohorts = pytest.mark.skipif(
    not DATA or not all((Path(DATA) / name).exists() for name in ("tcga", "expression")),
    reason="POLYAD_DATA has no breast cancer and leukaemia data",
)
SHAPE = (30, 12)


@pytest.fixture(name="X")
def positive_data():
    """Return positive data with a tie, of different scales."""
    rng = np.random.default_rng(3)
    data = rng.gamma(1.5, size=SHAPE) * np.geomspace(0.1, 1000.0, SHAPE[1])
    data[4, 2] = data[5, 2]
    return data


@pytest.fixture
def coarse(monkeypatch):
    """Save pictures with few points, drawn once: that they are drawn is seen of any size."""
    save = Figure.savefig
    monkeypatch.setattr(Figure, "tight_layout", lambda self: None)
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: save(self, path, dpi=20))


def arguments(**options):
    """Return the words of a command line."""
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
    return [word for pair in pairs for word in pair]


def cohort_of(X, classes):
    """Return a cohort of one kind of intensities, and one of ratios."""
    views = {"intensity": View(X), "ratio": View(X[:, :4] / 5.0, is_ratio=True)}
    return Cohort(views, {"class": np.asarray(classes)})


def test_planted_matrices_have_the_given_quantiles_in_the_order_of_the_products():
    planted = make_planted(7, 25, 3, 1)
    assert planted.X.shape == (25, 7)
    assert np.linalg.matrix_rank(planted.products) == 3
    np.testing.assert_array_equal(np.sort(planted.X, axis=0).T, planted.quantiles)
    for j in range(7):
        order = np.argsort(planted.products[:, j], kind="stable")
        assert (np.diff(planted.X[order, j]) > 0).all()


def test_the_first_toy_is_that_of_the_specification():
    # The mean entry of the toy of seed 0 that regression numbers were published for.
    assert make_planted(160, 80, 8, 0).X.mean() == pytest.approx(66.97, abs=0.005)


def test_noise_is_the_positive_part_of_a_gaussian():
    planted = make_planted(200, 100, 3, 1, noise=10.0)
    error = planted.X - planted.clean
    assert (error >= 0).all()
    assert np.mean(error == 0) == pytest.approx(0.5, abs=0.02)
    assert error.mean() == pytest.approx(10.0 / np.sqrt(2 * np.pi), rel=0.03)
    np.testing.assert_array_equal(planted.clean, make_planted(200, 100, 3, 1).X)


def test_hard_quantiles_of_ties_come_in_order():
    values = np.array([[1.0], [0.0], [1.0]])
    found = hard_quantiles(values, np.array([[5.0, 6.0, 9.0]]))
    np.testing.assert_array_equal(found, [[6.0], [5.0], [9.0]])


def test_a_quantile_function_takes_its_values_where_its_weights_are():
    found = quantiles_at(
        np.array([1.0, 4.0]), np.array([0.25, 0.75]), np.array([0.1, 0.25, 0.3, 1])
    )
    np.testing.assert_array_equal(found, [1.0, 1.0, 4.0, 4.0])


def test_true_quantiles_have_no_distance_from_themselves():
    planted = make_planted(5, 20, 2, 0)
    even = np.full_like(planted.quantiles, 1.0 / 20)
    assert toy.quantile_distance(planted, planted.quantiles, even) == 0.0
    moved = planted.quantiles + 2.0 * planted.quantiles.std(axis=1, keepdims=True)
    assert toy.quantile_distance(planted, moved, even) == pytest.approx(2.0)
    assert 0.0 < toy.even_distance(planted, 8) < toy.even_distance(planted, 2)


def test_divergences_are_those_of_the_formula_and_zeros_are_finite(X):
    model = X * np.random.default_rng(0).uniform(0.5, 2.0, size=X.shape)
    expected = X * np.log(X / model) - X + model
    np.testing.assert_allclose(divergences(X, model), expected, rtol=1e-5)
    assert mean_divergence(X, X) == 0.0
    X[0, 0] = 0.0
    assert divergences(X, model)[0, 0] == pytest.approx(model[0, 0], rel=1e-4)
    assert np.isfinite(mean_divergence(X, np.zeros_like(X)))


def test_pieces_of_updates_are_those_of_one_run_of_scikit_learn(X):
    W, H = random_factors(X.shape, 3, float(X.mean()), 0)
    model = NMF(3, init="custom", solver="mu", beta_loss="kullback-leibler", tol=0.0, max_iter=40)
    expected = model.fit_transform(X, W=W.copy(), H=H.copy()) @ model.components_
    curve, found = watched_updates(X, 3, 0, 40, kl_updates)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert curve["iteration"] == [0, *checkpoints(40)]
    assert curve["divergence"][-1] == mean_divergence(X, found)
    assert (np.diff(curve["divergence"]) <= 1e-12).all()


def test_updates_for_squares_lower_squares(X):
    W, H = random_factors(X.shape, 3, float(X.mean()), 0)
    errors = []
    for _ in range(5):
        errors.append(((X - W @ H) ** 2).sum())
        W, H = frobenius_updates(X, W, H, 3)
    assert (np.diff(errors) < 0).all()


@pytest.mark.parametrize(("n_iter", "last"), [(1, 1), (20, 20), (21, 21), (1000, 1000)])
def test_curves_are_looked_at_until_the_end(n_iter, last):
    found = checkpoints(n_iter)
    assert found[0] == 1
    assert found[-1] == last
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("name", ["QMF", "QMFQ"])
def test_the_curve_of_a_model_ends_with_its_reconstruction(X, name):
    model = make_model(name, 2, 0, {"n_quantiles": 4, "max_iter": 6, "tol": 0.0})
    curve, found = watched_model(model, X)
    assert curve["iteration"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (np.diff(curve["times"]) >= 0).all()
    assert curve["divergence"][-1] == mean_divergence(X, found)
    assert curve["divergence"][-1] == pytest.approx(model.reconstruction_err_, rel=1e-6)


@pytest.mark.parametrize("transform", [Identity(), Logarithm(0.1), Ranks(), Frequencies()])
def test_what_was_transformed_comes_back(X, transform):
    transform.fit(X)
    Z = transform.forward(X)
    assert (Z >= 0).all()
    np.testing.assert_allclose(transform.backward(Z, X), X, rtol=1e-10)


def test_ranks_of_new_samples_are_between_those_of_their_neighbours():
    transform = Ranks()
    transform.fit(np.array([[1.0], [3.0], [3.0], [7.0]]))
    found = transform.forward(np.array([[1.0], [2.0], [3.0], [5.0], [9.0], [0.0]]))
    np.testing.assert_allclose(found.ravel(), [0.25, 0.4375, 0.625, 0.8125, 1.0, 0.25])
    back = transform.backward(np.array([[0.0], [0.625], [0.8125], [2.0]]), np.ones((4, 1)))
    np.testing.assert_allclose(back.ravel(), [1.0, 3.0, 5.0, 7.0])


def test_frequencies_do_not_depend_on_the_size_of_a_sample(X):
    transform = Frequencies()
    transform.fit(X)
    sizes = np.arange(1.0, len(X) + 1)[:, None]
    np.testing.assert_allclose(transform.forward(sizes * X), transform.forward(X))
    # A rare feature gets a larger weight.
    assert (np.diff(transform.weights_[np.argsort(X.mean(axis=0))]) < 0.2).all()
    assert transform.weights_[0] > transform.weights_[-1]


@pytest.mark.parametrize("monotone", [False, True])
def test_the_way_back_never_raises_the_divergence(X, monotone):
    rng = np.random.default_rng(5)
    raw = X * rng.uniform(0.2, 6.0, size=X.shape) + rng.normal(0.0, 0.3, size=X.shape)
    positive = np.maximum(raw, 0.5 * X.min(axis=0))
    found = Back(monotone=monotone).fit(X, raw)
    assert (found >= X.min(axis=0)).all()
    assert (found <= X.max(axis=0)).all()
    assert (divergences(X, found).sum(axis=0) <= divergences(X, positive).sum(axis=0)).all()


def test_the_best_factor_is_found(X):
    sizes = np.arange(1.0, SHAPE[1] + 1)
    np.testing.assert_allclose(Back().fit(X, X * sizes), X)
    rng = np.random.default_rng(5)
    raw = X * rng.uniform(0.5, 2.0, size=X.shape)
    back = Back()
    back.fit(X, raw)
    # Any other factor is worse.
    for factor in (0.99, 1.01):
        assert mean_divergence(X, back.apply(raw * factor)) > mean_divergence(X, back.apply(raw))


def test_the_best_increasing_function_is_better_than_the_best_factor(X):
    raw = np.sqrt(X)
    assert mean_divergence(X, Back(monotone=True).fit(X, raw)) == pytest.approx(0.0, abs=1e-12)
    assert mean_divergence(X, Back().fit(X, raw)) > 0.01


def test_only_new_samples_may_leave_the_range(X):
    back = Back()
    assert (back.fit(X, X.max(axis=0) - X) <= X.max(axis=0)).all()
    new = back.apply(20.0 * X)
    assert (new.max(axis=0) > X.max(axis=0)).all()
    assert (back.apply(-X) > 0).all()


def test_reconstructions_of_zeros_stay_positive():
    X = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 2.0]])
    found = Back().fit(X, np.array([[-1.0, 1.0], [-2.0, 3.0], [4.0, 2.0]]))
    assert (found > 0).all()


def test_methods_reconstruct_what_they_are_made_for():
    rng = np.random.default_rng(0)
    W = rng.gamma(1.0, size=(30, 2)) @ rng.gamma(1.0, size=(2, 10))
    settings = {"max_iter": 3000}
    plain = FactorizedTransform((Identity(),), 2, 0, **settings)
    assert mean_divergence(W, plain.fit(W)[1]) < 1e-4
    scores, found = plain.apply(W[:7])
    assert scores.shape == (7, 2)
    assert mean_divergence(W[:7], found) < 1e-3
    curved = np.expm1(W)
    logs = FactorizedTransform((Logarithm(1.0), Logarithm(1.0 / curved.mean())), 2, 0, **settings)
    assert mean_divergence(curved, logs.fit(curved)[1]) < 1e-3 * curved.mean()
    assert logs.transform_ is logs.transforms[1]
    svd = TruncatedSVD(2)
    np.testing.assert_allclose(svd.fit(W)[1], W)
    np.testing.assert_allclose(svd.apply(W[:3])[1], W[:3])


@pytest.mark.parametrize("name", omics_methods.METHODS)
def test_every_method_fits_and_projects(X, name):
    unit = {"rank": 2, "quantiles": 4, "iterations": 4, "outer": 3, "inner": 5}
    method = omics_methods.make_method(name, unit, X[:20].shape, 0)
    rank = omics_methods.equal_rank(2, 4, (20, 12)) if name == "NMF larger" else 2
    for part, (scores, found) in ((X[:20], method.fit(X[:20])), (X[20:], method.apply(X[20:]))):
        assert scores.shape == (len(part), rank)
        assert found.shape == part.shape
        assert np.isfinite(mean_divergence(part, found))


def test_numbers_of_methods_are_counted():
    shape = (348, 1642)
    plain = 5 * (348 + 1642)
    assert omics_methods.numbers_of("QMF", 5, 16, shape) == plain + 1642 * (14 + 15)
    assert omics_methods.numbers_of("NMF", 5, 16, shape) == plain + 1642
    larger = omics_methods.equal_rank(5, 16, shape)
    ours = omics_methods.numbers_of("QMF", 5, 16, shape)
    assert abs(larger * sum(shape) - ours) <= sum(shape) / 2
    assert omics_methods.equal_rank(20, 16, (38, 3051)) == 38


def test_preparation_learns_from_training_samples_only(X):
    classes = ["a", "b"] * 15
    train, test = np.arange(20), np.arange(20, 30)
    before = Preparation("log", 3).fit(cohort_of(X, classes), train)
    changed = X.copy()
    changed[test] *= np.linspace(0.001, 50.0, SHAPE[1])
    after = Preparation("log", 3).fit(cohort_of(changed, classes), train)
    np.testing.assert_array_equal(
        before.matrix(cohort_of(X, classes), train), after.matrix(cohort_of(X, classes), train)
    )
    new = before.matrix(cohort_of(changed, classes), test)
    assert new.shape == (10, 6)
    assert (new >= 0).all()


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_every_kind_of_measurement_has_mean_one(X, scale):
    cohort = cohort_of(X + 1.0, ["a"] * 30)
    everyone = np.arange(30)
    preparation = Preparation(scale).fit(cohort, everyone)
    matrix = preparation.matrix(cohort, everyone)
    assert matrix.shape == (30, 16)
    for columns in preparation.columns().values():
        assert matrix[:, columns].mean() == pytest.approx(1.0)
    if scale == "log":
        assert matrix[:, preparation.columns()["ratio"]].min() == 0.0


def test_features_are_chosen_by_the_variance_of_logarithms():
    rng = np.random.default_rng(0)
    spread = np.array([0.1, 2.0, 0.5, 3.0])
    values = np.exp(spread * rng.standard_normal((50, 4)) + np.array([9.0, 0.0, 5.0, -3.0]))
    cohort = Cohort({"one": View(values)}, {})
    preparation = Preparation("linear", 2).fit(cohort, np.arange(50))
    np.testing.assert_array_equal(preparation.kept_["one"], [1, 3])


def test_standardized_logarithms_give_their_intensities_back():
    rng = np.random.default_rng(0)
    intensities = np.rint(np.clip(rng.lognormal(6.5, 1.5, size=(4, 60)), 100, 16000))
    intensities[:, 0], intensities[:, 1] = 100, 16000
    logs = np.log10(intensities)
    standard = (logs - logs.mean(axis=1, keepdims=True)) / logs.std(axis=1, keepdims=True)
    np.testing.assert_array_equal(golub_intensities(standard.round(5)), intensities)


@needs_cohorts
def test_the_cohorts_are_what_they_are_said_to_be():
    breast = load_cohort("breast")
    assert {name: view.values.shape for name, view in breast.views.items()} == {
        "expression": (348, 645),
        "methylation": (348, 574),
        "microRNA": (348, 423),
    }
    # Reads per million: all of them together are a million, but for microRNAs that were left out.
    totals = breast.views["microRNA"].values.sum(axis=1)
    np.testing.assert_allclose(totals, 1e6, rtol=0.03)
    assert (breast.views["methylation"].values <= 1).all()
    known, counts = np.unique(breast.classes["subtype"], return_counts=True)
    assert dict(zip(known.tolist(), counts.tolist(), strict=True)) == {
        "": 216,
        "Basal": 36,
        "Her2": 27,
        "LumA": 69,
    }
    golub = load_cohort("golub").views["expression"].values
    assert golub.min() == 100
    assert golub.max() == 16000
    lineage = load_cohort("leukaemia").classes["lineage"]
    assert [(lineage == text).sum() for text in "BT"] == [95, 33]


@needs_cohorts
@pytest.mark.parametrize("name", ["breast", "leukaemia", "golub"])
def test_folds_test_every_patient_once(name):
    cohort = load_cohort(name)
    tested = []
    for fold in range(5):
        train, test = omics.split(cohort, 0, fold)
        assert not np.intersect1d(train, test).size
        tested.append(test)
        for classes in cohort.classes.values():
            assert set(classes[test]) - {""} == set(classes) - {""}
    np.testing.assert_array_equal(np.sort(np.concatenate(tested)), np.arange(cohort.n_samples))


def test_purity_counts_the_largest_class_of_each_cluster():
    clusters = np.array([0, 0, 0, 1, 1])
    assert omics.purity(clusters, np.array(list("aabbb"))) == pytest.approx(0.8)
    rng = np.random.default_rng(0)
    apart = np.vstack([rng.normal(0, 0.1, (20, 2)), rng.normal(3, 0.1, (20, 2))])
    classes = np.repeat(["a", "b"], 20)
    assert omics.purity(omics.find_clusters(apart, 2), classes) == 1.0
    assert (omics.classify(apart[::2], classes[::2], apart[1::2]) == classes[1::2]).all()


def omics_table(tmp_path, X, part, methods, monkeypatch):
    """Run the units of a part on made-up data and return their table."""
    cohort = cohort_of(X, ["a", "b", "a"] * 10)
    monkeypatch.setattr(omics, "load_cohort", lambda _: cohort)
    options = omics.read_options(
        arguments(
            sets="golub",
            scales="linear",
            ranks="2,3",
            predict_ranks=2,
            quantiles=4,
            iterations=3,
            outer=3,
            inner=5,
            methods=",".join(methods),
        )
    )
    store = Store(tmp_path / "units.csv")
    units = omics.make_units(part, options)
    for unit in units:
        store.add(unit, omics.do_unit(unit))
    return store.table(units)


@pytest.mark.usefixtures("coarse")
def test_units_and_tables_of_the_reconstruction(tmp_path, X, monkeypatch):
    methods = ["QMF", "NMF", "SVD", "NMF larger"]
    table = omics_table(tmp_path, X, "reconstruct", methods, monkeypatch)
    assert len(table) == 8
    assert (table["KL"] > 0).all()
    assert table["purity: class"].between(0.5, 1.0).all()
    text = omics_report.describe("reconstruct", table)
    assert "| QMF |" in text
    assert "Purity of as many clusters as classes, class" in text
    assert "Mean KL of the ratio alone" in text
    nmf = table[(table["method"] == "NMF") & (table["rank"] == 3)].iloc[0]
    numbers = (3 * (30 + 16) + 16) / (30 * 16)
    assert f"{nmf['KL']:.4g} ({numbers:.2g})" in text
    omics_report.plot_ranks(table, "KL", tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").exists()


def test_units_and_tables_of_the_prediction(tmp_path, X, monkeypatch):
    table = omics_table(tmp_path, X, "predict", ["QMFQ SVD", "NMF"], monkeypatch)
    assert len(table) == 10
    assert (table["KL of new samples"] > 0).all()
    text = omics_report.describe("predict", table)
    mean = table[table["method"] == "NMF"]["accuracy: class"].mean()
    assert "Balanced accuracy (mean over classes), class" in text
    assert f"| NMF | {mean:.3f} ±" in text


@pytest.mark.parametrize("part", defaults.PARTS)
def test_units_and_tables_of_the_defaults(tmp_path, X, part, monkeypatch):
    cohort, quantile = cohort_of(X, ["a", "b", "a"] * 10), defaults.Quantile
    monkeypatch.setattr(defaults, "load_cohort", lambda _: cohort)
    monkeypatch.setattr(defaults, "SCALES", ("linear",))
    monkeypatch.setattr(
        defaults, "Quantile", lambda *given: quantile(*given[:3], {"max_iter": 3, **given[3]})
    )
    options = defaults.read_options(arguments(sets="golub", ranks=2, folds=1))
    units, store = defaults.make_units(part, options), Store(tmp_path / "units.csv")
    for unit in units:
        store.add(unit, defaults.do_unit(unit))
    table = store.table(units)
    assert (table["n_iter"] == 3).all()
    if part == "time":
        assert "0 of 1 fits converged" in defaults.describe_times(table)
        return
    assert (table["KL of new samples"] > 0).all()
    assert "KL: QMFQ svd lower in" in defaults.describe_projectors(table)


def test_the_verdict_compares_with_the_best_baseline_only():
    rows = [("QMF", 1.0), ("NMF", 3.0), ("SVD", 2.0), ("NMF larger", 0.1)]
    table = pd.DataFrame(rows, columns=["method", "KL"]).assign(rank=5)
    text = omics_report.verdict(table, "KL")
    assert "QMF below every baseline at every rank: yes" in text
    assert "R = 5: 2.00 (SVD)" in text
    table.loc[0, "KL"] = 2.5
    assert "every rank: no" in omics_report.verdict(table, "KL")


def test_the_mean_of_fits_is_that_of_their_reconstructions(X):
    found = new_samples.measure(X[:20], X[20:], 2, 0)
    assert set(found) == {
        start + name for start in new_samples.ERRORS for name in new_samples.METHODS
    }
    models = [polyad.QMF(2, tol=3e-3, random_state=seed).fit(X[:20]) for seed in range(4)]
    hidden = np.random.default_rng(0).random(X[20:].shape) < 0.2
    gaps = np.where(hidden, np.nan, X[20:])
    for count in (2, 4):
        name = f"mean of {count} QMF"
        for of, part in (("fitted", X[:20]), ("new", X[20:]), ("hidden", gaps)):
            ours = [model.inverse_transform(model.transform(part)) for model in models[:count]]
            lost = divergences(X[20:] if of == "hidden" else part, np.mean(ours, axis=0))
            expected = lost[hidden].mean() if of == "hidden" else lost.mean()
            assert found[f"{of}: {name}"] == pytest.approx(expected, rel=1e-3)
    assert found["new: QMF"] <= found["new: QMF before"] * (1.0 + 1e-6)


def test_hidden_entries_are_predicted_by_the_baselines():
    rng = np.random.default_rng(0)
    W = rng.gamma(1.0, size=(40, 2)) @ rng.gamma(1.0, size=(2, 10))
    found = new_samples.measure(W[:30], W[30:], 2, 0)
    assert found["hidden: SVD"] < 1e-10
    assert found["hidden: NMF"] < 1e-3 * W.mean()


def test_tables_of_new_samples_compare_folds_in_pairs(X, monkeypatch):
    monkeypatch.setattr(new_samples, "load_cohort", lambda _: cohort_of(X, ["a", "b", "a"] * 10))
    options = new_samples.read_options(arguments(sets="golub", scales="linear,log", ranks=2))
    units = new_samples.make_units(options)
    assert len(units) == 10
    rng = np.random.default_rng(0)
    rows = []
    for unit in units:
        known = dict.fromkeys(new_samples.METHODS, 1.0) | {"NMF": 0.9 + 0.01 * rng.random()}
        known |= {"mean of 2 QMF": 0.96 if unit["scale"] == "linear" else 0.8}
        rows.append(unit | {of + k: v for of in new_samples.ERRORS for k, v in known.items()})
    text = new_samples.describe(pd.DataFrame(rows))
    assert "0.960 [0.960, 0.960]" in text
    assert "* QMF: below NMF 0, at least 5 % below QMF before 0, both 0." in text
    line = "* mean of 2 QMF: below NMF 1, at least 5 % below QMF before 1, both 1."
    assert text.count(line) == 2


@pytest.mark.usefixtures("coarse")
def test_units_and_tables_of_the_toy(tmp_path):
    names = ("NMF KL", "NMF squares", "QMF", "QMFQ")
    small = {"samples": 2, "features": 8, "individuals": 12, "iterations": 3}
    options = toy.read_options(arguments(**small, methods=",".join(names)))
    store = Store(tmp_path / "toy.csv")
    units = toy.make_units(options)
    for unit in units:
        # The runs add the time of a unit under this name.
        store.add(unit, {**toy.do_unit(unit), "seconds": 0.0})
    table = store.table(units)
    assert len(table) == 8
    text = toy.describe(table)
    assert all(f"| {name} |" in text for name in names)
    ours = table[table["method"] == "QMF"]
    ratio = table[table["method"] == toy.BASE]["last"].to_numpy() / ours["last"].to_numpy()
    assert f"lowest ratio {ratio.min():.1f}" in text
    toy.plot_losses(table, tmp_path / "losses.png")
    toy.plot_quantiles(table, options, tmp_path / "quantiles.png")
    assert (tmp_path / "losses.png").exists()
    assert (tmp_path / "quantiles.png").exists()


@pytest.mark.usefixtures("coarse")
def test_units_and_tables_of_the_noisy_study(tmp_path):
    small = {"samples": 2, "features": 12, "individuals": 15, "rank": 2}
    varied = {"batches": 5, "inner": 4, "quantiles": 4, "iterations": 3, "outer": 2, "updates": 9}
    options = noisy.read_options(arguments(**small, **varied))
    kinds = noisy.make_kinds(options)
    units = noisy.make_units([kind for panel in kinds.values() for kind in panel], options)
    # The baseline is in all panels and fitted once.
    assert sum(unit["method"] == noisy.BASE for unit in units) == 2
    store = Store(tmp_path / "noisy.csv")
    for unit in units:
        store.add(unit, {**noisy.do_unit(unit), "seconds": 0.0})
    tables = {panel: noisy.panel_table(store, part, options) for panel, part in kinds.items()}
    text = noisy.describe(tables["batch"])
    assert "| QMF, m = 16, batches of 5 |" in text
    assert f"| {noisy.BASE} |" in text
    noisy.plot(tables, tmp_path / "noisy.png")
    assert (tmp_path / "noisy.png").exists()


def test_mean_curves_hold_the_last_value_of_fits_that_ended_before_others():
    table = pd.DataFrame(
        {"iteration": [[0, 1], [0, 1, 2]], "divergence": [[4.0, 2.0], [4.0, 4.0, 0.0]]}
    )
    steps, mean, spread = noisy.mean_curve(table)
    np.testing.assert_array_equal(steps, [0, 1, 2])
    np.testing.assert_array_equal(mean, [4.0, 3.0, 1.0])
    np.testing.assert_allclose(spread, [0.0, np.sqrt(2.0), np.sqrt(2.0)])


@pytest.mark.parametrize("module", [toy, noisy, omics])
def test_strange_words_on_the_command_line_are_refused(module, capsys):
    option = "--panels" if module is noisy else "--methods"
    with pytest.raises(SystemExit):
        module.read_options([option, "nonsense"])
    assert "'nonsense' is not known" in capsys.readouterr().err
