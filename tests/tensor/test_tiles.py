"""Products of matrices with a few columns in registers, against NumPy."""

import numpy as np
import pytest
from numba.core import errors

from polyad.tensor.tiles import ROWS, add_products, widened


def product(data, grid, basis, out):
    """The twin of the kernel: ``sum_k data[a row_step + k step] basis[k]``, and what was there."""
    n_rows, row_step, step = grid
    places = np.arange(n_rows)[:, None] * row_step + np.arange(len(basis))[None, :] * step
    return out[:n_rows] + data[places].astype(float) @ basis


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 16, 33, 80])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (2 * ROWS, 193), (31, 2100)])
def test_products_are_those_of_numpy(shape, width, dtype):
    """Of a matrix and of its transpose, fewer and more than a tile, a part and a length."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=shape).astype(dtype)
    data = matrix.reshape(-1)
    data.flags.writeable = False
    for n_rows, depth, grid in (
        (shape[0], shape[1], (shape[0], shape[1], 1)),
        (shape[1], shape[0], (shape[1], 1, shape[1])),
    ):
        basis = widened(rng.normal(size=(depth, width)).astype(dtype))
        assert not basis[:, width:].any()
        out = rng.normal(size=(n_rows + ROWS, basis.shape[1])).astype(dtype)
        expected, beyond = product(data, grid, basis, out), out[n_rows + -n_rows % ROWS :].copy()
        add_products(data, grid, basis, out)
        size = np.sqrt(depth) * np.finfo(dtype).eps
        np.testing.assert_allclose(out[:n_rows], expected, atol=20 * size)
        np.testing.assert_array_equal(out[n_rows + -n_rows % ROWS :], beyond)


def test_a_row_has_the_same_bits_wherever_it_is():
    """Also in a block of its own, as samples are cut for threads."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(29, 500)).astype(np.float32)
    basis = widened(rng.normal(size=(500, 7)).astype(np.float32))

    def rows(chosen):
        out = np.zeros((len(chosen) + ROWS, basis.shape[1]), np.float32)
        add_products(chosen.reshape(-1), (len(chosen), 500, 1), basis, out)
        return out[: len(chosen)]

    np.testing.assert_array_equal(rows(matrix)[11:], rows(matrix[11:]))
    np.testing.assert_array_equal(rows(matrix)[28:], rows(matrix[28:]))


def test_arrays_with_steps_are_refused():
    matrix, basis = np.ones((4, 20)), np.ones((10, 16))
    with pytest.raises(errors.TypingError, match="C order"):
        add_products(matrix.reshape(-1)[::2], (4, 10, 1), basis, np.zeros((ROWS, 16)))


def test_numbers_that_are_not_finite_stay_in_their_rows():
    matrix = np.ones((20, 10))
    matrix[3, 4], matrix[19, 0] = np.nan, np.inf
    out = np.zeros((20 + ROWS, 16))
    add_products(matrix.reshape(-1), (20, 10, 1), np.ones((10, 16)), out)
    assert np.flatnonzero(np.isnan(out[:20]).any(axis=1)).tolist() == [3]
    assert np.flatnonzero(np.isinf(out[:20]).any(axis=1)).tolist() == [19]
