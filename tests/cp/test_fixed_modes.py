"""Fixed modes stay as they were given, so that their weights and scale go elsewhere."""

import numpy as np
import pytest

from polyad import (
    CP,
    GeneralizedCP,
    KruskalTensor,
    NonnegativeCP,
    PoissonCP,
    SimilarityCP,
    WassersteinCP,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RANDOM = np.random.default_rng(0)
X = RANDOM.random((5, 4, 3))
START = [RANDOM.random((n, 2)) for n in X.shape]
CLASSES = (CP, NonnegativeCP, SimilarityCP, PoissonCP, GeneralizedCP, WassersteinCP)


@pytest.mark.parametrize("estimator", CLASSES)
def test_samples_stay_whatever_the_weights_of_the_start(estimator):
    start = KruskalTensor(np.array([3.0, 0.5]), START)
    model = estimator(2, init=start, fixed_modes=[0], max_iter=3, warm_start=True)
    for _ in range(2):
        assert np.array_equal(model.fit(X).factors_[0], START[0])


@pytest.mark.parametrize("estimator", [CP, NonnegativeCP, SimilarityCP])
@pytest.mark.parametrize("exponent", [-300, 300])
def test_samples_stay_whatever_the_unit_of_the_data(estimator, exponent):
    """Beyond the comfortable sizes the data is divided by a power of two."""
    parameters = {"fixed_modes": [0], "max_iter": 20, "tol": 0.0}
    expected = estimator(2, init=START, **parameters).fit(X).transform(X)
    unit = 2.0**exponent
    model = estimator(2, init=[START[0], START[1] * unit, START[2]], **parameters).fit(X * unit)
    assert np.array_equal(model.factors_[0], START[0])
    np.testing.assert_allclose(model.transform(X * unit) / unit, expected, rtol=1e-6)
