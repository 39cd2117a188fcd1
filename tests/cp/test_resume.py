"""A fit that is killed and started again gives the numbers of one that was not."""

import os
from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import CP, Checkpoint, NonnegativeCP, PoissonCP
from tests.forks import run

# One process imports, and each fit is a fork of it that may be killed.
SCRIPT = """
import os, signal, sys, time, warnings
import numpy as np
from polyad import CP, Checkpoint
from polyad.datasets import make_low_rank, make_sparse

warnings.simplefilter("ignore")
data = {
    "sparse": make_sparse((120, 90, 60), 20_000, random_state=0),
    "dense": make_low_rank((60, 50, 40), 6, noise=0.5, random_state=0)[0],
}

def run(X, folder, out, checkpoint=None, kill_after=None):
    child = os.fork()
    if not child:
        model = CP(
            6, init="random", n_init=2, max_iter=40, tol=0, random_state=3, ridge=0.1,
            checkpoint=checkpoint,
        )
        model.fit(X)
        np.savez(f"{folder}/{out}", model.weights_, *model.factors_)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

for kind, X in data.items():
    folder = f"{sys.argv[1]}/{kind}"
    os.mkdir(folder)
    assert run(X, folder, "whole.npz") == 0
    checkpoint = Checkpoint(f"{folder}/state", every=1)
    kills = 0
    for delay in (0.05, 0.15):
        killed = run(X, folder, "resumed.npz", checkpoint, delay) == signal.SIGKILL
        kills += killed and not os.path.exists(f"{folder}/resumed.npz")
    assert run(X, folder, "resumed.npz", checkpoint) == 0
    print(kills)
"""


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    done = run(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stderr
    kills = [int(line) for line in done.stdout.splitlines()]
    assert len(kills) == 2
    assert min(kills) >= 1
    for folder in (tmp_path / "dense", tmp_path / "sparse"):
        with np.load(folder / "whole.npz") as first, np.load(folder / "resumed.npz") as second:
            assert first.files == second.files
            for name in first.files:
                assert first[name].tobytes() == second[name].tobytes()
        assert set(os.listdir(folder)) == {"whole.npz", "resumed.npz", "state"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("convert", [np.asarray, torch.asarray, coo_array])
@pytest.mark.parametrize("estimator", [CP, NonnegativeCP, PoissonCP])
def test_every_member_goes_on_in_the_arrays_of_its_data(tmp_path, monkeypatch, estimator, convert):
    # The minimum for the samples, which ends a fit, takes torch thousands of small operations.
    monkeypatch.setattr("polyad.cp.nonnegative.solver._EXACT_SWEEPS", 50)
    data = convert(np.random.default_rng(0).random((8, 7, 6)).astype(np.float32))
    of = partial(estimator, 2, init="svd", tol=0, random_state=0)  # one fit can be prolonged
    whole = of(max_iter=6).fit(data)
    saved = Checkpoint(tmp_path / "state", every=1)
    of(max_iter=3, checkpoint=saved).fit(data)
    resumed = of(max_iter=6, checkpoint=saved).fit(data)
    for first, second in zip(whole.factors_, resumed.factors_, strict=True):
        assert type(first) is type(second)
        assert first.dtype == second.dtype
        assert np.array_equal(first, second)
