import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.sparse import coo_array
from sklearn.utils.estimator_checks import parametrize_with_checks

import polyad
from polyad import NonnegativeCP, Status, factor_match_score
from polyad.core.threads import thread_limit
from polyad.cp.nonnegative.kernels import descend_rows, descend_shared
from polyad.cp.nonnegative.solver import share_out
from polyad.datasets import make_low_rank, make_sparse
from polyad.exceptions import PolyadError
from polyad.metrics import explained_variation

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning"),
]


# Multiplicative updates refuse negative data, which the checks draw; their samples come from a
# standard normal distribution, so only the solver that accepts it is checked. No check fails.
@parametrize_with_checks([NonnegativeCP(max_iter=2)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def normal_equations(X, A, mode):
    others = [A[k] for k in range(3) if k != mode]
    gram = (others[0].T @ others[0]) * (others[1].T @ others[1])
    unfolded = np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1)
    return gram, unfolded @ np.einsum("ir,jr->ijr", *others).reshape(-1, gram.shape[0])


def hals_twin(X, factors, n_iter, n_sweeps):
    """Textbook HALS, column by column, in the order 1, 2, 0."""
    A = [f.copy() for f in factors]
    for _ in range(n_iter):
        for mode in (1, 2, 0):
            gram, rhs = normal_equations(X, A, mode)
            for _ in range(n_sweeps):
                for r in range(gram.shape[0]):
                    step = (rhs[:, r] - A[mode] @ gram[:, r]) / gram[r, r]
                    A[mode][:, r] = np.maximum(0, A[mode][:, r] + step)
    return np.einsum("ir,jr,kr->ijk", *A)


def mu_twin(X, factors, n_iter):
    A = [f.copy() for f in factors]
    for _ in range(n_iter):
        for mode in (1, 2, 0):
            gram, rhs = normal_equations(X, A, mode)
            A[mode] *= rhs / (A[mode] @ gram)
    return np.einsum("ir,jr,kr->ijk", *A)


def positive_factors(shape, rank, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.random((n, rank)) + 0.1 for n in shape]


@pytest.mark.parametrize("container", [np.asarray, coo_array])
def test_updates_are_those_of_the_textbook(container, monkeypatch):
    X = make_low_rank((9, 8, 7), 3, noise=0.3, nonnegative=True, random_state=0)[0]
    start = positive_factors(X.shape, 3)
    monkeypatch.setattr("polyad.cp.nonnegative.solver._INNER_SWEEPS", 2)
    monkeypatch.setattr("polyad.cp.nonnegative.solver._REDUCTION", 1e-300)
    # The end of a fit goes to the minimum for the samples: compare before it.
    states = []
    model = NonnegativeCP(
        3, init=start, max_iter=4, tol=0, callbacks=lambda news: states.append(news.state.factors)
    )
    model.fit(container(X))
    twin = hals_twin(X, start, 4, 2)
    np.testing.assert_allclose(np.einsum("ir,jr,kr->ijk", *states[-1]), twin, atol=1e-10)
    model.set_params(solver="mu").fit(container(np.abs(X)))
    twin = mu_twin(np.abs(X), start, 4)
    np.testing.assert_allclose(np.einsum("ir,jr,kr->ijk", *states[-1]), twin, atol=1e-10)


@pytest.mark.parametrize("solver", ["hals", "mu"])
@pytest.mark.parametrize("form", ["dense", "sparse", "nan", "unobserved"])
def test_planted_components_are_found(solver, form):
    if (solver, form) == ("mu", "unobserved"):
        return  # refused: see below
    X, truth = make_low_rank((20, 15, 10), 2, nonnegative=True, random_state=1)
    hidden = np.random.default_rng(0).random(X.shape) < 0.3
    data = {
        "dense": X,
        "sparse": coo_array(X),
        "nan": np.where(hidden, np.nan, X),
        "unobserved": coo_array((X[~hidden], np.nonzero(~hidden)), shape=X.shape),
    }[form]
    missing = "unobserved" if form == "unobserved" else "zero"
    model = NonnegativeCP(
        2, solver=solver, missing=missing, random_state=0, max_iter=150, tol=1e-6
    ).fit(data)
    assert factor_match_score(model.kruskal_, truth) > 0.99
    assert model.score(data) > 0.999
    np.testing.assert_allclose(model.transform(data), model.factors_[0] * model.weights_, atol=1e-8)
    assert all((factor >= 0).all() for factor in model.factors_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["hals", "mu"])
def test_torch_gives_the_numbers_of_numpy(solver):
    """Few iterations: small operations of torch are slow."""
    X, _ = make_low_rank((20, 15, 10), 2, nonnegative=True, random_state=1)
    options = {"solver": solver, "random_state": 0, "max_iter": 5, "tol": 0}
    plain = NonnegativeCP(2, **options).fit(X)
    model = NonnegativeCP(2, **options).fit(torch.tensor(X))
    features = model.transform(torch.tensor(X))
    assert {type(array) for array in (features, *model.factors_)} == {torch.Tensor}
    for mine, theirs in zip(model.factors_, plain.factors_, strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs, atol=1e-6)
    np.testing.assert_allclose(np.asarray(features), plain.transform(X), atol=1e-6)
    assert model.score(torch.tensor(X)) == pytest.approx(plain.score(X), abs=1e-6)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    rank=st.integers(1, 3),
    solver=st.sampled_from(["hals", "mu"]),
    penalties=st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.0, 0.5), (0.2, 0.1)]),
    missing=st.booleans(),
)
def test_objective_never_rises_and_nothing_is_negative(
    seed, shape, rank, *, solver, penalties, missing
):
    rank = min(rank, int(np.prod(shape)) // max(shape))
    generator = np.random.default_rng(seed)
    X = generator.random(shape) if solver == "mu" else generator.standard_normal(shape)
    X[0] = 0 if shape[0] > 1 else X[0]
    X.flat[-1] = 1.0
    if missing:
        X[generator.random(shape) < 0.3] = np.nan
        X.flat[-1] = 1.0
    model = NonnegativeCP(
        rank,
        solver=solver,
        sparsity=penalties[0],
        ridge=penalties[1],
        init="random",
        random_state=seed,
        max_iter=8,
        tol=0,
    ).fit(X)
    objective = np.array(model.history_.objective[1:])
    assert (np.diff(objective) <= 1e-11 * max(np.nansum(X**2), 1)).all()
    assert all(np.isfinite(f).all() and (f >= 0).all() for f in model.factors_)


def test_transform_is_exact_nonnegative_least_squares():
    X = make_low_rank((30, 9, 8), 4, nonnegative=True, noise=0.2, random_state=0)[0]
    model = NonnegativeCP(4, random_state=0).fit(X)
    design = np.einsum("jr,kr->jkr", *model.factors_[1:]).reshape(-1, 4)
    new = np.random.default_rng(1).standard_normal((20, 9, 8))
    expected = [nnls(design, sample.ravel())[0] for sample in new]
    np.testing.assert_allclose(model.transform(new), expected, atol=1e-10)
    collinear = model.factors_[1][:, [0, 0, 1, 1]]
    model.factors_[1], model.factors_[2] = collinear, model.factors_[2][:, [0, 0, 1, 1]]
    assert np.isfinite(model.transform(new)).all()


def test_penalties_make_sparse_and_small():
    X = make_low_rank((20, 15, 10), 3, nonnegative=True, noise=0.3, random_state=0)[0]
    plain = NonnegativeCP(3, random_state=0).fit(X)
    sparse = NonnegativeCP(3, random_state=0, sparsity=[5.0, 5.0, 5.0]).fit(X)
    zeros = [sum(int((f == 0).sum()) for f in m.factors_) for m in (plain, sparse)]
    assert zeros[1] > zeros[0]
    assert NonnegativeCP(3, random_state=0, ridge=20.0).fit(X).weights_.sum() < plain.weights_.sum()


@pytest.mark.parametrize("penalties", [([1.0, 2, 3], [0, 0, 0]), ([0, 0, 0], [1, 2, 3.0])])
def test_scales_are_shared_out_best(penalties):
    factors = positive_factors((5, 4, 3), 2)
    sparsity, ridge = penalties

    def cost(scaled):
        return sum(
            s * f.sum() + 0.5 * m * (f**2).sum()
            for s, m, f in zip(sparsity, ridge, scaled, strict=True)
        )

    best = share_out(factors, [0, 1, 2], sparsity, ridge)
    np.testing.assert_allclose(
        np.einsum("ir,jr,kr->ijk", *best), np.einsum("ir,jr,kr->ijk", *factors)
    )
    generator = np.random.default_rng(0)
    for _ in range(200):
        t = generator.standard_normal((3, 2)) * 0.1
        t -= t.mean(axis=0)
        assert cost([f * np.exp(s) for f, s in zip(best, t, strict=True)]) >= cost(best) - 1e-12


def test_normal_equations_of_observed_rows():
    X = make_sparse((40, 30, 20), 500, random_state=0)
    tensor = polyad.tensor.SparseTensor(X)
    factors = positive_factors(X.shape, 3)
    dense, seen = X.toarray(), X.toarray() != 0
    with thread_limit(2):
        parts = list(tensor.observed_normal_equations(factors, 1))
    rows = np.concatenate([part[0] for part in parts])
    assert rows.tolist() == np.flatnonzero(seen.any(axis=(0, 2))).tolist()
    design = np.einsum("ir,kr->ikr", factors[0], factors[2])
    normals, sides = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    for row, normal, rhs in zip(rows, normals, sides, strict=True):
        chosen = design[seen[:, row]]
        np.testing.assert_allclose(normal, chosen.T @ chosen)
        np.testing.assert_allclose(rhs, chosen.T @ dense[:, row][seen[:, row]])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_scale(scale, dtype):
    X = make_low_rank((12, 9, 8), 2, nonnegative=True, noise=0.01, random_state=0)[0]
    # A penalty of factors of size x^(1/3) beside a loss of size x².
    model = NonnegativeCP(2, random_state=0, sparsity=0.01 * scale ** (5 / 3), tol=1e-6)
    model.fit((X * scale).astype(dtype))
    same = NonnegativeCP(2, random_state=0, sparsity=0.01, tol=1e-6).fit(X)
    assert model.factors_[0].dtype == dtype
    difference = model.kruskal_.to_dense() / scale - same.kruskal_.to_dense()
    assert np.abs(difference).max() < 0.02


def test_fixed_modes_save_and_checkpoint(tmp_path):
    X, truth = make_low_rank((12, 9, 8), 2, nonnegative=True, noise=0.05, random_state=0)
    init = positive_factors(X.shape, 2)
    init[1] = truth.factors[1]
    model = NonnegativeCP(2, init=init, fixed_modes=[1], checkpoint=tmp_path / "state").fit(X)
    assert np.array_equal(model.factors_[1], truth.factors[1])
    model.save(tmp_path / "model")
    again = polyad.load(tmp_path / "model")
    assert np.array_equal(again.transform(X), model.transform(X))
    resumed = NonnegativeCP(2, init=init, fixed_modes=[1], checkpoint=tmp_path / "state").fit(X)
    assert resumed.history_.objective == model.history_.objective
    assert model.status_ is Status.CONVERGED


BASE = np.random.default_rng(0).random((6, 5, 4))
NEGATIVE = BASE.copy()
NEGATIVE[1, 2, 3] = -1.0


@pytest.mark.parametrize(
    ("parameters", "data", "says"),
    [
        ({"solver": "mu"}, NEGATIVE, r"first -.* at \(1, 2, 3\).*solver='hals'"),
        ({"solver": "mu"}, coo_array(NEGATIVE), r"first -.* at \(1, 2, 3\).*solver='hals'"),
        ({"solver": "mu", "missing": "unobserved"}, coo_array(BASE), "Use solver='hals'"),
        ({"solver": "als"}, BASE, "solver"),
        ({"sparsity": -1.0}, BASE, "sparsity"),
        ({"sparsity": [1.0, 1.0]}, BASE, "sparsity=.* is not usable for 3 modes"),
        ({"ridge": [1.0, -1.0, 1.0]}, BASE, "ridge=.* is not usable"),
        ({"sparsity": {}}, BASE, "sparsity={} is not usable for 3 modes"),
        ({"sparsity": [1.0, 0.0, 0.0]}, BASE, r"modes \[0\] are penalised and \[1, 2\] are not"),
        ({"init": [np.full((n, 2), -1.0) for n in (6, 5, 4)]}, BASE, "the negative number -1 at"),
    ],
)
def test_bad_input(parameters, data, says):
    with pytest.raises((PolyadError, ValueError), match=says):
        NonnegativeCP(2, **parameters).fit(data)


@pytest.mark.parametrize("n_entries", [1, 2, 4, 30])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_rows_are_minima_also_if_entries_are_fewer_than_components(n_entries, seed):
    """Against SciPy's active-set method, by the residual: the row need not be unique."""
    generator = np.random.default_rng(seed)
    designs = generator.random((200, n_entries, 5))
    targets = generator.standard_normal((200, n_entries)) + 1.0
    normal = np.einsum("ijr,ijs->irs", designs, designs)
    rhs = np.einsum("ijr,ij->ir", designs, targets)
    rows = np.zeros((200, 5))
    descend_rows(normal, rhs, (0, 200), (0.0, 100), rows)
    assert (rows >= 0).all()
    left = np.linalg.norm(np.einsum("ijr,ir->ij", designs, rows) - targets, axis=1)
    best = [nnls(design, target)[1] for design, target in zip(designs, targets, strict=True)]
    np.testing.assert_allclose(left, best, atol=1e-7)


def test_samples_of_few_entries_are_fitted_as_well_by_fit_as_by_transform():
    """Their rows are not unique, but the residual is."""
    generator = np.random.default_rng(0)
    coords = tuple(generator.integers(0, n, 300) for n in (200, 20, 10))
    X = coo_array((generator.random(300), coords), shape=(200, 20, 10))
    model = NonnegativeCP(5, missing="unobserved", max_iter=5, random_state=0).fit(X)
    assert model.score(X) == pytest.approx(explained_variation(X, model), abs=1e-9)


@pytest.mark.parametrize("unit", [1.2e109, 1e30, 1.0])
def test_penalties_are_shared_out_for_data_of_any_size(unit):
    """The shares of ``sum a + sum b`` with ``a b = X`` are known; the start is far from them."""
    X, start = np.full((2, 1), unit), [np.array([[0.16], [0.81]]), np.array([[0.0]])]
    model = NonnegativeCP(1, sparsity=1e-9 * np.sqrt(unit), init=start).fit(X)
    np.testing.assert_allclose(model._lengths[0], np.sqrt(2 * unit), rtol=1e-6)
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), X, rtol=1e-6)


@pytest.mark.parametrize("rank", [1, 5, 8])
def test_rows_with_one_matrix_are_swept_side_by_side_as_each_alone(rank):
    """The same rows one by one, with matrices of their own: settled ones make room for others."""
    generator = np.random.default_rng(rank)
    design = generator.random((12, rank))
    design[:, 0] *= rank < 8  # a component that is zero elsewhere
    normal, rhs = design.T @ design, generator.standard_normal((100, rank)) + 0.5
    start = generator.random((100, rank))
    for limits in ((0.01, 1), (0.01, 30), (1e-6, 500)):
        together, alone = start.copy(), start.copy()
        descend_shared(normal, rhs, (0, 100), limits, together)
        descend_rows(normal[None], rhs, (0, 100), limits, alone)
        np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)
        one = start[37:38].copy()
        descend_shared(normal, rhs[37:38].copy(), (0, 1), limits, one)
        np.testing.assert_array_equal(one[0], together[37])
