"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest

from polyad import StochasticCP
from tests.common_checks import every_check_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@every_check_of(StochasticCP(max_iter=2), StochasticCP(batch_size=7, graph="complete", max_iter=2))
def test_scikit_learn_checks(estimator, check):
    check(estimator)
