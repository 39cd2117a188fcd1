"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import GeneralizedCP

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@parametrize_with_checks([GeneralizedCP(max_iter=2), GeneralizedCP(loss="poisson", max_iter=2)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
