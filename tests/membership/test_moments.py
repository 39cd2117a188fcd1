"""Moments against loops over the samples, and the identities that they have for any data."""

import importlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyad.exceptions import InvalidInputError
from polyad.membership import moments
from polyad.membership.moment_tensors import Constants, MomentTensor, block_moments, moment_tensor
from polyad.membership.solver import MomentSolver, decompose, moment_problem
from polyad.membership.variables import read_columns
from polyad.tensor import DenseTensor
from tests.membership.planted import exact_third, planted, rmse

SETS = [np.arange(0, 4), np.arange(4, 8), np.arange(8, 12)]


def table_of(y):
    return read_columns(np.asarray(y), "auto", range(y.shape[1]))


def third_by_samples(y, sets, a0, d):
    """Section a of the spec, one sample after another."""
    rows = [[np.concatenate([np.eye(d)[row[j]] for j in own]) for row in y] for own in sets]
    c3, c2 = a0 / (a0 + 2), 2 * a0**2 / ((a0 + 1) * (a0 + 2))
    mu = [np.mean(own, axis=0) for own in rows]
    total = 0
    for a, b, c in zip(*rows, strict=True):
        total = total + np.einsum("a,b,c", a, b, c)
        total = total - c3 * (
            np.einsum("a,b,c", mu[0], b, c)
            + np.einsum("a,b,c", a, mu[1], c)
            + np.einsum("a,b,c", a, b, mu[2])
        )
    return total / len(y) + c2 * np.einsum("a,b,c", *mu)


def test_blocks_are_sums_over_samples():
    y, _, _ = planted(n=60)
    expected = third_by_samples(y, SETS, 0.3, 4)
    np.testing.assert_allclose(moments(y, *SETS, alpha0=0.3), expected, atol=1e-15)


@pytest.mark.parametrize("hidden", [0.0, 0.2])
def test_a_tensor_that_is_not_formed_is_the_block(hidden):
    y, _, _ = planted(n=300)
    rng = np.random.default_rng(1)
    kept = rng.random(y.shape) >= hidden
    data = np.where(kept, y, np.nan) if hidden else y
    table = table_of(data)
    tensor = MomentTensor(table, SETS, 0.3)
    if hidden:
        # What stands for the ones of a variable, and for its gaps, is weighted.
        share = kept.mean(axis=0)
        ones = [
            np.concatenate([np.eye(4)[y[:, j]] * (kept[:, j] / share[j])[:, None] for j in own], 1)
            for own in SETS
        ]
        c3, c2 = Constants(0.3).mixed, Constants(0.3).means
        mu = [own.mean(axis=0) for own in ones]
        block = np.einsum("ia,ib,ic->abc", *ones) / 300 + c2 * np.einsum("a,b,c", *mu)
        for k in range(3):
            others = [own if m != k else np.tile(mu[k], (300, 1)) for m, own in enumerate(ones)]
            block -= c3 * np.einsum("ia,ib,ic->abc", *others) / 300
    else:
        block = block_moments(table, SETS, 0.3)
    factors = [rng.random((size, 3)) for size in tensor.shape]
    for mode in range(3):
        expected = DenseTensor(block).mttkrp(factors, mode)
        found = tensor.mttkrp(factors, mode)
        np.testing.assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())
    assert tensor.norm_squared() == pytest.approx(np.sum(block**2), rel=1e-10)
    assert tensor.least_norm_squared() <= tensor.norm_squared()


def test_samples_come_in_parts(monkeypatch):
    """As they do when there are many: what is not kept is made again, with the same numbers."""
    y, _, _ = planted(n=200)
    table, rng = table_of(y), np.random.default_rng(0)
    factors = [rng.random((16, 2)) for _ in range(3)]
    whole = MomentTensor(table, SETS, 0.3).mttkrp(factors, 0)
    module = importlib.import_module("polyad.membership.moment_tensors")
    monkeypatch.setattr(module, "_ENTRIES_AT_A_TIME", 40)
    monkeypatch.setattr(module, "_KEPT_ENTRIES", 0)
    parts = MomentTensor(table, SETS, 0.3)
    assert len(parts._blocks) == 20
    assert parts._kept == []
    np.testing.assert_allclose(parts.mttkrp(factors, 0), whole, rtol=1e-13)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 50.0), st.integers(1, 40))
def test_identities_of_any_data(seed, a0, n):
    """Sums of blocks, and of one mode of a block, are known (spec e)."""
    rng = np.random.default_rng(seed)
    y = np.stack([rng.integers(d, size=n) for d in (2, 3, 4)], axis=1)
    third, pair = moments(y, 0, 1, 2, alpha0=a0), moments(y, 0, 1, alpha0=a0)
    assert third.sum() == pytest.approx(2 / ((a0 + 1) * (a0 + 2)), abs=1e-12)
    assert pair.sum() == pytest.approx(1 / (a0 + 1), abs=1e-12)
    np.testing.assert_allclose(third.sum(axis=2), 2 / (a0 + 2) * pair, atol=1e-14)
    np.testing.assert_allclose(moments(y, 2, 0, 1, alpha0=a0), third.transpose(2, 0, 1), atol=1e-15)


def test_the_number_of_the_spec():
    y, _, _ = planted(n=50)
    block = moments(y, 0, 1, 2, alpha0=0.3)
    assert block.sum() == pytest.approx(0.66889632, abs=1e-8)


def test_moments_of_many_samples_are_those_of_the_model():
    y, theta, _ = planted(n=200_000, p=6, d=3, k=2, alpha=0.5)
    sets = [[0, 1], [2, 3], [4, 5]]
    expected = exact_third(theta, sets, np.array([0.5, 0.5]))
    found = moments(y, *sets, alpha0=1.0)
    # Five standard errors of a mean of products of zeros and ones.
    assert np.abs(found - expected).max() < 5 * 0.5 / np.sqrt(200_000)


def test_numbers_have_the_moments_of_their_means():
    """The means of normal numbers mix as probabilities of categories do (assignment model)."""
    rng = np.random.default_rng(0)
    n, alpha = 200_000, np.array([0.4, 0.6])
    x = rng.dirichlet(alpha, n)
    means = np.array([[1.0, 5.0], [-2.0, 3.0], [10.0, 0.0]])
    parts = (rng.random((n, 3)) > x[:, :1]).astype(int)
    X = means[np.arange(3), parts] + rng.normal(size=(n, 3))
    table = read_columns(X, "real", range(3))
    low, span = table.variables.ranges[:, 0], table.variables.span()
    scaled = (means - low[:, None]) / span[:, None]
    theta = [np.stack([own, 1 - own]) for own in scaled]
    expected = exact_third(theta, [[0], [1], [2]], alpha)
    np.testing.assert_allclose(moments(X, 0, 1, 2, alpha0=1.0), expected, atol=2e-3)


def test_gaps_are_left_out_pair_by_pair():
    """Each average is over the samples that have what it is of (spec g)."""
    y, _, _ = planted(n=80, p=3)
    rng = np.random.default_rng(0)
    kept = rng.random(y.shape) < 0.7
    found = moments(np.where(kept, y, np.nan), 0, 1, 2, alpha0=0.5)
    one = [np.eye(4)[y[:, j]] for j in range(3)]
    mu = [own[seen].mean(axis=0) for own, seen in zip(one, kept.T, strict=True)]

    def together(*chosen):
        both = kept[:, list(chosen)].all(axis=1)
        letters = (
            ",".join("i" + "abc"[j] for j in chosen) + "->" + "".join("abc"[j] for j in chosen)
        )
        return np.einsum(letters, *(one[j][both] for j in chosen)) / both.sum()

    c3, c2 = Constants(0.5).mixed, Constants(0.5).means
    expected = together(0, 1, 2) + c2 * np.einsum("a,b,c", *mu)
    expected -= c3 * np.einsum("a,bc->abc", mu[0], together(1, 2))
    expected -= c3 * np.einsum("b,ac->abc", mu[1], together(0, 2))
    expected -= c3 * np.einsum("c,ab->abc", mu[2], together(0, 1))
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_columns_that_are_never_seen_together():
    frame = pd.DataFrame(
        {"a": ["x", "y", None, None], "b": [None, None, "u", "v"], "c": ["p", "q", "p", "q"]}
    )
    found = moments(frame, "a", "b", "c", alpha0=0.0)
    np.testing.assert_allclose(found, np.full((2, 2, 2), 1 / 8))


def test_the_cheaper_form_is_taken():
    y, _, _ = planted(n=50)
    assert isinstance(moment_tensor(table_of(y), SETS, 0.3), MomentTensor)
    assert isinstance(moment_tensor(table_of(np.tile(y, (100, 1))), SETS, 0.3), DenseTensor)
    gaps = np.where(np.random.default_rng(0).random(y.shape) < 0.1, np.nan, y)
    assert isinstance(moment_tensor(table_of(gaps), SETS, 0.3), DenseTensor)


def test_both_forms_give_the_same_factors():
    y, _, _ = planted(n=400)
    table = table_of(y)
    found = []
    for tensor in (MomentTensor(table, SETS, 0.3), DenseTensor(block_moments(table, SETS, 0.3))):
        solver = MomentSolver(moment_problem(tensor, "nnls"), "nnls")
        state = solver.random(3, seed=0)
        for _ in range(5):
            state = solver.step(state)
        found.append(state)
    for one, two in zip(found[0].factors, found[1].factors, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-9)
    assert found[0].residual == pytest.approx(found[1].residual, rel=1e-10)
    assert decompose(MomentTensor(table, SETS, 0.3), 3, random_state=0).residual == pytest.approx(
        decompose(block_moments(table, SETS, 0.3), 3, random_state=0).residual, rel=1e-6
    )


def test_exact_moments_give_the_parameters():
    """Spec e: exact moments are an exact CP, which is found from a random start."""
    _, theta, _ = planted()
    tensor = exact_third(theta, SETS, np.array([0.2, 0.1, 0.1]))
    found = decompose(tensor, 3, max_iter=2000, tol=1e-15, n_init=3, random_state=0)
    assert found.residual < 1e-4 * np.linalg.norm(tensor)
    blocks = [block for factor in found.factors for block in np.split(factor, 4)]
    assert rmse([block / block.sum(axis=0) for block in blocks], theta) < 1e-3


def test_what_is_refused():
    y, _, _ = planted(n=20)
    with pytest.raises(InvalidInputError, match="share a variable"):
        moments(y, [0, 1], [1, 2], [3])
    with pytest.raises(InvalidInputError, match="neither the name nor the position"):
        moments(y, 0, 1, 12)
    with pytest.raises(InvalidInputError, match="is empty"):
        moments(y, 0, 1, [])
    with pytest.raises(InvalidInputError, match="alpha0=-1"):
        moments(y, 0, 1, alpha0=-1)
