"""PoissonCP as a user sees it."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_tweedie_score

from polyad import KruskalTensor, LabelledTensor, PoissonCP, Status, factor_match_score, load
from polyad.exceptions import DataWarning
from tests.cp.poisson.reference import divergence

SOLVERS = ["mu", "pdnr"]
each_solver = pytest.mark.parametrize("solver", SOLVERS)


def planted(shape=(30, 20, 10), rank=3, size=1.0, seed=0):
    generator = np.random.default_rng(seed)
    factors = [generator.gamma(0.5, 1.0, (n, rank)) for n in shape]
    truth = KruskalTensor(np.full(rank, size), factors)
    return generator.poisson(truth.to_dense()).astype(float), truth


X, TRUTH = planted()


def features(model):
    return model.factors_[0] * model.weights_


@each_solver
def test_planted_components_are_found(solver):
    data, truth = planted(size=1000.0)
    model = PoissonCP(3, solver=solver, n_init=3, random_state=0, tol=1e-8).fit(data)
    assert factor_match_score(model.kruskal_, truth) > 0.98
    assert model.score(data) > 0.99
    assert model.status_ is Status.CONVERGED


@each_solver
def test_noiseless_data_is_fitted_to_rounding(solver):
    data = TRUTH.to_dense()
    start = [factor + 0.01 for factor in TRUTH.factors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = PoissonCP(3, solver=solver, init=start, max_iter=3000, tol=1e-12).fit(data)
    assert model.objective_ < 1e-4 * data.sum()
    assert model.status_ in (Status.CONVERGED, Status.MAX_ITER)


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.floats(0.05, 50.0),
    st.sampled_from(SOLVERS),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_the_objective_never_rises(seed, shape, mean, solver, holes):
    """Also with zeros in the start, empty slices and missing entries."""
    generator = np.random.default_rng(seed)
    data = generator.poisson(mean * generator.gamma(0.3, 1.0, shape)).astype(float)
    data[0] = 0
    data.flat[-1] = 3.0
    if holes:
        data[generator.random(shape) < 0.2] = np.nan
    if not np.nansum(data):
        return
    rank = min(3, data.size // max(shape))
    start = [generator.random((n, rank)) * (generator.random((n, rank)) < 0.8) for n in shape]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = PoissonCP(rank, solver=solver, init=start, max_iter=20, tol=0, inner_iter=4)
        model.fit(data)
    values = np.array(model.history_.objective)
    rounding = 64 * 2.0**-52 * (np.nansum(data) + values[:-1])
    assert (np.diff(values) <= rounding).all()
    assert all((factor >= 0).all() for factor in model.factors_)
    assert np.isfinite(model.kruskal_.to_dense()).all()


@each_solver
def test_the_history_has_violations_and_inner_sweeps(solver):
    model = PoissonCP(3, solver=solver, random_state=0, tol=1e-10, max_iter=2000).fit(X)
    table = model.history_.to_frame()
    assert table["kkt"].iloc[0] > 0.1
    assert table["kkt"].iloc[-1] < 0.1 * table["kkt"].iloc[0]
    assert table["inner_iter"].iloc[0] == 0
    assert table["inner_iter"].iloc[1:].between(1, 30).all()


@each_solver
def test_objective_is_the_divergence_of_the_model(solver):
    model = PoissonCP(3, solver=solver, random_state=0).fit(X)
    value = divergence(X, model.kruskal_.to_dense())
    assert value == pytest.approx(model.objective_, rel=1e-8)


@each_solver
@pytest.mark.parametrize("shape", [(40, 15), (12, 9, 8), (7, 6, 5, 4)])
def test_transform_equals_fit_transform(solver, shape):
    data, _ = planted(shape, 2, size=20.0)
    model = PoissonCP(2, solver=solver, random_state=0)
    fitted = model.fit_transform(data)
    np.testing.assert_allclose(model.transform(data), fitted, rtol=1e-6, atol=1e-6 * fitted.max())
    np.testing.assert_allclose(model.transform(data[3:5]), model.transform(data)[3:5])
    assert model.inverse_transform(fitted).shape == shape


def test_features_minimise_the_deviance_of_new_samples():
    model = PoissonCP(3, random_state=0).fit(X[:20])
    rows = model.transform(X[20:])
    assert (rows >= 0).all()
    best = divergence(X[20:], model.inverse_transform(rows))
    generator = np.random.default_rng(1)
    for _ in range(20):
        other = np.maximum(0, rows + 0.1 * generator.standard_normal(rows.shape))
        assert divergence(X[20:], model.inverse_transform(other)) > best


def test_score_is_the_explained_deviance():
    model = PoissonCP(3, random_state=0).fit(X)
    predicted = model.inverse_transform(model.transform(X))
    expected = d2_tweedie_score(X.ravel(), np.maximum(predicted, 1e-300).ravel(), power=1)
    assert model.score(X) == pytest.approx(expected, rel=1e-10)
    assert model.score(coo_array(X)) == pytest.approx(expected, rel=1e-10)


def test_score_of_constant_data():
    model = PoissonCP(1, random_state=0).fit(np.full((4, 3), 2.0))
    assert model.score(np.full((4, 3), 2.0)) == 1.0
    model = PoissonCP(2, random_state=0).fit(X[:, :, 0])
    assert model.score(np.zeros_like(X[:, :, 0])) == 1.0


@each_solver
def test_zero_slices_give_zero_rows(solver):
    data = X.copy()
    data[4] = 0
    data[:, 3] = 0
    data[:, :, 2] = 0
    model = PoissonCP(3, solver=solver, random_state=0).fit(data)
    for mode, row in ((0, 4), (1, 3), (2, 2)):
        assert not model.factors_[mode][row].any()
    assert not model.transform(data)[4].any()


def test_all_zero_data_warns_and_gives_zeros():
    with pytest.warns(DataWarning, match="every entry is zero"):
        model = PoissonCP(2, random_state=0).fit(np.zeros((4, 3, 2)))
    assert not model.kruskal_.to_dense().any()
    assert model.objective_ == 0.0


@each_solver
def test_float32(solver):
    wide = PoissonCP(3, solver=solver, random_state=0).fit(X)
    narrow = PoissonCP(3, solver=solver, random_state=0).fit(X.astype(np.float32))
    assert all(factor.dtype == np.float32 for factor in (*narrow.factors_, narrow.weights_))
    assert narrow.transform(X.astype(np.float32)).dtype == np.float32
    assert narrow.history_.objective == wide.history_.objective  # counts are exact in float32
    np.testing.assert_allclose(narrow.factors_[1], wide.factors_[1], atol=1e-5)
    fitted = features(narrow)
    np.testing.assert_allclose(
        narrow.transform(X.astype(np.float32)), fitted, atol=1e-4 * fitted.max()
    )


@pytest.mark.parametrize("unit", [1e-100, 1e-6, 1e6, 1e100])
def test_the_unit_of_the_data_changes_the_weights_only(unit):
    one = PoissonCP(3, random_state=0).fit(X)
    other = PoissonCP(3, random_state=0).fit(X * unit)
    assert other.n_iter_ == one.n_iter_
    np.testing.assert_allclose(other.weights_ / unit, one.weights_, rtol=1e-6)
    np.testing.assert_allclose(other.factors_[2], one.factors_[2], atol=1e-7)


@each_solver
def test_missing_entries_are_left_out(solver):
    data, truth = planted(size=300.0)
    hidden = np.random.default_rng(2).random(data.shape) < 0.3
    holes = np.where(hidden, np.nan, data)
    model = PoissonCP(3, solver=solver, n_init=2, random_state=0, tol=1e-8, max_iter=2000)
    model.fit(holes)
    assert factor_match_score(model.kruskal_, truth) > 0.98
    fitted = features(model)
    np.testing.assert_allclose(model.transform(holes), fitted, atol=1e-6 * fitted.max())
    by_mask = PoissonCP(3, solver=solver, n_init=2, random_state=0, tol=1e-8, max_iter=2000)
    by_mask.fit(data, mask=~hidden)
    assert np.array_equal(by_mask.factors_[1], model.factors_[1])
    coords = np.nonzero(~hidden)
    stored = coo_array((data[coords], coords), shape=data.shape)
    sparse = by_mask.set_params(missing="unobserved").fit(stored)
    assert sparse.objective_ == pytest.approx(model.objective_, rel=1e-6)


def test_a_sample_without_observations_has_no_features():
    holes = X.copy()
    holes[5] = np.nan
    model = PoissonCP(3, random_state=0).fit(holes)
    assert np.isfinite(model.kruskal_.to_dense()).all()
    assert not model.transform(holes)[5].any()


@each_solver
def test_fixed_modes_stay_as_given(solver):
    generator = np.random.default_rng(0)
    start = [generator.random((30, 3)), 7 * TRUTH.factors[1], generator.random((10, 3))]
    model = PoissonCP(3, solver=solver, init=start, fixed_modes=[1], tol=1e-8).fit(X)
    assert np.array_equal(model.factors_[1], start[1])
    fitted = features(model)
    np.testing.assert_allclose(model.transform(X), fitted, atol=1e-6 * fitted.max())
    value = divergence(X, model.kruskal_.to_dense())
    assert value == pytest.approx(model.objective_, rel=1e-4)
    first = PoissonCP(3, solver=solver, init=start, fixed_modes=[0, -1], tol=1e-8).fit(X)
    assert np.array_equal(first.factors_[0], start[0])
    assert divergence(X, first.kruskal_.to_dense()) == pytest.approx(first.objective_, rel=1e-8)


def test_warm_start_goes_on():
    with pytest.warns(ConvergenceWarning):
        model = PoissonCP(3, random_state=0, max_iter=3, tol=1e-9, warm_start=True).fit(X)
    before = model.objective_
    model.set_params(max_iter=2000).fit(X)
    assert model.history_.objective[0] <= before * (1 + 1e-10)
    assert model.objective_ < before
    with pytest.raises(ValueError, match=r"Use warm_start=False"):
        model.fit(X[:5])


def test_one_component_is_the_product_of_the_margins_from_one_start():
    X = np.random.default_rng(0).poisson(1.0, (6, 5, 4)).astype(float)
    model = PoissonCP(1, tol=1e-12, random_state=0).fit(X)
    margins = [X.sum(axis=tuple({0, 1, 2} - {mode})) for mode in range(3)]
    expected = np.einsum("i,j,k->ijk", *margins) / X.sum() ** 2
    np.testing.assert_allclose(model.kruskal_.to_dense(), expected, rtol=1e-9)
    assert [start["kind"] for start in model.history_.starts] == ["svd"]
    X[0, 0, 0] = np.nan  # where cells are missing, there may be several minima
    assert len(PoissonCP(1, random_state=0).fit(X).history_.starts) == 3


def test_more_starts_are_not_worse():
    one = PoissonCP(3, random_state=0).fit(X)
    many = PoissonCP(3, random_state=0, n_init=4).fit(X)
    assert many.objective_ <= one.objective_


@each_solver
def test_save_and_load(tmp_path, solver):
    model = PoissonCP(3, solver=solver, random_state=0, inner_iter=5).fit(X)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again, PoissonCP)
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.transform(X), model.transform(X))
    assert again.history_.records == model.history_.records


def test_torch_comes_in_and_numpy_goes_out():
    model = PoissonCP(3, random_state=0).fit(torch.tensor(X))
    assert isinstance(model.factors_[0], np.ndarray)
    assert isinstance(model.transform(torch.tensor(X)), np.ndarray)
    assert np.array_equal(model.factors_[1], PoissonCP(3, random_state=0).fit(X).factors_[1])


def test_labels_are_kept_and_new_samples_matched():
    names = [f"word {k}" for k in range(20)]
    data = LabelledTensor(X, modes=["day", "word", "place"], labels={"word": names})
    model = PoissonCP(3, random_state=0).fit(data)
    assert set(model.top(0, "word", 3).index) <= set(names)
    order = np.random.default_rng(0).permutation(20)
    turned = LabelledTensor(
        X[:, order], modes=["day", "word", "place"], labels={"word": [names[k] for k in order]}
    )
    np.testing.assert_allclose(model.transform(turned), model.transform(data), rtol=1e-6)
