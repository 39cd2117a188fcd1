"""scikit-learn's own checks."""

import pytest

from polyad import MixedMembership
from tests.common_checks import every_check_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning"),
]

# No check is expected to fail. The checks have tables of three columns, which tell one component
# from no other but not two from each other unless they are numbers.


@every_check_of(
    MixedMembership(1, max_iter=5),
    MixedMembership(1, max_iter=3, refine=True),
    MixedMembership(1, max_iter=3, method="partitioned"),
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
