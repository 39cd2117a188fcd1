"""Cases of killed fits: a process is killed in a fit, another goes on from its checkpoint.

The one that goes on must end with the bits of a fit that nobody killed.
"""

from __future__ import annotations

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
    for attribute in ("weights_", "factors_", "objective_"):
        same = getattr(whole, attribute), getattr(resumed, attribute)
        same_bits(*same, f"{attribute} of a killed fit")
    same_bits(whole.history_.objective, resumed.history_.objective, "history_ of a killed fit")
    return True


def _kill(name: str, seed: int, folder: str, steps: int, pause: float) -> None:
    """Start a fit in another process and kill it some time after an iteration."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.kills", name, str(seed), folder]
    with subprocess.Popen(
        [*command, name, str(seed), folder], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(steps):
            if not process.stdout.readline():
                break
        time.sleep(pause)
        process.kill()


def _tell(_iteration: Any) -> None:
    sys.stdout.write("iteration\n")
    sys.stdout.flush()


if __name__ == "__main__":
    model, arguments = make(sys.argv[1], int(sys.argv[2]), sys.argv[3], callbacks=[_tell])
    model.fit(*arguments)
