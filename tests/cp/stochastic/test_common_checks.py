"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import StochasticCP

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@parametrize_with_checks(
    [StochasticCP(max_iter=2), StochasticCP(batch_size=7, graph="complete", max_iter=2)]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
