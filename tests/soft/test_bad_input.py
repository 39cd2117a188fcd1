"""What is refused, before any work, and what is told."""

import numpy as np
import pytest

from polyad.exceptions import (
    InvalidInputError,
    InvalidTypeError,
    NumericalError,
    PolyadError,
    TransportWarning,
)
from polyad.soft import Cost, quantile_normalize, soft_quantile, soft_rank, soft_sort, vjp

FUNCTIONS = [soft_rank, soft_sort, soft_quantile]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("x", "text"),
    [
        ([], "empty"),
        (np.empty((3, 0)), r"shape \(3, 0\)"),
        ([1.0, np.nan], r"x is nan at \(1,\)"),
        ([[1.0, 2.0], [np.inf, 0.0]], r"x is inf at \(1, 0\)"),
        (3.0, "single number"),
        (["a", "b"], "real numbers"),
        ([1j, 2.0], "complex128"),
        ([[1.0, 2.0], [3.0]], "different lengths"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "masked entries.*weights=~array.mask"),
        (np.array(["1e4000", "1"]).astype(np.longdouble), r"x is inf at \(0,\)"),
    ],
)
def test_bad_values(function, x, text):
    with pytest.raises(PolyadError, match=text):
        function(x)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0 must be a finite number above zero"),
        ({"epsilon": np.nan}, "epsilon=nan"),
        ({"epsilon": "small"}, "epsilon='small'"),
        ({"epsilon": np.complex128(0.1)}, "epsilon="),
        ({"tol": 0.0}, "tol=0.0 must be between 0 and 1"),
        ({"n_iter": 0}, "n_iter=0 must be a whole number, at least 1"),
        ({"n_iter": 2.0}, "n_iter=2.0"),
        ({"n_iter": 10**30}, "above 1000000"),
        ({"axis": 2}, "axis=2 does not exist: x has 1 axes"),
        ({"axis": 0.5}, "axis=0.5"),
        ({"squash": 1}, "squash=1 must be True, False or 'robust'"),
        ({"cost": "cubic"}, "cost='cubic' must be 'squared'"),
        ({"cost": np.array(["squared", "squared"])}, "cost=array"),
        ({"weights": [1.0, 2.0]}, "weights has 2 entries along its axis of values where 3"),
        ({"weights": [1.0, -2.0, 1.0]}, "weights has the entry -2.0"),
        ({"weights": [0.0, 0.0, 0.0]}, "weights are all zero"),
        ({"weights": [1.0, np.nan, 1.0]}, "weights is nan"),
        ({"weights": np.ones((2, 3))}, r"weights has the shape \(2, 3\)"),
        ({"weights": 1.0}, r"weights has the shape \(\)"),
    ],
)
def test_bad_settings(function, arguments, text):
    with pytest.raises(PolyadError, match=text):
        function([1.0, 3.0, 2.0], **arguments)


@pytest.mark.parametrize("function", [soft_rank, soft_sort])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n_targets": 0}, "n_targets=0"),
        ({"n_targets": True}, "n_targets=True"),
        ({"n_targets": 10**30}, "is above 100000000"),
        ({"n_targets": 3, "target_weights": [1.0, 1.0]}, "target_weights has 2 entries"),
        ({"target_weights": []}, "target_weights has the shape"),
    ],
)
def test_bad_targets(function, arguments, text):
    with pytest.raises(InvalidInputError, match=text):
        function([1.0, 3.0, 2.0], **arguments)


def test_bad_quantiles_and_levels():
    with pytest.raises(InvalidInputError, match="quantiles decrease"):
        quantile_normalize([1.0, 2.0], [3.0, 1.0])
    with pytest.raises(InvalidInputError, match="quantiles is inf"):
        quantile_normalize([1.0, 2.0], [0.0, np.inf])
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        soft_quantile([1.0, 2.0], [0.5, 1.5])
    with pytest.raises(InvalidInputError, match=r"levels has the shape \(1, 1\): give one axis"):
        soft_quantile([1.0, 2.0], [[0.5]])
    for width in (0, "wide", True, 1j, np.array([0.1, 0.2]), np.nan):
        with pytest.raises(InvalidInputError, match="width="):
            soft_quantile([1.0, 2.0], width=width)
    with pytest.raises(InvalidTypeError, match="levels has the type"):
        soft_quantile([1.0, 2.0], "median")


def test_a_transport_that_is_not_solved_is_told():
    # Many rows: rounding brings a few of them to a residual of exactly zero, which ones depends on
    # the instructions of the processor.
    x = np.random.default_rng(0).normal(size=(60, 50))
    with pytest.warns(TransportWarning, match=r"of 60 rows is not solved to tol=1e-17") as caught:
        soft_rank(x, n_targets=8, tol=1e-17)
    assert caught[0].filename == __file__


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(InvalidInputError, match="finite numbers are needed"):
        soft_rank([0.0, 1e308, 3.0], squash=False, epsilon=1e-5, n_iter=5)


def test_input_is_not_changed():
    x, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    soft_sort(x, weights=weights)
    np.testing.assert_array_equal(x, [3, 1, 2])
    np.testing.assert_array_equal(weights, [1, 2, 3])


def test_results_that_their_type_cannot_hold_are_refused():
    x = np.array([0.3, 0.1, 0.2], dtype=np.float32)
    with pytest.raises(NumericalError, match="too large for float32"):
        quantile_normalize(x, [0.0, 1e39])
    _, pullback = vjp(quantile_normalize, x, [0.0, 1e38], epsilon=0.1)
    with pytest.raises(NumericalError, match="too large for float32"):
        pullback([1e3, 0.0, 0.0])
    assert np.isfinite(quantile_normalize(x.astype(float), [0.0, 1e39])).all()


@pytest.mark.filterwarnings("error")
def test_weights_of_any_size():
    x = [0.3, 0.1, 0.9, 0.5]
    for size in (1e308, 1e-308):
        np.testing.assert_allclose(soft_rank(x, weights=[size] * 4), soft_rank(x), rtol=1e-12)


def test_arrays_of_other_packages_and_orders_of_bytes():
    torch = pytest.importorskip("torch")
    x = np.array([0.25, 0.125, 0.875, 0.5])
    expected = soft_rank(x.astype(np.float32))
    for other in (x.astype(">f4"), x.astype(np.float16), torch.tensor(x).bfloat16()):
        found = soft_rank(other)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(soft_rank(np.ma.array(x)), soft_rank(x))


def flat(x, y):
    return 0.0 * x * y


@pytest.mark.parametrize("n_iter", [None, 3])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda x, y: None, "value.* of the cost gave object numbers"),
        (lambda x, y: 1j * (x - y), "gave complex128"),
        (lambda x, y: np.ones((3, 7)), r"the shape \(3, 7\).*to \(2, 50, 50\)"),
        (lambda x, y: np.nan * (x - y), "is nan for some"),
        (lambda x, y: np.where(x > y, np.inf, 0.0), "is inf for some"),
        (lambda x, y: -((x - y) ** 2), r"not submodular: c\("),
        (lambda x, y: np.sqrt(np.abs(x - y)), "not submodular"),
        (lambda x, y: (np.round(50 * x) % 2) * (y - 0.5), "not submodular"),
    ],
)
def test_costs_that_are_refused(value, text, n_iter):
    x = np.random.default_rng(0).normal(size=(2, 50))
    with pytest.raises(PolyadError, match=text):
        soft_rank(x, cost=Cost(value, flat), n_iter=n_iter)


def test_costs_of_functions_only():
    with pytest.raises(InvalidTypeError, match="slope=None of a cost"):
        Cost(np.subtract, None)


@pytest.mark.parametrize("n_iter", [None, 3])
def test_slopes_that_are_refused(n_iter):
    def squared(x, y):
        return (x - y) ** 2

    x = np.random.default_rng(0).normal(size=(2, 50))
    for slope in (flat, lambda x, y: 2 * (y - x), lambda x, y: x - y, squared):
        value, pullback = vjp(soft_rank, x, cost=Cost(squared, slope), n_iter=n_iter)
        with pytest.raises(InvalidInputError, match="not the derivative"):
            pullback(value)
    _, pullback = vjp(soft_rank, x, cost=Cost(squared, lambda x, y: np.nan * x * y), n_iter=n_iter)
    with pytest.raises(InvalidInputError, match="of the cost is nan"):
        pullback(value)


@pytest.mark.parametrize("squash", [True, False])
@pytest.mark.parametrize(
    "cost",
    [
        Cost(lambda x, y: np.abs(x - y), lambda x, y: np.sign(x - y)),
        Cost(lambda x, y: np.maximum(x - y, 0.0), lambda x, y: 1.0 * (x > y)),
        Cost(lambda x, y: -x * y, lambda x, y: -y + 0.0 * x),
        Cost(lambda x, y: 0.0, lambda x, y: 0.0),
        Cost(lambda x, y: np.cosh(9 * (x - y)), lambda x, y: 9 * np.sinh(9 * (x - y))),
        Cost(lambda x, y: np.exp(x - 2 * y), lambda x, y: np.exp(x - 2 * y)),
    ],
)
def test_costs_with_corners_and_without_are_taken(cost, squash):
    x = np.random.default_rng(0).random((6, 200)) ** 3
    x[0] = 0.5
    value, pullback = vjp(soft_rank, x, n_targets=9, cost=cost, squash=squash, epsilon=0.1)
    in_order = np.take_along_axis(value, np.argsort(x, axis=1), axis=1)
    assert (np.diff(in_order, axis=1) > -1e-9).all()
    assert np.isfinite(pullback(x).x).all()
