"""Soft operators on values of any size: finite, and right by a slow reference in logarithms."""

import contextlib

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import rankdata

from polyad.exceptions import NumericalError
from polyad.soft import quantile_normalize, soft_quantile, soft_rank, soft_sort, vjp
from polyad.soft.plans import squash

ROWS = {
    "the smallest and the largest": [9.5e-12, 4.8e-9, 9.4e29],
    "both ends": [1e300, -1e300, 0.0],
    "beyond their difference": [1.7e308, -1.7e308, 5e-324],
    "subnormal": [5e-324, 1.5e-323, 1e-323],
    "ties far away": [1e30, 2e30, 1e30, 2e30],
    "small ones between large ones": [-1e300, 0.3, 0.1, 0.7, 1e300],
    "two scales": [1e15, 2e15, 0.1, 0.2],
    "constant": [3e200, 3e200, 3e200],
}
EACH = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def reference(x, y, epsilon, n_iter=2000):
    """Return the plan between values and targets of equal weights by Sinkhorn in logarithms."""
    table = -((x[:, None] - y) ** 2) / epsilon
    g = np.zeros(y.size)
    for _ in range(n_iter):
        f = -np.log(x.size) - logsumexp(table + g, axis=1)
        g = -np.log(y.size) - logsumexp(table + f[:, None], axis=0)
    return np.exp(table + f[:, None] + g)


@EACH
@pytest.mark.parametrize("epsilon", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("squashed", [True, False])
def test_every_operator_is_finite_and_keeps_the_order(row, epsilon, squashed):
    x = np.array(row)
    quantiles = np.arange(1.0, 4.0)
    settings = {"epsilon": epsilon, "squash": squashed}
    with np.errstate(all="raise", under="ignore"):
        rank = soft_rank(x, **settings)
        ordered = soft_sort(x, **settings)
        middle = soft_quantile(x, [0.1, 0.5, 0.9], **settings)
        normal = quantile_normalize(x, quantiles, **settings)
    order = np.argsort(x)
    slack = 1e-12 * np.abs(x).max()
    for increasing in (rank[order], normal[order]):
        assert (np.diff(increasing) >= -1e-8).all()
    for values in (ordered, middle):
        assert (np.diff(values / 4) >= -slack).all()
        assert (x.min() - slack <= values).all()
        assert (values <= x.max() + slack).all()
    assert rank.mean() == pytest.approx((x.size + 1) / 2)


def test_values_between_huge_ones_are_ranked_as_if_alone_with_their_targets():
    inner, epsilon = np.array([0.3, 0.1, 0.7]), 0.05
    plan = reference(inner, np.array([0.25, 0.5, 0.75]), epsilon)
    expected = [1.0, *(3.0 * plan @ np.array([2.0, 3.0, 4.0])), 5.0]
    for size in (30.0, 1e6, 1e30, 1e300):
        found = soft_rank([-size, *inner, size], epsilon=epsilon, squash=False)
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_wide_gaps_have_hard_ranks():
    row = np.array(ROWS["ties far away"])
    found = soft_rank(row, epsilon=1e-2, squash=False)
    np.testing.assert_allclose(found, rankdata(row), atol=1e-9)


def test_a_gap_that_is_wide_enough_may_be_any_wider():
    near, far = ([0.0, 0.2, 0.3, gap, gap + 0.1] for gap in (900.0, 2.0**40))
    for function in (soft_rank, lambda x, **other: quantile_normalize(x, [1.0, 5.0], **other)):
        expected = function(near, epsilon=0.1, squash=False)
        np.testing.assert_allclose(function(far, epsilon=0.1, squash=False), expected, rtol=1e-4)


@EACH
@pytest.mark.parametrize("squashed", [True, False])
@pytest.mark.parametrize("function", [soft_rank, soft_sort, soft_quantile])
def test_pullbacks_are_finite_or_refused(row, squashed, function):
    with np.errstate(all="raise", under="ignore", over="ignore"):
        value, pullback = vjp(function, row, epsilon=1e-2, squash=squashed)
        with contextlib.suppress(NumericalError):  # too large for a number, as it says
            assert np.isfinite(pullback(np.ones_like(value)).x).all()


def test_the_pullback_of_values_beside_a_huge_one():
    """A value far away is ranked last, and the others as if it were a little farther than they."""
    gradient = np.array([1.0, -2.0, 3.0, 0.0])
    far, near = (
        vjp(soft_rank, [0.1, 0.3, 0.35, last], epsilon=0.1, squash=False)[1](gradient).x
        for last in (1e200, 500.0)
    )
    np.testing.assert_allclose(far, near, rtol=1e-6, atol=1e-9)


def test_squashing_says_nothing_of_subnormal_ranges_and_values_without_weight():
    x = np.array([[0.0, 5e-324, 1e-323], [0.0, 5e-324, 1e300]])
    a = np.array([[0.4, 0.3, 0.3], [0.5, 0.5, 0.0]])
    with np.errstate(all="raise", under="ignore"):
        found = squash(x, a)
    assert np.isfinite(found.values).all()
    assert np.isfinite(found.standard).all()
