"""QMF as a whole: what it reaches, what it keeps, what it does with odd data."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from polyad import QMF, QMFQ, LabelledTensor
from polyad.exceptions import DataWarning
from polyad.fitting import Status
from tests.quantile.planted import planted, small

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def same_bits(one, other):
    assert one.history_.objective == other.history_.objective
    for name in ("weights_", "quantiles_", "quantile_weights_", "potentials_"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for left, right in zip(one.factors_, other.factors_, strict=True):
        assert left.tobytes() == right.tobytes()


@pytest.fixture(scope="module")
def toy():
    X = planted()
    return X, QMF(8, n_quantiles=8, random_state=0, max_iter=80, tol=0).fit(X)


def test_the_toy_of_the_paper_is_reached(toy):
    """NMF with Kullback-Leibler updates stays at 1.458 (1000 updates), QMF goes below a tenth of
    it.

    The first number was computed in NumPy from the formulas of Lee and Seung, with default_rng(0).
    """
    X, model = toy
    assert X.mean() == pytest.approx(66.974, abs=1e-3)
    divergence = model.history_.to_frame()["divergence"]
    assert divergence.iloc[-1] < 0.11
    assert model.reconstruction_err_ <= divergence.min() * (1 + 1e-6)
    assert model.reconstruction_err_ < 1.458 / 10


def test_the_settings_of_the_paper_reach_the_known_numbers():
    """Adam with rate 0.01 and an absolute ridge of 0.01: 38 at the start, 27.8 and 10.1 after 10
    and 100 steps.

    Those were computed by a NumPy implementation with another random start and the usual memory of
    Adam.
    """
    X = planted()
    unit = QMF(1, max_iter=1, random_state=0).fit(X)._unit
    model = QMF(
        8,
        n_quantiles=8,
        init="random",
        solver="adam",
        learning_rate=0.01,
        ridge=0.01 / unit,
        random_state=0,
        tol=0,
        max_iter=100,
    )
    divergence = model.fit(X).history_.to_frame()["divergence"]
    assert divergence[0] == pytest.approx(38, rel=0.05)
    assert divergence[10] == pytest.approx(27.8, rel=0.05)
    assert divergence[100] == pytest.approx(10.1, rel=0.15)


def test_new_samples_of_the_toy_are_reconstructed(toy):
    X, _ = toy
    model = QMF(8, n_quantiles=8, random_state=0, max_iter=30).fit(X[:60])
    constant = QMF(1, n_quantiles=2, random_state=0, max_iter=1).fit(X[:60])
    divergence = -model.score(X[60:])
    assert divergence < 1.0
    assert divergence < 0.05 * -constant.score(X[60:])


def test_the_samples_of_the_fit_get_their_own_scores(toy):
    X, model = toy
    features = model.factors_[0] * model.weights_
    np.testing.assert_allclose(model.transform(X), features, atol=1e-6 * features.max())
    assert model.score(X) == pytest.approx(-model.reconstruction_err_, rel=1e-9)
    back = model.inverse_transform(features)
    assert np.abs(back - X).mean() < 0.05 * X.mean()


def test_quantiles_span_the_features(toy):
    X, model = toy
    np.testing.assert_array_equal(model.quantiles_[:, 0], X.min(axis=0))
    np.testing.assert_array_equal(model.quantiles_[:, -1], X.max(axis=0))
    assert (np.diff(model.quantiles_, axis=1) >= 0).all()
    assert (model.quantile_weights_ > 0).all()
    np.testing.assert_allclose(model.quantile_weights_.sum(axis=1), 1)
    back = model.inverse_transform(np.random.default_rng(0).gamma(1, size=(30, 8)) * 100)
    assert (back >= X.min(axis=0)).all()
    assert (back <= X.max(axis=0)).all()


def test_transforms_increase(toy):
    _, model = toy
    for feature in range(0, 160, 16):
        table = model.transform_table(feature, n_points=4000)
        assert (np.diff(table["before"]) > 0).all()
        assert (np.diff(table["after"]) >= 0).all()
        numeric = np.gradient(table["after"], table["before"])
        mean = (table["after"].iloc[-1] - table["after"].iloc[0]) / np.ptp(table["before"])
        np.testing.assert_allclose(table["slope"][1:-1], numeric[1:-1] / mean, rtol=1e-3, atol=1e-3)


def test_inflation_tells_powers_from_roots():
    rng = np.random.default_rng(0)
    W = rng.dirichlet([1, 1], 60) @ rng.gamma(2, size=(2, 6))
    X = np.concatenate([np.exp(4 * W / W.max(axis=0)), (W - W.min(axis=0)) ** 0.3], axis=1)
    model = QMF(2, divergence="frobenius", max_iter=100, random_state=0).fit(X / X.max(axis=0))
    inflation = model.quantile_table()["inflation"]
    assert inflation[:6].min() > inflation[6:].max()


def test_batches_choose_adam_and_newton_is_for_all_features():
    def fitted(**options):
        return QMF(2, random_state=0, max_iter=3, **options).fit(small())

    pairs = [
        (fitted(), fitted(solver="newton")),
        (fitted(batch_size=3), fitted(solver="adam", batch_size=3)),
    ]
    for chosen, named in pairs:
        assert chosen.history_.objective == named.history_.objective
        np.testing.assert_array_equal(chosen.components_, named.components_)
    assert "damping" in pairs[0][0].history_.to_frame()
    assert "learning_rate" in pairs[1][0].history_.to_frame()


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "adam"},
        {"solver": "adam", "batch_size": 3},
        {"nonnegative": False},
        {"divergence": "frobenius"},
        {"ridge": 0.0},
        {"epsilon": 1e-3},
        {"n_quantiles": 2},
        {"n_quantiles": 40},
    ],
)
def test_every_option_lowers_the_objective(options):
    X = small()
    model = QMF(2, random_state=0, max_iter=8, **options).fit(X)
    objectives = model.history_.objective
    assert min(objectives) < 0.9 * objectives[0]
    assert model.objective_ <= min(objectives)
    assert np.isfinite(model.transform(X)).all()


def test_factors_are_nonnegative_and_in_canonical_form():
    model = QMF(3, random_state=0, max_iter=15).fit(small())
    assert all((factor >= 0).all() for factor in model.factors_)
    assert (np.diff(model.weights_) <= 0).all()
    for factor in model.factors_:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1)
    np.testing.assert_allclose(model.components_, model.factors_[1].T)
    free = QMF(3, nonnegative=False, random_state=0, max_iter=15).fit(small())
    assert (free.factors_[1] < 0).any()


def test_the_unit_of_the_data_does_not_matter():
    X = small()
    one = QMF(2, random_state=0, max_iter=10).fit(X)
    for power in (-40, 40):
        other = QMF(2, random_state=0, max_iter=10).fit(X * 2.0**power)
        np.testing.assert_array_equal(one.factors_[1], other.factors_[1])
        assert other.objective_ == one.objective_ * 2.0**power
        np.testing.assert_array_equal(one.quantiles_ * 2.0**power, other.quantiles_)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("estimator", "solver"),
    [(QMF, "newton"), (QMF, "adam"), (QMFQ, "adam"), (QMFQ, "lbfgs")],
)
def test_squares_of_large_and_small_units_do_no_harm(estimator, solver):
    """Squared gradients of squared differences would leave the range of a float."""
    X, results = small(), []
    for scale in (2.0**-350, 1.0, 2.0**350):
        model = estimator(2, divergence="frobenius", solver=solver, max_iter=2, random_state=0)
        model.fit(scale * X)
        results.append((model.factors_[0], np.array(model.history_.objective) / scale**2))
    for found in (results[0], results[2]):
        for one, other in zip(found, results[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("estimator", [QMF, QMFQ])
def test_a_single_value_of_any_unit_leaves_nothing_to_fit(estimator):
    """Its model is exact: what rounding left would have gradients without a unit to divide by."""
    for value in (4.93160282e96, 0.3):
        model = estimator(1, divergence="frobenius", solver="adam", max_iter=2, random_state=0)
        model.fit([[value]])
        assert model.history_.objective[0] == 0.0


def test_a_monotone_transform_of_a_feature_keeps_its_range_alone():
    """Constant, tied, heavy-tailed and zero features are all finite, and constant ones are met
    exactly."""
    rng = np.random.default_rng(0)
    X = small(n_samples=30, n_features=9)
    X[:, 0] = 3.0
    X[:, 1] = 0.0
    X[:, 2] = rng.random(30) < 0.5
    X[:, 3] = np.round(X[:, 3] / X[:, 3].max() * 3)
    X[:, 4] = 1 / rng.random(30) ** 4
    X[:, 5] = np.where(rng.random(30) < 0.8, 0, rng.gamma(1, size=30))
    model = QMF(3, random_state=0, max_iter=40)
    back = model.inverse_transform(model.fit_transform(X))
    assert np.isfinite(back).all()
    np.testing.assert_array_equal(back[:, 0], 3.0)
    np.testing.assert_array_equal(back[:, 1], 0.0)
    table = model.quantile_table()
    assert np.isfinite(table.to_numpy()).all()
    assert (table["inflation"][:2] == 0).all()
    assert (model.transform_table(0)["after"] == 3.0).all()


def test_a_matrix_without_any_variation_is_met_exactly():
    model = QMF(1, random_state=0).fit(np.full((6, 4), 2.0))
    assert model.reconstruction_err_ == 0
    assert model.status_ is Status.CONVERGED


# Missing entries.


def test_missing_entries_have_no_part_in_the_fit():
    X = small(n_samples=20)
    holes = np.random.default_rng(1).random(X.shape) < 0.2
    by_nan = np.where(holes, np.nan, X)
    model = QMF(2, random_state=0, max_iter=15).fit(by_nan)
    masked = QMF(2, random_state=0, max_iter=15).fit(np.where(holes, 7e5, X), mask=~holes)
    same_bits(model, masked)
    np.testing.assert_array_equal(model.quantiles_[:, 0], np.nanmin(by_nan, axis=0))
    features = model.transform(by_nan)
    np.testing.assert_allclose(
        features, model.factors_[0] * model.weights_, atol=1e-6 * features.max()
    )


def test_a_sample_without_entries_changes_nothing_but_its_row():
    X = small(n_samples=12)
    model = QMF(2, random_state=0, max_iter=30)
    with_gap = np.concatenate([X, np.full((1, X.shape[1]), np.nan)])
    with pytest.warns(DataWarning, match="position 12 of mode 0, the first such sample of 1"):
        features = model.fit_transform(with_gap)
    assert (features[-1] == 0).all()
    with_feature = np.concatenate([X, np.full((12, 1), np.nan)], axis=1)
    with pytest.warns(DataWarning, match="position 8 of mode 1, the first such feature of 1"):
        model.fit(with_feature)
    assert np.isfinite(model.transform(with_feature)).all()


def test_hidden_entries_are_predicted():
    X = planted(n_samples=60, n_features=80, n_components=3, seed=1)
    holes = np.random.default_rng(0).random(X.shape) < 0.1
    model = QMF(3, n_quantiles=8, random_state=0, max_iter=300)
    back = model.inverse_transform(model.fit_transform(X, mask=~holes))
    means = np.broadcast_to(np.nanmean(np.where(holes, np.nan, X), axis=0), X.shape)
    error, baseline = (np.abs(guess - X)[holes].mean() for guess in (back, means))
    assert error < 0.3 * baseline


def test_the_rank_is_chosen_with_hidden_entries():
    from polyad.selection import select_rank

    X = planted(n_samples=40, n_features=40, n_components=2, seed=1)
    found = select_rank(
        QMF(n_quantiles=8, max_iter=30), X, ranks=[1, 2], random_state=0, n_repeats=2
    )
    assert found.best_rank == 2


# Endings and going on.


def test_ctrl_c_keeps_the_best_state():
    def interrupt(iteration):
        if iteration.number == 7:
            raise KeyboardInterrupt

    model = QMF(2, random_state=0, callbacks=interrupt).fit(small())
    assert model.status_ is Status.INTERRUPTED
    assert model.n_iter_ == 7
    assert model.objective_ <= min(model.history_.objective)
    assert model.transform(small()).shape == (15, 2)


def test_a_warm_start_goes_on():
    X = small()
    model = QMF(2, random_state=0, max_iter=60, warm_start=True, tol=0).fit(X)
    first, last = model.objective_, model.history_.objective[-1]
    model.fit(X)
    assert model.history_.objective[0] == pytest.approx(last, rel=1e-6)
    assert model.objective_ < first


# Types, labels, files.


def test_tables_and_labels():
    X = small(n_samples=6, n_features=3)
    frame = pd.DataFrame(X, index=list("uvwxyz"), columns=["a", "b", "c"])
    model = QMF(2, random_state=0, max_iter=10).set_output(transform="pandas")
    features = model.fit_transform(frame)
    assert list(features.index) == list("uvwxyz")
    assert list(features.columns) == ["qmf0", "qmf1"]
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert list(model.quantile_table().index) == ["a", "b", "c"]
    assert list(model.factor_table(1).index) == ["a", "b", "c"]
    pd.testing.assert_frame_equal(model.transform_table("b"), model.transform_table(1))
    tensor = LabelledTensor(X, modes=("patient", "gene"), labels=[list("uvwxyz"), ["a", "b", "c"]])
    labelled = QMF(2, random_state=0, max_iter=10).fit(tensor)
    assert list(labelled.factor_table("patient").index) == list("uvwxyz")
    turned = LabelledTensor(X[:, ::-1], modes=("patient", "gene"), labels=[None, ["c", "b", "a"]])
    np.testing.assert_allclose(labelled.transform(turned), labelled.transform(tensor))


class LogCosh:
    """A divergence of one's own, without a curvature."""

    def value(self, x, y):
        return np.log(np.cosh(x - y))

    def derivative(self, x, y):
        return np.tanh(y - x)


def test_a_divergence_of_ones_own():
    X = small()
    X = X / X.max(axis=0)
    model = QMF(2, divergence=LogCosh(), random_state=0, max_iter=80).fit(X - 0.5)
    assert min(model.history_.objective) < 0.5 * model.history_.objective[0]
    features = model.transform(X - 0.5)
    np.testing.assert_allclose(
        features, model.factors_[0] * model.weights_, atol=1e-4 * features.max()
    )


@hypothesis_settings(max_examples=10)
@given(
    st.integers(2, 7),
    st.integers(1, 6),
    st.integers(2, 9),
    st.sampled_from([1e-9, 1.0, 1e9]),
    st.integers(0, 10**6),
)
def test_any_matrix_gives_finite_numbers(n, d, m, scale, seed):
    rng = np.random.default_rng(seed)
    X = scale * rng.gamma(0.2, size=(n, d)) * (rng.random((n, d)) < 0.8)
    if not (X > 1e-100).any():
        X[0, 0] = scale
    model = QMF(1, n_quantiles=m, random_state=0, max_iter=4).fit(X)
    assert np.isfinite(model.inverse_transform(model.transform(X))).all()
    assert np.isfinite(model.objective_)
    assert model.reconstruction_err_ >= 0


def test_transforms_are_drawn():
    from polyad import CP
    from polyad.exceptions import InvalidInputError, InvalidTypeError
    from polyad.report import plot_transforms

    frame = pd.DataFrame(small(n_features=6), columns=list("abcdef"))
    model = QMF(2, random_state=0, max_iter=5).fit(frame)
    figure = plot_transforms(model, features=["e", 0])
    assert [panel.get_title() for panel in figure.axes] == ["e", "a"]
    line = figure.axes[0].lines[1]
    np.testing.assert_allclose(line.get_ydata(), model.transform_table("e")["after"])
    strongest = model.quantile_table()["inflation"].abs().idxmax()
    assert plot_transforms(model, max_features=5).axes[0].get_title() == strongest
    for one in ("e", 4):
        assert [panel.get_title() for panel in plot_transforms(model, features=one).axes] == ["e"]
    for few in (0, -1):
        with pytest.raises(InvalidInputError, match="Nothing to draw"):
            plot_transforms(model, max_features=few)
    with pytest.raises(InvalidTypeError, match="CP learns no transforms"):
        plot_transforms(CP(2, max_iter=2).fit(frame))
