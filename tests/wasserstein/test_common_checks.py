"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import WassersteinCP

# No check is expected to fail. With a cost between samples, those for independence of the samples
# would: see test_samples.py.


@parametrize_with_checks(
    [WassersteinCP(), WassersteinCP(costs={1: "one-identity"}, transport="sinkhorn", tol=1e-2)]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
