"""KruskalTensor against dense oracles of a line each."""

import array_api_strict
import numpy as np
import pytest
import tensorly
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor import KruskalTensor, SparseTensor
from polyad.tensor.kruskal import column_norms

LETTERS = "ijkl"


def make(shape, n_components=3, seed=0):
    generator = np.random.default_rng(seed)
    factors = [generator.standard_normal((n, n_components)) for n in shape]
    return KruskalTensor(generator.standard_normal(n_components), factors)


def full(tensor):
    """Return the dense array, the slow way."""
    modes = LETTERS[: tensor.ndim]
    spec = ",".join(f"{letter}r" for letter in modes)
    return np.einsum(f"r,{spec}->{modes}", tensor.weights, *tensor.factors)


shapes = st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple)


@settings(max_examples=25)
@given(shape=shapes, n_components=st.integers(1, 4), seed=st.integers(0, 100))
def test_algebra_equals_that_of_the_dense_array(shape, n_components, seed):
    tensor = make(shape, n_components, seed)
    other = make(shape, n_components + 1, seed + 1)
    dense, array = full(tensor), full(other)
    tolerance = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(tensor.to_dense(), dense, **tolerance)
    np.testing.assert_allclose(tensor.norm(), np.linalg.norm(dense), **tolerance)
    expected = np.sum(dense * array)
    holed = np.where(np.arange(array.size).reshape(shape) % 3 == 0, array, 0.0)
    np.testing.assert_allclose(tensor.inner(other), expected, **tolerance)
    np.testing.assert_allclose(tensor.inner(array), expected, **tolerance)
    np.testing.assert_allclose(tensor.inner(np.asfortranarray(array)), expected, **tolerance)
    for sparse in (coo_array(holed), SparseTensor(coo_array(holed))):
        np.testing.assert_allclose(tensor.inner(sparse), np.sum(dense * holed), **tolerance)
    coords = np.array(list(np.ndindex(*shape))).T
    np.testing.assert_allclose(tensor.values_at(coords), dense.ravel(), **tolerance)
    np.testing.assert_allclose(full(tensor.normalized()), dense, **tolerance)


def test_shape_and_parts():
    tensor = make((2, 3, 4), 5)
    assert tensor.shape == (2, 3, 4)
    assert tensor.ndim == 3
    assert tensor.n_components == 5
    assert repr(tensor) == "KruskalTensor(shape=(2, 3, 4), n_components=5)"


def test_it_unpacks_as_a_pair():
    tensor = make((2, 3, 4))
    weights, factors = tensor
    assert weights is tensor.weights
    assert isinstance(factors, list)
    assert len(tensor) == 2
    assert tensor[0] is tensor.weights
    assert all(a is b for a, b in zip(tensor[1], tensor.factors, strict=True))
    assert tensor[-1][0] is tensor.factors[0]
    with pytest.raises(IndexError):
        tensor[2]


def test_it_does_not_change():
    tensor = make((2, 3))
    with pytest.raises(AttributeError):
        tensor.weights = np.ones(3)
    tensor[1].append("nothing")
    assert len(tensor.factors) == 2


def test_tensorly_takes_it():
    tensor = make((2, 3, 4))
    np.testing.assert_allclose(tensorly.cp_to_tensor(tensor), full(tensor), atol=1e-12)
    assert tensorly.cp_norm(tensor) == pytest.approx(np.linalg.norm(full(tensor)))


def test_absorbed_weights():
    tensor = make((2, 3, 4))
    factors = tensor.absorbed()
    np.testing.assert_allclose(full(KruskalTensor(np.ones(3), factors)), full(tensor), atol=1e-12)
    assert factors[1] is tensor.factors[1]


def test_take_orders_and_leaves_out():
    tensor = make((2, 3, 4), 4)
    taken = tensor.take([3, 1])
    assert taken.n_components == 2
    np.testing.assert_array_equal(taken.weights, tensor.weights[[3, 1]])
    np.testing.assert_array_equal(taken.factors[2], tensor.factors[2][:, [3, 1]])
    everything = tensor.take([0]).to_dense() + tensor.take(np.array([1, 2, 3])).to_dense()
    np.testing.assert_allclose(everything, full(tensor), atol=1e-12)


@pytest.mark.parametrize(
    ("weights", "shapes"),
    [
        (np.ones(2), [(3, 2), (4, 3)]),
        (np.ones(3), [(3, 2), (4, 2)]),
        (np.ones((2, 1)), [(3, 2), (4, 2)]),
        (np.array(1.0), [(3, 1), (4, 1)]),
        (np.ones(2), [(3, 2), (4,)]),
        (np.ones(2), [(3, 2), (4, 2, 2)]),
        (np.ones(2), []),
    ],
)
def test_parts_that_do_not_fit_are_refused(weights, shapes):
    with pytest.raises(InvalidInputError, match="components"):
        KruskalTensor(weights, [np.ones(shape) for shape in shapes])


def test_lists_are_refused_with_the_remedy():
    with pytest.raises(InvalidTypeError, match=r"numpy\.asarray"):
        KruskalTensor([1.0], [np.ones((2, 1))])
    with pytest.raises(InvalidTypeError, match=r"numpy\.asarray"):
        KruskalTensor(np.ones(1), [[[1.0], [2.0]]])
    with pytest.raises(InvalidTypeError, match=r"numpy\.asarray"):
        KruskalTensor(None, [np.ones((2, 1))])


@pytest.mark.parametrize("other", [np.ones((2, 4)), np.ones((2, 3, 1)), coo_array(np.ones((3, 2)))])
def test_an_inner_product_of_other_shapes_is_refused(other):
    with pytest.raises(InvalidInputError, match=r"\(2, 3\) and"):
        make((2, 3)).inner(other)


# Entries.


@pytest.mark.parametrize(
    ("coords", "says"),
    [
        ([[0, 1], [0, 1]], r"shape \(2, 2\).*\(3, n_points\)"),
        ([[0.0], [0.0], [0.0]], "float64"),
        ([0, 0, 0], r"shape \(3,\)"),
        ([[0], [0], [4]], r"index 4 of mode 2 is outside 0\.\.3"),
        ([[0, 0], [0, -1], [0, 0]], "index -1 of mode 1"),
        ([[9], [9], [9]], "index 9 of mode 0"),
        (np.zeros((3, 1), dtype=bool), "bool"),
        (None, "object"),
    ],
)
def test_bad_coordinates_are_named(coords, says):
    with pytest.raises(InvalidInputError, match=says):
        make((2, 3, 4)).values_at(coords)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
def test_coordinates_of_any_integer_type(dtype):
    tensor = make((2, 3, 4))
    coords = np.array([[1, 0], [2, 0], [3, 1]], dtype=dtype)
    expected = full(tensor)[[1, 0], [2, 0], [3, 1]]
    np.testing.assert_allclose(tensor.values_at(coords), expected, atol=1e-12)
    np.testing.assert_allclose(tensor.values_at(list(coords)), expected, atol=1e-12)


def test_coordinates_of_a_sparse_array_and_none_at_all():
    tensor = make((2, 3, 4))
    sparse = coo_array(full(tensor))
    np.testing.assert_allclose(tensor.values_at(sparse.coords), sparse.data, atol=1e-12)
    assert tensor.values_at(np.zeros((3, 0), dtype=int)).shape == (0,)


def test_entries_of_a_tensor_that_could_not_be_dense():
    n = 10**6
    tensor = KruskalTensor(np.array([2.0]), [np.arange(n, dtype=float)[:, None]] * 4)
    assert tensor.values_at([[2], [3], [5], [n - 1]]) == 2.0 * 30 * (n - 1)


# Scale.


def test_normalized_columns_have_length_one():
    normalized = make((5, 3, 4)).normalized()
    for factor in normalized.factors:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0, rtol=1e-12)


def test_zero_columns_stay_zero():
    tensor = make((2, 3, 4))
    factors = [factor.copy() for factor in tensor.factors]
    factors[1][:, 2] = 0.0
    normalized = KruskalTensor(tensor.weights, factors).normalized()
    assert normalized.weights[2] == 0.0
    assert (normalized.factors[1][:, 2] == 0).all()
    np.testing.assert_allclose(np.linalg.norm(normalized.factors[0], axis=0), 1.0)
    assert np.isfinite(normalized.to_dense()).all()


@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1e160, 1e200])
def test_normalized_at_extreme_scales(scale):
    tensor = make((4, 3, 5))
    factors = [tensor.factors[0] * scale, tensor.factors[1] / scale, tensor.factors[2]]
    expected = tensor.normalized()
    normalized = KruskalTensor(tensor.weights, factors).normalized()
    np.testing.assert_allclose(normalized.weights, expected.weights, rtol=1e-12)
    for mine, theirs in zip(normalized.factors, expected.factors, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1.0, 1e200, 1e308])
def test_column_norms_do_not_overflow(scale):
    matrix = np.zeros((3, 2))
    matrix[1, 0] = scale
    matrix[2, 0] = 0.0
    np.testing.assert_allclose(column_norms(matrix), [scale, 0.0], rtol=1e-12)


def test_column_norms_of_float32_extremes():
    matrix = np.array([[3e30], [4e30]], dtype=np.float32)
    norms = column_norms(matrix)
    assert norms.dtype == np.float32
    np.testing.assert_allclose(norms, [5e30], rtol=1e-6)


def test_a_norm_is_never_nan():
    """Rounding may make the square of the norm of a cancelling sum negative."""
    factor = np.array([[1.0, 1.0], [1e-9, 1e-9]])
    assert 0.0 <= KruskalTensor(np.array([1.0, -1.0]), [factor] * 3).norm() < 1e-7


# Other namespaces.


@pytest.mark.parametrize("namespace", [torch, array_api_strict])
def test_arrays_of_other_namespaces_stay_there(namespace):
    plain = make((2, 3, 4))
    tensor = KruskalTensor(
        namespace.asarray(plain.weights), [namespace.asarray(factor) for factor in plain.factors]
    )
    kind = type(tensor.weights)
    assert type(tensor.to_dense()) is kind
    np.testing.assert_allclose(np.asarray(tensor.to_dense()), full(plain), atol=1e-12)
    normalized = tensor.normalized().take([1, 0])
    assert type(normalized.weights) is type(normalized.factors[0]) is kind
    assert tensor.norm() == pytest.approx(plain.norm())
    assert tensor.inner(tensor.to_dense()) == pytest.approx(plain.norm() ** 2)
    coords = [[0, 1], [1, 2], [3, 0]]
    np.testing.assert_allclose(tensor.values_at(coords), plain.values_at(coords), atol=1e-12)
