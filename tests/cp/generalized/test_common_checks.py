"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest

from polyad import GeneralizedCP
from tests.common_checks import every_check_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@every_check_of(GeneralizedCP(max_iter=2), GeneralizedCP(loss="poisson", max_iter=2))
def test_scikit_learn_checks(estimator, check):
    check(estimator)
