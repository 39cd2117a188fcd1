"""Spreading blocks over threads: each once, errors told, no deadlock, limits respected."""

import os
import subprocess
import sys
import threading
import time
import warnings
from contextvars import ContextVar

import joblib
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from polyad.core import threads
from polyad.core.threads import (
    available_threads,
    current_threads,
    resolve_n_jobs,
    run_blocks,
    thread_limit,
)
from polyad.exceptions import InvalidInputError


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
@pytest.mark.parametrize("n_blocks", [0, 1, 3, 200])
def test_every_block_runs_once(n_jobs, n_blocks):
    counts = np.zeros(n_blocks, dtype=int)

    def add(k, amount):
        counts[k] += amount

    with thread_limit(n_jobs):
        run_blocks(add, ((k, 1) for k in range(n_blocks)))
    assert counts.tolist() == [1] * n_blocks


def test_blocks_run_at_the_same_time():
    meeting = threading.Barrier(3, timeout=10)
    with thread_limit(3):
        run_blocks(lambda _: meeting.wait(), [(k,) for k in range(3)])


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_no_more_threads_than_allowed(n_jobs):
    names = set()

    def note(_):
        names.add(threading.get_ident())
        time.sleep(0.001)

    with thread_limit(n_jobs):
        run_blocks(note, [(k,) for k in range(40)])
    assert len(names) <= n_jobs
    assert n_jobs > 1 or names == {threading.get_ident()}


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_an_error_in_any_block_is_told_and_stops_the_rest(n_jobs):
    started = []

    def fail(k):
        started.append(k)
        time.sleep(0.002)
        if k == 3:
            message = "block 3"
            raise ValueError(message)

    with thread_limit(n_jobs), pytest.raises(ValueError, match="block 3"):
        run_blocks(fail, [(k,) for k in range(500)])
    assert len(started) <= 4 + 2 * n_jobs
    done = len(started)
    time.sleep(0.02)
    assert len(started) == done, "a thread went on after the error was told"


def test_an_error_in_a_helper_thread_is_told_and_stops_the_rest():
    main, started = threading.get_ident(), []

    def fail(k):
        started.append(k)
        time.sleep(0.002)
        if threading.get_ident() != main:
            message = "helper"
            raise ZeroDivisionError(message)

    with thread_limit(3), pytest.raises(ZeroDivisionError, match="helper"):
        run_blocks(fail, [(k,) for k in range(500)])
    assert len(started) < 50


def test_all_threads_are_done_when_an_error_is_told():
    """Otherwise a block would write into memory that its caller has given up."""
    running = threading.Semaphore(0)
    finished = []

    def block(k):
        if k == 0:
            running.acquire(timeout=10)
            raise RuntimeError
        running.release()
        time.sleep(0.05)
        finished.append(k)

    with thread_limit(3), pytest.raises(RuntimeError):
        run_blocks(block, [(0,), (1,), (2,)])
    assert set(finished) >= {1} or set(finished) >= {2}
    done = list(finished)
    time.sleep(0.1)
    assert finished == done


def test_the_pool_works_after_an_error():
    with thread_limit(2):
        with pytest.raises(ZeroDivisionError):
            run_blocks(lambda k: 1 / k, [(0,), (0,)])
        found = []
        run_blocks(found.append, [(k,) for k in range(10)])
    assert sorted(found) == list(range(10))


def test_an_interrupt_in_the_main_thread_stops_all():
    main, started = threading.get_ident(), []

    def block(k):
        started.append(k)
        time.sleep(0.002)
        if threading.get_ident() == main:
            raise KeyboardInterrupt

    with thread_limit(2), pytest.raises(KeyboardInterrupt):
        run_blocks(block, [(k,) for k in range(500)])
    assert len(started) < 20


@pytest.mark.parametrize("n_jobs", [1, 2, 3, 5])
def test_blocks_inside_blocks_do_not_wait_for_each_other(n_jobs):
    counts = np.zeros((6, 6), dtype=int)

    def inner(i, j):
        time.sleep(0.0005)
        counts[i, j] += 1

    def outer(i):
        run_blocks(inner, [(i, j) for j in range(6)])

    def both():
        with thread_limit(n_jobs):
            run_blocks(outer, [(i,) for i in range(6)])

    worker = threading.Thread(target=both, daemon=True)
    worker.start()
    worker.join(timeout=20)
    assert not worker.is_alive(), "deadlock"
    assert (counts == 1).all()


def test_the_limit_holds_inside_blocks():
    seen = set()
    with thread_limit(3):
        run_blocks(lambda _: (time.sleep(0.002), seen.add(current_threads())), [(0,)] * 20)
    assert seen == {3}


def test_context_of_the_caller_is_seen_in_blocks():
    setting = ContextVar("setting", default="none")
    setting.set("mine")
    seen = set()
    with thread_limit(3):
        run_blocks(lambda _: (time.sleep(0.002), seen.add(setting.get())), [(0,)] * 20)
    assert seen == {"mine"}


def test_two_computations_at_once_keep_their_own_limits():
    ready = threading.Barrier(2, timeout=10)
    found = {}

    def compute(n_jobs):
        with thread_limit(n_jobs):
            ready.wait()
            found[n_jobs] = current_threads()
            ready.wait()

    both = [threading.Thread(target=compute, args=(n,)) for n in (2, 5)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert found == {2: 2, 5: 5}


# How many.


def blas_threads():
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


def test_the_limit_is_taken_back():
    before, blas = current_threads(), blas_threads()
    with thread_limit(3):
        assert current_threads() == 3
        assert set(blas_threads()) <= {1}
        with thread_limit(1):
            assert current_threads() == 1
        assert current_threads() == 3
    assert current_threads() == before
    assert blas_threads() == blas
    with pytest.raises(ZeroDivisionError), thread_limit(2):
        raise ZeroDivisionError
    assert current_threads() == before
    assert blas_threads() == blas


def test_n_jobs_as_in_joblib(monkeypatch):
    monkeypatch.setattr(threads, "available_threads", lambda: 8)
    assert [resolve_n_jobs(n) for n in (None, -1, -2, -7, 1, 3, 20)] == [8, 8, 7, 2, 1, 3, 20]
    assert resolve_n_jobs(-100) == 1
    assert resolve_n_jobs(np.int64(2)) == 2


def test_no_jobs_at_all_is_an_error():
    with pytest.raises(InvalidInputError, match="n_jobs=0"):
        resolve_n_jobs(0)
    before = current_threads()
    with pytest.raises(InvalidInputError, match="n_jobs=0"), thread_limit(0):
        pass
    assert current_threads() == before


@pytest.mark.parametrize(
    ("wish", "expected"),
    [("1", 1), ("3", 3), ("64", 8), ("0", 1), ("", 8), ("many", 8), ("-1", 8), ("²", 8), (None, 8)],
)
def test_the_environment_lowers_the_number(monkeypatch, wish, expected):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wish is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wish)
    assert available_threads() == expected
    assert current_threads() == expected


# Processes.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_makes_threads_of_its_own():
    def both():
        found = []
        with thread_limit(3):
            run_blocks(found.append, [(k,) for k in range(50)])
        return sorted(found) == list(range(50))

    assert both()
    with warnings.catch_warnings():
        # Python warns that a process with threads is forked: that is what is tested. So does JAX
        # if another test has started it.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        child = os.fork()
    if child == 0:
        # The child must not return into pytest.
        status = 1
        try:
            status = 0 if both() else 1
        finally:
            os._exit(status)
    for _ in range(1000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    assert both()


def test_importing_needs_no_fork():
    """There is none on Windows."""
    code = "import os; del os.register_at_fork; import polyad.core.threads; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr
