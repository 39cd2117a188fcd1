"""Soft quantile normalization, ranks, sorts and masks: polyad against OTT-JAX.

Both get the same values between 0 and 1, squashed beforehand, ``epsilon=0.01`` and two threads.
polyad solves each row until the sums of its plan are right to 1e-9; OTT stops at its own default,
1e-3 in the 1-norm. The error is the largest relative one of the sums of the plans over values, of
some rows. Compile time is left out. Imports are inside: each library runs in a process of its own.
OTT is not run where 100,000 values have as many targets, as its tables would be 80 GB, nor for the
gradient of masks, whose linear system it does not solve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], object]

EPSILON = 1e-2
# Rows for which errors are computed, and entries of plans that OTT is timed on; it is scaled up.
SAMPLE = 4
CHUNK = 20_000_000


@dataclass(frozen=True)
class SoftProblem:
    """Rows of values, the operator, its number of targets, and whether the gradient is wanted."""

    x: np.ndarray
    operator: str
    n_targets: int
    with_gradient: bool

    @property
    def quantiles(self) -> np.ndarray:
        """The quantiles of a normalization."""
        return np.linspace(0.0, 1.0, self.n_targets, dtype=self.x.dtype) ** 2

    def rows(self, library: str) -> int:
        """Return how many rows a library is timed on."""
        if library == "polyad":
            return len(self.x)
        return min(len(self.x), max(SAMPLE, CHUNK // (self.x.shape[1] * self.n_targets)))

    def share(self, library: str) -> float:
        """Return the factor by which the time of a library is scaled up."""
        return len(self.x) / self.rows(library)

    def error_of(self, error: Any) -> float | None:
        """Return the error of the sums; a run returns the function that computes it."""
        return None if error is None else float(error())

    def error_of_plans(self, plans: np.ndarray) -> float:
        """Return the largest relative error of the sums of plans over values."""
        return float(np.abs(np.asarray(plans, np.float64).sum(axis=1) * self.n_targets - 1).max())


def problem(
    shape: tuple[int, int, int], operator: str, dtype: Any, *, with_gradient: bool
) -> SoftProblem:
    d, n, m = shape
    normal = np.random.default_rng(0).normal(size=(d, n))
    values = 1.0 / (1.0 + np.exp(-np.pi / np.sqrt(3.0) * normal))
    return SoftProblem(values.astype(dtype), operator, m, with_gradient)


def polyad_run(data: SoftProblem, _rank: int) -> Run:
    from polyad import soft
    from polyad.core.threads import thread_limit

    function = getattr(soft, {"normalize": "quantile_normalize"}.get(data.operator, data.operator))
    rest = (data.quantiles,) if data.operator == "normalize" else ()
    own = {"n_targets": data.n_targets} if data.operator in ("soft_rank", "soft_sort") else {}
    if data.operator == "soft_topk_mask":
        own = {"k": data.x.shape[1] // 2}  # both targets have the same weight

    def run(n_iter: int) -> Callable[[], float]:
        with thread_limit(2):
            for _ in range(n_iter):
                value, pullback = soft.vjp(
                    function, data.x, *rest, **own, epsilon=EPSILON, squash=False
                )
                if data.with_gradient:
                    pullback(2.0 * value)
        return lambda: _solved_error(data)

    return run


def _solved_error(data: SoftProblem) -> float:
    from polyad.transport.rows import LongTransport, RowTransport, is_long

    n, m = data.x.shape[1], data.n_targets
    even = np.full((1, n), 1 / n), np.full((1, m), 1 / m)
    y = np.linspace(0.0, 1.0, m)[None]
    kind = LongTransport if is_long(n, m) else RowTransport
    transport = kind(data.x[:SAMPLE].astype(np.float64), y, *even, epsilon=EPSILON)
    return float(transport.solve().error.max())


def ott_run(data: SoftProblem, _rank: int) -> Run:
    import jax

    jax.config.update("jax_enable_x64", data.x.dtype == np.float64)
    import jax.numpy as jnp
    from ott.initializers.linear.initializers import DefaultInitializer
    from ott.tools import soft_sort

    same: dict[str, Any] = {"squashing_fun": lambda values: values, "epsilon": EPSILON}
    if data.operator == "soft_sort" and data.with_gradient:
        # The one that its sort uses by default has no derivative.
        same["initializer"] = DefaultInitializer()
    quantiles = jnp.asarray(data.quantiles)

    def function(x: Any) -> Any:
        if data.operator == "normalize":
            return soft_sort.quantile_normalization(x, quantiles, axis=1, **same)
        if data.operator == "soft_topk_mask":
            return soft_sort.topk_mask(x, axis=1, k=x.shape[1] // 2, **same)
        operator = soft_sort.ranks if data.operator == "soft_rank" else soft_sort.sort
        return operator(x, axis=1, num_targets=data.n_targets, **same)

    def objective(x: Any) -> Any:
        return (function(x) ** 2).sum()

    compiled = jax.jit(jax.value_and_grad(objective) if data.with_gradient else function)
    x = jnp.asarray(data.x[: data.rows("OTT")])

    def plan(row: Any) -> Any:
        a = jnp.full(row.size, 1 / row.size, row.dtype)
        b = jnp.full(data.n_targets, 1 / data.n_targets, row.dtype)
        return soft_sort.transport_for_sort(row, a, b, **same).matrix

    def run(n_iter: int) -> Callable[[], float]:
        for _ in range(n_iter):
            jax.block_until_ready(compiled(x))
        return lambda: data.error_of_plans(jax.jit(jax.vmap(plan))(x[:SAMPLE]))

    return run


LIBRARIES = {"polyad": polyad_run, "OTT": ott_run}
#: Shapes (rows, values, targets), operators, and the types they are measured in.
OPERATIONS = (
    *(((500, 256, 16), "normalize", dtype) for dtype in (np.float64, np.float32)),
    *(((2000, 2000, 16), "normalize", dtype) for dtype in (np.float64, np.float32)),
    ((100, 1000, 1000), "soft_rank", np.float64),
    ((100, 1000, 1000), "soft_sort", np.float64),
    ((10, 100_000, 2), "soft_topk_mask", np.float64),
    ((1, 100_000, 100_000), "soft_rank", np.float64),
    ((1, 100_000, 100_000), "soft_sort", np.float64),
)


def libraries(
    shape: tuple[int, int, int], operator: str, *, with_gradient: bool
) -> dict[str, Callable[[SoftProblem, int], Run]]:
    """Return those that have an answer."""
    is_too_large = shape[1] * shape[2] > 10**9
    if is_too_large or (operator == "soft_topk_mask" and with_gradient):
        return {"polyad": polyad_run}
    return LIBRARIES


def title(shape: tuple[int, int, int], operator: str, dtype: Any, *, with_gradient: bool) -> str:
    d, n, m = shape
    extra = " and gradient" if with_gradient else ""
    return f"soft: {operator}{extra}, {d} rows of {n} to {m} targets, {dtype.__name__}"
