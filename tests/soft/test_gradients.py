"""Derivatives of the operators with respect to every argument, against differences and laws."""

import numpy as np
import pytest

from polyad.exceptions import InvalidInputError, NumericalError
from polyad.soft import quantile_normalize, soft_quantile, soft_rank, soft_sort, vjp
from tests.transport.rows import twins

GENERATOR = np.random.default_rng(0)
ARGUMENTS = {
    "x": GENERATOR.random((2, 6)),
    "quantiles": np.sort(GENERATOR.normal(size=(2, 4))),
    "levels": np.array([0.2, 0.7]),
    "weights": GENERATOR.random(6) + 0.1,
    "target_weights": GENERATOR.random(4) + 0.1,
}
CASES = {
    soft_rank: ("x", "weights", "target_weights"),
    soft_sort: ("x", "weights", "target_weights"),
    soft_quantile: ("x", "levels", "weights"),
    quantile_normalize: ("x", "quantiles", "weights", "target_weights"),
}


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 0.1, "tol": 1e-13},
        {"epsilon": 0.02, "tol": 1e-13, "squash": False},
        {"epsilon": 0.1, "n_iter": 1},
        {"epsilon": 0.1, "n_iter": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_differences_agree(function, settings):
    names = CASES[function]
    arguments = [ARGUMENTS[name] for name in names]

    def call(*arrays):
        return function(**dict(zip(names, arrays, strict=True)), **settings)

    value, pullback = vjp(function, **dict(zip(names, arguments, strict=True)), **settings)
    np.testing.assert_array_equal(value, call(*arguments))
    G = np.random.default_rng(1).normal(size=value.shape)
    gradients = pullback(G)
    for which, name in enumerate(names):
        expected = twins.numerical_gradient(
            lambda *arrays: (call(*arrays) * G).sum(), arguments, which
        )
        found = getattr(gradients, name)
        assert found.shape == arguments[which].shape
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_arguments_that_were_not_given_get_none():
    gradients = vjp(soft_rank, [1.0, 2.0])[1]([1.0, 0.0])
    assert gradients.weights is gradients.target_weights is gradients.quantiles is None


def test_squashed_gradients_obey_the_invariances():
    """Shifting or stretching a row changes nothing."""
    x = np.random.default_rng(2).normal(size=(3, 50))
    _, pullback = vjp(quantile_normalize, x, np.arange(8))
    gradient = pullback(np.random.default_rng(3).normal(size=x.shape)).x
    np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-9)
    np.testing.assert_allclose((gradient * x).sum(axis=1), 0, atol=1e-9)


@pytest.mark.parametrize("function", [soft_rank, soft_sort])
def test_equal_values_have_equal_gradients(function):
    x = np.array([2.0, 1.0, 2.0, 3.0])
    _, pullback = vjp(function, x, epsilon=0.1)
    G = np.array([1.0, 2.0, 1.0, -1.0])
    gradient = pullback(G).x
    np.testing.assert_allclose(gradient[0], gradient[2])


def test_constant_rows_have_no_gradient_through_their_order():
    gradients = vjp(soft_rank, np.ones((2, 4)))[1](np.ones((2, 4)))
    np.testing.assert_array_equal(gradients.x, 0.0)
    # The mean of a sort moves with every value.
    gradients = vjp(soft_sort, np.ones(4))[1](np.ones(4))
    np.testing.assert_allclose(gradients.x, 1.0)


@pytest.mark.parametrize("epsilon", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("kind", ["normal", "skewed", "tied"])
def test_small_epsilon_gives_finite_exact_gradients(kind, epsilon):
    generator = np.random.default_rng(4)
    x = {
        "normal": generator.normal(size=(3, 40)),
        "skewed": generator.lognormal(0, 2, size=(3, 40)),
        "tied": generator.integers(0, 3, size=(3, 40)).astype(float),
    }[kind]
    b = generator.dirichlet(np.ones(7))
    value, pullback = vjp(
        quantile_normalize, x, np.arange(7), target_weights=b, epsilon=epsilon, tol=1e-12
    )
    gradient = pullback(value)
    assert np.isfinite(gradient.target_weights).all()
    direction = generator.normal(size=x.shape)
    if kind == "tied":
        # Ties stay ties: where values part, the derivative is as steep as 1 / epsilon.
        direction = generator.normal(size=(3, 3))[np.arange(3)[:, None], x.astype(int)]
    step = 1e-3 * epsilon
    both = [
        0.5
        * (
            quantile_normalize(
                x + sign * step * direction,
                np.arange(7),
                target_weights=b,
                epsilon=epsilon,
                tol=1e-12,
            )
            ** 2
        ).sum()
        for sign in (1, -1)
    ]
    expected = (both[0] - both[1]) / (2 * step)
    # Each value is known to about 1e-12, and so each half of the sum of squares to that times it.
    noise = 1e-12 * np.abs(value).sum() / step
    np.testing.assert_allclose((gradient.x * direction).sum(), expected, rtol=1e-3, atol=noise)


def test_types_and_shapes_are_those_of_the_arguments():
    x = np.random.default_rng(5).normal(size=(5, 2, 3)).astype(np.float32)
    weights = np.ones((5, 2, 3))
    value, pullback = vjp(
        quantile_normalize, x, np.arange(4, dtype=np.float32), weights=weights, axis=0
    )
    gradients = pullback(np.ones_like(value))
    assert gradients.x.dtype == gradients.quantiles.dtype == np.float32
    assert gradients.weights.dtype == np.float64
    assert gradients.x.shape == gradients.weights.shape == x.shape
    assert gradients.quantiles.shape == (4,)


def test_bad_gradients_are_refused():
    _, pullback = vjp(soft_rank, [1.0, 2.0])
    with pytest.raises(InvalidInputError, match=r"shape \(3,\) and the value \(2,\)"):
        pullback([1.0, 2.0, 3.0])
    with pytest.raises(InvalidInputError, match="nan"):
        pullback([1.0, np.nan])


def test_a_gradient_that_is_no_float64_is_refused():
    _, pullback = vjp(soft_rank, np.array([0.0, 1e-310, 3e-310]), epsilon=0.1)
    with pytest.raises(NumericalError, match="with respect to x is too large"):
        pullback([1.0, 0.0, 0.0])


def test_other_functions_are_refused():
    with pytest.raises(InvalidInputError, match="take one of soft_rank, soft_sort"):
        vjp(np.sort, [1.0, 2.0])


@pytest.mark.parametrize("function", [soft_rank, soft_sort, quantile_normalize])
def test_a_pullback_is_that_of_the_arguments_as_they_were(function):
    x, weights, q = np.random.default_rng(0).random((3, 2, 6))
    arguments = {"quantiles": np.sort(q, axis=1)} if function is quantile_normalize else {}
    value, pullback = vjp(function, x, weights=weights, epsilon=0.1, squash=False, **arguments)
    G = np.random.default_rng(1).normal(size=value.shape)
    before = pullback(G)
    for array in (x, weights, value, *arguments.values()):
        np.square(array, out=array)
    after = pullback(G)
    for name in ("x", "weights", "quantiles"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@pytest.mark.parametrize("function", [soft_sort, soft_quantile])
def test_the_origin_of_values_costs_no_digits(function):
    """Of times in seconds, say; the values are exact numbers with and without the origin."""
    x = np.random.default_rng(0).integers(0, 2**20, size=40) * 2.0**-20
    value, pullback = vjp(function, x, epsilon=0.1)
    far, far_pullback = vjp(function, x + 2.0**32, epsilon=0.1)
    G = np.random.default_rng(1).normal(size=value.shape)
    np.testing.assert_allclose(far - 2.0**32, value, atol=1e-6)
    np.testing.assert_allclose(far_pullback(G).x, pullback(G).x, rtol=1e-11, atol=1e-12)
