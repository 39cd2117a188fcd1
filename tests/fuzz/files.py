"""Cases of model files that a stranger has changed: each is refused, or does no harm."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import polyad
from polyad.fitting.archive import read_archive
from polyad.io.model import restored
from tests.fuzz.data import Rng, chance
from tests.fuzz.judge import demand
from tests.fuzz.mutations import mutated, mutated_bytes
from tests.fuzz.test_files import MODELS, outcome_of, saved

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


def case(rng: Rng, number: int, say: Callable[[str], None]) -> bool:
    """Change one model file, in what it holds or in its bytes."""
    name = list(MODELS)[number % len(MODELS)]
    _, path = saved(name, folder())
    if chance(rng, 0.8):
        says, content = mutated(read_archive(path, "model"), rng)
        load = functools.partial(restored, content, "changed.polyad")
    else:
        says, data = mutated_bytes(path.read_bytes(), rng)
        changed = folder() / "bytes.polyad"
        changed.write_bytes(data)
        load = functools.partial(polyad.load, changed)
    say(f"{name}: {says}")
    outcome = outcome_of(load, name)
    demand(outcome in ("refused", ""), outcome)
    return outcome == ""
