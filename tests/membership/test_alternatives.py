"""The paper's other methods, on exact moments of a known model and against small twins."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from polyad.exceptions import InvalidInputError
from polyad.membership.alternatives import tensor_power


def exact(sizes=((4, 3), (2, 4, 3), (5, 3)), k=4, a0=0.7, seed=0, alpha=None):
    """Return the moments of a model with three groups of variables, and its stacked factors."""
    random = np.random.default_rng(seed)
    if alpha is None:
        alpha = random.dirichlet(np.full(k, 5.0)) * a0
    eta = alpha / (a0 * (a0 + 1))
    lam = 2 * eta / (a0 + 2)
    factors = [
        np.concatenate([random.dirichlet(np.full(d, 0.5), size=k).T for d in group])
        for group in sizes
    ]
    a, b, c = factors
    second = [(x * eta) @ y.T for x, y in ((a, b), (a, c), (b, c))]
    return np.einsum("ir,jr,kr->ijk", a * lam, b, c), second, factors, lam


def worst(found, factors):
    """Return the largest error of columns that sum to one, after assignment."""
    true = [factor / factor.sum(axis=0) for factor in factors]
    cost = sum(
        np.abs(f[:, :, None] - t[:, None, :]).max(axis=0) for f, t in zip(found, true, strict=True)
    )
    rows, columns = linear_sum_assignment(cost)
    return cost[rows, columns].max()


@pytest.mark.parametrize("method", [tensor_power])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_exact_moments_give_the_model(method, k):
    third, second, factors, lam = exact(k=k)
    found, weights = method(third, second, k, random_state=0)
    assert worst(found, factors) < 1e-6
    sums = np.prod([len(group) for group in ((4, 3), (2, 4, 3), (5, 3))])
    np.testing.assert_allclose(weights, np.sort(lam * sums)[::-1], rtol=1e-5)


def test_the_power_method_of_one_coin_workers():
    """Class labels: eta and lam are both the class weights."""
    weights = np.array([0.7, 0.3])
    coins = [np.array([[p, 1 - q], [1 - p, q]]) for p, q in ((0.9, 0.8), (0.7, 0.7), (0.6, 0.95))]
    a, b, c = coins
    second = [(x * weights) @ y.T for x, y in ((a, b), (a, c), (b, c))]
    third = np.einsum("ir,jr,kr->ijk", a * weights, b, c)
    found, got = tensor_power(third, second, 2, random_state=0)
    for mine, true in zip(found, coins, strict=True):
        np.testing.assert_allclose(mine, true, atol=1e-9)
    np.testing.assert_allclose(got, weights, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda third, second: (third[0], second, 2), "three modes"),
        (lambda third, second: (third * np.nan, second, 2), "third has entries that are not"),
        (lambda third, second: (third, second[::-1], 2), "second must be the pair moments"),
        (lambda third, second: (third, [np.inf * pair for pair in second], 2), "second has"),
        (lambda third, second: (third, second, 8), "n_components=8 is above the smallest"),
        (lambda third, second: (third, second, 5), "rank 4, below n_components=5"),
        (lambda third, second: (third, second, 0), "at least 1"),
        (lambda third, second: (third, second, 2.5), "whole number"),
    ],
)
def test_moments_that_cannot_be_decomposed_are_refused(change, message):
    third, second, *_ = exact()
    with pytest.raises(InvalidInputError, match=message):
        tensor_power(*change(third, second))
