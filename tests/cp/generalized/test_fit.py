"""GeneralizedCP as a user sees it."""

import warnings

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_log_loss_score, d2_tweedie_score

from polyad import (
    CP,
    GeneralizedCP,
    KruskalTensor,
    LabelledTensor,
    Status,
    factor_match_score,
    load,
)
from polyad.exceptions import DataWarning, PolyadError
from polyad.losses import BetaDivergenceLoss, CustomLoss, HuberLoss, NegativeBinomialLoss
from polyad.losses.names import read_loss
from tests.cp.generalized.examples import (
    COSH,
    LOSS,
    NAMES,
    TAKES_ZERO,
    data_for,
    factors_for,
    planted,
    twin,
)

each_loss = pytest.mark.parametrize("name", NAMES)


def fitted(name, data, *, ignore=True, **parameters):
    loss = COSH if name == "custom" else name
    model = GeneralizedCP(**{"n_components": 2, "loss": loss, "random_state": 0, **parameters})
    with warnings.catch_warnings():
        if ignore:
            warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(data)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("bernoulli")])
def test_planted_components_are_found(name):
    data, truth = planted(name, (9, 8, 7), rank=2)
    model = fitted(name, data, n_init=2, max_iter=800)
    assert factor_match_score(model.kruskal_, truth) > 0.99
    assert model.score(data) > 0.999


@pytest.mark.parametrize("name", ["bernoulli-odds", "bernoulli-logit"])
def test_planted_components_of_binary_data_are_found(name):
    """One bit for each entry, so the data is larger and the match a little looser."""
    generator = np.random.default_rng(0)
    shape = (50, 40, 30)
    if name == "bernoulli-odds":
        factors = [(generator.random((n, 2)) < 0.4) * 2.9 + 0.1 for n in shape]
    else:
        factors = [1.5 * generator.standard_normal((n, 2)) for n in shape]
    chance = LOSS[name].mean(np.einsum("ir,jr,kr->ijk", *factors))
    model = fitted(name, generator.random(shape) < chance, ridge=0.1)
    assert factor_match_score(model.kruskal_, (np.ones(2), factors)) > 0.97


@each_loss
@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_the_objective_never_rises(name, ridge):
    model = fitted(name, data_for(name), max_iter=20, tol=0, ridge=ridge)
    values = np.array(model.history_.objective)
    assert (np.diff(values) <= 0).all()
    assert values[-1] < values[0]
    assert model.history_.to_frame()["evaluations"].iloc[-1] <= 2 * 20
    if LOSS[name].lower == 0:
        assert all((factor >= 0).all() for factor in model.factors_)


@each_loss
def test_objective_is_the_sum_of_the_loss_and_the_ridge(name):
    X = data_for(name)
    start = factors_for(name, rank=2)
    model = fitted(name, X, init=start, max_iter=1, ridge=0.3)
    lengths = np.prod([np.linalg.norm(factor, axis=0) for factor in start], axis=0)
    square = 3 * np.sum(lengths ** (2 / 3))  # the columns of a component are equally long
    expected = twin(LOSS[name], X, start)[0] + 0.15 * square
    assert model.history_.objective[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, (9, 7, 6)) for name in NAMES),
        *((name, (14, 9)) for name in NAMES[::3]),
        *((name, (6, 4, 3, 3)) for name in NAMES[1::3]),
    ],
)
def test_transform_equals_fit_transform(name, shape):
    X = data_for(name, shape)
    loss = COSH if name == "custom" else name
    model = GeneralizedCP(2, loss=loss, random_state=0, ridge=0.05, max_iter=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        features = model.fit_transform(X)
    scale = np.abs(features).max()
    np.testing.assert_allclose(model.transform(X), features, atol=1e-7 * scale)
    np.testing.assert_allclose(model.transform(X[2:5]), features[2:5], atol=1e-7 * scale)
    assert model.inverse_transform(features).shape == shape


@each_loss
def test_observed_sparse_equals_masked_dense(name):
    X = data_for(name)
    observed = np.random.default_rng(3).random(X.shape) < 0.7
    stored = coo_array((X[observed], np.nonzero(observed)), shape=X.shape)
    dense = fitted(name, np.where(observed, X, np.nan), max_iter=6, tol=0)
    other = GeneralizedCP(2, loss=dense.loss, random_state=0, max_iter=6, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        masked = clone(other).fit(X, mask=observed)
        sparse = other.set_params(missing="unobserved").fit(stored)
    np.testing.assert_allclose(sparse.history_.objective[1:4], dense.history_.objective[1:4])
    assert sparse.objective_ == pytest.approx(dense.objective_, rel=1e-3)
    assert masked.history_.objective == dense.history_.objective
    assert sparse.score(stored) == pytest.approx(
        dense.score(np.where(observed, X, np.nan)), abs=1e-3
    )


@pytest.mark.parametrize("name", TAKES_ZERO)
def test_sparse_with_zeros_equals_dense(name):
    X = data_for(name)
    dense = fitted(name, X, max_iter=6, tol=0)
    sparse = fitted(name, coo_array(X), max_iter=6, tol=0)
    np.testing.assert_allclose(sparse.history_.objective[:5], dense.history_.objective[:5])
    assert sparse.score(coo_array(X)) == pytest.approx(dense.score(X), abs=1e-3)
    features = sparse.transform(coo_array(X))
    np.testing.assert_allclose(features, sparse.transform(X), atol=1e-6 * np.abs(features).max())


@pytest.mark.parametrize("power", [-12, 12])
@pytest.mark.parametrize("name", ["gaussian", "poisson", "gamma", "rayleigh", "beta", "huber"])
def test_data_of_any_size(name, power):
    X, unit = data_for(name), 10.0**power
    loss = LOSS[name]
    plain = fitted(name, X, max_iter=12, tol=0)
    model = GeneralizedCP(2, loss=loss.divided(1 / unit), random_state=0, max_iter=12, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X * unit)
    np.testing.assert_allclose(
        np.array(model.history_.objective[:3]) / unit**loss.degree,
        plain.history_.objective[:3],
        rtol=1e-5,
    )
    assert model.score(X * unit) == pytest.approx(plain.score(X), abs=1e-2)
    assert np.isfinite(model.transform(X * unit)).all()


@pytest.mark.parametrize("count", [1e-12, 1e12])
@pytest.mark.parametrize("name", ["poisson-log", "negative-binomial"])
def test_counts_of_any_size(name, count):
    X = data_for("poisson") * count
    model = fitted(name, X, max_iter=200)
    assert np.isfinite(model.objective_)
    assert np.isfinite(model.transform(X)).all()
    assert model.score(X) > 0 or count < 1


@given(st.integers(0, 10**6), st.sampled_from(NAMES), st.integers(0, 2))
@settings(max_examples=10)
def test_slices_of_one_value(seed, name, mode):
    """Slices of zeros, or of the least that a loss accepts, and missing entries break nothing."""
    X = data_for(name, (5, 4, 3), seed)
    low = 0.0 if name in TAKES_ZERO else 1e-6
    X[(slice(None),) * mode + (1,)] = low
    X[0, 0, 0] = np.nan
    if name.startswith("bernoulli") and not 0 < np.nanmean(X) < 1:
        return
    model = fitted(name, X, max_iter=10, ridge=1e-3)
    assert np.isfinite(model.objective_)
    assert np.isfinite(model.transform(X)).all()
    assert all(np.isfinite(factor).all() for factor in model.factors_)


@pytest.mark.parametrize("name", ["poisson", "gaussian", "beta", "negative-binomial", "huber"])
def test_only_zeros(name):
    with pytest.warns(DataWarning, match="every entry is zero"):
        model = GeneralizedCP(1, loss=name).fit(np.zeros((4, 3, 2)))
    assert np.abs(model.kruskal_.to_dense()).max() < 1e-8
    assert model.score(np.zeros((4, 3, 2))) == 1.0


@pytest.mark.parametrize("name", ["bernoulli-odds", "bernoulli-logit"])
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning")
def test_certain_data(name, value):
    X = np.full((5, 4, 3), value)
    model = fitted(name, X, n_components=1, max_iter=100)
    assert np.abs(model.inverse_transform(model.transform(X)) - value).max() < 1e-2
    assert np.isfinite(model.objective_)


def test_a_slice_without_observations_is_told():
    X = data_for("gamma")
    X[:, 2] = np.nan
    with pytest.warns(DataWarning, match="position 2 of mode 1"):
        model = fitted("gamma", X)
    assert (model.factors_[1][2] == 0).all()


@pytest.mark.parametrize(
    ("convert", "name"),
    [
        *((array_api_strict.asarray, name) for name in NAMES if name != "custom"),
        *((torch.asarray, name) for name in ("gaussian", "poisson-log", "bernoulli-odds")),
    ],
)
def test_other_arrays_in_and_out(convert, name):
    X = data_for(name)
    X[0, 1, 2] = np.nan
    plain = fitted(name, X, max_iter=2, tol=0)
    model = fitted(name, convert(X), max_iter=2, tol=0)
    features = model.transform(convert(X))
    for result in (model.factors_[1], model.weights_, features, model.inverse_transform(features)):
        assert type(result) is type(convert(X))
    np.testing.assert_allclose(model.history_.objective, plain.history_.objective, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(features), plain.transform(X), rtol=1e-4, atol=1e-6)
    assert model.score(convert(X)) == pytest.approx(plain.score(X), abs=1e-8)


@pytest.mark.parametrize("kind", [np.asarray, coo_array, torch.asarray])
def test_single_precision_is_kept(kind):
    X = data_for("poisson").astype(np.float32)
    model = fitted("poisson", kind(X), max_iter=8)
    same = fitted("poisson", X.astype(np.float64), max_iter=8)
    for array in (*model.factors_, model.weights_, model.transform(kind(X))):
        assert str(array.dtype).endswith("float32")
    np.testing.assert_allclose(np.asarray(model.weights_), same.weights_, rtol=1e-2)


def test_gaussian_loss_is_least_squares():
    data, _ = planted("gaussian")
    data = data + 0.1 * np.random.default_rng(0).standard_normal(data.shape)
    squares = CP(3, random_state=0, tol=1e-10).fit(data)
    model = fitted("gaussian", data, n_components=3, init="svd", tol=1e-10)
    assert model.objective_ == pytest.approx(squares.objective_, rel=1e-6)
    assert factor_match_score(model.kruskal_, squares.kruskal_) > 0.999


def test_huber_ignores_outliers():
    data, truth = planted("huber")
    generator = np.random.default_rng(0)
    data = np.where(generator.random(data.shape) < 0.05, 30.0, data)
    squares = CP(3, random_state=0).fit(data)
    model = fitted("huber", data, n_components=3, loss=HuberLoss(0.1), n_init=3)
    assert factor_match_score(model.kruskal_, truth) > 0.99
    assert factor_match_score(squares.kruskal_, truth) < 0.95


def test_huber_can_be_kept_from_being_negative():
    generator = np.random.default_rng(0)
    factors = [generator.random((n, 2)) * (generator.random((n, 2)) < 0.6) for n in (20, 12, 10)]
    truth = KruskalTensor(np.array([5.0, 5.0]), factors)
    data = truth.to_dense() + 0.1 * generator.standard_normal((20, 12, 10))
    data = np.where(generator.random(data.shape) < 0.05, 100.0, data)
    free = fitted("huber", data, n_components=2, loss=HuberLoss(0.2))
    bounded = fitted("huber", data, n_components=2, loss=HuberLoss(0.2, nonnegative=True), n_init=3)
    assert min(factor.min() for factor in free.factors_) < 0
    assert min(factor.min() for factor in bounded.factors_) >= 0
    assert (bounded.transform(data) >= 0).all()
    assert factor_match_score(bounded.kruskal_, truth) > 0.98


@pytest.mark.parametrize("kind", [np.asarray, coo_array, torch.asarray, "missing"])
def test_huber_starts_at_the_size_of_what_is_no_outlier(kind):
    data, truth = planted("huber", (14, 12, 10), rank=2)
    generator = np.random.default_rng(0)
    data = np.where(generator.random(data.shape) < 0.01, 1e7, data)
    if kind == "missing":
        data = np.where(generator.random(data.shape) < 0.1, np.nan, data)
    given = data if kind == "missing" else kind(data)
    if kind is torch.asarray:  # whose small operations are slow
        both = [fitted("huber", X, loss=HuberLoss(0.1), max_iter=2) for X in (data, given)]
        assert both[1].history_.objective == pytest.approx(both[0].history_.objective)
        return
    model = fitted("huber", given, loss=HuberLoss(0.1), n_init=2)
    assert factor_match_score(model.kruskal_, truth) > 0.99


def test_scores_are_those_of_scikit_learn():
    X = data_for("gamma")
    model = fitted("gamma", X)
    expected = model.inverse_transform(model.transform(X))
    assert model.score(X) == pytest.approx(d2_tweedie_score(X.ravel(), expected.ravel(), power=2))
    X = data_for("poisson")
    model = fitted("poisson", X)
    expected = np.maximum(model.inverse_transform(model.transform(X)), 1e-10)
    theirs = d2_tweedie_score(X.ravel(), expected.ravel(), power=1)
    assert model.score(X) == pytest.approx(theirs, abs=1e-6)
    X = data_for("bernoulli-logit")
    model = fitted("bernoulli-logit", X, ridge=0.5)
    expected = model.inverse_transform(model.transform(X))
    assert model.score(X) == pytest.approx(d2_log_loss_score(X.ravel(), expected.ravel()), abs=1e-6)


def test_inverse_transform_gives_the_mean():
    X = data_for("bernoulli-odds")
    model = fitted("bernoulli", X, ridge=0.1)
    features = model.transform(X)
    odds = np.einsum("nr,rjk->njk", features, model.components_)
    np.testing.assert_allclose(model.inverse_transform(features), odds / (1 + odds))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", [np.asarray, torch.asarray, array_api_strict.asarray])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_beyond_the_number_type_are_its_largest_number(dtype, kind, own):
    rows, loadings = np.array([[1.0], [2.0]]), np.array([[1.0], [-1.0]])
    X = kind(np.exp(rows @ loadings.T).astype(dtype))
    log_mean = read_loss("poisson-log")
    loss = CustomLoss(log_mean.value, log_mean.derivative, mean=np.exp) if own else log_mean
    model = fitted(loss, X, n_components=1, init=[rows, loadings], fixed_modes=[1], max_iter=2)
    values = np.array([[0.0], [1.0], [-1e4]], dtype=dtype)
    with pytest.warns(DataWarning, match="1 of 6 means are above .* ridge above zero") as heard:
        means = model.inverse_transform(kind(values))
    assert len(heard) == 1
    means = np.asarray(means)
    assert means.dtype == dtype
    logarithms = values[:2] @ np.asarray(model.components_)
    np.testing.assert_allclose(means[:2], np.exp(logarithms), rtol=1e-6)
    assert sorted(means[2]) == [0.0, np.finfo(dtype).max]


def test_fixed_modes_and_warm_start():
    X, start = data_for("poisson"), factors_for("poisson", rank=2)
    model = fitted("poisson", X, init=start, fixed_modes=[1])
    assert np.array_equal(model.factors_[1], start[1])
    again = fitted("poisson", X, warm_start=True, max_iter=5)
    before = again.objective_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        again.fit(X)
    assert again.history_.objective[0] <= before * (1 + 1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        *("gamma", "bernoulli", HuberLoss(0.3), HuberLoss(0.3, nonnegative=True)),
        *(BetaDivergenceLoss(1.5), NegativeBinomialLoss(2.0)),
    ],
    ids=str,
)
def test_save_and_load(tmp_path, loss):
    name = loss if isinstance(loss, str) else loss.name
    X = data_for("bernoulli-odds" if name == "bernoulli" else name) * 1.0
    model = fitted(name, X, loss=loss, max_iter=5)
    model.save(tmp_path / "model")
    same = load(tmp_path / "model")
    assert same.loss == loss
    assert same.transform(X).tobytes() == model.transform(X).tobytes()
    assert same.score(X) == model.score(X)


def test_a_custom_loss_is_set_again_after_loading(tmp_path):
    X = data_for("custom")
    model = fitted("custom", X)
    model.save(tmp_path / "model")
    same = load(tmp_path / "model")
    with pytest.raises(PolyadError, match=r"set_params\(loss=CustomLoss"):
        same.transform(X)
    same.set_params(loss=COSH)
    assert np.array_equal(same.transform(X), model.transform(X))


def test_labels():
    X = LabelledTensor(
        data_for("gamma", (3, 4, 2)),
        modes=["patient", "drug", "month"],
        labels=[["a", "b", "c"], list("wxyz"), ["May", "June"]],
    )
    model = fitted("gamma", X)
    assert model.factor_table("drug").index.tolist() == list("wxyz")
    shuffled = X.align({"drug": list("zyxw")})
    np.testing.assert_allclose(model.transform(shuffled), model.transform(X), rtol=1e-9)
    model.set_output(transform="pandas")
    assert model.transform(X).index.tolist() == ["a", "b", "c"]
    model.data = X.data.copy()
    X.data[2, 1, 0] = -4.0
    with pytest.raises(
        PolyadError,
        match=r"first -4 at \(2, 1, 0\) \(mode 0 \('patient'\): c, mode 1 \('drug'\): x",
    ):
        model.transform(X)


def test_a_custom_loss_with_a_bound():
    """The Poisson loss, written by a user."""
    loss = CustomLoss(
        lambda x, m: m - x * np.log(m + 1e-10),
        lambda x, m: 1 - x / (m + 1e-10),
        lower=0.0,
        accepts=lambda x: x >= 0,
    )
    X = data_for("poisson")
    own = fitted("custom", X, loss=loss, init=factors_for("poisson", rank=2), tol=1e-10)
    model = fitted("poisson", X, init=factors_for("poisson", rank=2), tol=1e-10)
    assert factor_match_score(own.kruskal_, model.kruskal_) > 0.999
    assert own.score(X) != pytest.approx(1.0)
    np.testing.assert_allclose(own.transform(X), model.transform(X), rtol=1e-2, atol=1e-3)
    with pytest.raises(PolyadError, match="what its accepts function says"):
        own.transform(-X)


@pytest.mark.parametrize("solver", ["lbfgs", "adam"])
def test_a_custom_loss_below_zero_is_fitted(solver):
    """Large counts make ``m - x log m`` negative, which is no reason to stop."""
    loss = CustomLoss(
        lambda x, m: m - x * np.log(m + 1e-10), lambda x, m: 1 - x / (m + 1e-10), lower=0.0
    )
    X = 100.0 * data_for("poisson")
    X = coo_array(X) if solver == "adam" else X
    start = factors_for("poisson", rank=2)
    own = fitted("custom", X, loss=loss, init=start, solver=solver)
    model = fitted("poisson", X, init=start, solver=solver)
    assert own.history_.objective[0] > own.objective_
    assert own.objective_ < 0
    assert own.n_iter_ > 5
    assert factor_match_score(own.kruskal_, model.kruskal_) > 0.9


def test_convergence_is_told():
    X = data_for("gamma")
    assert fitted("gamma", X, ignore=False).status_ is Status.CONVERGED
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        fitted("gamma", X, ignore=False, max_iter=2)


def test_many_cells_are_sampled():
    """A tensor that could not exist densely, with a loss that has no closed form for zeros."""
    generator = np.random.default_rng(0)
    shape = (30, 3000, 3000)
    coords = tuple(generator.integers(0, n, 2000) for n in shape)
    X = coo_array((np.ones(2000), coords), shape=shape)
    X.sum_duplicates()
    X.data[:] = 1.0
    model = GeneralizedCP(2, loss="bernoulli", random_state=0, max_iter=2, epoch_iter=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)
    assert np.isfinite(model.objective_)
    some = coo_array((X.data[:9], [row[:9] for row in X.coords]), shape=X.shape)
    assert np.isfinite(model.transform(some)).all()
    assert np.isfinite(model.score(X))
    with pytest.raises(PolyadError, match="Use solver='adam'"):
        model.set_params(solver="lbfgs").fit(X)
    with pytest.raises(PolyadError, match="Use solver='lbfgs'"):
        model.set_params(solver="adam").fit(data_for("bernoulli-odds"))


@pytest.mark.parametrize("loss", [HuberLoss(1.0), "poisson-log", "negative-binomial"])
def test_scores_of_large_data_compare_sums_of_the_loss(loss):
    X = 1e12 * data_for("gamma")
    model = GeneralizedCP(2, loss=loss, random_state=0).fit(X)
    own = read_loss(loss)
    features = model.transform(X)
    m = np.einsum("nr,rjk->njk", features, model.components_)
    best = {"huber": np.median(X), "poisson-log": np.log(X.mean())}.get(own.name, X.mean())
    expected = 1 - own.value(X, m).sum() / own.value(X, np.full_like(X, best)).sum()
    assert 0.01 < expected < 0.99
    assert model.score(X) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("loss", ["poisson-log", "bernoulli", "bernoulli-logit"])
def test_data_that_is_all_zero_is_explained_without_warnings_of_numpy(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", DataWarning)
        model = fitted(loss, np.zeros((8, 5, 4)))
    assert model.score(np.zeros((3, 5, 4))) == 1.0


@pytest.mark.parametrize("seed", range(2))
def test_steps_of_very_different_length_do_not_break_the_fit(seed):
    generator = np.random.default_rng(seed)
    data = 1e12 * generator.gamma(1.0, size=(8, 5, 4)) * (generator.random((8, 5, 4)) < 0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = GeneralizedCP(2, loss="negative-binomial", random_state=seed).fit(coo_array(data))
    assert model.score(coo_array(data)) > 0.05
