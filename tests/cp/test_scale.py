"""Tensors that could not exist densely."""

import inspect
import tracemalloc

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import CP
from polyad.exceptions import InvalidInputError
from tests.forks import run

SIDE = 20_000


def huge(side=SIDE):
    generator = np.random.default_rng(0)
    coords = tuple(generator.integers(0, side, size=(3, 10_000)))
    return coo_array((generator.random(10_000), coords), shape=(side,) * 3)


CEILING = f"""
import resource
import warnings

limit = 2**28
import numba, sklearn.base, pandas  # the packages themselves are not counted
import numpy as np
from scipy.sparse import coo_array
from polyad import CP

SIDE = {SIDE}
{inspect.getsource(huge)}

warnings.simplefilter("ignore")
X = huge()
CP(2, max_iter=1).fit(X)  # compiles the kernels
import os
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
for missing in ("zero", "unobserved"):
    model = CP(8, max_iter=3, random_state=0, missing=missing).fit(X)
    model.transform(X)
print("done", flush=True)
"""


def test_fits_under_a_ceiling_of_a_quarter_of_a_gigabyte():
    """The address space is limited: a dense array of 8e12 entries, or of 4e8, cannot be had."""
    result = run(CEILING)
    assert result.stdout == "done\n", result.stderr


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_memory_follows_the_factors():
    X = huge()
    CP(2, max_iter=1).fit(X)
    tracemalloc.start()
    CP(8, max_iter=3, random_state=0).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    factors = 3 * SIDE * 8 * 8
    assert peak < 12 * factors


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_number_of_cells_may_exceed_64_bits():
    side = 60_000
    coords = tuple(np.random.default_rng(0).integers(0, side, size=(4, 50)))
    X = coo_array((np.ones(50), coords), shape=(side,) * 4)
    assert side**4 > 2**63
    model = CP(1, init="random", max_iter=2, random_state=0).fit(X)
    assert model.factors_[2].shape == (side, 1)
    assert np.isfinite(model.objective_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_dense_results_are_refused_with_an_alternative():
    model = CP(2, max_iter=1, random_state=0).fit(huge(50_000))
    with pytest.raises(InvalidInputError, match="values_at"):
        _ = model.components_
    with pytest.raises(InvalidInputError, match="GiB"):
        model.inverse_transform(np.ones((1, 2)))
    assert np.isfinite(model.kruskal_.values_at([[0, 1], [2, 3], [4, 5]])).all()
