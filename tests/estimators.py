"""Every public estimator with small data and quick parameters, one line each.

Tests of what all of them promise take their cases from here; see ``tests/test_contract.py``.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import coo_array, issparse

import polyad
from polyad import LabelledTensor
from polyad.augmented.signals import Scaling
from polyad.estimators.kruskal import KruskalResult

QUICK = {"n_components": 2, "max_iter": 3, "tol": 0.0, "random_state": 0}


def tensor(rng, shape, mean=2.0):
    """Return counts of two components, of which some are zero."""
    factors = [rng.uniform(0.1, 1.0, (n, 2)) for n in shape]
    model = np.einsum("ir,jr,kr->ijk", *factors)
    return rng.poisson(mean * model / model.mean()).astype(float)


def real(rng, shape):
    return np.where(rng.random(shape) < 0.1, 0.0, tensor(rng, shape) + rng.normal(size=shape))


def matrix(rng, shape):
    return np.exp(0.5 * rng.normal(size=(shape[0], 3)) @ rng.normal(size=(3, shape[1])))


#: How work is cut, but finer, so that data that is fitted at once has blocks for two threads.
FINE_CUTS = {
    "tensor.products._TILE_WORK": 62_500,
    "tensor.products._SMALL_WORK": 250_000,
    "tensor.products._TILE_DEPTH": 64,
    "tensor.products._LEAST_ROWS": 12,
    "tensor.dense._NORM_BLOCK": 1 << 11,
    "tensor.dense._SERIAL_NORM": 1 << 16,
    "tensor.sparse.BLOCK": 1 << 11,
    "tensor.fibres.BLOCK": 1 << 11,
    "tensor.fibres._SOLVE_BLOCK": 1 << 9,
    "tensor.fibres._SEGMENT": 1 << 6,
    "cp.poisson.problem._BLOCK": 1 << 6,
    "cp.generalized.tiles._TILE": 1 << 11,
    "cp.generalized.tiles._TILE_COLUMNS": 64,
    "cp.generalized.tiles._BLOCK": 1 << 13,
    "cp.generalized.rows._CHUNK": 1 << 13,
    "cp.generalized.rows._MANY_CELLS": 1 << 8,
    "cp.generalized.adam._BLOCK": 1 << 10,
    "cp.generalized.adam._MIN_BATCH": 1 << 12,
    "transport.fibres.transport._BLOCK_WORK": 1 << 13,
    "wasserstein.problem._BLOCK_SIZE": 1 << 9,
    "quantile.problem._MOST_ROWS": 10,
    "quantile.scores._MOST_SAMPLES": 8,
    "quantile.projected.projectors._MOST_SAMPLES": 8,
    "membership.moment_tensors._ENTRIES_AT_A_TIME": 1 << 8,
    "membership.posterior._LIKELIHOODS_AT_A_TIME": 1 << 8,
    "transport.geometry._BLOCK": 1 << 7,
    "dictionary.loss._BLOCK": 1 << 7,
}


def categories(rng, shape):
    """Return codes of three categories, for samples that mix two kinds of answers."""
    shares = rng.dirichlet([0.3, 0.3], shape[0])
    kinds = rng.dirichlet([0.5] * 3, size=(shape[1], 2)).transpose(0, 2, 1)
    edges = np.einsum("jdk,nk->njd", kinds, shares).cumsum(axis=2)
    return (rng.random((*shape[:2], 1)) > edges[:, :, :2]).sum(axis=2).astype(float)


#: How data of a kind is made.
KINDS = {
    "real": real,
    "counts": tensor,
    "few counts": lambda rng, shape: coo_array(tensor(rng, shape, mean=0.3)),
    "zeros and ones": lambda rng, shape: (tensor(rng, shape) > 1).astype(float),
    "matrix": matrix,
    "categories": categories,
}


@dataclass(frozen=True)
class Case:
    """An estimator, the kind of data it is tried on, and what makes it quick."""

    estimator: Any
    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)
    #: Of data that is cut into blocks, for more than one thread: see ``FINE_CUTS``.
    large: tuple[int, ...] = (64, 45, 30)

    def make(self, **changes):
        return self.estimator(**{**QUICK, **self.parameters, **changes})

    def fit(self, X=None, **changes):
        X = self.data() if X is None else X
        n_samples = X.shape[0] if hasattr(X, "shape") else None
        return self.make(**changes).fit(X, self.classes(n_samples))

    def data(self, n_samples=8, seed=0, others=(6, 5)):
        """Return samples, dense or sparse as the solver needs them."""
        return KINDS[self.kind](np.random.default_rng(seed), (n_samples, *others))

    def dense(self, **options):
        data = self.data(**options)
        return data.toarray() if issparse(data) else data

    def forms(self):
        """Return the data in each form that the estimator takes."""
        dense = self.dense()
        forms = {"dense": dense} if self.takes_dense else {}
        if self.takes_sparse:
            forms["sparse"] = coo_array(dense)
        if self.takes_missing:
            hidden = np.random.default_rng(1).random(dense.shape) < 0.1
            forms["missing"] = np.where(hidden, np.nan, dense)
        return forms

    def large_forms(self):
        """Return larger data in the forms that go different ways, with parameters for them."""
        n_samples, *others = self.large
        dense = self.dense(n_samples=n_samples, others=tuple(others))
        rng = np.random.default_rng(1)
        # As many samples in a batch as give a thread something to do.
        more = {"batch_size": 48} if self.estimator is polyad.StochasticCP else {}
        forms = {}
        # A matrix with gaps is cut as one without.
        if self.kind not in ("few counts", "matrix"):
            forms["dense"] = dense, more
        if self.takes_missing:
            forms["missing"] = np.where(rng.random(dense.shape) < 0.1, np.nan, dense), more
        if self.takes_sparse:
            few = coo_array(dense * (rng.random(dense.shape) < 0.05))
            forms["sparse"] = few, more
            if self.takes_missing and self.parameters.get("solver") != "mu":
                forms["unobserved"] = few, {**more, "missing": "unobserved"}
        return forms

    def labelled(self, data=None):
        """Return the samples with names for their modes and entries."""
        data = self.data() if data is None else data
        modes = ["sample", "thing", "place"][: data.ndim]
        names = [
            [f"{mode} {k}" for k in range(n)] for mode, n in zip(modes, data.shape, strict=True)
        ]
        return LabelledTensor(data, modes=modes, labels=names)

    def classes(self, n_samples):
        """Return the classes of samples for an estimator that needs them."""
        return np.arange(n_samples) % 2 if self.tags.target_tags.required else None

    @property
    def tags(self):
        return self.make().__sklearn_tags__()

    @property
    def has_components(self):
        """Whether the model is a sum of components with weights and factors."""
        return issubclass(self.estimator, KruskalResult)

    @property
    def takes_dense(self):
        return self.parameters.get("solver") != "adam"

    @property
    def takes_sparse(self):
        return self.tags.input_tags.sparse

    @property
    def takes_missing(self):
        return self.tags.input_tags.allow_nan and self.takes_dense


MATRIX = (16, 24)
SMALL = (12, 8, 6)
CASES = {
    "WassersteinDictionary": Case(
        polyad.WassersteinDictionary, "counts", {"epsilon": 0.3}, large=SMALL
    ),
    "WassersteinCPDictionary": Case(
        polyad.WassersteinCPDictionary, "counts", {"epsilon": 0.3}, large=SMALL
    ),
    "CP": Case(polyad.CP, "real"),
    "NonnegativeCP": Case(polyad.NonnegativeCP, "counts"),
    "NonnegativeCP mu": Case(polyad.NonnegativeCP, "counts", {"solver": "mu"}),
    # One fit, which can be prolonged; the other case has the default, a search.
    "PoissonCP": Case(polyad.PoissonCP, "counts", {"init": "svd"}, large=(20, 16, 12)),
    "PoissonCP pdnr": Case(polyad.PoissonCP, "counts", {"solver": "pdnr"}, large=(20, 16, 12)),
    "GeneralizedCP": Case(polyad.GeneralizedCP, "real"),
    "GeneralizedCP odds": Case(
        polyad.GeneralizedCP, "zeros and ones", {"loss": "bernoulli", "ridge": 0.1}, (40, 24, 18)
    ),
    "GeneralizedCP adam": Case(
        polyad.GeneralizedCP, "few counts", {"loss": "poisson", "solver": "adam", "epoch_iter": 3}
    ),
    "SimilarityCP": Case(polyad.SimilarityCP, "counts"),
    "StochasticCP": Case(polyad.StochasticCP, "real", {"batch_size": 3}),
    "StochasticCP graph": Case(polyad.StochasticCP, "real", {"batch_size": 3, "graph": "complete"}),
    "AugmentedCP": Case(polyad.AugmentedCP, "real", {"batch_size": 3}),
    "AugmentedCP twins": Case(
        polyad.AugmentedCP, "real", {"batch_size": 3, "augment": Scaling(0.5)}, large=(24, 16, 12)
    ),
    "AugmentedCP at once": Case(
        polyad.AugmentedCP,
        "real",
        {"batch_size": None, "augment": Scaling(0.5)},
        large=(24, 16, 12),
    ),
    "SupervisedCP": Case(polyad.SupervisedCP, "counts"),
    "WassersteinCP": Case(polyad.WassersteinCP, "few counts", large=(24, 16, 12)),
    "WassersteinCP samples": Case(
        polyad.WassersteinCP, "few counts", {"costs": "presence"}, large=(20, 16, 12)
    ),
    "QMF": Case(polyad.QMF, "matrix", {"n_quantiles": 4}, large=MATRIX),
    "QMF adam": Case(
        polyad.QMF,
        "matrix",
        {"n_quantiles": 4, "solver": "adam", "nonnegative": False, "divergence": "frobenius"},
        large=MATRIX,
    ),
    "QMF batches": Case(
        polyad.QMF,
        "matrix",
        {"n_quantiles": 4, "solver": "adam", "batch_size": 2},
        large=MATRIX,
    ),
    "QMFQ": Case(
        polyad.QMFQ,
        "matrix",
        {"n_quantiles": 4, "projector": "nmf", "inner_iter": 10},
        large=MATRIX,
    ),
    "QMFQ svd": Case(
        polyad.QMFQ,
        "matrix",
        {"n_quantiles": 4, "solver": "lbfgs"},
        large=MATRIX,
    ),
}
for _name, _options in {
    "MixedMembership": {},
    "MixedMembership refined": {"refine": True},
}.items():
    CASES[_name] = Case(polyad.MixedMembership, "categories", _options, large=MATRIX)
#: Models without components, whose tests hold them to the same: ``tests/crowd/test_contract.py``.
CROWDS = {polyad.DawidSkene, polyad.MajorityVote}
#: The name of the first case of each estimator.
FIRST: dict[Any, str] = {}
for _name, _case in CASES.items():
    FIRST.setdefault(_case.estimator, _name)
