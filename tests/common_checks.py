"""scikit-learn's own checks, all of them for one configuration of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

#: Checks of the numbers that a fit gives. All others look at what is around it, which further
#: configurations of a class have in common with the first.
OF_NUMBERS = {
    *("check_fit_idempotent", "check_fit2d_1sample", "check_fit2d_1feature"),
    *("check_methods_sample_order_invariance", "check_methods_subset_invariance"),
}


def every_check_of(first, *others, **options):
    """Parametrise a test with all checks of an estimator, and with those of numbers of others."""
    whole = parametrize_with_checks([first], **options)
    pairs = [*whole.args[1]]
    for estimator in others:
        further = parametrize_with_checks([estimator], **options).args[1]
        pairs += [pair for pair in further if pair[1].func.__name__ in OF_NUMBERS]
    return pytest.mark.parametrize(whole.args[0], pairs, **whole.kwargs)
