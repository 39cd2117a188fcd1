"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import GeneralizedCP

# No check is expected to fail.


@parametrize_with_checks([GeneralizedCP(), GeneralizedCP(loss="poisson")])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
