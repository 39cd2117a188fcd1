"""Memberships against expectation maximization that was run for a long time."""

import numpy as np
import pytest

from polyad.membership.posterior import posterior_mode


def mode_by_em(like, alpha, n_steps=4000):
    x = np.full(like.shape[1], 1 / like.shape[1])
    for _ in range(n_steps):
        r = like * x
        x = alpha + (r / r.sum(axis=1, keepdims=True)).sum(axis=0)
        x /= x.sum()
    return x


@pytest.mark.parametrize("alpha", [0.01, 0.3, 5.0])
def test_memberships_are_the_mode(alpha):
    rng = np.random.default_rng(0)
    like = rng.dirichlet([0.3] * 3, size=(4, 10)) + 1e-9
    alphas = alpha * np.array([0.5, 1.0, 2.0])
    found = posterior_mode(like, alphas)
    expected = np.array([mode_by_em(own, alphas) for own in like])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # The gradient in the softmax basis vanishes.
    r = like * found[:, None, :]
    gradient = alphas + (r / r.sum(axis=2, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(gradient, (alphas.sum() + 10) * found, atol=1e-8)


def test_a_sample_does_not_depend_on_the_others():
    rng = np.random.default_rng(1)
    like, alpha = rng.random((40, 7, 4)), np.full(4, 0.2)
    whole = posterior_mode(like, alpha)
    for k in range(40):
        np.testing.assert_array_equal(posterior_mode(like[k : k + 1], alpha), whole[k : k + 1])


def test_hard_cases():
    """Sharp likelihoods, tiny ones, one component, and nothing at all."""
    sharp = np.tile([[1.0, 1e-300]], (1, 500, 1))
    found = posterior_mode(sharp, np.array([1e-3, 1e-3]))
    np.testing.assert_allclose(found[0, 1], 1e-3 / 500.002, rtol=1e-6)
    assert posterior_mode(np.full((1, 3, 1), 0.5), np.ones(1)).tolist() == [[1.0]]
    nothing = posterior_mode(np.ones((1, 3, 2)), np.array([0.3, 0.1]))
    np.testing.assert_allclose(nothing, [[0.75, 0.25]], atol=1e-12)
