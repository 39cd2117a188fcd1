"""SimilarityCP: its updates against small twins, and as a whole on all kinds of data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.sparse import coo_array, csr_array, random_array
from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import NonnegativeCP, SimilarityCP, factor_match_score
from polyad.cp.similarity.laplacian import Laplacian, laplacian_of_data
from polyad.data.validation import as_tensor_input
from polyad.datasets import make_low_rank, make_sparse

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning"),
]


# No check is expected to fail.
@parametrize_with_checks([SimilarityCP(max_iter=2)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def laplacian_twin(S):
    S = S - np.diag(np.diag(S))
    d = S.sum(axis=1)
    root = np.where(d > 0, 1 / np.sqrt(np.where(d > 0, d, 1)), 0)
    return np.diag((d > 0).astype(float)) - root[:, None] * S * root


def cosine_twin(profiles):
    """Cosines between the columns of samples x entries."""
    lengths = np.linalg.norm(profiles, axis=0)
    unit = profiles / np.where(lengths > 0, lengths, 1)
    return unit.T @ unit


def objective_twin(X, factors, similarities, weight):
    """The objective as the docstring of the estimator has it."""
    model = np.einsum("ir,jr,kr->ijk", *factors)
    total = 0.5 * np.nansum((X - model) ** 2)
    for mode, S in similarities.items():
        L = laplacian_twin(S)
        for r in range(factors[0].shape[1]):
            columns = [f[:, r] for f in factors]
            b = columns[mode]
            size = np.prod([c @ c for c in columns])
            total += weight / 2 * (b @ L @ b / max(b @ b, 1e-300)) * size
    return total


def symmetric(n, seed, density=0.5):
    generator = np.random.default_rng(seed)
    S = generator.random((n, n)) * (generator.random((n, n)) < density)
    return S + S.T


def grouped(seed=0, noise=0.4):
    """Data of three components with four features each, and the similarity that knows it."""
    generator = np.random.default_rng(seed)
    B = np.kron(np.eye(3), np.ones((4, 1)))
    X = np.einsum("ir,jr,kr->ijk", generator.random((30, 3)), B, generator.random((8, 3)))
    return X + noise * generator.standard_normal(X.shape), np.kron(np.eye(3), np.ones((4, 4)))


@settings(max_examples=20)
@given(n=st.integers(1, 8), seed=st.integers(0, 1000), density=st.floats(0, 1))
def test_laplacian(n, seed, density):
    S = symmetric(n, seed, density)
    np.fill_diagonal(S, 0.0)
    S /= max(S.max(), 1e-300)
    L = laplacian_twin(S)
    columns = np.random.default_rng(seed).standard_normal((n, 3))
    for form in (S, csr_array(S)):
        laplacian = Laplacian(form)
        np.testing.assert_allclose(laplacian.apply(columns), L @ columns, atol=1e-10)
        rough = np.einsum("ir,ij,jr->r", columns, L, columns)
        np.testing.assert_allclose(laplacian.roughness(columns), rough, atol=1e-10)
        assert (rough <= 2 * np.sum(columns**2, axis=0) + 1e-10).all()


@pytest.mark.parametrize("name", ["cosine", "presence"])
@pytest.mark.parametrize("form", ["dense", "sparse", "torch", "nan"])
def test_similarities_of_the_data(name, form):
    X = make_sparse((9, 7, 6), 90, random_state=0).toarray() * -1.0
    X[:, 3] = 0  # an entry without data, and one that is alone
    X[:, 4] = 0
    data = {"dense": X, "sparse": coo_array(X), "torch": torch.tensor(X), "nan": X}[form]
    if form == "nan":
        data = np.where(X == 0, np.nan, X)
        data[0, 0, 0] = X[0, 0, 0]
    given_data = as_tensor_input(data, allow_nan=True)
    for mode, axis in ((1, 2), (2, 1)):
        profiles = np.abs(X).sum(axis=axis)
        L = laplacian_twin(cosine_twin(profiles if name == "cosine" else profiles != 0))
        laplacian = laplacian_of_data(given_data, mode, name)
        columns = np.random.default_rng(0).random((X.shape[mode], 2))
        np.testing.assert_allclose(laplacian.apply(columns), L @ columns, atol=1e-10)


@pytest.mark.parametrize("missing", [False, True])
def test_the_objective_is_the_one_of_the_docstring(missing):
    X, S = grouped()
    if missing:
        X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    similarities = {1: S, 2: symmetric(8, 0)}
    states = []
    model = SimilarityCP(
        3,
        similarities=similarities,
        similarity_weight=0.7,
        max_iter=3,
        tol=0,
        callbacks=lambda news: states.append(news.state.factors),
    ).fit(X)
    expected = objective_twin(X, states[-1], similarities, 0.7)
    assert model.history_.objective[-1] == pytest.approx(expected, rel=1e-9)
    rough = [b @ laplacian_twin(S) @ b for b in model.factors_[1].T]
    np.testing.assert_allclose(model.roughness_[1], rough, atol=1e-12)
    assert (model.roughness_[0] == 0).all()


def test_no_direction_leads_down_at_the_end():
    """The conditions of Karush, Kuhn and Tucker, with slopes by central differences."""
    X, S = grouped()
    similarities = {1: S + 0.1 * symmetric(12, 0), 2: symmetric(8, 1)}
    states = []
    model = SimilarityCP(
        3,
        similarities=similarities,
        similarity_weight=0.5,
        max_iter=5000,
        tol=1e-15,
        random_state=0,
        callbacks=lambda news: states.append(news.state.factors),
    ).fit(X)
    factors = states[-1]
    for mode, factor in enumerate(factors):
        for position in np.ndindex(factor.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = [f.copy() for f in factors]
                moved[mode][position] += step
                values.append(objective_twin(X, moved, similarities, 0.5))
            slope = (values[0] - values[1]) / 2e-5
            if factor[position] < 1e-9:
                assert slope > -1e-4 * model.objective_
            else:
                assert abs(slope) < 1e-4 * model.objective_


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    rank=st.integers(1, 3),
    weight=st.sampled_from([0.0, 0.1, 1.0, 100.0]),
    penalties=st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.2, 0.5)]),
    form=st.sampled_from(["dense", "nan", "sparse", "unobserved"]),
)
def test_objective_never_rises_and_nothing_is_negative(
    seed, shape, rank, *, weight, penalties, form
):
    rank = min(rank, int(np.prod(shape)) // max(shape))
    generator = np.random.default_rng(seed)
    X = generator.standard_normal(shape)
    X[0] = 0 if shape[0] > 1 else X[0]
    if form != "dense":
        X[generator.random(shape) < 0.4] = np.nan if form == "nan" else 0.0
        X[:, 0] = np.nan if form == "nan" else 0.0
    X.flat[-1] = 1.0
    similarities = [None, *[symmetric(n, seed) for n in shape[1:]]]
    model = SimilarityCP(
        rank,
        similarities=similarities,
        similarity_weight=weight,
        sparsity=penalties[0],
        ridge=penalties[1],
        missing="unobserved" if form == "unobserved" else "zero",
        init="random",
        random_state=seed,
        max_iter=10,
        tol=0,
    ).fit(coo_array(X) if form in ("sparse", "unobserved") else X)
    objective = np.array(model.history_.objective)
    assert (np.diff(objective) <= 1e-11 * max(np.nansum(X**2), 1) * (1 + weight)).all()
    assert all(np.isfinite(f).all() and (f >= 0).all() for f in model.factors_)


def test_without_a_weight_it_is_nonnegative_cp():
    X, S = grouped()
    plain = NonnegativeCP(3, random_state=0).fit(X)
    for model in (
        SimilarityCP(3, random_state=0, similarities={1: S}, similarity_weight=0.0),
        SimilarityCP(3, random_state=0, similarities=None),
        SimilarityCP(3, random_state=0, similarities={1: np.eye(12)}, similarity_weight=5.0),
    ):
        model.fit(X)
        assert all(map(np.array_equal, model.factors_, plain.factors_))
        np.testing.assert_allclose(model.transform(X), plain.transform(X), atol=1e-12)


def test_similar_entries_are_drawn_together():
    X, S = grouped(noise=1.0)
    truth = np.kron(np.eye(3), np.ones((4, 1))) / 2
    errors, rough = [], []
    for weight in (0.0, 0.1, 1.0, 10.0):
        model = SimilarityCP(
            3, similarities={1: S}, similarity_weight=weight, random_state=0, max_iter=300
        ).fit(X)
        cosines = truth.T @ model.factors_[1]
        errors.append(3 - cosines.max(axis=1).sum())
        rough.append(model.roughness_[1].sum())
    assert (np.diff(rough) < 0).all()
    assert errors[-1] < 0.5 * errors[0]


@pytest.mark.parametrize("form", ["dense", "sparse", "nan", "unobserved", "torch", "float32"])
def test_planted_components_are_found_in_all_kinds_of_data(form):
    X, truth = make_low_rank((20, 15, 10), 2, nonnegative=True, random_state=1)
    hidden = np.random.default_rng(0).random(X.shape) < 0.3
    data = {
        "dense": X,
        "sparse": coo_array(X),
        "nan": np.where(hidden, np.nan, X),
        "unobserved": coo_array((X[~hidden], np.nonzero(~hidden)), shape=X.shape),
        "torch": torch.tensor(X),
        "float32": X.astype(np.float32),
    }[form]
    model = SimilarityCP(
        2,
        similarity_weight=1e-4,
        missing="unobserved" if form == "unobserved" else "zero",
        random_state=0,
        max_iter=12 if form == "torch" else 150,  # small operations of torch are slow
        tol=1e-6,
    ).fit(data)
    assert factor_match_score(model.kruskal_, truth) > 0.98
    assert model.score(data) > 0.99
    assert type(model.factors_[0]) is (torch.Tensor if form == "torch" else np.ndarray)
    # What fit_transform returns is what transform finds.
    np.testing.assert_allclose(
        np.asarray(model.transform(data)),
        np.asarray(model.factors_[0] * model.weights_),
        rtol=1e-4 if form == "float32" else 1e-7,
        atol=1e-3 if form == "float32" else 1e-8,
    )


def test_transform_is_exact_penalised_least_squares():
    X, S = grouped()
    model = SimilarityCP(3, similarities={1: S}, similarity_weight=3.0, random_state=0).fit(X)
    design = np.einsum("jr,kr->jkr", *model.factors_[1:]).reshape(-1, 3)
    # Columns of length one: the roughness is a ridge of each component.
    shrink = np.diag(np.sqrt(3.0 * model.roughness_[1]))
    new = np.random.default_rng(1).standard_normal((10, 12, 8))
    expected = [
        nnls(np.vstack([design, shrink]), np.append(sample.ravel(), np.zeros(3)))[0]
        for sample in new
    ]
    np.testing.assert_allclose(model.transform(new), expected, atol=1e-9)


def test_entries_in_another_order_are_the_same_fit():
    X, S = grouped()
    S = S + 0.1 * symmetric(12, 0)
    order = np.random.default_rng(0).permutation(12)
    init = [np.random.default_rng(k).random((n, 3)) for k, n in enumerate(X.shape)]
    options = {"similarity_weight": 0.5, "max_iter": 20, "tol": 0}
    model = SimilarityCP(3, init=init, similarities={1: S}, **options).fit(X)
    moved = SimilarityCP(
        3,
        init=[init[0], init[1][order], init[2]],
        similarities={1: S[np.ix_(order, order)]},
        **options,
    ).fit(X[:, order])
    np.testing.assert_allclose(model.factors_[1][order], moved.factors_[1], atol=1e-10)
    np.testing.assert_allclose(model.factors_[0], moved.factors_[0], atol=1e-10)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_of_data_and_similarities_do_not_matter(scale, dtype):
    X, S = grouped()
    options = {"random_state": 0, "max_iter": 20, "tol": 0, "similarity_weight": 0.5}
    same = SimilarityCP(3, similarities={1: S}, **options).fit(X)
    # A large diagonal says nothing either.
    given_similarity = (S + 1e9 * np.eye(12)) / scale
    data = (X * scale).astype(dtype)
    model = SimilarityCP(3, similarities={1: given_similarity}, **options).fit(data)
    tolerance = 1e-3 if dtype == np.float32 else 1e-9
    for left, right in zip(model.factors_, same.factors_, strict=True):
        np.testing.assert_allclose(left, right, atol=tolerance)
    np.testing.assert_allclose(model.weights_ / scale, same.weights_, rtol=tolerance)
    np.testing.assert_allclose(
        model.transform(data) / scale, same.transform(X), atol=100 * tolerance
    )


def test_zero_slices_stay_zero():
    X, S = grouped()
    X[5] = 0
    X[:, 3] = np.nan
    model = SimilarityCP(3, similarities={1: S}, similarity_weight=1.0, random_state=0).fit(X)
    assert (model.factors_[1][3] == 0).all()
    assert (model.transform(X)[5] == 0).all()


def test_large_sparse_similarities_stay_sparse():
    """Neither the data nor the similarities of this mode could exist as dense matrices."""
    n = 40_000
    X = make_sparse((50, n, 40), 20_000, random_state=0)
    S = random_array((n, n), density=1.5e-5, rng=np.random.default_rng(0), format="csr")
    model = SimilarityCP(2, similarities={1: S + S.T}, random_state=0, max_iter=2).fit(X)
    assert model.factors_[1].shape == (n, 2)
    assert SimilarityCP(2, random_state=0, max_iter=2).fit(X).roughness_.shape == (3, 2)
