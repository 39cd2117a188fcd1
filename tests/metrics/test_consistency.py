"""Core consistency: against a dense oracle, sparse as dense, and what it is for."""

import tracemalloc
from functools import reduce

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import CP, KruskalTensor
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError
from polyad.metrics import core_consistency, decomposition


def oracle(X, model):
    """The core by one least-squares problem with the Kronecker product of the factors."""
    unit = model.normalized()
    share = np.abs(unit.weights) ** (1 / X.ndim)
    factors = [factor * share for factor in unit.factors]
    factors[0] = factors[0] * np.sign(unit.weights)
    rank = len(share)
    core = (np.linalg.pinv(reduce(np.kron, factors)) @ X.ravel()).reshape((rank,) * X.ndim)
    ideal = np.zeros_like(core)
    ideal[(np.arange(rank),) * X.ndim] = 1.0
    return 100 * (1 - np.sum((core - ideal) ** 2) / rank)


@pytest.mark.parametrize("shape", [(6, 5, 4), (5, 4, 3, 4)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_equals_the_oracle(shape, rank):
    generator = np.random.default_rng(rank)
    X = generator.standard_normal(shape) * (generator.random(shape) < 0.5)
    weights = generator.standard_normal(rank)
    model = KruskalTensor(weights, [generator.standard_normal((n, rank)) for n in shape])
    expected = oracle(X, model)
    for form in (X, np.asfortranarray(X), coo_array(X), torch.asarray(X)):
        assert core_consistency(form, model) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_do_not_matter(monkeypatch, block):
    X, truth = make_low_rank((6, 5, 4), 2, noise=0.5, random_state=0)
    monkeypatch.setattr(decomposition, "_BLOCK", block)
    assert core_consistency(coo_array(X), truth) == pytest.approx(oracle(X, truth), rel=1e-9)


def test_scaling_of_the_factors_does_not_matter():
    X, truth = make_low_rank((6, 5, 4), 2, noise=0.5, random_state=0)
    scaled = [truth.factors[0] * [1e3, -2], truth.factors[1] * [1e-3, 1], truth.factors[2] * [1, 5]]
    other = KruskalTensor(np.array([1.0, -0.1]), scaled)
    assert core_consistency(X, other) == pytest.approx(core_consistency(X, truth))
    assert core_consistency(X.astype(np.float32), truth) == pytest.approx(
        core_consistency(X, truth), abs=1e-2
    )


def test_high_at_the_true_rank_and_low_above():
    """On overlapping peaks, as in spectra, for which the measure was made."""
    generator = np.random.default_rng(0)
    peaks = [
        np.exp(-(((np.arange(n)[:, None] / n - centres) / width) ** 2))
        for n, centres, width in ((30, (0.3, 0.5, 0.7), 0.2), (25, (0.4, 0.6, 0.2), 0.25))
    ]
    clean = np.einsum("ir,jr,kr->ijk", generator.random((12, 3)), *peaks)
    X = clean + 0.1 * clean.std() * generator.standard_normal(clean.shape)
    model = CP(max_iter=2000, random_state=0)
    found = [core_consistency(X, model.set_params(n_components=r).fit(X)) for r in (1, 2, 3, 4)]
    assert min(found[:3]) > 95
    assert found[3] < 30


def test_a_component_of_zeros_is_no_component():
    X, truth = make_low_rank((6, 5, 4), 1, random_state=0)
    padded = KruskalTensor(np.array([1.0, 0.0]), [np.hstack([f, f]) for f in truth.factors])
    assert core_consistency(X, padded) == pytest.approx(50.0)


def test_memory_follows_the_block():
    """3e13 cells, and a core of 8000 for each of 12500 nonzeros: 0.8 GB at once."""
    side, rank = 30_000, 20
    generator = np.random.default_rng(0)
    X = coo_array(
        (generator.random(12_500), tuple(generator.integers(0, side, (3, 12_500)))),
        shape=(side,) * 3,
    )
    model = KruskalTensor(np.ones(rank), [generator.random((side, rank)) for _ in range(3)])
    tracemalloc.start()
    assert np.isfinite(core_consistency(X, model))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    factors = 3 * side * rank * 8
    assert peak < 5 * factors + 6 * 8 * decomposition._BLOCK


def test_errors_say_what_to_do():
    X, truth = make_low_rank((6, 5, 4), 2, random_state=0)
    matrix, factors = make_low_rank((6, 5), 2, random_state=0)
    with pytest.raises(InvalidInputError, match=r"X has 2 modes.*heldout"):
        core_consistency(matrix, factors)
    with pytest.raises(InvalidInputError, match="missing entries"):
        core_consistency(np.where(X > 1, np.nan, X), truth)
    wide = KruskalTensor(np.ones(600), [np.ones((n, 600)) for n in X.shape])
    with pytest.raises(InvalidInputError, match="216000000 entries"):
        core_consistency(X, wide)
