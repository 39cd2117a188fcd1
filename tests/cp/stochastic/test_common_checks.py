"""scikit-learn's own checks, on matrices: a matrix is a tensor of order two."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from polyad import StochasticCP

# No check is expected to fail.


@parametrize_with_checks(
    [
        StochasticCP(),
        StochasticCP(batch_size=7, learning_rate=0.2, init="random", graph="complete"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
