"""Algebra of tensors. Knows nothing of models."""

from polyad.tensor.alignment import (
    Matching,
    canonicalize_components,
    factor_match_score,
    match_components,
)
from polyad.tensor.dense import DenseTensor
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.products import fold, khatri_rao, kruskal_to_dense, mttkrp, unfold
from polyad.tensor.sparse import SparseTensor

__all__ = [
    "DenseTensor",
    "KruskalTensor",
    "Matching",
    "SparseTensor",
    "canonicalize_components",
    "factor_match_score",
    "fold",
    "khatri_rao",
    "kruskal_to_dense",
    "match_components",
    "mttkrp",
    "unfold",
]
