"""Small solvers with known behaviour, to test what is common to all."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polyad.fitting import Solver


@dataclass(frozen=True)
class Point:
    position: np.ndarray


class Halving(Solver[Point]):
    """Halves a vector at each step: objective |x|², which falls by a factor of four."""

    name = "Halving"

    def step(self, state: Point) -> Point:
        return Point(state.position / 2)

    def objective(self, state: Point) -> float:
        return float(np.sum(state.position**2))

    def diagnostics(self, state: Point) -> dict[str, float]:
        return {"length": float(np.linalg.norm(state.position))}


class Scripted(Solver[Point]):
    """Runs through a given list of objectives."""

    name = "Scripted"

    def __init__(
        self, values: list[float], *, floor: float = 0.0, least: float = 0.0, scale: float = 0.0
    ) -> None:
        self.values = values
        self.floor, self.least, self.scale = floor, least, scale

    def step(self, state: Point) -> Point:
        return Point(state.position + 1)

    def objective(self, state: Point) -> float:
        return self.values[int(state.position[0])]


class ScriptedWithoutPromise(Scripted):
    promises_descent: ClassVar[bool] = False


class Noisy(ScriptedWithoutPromise):
    """Waits for three iterations without progress, and does not measure its start."""

    measures_start: ClassVar[bool] = False
    patience: ClassVar[int] = 3


def start(_number: int = 0, _seed: int = 0) -> Point:
    return Point(np.zeros(1))
