"""The sampled solver: it finds planted components, and always the same ones."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning

from polyad import GeneralizedCP
from polyad.core.threads import thread_limit
from polyad.cp.generalized import adam, problem
from polyad.cp.generalized.adam import AdamOptions, AdamSolver
from polyad.fitting import Checkpoint, Status
from polyad.fitting.archive import read_archive, write_archive
from polyad.fitting.checkpoint import restored_result, stored_result
from polyad.fitting.driver import FitOptions, begin, run
from polyad.losses import (
    BernoulliLogitLoss,
    BernoulliOddsLoss,
    CustomLoss,
    GaussianLoss,
    PoissonLoss,
)
from polyad.tensor.alignment import factor_match_score
from polyad.tensor.kruskal import KruskalTensor
from tests.cp.generalized.planted import (
    dense_model,
    exact_gradient,
    exact_sum,
    planted,
    positive_start,
    problem_of,
    random_sparse,
)


def solver_of(tensor, loss, *, ridge=0.0, fixed_modes=(), **options):
    return AdamSolver(
        problem_of(tensor, loss),
        ridge=ridge,
        fixed_modes=fixed_modes,
        options=AdamOptions(**options),
    )


def fitted(solver, start, *, max_iter=60, tol=1e-5):
    return run(solver, begin(solver, solver.init(start)), FitOptions(max_iter=max_iter, tol=tol))


def match(factors, truth):
    ones = np.ones(truth[0].shape[1])
    return factor_match_score(
        KruskalTensor(ones, list(factors)), KruskalTensor(ones, list(truth)), weights=False
    )


@pytest.mark.parametrize("binary", [False, True], ids=["poisson", "bernoulli"])
def test_planted_components_are_found(binary):
    tensor, truth = planted((40, 35, 25), 3, 4000, binary=binary)
    loss = BernoulliOddsLoss() if binary else PoissonLoss()
    solver = solver_of(tensor, loss)
    result = fitted(solver, positive_start(tensor, 3))
    assert result.status is Status.CONVERGED
    assert match(solver.factors(solver.finish(result.state)), truth) > 0.9
    # The estimate at the end is that of all cells.
    exact = exact_sum(loss, tensor, result.state.factors)
    assert abs(result.best_objective - exact) <= 5 * result.state.standard_error + 1e-6 * exact


def test_objective_is_estimated_without_bias_and_with_its_error():
    """The shape has too many cells to visit all; a dense sum is the oracle."""
    loss = BernoulliLogitLoss()
    tensor = random_sparse((80, 75, 70), 4000)
    tensor.data[:] = 1.0
    generator = np.random.default_rng(0)
    factors = [generator.standard_normal((n, 2)) for n in tensor.shape]
    exact = exact_sum(loss, tensor, factors)
    found = []
    for seed in range(12):
        solver = solver_of(tensor, loss, seed=seed)
        state = solver.init(factors)
        found.append((state.objective - exact) / state.standard_error)
        assert solver.diagnostics(state)["standard_error"] < 0.01 * exact
    assert abs(np.mean(found)) < 4 / math.sqrt(12)
    assert 0.3 < np.std(found) < 2.0


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    n_draws=st.integers(1, 30),
    seed=st.integers(0, 99),
)
@settings(max_examples=10, deadline=None)
def test_small_tensors_have_exact_objectives(shape, n_draws, seed):
    tensor = random_sparse(shape, n_draws, seed=seed)
    solver = solver_of(tensor, PoissonLoss())
    start = positive_start(tensor, 2, seed)
    state = solver.init(start)
    assert state.objective == pytest.approx(exact_sum(PoissonLoss(), tensor, start))
    assert state.standard_error == 0


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_small_tensors_reach_the_minimum(ridge):
    """All cells in each update: the end is a minimum that a quasi-Newton method cannot improve."""
    loss = GaussianLoss()
    tensor = random_sparse((6, 5, 4), 40)
    solver = solver_of(tensor, loss, ridge=ridge, tol=0)
    result = fitted(solver, positive_start(tensor, 2), tol=0, max_iter=8)
    factors = result.state.factors
    splits = np.cumsum([factor.size for factor in factors])[:-1]

    def value_and_gradient(flat):
        own = [part.reshape(-1, 2) for part in np.split(flat, splits)]
        gradient = np.concatenate([g.ravel() for g in exact_gradient(loss, tensor, own)])
        return exact_sum(loss, tensor, own) + 0.5 * ridge * flat @ flat, gradient + ridge * flat

    flat = np.concatenate([factor.ravel() for factor in factors])
    value = value_and_gradient(flat)[0]
    assert result.best_objective == pytest.approx(value)
    best = minimize(value_and_gradient, flat, jac=True, method="L-BFGS-B")
    assert best.fun > (1 - 1e-3) * value


def test_a_failed_epoch_is_forgotten():
    tensor, _ = planted((60, 50, 40), 2, 3000)
    solver = solver_of(tensor, PoissonLoss(), learning_rate=1e3, batch_size=2000, tol=0)
    start = solver.init(positive_start(tensor, 2))
    state = solver.step(start)
    assert state.objective <= start.objective
    assert state.failures > 0
    assert state.rate < 1e3
    assert state.drawn > state.updates
    # The state that was given is as it was.
    assert start.updates == start.drawn == 0
    assert start.objective == solver.init(positive_start(tensor, 2)).objective


def test_objective_never_rises_and_the_end_is_the_least_rate():
    tensor, _ = planted((60, 50, 40), 2, 3000)
    solver = solver_of(tensor, PoissonLoss(), batch_size=500, epoch_iter=20, tol=1e-4)
    result = fitted(solver, positive_start(tensor, 2), max_iter=200, tol=1e-4)
    objectives = result.history.objective
    assert all(after <= before for before, after in pairwise(objectives))
    assert result.status is Status.CONVERGED
    assert result.state.failures == 4
    assert result.history.records[-1]["learning_rate"] == pytest.approx(0.1 * 0.3**4)


def run_for(tensor, n_jobs, **options):
    with thread_limit(n_jobs):
        solver = solver_of(tensor, PoissonLoss(), epoch_iter=15, **options)
        return fitted(solver, positive_start(tensor, 3), max_iter=2)


@pytest.mark.parametrize("shape", [(75, 60, 40), (20, 15, 10, 10), (200, 150)], ids=len)
def test_threads_do_not_matter(shape, monkeypatch):
    monkeypatch.setattr(adam, "_BLOCK", 1 << 10)
    tensor = random_sparse(shape, 2500)
    first, second = (run_for(tensor, n_jobs, batch_size=5000) for n_jobs in (1, 2))
    assert first.history.objective == second.history.objective
    for a, b in zip(first.state.factors, second.state.factors, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path):
    tensor, _ = planted((60, 50, 40), 2, 3000)
    start = positive_start(tensor, 2)
    options = {"batch_size": 1000, "epoch_iter": 15, "seed": 7}
    whole = fitted(solver_of(tensor, PoissonLoss(), **options), start, max_iter=9, tol=0)
    solver = solver_of(tensor, PoissonLoss(), **options)
    half = fitted(solver, start, max_iter=4, tol=0)
    path = tmp_path / "state"
    write_archive(path, "checkpoint", stored_result(half))
    # Another solver, with another seed: the one of the fit is in the state.
    other = solver_of(tensor, PoissonLoss(), **{**options, "seed": 8})
    resumed = restored_result(read_archive(path, "checkpoint"), half.last)
    resumed.state, resumed.last = other.adopt(resumed.state), other.adopt(resumed.last)
    resumed = run(other, resumed, FitOptions(max_iter=9, tol=0))
    assert resumed.history.objective == whole.history.objective
    for name in ("factors", "first", "second"):
        pairs = zip(getattr(whole.state, name), getattr(resumed.state, name), strict=True)
        assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    assert whole.state.drawn == resumed.state.drawn


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_unit_of_the_data_does_not_matter(scale):
    tensor, _ = planted((9, 8, 7), 2, 200)
    scaled = tensor * scale
    plain = solver_of(tensor, GaussianLoss(), batch_size=100, epoch_iter=40)
    other = solver_of(scaled, GaussianLoss(), batch_size=100, epoch_iter=40)
    start = positive_start(tensor, 2)
    one = fitted(plain, start)
    two = fitted(other, [factor * scale ** (1 / 3) for factor in start])
    assert two.best_objective == pytest.approx(one.best_objective * scale**2, rel=1e-3)
    assert match(one.state.factors, two.state.factors) > 0.999


def test_rows_without_entries_vanish():
    tensor, _ = planted((60, 50, 40), 2, 3000)
    wider = coo_array((tensor.data, tensor.coords), shape=(63, 50, 41))
    solver = solver_of(wider, PoissonLoss(), batch_size=1000)
    result = fitted(solver, positive_start(wider, 2), max_iter=10)
    assert (result.state.factors[0][60:] == 0).all()
    assert (result.state.factors[2][40:] == 0).all()
    assert np.isfinite(result.best_objective)


@pytest.mark.parametrize("stored", [0, 1])
def test_nearly_empty_tensors(stored):
    coords = tuple(np.zeros(stored, int) for _ in range(3))
    tensor = coo_array((np.ones(stored), coords), shape=(200, 100, 50))
    solver = solver_of(tensor, PoissonLoss(), epoch_iter=30)
    result = fitted(solver, positive_start(tensor, 1), max_iter=3)
    assert np.isfinite(result.best_objective)
    assert all(np.isfinite(factor).all() for factor in result.state.factors)
    zeros = [np.zeros((n, 1)) for n in tensor.shape]
    assert np.isfinite(solver_of(tensor, PoissonLoss()).init(zeros).objective)


def test_full_tensors_have_no_zeros_to_draw():
    generator = np.random.default_rng(0)
    tensor = coo_array(generator.poisson(3.0, (10, 8, 6)) + 1.0)
    result = fitted(
        solver_of(tensor, PoissonLoss(), batch_size=160), positive_start(tensor, 2), max_iter=10
    )
    model = dense_model(result.state.factors)
    assert model.mean() == pytest.approx(tensor.data.mean(), rel=0.05)


def test_fixed_modes_keep_their_factors():
    tensor, _ = planted((60, 50, 40), 2, 3000)
    start = positive_start(tensor, 2)
    result = fitted(solver_of(tensor, PoissonLoss(), fixed_modes=[1]), start, max_iter=3)
    assert (result.state.factors[1] == start[1]).all()
    assert result.best_objective < result.history.objective[0]


def test_losses_of_users():
    """The same numbers as the named loss, without its help for the curvature."""
    tensor, _ = planted((60, 50, 40), 2, 3000)
    own = CustomLoss(lambda x, m: (x - m) ** 2, lambda x, m: 2 * (m - x), lower=0.0)
    solver = solver_of(tensor, own, batch_size=3000)
    result = fitted(solver, positive_start(tensor, 2), max_iter=10)
    exact = exact_sum(own, tensor, result.state.factors)
    assert result.best_objective == pytest.approx(exact, rel=1e-6)
    assert exact < np.sum(tensor.data**2)


def test_more_cells_than_64_bits_count():
    shape = (10_000,) * 5
    assert math.prod(shape) > 2**64
    generator = np.random.default_rng(0)
    coords = tuple(generator.integers(0, 10_000, size=(5, 50)))
    tensor = coo_array((generator.poisson(2.0, 50) + 1.0, coords), shape=shape)
    solver = solver_of(tensor, PoissonLoss(), epoch_iter=20, batch_size=1000)
    result = fitted(solver, positive_start(tensor, 1), max_iter=2)
    assert result.best_objective < result.history.objective[0]


def test_the_estimator_samples_where_cells_are_too_many(monkeypatch):
    """The solver is chosen by the number of cells, and can be asked for."""
    monkeypatch.setattr(problem, "MAX_CELLS", 20_000)
    tensor, truth = planted((20, 50, 40), 2, 3000, binary=True)
    model = GeneralizedCP(2, loss="bernoulli", random_state=0).fit(tensor)
    assert "standard_error" in model.history_.records[-1]
    assert match(model.factors_[1:], truth[1:]) > 0.9
    small = random_sparse((20, 10, 8), 100)
    exact = GeneralizedCP(2, loss="poisson", random_state=0).fit(small)
    assert "standard_error" not in exact.history_.records[-1]
    sampled = GeneralizedCP(2, loss="poisson", solver="adam", random_state=0).fit(small)
    assert sampled.history_.records[-1]["standard_error"] == 0
    assert sampled.objective_ == pytest.approx(exact.objective_, rel=0.1)


def test_the_estimator_goes_on_from_a_checkpoint_without_a_seed(tmp_path):
    """The seed of the samples is in the state: a resumed fit needs no random_state."""
    tensor, _ = planted((60, 50, 40), 2, 3000)
    parameters = {"loss": "poisson", "solver": "adam", "batch_size": 1000, "tol": 0}
    path = tmp_path / "state"
    with pytest.warns(ConvergenceWarning):
        GeneralizedCP(2, **parameters, max_iter=2, checkpoint=Checkpoint(path, every=1)).fit(tensor)
    saved = path.read_bytes()
    found = []
    for _ in range(2):
        path.write_bytes(saved)
        with pytest.warns(ConvergenceWarning):
            model = GeneralizedCP(2, **parameters, max_iter=5, checkpoint=path).fit(tensor)
        found.append(model.history_.objective)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("parameters", "data", "named"),
    [
        ({"solver": "adam"}, np.ones((4, 3, 2)), "lbfgs"),
        ({"solver": "adam", "missing": "unobserved"}, random_sparse((4, 3, 2), 9), "lbfgs"),
        ({"batch_size": 0}, random_sparse((4, 3, 2), 9), "batch_size"),
        ({"learning_rate": 0.0}, random_sparse((4, 3, 2), 9), "learning_rate"),
        ({"epoch_iter": 0}, random_sparse((4, 3, 2), 9), "epoch_iter"),
        ({"solver": "lbfgs"}, random_sparse((900, 800, 700), 9), "adam"),
    ],
)
def test_bad_parameters_are_refused(parameters, data, named):
    loss = "negative-binomial"
    with pytest.raises(ValueError, match=named):
        GeneralizedCP(1, loss=loss, **parameters).fit(data)
