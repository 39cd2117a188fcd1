"""Generated data has the structure that it promises, and the seed decides it."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from sklearn.datasets import load_digits as load_digits_of_sklearn

from polyad import CP, KruskalTensor, LabelledTensor, factor_match_score
from polyad.datasets import load_digits, make_low_rank, make_sparse
from polyad.exceptions import InvalidInputError, PolyadError

# Dense tensors of low rank.


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4), (4, 3, 3, 2)])
def test_without_noise_the_tensor_is_the_truth(shape):
    tensor, truth = make_low_rank(shape, 2, random_state=0)
    assert isinstance(truth, KruskalTensor)
    assert tensor.shape == truth.shape == shape
    assert truth.n_components == 2
    np.testing.assert_allclose(tensor, truth.to_dense(), atol=1e-12)
    unfoldings = [np.moveaxis(tensor, mode, 0).reshape(n, -1) for mode, n in enumerate(shape)]
    assert [np.linalg.matrix_rank(unfolding) for unfolding in unfoldings] == [2] * len(shape)


@pytest.mark.parametrize("noise", [0.05, 0.5, 3.0])
def test_noise_has_the_size_that_was_asked_for(noise):
    tensor, truth = make_low_rank((8, 7, 6), 3, noise=noise, random_state=0)
    clean = truth.to_dense()
    error = np.linalg.norm(tensor - clean) / np.linalg.norm(clean)
    assert error == pytest.approx(noise, rel=1e-10)


def test_noise_does_not_change_the_truth():
    _, quiet = make_low_rank((5, 4, 3), 2, random_state=3)
    _, noisy = make_low_rank((5, 4, 3), 2, noise=1.0, random_state=3)
    for mine, theirs in zip(quiet.factors, noisy.factors, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_factors_can_be_nonnegative():
    _, truth = make_low_rank((30, 20, 10), 3, nonnegative=True, random_state=0)
    assert all((factor >= 0).all() for factor in truth.factors)
    assert (truth.to_dense() >= 0).all()
    _, signed = make_low_rank((30, 20, 10), 3, random_state=0)
    assert all((factor < 0).any() for factor in signed.factors)


def test_the_truth_can_be_found_again():
    tensor, truth = make_low_rank((15, 12, 10), 3, noise=0.01, random_state=1)
    model = CP(3, random_state=0).fit(tensor)
    assert factor_match_score(model.kruskal_, truth) > 0.99


# Sparse tensors of counts.


def test_counts():
    tensor = make_sparse((50, 40, 30), 400, random_state=0)
    assert isinstance(tensor, coo_array)
    assert tensor.shape == (50, 40, 30)
    assert tensor.dtype == np.float64
    assert tensor.sum() == 400
    assert 200 < tensor.nnz <= 400
    assert (tensor.data >= 1).all()
    assert (tensor.data == np.round(tensor.data)).all()


def test_every_coordinate_occurs_once_in_order():
    tensor = make_sparse((6, 5, 4), 300, random_state=0)
    flat = np.ravel_multi_index(tensor.coords, tensor.shape)
    assert (np.diff(flat) > 0).all()
    assert tensor.has_canonical_format


@pytest.mark.parametrize("skew", [0.0, 1.0, 2.0])
def test_indices_follow_the_power_law(skew):
    n, n_draws = 20, 40_000
    tensor = make_sparse((n, 3), n_draws, skew=skew, random_state=0)
    counts = np.sort(np.bincount(tensor.coords[0], tensor.data, n))[::-1]
    expected = 1.0 / np.arange(1, n + 1) ** skew
    expected *= n_draws / expected.sum()
    np.testing.assert_allclose(counts, expected, atol=6 * np.sqrt(expected.max()))
    if skew == 0:
        assert counts.max() < 1.3 * counts.min()


def test_a_skew_of_any_size_draws_one_index_only():
    assert make_sparse((4, 3), 9, skew=10**30, random_state=0).nnz == 1


def test_frequent_indices_are_at_other_places_in_each_mode():
    tensor = make_sparse((100, 100, 100), 5000, skew=2.0, random_state=0)
    places = [int(np.bincount(row, tensor.data).argmax()) for row in tensor.coords]
    assert len(set(places)) == 3


def test_a_tensor_too_large_to_be_dense():
    tensor = make_sparse((10**6, 10**6, 10**5), 1000, skew=0.5, random_state=0)
    assert tensor.sum() == 1000


@pytest.mark.parametrize("n_draws", [0, -5])
def test_an_empty_tensor_is_refused(n_draws):
    with pytest.raises(InvalidInputError, match=f"n_draws={n_draws}"):
        make_sparse((5, 4, 3), n_draws)


@pytest.mark.parametrize("make", [make_low_rank, make_sparse])
@pytest.mark.parametrize("shape", [(5, 0, 3), (5, -1), (5,), ()])
def test_a_shape_that_is_no_tensor_is_refused(make, shape):
    with pytest.raises(InvalidInputError, match="shape"):
        make(shape, 2)


def test_no_components_are_refused():
    with pytest.raises(InvalidInputError, match="n_components=0"):
        make_low_rank((5, 4), 0)


@pytest.mark.parametrize(
    ("make", "arguments", "says"),
    [
        (make_low_rank, {"shape": 1.5}, "shape=1.5 is not that of a tensor"),
        (make_low_rank, {"shape": (2, 2.5)}, "shape=.* is not that of a tensor"),
        (make_low_rank, {"n_components": 2j}, "n_components=2j makes no tensor"),
        (make_low_rank, {"noise": np.nan}, "noise=nan is not usable"),
        (make_sparse, {"n_draws": np.array([1.0, -1.0])}, "n_draws=.* makes no tensor"),
        (make_sparse, {"n_draws": ""}, "n_draws='' makes no tensor"),
        (make_sparse, {"skew": "x"}, "skew='x' is not usable"),
        (make_sparse, {"random_state": -1}, "random_state=-1 is not a seed"),
        (make_low_rank, {"random_state": 2**32}, "random_state=4294967296 is not a seed"),
        (make_low_rank, {"random_state": "x"}, "random_state is a str"),
    ],
)
def test_arguments_of_other_kinds_are_refused(make, arguments, says):
    usual = {"shape": (5, 4), "n_components" if make is make_low_rank else "n_draws": 2}
    with pytest.raises(PolyadError, match=says):
        make(**{**usual, **arguments})


# Seeds.


def numbers(result):
    return result.toarray() if isinstance(result, coo_array) else result[0]


@pytest.mark.parametrize("make", [make_low_rank, make_sparse])
def test_the_seed_decides(make):
    def draw(seed):
        return numbers(make((6, 5, 4), 50, random_state=seed))

    np.testing.assert_array_equal(draw(7), draw(7))
    np.testing.assert_array_equal(draw(7), draw(np.random.RandomState(7)))
    assert not np.array_equal(draw(7), draw(8))
    generator = np.random.RandomState(7)
    assert not np.array_equal(draw(generator), draw(generator))


@pytest.mark.parametrize("make", [make_low_rank, make_sparse])
def test_the_global_generator_is_left_alone(make):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    make((6, 5, 4), 5, random_state=1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# Digits.


def test_digits():
    images, digits = load_digits()
    assert isinstance(images, LabelledTensor)
    assert images.shape == (1797, 8, 8)
    assert images.modes == ("image", "row", "column")
    assert not images.is_sparse
    theirs = load_digits_of_sklearn()
    np.testing.assert_array_equal(images.data, theirs.images)
    np.testing.assert_array_equal(digits, theirs.target)
    assert (images.data.min(), images.data.max()) == (0.0, 16.0)
    assert set(digits) == set(range(10))


def test_a_model_of_digits():
    images, _ = load_digits()
    model = CP(4, random_state=0, tol=1e-3).fit(images)
    assert model.factor_table("row").shape == (8, 4)
    assert 0.5 < model.score(images) < 1.0
