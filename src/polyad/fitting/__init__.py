"""How any fit runs: the driver, its history, restarts, checkpoints and progress."""

from polyad.fitting.blocks import BlockProblem, BlockSolver, BlockState, minimize_blocks
from polyad.fitting.checkpoint import Checkpoint
from polyad.fitting.driver import FitOptions, FitResult, Iteration, Solver
from polyad.fitting.history import History
from polyad.fitting.restarts import Moves, Resumable, fit_best
from polyad.fitting.status import Status

__all__ = [
    "BlockProblem",
    "BlockSolver",
    "BlockState",
    "Checkpoint",
    "FitOptions",
    "FitResult",
    "History",
    "Iteration",
    "Moves",
    "Resumable",
    "Solver",
    "Status",
    "fit_best",
    "minimize_blocks",
]
