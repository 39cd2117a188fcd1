"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import PoissonCP

# No check is expected to fail.


@parametrize_with_checks([PoissonCP(), PoissonCP(solver="pdnr", n_init=2)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
