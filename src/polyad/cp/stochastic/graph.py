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
from array_api_compat import device
from scipy.sparse import csr_array

from polyad.core.arrays import namespace_of
from polyad.cp.rules import LeastSquares, determined, double, epsilon_of
from polyad.data.label_values import find_labels, shown
from polyad.data.mode_matrices import as_frame, read_similarities, refuse_labels
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array
    from polyad.data.batches import Batch
    from polyad.tensor.sparse import SparseTensor

# Eigenvectors of a graph cost the cube of its size: for larger batches steps are cheaper.
_MOST_EIGENVECTORS = 512
# Conjugate gradients end at this part of the right-hand side.
_ROUNDING = 1e-13
# The graph in the program of the ATD authors: G = 100 ((1/n + 0.01) I - 11'/n).
_PUBLISHED_SCALE, _PUBLISHED_DIAGONAL = 100.0, 0.01


class SampleGraph(ABC):
    """Which samples are similar."""

    @abstractmethod
    def matrix(self, positions: NDArray[np.int64], *, is_random: bool) -> NDArray[np.float64]:
        """Return the matrix of the penalty over the samples of a batch, drawn at random or not."""

    #: Whether the rows take one step on the penalty instead of going to the minimum.
    takes_one_step: bool = False

    def places(self, batch: Batch) -> NDArray[np.int64]:
        """Return where the samples of a batch are in the graph."""
        return batch.positions


class SimilarityGraph(SampleGraph):
    """A graph given by the similarities of all samples, zero on the diagonal.

    Samples are found in it by ``labels``, those of its rows, or else by position.
    """

    def __init__(self, similarity: Any, labels: NDArray[Any] | None = None) -> None:
        self.similarity = similarity
        self.labels = labels

    def places(self, batch: Batch) -> NDArray[np.int64]:
        """Return where the samples of a batch are in the graph."""
        wanted = batch.given.labels[0]
        if self.labels is None or wanted is None:
            return batch.positions
        found = find_labels(self.labels, wanted)
        missing = wanted[found < 0]
        if len(missing):
            message = (
                f"graph has no row for {len(missing)} samples of a batch: {shown(missing)}. Give a "
                "table with the labels of all samples in its rows and its columns."
            )
            raise InvalidInputError(message)
        return found

    def matrix(self, positions: NDArray[np.int64], *, is_random: bool) -> NDArray[np.float64]:
        """Return the Laplacian of the edges inside the batch.

        Of a random batch of b from n samples each edge has the chance b (b-1) / (n (n-1)) to be
        inside, and there are n / b batches: the weights are multiplied by (n-1) / (b-1), so that
        the sum over a sweep is the penalty of the whole graph on average.
        """
        n_samples = self.similarity.shape[0]
        if positions.max() >= n_samples:
            message = (
                f"The graph has {n_samples} samples, but the data has more: a sample at position "
                f"{int(positions.max())} was read. Give a similarity for every sample."
            )
            raise InvalidInputError(message)
        inside = self.similarity[positions][:, positions].toarray()
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


_NAMED: dict[str, type[SampleGraph]] = {"complete": CompleteGraph, "published": PublishedGraph}


def read_graph(
    graph: Any, n_samples: int | None, labels: Any = None, *, is_whole: bool = True
) -> SampleGraph | None:
    """Read the ``graph`` parameter; the number of samples may not be known.

    The labels are those of all samples, or, if these come in batches, of the first.
    """
    if graph is None:
        return None
    if isinstance(graph, str) and graph in _NAMED:
        return _NAMED[graph]()
    accepted = (
        "Give None, 'complete', 'published', or a matrix of similarities (array, scipy.sparse or "
        "labelled table) of shape (n_samples, n_samples)."
    )
    if isinstance(graph, str):
        message = f"graph={graph!r} is not understood. {accepted}"
        raise InvalidInputError(message)
    if not hasattr(graph, "shape"):
        message = f"graph is a {type(graph).__name__}. {accepted}"
        raise InvalidTypeError(message)
    frame = None if is_whole else as_frame(graph)
    if frame is None:
        return SimilarityGraph(csr_array(read_similarities(graph, n_samples, labels, "graph")))
    if labels is None:
        refuse_labels(frame, "graph")
        return SimilarityGraph(csr_array(read_similarities(frame, n_samples, None, "graph")))
    own = frame.index.to_numpy()
    return SimilarityGraph(csr_array(read_similarities(frame, None, None, "graph")), own)


class GraphRows(LeastSquares):
    """The rows of a batch under a graph; ``matrix`` is that of its penalty.

    ``one_step`` takes one fixed-point step from the rows without a graph, ``X - weight G X (Q +
    ridge I)^-1``, instead of solving.
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
        xp = namespace_of(rhs)
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
        xp = namespace_of(rhs)
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
        xp = namespace_of(rows)
        wide = double(rows)
        graph = xp.asarray(self.matrix, device=device(rows))
        return max(0.0, float(xp.sum(wide * (graph @ wide))))


def coupled_rows(normal: Array, rhs: Array, coupling: Array) -> Array:
    """Solve ``X[i] N[i] + (G X)[i] = B[i]`` for all rows, by conjugate gradients.

    The blocks ``N`` (n, R, R), in double precision, are the preconditioner: without a coupling the
    first step is the solution. The steps end at the rounding of the right-hand side.
    """
    xp = namespace_of(rhs)
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
