import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from polyad import CP, KruskalTensor, LabelledTensor, Status, factor_match_score
from polyad.datasets import make_low_rank
from polyad.exceptions import DataWarning
from polyad.fitting.driver import FitError
from polyad.tensor import DenseTensor


def als_twin(X, factors, n_iter):
    """Textbook ALS in the order 1, 2, 0, as ten lines of NumPy."""
    factors = [f.copy() for f in factors]
    letters = "abcdefg"[: X.ndim]
    for _ in range(n_iter):
        for mode in (*range(1, X.ndim), 0):
            others = [k for k in range(X.ndim) if k != mode]
            gram = np.prod([factors[k].T @ factors[k] for k in others], axis=0)
            terms = ",".join([letters, *(letters[k] + "z" for k in others)])
            rhs = np.einsum(f"{terms}->{letters[mode]}z", X, *[factors[k] for k in others])
            factors[mode] = np.linalg.solve(gram, rhs.T).T
    return KruskalTensor(np.ones(factors[0].shape[1]), factors)


def random_factors(shape, rank, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((n, rank)) for n in shape]


@pytest.mark.parametrize("shape", [(9, 7), (8, 7, 6), (6, 5, 4, 3), (4, 3, 4, 3, 2)])
@pytest.mark.parametrize("container", [np.asarray, coo_array])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_iterates_are_those_of_the_textbook(shape, container):
    X = make_low_rank(shape, 2, noise=0.3, random_state=1)[0]
    start = random_factors(shape, 2)
    model = CP(2, init=start, max_iter=7, tol=0).fit(container(X))
    np.testing.assert_allclose(
        model.kruskal_.to_dense(), als_twin(X, start, 7).to_dense(), rtol=0, atol=1e-9
    )
    residual = X - model.kruskal_.to_dense()
    assert model.objective_ == pytest.approx(0.5 * np.sum(residual**2), rel=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_iterates_are_those_of_tensorly_and_pyttb():
    import pyttb
    import tensorly
    from tensorly.decomposition import parafac

    X = make_low_rank((8, 7, 6), 3, noise=0.2, random_state=0)[0]
    start = random_factors(X.shape, 3)
    ours = CP(3, init=start, max_iter=5, tol=0).fit(X).kruskal_.to_dense()
    # Both visit modes 0, 1, 2; ours are 1, 2, 0.
    turned = X.transpose(1, 2, 0)
    first = (np.ones(3), [start[1].copy(), start[2].copy(), start[0].copy()])
    theirs = parafac(turned, 3, init=tensorly.cp_tensor.CPTensor(first), n_iter_max=5, tol=0)
    np.testing.assert_allclose(tensorly.cp_to_tensor(theirs).transpose(2, 0, 1), ours, atol=1e-8)
    begin = pyttb.ktensor([np.asfortranarray(f) for f in start], np.ones(3))
    result = pyttb.cp_als(
        pyttb.tensor(X), 3, init=begin, maxiters=5, stoptol=0, dimorder=[1, 2, 0], printitn=0
    )[0]
    np.testing.assert_allclose(result.full().data, ours, atol=1e-8)


@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("shape", [(20, 15, 10), (8, 7, 6, 5)])
@pytest.mark.parametrize("container", [np.asarray, coo_array])
def test_planted_components_are_found(init, shape, container):
    X, truth = make_low_rank(shape, 3, random_state=0)
    model = CP(3, init=init, random_state=0, n_init=2, tol=1e-12).fit(container(X))
    assert model.status_ is Status.CONVERGED
    assert factor_match_score(model.kruskal_, truth, weights=True) > 0.9999
    assert model.score(X) > 1 - 1e-9


def test_a_matrix_gets_its_best_approximation():
    X = make_low_rank((12, 9), 5, noise=0.2, random_state=0)[0]
    singular = np.linalg.svd(X, compute_uv=False)
    model = CP(3, tol=1e-12, random_state=0).fit(X)
    assert 2 * model.objective_ == pytest.approx(np.sum(singular[3:] ** 2), rel=1e-6)
    np.testing.assert_allclose(model.transform(X) @ model.components_, model.kruskal_.to_dense())


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    rank=st.integers(1, 3),
    ridge=st.sampled_from([0.0, 0.5]),
    missing=st.booleans(),
)
@pytest.mark.filterwarnings("ignore")
def test_objective_never_rises(seed, shape, rank, ridge, missing):
    rank = min(rank, int(np.prod(shape)) // max(shape))
    generator = np.random.default_rng(seed)
    X = generator.standard_normal(shape)
    if missing:
        X[generator.random(shape) < 0.3] = np.nan
        X.flat[0] = 1.0
    model = CP(rank, ridge=ridge, init="random", random_state=seed, max_iter=15, tol=0).fit(X)
    objective = np.array(model.history_.objective[1:])
    slack = 1e-12 * np.nansum(X**2)
    assert (np.diff(objective) <= slack).all()
    assert model.status_ in (Status.MAX_ITER, Status.CONVERGED)
    assert all(np.isfinite(factor).all() for factor in model.factors_)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), order=st.integers(2, 4), scale=st.sampled_from([1e-12, 1, 1e12]))
@pytest.mark.filterwarnings("ignore")
def test_permutation_scaling_and_layout(seed, order, scale):
    """Shuffled samples, scaled data, other memory orders, sparse or dense: the same model.

    Where modes are visited in the same order, which the shape of dense data may change.
    """
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(3, 7, size=order))
    assume(DenseTensor(np.zeros(shape)).mode_groups == (tuple(range(1, order)), (0,)))
    X = make_low_rank(shape, 2, noise=0.2, random_state=seed)[0]
    start = random_factors(shape, 2, seed)
    order = generator.permutation(shape[0])
    shuffled = [start[0][order], *start[1:]]

    def model_of(data, init):
        return CP(2, init=init, max_iter=10, tol=0).fit(data).kruskal_.to_dense()

    base = model_of(X, start)
    scaled = [start[0] * scale, *start[1:]]
    np.testing.assert_allclose(model_of(X[order], shuffled), base[order], rtol=0, atol=1e-5)
    np.testing.assert_allclose(model_of(X * scale, scaled) / scale, base, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model_of(np.asfortranarray(X), start), base, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model_of(coo_array(X), start), base, rtol=0, atol=1e-5)
    doubled = np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]
    assert not doubled.flags.c_contiguous
    np.testing.assert_allclose(model_of(doubled, start), base, rtol=0, atol=1e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
@pytest.mark.filterwarnings("ignore")
def test_duplicates_are_summed(seed):
    generator = np.random.default_rng(seed)
    coords = tuple(generator.integers(0, 5, size=(3, 60)))
    values = generator.standard_normal(60)
    twice = coo_array((values, coords), shape=(5, 5, 5))
    start = random_factors((5, 5, 5), 2, seed)
    sparse = CP(2, init=start, max_iter=5, tol=0).fit(twice)
    dense = CP(2, init=start, max_iter=5, tol=0).fit(twice.toarray())
    np.testing.assert_allclose(sparse.kruskal_.to_dense(), dense.kruskal_.to_dense(), atol=1e-8)


@pytest.mark.parametrize("ridge", [0.0, 2.0])
@pytest.mark.parametrize("missing", ["none", "nan", "unobserved"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transform_of_training_data_is_fit_transform(ridge, missing, dtype):
    generator = np.random.default_rng(0)
    X = make_low_rank((15, 8, 7), 3, noise=0.1, random_state=0)[0].astype(dtype)
    if missing == "nan":
        X[generator.random(X.shape) < 0.2] = np.nan
    if missing == "unobserved":
        X = coo_array(np.where(generator.random(X.shape) < 0.3, 0, X))
    model = CP(
        3, ridge=ridge, missing="unobserved" if missing == "unobserved" else "zero", random_state=0
    )
    features = model.fit_transform(X)
    assert features.dtype == dtype
    assert all(factor.dtype == dtype for factor in model.factors_)
    atol = 1e-9 if dtype == np.float64 else 2e-3
    np.testing.assert_allclose(model.transform(X), features, rtol=0, atol=atol)
    np.testing.assert_allclose(features, model.factors_[0] * model.weights_, rtol=0, atol=1e-12)


def test_new_samples_are_projected():
    X, truth = make_low_rank((40, 8, 7), 3, random_state=0)
    model = CP(3, random_state=0, tol=1e-13).fit(X[:30])
    back = model.inverse_transform(model.transform(X[30:]))
    np.testing.assert_allclose(back, X[30:], atol=1e-5)
    assert model.score(X[30:]) > 1 - 1e-9
    assert model.transform(np.zeros((2, 8, 7))).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert truth.n_components == model.components_.shape[0]


def test_canonical_form():
    X = make_low_rank((15, 8, 7), 3, noise=0.2, random_state=3)[0]
    model = CP(3, random_state=0).fit(X)
    assert (np.diff(model.weights_) <= 0).all()
    assert (model.weights_ > 0).all()
    for factor in model.factors_:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1)
    for factor in model.factors_[1:]:
        largest = np.abs(factor).argmax(axis=0)
        assert (factor[largest, range(3)] > 0).all()


def test_ridge_solves_the_stated_problem():
    X = make_low_rank((6, 5, 4), 2, noise=0.3, random_state=0)[0]
    ridge = 3.0
    model = CP(2, ridge=ridge, random_state=0, tol=1e-14, max_iter=5000).fit(X)

    def objective(flat):
        parts = np.split(flat, np.cumsum([12, 10]))
        factors = [p.reshape(-1, 2) for p in parts]
        error = X - np.einsum("ir,jr,kr->ijk", *factors)
        return 0.5 * np.sum(error**2) + 0.5 * ridge * np.sum(flat**2)

    shares = [factor * model.weights_ ** (1 / 3) for factor in model.factors_]
    flat = np.concatenate([share.ravel() for share in shares])
    assert objective(flat) == pytest.approx(model.objective_, rel=1e-6)
    gradient = [
        (objective(flat + step) - objective(flat - step)) / 2e-5
        for step in 1e-5 * np.eye(len(flat))
    ]
    assert np.abs(gradient).max() < 1e-3


def test_fixed_modes_stay():
    X, truth = make_low_rank((15, 8, 7), 3, noise=0.05, random_state=0)
    init = [f.copy() for f in truth.factors]
    for mode in (0, 2):
        init[mode] += np.random.default_rng(0).standard_normal(init[mode].shape)
    model = CP(3, init=init, fixed_modes=[1], tol=1e-10).fit(X)
    assert np.array_equal(model.factors_[1], truth.factors[1])
    assert factor_match_score(model.kruskal_, truth) > 0.99
    np.testing.assert_allclose(model.transform(X), model.fit_transform(X), atol=1e-8)
    samples = CP(3, init=truth, fixed_modes=(0, -1)).fit(X)
    assert np.array_equal(samples.factors_[0], truth.factors[0])
    assert np.array_equal(samples.factors_[2], truth.factors[2])


def test_restarts_keep_the_lowest_objective():
    X = make_low_rank((10, 9, 8), 5, noise=0.3, random_state=0)[0]
    single = [
        CP(4, init="random", random_state=seed, tol=1e-4).fit(X).objective_ for seed in range(6)
    ]
    best = CP(4, init="random", random_state=0, n_init=6, tol=1e-4).fit(X)
    assert best.objective_ <= CP(4, init="random", random_state=0, tol=1e-4).fit(X).objective_
    assert best.objective_ < max(single)


def test_seeds():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    first, again = (CP(3, init="random", random_state=7).fit(X) for _ in range(2))
    other = CP(3, init="random", random_state=8).fit(X)
    assert np.array_equal(first.factors_[0], again.factors_[0])
    assert first.history_.objective[0] != other.history_.objective[0]


def test_warm_start_goes_on():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = CP(3, random_state=0, max_iter=3, tol=0, warm_start=True)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(X)
    before = model.objective_
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    assert model.history_.objective[0] == pytest.approx(before, rel=1e-9)
    assert model.objective_ < before


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_any_scale(dtype, scale, ridge):
    X, truth = make_low_rank((12, 9, 8), 2, noise=0.01, random_state=0)
    # The ridge acts on factors of size x^(1/3): scaled so that it means the same.
    model = CP(2, random_state=0, ridge=ridge * scale ** (4 / 3)).fit((X * scale).astype(dtype))
    same = CP(2, random_state=0, ridge=ridge).fit(X)
    assert factor_match_score(model.kruskal_, truth) > 0.999
    np.testing.assert_allclose(model.weights_ / scale, same.weights_, rtol=1e-3)
    np.testing.assert_allclose(model.objective_ / scale**2, same.objective_, rtol=1e-2)


def test_zero_slices_give_zero_rows():
    X = make_low_rank((12, 9, 8), 2, random_state=0)[0]
    X[3], X[:, 4], X[:, :, 5] = 0, 0, 0
    for data in (X, coo_array(X)):
        model = CP(2, random_state=0).fit(data)
        assert np.abs(model.factors_[0][3]).max() < 1e-12
        assert np.abs(model.factors_[1][4]).max() < 1e-12
        assert np.abs(model.factors_[2][5]).max() < 1e-12


@pytest.mark.parametrize("container", [np.asarray, coo_array])
def test_all_zero_data_warns_and_gives_zero(container):
    with pytest.warns(DataWarning, match="every entry is zero"):
        model = CP(2, random_state=0).fit(container(np.zeros((4, 3, 2))))
    assert model.weights_.tolist() == [0, 0]
    assert np.isfinite(model.factors_[0]).all()
    assert model.transform(np.ones((1, 4 - 1, 2))).tolist() == [[0, 0]]
    assert model.score(np.zeros((1, 3, 2))) == 1.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_more_components_than_any_mode_has_entries():
    X = make_low_rank((4, 4, 4), 6, random_state=0)[0]
    model = CP(6, random_state=0, max_iter=100, tol=1e-6, n_init=3).fit(X)
    assert model.factors_[0].shape == (4, 6)
    assert model.score(X) > 0.95


def test_redundant_components_are_harmless():
    X = make_low_rank((10, 9, 8), 2, random_state=0)[0]
    model = CP(5, random_state=0).fit(X)
    assert model.score(X) > 1 - 1e-8
    assert np.isfinite(model.transform(X)).all()


def test_a_state_that_is_not_finite_raises_and_is_kept(monkeypatch):
    X = make_low_rank((10, 9, 8), 2, noise=0.1, random_state=0)[0]
    from polyad.cp.problem import CompleteProblem

    sweep = CompleteProblem.sweep
    count = []

    def breaking(self, factors, ridge, fixed):
        count.append(1)
        return sweep(self, factors, ridge, fixed) if len(count) < 3 else np.nan

    monkeypatch.setattr(CompleteProblem, "sweep", breaking)
    model = CP(2, random_state=0, tol=0)
    with pytest.raises(FitError, match="Iteration 3 of CP"):
        model.fit(X)
    assert model.n_iter_ == 2
    assert model.transform(X).shape == (10, 2)


def test_interrupt_leaves_a_usable_estimator():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]

    def interrupt(news):
        if news.number == 4:
            raise KeyboardInterrupt

    model = CP(3, random_state=0, tol=0, callbacks=interrupt, n_init=5)
    with pytest.warns(ConvergenceWarning, match="interrupted from the keyboard"):
        model.fit(X)
    assert model.status_ is Status.INTERRUPTED
    assert model.n_iter_ == 4
    assert model.transform(X).shape == (10, 3)


def test_callbacks_and_time_budget():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    seen = []
    model = CP(3, tol=0, callbacks=[seen.append, lambda news: news.number >= 5]).fit(X)
    assert model.status_ is Status.STOPPED
    assert [news.number for news in seen] == [1, 2, 3, 4, 5]
    assert seen[0].method == "CP"
    with pytest.warns(ConvergenceWarning, match="time_budget"):
        CP(3, tol=0, max_iter=10**7, time_budget=0.05).fit(X)


def test_progress_bar(capsys):
    X = make_low_rank((6, 5, 4), 2, random_state=0)[0]
    CP(2, verbose=1, random_state=0).fit(X)
    assert "objective=" in capsys.readouterr().err


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_folds_of_a_labelled_tensor(sparse):
    X = make_low_rank((30, 6, 5), 2, noise=0.1, random_state=0)[0]
    data = LabelledTensor(coo_array(X) if sparse else X, modes=("sample", "b", "c"))
    search = GridSearchCV(CP(random_state=0), {"n_components": [1, 2]}, cv=3).fit(data)
    assert search.best_params_ == {"n_components": 2}
    assert search.best_score_ > 0.95
