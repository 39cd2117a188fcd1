"""Cases of killed fits: a process is killed in a fit, another goes on from its checkpoint.

The one that goes on must end with the bits of a fit that nobody killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyad.fitting import Checkpoint
from tests.estimators import CASES, FIRST
from tests.fuzz.judge import demand, promised, same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.data import Rng

# What is killed: small fits of many iterations, all of which are done.
NAMES = list(FIRST.values())
N_ITERATIONS = 12


def make(name: str, seed: int, folder: str | None, **more: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an estimator and the arguments of its fit, the same in each process."""
    tried = CASES[name]
    X = tried.data(n_samples=20, seed=seed)
    checkpoint = None if folder is None else Checkpoint(Path(folder) / "fit.polyad", every=1)
    own = {"n_init": 1 + seed % 2, "max_iter": N_ITERATIONS, "n_jobs": 1, "random_state": seed}
    return tried.make(**own, checkpoint=checkpoint, **more), (X, tried.classes(20))


def case(rng: Rng, number: int, say: Callable[[str], None]) -> bool:
    """Kill one fit at a random moment and go on from what it left."""
    name, seed = NAMES[number % len(NAMES)], int(rng.integers(100))
    steps, pause = int(rng.integers(1, N_ITERATIONS)), float(rng.uniform(0.0, 0.05))
    say(f"{name} with seed {seed}, killed {pause:.3f} seconds after iteration {steps}")
    with promised("the fit that nobody killed"):
        model, arguments = make(name, seed, None)
        whole = model.fit(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        _kill(name, seed, folder, steps, pause)
        left = sorted(path.name for path in Path(folder).iterdir() if path.suffix == ".polyad")
        demand(left in ([], ["fit.polyad"]), f"a killed fit left {left}")
        with promised("the fit that goes on"):
            model, arguments = make(name, seed, folder)
            resumed = model.fit(*arguments)
    for attribute in ("weights_", "factors_", "alpha_", "theta_", "objective_"):
        if not hasattr(whole, attribute):
            continue
        same = getattr(whole, attribute), getattr(resumed, attribute)
        same_bits(*same, f"{attribute} of a killed fit")
    same_bits(whole.history_.objective, resumed.history_.objective, "history_ of a killed fit")
    return True


def _kill(name: str, seed: int, folder: str, steps: int, pause: float) -> None:
    """Start a fit in another process and kill it some time after an iteration."""
    given, told = _nursery()
    given.write(f"{json.dumps([name, seed, folder])}\n")
    given.flush()
    child = int(told.readline())
    lines = iter(told.readline, "over\n")
    for _ in range(steps):
        if not next(lines, ""):
            break
    else:
        time.sleep(pause)
        with contextlib.suppress(ProcessLookupError):  # on a quick machine the fit is over
            os.kill(child, signal.SIGKILL)
    demand(all(lines), "the process whose forks are killed has died itself")


@functools.cache
def _nursery() -> tuple[Any, Any]:
    """Start the process that has imported all, and whose forks are fits; return its two ends."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.kills"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    return process.stdin, process.stdout


def _tell(words: Any) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _serve() -> None:
    """Fork for each fit, say who fits, how often it has come round, and when it is over."""
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            _tell(os.getpid())
            model, arguments = make(*json.loads(line), callbacks=[lambda _: _tell("iteration")])
            model.fit(*arguments)
            os._exit(0)
        os.waitpid(child, 0)
        _tell("over")


if __name__ == "__main__":
    _serve()
