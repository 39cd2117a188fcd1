"""Starts made of components: singular pairs, splits and merges, and the search over them."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

import polyad
from polyad import GeneralizedCP, NonnegativeCP, PoissonCP, SimilarityCP, WassersteinCP
from polyad.cp import moves
from polyad.cp.problem import build_problem
from polyad.cp.start import nonnegative_svd_start
from polyad.fitting import Checkpoint
from polyad.metrics import factor_match_score
from polyad.tensor.sparse import SparseTensor

SHAPE = (40, 12, 10)


def planted(n_components=4, shape=SHAPE, mean=1.0, seed=0):
    """Return sparse counts of components that hardly overlap, and their factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.dirichlet(np.full(n, 0.15), n_components).T for n in shape]
    model = np.einsum("ir,jr,kr->ijk", *factors)
    return coo_array(rng.poisson(model * mean * 2000.0 / n_components).astype(float)), factors


def divergence(X, factors):
    """The Kullback-Leibler divergence from a model, entry by entry."""
    x, m = X.toarray(), np.einsum("ir,jr,kr->ijk", *factors)
    at = x > 0
    return m.sum() - x.sum() + np.sum(x[at] * np.log(x[at] / m[at]))


@pytest.mark.parametrize("form", ["sparse", "dense", "torch"])
def test_the_singular_start_of_a_matrix_is_that_of_an_exact_decomposition(form):
    X = planted()[0].toarray().reshape(SHAPE[0], -1)
    data = {"sparse": coo_array(X), "dense": X, "torch": torch.asarray(X)}[form]
    found = nonnegative_svd_start(build_problem(data, "zero"), 4, seed=3)
    left, sizes, right = np.linalg.svd(X, full_matrices=False)
    for r in range(4):
        pairs = [(np.maximum(s * left[:, r], 0), np.maximum(s * right[r], 0)) for s in (1, -1)]
        best = max(pairs, key=lambda pair: np.linalg.norm(pair[0]) * np.linalg.norm(pair[1]))
        for mode, expected in enumerate(best):
            margin = X.sum(axis=1 - mode) / X.sum()
            margin = 0.99 * margin + 0.01 / len(margin)
            scale = 1.0 if mode == 0 else sizes[r]
            mixed = scale * (expected + 0.1 * expected.sum() * margin)
            np.testing.assert_allclose(found[mode][:, r], mixed, atol=1e-6 * sizes[0])


@pytest.mark.parametrize("rank", [0, 2])
def test_the_singular_start_of_a_matrix_of_low_rank_has_no_component_of_nothing(rank):
    rng = np.random.default_rng(0)
    X = rng.random((7, rank)) @ rng.random((rank, 5))
    left, right = nonnegative_svd_start(build_problem(X, "zero"), 4, seed=0)
    assert left.min() > 0
    # Singular pairs beyond the rank are rounding, 1e-16 of the others.
    assert right.max(axis=0).min() > 1e-3 * right.max()
    if rank == 0:
        for model in (WassersteinCP(2, init="svd"), GeneralizedCP(2, loss="poisson", init="svd")):
            with pytest.warns(polyad.exceptions.DataWarning, match="zero"):
                assert model.fit(X).factors_[0].max() == 0


def test_the_singular_start_of_a_tensor_does_not_depend_on_the_seed():
    problem = build_problem(planted()[0], "zero")
    one, other = (nonnegative_svd_start(problem, 4, seed) for seed in (0, 1))
    for mode, factor in enumerate(one):
        np.testing.assert_allclose(factor, other[mode], atol=1e-3)
        unfolded = np.moveaxis(planted()[0].toarray(), mode, 0).reshape(len(factor), -1)
        exact = np.abs(np.linalg.svd(unfolded)[0][:, :4])
        np.testing.assert_allclose(factor, exact + 0.01 * exact.mean(), atol=1e-3)


def test_no_start_of_sparse_data_makes_it_dense():
    rng = np.random.default_rng(0)
    shape = (20_000, 20_000, 10_000)
    X = coo_array(
        (rng.poisson(3.0, 60) + 1.0, tuple(rng.integers(n, size=60) for n in shape)), shape
    )
    for init in ("svd", "split"):
        model = PoissonCP(3, init=init, max_iter=1, tol=0.0, random_state=0)
        with pytest.warns(match="max_iter"):
            assert np.isfinite(model.fit(X).objective_)


def shared_and_torn():
    """Return counts of four components, and a model that has two of them as one, and one twice."""
    X, factors = planted(mean=3.0)
    total = X.sum() / 4
    first = [f.copy() for f in factors]
    for f in first:
        f[:, 0] = (f[:, 0] + f[:, 1]) / 2
    rng = np.random.default_rng(1)
    for f in first:
        f[:, 1] = f[:, 2] * rng.uniform(0.8, 1.2, len(f))
    first[0] = total * first[0] * np.array([2.0, 0.5, 0.5, 1.0])
    return X, factors, first


def test_a_move_parts_what_was_one_and_joins_what_was_two():
    X, factors, wrong = shared_and_torn()
    right = moves.moved_start(SparseTensor(X), wrong, 0, seed=0)
    truth = polyad.tensor.KruskalTensor(np.ones(4), factors)
    scores = [
        factor_match_score(polyad.tensor.KruskalTensor(np.ones(4), f), truth, weights=False)
        for f in (wrong, right)
    ]
    assert scores[0] < 0.8
    assert scores[1] > 0.95
    assert divergence(X, right) < divergence(X, wrong)


def test_gain_and_loss_bound_what_the_divergence_does():
    """Replacing the components of a share can only do better than the share says."""
    X, _, wrong = shared_and_torn()
    # At a stationary point the share of a component has its sum: one update brings it about.
    model = PoissonCP(4, init=wrong, max_iter=200, tol=0.0)
    with pytest.warns(match="max_iter"):
        fitted = model.fit(X).kruskal_
    mixture = moves._Mixture.of([fitted.factors[0] * fitted.weights, *fitted.factors[1:]])
    shares = moves._Shares(SparseTensor(X))
    shares.divide(mixture)
    before = divergence(X, mixture.factors())
    rng = np.random.default_rng(0)
    for r in range(4):
        split = shares.split(mixture, r, rng)
        after = divergence(X, moves._replaced(mixture, r, split).factors())
        # A hundredth of the whole stays in the halves, and small shares are left out.
        assert before - after >= 0.9 * split.gain - 1e-3 * before
    for i, j in ((0, 1), (1, 2), (2, 3)):
        merged = moves._merged(mixture, i, j)
        kept = [k for k in range(4) if k != j]
        one = [f[:, kept] for f in merged.factors()]
        loss = shares.loss_of_merging(mixture, i, j)
        assert divergence(X, one) - before <= 1.1 * loss + 1e-3 * before


ESTIMATORS = {
    "PoissonCP": PoissonCP,
    "NonnegativeCP": NonnegativeCP,
    "SimilarityCP": SimilarityCP,
    "WassersteinCP": WassersteinCP,
    "GeneralizedCP": partial(GeneralizedCP, loss="poisson"),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_search_tells_of_its_starts_and_keeps_the_best(name, tmp_path):
    X, _ = planted(shape=(20, 9, 8), mean=0.3)
    make = partial(ESTIMATORS[name], 3, init="search", n_init=4, max_iter=4, random_state=0)
    model = make().fit(X)
    table = model.history_.starts_to_frame()
    assert table["kind"].tolist() == ["svd", "move", "move", "move"]
    assert model.objective_ == table["objective"].min()
    assert table["above_best"].min() == 0
    model.save(tmp_path / "model")
    saved = polyad.load(tmp_path / "model").history_.starts_to_frame()
    assert saved.equals(table)


class Killed(BaseException):
    """What no fit catches."""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("killed_at", [2, 6, 10])
def test_a_killed_search_goes_on_to_the_same_bits(killed_at, tmp_path):
    """Killed in the first, second and third start: the moves after it are those of a whole fit."""
    X, _ = planted(shape=(20, 9, 8), mean=0.3)
    make = partial(PoissonCP, 3, init="search", n_init=4, max_iter=4, tol=0.0, random_state=0)
    count = []

    def kill(_):
        count.append(1)
        if len(count) == killed_at:
            raise Killed

    saved = Checkpoint(tmp_path / "search", every=1)
    with pytest.raises(Killed):
        make(checkpoint=saved, callbacks=[kill]).fit(X)
    resumed, whole = make(checkpoint=saved, n_jobs=2).fit(X), make(n_jobs=1).fit(X)
    for one, other in zip(resumed.factors_, whole.factors_, strict=True):
        assert (one == other).all()
    drop = partial(lambda table: table.drop(columns="seconds"))
    assert drop(resumed.history_.starts_to_frame()).equals(drop(whole.history_.starts_to_frame()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n_components", [1, 5])
@pytest.mark.parametrize("init", ["split", "search"])
@pytest.mark.parametrize("content", ["zeros", "one entry", "negative"])
def test_data_that_gives_no_reason_to_split(content, init, n_components):
    X = np.zeros((5, 5, 5))
    X[1, 2, 3] = 1.0 if content == "one entry" else 0.0
    X[0, 0, 0] = -1.0 if content == "negative" else X[0, 0, 0]
    make = partial(NonnegativeCP, init=init, n_init=3, max_iter=3, random_state=0)
    model = make(n_components).fit(X)
    assert all(np.isfinite(factor).all() and (factor >= 0).all() for factor in model.factors_)
