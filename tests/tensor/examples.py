"""What tests of tensors share: random problems, a twin of the MTTKRP."""

from typing import Any

import numpy as np

LETTERS = "abcdef"


def random_problem(shape: tuple[int, ...], rank: int, dtype: str = "float64") -> tuple[Any, Any]:
    rng = np.random.default_rng(sum(shape) + rank)
    x = rng.standard_normal(shape).astype(dtype)
    return x, [rng.standard_normal((n, rank)).astype(dtype) for n in shape]


def mttkrp_twin(x: np.ndarray, factors: list[np.ndarray], mode: int) -> np.ndarray:
    modes = LETTERS[: x.ndim]
    others = [k for k in range(x.ndim) if k != mode]
    terms = ",".join([modes, *(modes[k] + "r" for k in others)])
    return np.einsum(f"{terms}->{modes[mode]}r", x, *(factors[k] for k in others), optimize=True)


def cut_finely(monkeypatch) -> None:
    """Cut dense products at a sixteenth of the usual work, so that small ones have many blocks."""
    for name, value in (
        ("products._TILE_WORK", 62_500),
        ("products._SMALL_WORK", 250_000),
        ("products._TILE_DEPTH", 64),
        ("products._LEAST_ROWS", 12),
        ("dense._NORM_BLOCK", 1 << 11),
        ("dense._SERIAL_NORM", 1 << 16),
    ):
        monkeypatch.setattr(f"polyad.tensor.{name}", value)
