"""Matching of components, with the counter-example to Theorem 1 of the paper."""

import numpy as np
import pytest

from polyad.membership.matching import MATCHINGS, match_components, smallest_angle, unit_columns


def pairs_of_columns(n_pairs, rng):
    """Return close nonnegative matrices, many of them ill-conditioned, as fits of anchors are."""
    for _ in range(n_pairs):
        one = rng.random((6, 5)) ** rng.uniform(0.2, 3)
        yield one, np.abs(one + 0.02 * rng.normal(size=one.shape))


@pytest.mark.parametrize("method", MATCHINGS)
def test_clear_components_are_matched(method):
    rng = np.random.default_rng(0)
    one = np.eye(4)[:, :3] + 0.05 * rng.random((4, 3))
    order = np.array([2, 0, 1])
    found = match_components(one, 1.01 * one[:, order], method)
    assert order[found.order].tolist() == [0, 1, 2]
    assert found.is_valid
    assert found.meets_theorem4
    assert found.meets_theorem5


def test_theorem_1_is_wrong():
    """A permutation by Procrustes may be worse than the best one (spec d4)."""
    rng = np.random.default_rng(0)
    worse = n_valid = 0
    for one, two in pairs_of_columns(400, rng):
        cosines = unit_columns(two).T @ unit_columns(one)
        procrustes = match_components(one, two, "procrustes")
        best = match_components(one, two, "assignment")
        sums = [np.trace(cosines[own.order]) for own in (procrustes, best)]
        assert sums[0] <= sums[1] + 1e-12
        n_valid += procrustes.is_valid
        worse += procrustes.is_valid and sums[0] < sums[1] - 1e-9
        if procrustes.meets_theorem5:
            # Where the conditions of Theorem 5 hold, both agree.
            assert procrustes.order.tolist() == best.order.tolist()
    assert n_valid > 200
    assert worse > 0


def test_angle_may_lose_a_component():
    one = np.array([[1.0, 0.9], [0.0, 0.44]])
    two = np.array([[1.0, 0.0], [0.1, 1.0]])
    found = match_components(one, two, "angle")
    assert not found.is_valid
    assert not found.meets_theorem4
    assert sorted(found.order) == [0, 1]


def test_conditions_of_theorem_4():
    """The bound for orthogonal columns is 1 - cos(90 / 4 degrees), about 1 / 13 (spec d10)."""
    bound = 1 - np.sqrt(1 / 2 + np.sqrt(1 / 8))
    assert bound == pytest.approx(1 - np.cos(np.pi / 8))
    one = np.eye(3)
    for part, expected in ((0.9, True), (1.1, False)):
        angle = 2 * np.arcsin(part * bound / 2)
        two = np.eye(3)
        two[:2, 0] = np.cos(angle), np.sin(angle)
        assert match_components(one, two, "angle").meets_theorem4 is expected


def test_the_smallest_angle():
    assert smallest_angle(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])) == pytest.approx(45)
    assert smallest_angle(np.ones((3, 1))) == 90
    assert smallest_angle(np.ones((3, 2))) == pytest.approx(0, abs=1e-5)
    assert match_components(np.ones((3, 1)), np.ones((3, 1)), "procrustes").is_valid
