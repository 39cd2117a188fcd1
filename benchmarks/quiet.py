"""Timing on a machine that others use too: disturbed measurements are repeated."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The share of the machine that other processes may use while something is timed.
_TOLERATED = 0.08
_ATTEMPTS = 6


def timed(run: Callable[[], object], patience: float = float("inf")) -> tuple[float, bool]:
    """Return the seconds that a call took, and whether the machine was quiet enough.

    A measurement during which other processes were busy is repeated a few times, until all have
    taken ``patience`` seconds; the least disturbed one is returned.
    """
    best = (float("inf"), float("inf"))
    spent = 0.0
    for _ in range(_ATTEMPTS):
        busy, own = _busy_seconds(), _own_seconds()
        started = time.perf_counter()
        run()
        seconds = time.perf_counter() - started
        others = (_busy_seconds() - busy) - (_own_seconds() - own)
        share = max(0.0, others) / (seconds * (os.cpu_count() or 1))
        best = min(best, (share, seconds))
        spent += seconds
        if share <= _TOLERATED or spent > patience:
            break
    return best[1], best[0] <= _TOLERATED


def per_iteration(
    run: Callable[[int], object], n_iter: int, repeats: int, patience: float = float("inf")
) -> tuple[float, float]:
    """Return the median seconds of one iteration, and the share of disturbed measurements.

    ``run(n)`` makes ``n`` iterations. The difference between ``2n`` and ``n`` iterations leaves
    out everything that is done once: conversion, start, norms, compilation. What has taken
    ``patience`` seconds is not repeated.
    """
    run(2)
    values, disturbed = [], 0
    started = time.perf_counter()
    while len(values) < repeats and (not values or time.perf_counter() - started < patience):
        short, quiet_short = timed(lambda: run(n_iter), patience)
        long, quiet_long = timed(lambda: run(2 * n_iter), patience)
        values.append((long - short) / n_iter)
        disturbed += not (quiet_short and quiet_long)
    values.sort()
    return values[len(values) // 2], disturbed / len(values)


def _busy_seconds() -> float:
    """Return the time that all processors spent working, by anyone, other machines included."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return _own_seconds()
    user, nice, system, _idle, _wait, irq, soft, steal = map(
        int, stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system
