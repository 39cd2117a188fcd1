"""How work is cut into blocks, and the one way these are spread over threads.

Kernels are Numba functions that release the interpreter lock and fill a block of an output
array. The blocks are cut by the size of the problem, never by the number of threads, and each
writes its own part, so results are the same, bit for bit, for any number of threads. Blocks are
``(first, last)``, as :func:`run_blocks` hands them to kernels.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from itertools import pairwise
from numbers import Integral
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

Blocks = list[tuple[int, int]]
_limit: ContextVar[int | None] = ContextVar("polyad_thread_limit", default=None)
_is_over: ContextVar[Callable[[], bool] | None] = ContextVar("polyad_is_over", default=None)


def cut(stop: int, size: int, start: int = 0) -> Blocks:
    """Cut a range into blocks of one size; the last may be smaller."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def cut_evenly(stop: int, most: int) -> Blocks:
    """Cut a range into as few blocks as have at most a size, which differ by one at most."""
    return list(pairwise(even_edges(stop, most).tolist()))


def even_edges(stop: int, most: int) -> NDArray[np.int64]:
    """Return where the blocks of :func:`cut_evenly` begin, and where the last one ends."""
    return _edges(-(-stop // most), stop)


def cut_into(n_blocks: int, stop: int, start: int = 0) -> Blocks:
    """Cut a range into so many blocks, but none without an item, which differ by one at most."""
    n_blocks = min(max(1, n_blocks), stop - start)
    return list(pairwise((start + _edges(n_blocks, stop - start)).tolist()))


def _edges(n_blocks: int, stop: int) -> NDArray[np.int64]:
    return np.arange(n_blocks + 1) * stop // max(1, n_blocks)


def as_slices(blocks: Blocks) -> list[slice]:
    """Return blocks as what arrays are indexed by."""
    return [slice(*block) for block in blocks]


def cut_by_work(work: NDArray[np.int64], size: int) -> Blocks:
    """Cut items of some work each into blocks of about equal work, and at least one item."""
    done = np.cumsum(work)
    total = int(done[-1]) if done.size else 0
    inside = np.searchsorted(done, np.arange(size, total, size)) + 1
    return list(pairwise(np.unique([0, *inside, work.size]).tolist()))


def cut_tiles(stop: int, tile: int, n_tiles: int) -> list[tuple[int, int, int]]:
    """Cut a range into blocks of whole tiles, of which each block says the size.

    What is left over is a block of one smaller tile.
    """
    whole = stop - stop % tile
    blocks = [(*block, tile) for block in cut(whole, tile * n_tiles)]
    return blocks if whole == stop else [*blocks, (whole, stop, stop - whole)]


class OutOfTimeError(Exception):
    """A computation was ended by :func:`ended_when`."""


def available_threads() -> int:
    """Return the number of threads this process may use.

    That is the number of usable processors, or ``OMP_NUM_THREADS`` where it is set lower, which
    is how joblib keeps its worker processes from using the same processors twice.
    """
    import joblib

    processors = int(joblib.cpu_count())
    wish = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(processors, int(wish))) if wish.isdecimal() else processors


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Turn the ``n_jobs`` of an estimator into a number of threads.

    ``None`` means every available thread, ``-1`` too, ``-2`` all but one, as in joblib.
    """
    if n_jobs is None:
        return available_threads()
    if not isinstance(n_jobs, Integral) or isinstance(n_jobs, bool):
        message = f"n_jobs={n_jobs!r} is a {type(n_jobs).__name__}; give a whole number or None."
        raise InvalidTypeError(message)
    if n_jobs == 0:
        message = "n_jobs=0 has no meaning; give a positive number of threads, -1 or None for all."
        raise InvalidInputError(message)
    return n_jobs if n_jobs > 0 else max(1, available_threads() + 1 + n_jobs)


def current_threads() -> int:
    """Return how many threads the running computation may use."""
    limit = _limit.get()
    return available_threads() if limit is None else limit


@contextmanager
def thread_limit(n_jobs: int | None) -> Iterator[None]:
    """Run the enclosed computation on ``n_jobs`` threads.

    The linear algebra library is held to one thread inside, because it cuts its sums by its
    number of threads; large products are cut into blocks by :func:`run_blocks` instead.
    """
    token = _limit.set(resolve_n_jobs(n_jobs))
    try:
        with _one_blas_thread:
            yield
    finally:
        _limit.reset(token)


@contextmanager
def ended_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """End the enclosed computation, by OutOfTimeError, before its next block once ``is_over()``."""
    token = _is_over.set(is_over)
    try:
        yield
    finally:
        _is_over.reset(token)


class _OneBlasThread:
    """Holds the linear algebra library to one thread for as long as any computation runs.

    The setting belongs to the process: computations that overlap share it, the first sets it and
    the last restores it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a process does that has just been forked off."""
        self._lock = Lock()
        self._users = 0
        self._limiter: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limiter = _thread_pools().limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limiter.restore_original_limits()


_one_blas_thread = _OneBlasThread()


class _Helpers:
    """Threads that wait for work and never keep the process from ending.

    An interrupt may land anywhere, also in the start of a thread, which would leave the pools of
    the standard library with a thread that they wait for at exit and cannot reach.
    """

    def __init__(self, n_threads: int) -> None:
        self._tasks: SimpleQueue[tuple[Future[None], Callable[[], None]]] = SimpleQueue()
        for number in range(n_threads):
            Thread(target=self._serve, name=f"polyad-{number}", daemon=True).start()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._tasks.put((future, work))
        return future

    def _serve(self) -> None:
        while True:
            future, work = self._tasks.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            # What the work refers to is not kept until the next one comes.
            del future, work


def run_blocks(function: Callable[..., object], blocks: Iterable[tuple[Any, ...]]) -> None:
    """Call ``function(*block)`` for every block, on the threads of the computation.

    It must release the interpreter lock to gain anything, and write to memory that no other block
    writes to.
    """
    pending = deque(blocks)
    # One block needs no other threads, and asking how many there are takes longer than a small one.
    n_threads = min(current_threads(), len(pending)) if len(pending) > 1 else 1
    is_over = _is_over.get()

    def work() -> None:
        while True:
            try:
                block = pending.popleft()
            except IndexError:
                return
            try:
                if is_over is not None and is_over():
                    raise OutOfTimeError
                function(*block)
            except BaseException:
                # The other threads finish the block they hold and take no other.
                pending.clear()
                raise

    if n_threads <= 1:
        work()
        return
    # Each helper sees the limit of this computation, should a block call this function again.
    threads = _helpers(n_threads - 1)
    helpers = [threads.submit(partial(copy_context().run, work)) for _ in range(n_threads - 1)]
    try:
        work()
    finally:
        # A helper that has not begun is not waited for: inside a block of another call it may be
        # queued behind that block, which would then wait for itself.
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()


@lru_cache(maxsize=1)
def _thread_pools() -> Any:
    import numpy as np  # noqa: F401  (the library must be loaded before it can be found)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@lru_cache(maxsize=8)
def _helpers(n_threads: int) -> _Helpers:
    return _Helpers(n_threads)


# The threads of a pool do not survive a fork: the child makes its own. Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)
    os.register_at_fork(after_in_child=_one_blas_thread.reset)
