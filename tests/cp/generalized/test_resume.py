"""A fit that was stopped and started again gives the numbers of one that was not."""

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import GeneralizedCP
from polyad.exceptions import CheckpointError
from polyad.losses import HuberLoss
from tests.cp.generalized.examples import data_for

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("name", ["bernoulli-odds", "gaussian", "gamma"])
@pytest.mark.parametrize("kind", [np.asarray, coo_array])
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path, name, kind):
    X = kind(data_for(name, (9, 8, 7)))
    missing = "unobserved" if name == "gamma" else "zero"
    common = {"n_components": 3, "loss": name, "random_state": 0, "n_init": 2, "missing": missing}
    whole = GeneralizedCP(**common, tol=0, max_iter=16).fit(X)
    calls = []

    def stop_in_the_second_start(iteration):
        calls.append(iteration.number)
        return len(calls) == 28

    path = tmp_path / "state"
    shared = {**common, "tol": 0, "max_iter": 16, "checkpoint": path}
    GeneralizedCP(**shared, callbacks=stop_in_the_second_start).fit(X)
    resumed = GeneralizedCP(**shared).fit(X)
    for left, right in zip(whole.factors_, resumed.factors_, strict=True):
        assert left.tobytes() == right.tobytes()
    assert whole.history_.objective == resumed.history_.objective
    assert [r["kkt"] for r in whole.history_] == [r["kkt"] for r in resumed.history_]


def test_fixed_factors_survive_a_checkpoint(tmp_path):
    X = data_for("poisson")
    start = [np.random.default_rng(0).random((n, 2)) for n in X.shape]
    common = {"n_components": 2, "loss": "poisson", "init": start, "fixed_modes": [2], "tol": 0}
    whole = GeneralizedCP(**common, max_iter=10).fit(X)
    GeneralizedCP(**common, max_iter=5, checkpoint=tmp_path / "state").fit(X)
    resumed = GeneralizedCP(**common, max_iter=10, checkpoint=tmp_path / "state").fit(X)
    for left, right in zip(whole.factors_, resumed.factors_, strict=True):
        assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"loss": HuberLoss(2.0)}, "loss"),
        ({"loss": "gaussian"}, "loss"),
        ({"ridge": 1.0}, "ridge"),
        ({"random_state": 1}, "random_state"),
    ],
)
def test_other_parameters_are_refused(tmp_path, change, named):
    X = data_for("huber")
    parameters = {"n_components": 2, "loss": "huber", "random_state": 0, "max_iter": 3}
    GeneralizedCP(**parameters, checkpoint=tmp_path / "state").fit(X)
    with pytest.raises(CheckpointError, match=named):
        GeneralizedCP(**{**parameters, **change}, checkpoint=tmp_path / "state").fit(X)


def test_other_data_is_refused(tmp_path):
    X = data_for("poisson")
    model = GeneralizedCP(2, loss="poisson", max_iter=3, random_state=0, checkpoint=tmp_path / "s")
    model.fit(X)
    holed = X.copy()
    holed[tuple(np.argwhere(X.flat[0] == X)[0])] = np.nan  # filled by that very number
    with pytest.raises(CheckpointError, match="data"):
        model.fit(holed)
