"""Transport of masses of any size: plans that are told to be solved are."""

import numpy as np
import pytest

from polyad import wasserstein_distance
from polyad.transport import one_identity_cost, sinkhorn


def test_potentials_of_a_larger_epsilon_make_no_plan():
    masses, cost = np.full(3, 1e8), one_identity_cost(3)
    result = sinkhorn(masses, masses, cost, epsilon=0.01, tol=1.0, max_iter=1)
    assert np.isfinite(result.plan).all()
    assert result.plan.sum(axis=1) == pytest.approx(masses)


@pytest.mark.parametrize("max_iter", [1, 2, 5, 20, 10_000])
@pytest.mark.parametrize("tol", [1.0, 1e-2, 1e-9])
@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
def test_converged_plans_have_their_marginals(epsilon, tol, max_iter):
    generator = np.random.default_rng(0)
    a, b = 10.0 ** generator.uniform(-12, 12, 5), 10.0 ** generator.uniform(-12, 12, 6)
    b *= a.sum() / b.sum()
    cost = generator.random((5, 6))
    with np.errstate(all="raise", under="ignore"):
        result = sinkhorn(a, b, cost, epsilon=epsilon, tol=tol, max_iter=max_iter)
    assert np.isfinite(result.plan).all()
    if result.converged:
        for axis, masses in ((1, a), (0, b)):
            missed = np.abs(result.plan.sum(axis=axis) - masses).max()
            assert missed <= (tol + 1e-12) * masses.sum()
    assert result.converged or max_iter < 10_000


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_a_plan_follows_the_unit_of_its_masses(unit):
    generator = np.random.default_rng(1)
    a, b, cost = generator.random(4), generator.random(5), generator.random((4, 5))
    b *= a.sum() / b.sum()
    plan = sinkhorn(a, b, cost, epsilon=0.05).plan
    found = sinkhorn(unit * a, unit * b, cost, epsilon=0.05)
    assert found.converged
    np.testing.assert_allclose(found.plan / unit, plan, rtol=1e-6)


def test_masses_that_rounding_made_unequal_converge():
    a = np.array([1.0, 2.0, 3.0])
    assert sinkhorn(a, a * (1 + 1e-7), one_identity_cost(3), epsilon=1.0).converged


@pytest.mark.parametrize("penalty", [1e-6, 1.0, 1e6, 1e300])
def test_a_penalty_of_any_size_ends_with_a_finite_plan(penalty):
    a, b = np.array([1e-12, 1.0, 1e12]), np.array([1.0, 5.0, 1e3])
    with np.errstate(all="raise", under="ignore"):
        result = sinkhorn(
            a, b, one_identity_cost(3), epsilon=0.1, marginal_penalty=penalty, max_iter=200
        )
    assert np.isfinite(result.plan).all()
    assert not (result.converged and penalty == 1e300)


@pytest.mark.parametrize("difference", [1e-3, 1e-6, 1e-9, 1e-12, 0.0])
def test_nearly_equal_large_masses_have_a_distance_with_all_digits(difference):
    generator = np.random.default_rng(2)
    a = generator.integers(1, 2**40, 6).astype(float)
    moved = np.round(difference * 2.0**40)
    b = a + moved * np.array([1, -1, 1, -1, 1, -1])
    found = wasserstein_distance(a, b, one_identity_cost(6))
    assert found == pytest.approx(3 * moved, rel=1e-6, abs=0.0)


def test_a_distance_is_never_below_zero():
    generator = np.random.default_rng(3)
    points = generator.random((6, 2))
    metric = np.linalg.norm(points[:, None] - points, axis=2)
    for cost in (metric, metric**2):
        for _ in range(20):
            a = generator.random(6) * 1e12
            b = a * (1 + 1e-9 * generator.standard_normal(6))
            assert wasserstein_distance(a, b * (a.sum() / b.sum()), cost) >= 0.0
            assert wasserstein_distance(a, a, cost) == 0.0


def test_mass_moves_over_a_place_that_shortens_the_way():
    cost = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
    assert wasserstein_distance([1.0, 1.0, 0.0], [0.0, 1.0, 1.0], cost) == pytest.approx(2.0)
