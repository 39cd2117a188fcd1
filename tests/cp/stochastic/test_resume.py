"""A fit that is stopped and started again gives the numbers of one that was not."""

import numpy as np
import pytest
import zarr
from scipy.sparse import coo_array

from polyad import StochasticCP
from polyad.datasets import make_low_rank

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X = make_low_rank((32, 6, 5), 3, noise=0.3, random_state=0)[0]
PARAMETERS = {"n_components": 3, "batch_size": 8, "random_state": 0, "tol": 0, "max_iter": 4}


def kinds(tmp_path):
    np.save(tmp_path / "data.npy", X)
    return {
        "array": X,
        "sparse": coo_array(np.where(X > 0.5, X, 0)),
        "missing": np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X),
        "memory map": np.load(tmp_path / "data.npy", mmap_mode="r"),
        "zarr": zarr.array(X, chunks=(13, 6, 5)),
        "list": [X[k : k + 8] for k in range(0, 32, 8)],
        "callable": lambda: (X[k : k + 8] for k in range(0, 32, 8)),
    }


@pytest.mark.parametrize("graph", [None, "complete"])
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path, graph):
    for name, data in kinds(tmp_path).items():
        path = tmp_path / f"{name}.state"
        parameters = {**PARAMETERS, "graph": graph}
        whole = StochasticCP(**parameters).fit(data)
        StochasticCP(**{**parameters, "max_iter": 2}, checkpoint=path).fit(data)
        numbers = []
        resumed = StochasticCP(
            **parameters, checkpoint=path, callbacks=lambda it, seen=numbers: seen.append(it.number)
        ).fit(data)
        assert numbers == [3, 4], name
        assert resumed.history_.objective == whole.history_.objective, name
        for one, other in zip(resumed.factors_, whole.factors_, strict=True):
            assert one.tobytes() == other.tobytes(), name
