"""scikit-learn's own checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import QMF, QMFQ

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@parametrize_with_checks(
    [
        QMF(max_iter=2),
        QMF(nonnegative=False, divergence="frobenius", solver="lbfgs", max_iter=2),
        QMFQ(inner_iter=5, max_iter=2),
        QMFQ(projector="svd", divergence="frobenius", max_iter=2),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
