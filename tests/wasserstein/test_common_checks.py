"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import WassersteinCP

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail. With a cost between samples, those for independence of the samples
# would: see test_samples.py.


@parametrize_with_checks(
    [
        WassersteinCP(max_iter=2),
        WassersteinCP(
            1, costs={1: "one-identity"}, transport="sinkhorn", sinkhorn_iter=5, max_iter=2
        ),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
