"""A fit that is stopped and started again gives the numbers of one that was not."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr
from scipy.sparse import coo_array

from polyad import Checkpoint, StochasticCP
from polyad.datasets import make_low_rank
from polyad.exceptions import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X = make_low_rank((120, 9, 8), 3, noise=0.3, random_state=0)[0]
PARAMETERS = {"n_components": 3, "batch_size": 16, "random_state": 0, "tol": 0, "max_iter": 9}


def kinds(tmp_path):
    np.save(tmp_path / "data.npy", X)
    return {
        "array": X,
        "sparse": coo_array(np.where(X > 0.5, X, 0)),
        "missing": np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X),
        "memory map": np.load(tmp_path / "data.npy", mmap_mode="r"),
        "zarr": zarr.array(X, chunks=(50, 9, 8)),
        "list": [X[k : k + 30] for k in range(0, 120, 30)],
        "callable": lambda: (X[k : k + 30] for k in range(0, 120, 30)),
    }


@pytest.mark.parametrize("graph", [None, "complete"])
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path, graph):
    for name, data in kinds(tmp_path).items():
        path = tmp_path / f"{name}.state"
        parameters = {**PARAMETERS, "graph": graph}
        whole = StochasticCP(**parameters).fit(data)
        StochasticCP(**{**parameters, "max_iter": 4}, checkpoint=path).fit(data)
        numbers = []
        resumed = StochasticCP(
            **parameters, checkpoint=path, callbacks=lambda it, seen=numbers: seen.append(it.number)
        ).fit(data)
        assert numbers == [5, 6, 7, 8, 9], name
        assert resumed.history_.objective == whole.history_.objective, name
        for one, other in zip(resumed.factors_, whole.factors_, strict=True):
            assert one.tobytes() == other.tobytes(), name


SCRIPT = """
import sys
import numpy as np
from polyad import StochasticCP, Checkpoint

data, path, out = sys.argv[1:]
X = np.load(data, mmap_mode="r")
print("ready", flush=True)
model = StochasticCP(
    4, init="random", batch_size=8, n_init=2, max_iter=40, tol=0, random_state=3,
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


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    np.save(tmp_path / "data.npy", X)
    data, path = tmp_path / "data.npy", tmp_path / "state"
    assert run(data, "", tmp_path / "whole.npz") == 0
    assert run(data, path, tmp_path / "resumed.npz", kill_after=0.3) == -signal.SIGKILL
    assert run(data, path, tmp_path / "resumed.npz") == 0
    with np.load(tmp_path / "whole.npz") as first, np.load(tmp_path / "resumed.npz") as second:
        for name in first.files:
            assert first[name].tobytes() == second[name].tobytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_components": 4}, "n_components"),
        ({"ridge": 1.0}, "ridge"),
        ({"batch_size": 20}, "batch_size"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"shuffle": False}, "shuffle"),
        ({"graph": "complete"}, "graph"),
        ({"graph": np.ones((120, 120))}, "graph"),
        ({"graph_weight": 0.5}, "graph_weight"),
        ({"random_state": 1}, "random_state"),
    ],
)
def test_other_parameters_are_refused(tmp_path, change, named):
    parameters = {**PARAMETERS, "max_iter": 2, "checkpoint": Checkpoint(tmp_path / "s", every=1)}
    StochasticCP(**parameters).fit(X)
    with pytest.raises(CheckpointError, match=named):
        StochasticCP(**{**parameters, **change}).fit(X)


def test_other_data_is_refused(tmp_path):
    model = StochasticCP(**{**PARAMETERS, "max_iter": 2}, checkpoint=tmp_path / "state").fit(X)
    other = X.copy()
    other[-1, 0, 0] += 1e-9
    with pytest.raises(CheckpointError, match="data"):
        model.fit(other)
