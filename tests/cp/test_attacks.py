"""What broke the package once."""

import signal
import threading

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import CP, KruskalTensor, Status
from polyad.cp.rules import solve_normal
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, NumericalError
from polyad.fitting.driver import FitError
from tests.forks import run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RANK_ONE = np.einsum("i,j,k", np.arange(1, 9.0), np.arange(1, 8.0), np.arange(1, 7.0))


@pytest.mark.parametrize("container", [np.asarray, coo_array])
@pytest.mark.parametrize("seed", range(8))
def test_redundant_components_in_single_precision(container, seed):
    X = RANK_ONE.astype(np.float32)
    model = CP(3, init="random", random_state=seed).fit(container(X))
    error = np.sum((X - model.kruskal_.to_dense().astype(float)) ** 2)
    assert error < 1e-5 * np.sum(X.astype(float) ** 2)


def test_numbers_beyond_the_type_are_not_a_perfect_fit():
    X = RANK_ONE.astype(np.float32)
    factors = [np.ones((n, 2)) * 1e30 for n in X.shape]
    with np.errstate(all="ignore"), pytest.raises((FitError, InvalidInputError)):
        CP(2, init=KruskalTensor(np.ones(2), factors)).fit(X)
    model = CP(1, random_state=0).fit(X)
    model.factors_[1][:] = np.nan
    with pytest.raises(NumericalError):
        model.score(X)


def test_a_batch_beyond_the_type_leaves_the_model():
    model = CP(2, random_state=0).fit(RANK_ONE.astype(np.float32))
    before = [factor.copy() for factor in model.factors_]
    huge = np.random.default_rng(0).random((3, 7, 6)) * 1e30
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="left as it was"):
        model.partial_fit(huge)
    assert all(map(np.array_equal, before, model.factors_))


@pytest.mark.parametrize("missing", ["zero", "unobserved"])
@pytest.mark.parametrize("index", [10**8, -(10**8), -1])
def test_coordinates_that_were_changed_in_place(missing, index):
    X = coo_array(RANK_ONE)
    X.coords[0][5] = index
    with pytest.raises(InvalidInputError, match="index outside"):
        CP(2, init="random", missing=missing).fit(X)


def test_an_interrupt_between_restarts_keeps_the_best():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = CP(3, init="random", n_init=4, random_state=0)
    begin = CP._begin

    def interrupted(self, solver, number, seed):
        if number == 2:
            raise KeyboardInterrupt
        return begin(self, solver, number, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CP, "_begin", interrupted)
        model.fit(X)
    assert model.status_ is Status.INTERRUPTED
    assert model.transform(X).shape == (10, 3)


def test_the_status_is_that_of_what_ended_the_fit():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = CP(3, init="random", n_init=10**6, max_iter=3, tol=0, time_budget=0.2).fit(X)
    assert model.status_ is Status.TIME_BUDGET


def test_overlapping_fits_restore_the_threads_of_the_linear_algebra():
    from threadpoolctl import threadpool_info

    def number_of_threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    X = make_low_rank((40, 30, 20), 3, noise=0.3, random_state=0)[0]
    before = number_of_threads()
    alone = CP(3, random_state=0, max_iter=20).fit(X)
    models = [CP(3, random_state=0, max_iter=20) for _ in range(6)]
    threads = [threading.Thread(target=model.fit, args=(X,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number_of_threads() == before
    assert all(np.array_equal(model.factors_[0], alone.factors_[0]) for model in models)


HANGING = """
import threading
start = threading.Thread.start
def interrupted(self):
    start(self)
    if self.name.startswith("polyad"):
        raise KeyboardInterrupt
threading.Thread.start = interrupted
from polyad.core.threads import run_blocks, thread_limit
try:
    with thread_limit(2):
        run_blocks(lambda: None, [()] * 4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_in_the_start_of_a_thread_does_not_keep_the_process():
    result = run(HANGING, timeout=60)
    assert result.stdout == "interrupted\n"
    assert result.returncode == 0


SIGINT = """
import numpy as np, warnings, os, signal, threading
warnings.simplefilter("ignore")
from polyad import CP
X = np.random.default_rng(0).random((60, 50, 40))
CP(2, max_iter=2).fit(X)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
model = CP(5, max_iter=10**7, tol=0, random_state=0).fit(X)
print(model.status_.value, model.transform(X).shape, flush=True)
"""


def test_a_real_interrupt():
    assert hasattr(signal, "SIGINT")
    result = run(SIGINT)
    assert result.stdout == "interrupted (60, 5)\n", result.stderr


def test_further_samples_with_a_ridge_move_the_weight_the_right_way():
    X = RANK_ONE / 100
    model = CP(1, ridge=1.0, random_state=0, tol=1e-12).fit(X[:7])
    whole = CP(1, ridge=1.0, random_state=0, tol=1e-12).fit(X)
    model.partial_fit(X[7:])
    assert model.weights_[0] == pytest.approx(whole.weights_[0], rel=0.02)


def test_samples_without_observations_are_zero_everywhere():
    X = make_low_rank((6, 5, 4), 2, random_state=0)[0]
    X[2] = np.nan
    with pytest.warns(match="nothing was observed"):
        features = CP(2, init="random", random_state=0).fit_transform(X)
    assert features[2].tolist() == [0, 0]


def test_other_stopping_of_several_restarts_is_another_fit(tmp_path):
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    CP(3, n_init=2, max_iter=3, tol=0, checkpoint=tmp_path / "s", random_state=0).fit(X)
    with pytest.raises(ValueError, match="stopping"):
        CP(3, n_init=2, max_iter=9, tol=0, checkpoint=tmp_path / "s", random_state=0).fit(X)


def test_a_warm_start_goes_on_from_its_checkpoint(tmp_path):
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = CP(3, max_iter=3, tol=0, checkpoint=tmp_path / "s", random_state=0, warm_start=True)
    model.fit(X)
    assert model.set_params(max_iter=6).fit(X).n_iter_ == 6


def test_normal_equations_that_are_not_finite_have_no_solution():
    normal = np.array([[np.inf, 0.0], [0.0, 1.0]])
    assert np.isnan(solve_normal(normal, np.ones((3, 2), np.float32), 0.1)).all()


def test_numpy_booleans_stop_a_fit():
    X = make_low_rank((10, 9, 8), 3, noise=0.3, random_state=0)[0]
    stop = CP(3, tol=0, callbacks=lambda news: np.float64(news.number) >= 3).fit(X)
    assert stop.n_iter_ == 3
