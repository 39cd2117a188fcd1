"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest

from polyad import PoissonCP
from tests.common_checks import every_check_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@every_check_of(PoissonCP(max_iter=5), PoissonCP(solver="pdnr", max_iter=5))
def test_scikit_learn_checks(estimator, check):
    check(estimator)
