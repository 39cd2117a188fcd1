"""Memory of a value and its gradient: that of the input, however many steps were made."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from polyad.soft import quantile_normalize, soft_sort, vjp
from tests.forks import run

# Compiled kernels allocate where Python does not see it: a process of its own tells its peak. That
# of getrusage would begin with the peak of the process that started it.
CODE = """
import json
import os
from pathlib import Path
import numpy as np
from polyad import soft
from polyad.transport.rows import RowTransport

os.environ["OMP_NUM_THREADS"] = "1"
steps, solve = [], RowTransport.solve

def counted(self, **options):
    solution = solve(self, **options)
    steps.append(int(solution.n_iter.sum()))
    return solution

RowTransport.solve = counted

def peak(name, d, n, **settings):
    x = np.random.default_rng(0).lognormal(size=(d, n))
    value, pullback = soft.vjp(getattr(soft, name), x, n_targets=32, **settings)
    pullback(value)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

# Each operator in a fork, whose peak begins with what is in use.
for name in ("soft_rank", "soft_sort"):
    child = os.fork()
    if not child:
        peaks = [
            peak(name, 2, 100, epsilon=1e-4),
            peak(name, 32, 4000, epsilon=1.0, tol=0.5),
            peak(name, 32, 4000, epsilon=1e-4, tol=1e-12),
        ]
        print(json.dumps([steps, peaks]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_more_steps_need_no_more_memory():
    done = run(CODE)
    assert done.returncode == 0, done.stderr
    both = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(both) == 2
    for (_, few, many), (small, first, second) in both:
        assert many > few + 75
        # The first large run is some ten times its input; one table of a plan would be thirty-two.
        assert first > small
        assert second - first < 0.1 * (first - small)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(soft_sort, {"n_targets": 32}), (quantile_normalize, {"quantiles": np.arange(32)})],
    ids=["values", "targets"],
)
def test_fixed_iterations_keep_vectors_only(function, arguments):
    d, n, m = 8, 400, 32
    x = np.random.default_rng(0).normal(size=(d, n))
    value, pullback = vjp(function, x, **arguments, n_iter=1, epsilon=0.1)
    pullback(value)  # what is loaded once is not counted
    peaks = []
    for n_iter in (5, 45):
        tracemalloc.start()
        try:
            value, pullback = vjp(function, x, **arguments, n_iter=n_iter, epsilon=0.1)
            pullback(value)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # Tables would be 40 * d * n * m * 8.
    assert peaks[1] - peaks[0] < 2 * 40 * d * (n + m) * 8
