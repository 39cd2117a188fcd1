r"""Graphs over the samples, and the rows of a batch that they couple.

With the Laplacian :math:`L` of the graph inside a batch, the rows :math:`X` minimise

.. math:: \tfrac12 \|T - [\![X, A, B, \dots]\!]\|^2 + \tfrac{\lambda}{2} \|X\|^2
    + \tfrac{\mu}{2} \operatorname{tr}(X^\top L X),

where :math:`\operatorname{tr}(X^\top L X) = \sum_{i<j} w_{ij} \|x_i - x_j\|^2`. The derivative is
zero where :math:`X (Q + \lambda I) + \mu L X = P`, with the Gram product :math:`Q` and the MTTKRP
:math:`P` of the other factors: a Sylvester equation. In the eigenvectors :math:`U` of :math:`L` and
:math:`V` of :math:`Q` it falls apart into single numbers,
:math:`(U^\top X V)_{ir} = (U^\top P V)_{ir} / (q_r + \lambda + \mu l_i)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace, device

from polyad.core.arrays import to_numpy
from polyad.cp.rules import LeastSquares, determined, double, epsilon_of
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.tensor.sparse import SparseTensor

# What two entries of a similarity matrix may differ by, as a part of its largest entry.
_ASYMMETRY = 1e-8
# Eigenvectors of a graph cost the cube of its size: for larger batches steps are cheaper.
_MOST_EIGENVECTORS = 512
# Conjugate gradients end at this part of the right-hand side.
_ROUNDING = 1e-13
# The graph in the program of the ATD authors: G = 100 ((1/n + 0.01) I - 11'/n).
_PUBLISHED_SCALE, _PUBLISHED_DIAGONAL = 100.0, 0.01
_NAMES = ("complete", "published")


class SampleGraph(ABC):
    """Which samples are similar."""

    @abstractmethod
    def matrix(self, positions: NDArray[np.int64], *, is_random: bool) -> NDArray[np.float64]:
        """Return the matrix of the penalty over the samples of a batch.

        Parameters
        ----------
        positions : array of int
            Which samples.
        is_random : bool
            Whether they were drawn at random from all.
        """

    #: Whether the rows take one step on the penalty instead of going to the minimum.
    takes_one_step: bool = False


class SimilarityGraph(SampleGraph):
    """A graph given by the similarities of all samples.

    Parameters
    ----------
    similarity : csr_array of shape (n_samples, n_samples)
        Symmetric and not negative.
    """

    def __init__(self, similarity: Any) -> None:
        self.similarity = similarity

    def matrix(self, positions: NDArray[np.int64], *, is_random: bool) -> NDArray[np.float64]:
        """Return the Laplacian of the edges inside the batch.

        Of a random batch of b from n samples each edge has the chance b (b-1) / (n (n-1)) to be
        inside, and there are n / b batches: the weights are multiplied by (n-1) / (b-1), so that
        the sum over a sweep is the penalty of the whole graph on average.
        """
        n_samples = self.similarity.shape[0]
        if positions[-1] >= n_samples:
            message = (
                f"The graph has {n_samples} samples, but the data has more: a sample at position "
                f"{int(positions[-1])} was read. Give a similarity for every sample."
            )
            raise InvalidInputError(message)
        inside = self.similarity[positions][:, positions].toarray()
        np.fill_diagonal(inside, 0.0)
        if is_random and len(positions) > 1:
            inside *= (n_samples - 1) / (len(positions) - 1)
        return np.asarray(np.diag(inside.sum(axis=1)) - inside)


class CompleteGraph(SampleGraph):
    """Every sample of a batch is similar to every other: rows are drawn to their mean."""

    def matrix(self, positions: NDArray[np.int64], *, is_random: bool) -> NDArray[np.float64]:
        """Return ``I - 11ᵀ/n``."""
        n = len(positions)
        return np.asarray(np.eye(n) - 1.0 / n)


class PublishedGraph(SampleGraph):
    """The matrix in the program of the ATD authors, with their single fixed-point step.

    The matrix has a negative eigenvalue, so that its penalty has no minimum in general.
    """

    takes_one_step = True

    def matrix(self, positions: NDArray[np.int64], *, is_random: bool) -> NDArray[np.float64]:
        """Return ``100 ((1/n + 0.01) I - 11ᵀ/n)``."""
        n = len(positions)
        diagonal = (1.0 / n + _PUBLISHED_DIAGONAL) * np.eye(n)
        return np.asarray(_PUBLISHED_SCALE * (diagonal - 1.0 / n))


def read_graph(graph: Any, n_samples: int | None) -> SampleGraph | None:
    """Read the ``graph`` parameter.

    Parameters
    ----------
    graph : None, {'complete', 'published'}, array or sparse matrix
        What was given.
    n_samples : int or None
        The number of samples, if it is known.
    """
    if graph is None:
        return None
    if isinstance(graph, str):
        if graph not in _NAMES:
            message = f"graph={graph!r} is not understood. {_accepted()}"
            raise InvalidInputError(message)
        return CompleteGraph() if graph == "complete" else PublishedGraph()
    if not (scipy.sparse.issparse(graph) or hasattr(graph, "shape")):
        message = f"graph is a {type(graph).__name__}. {_accepted()}"
        raise InvalidTypeError(message)
    try:
        plain: Any = graph if scipy.sparse.issparse(graph) else to_numpy(graph)
        similarity = scipy.sparse.csr_array(plain.astype(np.float64))
    except (TypeError, ValueError) as error:
        message = f"graph makes no matrix of numbers: {error}. {_accepted()}"
        raise InvalidInputError(message) from error
    _check_similarity(similarity, n_samples)
    return SimilarityGraph(similarity)


def _accepted() -> str:
    return (
        "Give None, 'complete', 'published', or a matrix of similarities, dense or sparse, of "
        "shape (n_samples, n_samples)."
    )


def _check_similarity(similarity: Any, n_samples: int | None) -> None:
    shape = similarity.shape
    if len(shape) != 2 or shape[0] != shape[1] or (n_samples is not None and shape[0] != n_samples):
        expected = "n_samples" if n_samples is None else str(n_samples)
        message = f"graph has the shape {shape}; ({expected}, {expected}) is needed."
        raise InvalidInputError(message)
    values = similarity.data
    if values.size and not (np.isfinite(values).all() and values.min() >= 0):
        message = (
            "graph has similarities that are negative, NaN or infinite. Similar samples have large "
            "positive entries, those that are not similar have zero."
        )
        raise InvalidInputError(message)
    gap = abs(similarity - similarity.T)
    if gap.nnz and gap.max() > _ASYMMETRY * values.max():
        message = "graph is not symmetric. Give (graph + graph.T) / 2."
        raise InvalidInputError(message)


class GraphRows(LeastSquares):
    """The rows of a batch under a graph.

    Parameters
    ----------
    ridge : float
        The weight of half the squared rows.
    weight : float
        The weight of half the penalty of the graph.
    matrix : array of shape (n, n)
        The symmetric matrix of the penalty.
    one_step : bool
        Whether to take one fixed-point step from the rows without a graph,
        ``X - weight G X (Q + ridge I)^-1``, instead of solving.
    """

    prefers_shared = False  # the graph couples rows, whatever entries they have

    def __init__(
        self, ridge: float, weight: float, matrix: NDArray[np.float64], *, one_step: bool
    ) -> None:
        super().__init__(ridge)
        self.weight = weight
        self.matrix = matrix
        self.one_step = one_step

    def solve(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Solve the Sylvester equation in the eigenvectors of both matrices, or by steps."""
        xp = array_namespace(rhs)
        graph = xp.asarray(self.matrix, device=device(rhs))
        if self.one_step:
            rows = double(super().solve(normal, rhs, current, mode))
            moved = double(rhs) - self.weight * (graph @ rows)
            return xp.astype(super().solve(normal, moved, current, mode), rhs.dtype)
        if not bool(xp.all(xp.isfinite(normal))):
            return super().solve(normal, rhs, current, mode)
        if rhs.shape[0] > _MOST_EIGENVECTORS:
            rank = int(normal.shape[0])
            # Directions that only rounding tells of get a shift at its level.
            shift = rank * epsilon_of(rhs.dtype) * float(xp.max(xp.abs(normal)))
            eye = xp.eye(rank, dtype=xp.float64, device=device(rhs))
            each = xp.broadcast_to(double(normal) + shift * eye, (int(rhs.shape[0]), rank, rank))
            return self.solve_rows(each, rhs, current, mode)
        penalties, left = xp.linalg.eigh(graph)
        eigenvalues, right = xp.linalg.eigh(double(normal))
        scale = eigenvalues[None, :] + self.ridge + self.weight * penalties[:, None]
        # Directions lost in rounding get no part, as without a graph.
        cutoff = float(xp.max(xp.abs(scale))) * int(normal.shape[0]) * epsilon_of(rhs.dtype)
        kept = scale > cutoff
        inverse = xp.where(kept, 1.0 / xp.where(kept, scale, 1.0), 0.0)
        rows = left @ ((left.T @ double(rhs) @ right) * inverse) @ right.T
        return xp.astype(rows, rhs.dtype)

    def solve_rows(self, normal: Array, rhs: Array, current: Array, mode: int) -> Array:
        """Solve for all rows at once, each with a normal matrix of its own."""
        xp = array_namespace(rhs)
        graph = xp.asarray(self.matrix, device=device(rhs))
        if self.one_step:
            rows = double(super().solve_rows(normal, rhs, current, mode))
            moved = double(rhs) - self.weight * (graph @ rows)
            return xp.astype(super().solve_rows(normal, moved, current, mode), rhs.dtype)
        ridged = normal + self.ridge * xp.eye(int(rhs.shape[1]), dtype=normal.dtype)
        rows = coupled_rows(determined(ridged), double(rhs), self.weight * graph)
        return xp.astype(rows, rhs.dtype)

    def solve_observed(
        self, tensor: SparseTensor, factors: Sequence[Array], mode: int, shift: float
    ) -> Array:
        """Solve for all rows at once; a row without entries is zero."""
        n, rank = tensor.shape[mode], int(factors[mode].shape[1])
        # A row without entries has the unit matrix and a right-hand side of zero.
        normal, rhs = np.tile(np.eye(rank), (n, 1, 1)), np.zeros((n, rank))
        for rows, matrices, sides in tensor.observed_normal_equations(factors, mode):
            normal[rows], rhs[rows] = matrices + shift * np.eye(rank), sides
        return self.solve_rows(normal, rhs.astype(tensor.dtype), factors[mode], mode)

    def penalty(self, rows: Array) -> float:
        """Return ``tr(Xᵀ G X)``, or zero for a matrix without a minimum."""
        if self.one_step:
            return 0.0
        xp = array_namespace(rows)
        wide = double(rows)
        graph = xp.asarray(self.matrix, device=device(rows))
        return max(0.0, float(xp.sum(wide * (graph @ wide))))


def coupled_rows(normal: Array, rhs: Array, coupling: Array) -> Array:
    """Solve ``X[i] N[i] + (G X)[i] = B[i]`` for all rows, by conjugate gradients.

    Parameters
    ----------
    normal : array of shape (n, R, R)
        The positive definite matrices ``N``, in double precision.
    rhs : array of shape (n, R)
        The right-hand side ``B``.
    coupling : array of shape (n, n)
        The positive semi-definite matrix ``G``.

    Notes
    -----
    The blocks of the diagonal are the preconditioner: without a coupling the first step is the
    solution. The steps end at the rounding of the right-hand side.
    """
    xp = array_namespace(rhs)
    n, rank = rhs.shape
    eye = xp.eye(int(rank), dtype=normal.dtype)
    blocks = xp.linalg.inv(normal + xp.linalg.diagonal(coupling)[:, None, None] * eye)

    def each(matrices: Array, rows: Array) -> Array:
        return xp.matmul(matrices, rows[:, :, None])[:, :, 0]

    solution = xp.zeros_like(rhs)
    residual = rhs
    goal = _ROUNDING * float(xp.sum(rhs * rhs)) ** 0.5
    direction = steep = each(blocks, residual)
    size = float(xp.sum(residual * steep))
    for _ in range(int(n * rank)):
        if float(xp.sum(residual * residual)) ** 0.5 <= goal:
            break
        image = each(normal, direction) + coupling @ direction
        length = size / float(xp.sum(direction * image))
        solution = solution + length * direction
        residual = residual - length * image
        steep = each(blocks, residual)
        before, size = size, float(xp.sum(residual * steep))
        direction = steep + (size / before) * direction
    return solution
