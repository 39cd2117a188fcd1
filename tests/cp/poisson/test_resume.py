"""A fit that was stopped and started again gives the numbers of one that was not."""

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import PoissonCP
from polyad.exceptions import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X = np.random.default_rng(0).poisson(1.5, (12, 9, 8)).astype(float)
X[0, 0, 0] = np.nan


@pytest.mark.parametrize("solver", ["mu", "pdnr"])
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path, solver):
    common = {"n_components": 3, "solver": solver, "random_state": 0, "n_init": 2, "tol": 0}
    whole = PoissonCP(**common, max_iter=12).fit(X)
    path = tmp_path / "state"
    calls = []

    def stop_in_the_second_start(iteration):
        calls.append(iteration.number)
        return len(calls) == 17

    PoissonCP(**common, max_iter=12, checkpoint=path, callbacks=stop_in_the_second_start).fit(X)
    resumed = PoissonCP(**common, max_iter=12, checkpoint=path).fit(X)
    for left, right in zip(whole.factors_, resumed.factors_, strict=True):
        assert left.tobytes() == right.tobytes()
    assert whole.history_.objective == resumed.history_.objective
    assert [r["kkt"] for r in whole.history_] == [r["kkt"] for r in resumed.history_]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"solver": "pdnr"}, "solver"),
        ({"inner_iter": 3}, "inner_iter"),
        ({"random_state": 1}, "ra"),
    ],
)
def test_other_parameters_are_refused(tmp_path, change, named):
    parameters = {"n_components": 3, "random_state": 0, "max_iter": 3}
    PoissonCP(**parameters, checkpoint=tmp_path / "state").fit(X)
    with pytest.raises(CheckpointError, match=named):
        PoissonCP(**{**parameters, **change}, checkpoint=tmp_path / "state").fit(X)


def test_other_observed_cells_are_refused(tmp_path):
    """The same counts with another cell missing are other data."""
    model = PoissonCP(3, random_state=0, max_iter=3, checkpoint=tmp_path / "state").fit(X)
    other = np.where(X == 0, X, X)
    other[tuple(np.argwhere(X == 0)[0])] = np.nan
    with pytest.raises(CheckpointError, match="data"):
        model.fit(other)
    stored = coo_array(np.nan_to_num(X))
    sparse = PoissonCP(
        3, random_state=0, max_iter=3, missing="unobserved", checkpoint=tmp_path / "sparse"
    ).fit(stored)
    more = coo_array(
        (np.append(stored.data, 0.0), [np.append(row, 0) for row in stored.coords]),
        shape=stored.shape,
    )
    with pytest.raises(CheckpointError, match="data"):
        sparse.fit(more)
