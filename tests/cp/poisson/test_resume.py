"""A checkpoint belongs to the cells that were observed."""

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import PoissonCP
from polyad.exceptions import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X = np.random.default_rng(0).poisson(1.5, (12, 9, 8)).astype(float)
X[0, 0, 0] = np.nan


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
