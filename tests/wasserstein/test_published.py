"""The published algorithm, and its direct form (eqs. 21 to 23), against ours."""

import numpy as np
import pytest
from experiments.swift.reference import direct_iteration, published_iteration

from polyad import WassersteinCP
from tests.wasserstein import twin

pytestmark = pytest.mark.filterwarnings("ignore:.*max_iter.*")

# Ours updates the samples last, the paper updates its modes in order.
ORDER = (1, 2, 0)


@pytest.mark.parametrize("iteration", [published_iteration, direct_iteration])
def test_the_published_schedule_has_the_iterates_of_the_paper(iteration):
    X, costs = twin.small_data((7, 5, 4))
    start = twin.start_for(X)
    ours = []
    WassersteinCP(
        3,
        costs=list(costs),
        epsilon=1 / 10,
        marginal_penalty=1.0,
        transport="sinkhorn",
        inner_iter=1,
        init=start,
        max_iter=3,
        tol=0.0,
        callbacks=lambda news: ours.append(news.state.factors),
    ).fit(X)
    theirs = [start[mode] for mode in ORDER]
    for factors in ours:
        theirs = iteration(
            X.transpose(ORDER), [costs[mode] for mode in ORDER], theirs, 10.0, 1.0, 25
        )
        for place, mode in enumerate(ORDER):
            # Columns are balanced over the modes; the components are the same.
            left = factors[mode] / np.linalg.norm(factors[mode], axis=0)
            right = theirs[place] / np.linalg.norm(theirs[place], axis=0)
            np.testing.assert_allclose(left, right, rtol=1e-7, atol=1e-12)
