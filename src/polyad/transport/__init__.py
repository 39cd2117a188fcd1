"""Optimal transport: costs, the transport of sparse fibres, Sinkhorn's algorithm, distances."""

from __future__ import annotations

from polyad.transport.convolution import ConvolutionGeometry
from polyad.transport.costs import (
    cosine_cost,
    grid_cost,
    one_identity_cost,
    presence_cost,
    random_cost,
    tfidf_cost,
    validate_cost,
)
from polyad.transport.distance import wasserstein_distance
from polyad.transport.fibres import FibreSolution, FibreTransport, SparseFibres
from polyad.transport.geometry import Geometry
from polyad.transport.grids import grid_geometry
from polyad.transport.label_costs import (
    embedding_cost,
    graph_cost,
    mixed_cost,
    prefix_cost,
    taxonomy_cost,
)
from polyad.transport.separable import MatrixGeometry, SeparableGeometry
from polyad.transport.sinkhorn import SinkhornResult, sinkhorn

__all__ = [
    "ConvolutionGeometry",
    "FibreSolution",
    "FibreTransport",
    "Geometry",
    "MatrixGeometry",
    "SeparableGeometry",
    "SinkhornResult",
    "SparseFibres",
    "cosine_cost",
    "embedding_cost",
    "graph_cost",
    "grid_cost",
    "grid_geometry",
    "mixed_cost",
    "one_identity_cost",
    "prefix_cost",
    "presence_cost",
    "random_cost",
    "sinkhorn",
    "taxonomy_cost",
    "tfidf_cost",
    "validate_cost",
    "wasserstein_distance",
]
