import tracemalloc

import numpy as np
import pytest
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning

from polyad import CP, NonnegativeCP, factor_match_score
from polyad.cp import problem
from polyad.cp.rules import LeastSquares
from polyad.cp.start import random_start
from polyad.datasets import make_low_rank
from polyad.exceptions import DataWarning, InvalidInputError


def holes(X, share, seed=0):
    return np.random.default_rng(seed).random(X.shape) < share


def weighted_als_twin(X, observed, factors, n_iter):
    """Each row by its own least squares over its observed entries."""
    factors = [f.copy() for f in factors]
    for _ in range(n_iter):
        for mode in (*range(1, X.ndim), 0):
            others = [factors[k] for k in range(X.ndim) if k != mode]
            design = np.einsum("jr,kr->jkr", *others).reshape(-1, factors[0].shape[1])
            for i in range(X.shape[mode]):
                seen = np.take(observed, i, axis=mode).ravel()
                target = np.take(X, i, axis=mode).ravel()[seen]
                if seen.any():
                    factors[mode][i] = np.linalg.lstsq(design[seen], target, rcond=None)[0]
    return np.einsum("ir,jr,kr->ijk", *factors)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("form", ["nan", "mask", "sparse"])
def test_fit_is_to_the_observed_entries_exactly(form):
    X = make_low_rank((9, 8, 7), 2, noise=0.2, random_state=0)[0]
    missing = holes(X, 0.4)
    generator = np.random.default_rng(1)
    start = [generator.standard_normal((n, 2)) for n in X.shape]
    expected = weighted_als_twin(X, ~missing, start, 4)
    model = CP(2, init=start, max_iter=4, tol=0, missing="unobserved")
    if form == "nan":
        model.fit(np.where(missing, np.nan, X))
    elif form == "mask":
        model.fit(X, mask=~missing)
    else:
        model.fit(coo_array((X[~missing], np.nonzero(~missing)), shape=X.shape))
    np.testing.assert_allclose(model.kruskal_.to_dense(), expected, atol=1e-7)
    error = (X - expected)[~missing]
    assert model.objective_ == pytest.approx(0.5 * np.sum(error**2), rel=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
@pytest.mark.parametrize("sparse", [False, True])
def test_hidden_entries_are_recovered(share, sparse):
    X, truth = make_low_rank((20, 18, 16), 2, random_state=0)
    missing = holes(X, share)
    model = CP(2, random_state=0, missing="unobserved", tol=1e-12, max_iter=2000)
    if sparse:
        model.fit(coo_array((X[~missing], np.nonzero(~missing)), shape=X.shape))
    else:
        model.fit(np.where(missing, np.nan, X))
    assert factor_match_score(model.kruskal_, truth) > 0.9999
    np.testing.assert_allclose(model.kruskal_.to_dense()[missing], X[missing], atol=1e-3)


def test_stored_zeros_are_observations():
    coords = np.nonzero(np.ones((4, 3, 2)))
    values = np.zeros(24)
    values[:12] = 1.0
    observed = coo_array((values, coords), shape=(4, 3, 2))
    model = CP(1, missing="unobserved", random_state=0).fit(observed)
    np.testing.assert_allclose(model.kruskal_.to_dense()[2:], 0, atol=1e-8)


def test_slices_without_observations_stay_finite():
    X = make_low_rank((9, 8, 7), 2, random_state=0)[0]
    X[4] = np.nan
    X[:, 3] = np.nan
    with pytest.warns(DataWarning, match="nothing was observed at position") as caught:
        model = CP(2, random_state=0).fit(X)
    assert ["position 4 of mode 0" in str(w.message) for w in caught] == [True, False]
    assert all(np.isfinite(factor).all() for factor in model.factors_)
    assert model.score(X) > 0.999
    features = model.transform(X[[4, 5]])
    assert features[0].tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning")
def test_fewer_observations_than_components_stay_finite():
    X = np.full((6, 5, 4), np.nan)
    X[np.arange(5), np.arange(5), [0, 1, 2, 3, 0]] = [1.0, 2.0, 3.0, 4.0, 5.0]
    seen = ~np.isnan(X)
    sparse = coo_array((X[seen], np.nonzero(seen)), shape=X.shape)
    for data in (X, sparse):
        for init in ("svd", "random"):
            model = CP(3, init=init, missing="unobserved", random_state=0).fit(data)
            assert np.abs(model.transform(data)).max() < 1e3
            assert model.score(data) > 0.9


def test_nothing_observed_is_refused():
    with pytest.raises(InvalidInputError, match="Every entry is NaN"):
        CP(1).fit(np.full((3, 3), np.nan))
    with pytest.raises(InvalidInputError, match="no stored entry"):
        CP(1, missing="unobserved").fit(coo_array((3, 3, 3)))


def test_score_counts_observed_entries_only():
    X = make_low_rank((9, 8, 7), 2, noise=0.3, random_state=0)[0]
    missing = holes(X, 0.3)
    model = CP(2, random_state=0).fit(np.where(missing, np.nan, X))
    error = (X - model.kruskal_.to_dense())[~missing]
    expected = 1 - np.sum(error**2) / np.sum(X[~missing] ** 2)
    assert model.score(X, mask=~missing) == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", [CP, NonnegativeCP])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_solved_in_blocks_with_the_same_result(monkeypatch, estimator, order):
    """Blocks of one, of some and of all rows, of each mode."""
    X = make_low_rank((9, 8, 7), 2, noise=0.2, nonnegative=True, random_state=0)[0]
    data = np.asarray(np.where(holes(X, 0.4), np.nan, X), order=order)
    data[3] = np.nan
    models = []
    for n_rows in (1, 4, 100):
        monkeypatch.setattr(problem, "_NORMALS_AT_A_TIME", 4 * n_rows)
        with pytest.warns(DataWarning, match="nothing was observed"):
            models.append(estimator(2, tol=0, max_iter=5, random_state=0).fit(data))
    for other in models[1:]:
        np.testing.assert_allclose(
            other.kruskal_.to_dense(), models[0].kruskal_.to_dense(), atol=1e-8
        )
        assert (other.factors_[0][3] == 0).all()


@pytest.mark.parametrize(
    ("dtype", "step", "tol"), [("float32", 1e-2, 1e-2), ("float64", 1e-4, 1e-6)]
)
def test_a_complete_sample_has_the_same_features_beside_one_with_holes(dtype, step, tol):
    # Components next to dependent: the features show which small eigenvalues count.
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.normal(size=(n, 3)))[0] for n in (4, 3))
    loadings = left * [1.0, step, step**2] @ right.T
    X = generator.normal(size=(5, 4)).astype(dtype)
    model = CP(n_components=3, init=[X[:, :3], loadings], fixed_modes=[1], max_iter=1, tol=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    beside = np.concatenate([X, X[:1]])
    beside[-1, 0] = np.nan
    alone, company = model.transform(X), model.transform(beside)[:-1]
    np.testing.assert_allclose(company, alone, rtol=0, atol=tol * np.abs(alone).max())


def test_a_long_mode_with_missing_entries_needs_no_normal_matrix_per_row(monkeypatch):
    monkeypatch.setattr(problem, "_NORMALS_AT_A_TIME", 1 << 16)
    X = make_low_rank((20_000, 12), 2, noise=0.1, random_state=0)[0]
    X[holes(X, 0.2)] = np.nan
    rank = 12
    build = problem.build_problem(X, "zero")
    start = random_start(build, rank, seed=0)
    tracemalloc.start()
    try:
        build.minimizer(start, 0, LeastSquares())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * X.shape[0] * rank**2 / 2
