"""scikit-learn's own checks."""

import pytest

from polyad import QMF, QMFQ
from polyad.quantile import MeanQMF
from tests.common_checks import every_check_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# No check is expected to fail.


@every_check_of(
    QMF(max_iter=2), QMF(nonnegative=False, divergence="frobenius", solver="adam", max_iter=2)
)
def test_quantile_factors(estimator, check):
    check(estimator)


@every_check_of(
    QMFQ(projector="nmf", inner_iter=5, max_iter=2), QMFQ(divergence="frobenius", max_iter=2)
)
def test_projected_quantile_factors(estimator, check):
    check(estimator)


@every_check_of(MeanQMF(QMF(max_iter=2), n_fits=2))
def test_means_of_quantile_factors(estimator, check):
    check(estimator)
