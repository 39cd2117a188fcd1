"""The method against its twin, and what must hold whatever the data."""

import functools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from polyad import WassersteinCP
from polyad.fitting import Status
from polyad.transport import random_cost
from polyad.wasserstein import problem as problems
from polyad.wasserstein.marginals import updated_factor
from tests.wasserstein import twin

# Few iterations are enough for what is tested here, and they end without convergence.
pytestmark = pytest.mark.filterwarnings("ignore:.*max_iter.*")


@pytest.fixture(params=["dense", "kept", "again"])
def path(request, monkeypatch):
    """Marginals as a dense tensor, kept fibre by fibre, or computed again."""
    original = problems.TransportProblem.__init__

    def forced(self, *arguments):
        original(self, *arguments)
        self.is_dense = request.param == "dense"
        self.memory = 0.0 if request.param == "again" else self.memory

    monkeypatch.setattr(problems.TransportProblem, "__init__", forced)
    return request.param


@functools.cache
def twins_run(shape, separate, sharpness):
    """Return data, the names of costs, and the factors and objectives of the twin."""
    X, costs = twin.small_data(shape)
    costs = [None if mode in separate else cost for mode, cost in enumerate(costs)]
    names = ["separate" if cost is None else cost for cost in costs]
    factors, objectives = twin.iterations(X, twin.start_for(X), costs, (0.05, 1.0, sharpness), 2, 3)
    return X, names, factors, objectives


@pytest.mark.parametrize(
    ("shape", "separate"),
    [((7, 4, 3), ()), ((7, 4, 3), (0,)), ((7, 4, 3), (0, 1)), ((8, 5), ()), ((4, 3, 3, 2), (1,))],
)
@pytest.mark.parametrize("sharpness", [0.0, 0.4])
def test_iterates_equal_the_twin(path, shape, separate, sharpness):
    X, names, factors, objectives = twins_run(shape, separate, sharpness)
    weights = {"epsilon": 0.05, "marginal_penalty": 1.0, "sharpness": sharpness}
    model = WassersteinCP(
        3, costs=names, init=twin.start_for(X), inner_iter=2, max_iter=3, tol=0.0, **weights
    ).fit(coo_array(X))
    # The transports of a fit are solved to a residual of 1e-7, and the factors follow them.
    np.testing.assert_allclose(model.history_.objective, objectives, rtol=1e-7)
    for ours, theirs in zip(model.factors_[1:], factors[1:], strict=True):
        lengths = np.linalg.norm(theirs, axis=0)
        columns = theirs / lengths
        order = [int(np.argmax(column @ columns)) for column in ours.T]
        np.testing.assert_allclose(ours, columns[:, order], rtol=1e-6, atol=1e-9)


def test_an_objective_below_zero_is_not_the_end():
    # Where entropy weighs more than the divergences, the objective passes zero on its way down.
    X, _ = twin.small_data((9, 5, 4))
    model = WassersteinCP(4, epsilon=0.1, marginal_penalty=0.02, random_state=0).fit(X)
    objective = np.array(model.history_.objective)
    assert objective[-1] < 0
    assert np.count_nonzero(objective < 0) > 2
    change = (objective[-2] - objective[-1]) / (3 * 0.02 * X.sum())
    assert change <= model.tol


@settings(max_examples=6)
@given(
    seed=st.integers(0, 10_000),
    rank=st.integers(1, 4),
    weights=st.tuples(
        st.sampled_from([1e-4, 1e-3, 0.02, 0.1, 1.0]), st.sampled_from([0.1, 1.0, 10.0])
    ),
    costs=st.sampled_from([None, "presence", "cosine", "one-identity", "random", "tfidf"]),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    sharpness=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_objective_never_rises(seed, rank, weights, costs, scale, sharpness):
    epsilon, penalty = weights
    X, _ = twin.small_data((6, 5, 4), seed)
    model = WassersteinCP(
        rank,
        costs=costs,
        epsilon=epsilon,
        marginal_penalty=penalty,
        sharpness=sharpness,
        random_state=seed,
        max_iter=8,
        tol=0.0,
    ).fit(scale * X)
    objective = np.array(model.history_.objective)
    assert np.isfinite(objective).all()
    rounding = 1e-9 * 3 * (penalty + sharpness * epsilon) * X.sum() * scale
    assert (np.diff(objective) <= rounding).all()
    assert all(np.isfinite(factor).all() for factor in model.factors_)
    assert all((factor >= 0).all() for factor in model.factors_)


@pytest.mark.parametrize("epsilon", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning")
def test_any_epsilon_goes_with_full_sharpness(epsilon, dtype):
    """Where marginals follow the model almost wholly, the bound is lowest far out of range."""
    X, _ = twin.small_data()
    model = WassersteinCP(2, epsilon=epsilon, sharpness=1.0, marginal_penalty=1.0, random_state=0)
    objective = np.array(model.fit(X.astype(dtype)).history_.objective)
    rounding = 3 * X.sum() * np.finfo(dtype).eps * epsilon
    assert (np.diff(objective) <= rounding).all()
    assert all(np.isfinite(factor).all() for factor in model.factors_)
    # That of no model at all: it costs more to put mass where no fibre is.
    assert model.status_ is Status.CONVERGED
    assert model.objective_ <= 3 * X.sum() * (1 + 8 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("epsilon", "penalty", "scale"), [(1.0, 1.0, 1.0), (0.05, 1e-3, 1.0), (0.05, 1.0, 1e-12)]
)
def test_an_objective_below_zero_is_no_reason_to_stop(epsilon, penalty, scale):
    """The entropy makes the loss negative, for a large epsilon from the start."""
    X, _ = twin.small_data()
    weights = {"epsilon": epsilon, "marginal_penalty": penalty}
    model = WassersteinCP(2, tol=1e-6, random_state=0, **weights).fit(scale * X)
    assert model.objective_ < 0
    assert model.status_ is Status.CONVERGED
    assert model.n_iter_ > 3
    # More iterations from there find next to nothing.
    model.set_params(warm_start=True, max_iter=50, tol=0.0)
    before = model.objective_
    assert model.fit(scale * X).objective_ >= before - 2e-4 * abs(before)


def test_permuted_slices_with_their_costs_permute_the_rows():
    X, costs = twin.small_data()
    order = np.random.default_rng(0).permutation(X.shape[1])
    start = twin.start_for(X)
    permuted = [start[0], start[1][order], start[2]]
    one = WassersteinCP(3, costs={1: costs[1]}, init=start, max_iter=4, tol=0.0).fit(X)
    changed = {1: costs[1][np.ix_(order, order)]}
    two = WassersteinCP(3, costs=changed, init=permuted, max_iter=4, tol=0.0).fit(X[:, order])
    np.testing.assert_allclose(one.factors_[1][order], two.factors_[1], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(one.factors_[2], two.factors_[2], rtol=1e-7, atol=1e-12)


def test_permuted_components_are_the_same_model():
    X, costs = twin.small_data()
    start, order = twin.start_for(X), [2, 0, 1]
    permuted = [factor[:, order] for factor in start]
    one = WassersteinCP(3, costs=costs, init=start, max_iter=4, tol=0.0).fit(X)
    two = WassersteinCP(3, costs=costs, init=permuted, max_iter=4, tol=0.0).fit(X)
    np.testing.assert_allclose(one.history_.objective, two.history_.objective, rtol=1e-10)
    for left, right in zip(one.factors_, two.factors_, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-12)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    rank=st.integers(1, 4),
    shape=st.sampled_from([(5, 4), (4, 3, 3), (3, 3, 2, 2)]),
)
def test_an_update_never_raises_the_bound_of_the_objective(seed, rank, shape):
    """Plans whose rows follow the model bound the objective; each factor update lowers that."""
    generator = np.random.default_rng(seed)
    X, _ = twin.small_data(shape, seed)
    X[0, 0] += 1.0
    costs, weights = [random_cost(size, seed) for size in shape], (0.1, 1.0)
    tensor = problems.SparseTensor(coo_array(X))
    problem = problems.TransportProblem(tensor, costs, problems.TransportSettings(*weights), 1e9)
    factors = [generator.uniform(0.1, 2.0, (size, rank)) for size in shape]
    held = problem.evaluate(factors, problem.cold_potentials()).marginals
    first = twin.model_of(factors)
    plans = sum(twin.marginals(X, first, costs, *weights))

    def bound():
        model = twin.model_of(factors)
        moved = np.sum(plans * (model / first) ** (1 / 2.1))
        return len(shape) * (model.sum() + X.sum()) - 2.1 * moved

    before = bound()
    np.testing.assert_allclose(twin.objective(X, factors, costs, *weights), before, rtol=1e-9)
    for mode in (*range(len(shape)), 0):
        factors[mode] = updated_factor(held, factors, mode)
        after = bound()
        assert after <= before + 1e-9 * X.sum()
        assert twin.objective(X, factors, costs, *weights) <= after + 1e-9 * X.sum()
        before = after


def test_the_published_schedule_is_close_where_it_has_converged():
    """With lambda rho = 1, 25 of Sinkhorn's steps are exact."""
    X, costs = twin.small_data()
    tensor = problems.SparseTensor(coo_array(X))
    found = []
    for n_steps in (None, 25):
        rules = problems.TransportSettings(0.1, 0.1, n_steps)
        problem = problems.TransportProblem(tensor, costs, rules, 1e9)
        found.append(problem.evaluate(twin.start_for(X), problem.cold_potentials()).objective)
    np.testing.assert_allclose(*found, rtol=1e-7)


def test_the_published_schedule_ends_above_the_exact_one():
    X, _ = twin.small_data()
    common = {"epsilon": 0.01, "random_state": 0, "max_iter": 30, "tol": 0.0}
    exact = WassersteinCP(2, **common).fit(X)
    published = WassersteinCP(2, transport="sinkhorn", **common).fit(X)
    again = WassersteinCP(2, **{**common, "max_iter": 1}, init=published.kruskal_).fit(X)
    assert again.history_.objective[0] > 1.001 * exact.objective_


def test_a_sharp_kernel_and_no_overlap_stay_finite():
    X = np.zeros((4, 3, 3))
    X[0, 0, 0] = X[1, 1, 1] = X[2, 2, 2] = 5.0
    for rho in (1e3, 1e4):
        model = WassersteinCP(2, epsilon=1 / rho, costs="one-identity", random_state=0, max_iter=20)
        assert np.isfinite(model.fit(X).objective_)


def test_the_memory_limit_is_a_ceiling():
    """Marginals take 26 MB here, and 43 MB as a dense tensor."""
    shape, generator = (300, 150, 120), np.random.default_rng(0)
    coords = tuple(generator.integers(0, size, 12_000) for size in shape)
    X = coo_array((np.ones(12_000), coords), shape=shape)
    start = [generator.random((size, 2)) for size in shape]
    peaks, objectives = [], []
    for limit in (0.01, 4.0):
        # The samples are held: their rows alone would be solved again and again.
        model = WassersteinCP(
            2, init=start, fixed_modes=[0], max_iter=1, inner_iter=1, memory_limit=limit, n_jobs=1
        )
        tracemalloc.start()
        objectives.append(model.fit(X).objective_)
        peaks.append(tracemalloc.get_traced_memory()[1] / 2**30)
        tracemalloc.stop()
    # Blocks of fibres that are worked on come on top.
    assert peaks[0] < 0.01 + 0.005 < 0.024 < peaks[1]
    np.testing.assert_allclose(objectives[0], objectives[1], rtol=1e-12)


def test_planted_factors_are_found():
    """Block structure with a cost that tells the blocks apart."""
    generator = np.random.default_rng(0)
    members = [np.repeat(np.eye(3), count, axis=0) for count in (10, 4, 3)]
    factors = [member * generator.uniform(0.5, 1.5, member.shape) for member in members]
    X = twin.model_of(factors) * 10
    model = WassersteinCP(3, epsilon=0.01, marginal_penalty=10.0, random_state=0, n_init=3).fit(X)
    from polyad import factor_match_score

    assert factor_match_score(model.kruskal_, (np.ones(3), factors)) > 0.98


def test_the_history_tells_of_transports_and_components():
    X, _ = twin.small_data()
    model = WassersteinCP(2, random_state=0, max_iter=300, tol=1e-6).fit(X)
    assert model.status_ is Status.CONVERGED
    assert all(record["unsolved"] == 0 and record["dead"] == 0 for record in model.history_)
