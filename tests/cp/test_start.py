"""Singular-vector starts of long modes: cheap bases that are as good as exact ones."""

import numpy as np
import pytest
import torch

from polyad.cp import start
from polyad.cp.problem import build_problem


def singular_vectors(n, width, condition, dtype=np.float64, seed=0):
    generator = np.random.default_rng(seed)
    left = np.linalg.qr(generator.standard_normal((n, width)))[0]
    right = np.linalg.qr(generator.standard_normal((width, width)))[0]
    return ((left * np.geomspace(1, 1 / condition, width)) @ right.T).astype(dtype)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6, 1e15])
def test_a_tall_basis_is_orthonormal_and_spans_the_columns(condition, unit):
    matrix = singular_vectors(start._TALL, 6, condition)
    basis = start._orthonormal(unit * matrix)
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-7)
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-8)


@pytest.mark.parametrize("convert", [np.asarray, torch.asarray])
def test_a_tall_basis_of_single_precision_is_orthonormal(convert):
    basis = start._orthonormal(convert(singular_vectors(start._TALL, 6, 50.0, np.float32)))
    assert str(basis.dtype).endswith("float32")
    np.testing.assert_allclose(np.asarray(basis.T @ basis), np.eye(6), atol=1e-3)


@pytest.mark.parametrize("zero_columns", [1, 6])
def test_a_tall_matrix_of_lower_rank_has_an_orthonormal_basis(zero_columns):
    matrix = singular_vectors(start._TALL, 6, 1.0)
    matrix[:, :zero_columns] = 0
    basis = start._orthonormal(matrix)
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-12)


def test_the_start_of_a_long_mode_has_its_leading_singular_vectors():
    generator = np.random.default_rng(0)
    planted = singular_vectors(start._TALL, 3, 2.0) @ generator.standard_normal((3, 40))
    X = planted + 1e-3 * generator.standard_normal(planted.shape)
    factor = start.svd_start(build_problem(X, "zero"), 3, seed=0)[0]
    exact = np.linalg.svd(X, full_matrices=False)[0][:, :3]
    np.testing.assert_allclose(np.linalg.svd(exact.T @ factor)[1], 1.0, atol=1e-6)
