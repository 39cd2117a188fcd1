"""A fit that was stopped and started again gives the numbers of one that was not."""

import numpy as np
import pytest

from polyad import GeneralizedCP
from polyad.exceptions import CheckpointError
from polyad.losses import HuberLoss
from tests.cp.generalized.examples import data_for

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_fixed_factors_survive_a_checkpoint(tmp_path):
    X = data_for("poisson")
    start = [np.random.default_rng(0).random((n, 2)) for n in X.shape]
    common = {"n_components": 2, "loss": "poisson", "init": start, "fixed_modes": [2], "tol": 0}
    whole = GeneralizedCP(**common, max_iter=10).fit(X)
    GeneralizedCP(**common, max_iter=5, checkpoint=tmp_path / "state").fit(X)
    resumed = GeneralizedCP(**common, max_iter=10, checkpoint=tmp_path / "state").fit(X)
    for left, right in zip(whole.factors_, resumed.factors_, strict=True):
        assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("loss", [HuberLoss(2.0), "gaussian"])
def test_another_loss_is_refused(tmp_path, loss):
    X = data_for("huber")
    parameters = {"n_components": 2, "random_state": 0, "max_iter": 3}
    GeneralizedCP(**parameters, loss="huber", checkpoint=tmp_path / "state").fit(X)
    with pytest.raises(CheckpointError, match="loss"):
        GeneralizedCP(**parameters, loss=loss, checkpoint=tmp_path / "state").fit(X)


def test_other_data_is_refused(tmp_path):
    X = data_for("poisson")
    model = GeneralizedCP(2, loss="poisson", max_iter=3, random_state=0, checkpoint=tmp_path / "s")
    model.fit(X)
    holed = X.copy()
    holed[tuple(np.argwhere(X.flat[0] == X)[0])] = np.nan  # filled by that very number
    with pytest.raises(CheckpointError, match="data"):
        model.fit(holed)
