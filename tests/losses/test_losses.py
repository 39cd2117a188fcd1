"""Losses: derivatives by central differences, minima, domains, units, names."""

import math

import numpy as np
import pytest
from array_api_compat import array_namespace
from hypothesis import given
from hypothesis import strategies as st

from polyad.exceptions import PolyadError
from polyad.losses import (
    BetaDivergenceLoss,
    CustomLoss,
    GaussianLoss,
    HuberLoss,
    Loss,
    NegativeBinomialLoss,
    PoissonLoss,
)
from polyad.losses.names import LOSSES, read_loss

ALL = {
    **{name: read_loss(name) for name in LOSSES},
    "huber-small": HuberLoss(0.3),
    "beta-0": BetaDivergenceLoss(0.0),
    "beta-1": BetaDivergenceLoss(1.0),
    "beta-2": BetaDivergenceLoss(2.0),
    "beta-negative": BetaDivergenceLoss(-0.5),
    "beta-1.5": BetaDivergenceLoss(1.5),
    "negative-binomial-3": NegativeBinomialLoss(3.5),
    "custom": CustomLoss(lambda x, m: np.cosh(m - x) - 1, lambda x, m: np.sinh(m - x)),
}
EACH = pytest.mark.parametrize("loss", ALL.values(), ids=ALL)


def examples(loss, n=400):
    """Return entries that a loss accepts, and model values inside its bounds."""
    generator = np.random.default_rng(0)
    m = generator.uniform(0.05, 4.0, n) * (1 if loss.lower == 0 else generator.choice([-1, 1], n))
    if "ones" in loss.domain:
        return generator.integers(0, 2, n).astype(float), m
    x = generator.gamma(1.0, 2.0, n) + 0.01
    if loss.accepts(np.zeros(1))[0]:
        x[: n // 3] = 0.0
    if loss.accepts(-np.ones(1))[0]:
        x[n // 2 :] *= -1
    return x, m


@EACH
def test_derivative_by_central_differences(loss):
    x, m = examples(loss)
    step = 1e-6 * (1 + np.abs(m))
    numeric = (loss.value(x, m + step) - loss.value(x, m - step)) / (2 * step)
    np.testing.assert_allclose(loss.derivative(x, m), numeric, rtol=2e-6, atol=2e-7)


@EACH
def test_curvature_by_central_differences(loss):
    x, m = examples(loss)
    if isinstance(loss, HuberLoss):  # it jumps at the threshold
        away = np.abs(np.abs(x - m) - loss.threshold) > 1e-4
        x, m = x[away], m[away]
    step = 1e-6 * (1 + np.abs(m))
    numeric = (loss.derivative(x, m + step) - loss.derivative(x, m - step)) / (2 * step)
    np.testing.assert_allclose(loss.curvature(x, m), numeric, rtol=1e-5, atol=1e-6)


@EACH
def test_what_entries_change_where_all_were_zeros(loss):
    x, m = examples(loss)
    nothing = np.zeros_like(x)
    if not loss.accepts(nothing[:1])[0]:
        return
    expected = (
        loss.evaluate(x, m)[0] - loss.evaluate(nothing, m)[0],
        loss.derivative(x, m) - loss.derivative(nothing, m),
        loss.curvature(x, m) - loss.curvature(nothing, m),
    )
    for found, of_both in zip(loss.beyond_zero(x, m), expected, strict=True):
        np.testing.assert_allclose(found, of_both, rtol=1e-9, atol=1e-12)


@EACH
def test_bend_is_derivative_and_curvature(loss):
    x, m = examples(loss)
    slope, curved = loss.bend(x, m)
    np.testing.assert_allclose(slope, loss.derivative(x, m), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(curved, loss.curvature(x, m), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["bernoulli-logit", "poisson-log"])
def test_what_entries_add_to_a_natural_parameter_is_linear(name):
    loss = read_loss(name)
    x, m = examples(loss)
    assert loss.is_natural
    for found, expected in zip(loss.beyond_zero(x, m), (-x * m, -x, 0.0 * x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_missing_curvature_is_a_difference_that_keeps_to_the_bound():
    def derivative(x, m):
        assert (m >= 0).all()
        return 3 * m**2

    loss = CustomLoss(lambda x, m: m**3, derivative, lower=0.0)
    m = np.array([0.0, 1e-9, 0.5, 100.0])
    np.testing.assert_allclose(loss.curvature(m, m), 6 * m, rtol=1e-5, atol=4e-5)
    own = CustomLoss(lambda x, m: m**3, derivative, curvature=lambda x, m: 6 * m)
    assert np.array_equal(own.curvature(m, m), 6 * m)


@EACH
def test_evaluate_is_value_and_derivative(loss):
    x, m = examples(loss)
    value, derivative = loss.evaluate(x, m)
    np.testing.assert_allclose(value + loss.offset(x), loss.value(x, m), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(derivative, loss.derivative(x, m), rtol=1e-12, atol=1e-12)


# The model value at which the loss of an entry is zero.
BEST = {
    "gaussian": lambda x: x,
    "poisson": lambda x: x,
    "poisson-log": np.log,
    "gamma": lambda x: x,
    "rayleigh": lambda x: math.sqrt(math.pi) / 2 * x,
    "huber": lambda x: x,
    "beta": lambda x: x,
    "negative-binomial": lambda x: x,
}


@pytest.mark.parametrize("name", BEST)
def test_a_perfect_fit_has_no_loss(name):
    loss = read_loss(name)
    x = np.array([0.1, 0.5, 1.0, 7.0, 300.0])
    best = BEST[name](x)
    np.testing.assert_allclose(loss.value(x, best), 0, atol=1e-9)
    np.testing.assert_allclose(loss.derivative(x, best) * best, 0, atol=1e-6)
    other = loss.value(x, best + 0.3)
    assert (other > 0).all()


@pytest.mark.parametrize("name", ["bernoulli-odds", "bernoulli-logit"])
def test_certain_odds_have_no_loss(name):
    loss = read_loss(name)
    far = np.array([1e12, 0.0]) if loss.lower == 0 else np.array([60.0, -60.0])
    np.testing.assert_allclose(loss.value(np.array([1.0, 0.0]), far), 0, atol=2e-10)


@EACH
def test_no_overflow_and_no_nan(loss):
    x, _ = examples(loss)
    huge = np.array([0.0, 1e-300, 1e-12, 1e-3, 1.0, 20.0])
    for m in huge if loss.lower == 0 else np.concatenate([huge, -huge]):
        both = loss.evaluate(x, np.full_like(x, m))
        assert all(np.isfinite(part).all() for part in both)


def test_logits_of_any_size():
    loss = read_loss("bernoulli-logit")
    x, m = np.array([1.0, 0.0, 1.0, 0.0]), np.array([800.0, 800.0, -800.0, -800.0])
    np.testing.assert_array_equal(loss.value(x, m), [0.0, 800.0, 800.0, 0.0])
    np.testing.assert_array_equal(loss.derivative(x, m), [0.0, 1.0, -1.0, 0.0])


@given(st.floats(-2, 6), st.integers(0, 2**20))
def test_the_degree_says_what_a_unit_does(power, seed):
    unit = 10.0**power
    generator = np.random.default_rng(seed)
    x, m = generator.gamma(1.0, 2.0, 50) + 0.01, generator.uniform(0.05, 4, 50)
    for loss in ALL.values():
        if loss.degree is not None:
            # EPSILON belongs to data of size one: it must not matter here.
            whole = loss.divided(1 / unit).value(x * unit, m * unit)
            np.testing.assert_allclose(
                whole,
                unit**loss.degree * loss.value(x, m),
                rtol=1e-3,
                atol=1e-3 * unit**loss.degree,
            )


CONSTANT = [name for name in LOSSES if read_loss(name).constant(1.0) is not None]


@pytest.mark.parametrize("name", CONSTANT)
def test_the_best_constant(name):
    loss = read_loss(name)
    x, _ = examples(loss)
    m = loss.constant(float(x.mean()))
    slope = float(np.sum(loss.derivative(x, np.full_like(x, m))))
    assert abs(slope) <= 1e-7 * np.sum(np.abs(loss.derivative(x, np.full_like(x, m))))
    assert float(loss.mean(np.array([m]))[0]) == pytest.approx(float(x.mean()))


def test_limits_of_the_best_constant():
    assert read_loss("poisson-log").constant(0.0) == -math.inf
    assert read_loss("bernoulli-odds").constant(1.0) == math.inf
    assert read_loss("bernoulli-logit").constant(1.0) == math.inf
    assert read_loss("bernoulli-logit").constant(0.0) == -math.inf
    assert read_loss("huber").constant(1.0) is None
    assert read_loss("rayleigh").constant(1.0) is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("gaussian", [-1.0, 0.0, 2.5], []),
        ("poisson", [0.0, 1.5], [-0.1]),
        ("poisson-log", [0.0, 1.5], [-0.1]),
        ("bernoulli-odds", [0.0, 1.0], [0.5, 2.0, -1.0]),
        ("bernoulli-logit", [0.0, 1.0], [0.5, 2.0, -1.0]),
        ("gamma", [0.1], [0.0, -1.0]),
        ("rayleigh", [0.1], [0.0, -1.0]),
        ("huber", [-1.0, 0.0], []),
        ("beta", [0.0, 2.0], [-1.0]),
        ("negative-binomial", [0.0, 3.0], [-1.0]),
    ],
)
def test_domains(name, good, bad):
    loss = read_loss(name)
    assert loss.accepts(np.array(good)).all()
    assert not loss.accepts(np.array(bad)).any()
    assert BetaDivergenceLoss(0.0).accepts(np.array([0.0, 1.0])).tolist() == [False, True]


def test_betas_between_other_losses():
    generator = np.random.default_rng(0)
    x, m = generator.gamma(1.0, 2.0, 50), generator.uniform(0.1, 3, 50)
    for beta, name in ((0.0, "gamma"), (1.0, "poisson"), (2.0, "gaussian")):
        own, other = BetaDivergenceLoss(beta), read_loss(name)
        np.testing.assert_allclose(own.value(x, m), other.value(x, m), rtol=1e-7, atol=1e-9)
    near = BetaDivergenceLoss(1 + 1e-6).value(x, m)
    np.testing.assert_allclose(near, read_loss("poisson").value(x, m), rtol=1e-3, atol=1e-5)


def test_many_failures_are_nearly_poisson():
    x, m = np.array([0.0, 1.0, 5.0]), np.array([1.0, 2.0, 4.0])
    loss = NegativeBinomialLoss(1e7)
    expected = read_loss("poisson").value(x, m)
    np.testing.assert_allclose(loss.value(x, m / 1e7), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss.mean(m / 1e7), m)


@pytest.mark.parametrize("name", LOSSES)
def test_torch(name):
    torch = pytest.importorskip("torch")
    loss = read_loss(name)
    x, m = examples(loss)
    functions = ("value", "derivative", "curvature")
    for function in functions:
        own = getattr(loss, function)(torch.asarray(x), torch.asarray(m))
        assert array_namespace(own) is array_namespace(torch.asarray(x))
        np.testing.assert_allclose(own.numpy(), getattr(loss, function)(x, m), rtol=1e-12)
    assert loss.accepts(torch.asarray(x)).all()
    both = loss.evaluate(torch.asarray(x), torch.asarray(m))
    np.testing.assert_allclose(both[0].numpy(), loss.evaluate(x, m)[0], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(loss.offset(torch.asarray(x)).numpy(), loss.offset(x), rtol=1e-12)
    np.testing.assert_allclose(loss.mean(torch.asarray(m)).numpy(), loss.mean(m), rtol=1e-12)


def test_reading():
    assert read_loss("bernoulli") == read_loss("bernoulli-odds")
    assert read_loss("gaussian") == GaussianLoss()
    assert read_loss(HuberLoss(2.0)).threshold == 2.0
    assert read_loss("huber").divided(4.0) == HuberLoss(0.25)
    bounded = HuberLoss(1.0, nonnegative=True).divided(4.0)
    assert (bounded, bounded.lower) == (HuberLoss(0.25, nonnegative=True), 0.0)
    assert HuberLoss().lower == -math.inf
    assert "lower=0.0" in repr(CustomLoss(np.add, np.add, lower=0.0))


class Bounded(Loss):
    name, lower = "bounded", 1.0
    value = derivative = np.subtract


class Nameless(Loss):
    def value(self, x, m):
        return (m - x) ** 2

    def derivative(self, x, m):
        return 2 * (m - x)


def test_names_of_divergences_are_names_of_losses():
    assert read_loss("kl") == PoissonLoss()
    assert read_loss("frobenius") == GaussianLoss()


def test_an_object_with_the_methods_of_a_loss_is_one():
    class Own:
        lower = 0.0

        def value(self, x, m):
            return (m - x) ** 2

        def derivative(self, x, m):
            return 2 * (m - x)

        def accepts(self, x):
            return x > 1

    loss = read_loss(Own())
    x, m = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    assert loss.lower == 0
    assert loss.has_means
    assert not loss.has_curvature
    assert loss.value(x, m).tolist() == [4, 9]
    assert loss.derivative(x, m).tolist() == [4, 6]
    assert loss.accepts(x).tolist() == [False, True]


@pytest.mark.parametrize("times", [1e-300, 1e-12, 1.0, 1e12])
def test_counts_near_their_model_value_lose_no_digits(times):
    """x (r - log(1 + r)) is r² / 2 - r³ / 3 of a small r."""
    loss, r = PoissonLoss().without_margin(), 1e-5
    x = np.full(1, times)
    np.testing.assert_allclose(loss.value(x, x * (1 + r)), x * (r**2 / 2 - r**3 / 3), rtol=1e-5)
    assert loss.value(x, x)[0] == 0
    assert loss.derivative(x, x)[0] == 0


def test_counts_that_are_nothing_beside_their_model_value():
    x, m = np.array([0.0, 5e-324, 1e-310, 1e-300]), np.array([0.5, 2.0, 1e3, 1e9])
    np.testing.assert_allclose(PoissonLoss().value(x, m), m)


def test_without_margin_model_values_are_taken_as_they_are():
    x, m = np.array([1.0, 2.0]), np.array([1e-12, 1e-14])
    for loss in (PoissonLoss(), BetaDivergenceLoss(1.0)):
        expected = m - x + x * np.log(x / m)
        np.testing.assert_allclose(loss.without_margin().value(x, m), expected, rtol=1e-12)
        assert (loss.value(x, m) < expected - 0.1).all()
    assert GaussianLoss().without_margin() == GaussianLoss()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: read_loss("logistic"), "'logistic' is not known. Give one of 'gaussian', 'poiss"),
        (lambda: read_loss(3), "loss is a int. Give a name"),
        (lambda: read_loss(int), "loss is the class int. Give a name"),
        (lambda: read_loss(HuberLoss), r"is the class HuberLoss, not .*Give HuberLoss\(\)"),
        (lambda: read_loss(Bounded()), "a Bounded with lower=1.0; give 0 or minus infinity"),
        (lambda: read_loss(Nameless()), r"a Nameless, a Loss without a name.*name = \"nameless\""),
        (lambda: HuberLoss(0.0), "above zero as threshold, got 0.0"),
        (lambda: HuberLoss(1.0, nonnegative=0.0), "True or False as nonnegative, got 0.0"),
        (lambda: HuberLoss("1"), "above zero as threshold, got '1'"),
        (lambda: NegativeBinomialLoss(-1.0), "above zero as failures"),
        (lambda: BetaDivergenceLoss(math.nan), "finite number as beta"),
        (lambda: CustomLoss(1, np.add), "a function as value, got 1"),
        (lambda: CustomLoss(np.add, np.add, mean=2), "a function as mean"),
        (lambda: CustomLoss(np.add, np.add, lower=1.0), "lower=1.0; give 0 or minus infinity"),
    ],
)
def test_bad_losses(make, says):
    with pytest.raises(PolyadError, match=says):
        make()
