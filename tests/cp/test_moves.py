"""Starts made of components: singular pairs, splits and merges, and the search over them."""

import threading
import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning

import polyad
from polyad import GeneralizedCP, NonnegativeCP, PoissonCP, SimilarityCP, WassersteinCP
from polyad.cp import moves
from polyad.cp.poisson.solver import PoissonSolver
from polyad.cp.problem import build_problem
from polyad.cp.start import nonnegative_svd_start
from polyad.fitting import Checkpoint, History
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
    right = moves.nonnegative_moves(SparseTensor(X), wrong)(0)
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


def same(one, other):
    """Say whether two fits gave the same bits, and tell the same of their starts."""
    tables = [model.history_.starts_to_frame().drop(columns="seconds") for model in (one, other)]
    pairs = zip(one.factors_, other.factors_, strict=True)
    return tables[0].equals(tables[1]) and all((a == b).all() for a, b in pairs)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_jobs", [1, 3])
@pytest.mark.parametrize("killed_at", [2, 9, 20])
def test_a_killed_search_goes_on_to_the_same_bits(killed_at, n_jobs, tmp_path, monkeypatch):
    """Killed in the first, second and a later start, alone or beside others, on other threads."""
    X, _ = planted(shape=(20, 9, 8), mean=0.3)
    make = partial(PoissonCP, 3, init="search", n_init=5, max_iter=7, tol=0.0, random_state=0)
    saved, step, count = Checkpoint(tmp_path / "search", every=1), PoissonSolver.step, []

    def killed(solver, state):
        count.append(1)
        if len(count) == killed_at:
            raise Killed
        return step(solver, state)

    with monkeypatch.context() as patch:
        patch.setattr(PoissonSolver, "step", killed)
        with pytest.raises(Killed):
            make(checkpoint=saved, n_jobs=n_jobs).fit(X)
    resumed, whole = make(checkpoint=saved, n_jobs=4 - n_jobs).fit(X), make(n_jobs=1).fit(X)
    assert same(resumed, whole)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("init", ["search", "random"])
@pytest.mark.parametrize("name", ["CP", "NonnegativeCP", "PoissonCP", "GeneralizedCP"])
def test_fits_side_by_side_are_those_of_one_after_another(name, init):
    X, _ = planted(shape=(20, 9, 8), mean=0.3)
    kind = {"CP": polyad.CP, **ESTIMATORS}[name]
    make = partial(kind, 4, init=init, n_init=6, max_iter=15, random_state=0)
    alone = make(n_jobs=1).fit(X)
    assert len(alone.history_.starts) == 6
    assert same(make(n_jobs=3).fit(X), alone)
    # A callback sees one start after another.
    seen = []
    watched = make(n_jobs=3, callbacks=lambda iteration: seen.append(iteration.number)).fit(X)
    assert same(watched, alone)
    assert [n for n in seen if n == 1] == [1] * 6
    assert all(after in (before + 1, 1) for before, after in pairwise(seen))


@pytest.mark.parametrize("ending", ["interrupted", "time_budget"])
def test_a_search_side_by_side_that_is_ended_gives_what_it_has(ending, monkeypatch):
    X, _ = planted(shape=(20, 9, 8), mean=0.3)
    step, count, begun = PoissonSolver.step, [], threading.Event()

    def ended(solver, state):
        count.append(1)
        if ending == "time_budget":
            time.sleep(0.01)
        elif threading.current_thread() is not threading.main_thread():
            begun.set()
        elif len(count) > 30 and begun.is_set():
            raise KeyboardInterrupt
        return step(solver, state)

    monkeypatch.setattr(PoissonSolver, "step", ended)
    budget = 0.5 if ending == "time_budget" else None
    model = PoissonCP(
        3, init="search", n_init=200, tol=0.0, max_iter=20, n_jobs=2, time_budget=budget
    )
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    assert model.status_.value == ending
    table = model.history_.starts_to_frame()
    assert 1 <= len(table) < 200
    assert model.objective_ == table["objective"].min()
    np.testing.assert_allclose(divergence(X, _loaded(model)), model.objective_)


def _loaded(model):
    return [model.factors_[0] * model.weights_, *model.factors_[1:]]


def test_a_move_descends_and_is_given_up_when_it_cannot_win():
    X, _ = planted(n_components=6, mean=0.5)
    histories = []

    def watch(iteration):
        if iteration.number == 1:
            histories.append(iteration.history)

    model = PoissonCP(6, init="search", n_init=8, random_state=0, callbacks=watch).fit(X)
    starts = model.history_.starts
    assert len(histories) == len(starts) == 8
    best = starts[0]["objective"]
    for start, history in zip(starts[1:], histories[1:], strict=True):
        values = np.array(history.objective)
        assert (np.diff(values) <= 1e-9 * values[0]).all()
        lacking = values[-1] - best
        if lacking > 0:
            assert start["objective"] > best
            # Given up when it lacks more than twenty times the last step, not before the fifth.
            steps = -np.diff(values)
            too_far = values[1:] - histories[0].objective[-1] > 20 * steps
            assert not too_far[4:-1].any() or lacking < values[-1] * 1e-3
        best = min(best, start["objective"])
    assert model.objective_ == best


def test_a_search_is_the_same_for_every_seed():
    X, _ = planted(n_components=6, mean=0.5)
    one, other = (PoissonCP(6, init="search", random_state=seed).fit(X) for seed in (0, 1))
    assert len(one.history_.starts) == 3
    assert same(one, other)


def test_a_user_is_told_of_another_answer():
    """Two components of equal counts that one of two could be: no start is better."""
    X = np.zeros((6, 4, 4))
    for k in range(3):
        X[2 * k : 2 * k + 2, k, k] = 5.0
    given = [{"start": k, "kind": "random", "objective": 10.0 + k / 1e3} for k in range(2)]
    model = PoissonCP(2, init="random", n_init=6, random_state=0).fit(coo_array(X))
    table = model.history_.starts_to_frame()
    assert table["match"][table["above_best"] == 0].iloc[0] == 1
    assert table["match"].min() < 0.9
    with pytest.warns(polyad.exceptions.DataWarning, match="one of several answers"):
        model.summary()
    for match, above, told in [(0.5, 1e-3, True), (0.95, 1e-3, False), (0.5, 1.0, False)]:
        given[0]["match"], given[1]["match"] = 1.0, match
        given[1]["objective"] = given[0]["objective"] + above
        history = History(starts=given)
        assert bool(history.rival) is told
    assert not History(starts=given[:1]).rival


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
