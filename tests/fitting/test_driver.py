import math
import time
from unittest import TestCase

import numpy as np
import pytest

from polyad.fitting import FitOptions, History, Status, fit_best
from polyad.fitting.driver import FitError, begin, earlier_end, run
from tests.fitting.simple_solver import (
    Halving,
    Noisy,
    Point,
    Scripted,
    ScriptedWithoutPromise,
    start,
)


def fit(solver, first=None, **options):
    return run(solver, begin(solver, first or start()), FitOptions(**options))


def test_stops_by_relative_change():
    result = fit(Scripted([8.0, 4.0, 3.0, 2.9999, 1.0]), tol=1e-3)
    assert result.status is Status.CONVERGED
    assert result.history.objective == [8.0, 4.0, 3.0, 2.9999]


def test_stops_at_the_floor():
    result = fit(Scripted([8.0, 4.0, 1e-9, 1e-12], floor=1e-8), tol=1e-6)
    assert result.status is Status.CONVERGED
    assert result.history.n_iter == 2


def test_goes_on_below_zero_where_that_is_not_the_least():
    values = [8.0, 1.0, -1.0, -5.0, -5.05, -9.0]
    result = fit(Scripted(values, least=-np.inf, scale=100.0), tol=1e-3)
    assert result.status is Status.CONVERGED
    assert result.history.objective == values[:5]


def test_an_objective_below_zero_goes_on():
    falling = [1.0, -2.0, -4.0, -4.0001, -9.0]
    result = fit(Scripted(falling, floor=1e-8, least=-np.inf), tol=1e-3)
    assert result.status is Status.CONVERGED
    assert result.history.objective == falling[:4]


def test_zero_tol_runs_all_iterations():
    result = fit(Scripted([1.0] * 8), tol=0.0, max_iter=7)
    assert result.status is Status.MAX_ITER
    assert result.history.n_iter == 7


def test_stops_at_max_iter_and_warns_by_status():
    result = fit(Halving(), Point(np.ones(2)), max_iter=3)
    assert result.status is Status.MAX_ITER
    assert not result.status.is_success
    assert "max_iter" in result.status.advice


def test_stops_when_the_time_is_up():
    class Slow(Halving):
        def step(self, state):
            time.sleep(0.02)
            return super().step(state)

    result = fit(Slow(), Point(np.ones(2)), max_iter=10**6, tol=0.0, time_budget=0.1)
    assert result.status is Status.TIME_BUDGET
    assert 1 <= result.history.n_iter <= 6


def test_a_rise_within_rounding_is_not_a_stall():
    result = fit(Scripted([2.0, 1.0, 1.0 + 1e-10, 0.5, 0.5], floor=1e-9), tol=1e-12)
    assert result.status is Status.CONVERGED
    assert result.history.n_iter == 2
    assert result.state.position[0] == 2
    result = fit(Scripted([2.0, 1.0, 1.0 + 3e-9, 0.5], floor=1e-9), tol=0, max_iter=3)
    assert result.status is Status.MAX_ITER


def test_a_broken_promise_of_descent_stalls_and_keeps_the_best():
    result = fit(Scripted([4.0, 1.0, 3.0, 0.5]), tol=1e-6)
    assert result.status is Status.STALLED
    assert result.best_objective == 1.0
    assert result.state.position[0] == 1


def test_a_method_without_promise_keeps_the_best_of_all():
    result = fit(ScriptedWithoutPromise([4.0, 1.0, 3.0, 2.0]), tol=1e-6, max_iter=3)
    assert result.status is Status.MAX_ITER
    assert result.state.position[0] == 1
    assert result.last.position[0] == 3


def test_noise_is_waited_out():
    """The start of 1 is of other data: it is no mark to beat, to diverge from, or to end at."""
    values = [1.0, 4.0, 3.0, 3.01, 2.5, 2.6, 2.4999, 2.5, 2.6, 1.0]
    result = fit(Noisy(values), tol=1e-3)
    assert result.status is Status.CONVERGED
    assert result.history.n_iter == 7
    assert result.best_objective == 2.4999
    assert result.state.position[0] == 6


@pytest.mark.parametrize("first", [0.0, 1e-9, -5.0, 1e9])
def test_a_start_that_is_not_measured_does_not_matter(first):
    result = fit(Noisy([first, 4.0, 3.0, 2.0, 2.0, 2.0, 2.0, 0.0]), tol=1e-3)
    assert result.history.n_iter == 6
    assert result.best_objective == 2.0
    result = fit(Noisy([first, 4.0, 3.0, 0.0, 5.0]), tol=1e-3)
    assert result.history.n_iter == 3  # at the floor
    result = fit(Noisy([first, 4.0, 5000.0, 0.0]), tol=1e-3)
    assert result.status is Status.DIVERGED
    assert result.state.position[0] == 1


def test_divergence_is_seen():
    result = fit(ScriptedWithoutPromise([1.0, 0.5, 1e5, 1e9]), tol=1e-6)
    assert result.status is Status.DIVERGED
    assert result.state.position[0] == 1


def test_a_negative_start_is_no_divergence():
    result = fit(ScriptedWithoutPromise([-1.0, 5.0, -3.0, -3.0]), tol=1e-6)
    assert result.status is Status.CONVERGED


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_raises_and_leaves_the_last_state(bad):
    with pytest.raises(FitError, match="Iteration 3 of Scripted") as caught:
        fit(Scripted([4.0, 3.0, 2.0, bad, 1.0]))
    assert caught.value.result.state.position[0] == 2
    assert caught.value.result.history.n_iter == 2


def test_a_bad_start_raises():
    with pytest.raises(FitError, match="at the start"):
        begin(Scripted([math.nan]), start())


def test_callbacks_see_each_iteration_and_may_stop():
    seen = []
    result = fit(
        Halving(),
        Point(np.ones(1)),
        callbacks=(lambda news: seen.append(news.number), lambda news: news.number == 4),
    )
    assert result.status is Status.STOPPED
    assert result.status.is_success
    assert seen == [1, 2, 3, 4]


def test_only_true_stops():
    result = fit(Scripted([4.0, 3.0, 2.0, 1.0]), max_iter=3, callbacks=(lambda _: 1,))
    assert result.status is Status.MAX_ITER


def test_interrupt_in_a_step_keeps_the_state():
    class Interrupted(Halving):
        def step(self, state):
            if state.position[0] < 0.2:
                raise KeyboardInterrupt
            return super().step(state)

    result = fit(Interrupted(), Point(np.ones(1)))
    assert result.status is Status.INTERRUPTED
    assert result.state.position[0] == 0.125
    assert result.history.n_iter == 3


def test_history_as_a_table():
    history = fit(Halving(), Point(np.ones(1)), max_iter=3).history
    table = history.to_frame()
    assert table.index.tolist() == [0, 1, 2, 3]
    assert table.columns.tolist() == ["objective", "seconds", "length"]
    assert table["objective"].tolist() == [1, 0.25, 0.0625, 0.015625]
    assert table["seconds"].is_monotonic_increasing
    assert repr(history) == "History(3 iterations, objective 1 -> 0.015625)"


def test_history_plot():
    history = fit(Halving(), Point(np.ones(1)), max_iter=5).history
    axes = history.plot()
    assert axes.get_yscale() == "log"
    assert len(axes.lines[0].get_ydata()) == 6


def test_restarts_keep_the_best():
    class Fixed(Halving):
        def step(self, state):
            return state

    tried = []

    def starts(number, seed):
        tried.append((number, seed))
        return Point(np.array([[3.0], [1.0], [2.0]][number]))

    result = fit_best(Fixed(), starts, [11, 12, 13], FitOptions())
    assert tried == [(0, 11), (1, 12), (2, 13)]
    assert result.best_objective == 1.0


def test_restart_that_breaks_down_is_passed_over():
    def starts(number, _seed):
        return Point(np.array([0.0 if number == 0 else 3.0]))

    result = fit_best(Scripted([4.0, math.nan, 0, 3.0, 3.0]), starts, [1, 2], FitOptions())
    assert result.best_objective == 3.0


def test_all_restarts_broken_raises():
    with pytest.raises(FitError):
        fit_best(Scripted([4.0, math.nan]), start, [1, 2], FitOptions())


def test_restarts_share_the_time_budget():
    class Slow(Halving):
        def step(self, state):
            time.sleep(0.02)
            return state

    starts = []

    def begin_at(number, _seed):
        starts.append(number)
        return Point(np.ones(1))

    options = FitOptions(time_budget=0.05, tol=0.0, max_iter=10**6)
    result = fit_best(Slow(), begin_at, list(range(50)), options)
    assert result.status is Status.TIME_BUDGET
    assert starts == [0]


def test_progress_bar_and_log(capsys):
    with TestCase().assertLogs("polyad", "INFO") as told:
        fit(Halving(), Point(np.ones(1)), max_iter=3, verbose=2)
    assert "Halving" in capsys.readouterr().err
    assert told.records[-1].getMessage().startswith("Halving: iteration 3")
    fit(Halving(), Point(np.ones(1)), max_iter=3)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == ""


def test_the_time_budget_counts_the_start():
    def slow_start(_number, _seed):
        time.sleep(0.05)
        return Point(np.ones(2))

    result = fit_best(Halving(), slow_start, [0, 1], FitOptions(time_budget=0.04, tol=0.0))
    assert result.status is Status.TIME_BUDGET
    assert result.history.n_iter == 0


def test_a_restart_that_breaks_down_at_its_start_costs_nothing_else():
    def sometimes(number, _seed):
        return Point(np.full(2, np.nan) if number == 1 else np.ones(2))

    result = fit_best(Halving(), sometimes, [0, 1, 2], FitOptions(max_iter=3, tol=0.0))
    assert result.status is Status.MAX_ITER
    with pytest.raises(FitError, match="at the start"):
        fit_best(Halving(), lambda _number, seed: sometimes(1, seed), [0, 1], FitOptions())


def test_a_fit_that_comes_to_rest_above_its_start_has_diverged():
    result = fit(ScriptedWithoutPromise([1.0, 5.0, 5.0, 5.0]), tol=1e-3)
    assert result.status is Status.DIVERGED
    assert result.best_objective == 1.0
    # As far above it as the tolerance sees no difference: at rest where it started.
    result = fit(ScriptedWithoutPromise([1.0, 1.0005, 1.0005]), tol=1e-3)
    assert result.status is Status.CONVERGED


def test_a_model_that_is_worse_than_none_has_diverged():
    solver = Noisy([1.0, 4.0, 3.0, 3.0, 3.0, 3.0])
    options = FitOptions(tol=1e-3)
    assert fit_best(solver, start, [0], options).status is Status.CONVERGED
    solver.nothing = 2.0
    assert fit_best(solver, start, [0], options).status is Status.DIVERGED


def _ending_of_a_whole_record(solver, objectives, tol, max_iter):
    """Say how a fit has ended, from all of its objectives: the rules, as they are written down."""
    counted = objectives[0 if solver.measures_start else 1 :]
    if len(counted) > 1:
        first, last, recent = counted[0], counted[-1], min(counted[-solver.patience :])
        if tol > 0 and solver.promises_descent and last > min(counted) + 4 * solver.floor:
            return Status.STALLED
        if not solver.promises_descent and last - first > 1e3 * abs(first):
            return Status.DIVERGED
        if tol > 0 and len(counted) > solver.patience:
            before = counted[-2] if solver.patience == 1 else min(counted[: -solver.patience])
            change = abs(before - recent) if solver.patience == 1 else before - recent
            if change <= max(tol * abs(before), solver.floor):
                is_worse = solver.measures_start and recent > first + max(
                    tol * abs(first), solver.floor
                )
                return Status.DIVERGED if is_worse else Status.CONVERGED
    if tol > 0 and counted and counted[-1] <= solver.least + solver.floor:
        return Status.CONVERGED
    return Status.MAX_ITER if len(objectives) > max_iter else None


@pytest.mark.parametrize("kind", [Scripted, ScriptedWithoutPromise, Noisy])
def test_endings_follow_from_the_objectives_alone(kind):
    """A fit, and one that is asked when it would have ended, agree with the rules."""
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(200):
        falls = rng.choice(
            [0.0, 1e-4, 0.1, -1e-9, -0.05, -8.0], 14, p=[0.15, 0.2, 0.35, 0.1, 0.1, 0.1]
        )
        values = np.exp(-np.cumsum(falls)).tolist()
        solver = kind([*values, 0.0], floor=float(rng.choice([0.0, 1e-8])))
        options = {"tol": float(rng.choice([0.0, 1e-3])), "max_iter": 12}
        result = fit(solver, **options)
        ends = [
            n_iter
            for n_iter in range(len(values))
            if _ending_of_a_whole_record(solver, values[: n_iter + 1], **options) is not None
        ]
        assert result.history.n_iter == ends[0]
        assert result.status is _ending_of_a_whole_record(solver, values[: ends[0] + 1], **options)
        longer = fit(solver, tol=0.0, max_iter=13)
        end = earlier_end(solver, longer, FitOptions(**options))
        assert end == (ends[0] if ends[0] < longer.history.n_iter else None)
        found.add(result.status)
    assert len(found) >= 3


def test_an_iteration_does_not_go_through_the_history(monkeypatch):
    """Else a fit takes a time that grows with the square of its iterations."""
    solver = Scripted([8.0, 4.0, 2.0, 1.0])
    begun = begin(solver, start())
    reads = []
    everything = History.objective.fget
    watched = property(lambda history: reads.append(len(history)) or everything(history))
    monkeypatch.setattr(History, "objective", watched)
    run(solver, begun, FitOptions(tol=0.0, max_iter=3, callbacks=(lambda _: None,)))
    assert reads == [1]
