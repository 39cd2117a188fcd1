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
from polyad.datasets import make_low_rank
from polyad.exceptions import CheckpointError

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
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path):
    X = make_low_rank((12, 9, 8), 3, noise=0.3, random_state=0)[0]
    whole = CP(3, random_state=0, max_iter=20, tol=0).fit(X)
    path = tmp_path / "state"
    CP(3, random_state=0, max_iter=8, tol=0, checkpoint=path).fit(X)
    numbers = []
    longer = CP(
        3,
        random_state=0,
        max_iter=20,
        tol=0,
        checkpoint=path,
        callbacks=lambda it: numbers.append(it.number),
    ).fit(X)
    assert numbers == list(range(9, 21))
    assert np.array_equal(longer.factors_[1], whole.factors_[1])
    assert longer.history_.objective == whole.history_.objective


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_components": 4}, "n_components"),
        ({"ridge": 1.0}, "ridge"),
        ({"init": "random"}, "init"),
        ({"random_state": 1}, "random_state"),
        ({"missing": "unobserved"}, "missing"),
    ],
)
def test_other_parameters_are_refused(tmp_path, change, named):
    X = coo_array(make_low_rank((12, 9, 8), 3, noise=0.3, random_state=0)[0])
    parameters = {"n_components": 3, "random_state": 0, "max_iter": 3}
    CP(**parameters, checkpoint=tmp_path / "state").fit(X)
    with pytest.raises(CheckpointError, match=named):
        CP(**{**parameters, **change}, checkpoint=tmp_path / "state").fit(X)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_other_data_is_refused(tmp_path):
    X = make_low_rank((12, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = CP(3, random_state=0, max_iter=3, checkpoint=Checkpoint(tmp_path / "state", every=1))
    model.fit(X)
    X[0, 0, 0] += 1e-9
    with pytest.raises(CheckpointError, match="data"):
        model.fit(X)


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
