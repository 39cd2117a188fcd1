"""Losses of one's own: wrong ones are refused before the fit, right ones of any kind are taken."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.special import expit
from sklearn.base import clone

from polyad import GeneralizedCP
from polyad.exceptions import NumericalError, PolyadError
from polyad.losses import CustomLoss
from polyad.losses.checks import check_loss
from polyad.losses.loss import PositiveLoss

SHAPE = (6, 5, 4)
POSITIVE = np.random.default_rng(0).gamma(2.0, 1.0, SHAPE) + 0.1
SIGNED = POSITIVE - 2.0


def square(x, m):
    return 0.5 * (m - x) ** 2


def in_float32(function):
    return lambda x, m: function(x.astype(np.float32), m.astype(np.float32))


RIGHT = {
    "square": (square, lambda x, m: m - x, -np.inf),
    "absolute": (lambda x, m: np.abs(m - x), lambda x, m: np.sign(m - x), -np.inf),
    "huber": (
        lambda x, m: np.where(np.abs(m - x) < 1, square(x, m), np.abs(m - x) - 0.5),
        lambda x, m: np.clip(m - x, -1, 1),
        -np.inf,
    ),
    "gamma": (lambda x, m: x / m + np.log(m), lambda x, m: (1 - x / m) / m, 0.0),
    "poisson": (
        lambda x, m: m - x * np.log(m + 1e-10),
        lambda x, m: 1 - x / (m + 1e-10),
        0.0,
    ),
    "poisson-log": (lambda x, m: np.exp(m) - x * m, lambda x, m: np.exp(m) - x, -np.inf),
    "cosh": (lambda x, m: np.cosh(m - x) - 1, lambda x, m: np.sinh(m - x), -np.inf),
    "logistic": (
        lambda x, m: np.logaddexp(0, m) - x * m,
        lambda x, m: expit(m) - x,
        -np.inf,
    ),
    "float32": (in_float32(square), in_float32(lambda x, m: m - x), -np.inf),
    "float32 above zero": (
        in_float32(lambda x, m: x / m + np.log(m)),
        in_float32(lambda x, m: (1 - x / m) / m),
        0.0,
    ),
}
OF_ANY_UNIT = ["square", "absolute", "huber", "gamma", "poisson", "float32"]


@pytest.mark.parametrize("name", RIGHT)
def test_right_losses_are_taken(name):
    value, derivative, lower = RIGHT[name]
    loss = CustomLoss(value, derivative, lower=lower)
    data = POSITIVE if lower == 0 or name == "poisson-log" else SIGNED
    data = (data > 0).astype(float) if name == "logistic" else data
    model = GeneralizedCP(1, loss=loss, random_state=0, max_iter=50, tol=0.5)
    assert np.isfinite(model.fit(data).objective_)


@pytest.mark.parametrize("unit", [1e-9, 1e-3, 1e3, 1e9])
@pytest.mark.parametrize("name", OF_ANY_UNIT)
def test_right_losses_are_taken_for_data_of_any_unit(name, unit):
    value, derivative, lower = RIGHT[name]
    loss = CustomLoss(value, derivative, lower=lower)
    check_loss(loss, unit * (POSITIVE if lower == 0 else SIGNED))
    check_loss(loss, (unit * (POSITIVE if lower == 0 else SIGNED)).astype(np.float32))


def test_right_losses_are_taken_for_data_over_many_decades():
    data = POSITIVE * 10.0 ** np.linspace(-12, 12, 6)[:, None, None]
    check_loss(CustomLoss(*RIGHT["gamma"][:2], lower=0.0), data)


@pytest.mark.parametrize("kind", [np.asarray, coo_array])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize(
    ("value", "derivative", "lower"),
    [
        (square, lambda x, m: x - m, -np.inf),
        (square, lambda x, m: (m - x) ** 2, -np.inf),
        (square, lambda x, m: 0.5 * (m - x), -np.inf),
        (lambda x, m: x / m + np.log(m), lambda x, m: (1 - x / m) / m**2, 0.0),
        (lambda x, m: x / m + np.log(m), lambda x, m: 1 - x / m, 0.0),
        (lambda x, m: m - x * np.log(m), lambda x, m: m - x, 0.0),
    ],
    ids=["sign", "power", "half", "gamma power", "another", "no ratio"],
)
def test_wrong_derivatives_are_refused(value, derivative, lower, unit, kind):
    loss = CustomLoss(value, derivative, lower=lower)
    data = kind(1.3 * unit * (POSITIVE if lower == 0 else SIGNED))
    model = GeneralizedCP(1, loss=loss, missing="unobserved", max_iter=2)
    with pytest.raises(PolyadError, match="is not the derivative of value"):
        model.fit(data)


@pytest.mark.parametrize("lower", [0.0, -np.inf])
@pytest.mark.parametrize("wrong_at", [lambda x: x == 0, lambda x: x > 3.0])
def test_derivatives_that_are_wrong_for_some_entries_are_refused(wrong_at, lower):
    data = np.where(POSITIVE < 1.5, 0.0, POSITIVE)
    assert 0.1 < wrong_at(data).mean() < 0.6

    def derivative(x, m):
        return np.where(wrong_at(x), x - m, m - x)

    loss = CustomLoss(square, derivative, lower=lower)
    with pytest.raises(PolyadError, match="is not the derivative of value"):
        GeneralizedCP(1, loss=loss, max_iter=2).fit(data)


@pytest.mark.parametrize("unit", [1e-3, 1e-6, 1e-9, 1e-60])
def test_small_data_starts_at_its_own_size(unit):
    """A start that is far too large would end at zero, where no factor knows where to go."""
    loss = CustomLoss(square, lambda x, m: m - x)
    model = GeneralizedCP(2, loss=loss, random_state=0, tol=1e-4)
    plain, small = (clone(model).fit(s * SIGNED) for s in (1, unit))
    assert small.objective_ < 1.1 * plain.objective_ * unit**2


def spoil(x, m):
    m += 1.0
    return 0.5 * (m - x) ** 2


def fail(x, m):
    return np.array(1 // 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x, m: float(np.sum(square(x, m))), "gave the shape"),
        (lambda x, m: square(x, m)[:-1], "gave the shape"),
        (lambda x, m: square(x, m)[None], "gave the shape"),
        (lambda x, m: np.full(m.shape, np.nan), "(is|derivative) nan"),
        (lambda x, m: np.full(m.shape, np.inf), "(is|derivative) inf"),
        (lambda x, m: square(x, m) + 0j, "complex128 numbers"),
        (lambda x, m: square(x, m).astype(object), "object numbers"),
        (lambda x, m: None, "object numbers"),
        (lambda x, m: "much", "numbers"),
        (lambda x, m: m[0], "gave the shape"),
        (lambda x: x, "failed with TypeError"),
        (fail, "failed with ZeroDivisionError: "),
        (spoil, "changes its arguments"),
    ],
)
@pytest.mark.parametrize("place", ["value", "derivative"])
def test_what_is_no_loss_gets_one_clear_error(value, message, place):
    functions = {"value": square, "derivative": lambda x, m: m - x, place: value}
    model = GeneralizedCP(1, loss=CustomLoss(**functions))
    with pytest.raises(PolyadError, match=message) as caught:
        model.fit(SIGNED)
    if place in str(caught.value).partition("(")[0]:
        assert str(caught.value).startswith(place)


def test_a_logarithm_of_negative_model_values_asks_for_a_bound():
    with pytest.raises(PolyadError, match="lower=0"):
        GeneralizedCP(1, loss=CustomLoss(*RIGHT["gamma"][:2])).fit(POSITIVE - 0.09)


def test_a_loss_of_a_class_of_ones_own_is_tried_too():
    class Mine(PositiveLoss):
        name = "mine"

        def value(self, x, m):
            return m - x * np.log(m + 1e-10)

        def derivative(self, x, m):
            return x / (m + 1e-10) - 1

    with pytest.raises(PolyadError, match="is not the derivative"):
        GeneralizedCP(1, loss=Mine()).fit(POSITIVE)


@pytest.mark.parametrize("good", [15, 25, 40])
def test_a_loss_that_turns_nan_does_not_converge(good):
    calls = [0]

    def value(x, m):
        calls[0] += 1
        return square(x, m) if calls[0] < good else np.full(m.shape, np.nan)

    loss = CustomLoss(value, lambda x, m: m - x)
    with pytest.raises(NumericalError):
        GeneralizedCP(2, loss=loss, random_state=0, n_jobs=1, tol=1e-12).fit(SIGNED)


@pytest.mark.parametrize("name", ["square", "poisson", "gamma", "poisson-log", "logistic", "cosh"])
def test_a_loss_without_a_least_value_is_refused(name):
    value, derivative, lower = RIGHT[name]
    loss = CustomLoss(
        lambda x, m: -value(x, m), lambda x, m: -np.asarray(derivative(x, m)), lower=lower
    )
    data = (SIGNED > 0).astype(float) if name == "logistic" else POSITIVE
    with pytest.raises(PolyadError, match="falls without end for m towards infinity"):
        GeneralizedCP(1, loss=loss, max_iter=2).fit(data)


def test_losses_that_fall_to_a_bound_are_taken():
    ones = np.ones(SHAPE)
    check_loss(CustomLoss(lambda x, m: np.exp(-x * m), lambda x, m: -x * np.exp(-x * m)), ones)
    check_loss(CustomLoss(lambda x, m: np.logaddexp(0, -m), lambda x, m: -expit(-m)), ones)
    check_loss(CustomLoss(lambda x, m: 1 / (1 + m), lambda x, m: -((1 + m) ** -2), lower=0.0), ones)


@pytest.mark.parametrize("hidden", [False, True])
def test_own_losses_are_given_numpy_arrays_whatever_the_data_is(hidden):
    torch = pytest.importorskip("torch")
    kinds = set()

    def weight(x, m):
        kinds.update((type(x), type(m)))
        return np.where(m > x, 0.5, 1.5)

    loss = CustomLoss(
        lambda x, m: weight(x, m) * (m - x) ** 2,
        lambda x, m: 2 * weight(x, m) * (m - x),
        accepts=np.isfinite,
        mean=np.abs,
    )
    data = SIGNED.copy()
    data[0, 0, 0] = np.nan if hidden else data[0, 0, 0]
    model = GeneralizedCP(1, loss=loss, random_state=0, max_iter=50, tol=0.5)
    expected = model.fit(data).inverse_transform(model.transform(data))
    found = model.fit(torch.asarray(data)).inverse_transform(model.transform(torch.asarray(data)))
    assert kinds == {np.ndarray}
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_own_losses_may_return_lists():
    loss = CustomLoss(lambda x, m: square(x, m).tolist(), lambda x, m: (m - x).tolist())
    model = GeneralizedCP(1, loss=loss, random_state=0, max_iter=50, tol=0.5)
    assert np.isfinite(model.fit(SIGNED).objective_)


def test_a_mean_that_is_one_number_is_refused_before_the_fit():
    loss = CustomLoss(square, lambda x, m: m - x, mean=np.mean)
    with pytest.raises(PolyadError, match=r"mean\(m\) of loss=.* gave the shape \(\)"):
        GeneralizedCP(1, loss=loss).fit(SIGNED)
