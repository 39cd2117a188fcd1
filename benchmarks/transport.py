"""The transport step of SWIFT: polyad's solution against the paper's 25 steps, by others.

Every library gets the same fibres and two threads. Polyad solves each fibre until the residual is
1e-10, in float32 4e-6; all others make the published 25 Sinkhorn steps, which are not converged.
Imports are inside: each library runs in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], object]

RHO, PENALTY, STEPS = 20.0, 1.0, 25
PHI = PENALTY * RHO / (PENALTY * RHO + 1.0)
# Packages without a batched form are timed on this many fibres; the time is scaled up.
SAMPLE = 200
CHUNK = 1000


@dataclass(frozen=True)
class TransportProblem:
    """Fibres with equally many nonzeros, and dense ones of the same mass."""

    cost: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    xhat: np.ndarray

    def dense(self) -> np.ndarray:
        """Return the sparse fibres as the columns of a dense matrix."""
        n = len(self.rows)
        X = np.zeros((len(self.cost), n), self.xhat.dtype)
        X[self.rows.T, np.arange(n)] = self.values.T
        return X

    def error_of(self, marginals: Any) -> float | None:
        """Return the distance to a solution of residual 1e-13, relative, in the 1-norm."""
        if marginals is None:
            return None
        transport, fibres = self.prepare(np.float64)
        exact = transport.solve(fibres, self.xhat.astype(np.float64), tol=1e-13).marginals
        return float(np.abs(np.asarray(marginals) - exact).sum() / exact.sum())

    def prepare(self, dtype: Any) -> tuple[Any, Any]:
        """Return polyad's transport and its fibres."""
        from polyad.transport import FibreTransport, SparseFibres

        n, s = self.rows.shape
        offsets = np.arange(n + 1) * s
        fibres = SparseFibres(
            offsets, self.rows.ravel(), self.values.ravel().astype(dtype), len(self.cost)
        )
        return FibreTransport(self.cost, epsilon=1 / RHO, marginal_penalty=PENALTY), fibres


def problem(size: int, n_fibres: int, n_nonzeros: int, dtype: Any) -> TransportProblem:
    generator = np.random.default_rng(0)
    features = generator.gamma(0.3, 1.0, (size, 30))
    features /= np.linalg.norm(features, axis=1)[:, None]
    cost = np.clip(1 - features @ features.T, 0, None)
    np.fill_diagonal(cost, 0)
    rows = np.argsort(generator.random((n_fibres, size)), axis=1)[:, :n_nonzeros]
    values = generator.poisson(1.0, (n_fibres, n_nonzeros)) + 1.0
    xhat = generator.gamma(0.5, 1.0, (n_fibres, 10)) @ generator.gamma(0.5, 1.0, (10, size))
    xhat *= 2 * n_nonzeros / size / xhat.mean()
    rows.sort(axis=1)
    return TransportProblem((cost + cost.T) / 2, rows, values.astype(dtype), xhat.astype(dtype))


def repeated(once: Callable[[], Any]) -> Run:
    def run(n_iter: int) -> Any:
        result = None
        for _ in range(n_iter):
            result = once()
        return result

    return run


def polyad_run(data: TransportProblem, _rank: int) -> Run:
    transport, fibres = data.prepare(data.xhat.dtype)
    return repeated(lambda: transport.solve(fibres, data.xhat).marginals)


def polyad_quarter_run(data: TransportProblem, _rank: int) -> Run:
    """Take a quarter of the fibres: time grows with their number."""
    few = len(data.rows) // 4
    part = TransportProblem(data.cost, data.rows[:few], data.values[:few], data.xhat[:few])
    transport, fibres = part.prepare(data.xhat.dtype)

    def once() -> None:
        transport.solve(fibres, part.xhat)

    return repeated(once)


def polyad_published_run(data: TransportProblem, _rank: int) -> Run:
    transport, fibres = data.prepare(data.xhat.dtype)
    return repeated(lambda: transport.sinkhorn(fibres, data.xhat, n_steps=STEPS).marginals)


def numpy_run(data: TransportProblem, _rank: int) -> Run:
    """Make the update of the paper on the columns that are not zero."""
    X, xhat = data.dense(), np.ascontiguousarray(data.xhat.T)
    K = np.exp(-RHO * data.cost - 1).astype(X.dtype)
    phi = X.dtype.type(PHI)

    def once() -> np.ndarray:
        U = np.full_like(X, 1 / len(X))
        for _ in range(STEPS):
            V = (X / (K @ U)) ** phi
            U = (xhat / (K @ V)) ** phi
        V = (X / (K @ U)) ** phi
        return (U * (K @ V)).T

    return repeated(once)


def jax_run(data: TransportProblem, _rank: int) -> Run:
    import jax

    jax.config.update("jax_enable_x64", data.xhat.dtype == np.float64)
    import jax.numpy as jnp

    X, xhat = jnp.asarray(data.dense()), jnp.asarray(data.xhat.T.copy())
    K = jnp.asarray(np.exp(-RHO * data.cost - 1).astype(data.xhat.dtype))

    @jax.jit
    def transport(X: Any, xhat: Any) -> Any:
        def step(_: int, U: Any) -> Any:
            V = (X / (K @ U)) ** PHI
            return (xhat / (K @ V)) ** PHI

        U = jax.lax.fori_loop(0, STEPS, step, jnp.full_like(X, 1 / X.shape[0]))
        V = (X / (K @ U)) ** PHI
        return U * (K @ V)

    return repeated(lambda: np.asarray(transport(X, xhat).block_until_ready()).T)


def pot_run(data: TransportProblem, _rank: int) -> Run:
    """Take one fibre after the other, of a sample."""
    import warnings

    import ot

    X = data.dense()
    cost = data.cost.astype(X.dtype)

    def once() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for j in range(SAMPLE):
                ot.unbalanced.sinkhorn_knopp_unbalanced(
                    data.xhat[j], X[:, j], cost, 1 / RHO, PENALTY, numItermax=STEPS, stopThr=0
                )

    return repeated(once)


def ott_run(data: TransportProblem, _rank: int) -> Run:
    """Take one chunk of fibres, vectorised by OTT."""
    import jax

    jax.config.update("jax_enable_x64", data.xhat.dtype == np.float64)
    import jax.numpy as jnp
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    cost = jnp.asarray(data.cost.astype(data.xhat.dtype))
    solver = Sinkhorn(
        lse_mode=False,
        min_iterations=STEPS,
        max_iterations=STEPS,
        inner_iterations=STEPS,
        threshold=-1,
    )

    def one(a: Any, b: Any) -> Any:
        geometry = Geometry(cost_matrix=cost, epsilon=1 / RHO)
        result = solver(LinearProblem(geometry, a, b, tau_a=PHI, tau_b=PHI))
        return geometry.marginal_from_potentials(result.f, result.g, axis=1)

    many = jax.jit(jax.vmap(one))
    a, b = jnp.asarray(data.xhat[:CHUNK]), jnp.asarray(data.dense()[:, :CHUNK].T.copy())

    def once() -> None:
        many(a, b).block_until_ready()

    return repeated(once)


#: What part of the fibres a library is timed on.
SHARE = {"POT, 25 steps": SAMPLE, "OTT, 25 steps": CHUNK}
LIBRARIES = {
    "polyad": polyad_run,
    "polyad, a quarter of the fibres": polyad_quarter_run,
    "polyad, 25 published steps": polyad_published_run,
    "NumPy, 25 steps": numpy_run,
    "JAX, 25 steps": jax_run,
    "POT, 25 steps": pot_run,
    "OTT, 25 steps": ott_run,
}
SHAPES = ((100, 24000, 4), (400, 8000, 12))
