"""Dense products against einsum, in every namespace, layout and number of threads."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyad.core.threads import thread_limit
from polyad.exceptions import InvalidInputError
from polyad.tensor.products import (
    fold,
    gram_product,
    khatri_rao,
    kruskal_to_dense,
    mttkrp,
    project,
    unfold,
)
from tests.tensor.examples import LETTERS, cut_finely, mttkrp_twin, random_problem

SHAPES = [(4, 3), (4, 3, 5), (2, 5, 3, 4), (3, 2, 4, 2, 3)]


def kruskal_twin(weights: np.ndarray, factors: list[np.ndarray]) -> np.ndarray:
    modes = LETTERS[: len(factors)]
    return np.einsum(f"r,{','.join(m + 'r' for m in modes)}->{modes}", weights, *factors)


@pytest.mark.parametrize("shape", SHAPES)
def test_unfold_keeps_the_order_of_the_other_modes_and_fold_undoes_it(shape):
    x, _ = random_problem(shape, 1)
    for mode in range(x.ndim):
        matrix = unfold(x, mode)
        np.testing.assert_array_equal(matrix, np.moveaxis(x, mode, 0).reshape(shape[mode], -1))
        np.testing.assert_array_equal(fold(matrix, mode, shape), x)
    np.testing.assert_array_equal(unfold(x, -1), unfold(x, x.ndim - 1))


def test_khatri_rao_is_the_columnwise_kronecker_product():
    _, factors = random_problem((2, 3, 4), 5)
    weights = np.arange(1.0, 6.0)
    expected = [
        w * np.kron(np.kron(a, b), c)
        for w, a, b, c in zip(weights, *(f.T for f in factors), strict=True)
    ]
    np.testing.assert_allclose(khatri_rao(factors, weights), np.transpose(expected))
    np.testing.assert_array_equal(khatri_rao(factors[:1]), factors[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_unfolding_times_khatri_rao_is_mttkrp(shape):
    x, factors = random_problem(shape, 3)
    for mode in range(x.ndim):
        others = factors[:mode] + factors[mode + 1 :]
        np.testing.assert_allclose(mttkrp(x, factors, mode), unfold(x, mode) @ khatri_rao(others))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), st.integers(1, 7))
def test_products_equal_einsum(shape, rank):
    x, factors = random_problem(tuple(shape), rank)
    weights = np.linspace(0.5, 2.0, rank)
    for mode in range(x.ndim):
        np.testing.assert_allclose(
            mttkrp(x, factors, mode), mttkrp_twin(x, factors, mode), atol=1e-12
        )
        grams = [f.T @ f for k, f in enumerate(factors) if k != mode]
        np.testing.assert_allclose(gram_product(factors, mode), np.prod(grams, axis=0))
    np.testing.assert_allclose(gram_product(factors), np.prod([f.T @ f for f in factors], axis=0))
    np.testing.assert_allclose(
        kruskal_to_dense(weights, factors), kruskal_twin(weights, factors), atol=1e-12
    )


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize(
    ("shape", "finely"),
    [
        *((shape, True) for shape in [(150, 45, 35), (7, 50, 375), (14, 15, 17, 21), (5, 18_751)]),
        ((200, 90, 70), False),
    ],
)
def test_large_products_are_right_in_any_layout_and_the_same_on_any_number_of_threads(
    shape, finely, layout, monkeypatch
):
    if finely:
        cut_finely(monkeypatch)
    wide = (*shape[:-1], 2 * shape[-1]) if layout == "strided" else shape
    x, _ = random_problem(wide, 1)
    x = x[..., ::2] if layout == "strided" else np.asarray(x, order=layout)
    _, factors = random_problem(shape, 13)
    for mode in range(x.ndim):
        results = []
        for n_threads in (1, 2, 3):
            with thread_limit(n_threads):
                results.append(mttkrp(x, factors, mode))
        others = factors[:mode] + factors[mode + 1 :]
        expected = unfold(x, mode) @ khatri_rao(others)
        np.testing.assert_allclose(results[0], expected, atol=1e-9 * np.abs(expected).max())
        assert results[0].flags.c_contiguous
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("shape", [(250, 63), (63, 250), (2, 3750), (3750, 2), (249, 251)])
@pytest.mark.parametrize("rank", [1, 16, 70])
def test_project_covers_every_tile(shape, rank, monkeypatch):
    cut_finely(monkeypatch)
    # Small whole numbers: every sum is exact, so that a tile lost or added twice shows.
    rng = np.random.default_rng(0)
    matrix = rng.integers(-3, 4, shape).astype(float)
    basis = rng.integers(-3, 4, (shape[1], rank)).astype(float)
    np.testing.assert_array_equal(project(matrix, basis), (matrix @ basis).T)
    columns = np.asfortranarray(matrix)
    np.testing.assert_array_equal(project(columns, basis), (matrix @ basis).T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("xp", [np, torch, array_api_strict])
@pytest.mark.parametrize("shape", [*SHAPES, (60, 50, 40)])
def test_namespaces_agree_and_keep_kind_and_dtype(xp, dtype, shape):
    x, factors = random_problem(shape, 4, dtype)
    weights = np.linspace(0.5, 2.0, 4).astype(dtype)
    theirs, their_factors = xp.asarray(x), [xp.asarray(f) for f in factors]

    def check(result: Any, expected: np.ndarray) -> None:
        assert type(result) is type(theirs)
        assert result.dtype == theirs.dtype
        tolerance = (1e-4 if dtype == "float32" else 1e-12) * np.abs(expected).max()
        np.testing.assert_allclose(np.asarray(result), expected, atol=tolerance)

    for mode in range(x.ndim):
        check(unfold(theirs, mode), unfold(x, mode))
        check(fold(unfold(theirs, mode), mode, shape), x)
        check(mttkrp(theirs, their_factors, mode), mttkrp_twin(x, factors, mode))
        check(gram_product(their_factors, mode), gram_product(factors, mode))
    check(khatri_rao(their_factors, xp.asarray(weights)), khatri_rao(factors, weights))
    check(kruskal_to_dense(xp.asarray(weights), their_factors), kruskal_twin(weights, factors))


@pytest.mark.parametrize("xp", [np, torch, array_api_strict])
def test_many_components_are_taken_in_parts(xp):
    x, factors = random_problem((9, 8, 7), 300)
    for mode in range(3):
        result = mttkrp(xp.asarray(x), [xp.asarray(f) for f in factors], mode)
        np.testing.assert_allclose(np.asarray(result), mttkrp_twin(x, factors, mode), atol=1e-11)


def test_kruskal_to_dense_in_blocks_is_the_same_on_any_number_of_threads(monkeypatch):
    cut_finely(monkeypatch)
    _, factors = random_problem((60, 40, 45), 16)
    weights = np.linspace(1.0, 2.0, 16)
    with thread_limit(1):
        one = kruskal_to_dense(weights, factors)
    with thread_limit(3):
        three = kruskal_to_dense(weights, factors)
    np.testing.assert_array_equal(one, three)
    np.testing.assert_allclose(
        one, (khatri_rao(factors[:2], weights) @ factors[2].T).reshape(60, 40, 45)
    )
    np.testing.assert_allclose(
        kruskal_to_dense(None, factors), kruskal_to_dense(np.ones(16), factors)
    )


def test_float32_gram_of_a_long_factor_is_accurate():
    factor = np.random.default_rng(0).random((1_000_000, 8), dtype=np.float32)
    exact = factor.astype(np.float64).T @ factor.astype(np.float64)
    np.testing.assert_allclose(gram_product([factor]), exact, rtol=2e-6)


def test_wrong_modes_and_factors_are_named():
    x, factors = random_problem((4, 3, 5), 2)
    with pytest.raises(InvalidInputError, match="mode=3 does not exist"):
        unfold(x, 3)
    with pytest.raises(InvalidInputError, match="do not fit a tensor of shape"):
        mttkrp(x, factors[::-1], 0)
    with pytest.raises(InvalidInputError, match="same number of columns"):
        khatri_rao([np.ones((2, 3)), np.ones((2, 4))])
    with pytest.raises(InvalidInputError, match="No factor"):
        gram_product([])
