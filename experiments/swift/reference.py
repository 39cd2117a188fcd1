"""The published algorithm and the "direct" one, as they are written down, in NumPy.

Both are references: `published_iteration` follows Algorithms 1 and 2 of the paper, with the
missing factor N in the denominator of the factor update put in, and `direct_iteration` follows
equations 21 to 23 of its appendix. Given the same factors they return the same factors. Neither
is meant to be fast, and both fill memory of the size of the tensor or more.

Symbols: X the tensor, C_n the costs, A_n the factors, rho = 1 / epsilon, lam = marginal_penalty,
X(n) the unfolding with the first of the other modes fastest, kr the Khatri-Rao product,
Delta(T_n) the row marginals of the transport plans of mode n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, eye_array, kron, vstack

if TYPE_CHECKING:
    from collections.abc import Sequence


def published_iteration(  # noqa: PLR0917  (the symbols of the paper)
    X: np.ndarray,
    costs: Sequence[np.ndarray],
    factors: Sequence[np.ndarray],
    rho: float,
    lam: float,
    n_sinkhorn: int = 25,
) -> list[np.ndarray]:
    """Return the factors after one outer iteration of the published algorithm (any order)."""
    factors = [np.array(factor) for factor in factors]
    deltas = np.zeros_like(X)
    for mode, cost in enumerate(costs):
        x, xhat = unfold(X, mode), factors[mode] @ khatri_rao(factors, mode).T
        kept = x.any(axis=0)  # "drop zero columns": their plans are zero
        delta = np.zeros_like(x)
        delta[:, kept] = transport(x[:, kept], xhat[:, kept], cost, rho, lam, n_sinkhorn)
        deltas += fold(delta, mode, X.shape)
    for mode in range(X.ndim):
        kr = khatri_rao(factors, mode)
        ratio = unfold(deltas, mode) / (factors[mode] @ kr.T)
        # Equation 19 with the factor N, over all columns: a zero column costs its mass too.
        factors[mode] = factors[mode] * (ratio @ kr) / (X.ndim * kr.sum(axis=0))
    return factors


def direct_iteration(  # noqa: PLR0917  (the symbols of the paper)
    X: np.ndarray,
    costs: Sequence[np.ndarray],
    factors: Sequence[np.ndarray],
    rho: float,
    lam: float,
    n_sinkhorn: int = 25,
) -> list[np.ndarray]:
    """Return the factors after one iteration of the direct algorithm (three modes).

    The transport does not look for zero columns, and the factors are found from vectorised
    problems with Kronecker products.
    """
    factors = [np.array(factor) for factor in factors]
    deltas = []
    for mode, cost in enumerate(costs):
        x, xhat = unfold(X, mode), factors[mode] @ khatri_rao(factors, mode).T
        with np.errstate(divide="ignore", invalid="ignore"):
            delta = transport(x, xhat, cost, rho, lam, n_sinkhorn)
        deltas.append(np.where(x.any(axis=0), delta, 0.0))  # 0 * inf in zero columns
    for mode in range(3):
        # Equations 21, 22, 23: Delta is transposed in the terms of the other modes.
        target = np.concatenate(
            [_vec(delta if n == mode else delta.T) for n, delta in enumerate(deltas)]
        )
        matrix = _direct_matrix(factors, mode)
        a = _vec(factors[mode])
        ratio = np.divide(target, matrix @ a)
        a = a * (matrix.T @ ratio) / (matrix.T @ np.ones(len(target)))
        factors[mode] = a.reshape(factors[mode].shape, order="F")
    return factors


def transport(  # noqa: PLR0917  (the symbols of the paper)
    x: np.ndarray, xhat: np.ndarray, cost: np.ndarray, rho: float, lam: float, n_sinkhorn: int = 25
) -> np.ndarray:
    """Return Delta(T) of every column after the published number of Sinkhorn steps (Algorithm 1).

    Parameters
    ----------
    x, xhat : array of shape (I, n_columns)
        Columns of the data and of the reconstruction.
    cost : array of shape (I, I)
        What it costs to move mass along the mode.
    rho, lam : float
        The inverse weight of the entropy, and the weight of the marginals.
    n_sinkhorn : int
        The number of steps.
    """
    K = np.exp(-rho * cost - 1.0)
    power = lam * rho / (lam * rho + 1.0)
    U = np.full_like(x, 1.0 / len(x))
    for _ in range(n_sinkhorn):
        U = xhat**power / (K @ (x / (K.T @ U)) ** power) ** power
    V = (x / (K.T @ U)) ** power
    return U * (K @ V)


def objective(  # noqa: PLR0917  (the symbols of the paper)
    X: np.ndarray,
    costs: Sequence[np.ndarray],
    factors: Sequence[np.ndarray],
    rho: float,
    lam: float,
    n_sinkhorn: int = 2000,
) -> float:
    """Return equation 7 at the optimal transport, found by many steps of the plain iteration.

    At the optimum the value of all columns of a mode is
    ``lam * (|Xhat| + |X|) - (2 * lam + 1 / rho) * |Delta|``.
    """
    mass = 0.0
    for mode, cost in enumerate(costs):
        x, xhat = unfold(X, mode), factors[mode] @ khatri_rao(factors, mode).T
        kept = x.any(axis=0)
        mass += transport(x[:, kept], xhat[:, kept], cost, rho, lam, n_sinkhorn).sum()
    total = float(np.prod([factor.sum(axis=0) for factor in factors], axis=0).sum() + X.sum())
    return X.ndim * lam * total - (2.0 * lam + 1.0 / rho) * float(mass)


def direct_bytes(shape: Sequence[int], n_components: int) -> int:
    """Return about how much memory the matrices of the direct algorithm take.

    Each of the three blocks of a matrix has one number and one index for every cell and
    component; the stacked matrix and the block that is being made are held with them.
    """
    return 16 * int(np.prod(shape, dtype=float)) * n_components * 7


def unfold(tensor: np.ndarray, mode: int) -> np.ndarray:
    """Return the unfolding of a mode, the first of the other modes fastest."""
    return np.reshape(np.moveaxis(tensor, mode, 0), (tensor.shape[mode], -1), order="F")


def fold(matrix: np.ndarray, mode: int, shape: Sequence[int]) -> np.ndarray:
    """Undo `unfold`."""
    others = [size for k, size in enumerate(shape) if k != mode]
    return np.moveaxis(np.reshape(matrix, (shape[mode], *others), order="F"), 0, mode)


def khatri_rao(factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """Return A_N kr ... kr A_1 without the mode's own factor."""
    product = np.ones((1, factors[0].shape[1]))
    for k, factor in enumerate(factors):
        if k != mode:
            product = _kr(factor, product)
    return product


def _kr(slow: np.ndarray, fast: np.ndarray) -> np.ndarray:
    """Return the Khatri-Rao product of two matrices, the rows of the second fastest."""
    return (slow[:, None, :] * fast[None, :, :]).reshape(-1, slow.shape[1])


def _vec(matrix: np.ndarray) -> np.ndarray:
    return matrix.ravel(order="F")


def _direct_matrix(factors: Sequence[np.ndarray], mode: int) -> csr_array:
    """Return the matrix of equation 21, 22 or 23.

    Block n maps vec(A_mode) to the model of mode n. For another mode,
    vec(Xhat(n)^T) = (A_n kron I) vec(A_slow kr A_fast), where slow and fast are the two modes
    besides n, and one of them is the mode in question.
    """
    blocks = []
    for n in range(3):
        if n == mode:
            identity = eye_array(len(factors[mode]))
            blocks.append(kron(khatri_rao(factors, mode), identity, format="csr"))
            continue
        fast, slow = (k for k in range(3) if k != n)
        other = factors[slow if mode == fast else fast]
        inner = (
            _vectorised_kr_fast(other, len(factors[mode]))
            if mode == fast
            else _vectorised_kr_slow(other, len(factors[mode]))
        )
        identity = eye_array(len(factors[fast]) * len(factors[slow]))
        blocks.append(csr_array(kron(factors[n], identity, format="csr") @ inner))
    return csr_array(vstack(blocks, format="csr"))


def _vectorised_kr_fast(slow: np.ndarray, n_fast: int) -> csr_array:
    """Return (I_R kr slow) kron I: vec(slow kr A) is this times vec(A) (property 4)."""
    n_components = slow.shape[1]
    return csr_array(kron(csr_array(_kr(np.eye(n_components), slow)), eye_array(n_fast)))


def _vectorised_kr_slow(fast: np.ndarray, n_slow: int) -> csr_array:
    """Return I kr (fast (I_R kron 1')): vec(A kr fast) is this times vec(A) (property 5)."""
    n_fast, n_components = fast.shape
    n_columns = n_slow * n_components
    # Column (r, i) is the i-th unit vector of component r, kron fast[:, r].
    rows = np.arange(n_columns * n_fast)
    columns = np.repeat(np.arange(n_columns), n_fast)
    values = np.repeat(fast.T, n_slow, axis=0).ravel()
    return csr_array((values, (rows, columns)), shape=(n_columns * n_fast, n_columns))
