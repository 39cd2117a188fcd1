"""Cost matrices from data and for nothing known, and what is refused."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from scipy.sparse import coo_array
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics.pairwise import cosine_distances

from polyad import LabelledTensor
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport import (
    cosine_cost,
    grid_cost,
    one_identity_cost,
    presence_cost,
    random_cost,
    tfidf_cost,
    validate_cost,
)


@pytest.fixture
def tensor():
    generator = np.random.default_rng(0)
    return generator.poisson(0.3, (7, 5, 6)) * generator.gamma(1, size=(7, 5, 6))


def unfolded(tensor, mode):
    return np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_cosine(tensor, mode):
    expected = cosine_distances(unfolded(tensor, mode))
    np.testing.assert_allclose(cosine_cost(tensor, mode), expected, atol=1e-14)
    np.testing.assert_allclose(cosine_cost(coo_array(tensor), mode), expected, atol=1e-14)
    binary = cosine_distances(unfolded(tensor, mode) > 0)
    np.testing.assert_allclose(cosine_cost(tensor, mode, binary=True), binary, atol=1e-14)


def test_presence(tensor):
    present = tensor.sum(axis=2) > 0
    np.testing.assert_allclose(
        presence_cost(tensor, 1), cosine_distances(present.T.astype(float)), atol=1e-14
    )
    both = np.hstack([present, tensor.sum(axis=1) > 0]).astype(float)
    for given in (tensor, coo_array(tensor)):
        np.testing.assert_allclose(presence_cost(given, 0), cosine_distances(both), atol=1e-14)


@pytest.mark.parametrize("mode", [0, 1])
def test_tfidf(tensor, mode):
    expected = cosine_distances(TfidfTransformer().fit_transform(unfolded(tensor, mode)))
    np.testing.assert_allclose(tfidf_cost(tensor, mode), expected, atol=1e-12)
    np.testing.assert_allclose(tfidf_cost(coo_array(tensor), mode), expected, atol=1e-12)


@pytest.mark.parametrize("make", [cosine_cost, presence_cost, tfidf_cost])
def test_a_slice_without_entries_is_far_from_all(make, tensor):
    tensor[2] = 0
    cost = make(tensor)
    assert np.all(cost[2, [0, 1, 3, 4, 5, 6]] == 1)
    assert cost[2, 2] == 0
    validate_cost(cost, 7)


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1e12, 1e200])
def test_cosine_has_no_scale(tensor, scale):
    np.testing.assert_allclose(cosine_cost(tensor * scale), cosine_cost(tensor), atol=1e-14)


def test_sparse_data_that_cannot_be_dense():
    coords = np.array([[0, 1, 1, 2], [5, 5, 9, 9], [10**9, 10**9, 3, 3], [1, 1, 10**9, 10**9]])
    shape = (3, 10, 2**31, 2**31)
    tensor = coo_array((np.ones(4), tuple(coords)), shape=shape)
    half = 1 - np.sqrt(0.5)
    np.testing.assert_allclose(
        cosine_cost(tensor), [[0, half, 1], [half, 0, half], [1, half, 0]], atol=1e-15
    )
    assert cosine_cost(tensor, 1).shape == (10, 10)


def test_entries_at_the_same_place_are_summed():
    coords = ([0, 0, 1], [0, 0, 0])
    cost = cosine_cost(coo_array((np.array([1.0, 1.0, 5.0]), coords), shape=(2, 2)))
    np.testing.assert_allclose(cost, 0, atol=1e-15)


def test_costs_without_data():
    np.testing.assert_array_equal(one_identity_cost(3), 1 - np.eye(3))
    cost = random_cost(30, 5)
    validate_cost(cost, 30)
    np.testing.assert_array_equal(cost, random_cost(30, 5))
    assert not np.array_equal(cost, random_cost(30, 6))
    assert np.all(cost[~np.eye(30, dtype=bool)] > 0)
    assert cost.max() < 1
    validate_cost(random_cost(4, np.random.RandomState(0)), 4)
    validate_cost(random_cost(4, np.random.default_rng(0)), 4)


def test_grid():
    cost = grid_cost(2, 3)
    points = np.array([(i, j) for i in range(2) for j in range(3)], float)
    expected = np.square(points[:, None] - points).sum(axis=2)
    np.testing.assert_allclose(cost, expected / 5)
    np.testing.assert_array_equal(grid_cost(1), [[0.0]])


def test_a_frame_is_taken_by_label():
    cost = random_cost(4, 0)
    labels = ["d", "b", "a", "c"]
    frame = pd.DataFrame(cost, index=labels, columns=labels)
    shuffled = frame.loc[["a", "b", "c", "d"], ["c", "a", "d", "b"]]
    np.testing.assert_array_equal(validate_cost(shuffled, 4, labels), cost)
    part = validate_cost(shuffled, 2, np.array(["c", "d"]))
    np.testing.assert_array_equal(part, frame.loc[["c", "d"], ["c", "d"]])
    np.testing.assert_array_equal(validate_cost(shuffled), shuffled.loc[:, list("abcd")])
    with pytest.raises(InvalidInputError, match="words has no row for 1 of its labels, first 'e'"):
        validate_cost(frame, 3, ["a", "e", "b"], mode_title="words")
    twice = pd.DataFrame(cost, index=list("aabc"), columns=list("aabc"))
    with pytest.raises(InvalidInputError, match="row label twice: 'a'"):
        validate_cost(twice, 4, labels)


def test_tables_of_other_packages_are_taken_by_label():
    cost = random_cost(4, 0)
    labels = ["d", "b", "a", "c"]
    order = [2, 0, 3, 1]
    shuffled, names = cost[np.ix_(order, order)], [labels[k] for k in order]
    plain = pl.DataFrame(shuffled, schema=names)
    named = plain.clone().insert_column(0, pl.Series("word", names))
    coords = {"row": names, "column": names}
    array = xr.DataArray(shuffled, dims=["row", "column"], coords=coords)
    for table in (plain, named, array):
        np.testing.assert_array_equal(validate_cost(table, 4, labels), cost)
        with pytest.raises(InvalidInputError, match="no row for 1 of its labels, first 'e'"):
            validate_cost(table, 4, np.array(["a", "b", "c", "e"]))
    np.testing.assert_array_equal(validate_cost(array.drop_vars(["row", "column"]), 4), shuffled)
    with pytest.raises(InvalidInputError, match=r"has the shape \(3, 4\)"):
        validate_cost(plain.head(3))


def test_costs_of_labelled_tensors(tensor):
    labelled = LabelledTensor(coo_array(tensor), modes=["a", "b", "c"])
    for make in (cosine_cost, presence_cost, tfidf_cost):
        np.testing.assert_array_equal(make(labelled, 1), make(tensor, 1))


def test_rounding_of_a_product_is_forgiven():
    cost = random_cost(5, 0)
    uneven = cost.copy()
    uneven[1, 2] += 1e-12
    checked = validate_cost(uneven)
    np.testing.assert_array_equal(checked, checked.T)


def changed(i, k, value):
    cost = random_cost(4, 0)
    cost[i, k] = value
    return cost


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (changed(1, 3, np.nan), r"'word' is not finite: nan at \(1, 3\)"),
        (changed(2, 0, np.inf), r"'word' is not finite: inf at \(2, 0\)"),
        (changed(2, 0, -0.5), r"'word' is negative: -0.5 at \(2, 0\)"),
        (changed(2, 2, 0.5), r"not zero on the diagonal: 0.5 at \(2, 2\)"),
        (changed(0, 3, 0.9), r"not symmetric: 0.9 at \(0, 3\) and .* at \(3, 0\)"),
        (np.zeros((3, 4)), r"has the shape \(3, 4\)"),
        (np.zeros((3, 3)), r"has the shape \(3, 3\); \(4, 4\) is needed"),
        (np.zeros(4), r"has the shape \(4,\)"),
    ],
)
def test_bad_costs_are_refused(cost, message):
    with pytest.raises(InvalidInputError, match=message):
        validate_cost(cost, 4, mode_title="mode 1 'word'")


def test_costs_that_are_no_numbers_are_refused():
    with pytest.raises(InvalidTypeError, match="no matrix of numbers"):
        validate_cost([["a", "b"], ["c", "d"]])
    with pytest.raises(InvalidTypeError, match="numbers: it is of type complex128"):
        validate_cost(np.zeros((2, 2), complex))
    with pytest.raises(InvalidTypeError, match=r"sparse one: give cost.toarray\(\)"):
        validate_cost(coo_array(random_cost(3, 0)))


@pytest.mark.parametrize("size", [0, -1, 2.5, "3"])
@pytest.mark.parametrize("make", [one_identity_cost, random_cost, grid_cost])
def test_sizes_that_are_none_are_refused(make, size):
    with pytest.raises(InvalidInputError, match="whole number of positions"):
        make(size)


def test_a_grid_has_axes():
    with pytest.raises(InvalidInputError, match="along each axis"):
        grid_cost()


@pytest.mark.parametrize("make", [cosine_cost, presence_cost, tfidf_cost])
def test_bad_data_is_refused(make, tensor):
    with pytest.raises(InvalidInputError, match=r"no mode \{\}"):
        make(np.ones((2, 2)), {})
    with pytest.raises(InvalidTypeError, match="data is a dict; costs need an array of numbers"):
        make({}, 0)
    with pytest.raises(InvalidInputError, match="no mode 3"):
        make(tensor, 3)
    with pytest.raises(InvalidInputError, match="no mode 0"):
        make(np.ones(3))
    tensor[1, 2, 3] = -1
    with pytest.raises(InvalidInputError, match=r"-1.0 at \(1, 2, 3\)"):
        make(tensor)
    with pytest.raises(InvalidInputError, match="at least one, got 0"):
        one_identity_cost(0)
