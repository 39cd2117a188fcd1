"""A short attack with fixed seeds. ``make fuzz MINUTES=30`` is the long one."""

import pytest

from tests.fuzz import estimators
from tests.fuzz.run import run_case

SEED = 0
# Cases of one class are numbered in steps, so that each process compiles for few classes.
STEP = len(estimators.NAMES)


@pytest.mark.parametrize("first", range(STEP), ids=estimators.NAMES)
def test_random_inputs_are_refused_or_fitted(first):
    for number in range(first, 5 * STEP, STEP):
        verdict = run_case("inputs", SEED, number)
        assert not verdict.found, str(verdict)


@pytest.mark.parametrize("first", range(4))
def test_random_arguments_are_refused_or_answered(first):
    for number in range(first, 60, 4):
        verdict = run_case("functions", SEED, number)
        assert not verdict.found, str(verdict)


def test_killed_fits_go_on():
    verdict = run_case("kills", SEED, 0)
    assert not verdict.found, str(verdict)


def test_a_case_can_be_repeated():
    first, second = (run_case("inputs", SEED, 0) for _ in range(2))
    assert first == second
