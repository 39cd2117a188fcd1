"""Tensors that could not exist densely."""

import tracemalloc

import numpy as np
import pytest
from scipy.sparse import coo_array
from sklearn.base import clone

from polyad import PoissonCP

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SIDE = 5_000


def huge(side=SIDE, n=2_500, n_modes=3):
    generator = np.random.default_rng(0)
    coords = tuple(generator.integers(0, side, size=(n_modes, n)))
    return coo_array((generator.poisson(2.0, n) + 1.0, coords), shape=(side,) * n_modes)


@pytest.mark.parametrize("solver", ["mu", "pdnr"])
@pytest.mark.parametrize("missing", ["zero", "unobserved"])
def test_memory_follows_the_factors(solver, missing):
    X = huge()
    one = PoissonCP(2, solver=solver, init="svd", max_iter=1, missing=missing).fit(X)
    tracemalloc.start()
    model = clone(one).set_params(n_components=8, max_iter=3, random_state=0).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    factors = 3 * SIDE * 8 * 8
    assert peak < 12 * factors
    assert np.isfinite(model.objective_)
    assert model.transform(X).shape == (SIDE, 8)


def test_number_of_cells_may_exceed_64_bits():
    side = 60_000
    X = huge(side, 50, n_modes=4)
    assert side**4 > 2**63
    model = PoissonCP(1, max_iter=2, random_state=0).fit(X)
    assert model.factors_[2].shape == (side, 1)
    assert np.isfinite(model.objective_)
    assert np.isfinite(model.score(X))
