"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest

from polyad import WassersteinCP
from tests.common_checks import every_check_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail. With a cost between samples, those for independence of the samples
# would: see test_samples.py.


@every_check_of(
    WassersteinCP(1, epsilon=0.5, max_iter=2),
    WassersteinCP(epsilon=0.5, max_iter=2),
    WassersteinCP(1, costs={1: "one-identity"}, transport="sinkhorn", sinkhorn_iter=5, max_iter=2),
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
