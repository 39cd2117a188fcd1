"""A fit that is killed and started again gives the numbers of one that was not."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import CP, Checkpoint, NonnegativeCP, PoissonCP

SCRIPT = """
import sys
import numpy as np
from polyad import CP, Checkpoint
from polyad.datasets import make_low_rank, make_sparse

kind, path, out = sys.argv[1:]
if kind == "sparse":
    X = make_sparse((120, 90, 60), 20_000, random_state=0)
else:
    X = make_low_rank((60, 50, 40), 6, noise=0.5, random_state=0)[0]
print("ready", flush=True)
model = CP(
    6, init="random", n_init=2, max_iter=60, tol=0, random_state=3, ridge=0.1,
    checkpoint=Checkpoint(path, every=1) if path else None,
)
model.fit(X)
np.savez(out, model.weights_, *model.factors_)
"""


def run(*arguments, kill_after=None):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, kind):
    whole, resumed, path = tmp_path / "whole.npz", tmp_path / "resumed.npz", tmp_path / "state"
    assert run(kind, "", whole) == 0
    kills = 0
    for delay in (0.05, 0.15, 0.3, 0.1):
        killed = run(kind, path, resumed, kill_after=delay) == -signal.SIGKILL
        kills += killed and not resumed.exists()
    assert run(kind, path, resumed) == 0
    assert kills >= 1
    with np.load(whole) as first, np.load(resumed) as second:
        assert first.files == second.files
        for name in first.files:
            assert first[name].tobytes() == second[name].tobytes()
    assert set(os.listdir(tmp_path)) == {"whole.npz", "resumed.npz", "state"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("convert", [np.asarray, torch.asarray, coo_array])
@pytest.mark.parametrize("estimator", [CP, NonnegativeCP, PoissonCP])
def test_every_member_goes_on_in_the_arrays_of_its_data(tmp_path, estimator, convert):
    data = convert(np.random.default_rng(0).random((8, 7, 6)).astype(np.float32))
    whole = estimator(2, max_iter=6, tol=0, random_state=0).fit(data)
    saved = Checkpoint(tmp_path / "state", every=1)
    estimator(2, max_iter=3, tol=0, random_state=0, checkpoint=saved).fit(data)
    resumed = estimator(2, max_iter=6, tol=0, random_state=0, checkpoint=saved).fit(data)
    for first, second in zip(whole.factors_, resumed.factors_, strict=True):
        assert type(first) is type(second)
        assert first.dtype == second.dtype
        assert np.array_equal(first, second)
