"""The final step, and what is delivered after it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from polyad.fitting import Checkpoint, FitOptions, Resumable, Solver, Status, fit_best
from polyad.fitting.driver import FitError, begin
from tests.fitting.simple_solver import Point


@dataclass(frozen=True)
class Falling(Solver[Point]):
    """Position 0 falls to zero by halves; position 1 is what only the final step changes.

    The final step sets position 1 to position 2, so that a start decides what comes of it.
    """

    name = "Falling"
    floor: float = 0.0

    def step(self, state):
        return Point(state.position * [0.5, 1, 1])

    def objective(self, state):
        return float(state.position[0] + state.position[1])

    def finish(self, state):
        first, _, third = state.position
        return Point(np.array([first, third, third]))


def starts(*positions):
    return lambda number=0, _seed=0: Point(np.array(positions[number]))


ENDS_LOWEST = (1.0, 1.0, 1.0)
DELIVERS_LOWEST = (2.0, 3.0, 0.0)
WORSENED = (1.0, 2.0, 5.0)


def fit(*positions, solver=None, resumable=None, **options):
    seeds = list(range(len(positions)))
    return fit_best(
        solver or Falling(),
        starts(*positions),
        seeds,
        FitOptions(**{"max_iter": 3, **options}),
        resumable=resumable,
    )


def test_the_finished_state_is_delivered_with_its_own_objective():
    result = fit(DELIVERS_LOWEST)
    assert result.delivered.position.tolist() == [0.25, 0.0, 0.0]
    assert result.objective == 0.25
    assert result.best_objective == 3.25
    assert result.history.objective[-1] == 3.25


def test_a_final_step_that_makes_it_worse_is_not_taken():
    result = fit(WORSENED)
    assert result.delivered is result.state
    assert result.objective == result.best_objective == 2.125


def test_a_final_step_within_rounding_is_taken():
    result = fit((0.0, 1.0, 1.0 + 1e-9), solver=Falling(1e-8))
    assert result.delivered.position[1] == 1.0 + 1e-9


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_final_step_that_is_not_finite_is_not_taken(value):
    assert fit((1.0, 2.0, value)).objective == 2.125


@pytest.mark.parametrize("order", [1, -1])
def test_restarts_are_compared_by_what_they_deliver(order):
    result = fit(*(ENDS_LOWEST, WORSENED, DELIVERS_LOWEST)[::order])
    assert result.objective == 0.25
    assert min(result.history.objective) == 3.25


def test_a_stop_by_a_callback_is_finished_too():
    result = fit(DELIVERS_LOWEST, callbacks=(lambda news: news.number == 2,))
    assert result.status is Status.STOPPED
    assert result.objective == 0.5


def test_an_interrupt_of_the_iterations_is_finished_too():
    def interrupt(news):
        raise KeyboardInterrupt

    result = fit(DELIVERS_LOWEST, callbacks=(interrupt,))
    assert result.status is Status.INTERRUPTED
    assert result.objective == 1.0


class Interrupted(Falling):
    def finish(self, state):
        if state.position[1] == 2.0:
            raise KeyboardInterrupt
        return super().finish(state)


def test_an_interrupt_of_the_final_step_keeps_the_state_before_it():
    result = fit((1.0, 2.0, 0.0), solver=Interrupted())
    assert result.status is Status.INTERRUPTED
    assert result.objective == result.best_objective == 2.125
    # Restarts that come after it are not begun, and one before it may be the best.
    result = fit(DELIVERS_LOWEST, (1.0, 2.0, 0.0), ENDS_LOWEST, solver=Interrupted())
    assert result.status is Status.INTERRUPTED
    assert result.objective == 0.25


class Broken(Falling):
    """The final step is a fit of its own, which breaks down."""

    name = "Broken"

    def finish(self, state):
        return begin(self, Point(state.position * np.nan))


def test_a_final_step_that_breaks_down_keeps_the_state_before_it():
    result = fit(ENDS_LOWEST, solver=Broken())
    assert result.delivered.position.tolist() == [0.125, 1.0, 1.0]
    assert result.status is Status.DIVERGED


def test_the_error_of_a_start_is_not_lost_in_that_of_the_final_step():
    with pytest.raises(FitError, match="at the start") as caught:
        fit((np.nan, 1.0, 1.0), solver=Broken())
    assert caught.value.result.delivered is not None


class Needed(Interrupted):
    needs_finish: ClassVar[bool] = True


def test_a_final_step_that_is_needed_is_always_taken():
    assert fit((1.0, 1.0, 5.0), solver=Needed(), max_iter=1).objective == 5.5
    with pytest.raises(KeyboardInterrupt):
        fit((1.0, 2.0, 0.0), solver=Needed())


@pytest.mark.parametrize("killed_after", range(1, 9))
def test_a_resumed_fit_delivers_the_same(tmp_path, killed_after):
    """The first start is the best one when it is finished, and the worst one before."""
    positions = DELIVERS_LOWEST, ENDS_LOWEST, WORSENED
    whole = fit(*positions)
    count = []

    def stop(_news):
        count.append(1)
        return len(count) == killed_after

    saved = Resumable(Checkpoint(tmp_path / "f", every=1), {}, starts(WORSENED))
    fit(*positions, resumable=saved, callbacks=(stop,))
    resumed = fit(*positions, resumable=saved)
    assert resumed.objective == whole.objective == 0.25
    assert resumed.delivered.position.tobytes() == whole.delivered.position.tobytes()
    assert resumed.history.objective == whole.history.objective
    assert resumed.status is whole.status


def test_a_finished_fit_is_prolonged_from_the_state_before(tmp_path):
    saved = Resumable(Checkpoint(tmp_path / "f", every=1), {}, starts(WORSENED))
    fit(DELIVERS_LOWEST, resumable=saved)
    longer = fit(DELIVERS_LOWEST, resumable=saved, max_iter=5)
    whole = fit(DELIVERS_LOWEST, max_iter=5)
    assert longer.history.objective == whole.history.objective
    assert longer.objective == whole.objective
