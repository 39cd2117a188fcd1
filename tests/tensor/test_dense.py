"""The two-pass sweep over a dense tensor against one einsum per mode."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyad.core.threads import thread_limit
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.dense import DenseTensor
from tests.tensor.examples import cut_finely, mttkrp_twin, random_problem


def sweep(tensor: DenseTensor, factors: list[Any]) -> tuple[list[Any], dict[int, Any]]:
    """Visit all modes, changing each factor after its product, as a solver does."""
    factors, products = list(factors), {}
    for group in tensor.mode_groups:
        contraction = tensor.contract(factors, group)
        for mode in group:
            products[mode] = contraction.mttkrp(factors, mode)
            factors[mode] = factors[mode] * 0.5 + 1.0
    return factors, products


def sweep_twin(x: np.ndarray, factors: list[np.ndarray], order: list[int]) -> dict[int, np.ndarray]:
    factors, products = list(factors), {}
    for mode in order:
        products[mode] = mttkrp_twin(x, factors, mode)
        factors[mode] = factors[mode] * 0.5 + 1.0
    return products


def visiting_order(tensor: DenseTensor) -> list[int]:
    return [mode for group in tensor.mode_groups for mode in group]


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=5), st.integers(1, 5), st.sampled_from("CF")
)
def test_sweep_uses_the_current_factors(shape, rank, order):
    x, factors = random_problem(tuple(shape), rank)
    tensor = DenseTensor(np.asarray(x, order=order))
    _, products = sweep(tensor, factors)
    expected = sweep_twin(x, factors, visiting_order(tensor))
    for mode in range(x.ndim):
        np.testing.assert_allclose(products[mode], expected[mode], atol=1e-11)
        np.testing.assert_allclose(
            tensor.mttkrp(factors, mode), mttkrp_twin(x, factors, mode), atol=1e-11
        )


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((4, 3), ((1,), (0,))),
        ((9, 9, 9), ((1, 2), (0,))),
        ((90, 5, 4), ((1, 2), (0,))),
        ((2, 30, 40), ((2,), (1, 0))),
        ((9, 9, 9, 9), ((2, 3), (1, 0))),
        ((3, 3, 3, 3, 50), ((4,), (1, 2, 3, 0))),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_groups_share_passes_where_cheap_and_end_with_mode_0(shape, groups, order):
    assert DenseTensor(np.zeros(shape, order=order)).mode_groups == groups


@pytest.mark.parametrize("layout", ["C", "F", "strided", "permuted"])
@pytest.mark.parametrize(
    ("shape", "finely"),
    [
        *((shape, True) for shape in [(150, 45, 35), (6, 50, 375), (14, 15, 17, 21), (750, 225)]),
        ((200, 90, 70), False),
    ],
)
def test_large_sweep_is_the_same_on_any_number_of_threads(shape, finely, layout, monkeypatch):
    if finely:
        cut_finely(monkeypatch)
    x, factors = random_problem(shape, 16)
    if layout == "strided":
        x = np.repeat(x, 2, axis=1)[:, ::2]
    elif layout == "permuted":
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, 1)), 1, 0)
    tensor = DenseTensor(np.asarray(x, order=layout) if layout in "CF" else x)
    results = []
    for n_threads in (1, 2, 3):
        with thread_limit(n_threads):
            results.append((*sweep(tensor, factors), tensor.norm_squared()))
    expected = sweep_twin(x, factors, visiting_order(tensor))
    for mode, product in expected.items():
        np.testing.assert_allclose(results[0][1][mode], product, atol=1e-9 * np.abs(product).max())
        for other in results[1:]:
            np.testing.assert_array_equal(results[0][1][mode], other[1][mode])
    assert results[0][2] == results[1][2] == results[2][2]
    assert results[0][2] == pytest.approx(float((x * x).sum()), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("xp", [np, torch, array_api_strict])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 5, 3, 4), (3, 2, 4, 2, 3), (60, 50, 40)])
def test_namespaces_agree_and_keep_kind_and_dtype(xp, dtype, shape):
    x, factors = random_problem(shape, 4, dtype)
    tensor = DenseTensor(xp.asarray(x))
    assert (tensor.shape, tensor.ndim) == (shape, len(shape))
    _, products = sweep(tensor, [xp.asarray(f) for f in factors])
    for mode, product in sweep_twin(x, factors, visiting_order(tensor)).items():
        assert type(products[mode]) is type(tensor.array)
        assert products[mode].dtype == tensor.dtype == tensor.array.dtype
        tolerance = (1e-4 if dtype == "float32" else 1e-12) * np.abs(product).max()
        np.testing.assert_allclose(np.asarray(products[mode]), product, atol=tolerance)
    exact = float((x.astype("float64") ** 2).sum())
    assert tensor.norm_squared() == pytest.approx(exact, rel=1e-12)


def test_torch_tensor_of_another_layout():
    x, factors = random_problem((5, 4, 6), 3)
    tensor = DenseTensor(torch.asarray(x.transpose(2, 0, 1).copy()).permute(1, 2, 0))
    _, products = sweep(tensor, [torch.asarray(f) for f in factors])
    for mode, product in sweep_twin(x, factors, visiting_order(tensor)).items():
        np.testing.assert_allclose(products[mode].numpy(), product)


@pytest.mark.parametrize("order", ["C", "F"])
def test_c_and_fortran_order_are_not_copied(order):
    array = np.zeros((4, 3, 5), order=order)
    tensor = DenseTensor(array)
    array[1, 2, 3] = 2.0
    assert tensor.norm_squared() == 4.0


def test_sum_of_squares_of_float32_is_added_in_double_precision():
    tensor = DenseTensor(np.full((200, 300, 200), 0.1, dtype=np.float32))
    assert tensor.norm_squared() == pytest.approx(12e6 * float(np.float32(0.1)) ** 2, rel=1e-14)


def test_wrong_input_is_named():
    with pytest.raises(InvalidInputError, match="at least two modes"):
        DenseTensor(np.zeros(3))
    with pytest.raises(InvalidTypeError, match="real floating"):
        DenseTensor(np.zeros((3, 3), dtype=int))
    x, factors = random_problem((4, 3, 5), 2)
    tensor = DenseTensor(x)
    with pytest.raises(InvalidInputError, match="is not a run"):
        tensor.contract(factors, (0, 2))
    with pytest.raises(InvalidInputError, match="is not a run"):
        tensor.contract(factors, (0, 1, 2))
    with pytest.raises(InvalidInputError, match="do not fit"):
        tensor.contract(factors[:2], (0,))
    with pytest.raises(InvalidInputError, match="not in the group"):
        tensor.contract(factors, (1, 2)).mttkrp(factors, 0)
