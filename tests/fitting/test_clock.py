"""Budgets, by a clock that moves only when it is told to."""

from typing import ClassVar
from unittest import TestCase

import numpy as np
import pytest
from numba import njit

from polyad.core.compiled import compile_seconds
from polyad.core.threads import OutOfTimeError, ended_when, run_blocks, thread_limit
from polyad.fitting import FitOptions, Status, fit_best
from polyad.fitting.driver import Clock
from tests.fitting.simple_solver import Halving, Point


class FakeClock(Clock):
    def __init__(self):
        super().__init__()
        self.now = 0.0

    def seconds(self):
        return self.now


class Slow(Halving):
    """Starts, iterations and blocks of the final step take what they are told to."""

    def __init__(self, clock, *, step=1.0, block=1.0, n_blocks=5):
        self.clock, self.of_step, self.block, self.n_blocks = clock, step, block, n_blocks

    def start(self, seconds):
        self.clock.now += seconds
        return Point(np.ones(1))

    def step(self, state):
        self.clock.now += self.of_step
        return super().step(state)

    def finish(self, state):
        def work(_block):
            self.clock.now += self.block

        with thread_limit(1):
            run_blocks(work, [(k,) for k in range(self.n_blocks)])
        return Point(np.zeros(1))


class SlowAndNeeded(Slow):
    needs_finish: ClassVar[bool] = True


class SlowWithin(Slow):
    """An iteration of five blocks, which may be given up."""

    gives_up_steps: ClassVar[bool] = True

    def step(self, state):
        super().finish(state)
        return Halving.step(self, state)

    def finish(self, state):
        return state


def fit(kind=Slow, budget=100.0, start=0.0, max_iter=10**6, n_starts=1, **costs):
    clock = FakeClock()
    solver = kind(clock, **costs)
    options = FitOptions(max_iter=max_iter, tol=0.0, time_budget=budget, clock=clock)
    result = fit_best(solver, lambda *_: solver.start(start), range(n_starts), options)
    return result, clock.now


def test_the_start_and_the_final_step_are_part_of_the_budget():
    result, seconds = fit(start=60.0)
    assert result.status is Status.TIME_BUDGET
    assert result.history.n_iter == 40
    assert seconds == 105.0
    assert result.objective == 0.0


def test_a_final_step_that_would_take_too_long_is_left():
    result, seconds = fit(n_blocks=1000)
    assert result.status is Status.TIME_BUDGET
    assert seconds == 110.0
    assert result.objective == result.best_objective > 0


def test_a_final_step_is_not_begun_after_a_long_iteration():
    result, seconds = fit(step=60.0)
    assert result.history.n_iter == 2
    assert seconds == 120.0
    assert result.objective == result.best_objective


def test_a_fit_without_time_for_its_final_step_has_not_converged():
    result, seconds = fit(max_iter=95, n_blocks=1000)
    assert result.status is Status.TIME_BUDGET
    assert seconds == 110.0


def test_the_budget_is_shared_by_all_restarts_and_their_final_steps():
    result, seconds = fit(max_iter=20, n_starts=10, start=5.0)
    assert result.status is Status.TIME_BUDGET
    assert 100.0 <= seconds <= 110.0
    result, seconds = fit(max_iter=20, n_starts=3, start=5.0)
    assert result.status is Status.MAX_ITER
    assert seconds == 90.0


def test_time_is_kept_back_for_a_final_step_that_is_needed():
    result, seconds = fit(SlowAndNeeded, step=9.0, block=1.0, n_blocks=9)
    assert result.status is Status.TIME_BUDGET
    assert seconds == 108.0
    assert result.objective == 0.0


def test_the_times_of_the_history_are_those_of_the_iterations():
    result, _ = fit(max_iter=3, start=60.0)
    assert [record["seconds"] for record in result.history] == [0.0, 1.0, 2.0, 3.0]


def test_blocks_end_in_every_thread():
    done = []
    with thread_limit(3), pytest.raises(OutOfTimeError), ended_when(lambda: len(done) >= 4):
        run_blocks(done.append, [(k,) for k in range(100)])
    assert 4 <= len(done) <= 6
    run_blocks(done.append, [(k,) for k in range(100)])
    assert len(done) >= 104


def test_compiling_is_not_counted_and_is_told(monkeypatch):
    compiled = [7.0]
    monkeypatch.setattr("polyad.fitting.driver.compile_seconds", lambda: compiled[0])
    clock = Clock()
    before = clock.seconds()
    compiled[0] += 1000.0
    assert clock.seconds() < before
    with TestCase().assertLogs("polyad", "INFO") as told:
        fit_best(Halving(), lambda *_: Point(np.ones(1)), [0], FitOptions(clock=clock))
    assert "Compiling took 1000.0 s" in told.output[0]


def test_compiling_is_measured():
    before = compile_seconds()
    njit(lambda x: x + 1)(1)
    assert compile_seconds() > before


def test_a_step_is_given_up_at_the_end_of_the_budget():
    """Two steps of 50 seconds and three blocks of the third; the state is that of the second."""
    result, seconds = fit(SlowWithin, budget=125.0, block=10.0)
    assert result.status is Status.TIME_BUDGET
    assert result.history.n_iter == 2
    assert result.state.position[0] == 0.25
    assert seconds == 130.0
    whole, later = fit(Slow, budget=125.0, step=50.0, block=0.0)
    assert whole.history.n_iter == 3
    assert later == 150.0
